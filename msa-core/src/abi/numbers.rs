//! Enumerations as they cross the border: `u32`, checked on arrival.

use crate::args::Role;
use crate::cache::{CacheFormat, VScaleOrder};
use crate::device::Arch;
use crate::error::{Error, Result};
use crate::op::OpKind;
use crate::tensor::DType;

/// An enumeration with stable numbers.
pub(crate) trait Numbered: Copy + 'static {
    /// What it is called in errors.
    const WHAT: &'static str;
    /// Prefix of its constants in the C header.
    const PREFIX: &'static str;
    /// Every value.
    const VALUES: &'static [Self];
    /// Number on the border.
    fn number(self) -> u32;
    /// Name.
    fn label(self) -> &'static str;

    /// The value with a number; unknown numbers are errors that list nothing but their bound: newer sides may know more.
    fn from_number(number: u32) -> Result<Self> {
        let found = Self::VALUES.iter().copied().find(|value| value.number() == number);
        found.ok_or_else(|| Error::invalid(Self::WHAT, "a number that this side knows", number))
    }
}

/// Lists the values of an enumeration; a value that is added without a place here does not compile.
macro_rules! numbered {
    ($type:ty, $what:literal, $prefix:literal, $label:expr, [$($value:ident),* $(,)?]) => {
        impl Numbered for $type {
            const WHAT: &'static str = $what;
            const PREFIX: &'static str = $prefix;
            const VALUES: &'static [Self] = &[$(Self::$value),*];
            fn number(self) -> u32 {
                match self { $(Self::$value => Self::$value as u32),* }
            }
            fn label(self) -> &'static str {
                let label: fn($type) -> &'static str = $label;
                label(self)
            }
        }
    };
}

numbered!(
    DType,
    "tensor.dtype",
    "DTYPE",
    DType::name,
    [Bf16, F16, F32, E4m3, E4m3Fnuz, E2m1x2, I32, I64, U32, U64,]
);
numbered!(CacheFormat, "cache.format", "CACHE", CacheFormat::name, [Bf16, E4m3, E4m3Fnuz, Nvfp4]);
numbered!(VScaleOrder, "kv_cache.v_scale_order", "V_SCALE_ORDER", v_scale_order_name, [TokenQuad, Linear]);
numbered!(
    Arch,
    "device.arch",
    "ARCH",
    Arch::name,
    [Cpu, Sm90a, Sm100a, Sm100f, Sm103a, Sm107a, Gfx942, Gfx950,]
);
numbered!(
    OpKind,
    "op.kind",
    "OP",
    OpKind::name,
    [Append, IndexScore, Select, SparseDecode, SparsePrefill, Merge, SelectMerge, Step,]
);
numbered!(
    Role,
    "tensor.role",
    "ROLE",
    Role::name,
    [
        Query,
        IndexQuery,
        QuerySource,
        KeySource,
        ValueSource,
        IndexQuerySource,
        IndexKeySource,
        QueryNorm,
        KeyNorm,
        IndexQueryNorm,
        IndexKeyNorm,
        RopeCos,
        RopeSin,
        Positions,
        Slots,
        KvLengths,
        QueryOffsets,
        BlockTable,
        Scores,
        BlockIndices,
        Output,
        Lse,
        PartialOutputs,
        PartialLse,
        PartialSums,
        CandidateKeys,
        QueryScale,
        KeyScale,
        ValueScale,
        IndexQueryScale,
        IndexKeyScale,
    ]
);

fn v_scale_order_name(order: VScaleOrder) -> &'static str {
    match order {
        VScaleOrder::TokenQuad => "token_quad",
        VScaleOrder::Linear => "linear",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_number_comes_back<T: Numbered + PartialEq + std::fmt::Debug>() {
        for &value in T::VALUES {
            assert_eq!(T::from_number(value.number()).unwrap(), value);
        }
        for unknown in [1_000_000, u32::MAX] {
            assert!(T::from_number(unknown).unwrap_err().to_string().starts_with(T::WHAT));
        }
    }

    #[test]
    fn numbers_come_back_and_unknown_ones_are_errors() {
        every_number_comes_back::<DType>();
        every_number_comes_back::<CacheFormat>();
        every_number_comes_back::<VScaleOrder>();
        every_number_comes_back::<Arch>();
        every_number_comes_back::<OpKind>();
        every_number_comes_back::<Role>();
        assert!(Role::from_number(0).is_err());
    }
}
