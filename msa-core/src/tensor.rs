//! Tensors as the engine hands them over: an address, an element type, a shape and byte strides.

use std::fmt;

use crate::error::{Error, Result, require};

/// Element type of a tensor. Formats are declared, never inferred from a byte buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum DType {
    /// bfloat16.
    Bf16 = 1,
    /// IEEE binary16.
    F16 = 2,
    /// IEEE binary32.
    F32 = 3,
    /// FP8 E4M3, OCP "FN" flavour (maximum 448, NaN 0x7f and 0xff).
    E4m3 = 4,
    /// FP8 E4M3 "FNUZ" (maximum 240, NaN 0x80), the one of gfx942.
    E4m3Fnuz = 5,
    /// Two E2M1 codes a byte, low nibble = even channel; sizes and strides count bytes.
    E2m1x2 = 6,
    /// Signed 32-bit integer.
    I32 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// Unsigned 32-bit integer.
    U32 = 9,
    /// Unsigned 64-bit integer.
    U64 = 10,
}

impl DType {
    /// Every type, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Bf16,
        Self::F16,
        Self::F32,
        Self::E4m3,
        Self::E4m3Fnuz,
        Self::E2m1x2,
        Self::I32,
        Self::I64,
        Self::U32,
        Self::U64,
    ];

    /// Bytes of one element (for [`DType::E2m1x2`]: of one pair).
    pub const fn bytes(self) -> u64 {
        match self {
            Self::E4m3 | Self::E4m3Fnuz | Self::E2m1x2 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    /// Name in plans, cases and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::E4m3 => "e4m3",
            Self::E4m3Fnuz => "e4m3fnuz",
            Self::E2m1x2 => "e2m1x2",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Largest number of axes of a [`Tensor`].
pub const MAX_RANK: usize = 4;

/// A view of memory on one device: nothing is owned and nothing is read by making one.
///
/// Strides are in bytes and may be anything that the op's contract allows; the innermost axis is contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Address of element zero on the device that the run belongs to.
    pub address: u64,
    /// Element type.
    pub dtype: DType,
    rank: u32,
    shape: [u64; MAX_RANK],
    strides: [u64; MAX_RANK],
}

impl Tensor {
    /// A scalar at address zero: fills a place that holds no tensor.
    pub(crate) const NOTHING: Self =
        Self { address: 0, dtype: DType::F32, rank: 0, shape: [1; MAX_RANK], strides: [0; MAX_RANK] };

    /// A row-major tensor without gaps. At most [`MAX_RANK`] axes.
    pub fn contiguous(address: u64, dtype: DType, shape: &[u64]) -> Result<Self> {
        let mut strides = [0; MAX_RANK];
        let mut step = dtype.bytes();
        require(shape.len() <= MAX_RANK, "tensor.rank", format_args!("at most {MAX_RANK}"), shape.len())?;
        for axis in (0..shape.len()).rev() {
            strides[axis] = step;
            step = step.checked_mul(shape[axis].max(1)).ok_or_else(|| {
                Error::invalid("tensor.shape", "a size below 2^64 bytes", format!("{shape:?}"))
            })?;
        }
        Self::strided(address, dtype, shape, &strides[..shape.len()])
    }

    /// A tensor with byte strides; the innermost stride must be the element size, and the whole span must fit in
    /// the 64-bit address space.
    pub fn strided(address: u64, dtype: DType, shape: &[u64], strides: &[u64]) -> Result<Self> {
        require(shape.len() <= MAX_RANK, "tensor.rank", format_args!("at most {MAX_RANK}"), shape.len())?;
        require(
            strides.len() == shape.len(),
            "tensor.strides",
            format_args!("{} strides", shape.len()),
            strides.len(),
        )?;
        if let (Some(&extent), Some(&last)) = (shape.last(), strides.last()) {
            let contiguous = extent <= 1 || last == dtype.bytes();
            let want = format_args!("{} bytes", dtype.bytes());
            require(contiguous, "tensor.stride[innermost]", want, last)?;
        }
        let mut tensor =
            Self { address, dtype, rank: shape.len() as u32, shape: [1; MAX_RANK], strides: [0; MAX_RANK] };
        tensor.shape[..shape.len()].copy_from_slice(shape);
        tensor.strides[..shape.len()].copy_from_slice(strides);
        tensor.span().ok_or_else(|| {
            Error::invalid(
                "tensor",
                "a span inside the address space",
                format!("{shape:?} strides {strides:?}"),
            )
        })?;
        Ok(tensor)
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape[..self.rank as usize]
    }

    /// Byte strides, outermost first.
    pub fn strides(&self) -> &[u64] {
        &self.strides[..self.rank as usize]
    }

    /// Extent of `axis`, 1 beyond the rank.
    pub fn extent(&self, axis: usize) -> u64 {
        self.shape.get(axis).copied().unwrap_or(1)
    }

    /// Byte stride of `axis`, 0 beyond the rank.
    pub fn stride(&self, axis: usize) -> u64 {
        self.strides.get(axis).copied().unwrap_or(0)
    }

    /// True if some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// Bytes from element zero to one past the last element; 0 if empty, `None` if it leaves the address space.
    pub fn span(&self) -> Option<u64> {
        if self.is_empty() {
            return Some(0);
        }
        let mut bytes = self.dtype.bytes();
        for axis in 0..self.rank as usize {
            bytes = bytes.checked_add((self.shape[axis] - 1).checked_mul(self.strides[axis])?)?;
        }
        self.address.checked_add(bytes)?;
        Some(bytes)
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} strides {:?} at {:#x}", self.dtype, self.shape(), self.strides(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_strides_are_row_major() {
        let t = Tensor::contiguous(64, DType::Bf16, &[3, 4, 8]).unwrap();
        assert_eq!(t.strides(), [64, 16, 2]);
        assert_eq!(t.span(), Some(192));
    }

    #[test]
    fn hostile_shapes_are_errors() {
        assert!(Tensor::contiguous(0, DType::F32, &[u64::MAX, u64::MAX]).is_err());
        assert!(Tensor::strided(u64::MAX - 4, DType::F32, &[2], &[4]).is_err());
        assert!(Tensor::strided(0, DType::F32, &[2, 2], &[8, 8]).is_err());
        assert!(Tensor::contiguous(0, DType::F32, &[1, 1, 1, 1, 1]).is_err());
    }

    #[test]
    fn an_empty_tensor_spans_nothing() {
        assert_eq!(Tensor::contiguous(0, DType::F32, &[0, 5]).unwrap().span(), Some(0));
    }
}
