use sha2::{Digest, Sha256};

use super::*;

fn ex2(x: f32) -> f32 {
    f32::from_bits(ex2_approx_ftz(x.to_bits()))
}

/// Every float with |x| < 128 at a stride of 89 bit patterns, the specials around it, and both signs.
fn stated_inputs() -> Vec<u32> {
    let magnitudes =
        (0..BITS_OF_128).step_by(89).chain([BITS_OF_128 - 1, BITS_OF_128, INFINITY, INFINITY + 1]);
    magnitudes.flat_map(|magnitude| [magnitude, magnitude | SIGN]).collect()
}

#[test]
fn ex2_every_fraction_has_the_table_structure() {
    // Written out again from the table, in wide arithmetic and over the whole binade [1, 2).
    let mut previous = 0;
    for fraction in 0..1u32 << 23 {
        let [c0, c1, c2] = EX2[(fraction >> 17) as usize].map(i128::from);
        let x = i128::from(fraction % (1 << 17));
        let square = (0..17).map(|j| if x >> j & 1 == 1 { x >> (18 - j) } else { 0 }).sum::<i128>() >> 1;
        let significand = (c0 * 8192 + c1 * x + c2 * square + 0x77e2) >> 15;
        assert!((1 << 23..1 << 24).contains(&significand), "{fraction:#x}");
        let want = 128 << 23 | significand as u32 & 0x7f_ffff;
        let got = ex2_approx_ftz(127 << 23 | fraction);
        assert_eq!(got, want, "{fraction:#x}");
        assert!(got >= previous, "not monotonic at {fraction:#x}");
        previous = got;
    }
}

#[test]
fn ex2_largest_errors_are_the_documented_ones() {
    let largest = |sign: u32, exponent_field: u32| {
        let inputs = (0..1u32 << 23).map(|fraction| f32::from_bits(sign | exponent_field << 23 | fraction));
        let errors = inputs.map(|x| (f64::from(ex2(x)) / f64::from(x).exp2() - 1.0).abs());
        errors.fold(0.0, f64::max)
    };
    let (below_zero, above) = (largest(SIGN, 126), largest(0, 127));
    assert!((1.439e-7..1.440e-7).contains(&below_zero), "[-1, -1/2]: {below_zero:e}");
    assert!((1.458e-7..1.459e-7).contains(&above), "[1, 2]: {above:e}");
}

#[test]
fn ex2_of_integers_is_exact_and_small_results_flush() {
    for n in -140..=140 {
        let want = match n {
            ..-126 => 0.0,
            128.. => f32::INFINITY,
            _ => 2f32.powi(n),
        };
        assert_eq!(ex2(n as f32).to_bits(), want.to_bits(), "{n}");
    }
    assert_eq!(ex2(-0.0), 1.0);
    assert_eq!(ex2(f32::from_bits(1)), 1.0);
    assert_eq!(ex2(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(ex2(f32::MAX), f32::INFINITY);
    assert_eq!(ex2_approx_ftz(0xffc0_0000), CANONICAL_NAN);
}

#[test]
fn ex2_negative_inputs_are_ones_complemented() {
    for i in 1..1u32 << 18 {
        let fraction = i.wrapping_mul(0x9e37_79b9) >> 9 | 1;
        let negative = f32::from_bits(127 << 23 | fraction); // 1.f, so -x = -2 + (1 - f)
        let complement = f32::from_bits(127 << 23 | (!fraction & 0x7f_ffff));
        assert_eq!(ex2(-negative) * 8.0, ex2(complement), "{fraction:#x}");
    }
}

#[test]
fn ex2_levels_agree_with_the_scalar_model_and_the_recorded_hash() {
    let inputs = stated_inputs();
    let want: Vec<u32> = inputs.iter().map(|&x| ex2_approx_ftz(x)).collect();
    for level in SimdLevel::available() {
        let mut out = vec![0; inputs.len()];
        ex2_slice_at(level, &inputs, &mut out).unwrap();
        let difference = out.iter().zip(&want).position(|(got, want)| got != want);
        assert_eq!(difference.map(|i| inputs[i]), None, "{level}");
    }
    assert_eq!(hash(&want), EX2_HASH);
}

#[test]
fn rcp_has_the_recorded_hash() {
    let results: Vec<u32> = (0..1u32 << 23).map(|fraction| rcp_approx_ftz(127 << 23 | fraction)).collect();
    assert!(results.windows(2).all(|pair| pair[0] >= pair[1]), "1/x falls");
    let worst = results.iter().enumerate().fold(0.0, |worst: f64, (fraction, &bits)| {
        let x = f32::from_bits(127 << 23 | fraction as u32);
        worst.max((f64::from(f32::from_bits(bits)) * f64::from(x) - 1.0).abs())
    });
    assert!(worst < 1.2e-7, "{worst:e}");
    assert_eq!(hash(&results), RCP_HASH);
}

#[test]
fn rcp_specials_and_powers_of_two() {
    let rcp = |x: f32| f32::from_bits(rcp_approx_ftz(x.to_bits()));
    for n in -126..=126 {
        assert_eq!(rcp(2f32.powi(n)), 2f32.powi(-n));
        assert_eq!(rcp(-(2f32.powi(n))), -(2f32.powi(-n)));
    }
    assert_eq!(rcp_approx_ftz(1), INFINITY);
    assert_eq!(rcp_approx_ftz(SIGN | 0x7f_ffff), INFINITY | SIGN);
    assert_eq!(rcp_approx_ftz(INFINITY | SIGN), SIGN);
    assert_eq!(rcp(-(2f32.powi(127))).to_bits(), SIGN, "2^-127 is subnormal and flushed");
    assert_eq!(rcp_approx_ftz(0xffc0_0000), CANONICAL_NAN);
}

fn hash(words: &[u32]) -> String {
    let digest = words.iter().fold(Sha256::new(), |digest, word| digest.chain_update(word.to_le_bytes()));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of the little-endian results over [`stated_inputs`], from the model above.
const EX2_HASH: &str = "e4de44bb4032f2ef9199128e836d26666a85dcac1db10db0385ad5580ca42966";
/// SHA-256 of the little-endian results over the binade [1, 2) in ascending order.
const RCP_HASH: &str = "c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55";
