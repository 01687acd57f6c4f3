//! The approximate reciprocal of NVIDIA GPUs, bit for bit.
//!
//! The `Reciprocal` rule of [`super::nvfp4`] is defined by this instruction, so its model belongs to the
//! format.

use super::CANONICAL_NAN_F32;

/// `rcp.approx.ftz.f32`: 1/x to about one ulp.
///
/// Zero and subnormals give infinity, results below 2^-126 and infinity give zero, each with the sign of `x`;
/// NaN gives [`CANONICAL_NAN_F32`]. Within a binade it is a quadratic in the low 16 mantissa bits, its
/// coefficients chosen by the high 7, with the truncated squarer of NVIDIA's special function unit (Oberman
/// and Siu, ARITH 17, 2005; envytools, `nvhw/sfu.c`). Equal to the instruction on all 2^32 inputs (measured
/// on an H200, driver 580.159).
pub fn rcp_approx_ftz(x: f32) -> f32 {
    if x.is_nan() {
        return CANONICAL_NAN_F32;
    }
    let bits = x.to_bits();
    let sign = bits & 0x8000_0000;
    let exponent = bits >> 23 & 0xff;
    let magnitude = match exponent {
        0 => f32::INFINITY.to_bits(),
        0xff => 0,
        _ => normal_reciprocal(exponent, bits & 0x7f_ffff),
    };
    f32::from_bits(sign | magnitude)
}

/// The bits of `1 / (2^(exponent - 127) (1 + mantissa 2^-23))`, for an exponent field in `1..=254`.
fn normal_reciprocal(exponent: u32, mantissa: u32) -> u32 {
    let (c0, c1, c2) = COEFFICIENTS[(mantissa >> 16) as usize];
    let low = mantissa & 0xffff;
    let sum = (c0 << 13) + c1 * i64::from(low) + c2 * i64::from(truncated_square(low << 1)) + ROUNDING;
    // The quotient in units of 2^(103 - exponent), in (2^23, 2^24]. Adding it without the implicit bit
    // carries 2^24 into the exponent field.
    let significand = (sum >> 15) as u32;
    let bits = ((253 - i64::from(exponent)) << 23) + i64::from(significand - 0x80_0000);
    if bits < 0x80_0000 { 0 } else { bits as u32 }
}

/// `x^2 / 2^19` with each partial product truncated on its own, as the squarer does it; `x` has 17 bits.
fn truncated_square(x: u32) -> u32 {
    let mut sum = 0;
    let mut rest = x;
    while rest != 0 {
        sum += x >> (18 - rest.trailing_zeros());
        rest &= rest - 1;
    }
    sum >> 1
}

/// Added before the last 15 bits are dropped: half of them and the mean of what the squarer drops, by the
/// same fit.
const ROUNDING: i64 = 0x47e7;

/// `(c0, c1, c2)` for each of the 128 segments of a binade: the only integers that reproduce all 65,536
/// points of their segment (fitted to the outputs of an H200, driver 580.159).
#[rustfmt::skip]
const COEFFICIENTS: [(i64, i64, i64); 128] = [
    (67108862, -65534, 1013), (66588640, -64522, 989), (66076420, -63533, 966), (65572019, -62567, 945),
    (65075260, -61622, 923), (64585974, -60699, 902), (64103990, -59797, 883), (63629144, -58914, 863),
    (63161282, -58051, 845), (62700252, -57207, 827), (62245903, -56381, 809), (61798089, -55572, 791),
    (61356675, -54781, 774), (60921522, -54007, 758), (60492497, -53249, 742), (60069472, -52507, 727),
    (59652323, -51780, 711), (59240928, -51068, 696), (58835168, -50371, 682), (58434928, -49688, 669),
    (58040097, -49019, 656), (57650567, -48363, 642), (57266229, -47721, 631), (56886984, -47091, 618),
    (56512727, -46473, 605), (56143364, -45868, 594), (55778796, -45274, 582), (55418932, -44692, 572),
    (55063684, -44121, 561), (54712959, -43560, 549), (54366675, -43011, 540), (54024745, -42471, 529),
    (53687091, -41942, 519), (53353631, -41423, 510), (53024286, -40913, 501), (52698985, -40412, 490),
    (52377649, -39921, 482), (52060210, -39439, 474), (51746594, -38965, 465), (51436735, -38500, 457),
    (51130563, -38043, 449), (50828015, -37594, 441), (50529027, -37153, 433), (50233536, -36720, 426),
    (49941480, -36294, 418), (49652801, -35876, 412), (49367440, -35464, 403), (49085340, -35060, 397),
    (48806447, -34663, 390), (48530703, -34272, 383), (48258058, -33888, 377), (47988462, -33511, 371),
    (47721859, -33140, 366), (47458202, -32774, 358), (47197442, -32415, 353), (46939532, -32062, 348),
    (46684427, -31714, 341), (46432080, -31373, 337), (46182444, -31036, 331), (45935478, -30705, 326),
    (45691141, -30379, 320), (45449390, -30059, 316), (45210183, -29743, 310), (44973479, -29432, 305),
    (44739242, -29127, 302), (44507434, -28826, 297), (44278014, -28529, 291), (44050946, -28237, 287),
    (43826197, -27950, 283), (43603728, -27667, 279), (43383508, -27388, 274), (43165501, -27114, 271),
    (42949673, -26843, 266), (42735993, -26577, 263), (42524428, -26314, 258), (42314948, -26056, 256),
    (42107523, -25801, 251), (41902120, -25550, 248), (41698712, -25302, 243), (41497268, -25058, 240),
    (41297762, -24818, 237), (41100166, -24581, 233), (40904451, -24348, 231), (40710591, -24117, 226),
    (40518559, -23890, 223), (40328331, -23667, 222), (40139881, -23446, 218), (39953184, -23228, 214),
    (39768216, -23014, 212), (39584953, -22802, 208), (39403369, -22593, 205), (39223446, -22388, 204),
    (39045157, -22184, 199), (38868482, -21984, 197), (38693399, -21787, 196), (38519886, -21592, 193),
    (38347922, -21399, 189), (38177487, -21209, 186), (38008561, -21022, 184), (37841121, -20837, 182),
    (37675152, -20655, 180), (37510631, -20475, 178), (37347541, -20297, 175), (37185864, -20122, 173),
    (37025580, -19949, 171), (36866671, -19778, 169), (36709122, -19609, 166), (36552913, -19443, 165),
    (36398028, -19278, 161), (36244450, -19116, 160), (36092162, -18956, 159), (35941149, -18797, 155),
    (35791394, -18641, 154), (35642882, -18487, 153), (35495597, -18334, 150), (35349526, -18184, 149),
    (35204650, -18035, 147), (35060957, -17888, 145), (34918434, -17743, 143), (34777062, -17600, 143),
    (34636833, -17458, 140), (34497730, -17318, 138), (34359739, -17180, 137), (34222847, -17043, 135),
    (34087042, -16908, 133), (33952311, -16775, 132), (33818639, -16643, 131), (33686017, -16513, 130),
];

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// The start of the SHA-256 over the little-endian words of `rcp_approx_ftz`.
    fn hash(inputs: impl Iterator<Item = u32>) -> String {
        let bytes: Vec<u8> =
            inputs.flat_map(|bits| rcp_approx_ftz(f32::from_bits(bits)).to_bits().to_le_bytes()).collect();
        Sha256::digest(&bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Hashes of the instruction's own outputs, recorded on an H200, driver 580.159.
    #[test]
    fn outputs_hash_as_those_of_an_h200() {
        assert_eq!(hash((0..1 << 23).map(|mantissa| 127 << 23 | mantissa)), "c408381446132e07");
        assert_eq!(hash((0..=u32::MAX).step_by(4093)), "ec7f9eae985c755a");
        assert_eq!(hash((0..1024).map(|half_binade| half_binade << 22)), "d63f7ecae8b6442c");
        assert_eq!(hash((0..512).map(|binade| binade << 23 | 0x7f_ffff)), "33bd0bb8e3aad5c2");
    }

    #[test]
    fn specials_and_the_constants_of_the_quantiser() {
        let cases =
            [(0.0, f32::INFINITY), (-1e-40, f32::NEG_INFINITY), (f32::NEG_INFINITY, -0.0), (1.0, 1.0)];
        for (x, want) in cases {
            assert_eq!(rcp_approx_ftz(x).to_bits(), f32::to_bits(want), "{x}");
        }
        assert_eq!(rcp_approx_ftz(-f32::NAN).to_bits(), 0x7fff_ffff);
        assert_eq!(rcp_approx_ftz(f32::MAX).to_bits(), 0);
        assert_eq!(rcp_approx_ftz(2f32.powi(126)), 2f32.powi(-126));
        assert_eq!(rcp_approx_ftz(6.0).to_bits(), 0x3e2a_aaab);
    }
}
