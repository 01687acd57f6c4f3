//! What each vector instruction computes in a lane.
//!
//! The functions go over all lanes at once: called lane by lane through a pointer they would be most of the interpreter's
//! time, and so the compiler makes vector code of each.

use msa_core::format::round::f16_from_f32_rne;

use super::super::LANES;
use super::super::registers::Lanes;

/// A function of a lane.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Compute {
    One(fn(&Lanes) -> Lanes),
    Two(fn(&Lanes, &Lanes) -> Lanes),
    Three(fn(&Lanes, &Lanes, &Lanes) -> Lanes),
    /// The third source is the old value of the target.
    Accumulate(fn(&Lanes, &Lanes, &Lanes) -> Lanes),
    /// Some sources or the result have 64 bits.
    Wide {
        wide: &'static [bool],
        result_is_wide: bool,
        f: fn(u64, u64, u64) -> u64,
    },
}

impl Compute {
    /// Sources in the text of the instruction.
    pub(super) fn inputs(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Two(_) | Self::Accumulate(_) => 2,
            Self::Three(_) => 3,
            Self::Wide { wide, .. } => wide.len(),
        }
    }
}

/// A function of one lane, for all of them.
macro_rules! one {
    ($of_lane:expr) => {
        Compute::One(|a| {
            let of_lane: fn(u32) -> u32 = $of_lane;
            std::array::from_fn::<u32, LANES, _>(|lane| of_lane(a[lane]))
        })
    };
}
macro_rules! two {
    ($of_lane:expr) => {
        Compute::Two(|a, b| {
            let of_lane: fn(u32, u32) -> u32 = $of_lane;
            std::array::from_fn::<u32, LANES, _>(|lane| of_lane(a[lane], b[lane]))
        })
    };
}
macro_rules! three {
    ($kind:ident, $of_lane:expr) => {
        Compute::$kind(|a, b, c| {
            let of_lane: fn(u32, u32, u32) -> u32 = $of_lane;
            std::array::from_fn::<u32, LANES, _>(|lane| of_lane(a[lane], b[lane], c[lane]))
        })
    };
}

/// The function of a mnemonic, with its `clamp` where there is one.
pub(super) fn lookup(name: &str) -> Option<Compute> {
    integers(name)
        .or_else(|| shifts(name))
        .or_else(|| floats(name))
        .or_else(|| conversions(name))
        .or_else(|| wide(name))
}

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

fn low24(x: u32) -> u32 {
    x & 0x00ff_ffff
}

fn integers(name: &str) -> Option<Compute> {
    Some(match name {
        "v_mov_b32" => one!(|a| a),
        "v_not_b32" => one!(|a| !a),
        "v_bfrev_b32" => one!(u32::reverse_bits),
        "v_ffbh_u32" => one!(|a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
        "v_and_b32" => two!(|a, b| a & b),
        "v_or_b32" => two!(|a, b| a | b),
        "v_xor_b32" => two!(|a, b| a ^ b),
        "v_or3_b32" => three!(Three, |a, b, c| a | b | c),
        "v_and_or_b32" => three!(Three, |a, b, c| a & b | c),
        "v_xad_u32" => three!(Three, |a, b, c| (a ^ b).wrapping_add(c)),
        "v_bfi_b32" => three!(Three, |a, b, c| a & b | !a & c),
        "v_add_u32" => two!(u32::wrapping_add),
        "v_sub_u32" => two!(u32::wrapping_sub),
        "v_add_u32 clamp" => two!(u32::saturating_add),
        "v_sub_u32 clamp" => two!(u32::saturating_sub),
        "v_subrev_u32" => two!(|a, b| b.wrapping_sub(a)),
        "v_add3_u32" => three!(Three, |a, b, c| a.wrapping_add(b).wrapping_add(c)),
        // Sixteen-bit results clear the upper half on gfx9.
        "v_add_u16" => two!(|a, b| a.wrapping_add(b) & 0xffff),
        "v_sub_u16" => two!(|a, b| a.wrapping_sub(b) & 0xffff),
        "v_mul_lo_u32" => two!(u32::wrapping_mul),
        "v_mul_hi_u32" => two!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "v_mul_hi_i32" => two!(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        "v_mul_u32_u24" => two!(|a, b| low24(a).wrapping_mul(low24(b))),
        "v_mad_u32_u24" => three!(Three, |a, b, c| low24(a).wrapping_mul(low24(b)).wrapping_add(c)),
        "v_min_u32" => two!(u32::min),
        "v_max_u32" => two!(u32::max),
        "v_min_i32" => two!(|a, b| (a as i32).min(b as i32) as u32),
        "v_max_i32" => two!(|a, b| (a as i32).max(b as i32) as u32),
        "v_perm_b32" => three!(Three, permute_bytes),
        _ => return None,
    })
}

/// Bytes 0..=3 of the selector's values are those of `b`, 4..=7 those of `a`; 8..=11 repeat a sign, 12 is 0, more is 255.
fn permute_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let data = u64::from(a) << 32 | u64::from(b);
    let byte = |select: u32| match select {
        0..=7 => (data >> (8 * select)) as u32 & 0xff,
        8..=11 => 0xff * (data >> (16 * (select - 8) + 15) & 1) as u32,
        12 => 0,
        _ => 0xff,
    };
    (0..4).fold(0, |result, index| result | byte(selector >> (8 * index) & 0xff) << (8 * index))
}

fn shifts(name: &str) -> Option<Compute> {
    Some(match name {
        "v_lshlrev_b32" => two!(|a, b| b << (a & 31)),
        "v_lshrrev_b32" => two!(|a, b| b >> (a & 31)),
        "v_ashrrev_i32" => two!(|a, b| (b as i32 >> (a & 31)) as u32),
        // Sixteen-bit results clear the upper half on gfx9.
        "v_lshlrev_b16" => two!(|a, b| (b << (a & 15)) & 0xffff),
        "v_lshrrev_b16" => two!(|a, b| (b & 0xffff) >> (a & 15)),
        "v_lshl_or_b32" => three!(Three, |a, b, c| a << (b & 31) | c),
        "v_lshl_add_u32" => three!(Three, |a, b, c| (a << (b & 31)).wrapping_add(c)),
        "v_add_lshl_u32" => three!(Three, |a, b, c| a.wrapping_add(b) << (c & 31)),
        "v_alignbit_b32" => three!(Three, |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32),
        "v_alignbyte_b32" => {
            three!(Three, |a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (8 * (c & 3))) as u32)
        }
        "v_bfe_u32" => three!(Three, |a, b, c| (a >> (b & 31)) & ((1u64 << (c & 31)) - 1) as u32),
        "v_bfe_i32" => three!(Three, |a, b, c| match c & 31 {
            0 => 0,
            width => {
                let unused = 32 - width;
                (((a >> (b & 31)) << unused) as i32 >> unused) as u32
            }
        }),
        _ => return None,
    })
}

fn floats(name: &str) -> Option<Compute> {
    Some(match name {
        "v_add_f32" => two!(|a, b| (f(a) + f(b)).to_bits()),
        "v_sub_f32" => two!(|a, b| (f(a) - f(b)).to_bits()),
        "v_subrev_f32" => two!(|a, b| (f(b) - f(a)).to_bits()),
        "v_mul_f32" => two!(|a, b| (f(a) * f(b)).to_bits()),
        "v_fma_f32" => three!(Three, fused),
        "v_fmac_f32" => three!(Accumulate, fused),
        // The text has the constant where it stands in the sum: a*b + K and a*K + b.
        "v_fmaak_f32" | "v_fmamk_f32" => three!(Three, fused),
        "v_max_f32" => two!(larger),
        "v_min_f32" => two!(|a, b| larger(a ^ SIGN, b ^ SIGN) ^ SIGN),
        "v_max3_f32" => three!(Three, |a, b, c| larger(larger(a, b), c)),
        // Only as the start of a division or of an integer division, which make up for its error: any value within
        // one unit in the last place gives the same quotient.
        "v_rcp_f32" | "v_rcp_iflag_f32" => one!(|a| ((1.0 / f64::from(f(a))) as f32).to_bits()),
        // As above: the square root that kernels call is made correct from it.
        "v_sqrt_f32" => one!(|a| f(a).sqrt().to_bits()),
        "v_trunc_f32" => one!(|a| f(a).trunc().to_bits()),
        "v_div_fixup_f32" => three!(Three, super::division::fix_up),
        _ => return None,
    })
}

fn fused(a: u32, b: u32, c: u32) -> u32 {
    f(a).mul_add(f(b), f(c)).to_bits()
}

const SIGN: u32 = 1 << 31;

/// The larger number; +0 is above -0, and a NaN loses.
fn larger(a: u32, b: u32) -> u32 {
    let order = |x: u32| if x & SIGN != 0 { !x } else { x | SIGN };
    match (f(a).is_nan(), f(b).is_nan()) {
        (true, true) => a | 0x0040_0000,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if order(a) >= order(b) {
                a
            } else {
                b
            }
        }
    }
}

fn conversions(name: &str) -> Option<Compute> {
    Some(match name {
        "v_cvt_f32_u32" => one!(|a| (a as f32).to_bits()),
        "v_cvt_f32_i32" => one!(|a| (a as i32 as f32).to_bits()),
        "v_cvt_f32_ubyte0" => one!(|a| ((a & 0xff) as f32).to_bits()),
        "v_cvt_u32_f32" => one!(|a| f(a) as u32),
        // Sixteen-bit results clear the upper half on gfx9.
        "v_cvt_f16_f32" => one!(|a| u32::from(f16_from_f32_rne(f(a)).to_bits())),
        "v_cvt_f16_f32 WORD_1" => one!(|a| u32::from(f16_from_f32_rne(f(a)).to_bits()) << 16),
        "v_cvt_i32_f32" => one!(|a| f(a) as i32 as u32),
        _ => return None,
    })
}

fn wide(name: &str) -> Option<Compute> {
    let row = |wide, result_is_wide, f| Some(Compute::Wide { wide, result_is_wide, f });
    match name {
        "v_mov_b64" => row(&[true], true, |a, _, _| a),
        "v_lshlrev_b64" => row(&[false, true], true, |a, b, _| b << (a & 63)),
        "v_lshrrev_b64" => row(&[false, true], true, |a, b, _| b >> (a & 63)),
        "v_ashrrev_i64" => row(&[false, true], true, |a, b, _| (b as i64 >> (a & 63)) as u64),
        "v_lshl_add_u64" => row(&[true, false, true], true, |a, b, c| (a << (b & 7)).wrapping_add(c)),
        "v_mul_f64" => row(&[true, true], true, |a, b, _| (f64::from_bits(a) * f64::from_bits(b)).to_bits()),
        "v_cvt_f64_f32" => row(&[false], true, |a, _, _| f64::from(f(a as u32)).to_bits()),
        "v_cvt_f32_f64" => row(&[true], false, |a, _, _| u64::from((f64::from_bits(a) as f32).to_bits())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_ignores_nan_and_orders_zeros() {
        let nan = f32::NAN.to_bits();
        assert_eq!(larger(0, SIGN), 0);
        assert_eq!(larger(SIGN, 0), 0);
        assert_eq!((larger(nan, 5), larger(5, nan)), (5, 5));
        assert_eq!(larger((-2f32).to_bits(), (-3f32).to_bits()), (-2f32).to_bits());
    }

    #[test]
    fn bytes_are_picked_from_the_second_source_first() {
        assert_eq!(permute_bytes(0x7766_5544, 0x3322_1100, 0x0501_0400), 0x5511_4400);
        assert_eq!(permute_bytes(0x8000_0000, 0x0000_8000, 0x0d0c_0b08), 0xff00_ffff);
    }
}
