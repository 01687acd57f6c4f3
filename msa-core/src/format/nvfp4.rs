//! Quantising to NVFP4: 16 consecutive channels of one (token, head) as E2M1 codes under one E4M3 scale.
//!
//! Two rules are in use and give different bytes; see [`Nvfp4Quantiser`]. Both take channels already rounded
//! to bf16 by the caller, and neither depends on anything but its arguments.

use super::rcp::rcp_approx_ftz;
use super::{E2m1, E4m3, FormatError};

/// Channels that share a scale.
pub const GROUP_CHANNELS: usize = 16;

/// Bytes that hold the codes of a group.
pub const GROUP_CODE_BYTES: usize = GROUP_CHANNELS / 2;

/// A quantised group. Codes and scales lie apart in a cache, so this is a value, not a layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nvfp4Group {
    /// Two codes a byte, the even channel in the low nibble.
    pub codes: [u8; GROUP_CODE_BYTES],
    /// The scale, never negative.
    pub scale: E4m3,
}

const _: () = assert!(GROUP_CODE_BYTES == 8 && size_of::<Nvfp4Group>() == 9 && align_of::<Nvfp4Group>() == 1);

/// The rule by which a group is quantised. With `amax` the largest magnitude of the group and `gs` the global
/// scale:
///
/// | | `Vendor` | `Reciprocal` |
/// |---|---|---|
/// | scale | `e4m3(max(amax, 1e-12) / 6)`, clamped to 2^-9 ..= 448 | `e4m3(rcp(gs) * (amax * rcp(6)))`, may be 0 |
/// | code of x | `e2m1(x / scale)`, IEEE division | `e2m1(x * rcp(scale * gs))`, and `e2m1(x * 0)` if amax is 0 |
/// | negative zero | becomes +0 | kept |
/// | global scale | 1 | any; 1 in production |
///
/// All of it is in f32, each operation rounded to nearest even; `rcp` is [`rcp_approx_ftz`], `e4m3` and
/// `e2m1` are the `rne_satfinite` conversions. `Vendor` is the cache-insertion rule of the MiniMax-M3.1
/// release (vLLM), `Reciprocal` that of SGLang's and FlashInfer's NVFP4 kernels. About 0.1 % of the codes
/// differ between them.
///
/// Under `Reciprocal` a scale that underflows to 0 leaves codes that mean nothing: the multiplier is
/// infinite, so they are ±6, and +6 for a zero. The group still dequantises to zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nvfp4Quantiser {
    /// Division by the rounded scale; the default.
    #[default]
    Vendor,
    /// Multiplication by an approximate reciprocal.
    Reciprocal,
}

impl Nvfp4Quantiser {
    /// Quantises a group, refusing what has no meaning.
    ///
    /// # Errors
    /// [`FormatError::NanInput`] names the first NaN channel. [`FormatError::GlobalScale`] if the global
    /// scale is not 1 (`Vendor`) or not a positive normal number (`Reciprocal`).
    pub fn quantise(
        self,
        channels: &[f32; GROUP_CHANNELS],
        global_scale: f32,
    ) -> Result<Nvfp4Group, FormatError> {
        self.check_global_scale(global_scale)?;
        if let Some(channel) = channels.iter().position(|x| x.is_nan()) {
            return Err(FormatError::NanInput { channel });
        }
        Ok(self.quantise_unchecked(channels, global_scale).group)
    }

    /// Quantises a group as an unchecked kernel does: a group with a NaN gets scale 448, its NaN channels the
    /// code +6, its other channels their code under that scale, and is reported. `Vendor` ignores the global
    /// scale.
    pub fn quantise_unchecked(
        self,
        channels: &[f32; GROUP_CHANNELS],
        global_scale: f32,
    ) -> UncheckedNvfp4Group {
        let saw_nan = channels.iter().any(|x| x.is_nan());
        let amax = channels.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
        let group = match self {
            Self::Vendor => {
                let scale = if saw_nan { E4m3::MAX } else { vendor_scale(amax) };
                Nvfp4Group { codes: pack(&channels.map(|x| vendor_code(x, scale))), scale }
            }
            Self::Reciprocal => {
                let scale = if saw_nan { E4m3::MAX } else { reciprocal_scale(amax, global_scale) };
                let multiplier = reciprocal_multiplier(amax, scale, global_scale);
                let codes = channels.map(|x| E2m1::from_f32_rne_satfinite(x * multiplier));
                Nvfp4Group { codes: pack(&codes), scale }
            }
        };
        UncheckedNvfp4Group { group, saw_nan }
    }

    fn check_global_scale(self, got: f32) -> Result<(), FormatError> {
        let (fits, want) = match self {
            Self::Vendor => (got == 1.0, "1, since the vendor rule has no global scale"),
            Self::Reciprocal => (got > 0.0 && got.is_normal(), "a positive normal number"),
        };
        if fits { Ok(()) } else { Err(FormatError::GlobalScale { want, got }) }
    }
}

/// What [`Nvfp4Quantiser::quantise_unchecked`] gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UncheckedNvfp4Group {
    /// The group.
    pub group: Nvfp4Group,
    /// Whether a channel was NaN: the status bit of a kernel.
    pub saw_nan: bool,
}

/// The scale that the vendor rule gives a group with this largest magnitude, which is not NaN.
pub fn vendor_scale(amax: f32) -> E4m3 {
    let rounded = E4m3::from_f32_rne_satfinite(amax.max(VENDOR_AMAX_FLOOR) / E2M1_MAX);
    // Positive values order as their bits do, and the conversion has clamped at 448 already.
    E4m3::from_bits(rounded.to_bits().max(E4m3::MIN_POSITIVE.to_bits()))
}

/// The code that the vendor rule gives one channel under a scale.
pub fn vendor_code(x: f32, scale: E4m3) -> E2m1 {
    let code = E2m1::from_f32_rne_satfinite(x / scale.to_f32());
    if code == E2m1::NEGATIVE_ZERO { E2m1::ZERO } else { code }
}

/// The scale that the reciprocal rule gives a group with this largest magnitude, which is not NaN.
pub fn reciprocal_scale(amax: f32, global_scale: f32) -> E4m3 {
    E4m3::from_f32_rne_satfinite(rcp_approx_ftz(global_scale) * (amax * rcp_approx_ftz(E2M1_MAX)))
}

/// What the reciprocal rule multiplies every channel of a group by.
pub fn reciprocal_multiplier(amax: f32, scale: E4m3, global_scale: f32) -> f32 {
    // Decided by amax and not by the scale, so that a scale that underflowed gives infinity, as in the
    // kernels.
    if amax == 0.0 { 0.0 } else { rcp_approx_ftz(scale.to_f32() * global_scale) }
}

fn pack(codes: &[E2m1; GROUP_CHANNELS]) -> [u8; GROUP_CODE_BYTES] {
    std::array::from_fn(|byte| E2m1::pack(codes[2 * byte], codes[2 * byte + 1]))
}

/// The largest E2M1 value: a group's largest magnitude is mapped near it.
const E2M1_MAX: f32 = 6.0;

/// The vendor rule's floor under amax. It keeps 0/6 off the conversion and changes no byte, as the scale is
/// clamped.
const VENDOR_AMAX_FLOOR: f32 = 1e-12;

#[cfg(test)]
mod tests {
    use super::super::{dequant, oracle, round};
    use super::*;
    use Nvfp4Quantiser::{Reciprocal, Vendor};

    fn group_with_amax(amax: f32) -> [f32; 16] {
        let mut group = [0.0; 16];
        group[5] = amax;
        group
    }

    fn code(group: &Nvfp4Group, channel: usize) -> u8 {
        E2m1::unpack(group.codes[channel / 2])[channel % 2].to_bits()
    }

    fn dequantised(group: &Nvfp4Group) -> [f32; 16] {
        std::array::from_fn(|channel| {
            dequant::dequantise_exact_f32(E2m1::from_bits(code(group, channel)), group.scale)
        })
    }

    #[test]
    fn vendor_boundaries() {
        let table =
            [(0.0, 0x01), (0.01, 0x01), (0.1, 0x09), (1.0, 0x23), (3.0, 0x30), (6.0, 0x38), (100.0, 0x58)];
        let saturating = [(2688.0, 0x7e), (2689.0, 0x7e), (3e38, 0x7e), (f32::INFINITY, 0x7e)];
        for (amax, scale) in table.into_iter().chain(saturating) {
            let group = Vendor.quantise(&group_with_amax(amax), 1.0).unwrap();
            assert_eq!(group.scale.to_bits(), scale, "amax {amax}");
            assert_eq!(code(&group, 5), if amax == 0.0 { 0 } else { 7 }, "amax {amax}");
        }
        let zeros = Vendor.quantise(&[-0.0; 16], 1.0).unwrap();
        assert_eq!((zeros.codes, zeros.scale.to_f32()), ([0; 8], 2f32.powi(-9)));
    }

    #[test]
    fn reciprocal_boundaries() {
        let tie = 6.0 * 2f32.powi(-10);
        for (amax, scale) in
            [(0.0, 0), (tie, 0), (tie.next_up(), 1), (6.0, 0x38), (2688.0, 0x7e), (3e38, 0x7e)]
        {
            let group = Reciprocal.quantise(&group_with_amax(amax), 1.0).unwrap();
            assert_eq!(group.scale.to_bits(), scale, "amax {amax}");
            if scale == 0 {
                assert_eq!(dequantised(&group), [0.0; 16]);
            }
        }
        let zeros = Reciprocal.quantise(&[-0.0; 16], 1.0).unwrap();
        assert_eq!(zeros.codes, [0x88; 8]);
    }

    #[test]
    fn scales_differ_where_the_reciprocal_of_6_lifts_a_quotient_onto_a_tie() {
        // 7.125 / 6 = 1.1875 lies half way between 0x39 and 0x3a.
        let group = group_with_amax(7.125f32.next_down());
        assert_eq!(Vendor.quantise(&group, 1.0).unwrap().scale.to_bits(), 0x39);
        assert_eq!(Reciprocal.quantise(&group, 1.0).unwrap().scale.to_bits(), 0x3a);
    }

    #[test]
    fn the_sign_of_a_value_that_rounds_to_zero_is_dropped_by_vendor_and_kept_by_reciprocal() {
        let mut group = [6.0f32; 16];
        group[1] = -0.25;
        group[2] = -0.0;
        let [vendor, reciprocal] = [Vendor, Reciprocal].map(|rule| rule.quantise(&group, 1.0).unwrap());
        assert_eq!([code(&vendor, 1), code(&vendor, 2)], [0, 0]);
        assert_eq!([code(&reciprocal, 1), code(&reciprocal, 2)], [8, 8]);
    }

    #[test]
    fn nan_is_refused_or_reported() {
        let mut group = [-448.0; 16];
        group[3] = -f32::NAN;
        group[9] = f32::NAN;
        for rule in [Vendor, Reciprocal] {
            assert_eq!(rule.quantise(&group, 1.0), Err(FormatError::NanInput { channel: 3 }));
            let unchecked = rule.quantise_unchecked(&group, 1.0);
            assert!(unchecked.saw_nan);
            assert_eq!(unchecked.group.scale.to_bits(), 0x7e);
            for channel in 0..16 {
                let want = if channel == 3 || channel == 9 { 0x7 } else { 0xa };
                assert_eq!(code(&unchecked.group, channel), want, "{rule:?} channel {channel}");
            }
            assert!(!rule.quantise_unchecked(&[1.0; 16], 1.0).saw_nan);
        }
    }

    #[test]
    fn global_scales_without_meaning_are_refused() {
        for (rule, scale) in [(Vendor, 2.0), (Reciprocal, 0.0), (Reciprocal, -1.0), (Reciprocal, 1e-40)] {
            let error = rule.quantise(&[1.0; 16], scale).unwrap_err();
            assert!(matches!(error, FormatError::GlobalScale { got, .. } if got == scale));
        }
        assert!(Vendor.quantise(&[1.0; 16], f32::NAN).is_err());
        assert!(Reciprocal.quantise(&[1.0; 16], f32::INFINITY).is_err());
    }

    #[test]
    fn k03_a_zero_group_beside_a_tiny_one_has_no_nan_scale() {
        let tiny = [round::round_bf16(1e-3); 16];
        let global_scale = 1e-3 / (6.0 * 448.0);
        let groups = [
            (Reciprocal.quantise(&[0.0; 16], global_scale).unwrap(), global_scale, 0.0),
            (Reciprocal.quantise(&tiny, global_scale).unwrap(), global_scale, 1e-3),
            (Vendor.quantise(&[0.0; 16], 1.0).unwrap(), 1.0, 0.0),
            (Vendor.quantise(&tiny, 1.0).unwrap(), 1.0, 1e-3),
        ];
        for (group, global_scale, want) in groups {
            assert!(!group.scale.is_nan());
            for value in dequantised(&group) {
                assert!((value * global_scale - want).abs() <= 0.06 * want, "{value} for {want}");
            }
        }
    }

    #[test]
    fn k05_tie_aligned_value_rounds_by_division() {
        let scale = E4m3::from_bits(0x07);
        assert_eq!(scale.to_f32(), 0.013671875);
        let x = 0.023_925_779_387_354_85_f64 as f32;
        assert_eq!(vendor_code(x, scale).to_bits(), 3);
        let multiplier = reciprocal_multiplier(x, scale, 1.0);
        assert_eq!(E2m1::from_f32_rne_satfinite(x * multiplier).to_bits(), 4);

        let mut group = group_with_amax(6.0 * scale.to_f32());
        group[0] = x;
        let [vendor, reciprocal] = [Vendor, Reciprocal].map(|rule| rule.quantise(&group, 1.0).unwrap());
        assert_eq!([vendor.scale, reciprocal.scale], [scale; 2]);
        assert_eq!([code(&vendor, 0), code(&reciprocal, 0)], [3, 4]);
    }

    #[test]
    fn k05_requantising_with_the_same_scale_is_the_identity() {
        for scale in (0x01..=0x7e).map(E4m3::from_bits) {
            let multiplier = reciprocal_multiplier(1.0, scale, 1.0);
            for code in (0..16).map(E2m1::from_bits) {
                let x = dequant::dequantise_exact_f32(code, scale);
                let vendor = if code == E2m1::NEGATIVE_ZERO { E2m1::ZERO } else { code };
                assert_eq!(vendor_code(x, scale), vendor, "{scale:?}");
                assert_eq!(E2m1::from_f32_rne_satfinite(x * multiplier), code, "{scale:?}");
            }
        }
    }

    /// Groups of every magnitude, with the largest channel exactly `amax` and a third of the others on or
    /// beside a rounding tie of the vendor scale.
    struct Groups(oracle::Random);

    impl Groups {
        /// Zero, 2^-149, 2^-30, small, one with scale 1, the largest that does not saturate, and some far
        /// above it.
        const LISTED_AMAX: [f32; 8] = [0.0, 1e-45, 9.313_226e-10, 1e-8, 6.0, 448.0 * 6.0, 3e38, f32::MAX];
        const TIES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

        fn next(&mut self) -> [f32; 16] {
            let random = &mut self.0;
            let amax = match random.below(8) {
                0 => Self::LISTED_AMAX[random.below(8)],
                1 => f32::from_bits(random.below(0x7f80_0000) as u32),
                _ => random.signed_unit().abs() * 2f32.powi(random.below(28) as i32 - 14),
            };
            let scale = vendor_scale(amax).to_f32();
            let mut group = [0.0; 16];
            for x in &mut group {
                let tie = scale * Self::TIES[random.below(7)] * if random.below(2) == 0 { 1.0 } else { -1.0 };
                *x = match random.below(9) {
                    0 => tie,
                    1 => tie.next_up(),
                    2 => tie.next_down(),
                    _ => random.signed_unit() * amax,
                };
                *x = x.clamp(-amax, amax);
            }
            group[random.below(16)] = if random.below(2) == 0 { amax } else { -amax };
            group
        }
    }

    /// f64 quotient rounded to f32: the same as IEEE f32 division, as 53 >= 2 * 24 + 2 (Figueroa, 1995).
    fn divide(x: f32, y: f64) -> f64 {
        f64::from((f64::from(x) / y) as f32)
    }

    fn multiply(x: f64, y: f64) -> f64 {
        f64::from((x * y) as f32)
    }

    fn slow_code(quotient: f64, magnitudes: &[f64]) -> u8 {
        oracle::nearest_even(quotient.abs(), magnitudes) as u8 | u8::from(quotient.is_sign_negative()) << 3
    }

    #[test]
    fn i06_vendor_equals_a_slow_f64_formulation_on_a_million_groups() {
        let (e2m1, e4m3) = (oracle::e2m1_magnitudes(), oracle::e4m3_magnitudes());
        let mut groups = Groups(oracle::Random(6));
        for _ in 0..1_000_000 {
            let channels = groups.next();
            let got = Vendor.quantise(&channels, 1.0).unwrap();
            let amax = channels.iter().fold(0.0, |a: f32, x| if x.abs() > a { x.abs() } else { a });
            let scale = oracle::nearest_even(divide(amax, 6.0), &e4m3).max(1);
            assert_eq!(usize::from(got.scale.to_bits()), scale, "{channels:?}");
            for (channel, &x) in channels.iter().enumerate() {
                let want = slow_code(divide(x, e4m3[scale]), &e2m1);
                assert_eq!(code(&got, channel), if want == 8 { 0 } else { want }, "{x:e} of {channels:?}");
            }
        }
    }

    #[test]
    fn i06_reciprocal_equals_a_slow_f64_formulation_on_a_million_groups() {
        let (e2m1, e4m3) = (oracle::e2m1_magnitudes(), oracle::e4m3_magnitudes());
        let reciprocal = |x: f64| f64::from(rcp_approx_ftz(x as f32));
        let mut groups = Groups(oracle::Random(7));
        for round in 0..1_000_000 {
            let channels = groups.next();
            let global_scale = [1.0f32, 0.5, 3.0, 1e-3][round % 4];
            let got = Reciprocal.quantise(&channels, global_scale).unwrap();
            let amax = channels.iter().fold(0.0, |a: f32, x| if x.abs() > a { x.abs() } else { a });
            let sixth = multiply(f64::from(amax), reciprocal(6.0));
            let unrounded = multiply(reciprocal(f64::from(global_scale)), sixth);
            let scale = oracle::nearest_even(unrounded, &e4m3);
            assert_eq!(usize::from(got.scale.to_bits()), scale, "{channels:?}");
            let inverse = reciprocal(multiply(e4m3[scale], f64::from(global_scale)));
            let multiplier = if amax == 0.0 { 0.0 } else { inverse };
            for (channel, &x) in channels.iter().enumerate() {
                let product = multiply(f64::from(x), multiplier);
                let want = if product.is_nan() { 7 } else { slow_code(product, &e2m1) };
                assert_eq!(code(&got, channel), want, "{x:e} of {channels:?}");
            }
        }
    }
}
