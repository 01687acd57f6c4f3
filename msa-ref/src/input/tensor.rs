//! A tensor of an input file: raw bytes with a type and a shape, shared with the file they came from.

use std::fmt;
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::Dtype;

use super::error::{InputError, shape_text};

/// Element types that the format uses. Other safetensors types may stand in a file, but only in ignored tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// bfloat16, two bytes.
    Bf16,
    /// IEEE binary16, two bytes.
    F16,
    /// IEEE binary32, four bytes.
    F32,
    /// Two's complement, four bytes.
    I32,
}

impl ElementType {
    /// The type of a safetensors header entry, if the format uses it.
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            Dtype::F32 => Some(Self::F32),
            Dtype::I32 => Some(Self::I32),
            _ => None,
        }
    }

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }

    /// The name used in messages: `bf16`, `f16`, `f32`, `i32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::I32 => "i32",
        }
    }
}

/// A row-major little-endian tensor. Cloning it shares the bytes of the file.
#[derive(Clone)]
pub struct Tensor {
    name: String,
    element: ElementType,
    shape: Vec<usize>,
    file: Arc<Vec<u8>>,
    start: usize,
    len: usize,
}

impl Tensor {
    /// The tensor whose elements begin at byte `start` of `file`; `None` if the file ends before them.
    pub(super) fn new(
        name: &str,
        element: ElementType,
        shape: &[usize],
        file: &Arc<Vec<u8>>,
        start: usize,
    ) -> Option<Self> {
        let len = shape.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis))?;
        let end = start.checked_add(len.checked_mul(element.size())?)?;
        file.get(start..end)?;
        Some(Self {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            file: Arc::clone(file),
            start,
            len,
        })
    }

    /// Name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of the stored elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Axis lengths, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Length of the first axis: tokens, rows or requests.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stored bytes, little-endian.
    pub fn bytes(&self) -> &[u8] {
        self.file.get(self.start..self.start + self.len * self.element.size()).unwrap_or_default()
    }

    /// Element number `flat` in row-major order, widened to f32 (an i32 is rounded to the nearest f32).
    pub fn f32_at(&self, flat: usize) -> Option<f32> {
        let size = self.element.size();
        let from = flat.checked_mul(size)?;
        let bytes = self.bytes().get(from..from.checked_add(size)?)?;
        Some(match self.element {
            ElementType::Bf16 => bf16_of(bytes),
            ElementType::F16 => f16_of(bytes),
            ElementType::F32 => f32::from_bits(word_of(bytes)),
            ElementType::I32 => word_of(bytes).cast_signed() as f32,
        })
    }

    /// The element at `index`, one number per axis; `None` outside the shape or with another number of axes.
    pub fn at(&self, index: &[usize]) -> Option<f32> {
        if index.len() != self.shape.len() {
            return None;
        }
        let mut flat = 0usize;
        for (position, axis) in index.iter().zip(&self.shape) {
            if position >= axis {
                return None;
            }
            flat = flat * axis + position;
        }
        self.f32_at(flat)
    }

    /// All elements widened to f32, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.element {
            ElementType::Bf16 => self.bytes().chunks_exact(2).map(bf16_of).collect(),
            ElementType::F16 => self.bytes().chunks_exact(2).map(f16_of).collect(),
            ElementType::F32 => self.bytes().chunks_exact(4).map(|b| f32::from_bits(word_of(b))).collect(),
            ElementType::I32 => {
                self.bytes().chunks_exact(4).map(|b| word_of(b).cast_signed() as f32).collect()
            }
        }
    }

    /// All elements of a two-byte type as bits; `None` for a four-byte type.
    pub fn to_bits16(&self) -> Option<Vec<u16>> {
        (self.element.size() == 2).then(|| self.bytes().chunks_exact(2).map(half_word_of).collect())
    }

    /// All elements of an i32 tensor; `None` for another type.
    pub fn to_i32(&self) -> Option<Vec<i32>> {
        let of_bytes = |bytes: &[u8]| word_of(bytes).cast_signed();
        (self.element == ElementType::I32).then(|| self.bytes().chunks_exact(4).map(of_bytes).collect())
    }

    /// Refuses the first element that `rule` does not admit.
    pub(super) fn check(&self, rule: ValueRule) -> Result<(), InputError> {
        let refused = |value: f32| !rule.admits(value);
        let bytes = self.bytes();
        let found = match self.element {
            ElementType::Bf16 => bytes.chunks_exact(2).position(|b| refused(bf16_of(b))),
            ElementType::F16 => bytes.chunks_exact(2).position(|b| refused(f16_of(b))),
            ElementType::F32 => bytes.chunks_exact(4).position(|b| refused(f32::from_bits(word_of(b)))),
            ElementType::I32 => None,
        };
        let Some(flat) = found else { return Ok(()) };
        let got = self.f32_at(flat).unwrap_or(f32::NAN);
        Err(self.refuse_element(flat, rule.wanted(), got))
    }

    /// The error for element `flat`, which is `got` where the format wants `want`.
    pub(super) fn refuse_element(&self, flat: usize, want: &str, got: impl fmt::Display) -> InputError {
        InputError::tensor(&self.name, want, format!("{got} at {}", shape_text(&self.index_of(flat))))
    }

    fn index_of(&self, flat: usize) -> Vec<usize> {
        let mut rest = flat;
        let mut index: Vec<usize> = Vec::with_capacity(self.shape.len());
        for axis in self.shape.iter().rev() {
            let axis = (*axis).max(1);
            index.push(rest % axis);
            rest /= axis;
        }
        index.reverse();
        index
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, shape_text(&self.shape), self.element.name())
    }
}

/// Which floating-point values a tensor may hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueRule {
    /// Inputs and attention outputs.
    Finite,
    /// Scores and LSE: minus infinity is the value of a row that sees nothing.
    FiniteOrMinusInfinity,
    /// Score gaps: plus infinity is the gap of a row that drops nothing.
    NotNan,
}

impl ValueRule {
    fn admits(self, value: f32) -> bool {
        match self {
            Self::Finite => value.is_finite(),
            Self::FiniteOrMinusInfinity => value.is_finite() || value == f32::NEG_INFINITY,
            Self::NotNan => !value.is_nan(),
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Finite => "finite values",
            Self::FiniteOrMinusInfinity => "finite values or -inf",
            Self::NotNan => "no NaN",
        }
    }
}

fn half_word_of(bytes: &[u8]) -> u16 {
    bytes.try_into().map_or(0, u16::from_le_bytes)
}

fn word_of(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

fn bf16_of(bytes: &[u8]) -> f32 {
    bf16::from_bits(half_word_of(bytes)).to_f32()
}

fn f16_of(bytes: &[u8]) -> f32 {
    f16::from_bits(half_word_of(bytes)).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(element: ElementType, shape: &[usize], bytes: &[u8]) -> Tensor {
        Tensor::new("t", element, shape, &Arc::new(bytes.to_vec()), 0).unwrap()
    }

    #[test]
    fn every_type_widens_to_f32() {
        assert_eq!(tensor(ElementType::Bf16, &[2], &[0xc0, 0x3f, 0x20, 0xc0]).to_f32(), [1.5, -2.5]);
        assert_eq!(tensor(ElementType::F16, &[2], &[0x00, 0x3e, 0x00, 0xc1]).to_f32(), [1.5, -2.5]);
        assert_eq!(tensor(ElementType::F32, &[1], &1e-40f32.to_le_bytes()).to_f32(), [1e-40]);
        let whole = tensor(ElementType::I32, &[2, 1], &[0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0]);
        assert_eq!((whole.to_f32(), whole.to_i32().unwrap()), (vec![-1.0, 7.0], vec![-1, 7]));
    }

    #[test]
    fn access_outside_the_shape_is_none() {
        let t =
            tensor(ElementType::I32, &[2, 3], &(0..24).map(|i| u8::from(i % 4 == 0) * i).collect::<Vec<_>>());
        assert_eq!(t.at(&[1, 2]), Some(20.0));
        assert_eq!((t.at(&[1, 3]), t.at(&[2, 0]), t.at(&[1]), t.at(&[0, 0, 0])), (None, None, None, None));
        assert_eq!((t.f32_at(6), t.f32_at(usize::MAX)), (None, None));
        assert!(Tensor::new("t", ElementType::I32, &[2, 4], &Arc::new(vec![0; 24]), 0).is_none());
        assert!(Tensor::new("t", ElementType::I32, &[usize::MAX, 2], &Arc::new(vec![0; 24]), 0).is_none());
        assert!(Tensor::new("t", ElementType::I32, &[1], &Arc::new(vec![0; 24]), usize::MAX).is_none());
    }

    #[test]
    fn a_refused_value_is_named_by_its_index() {
        let mut bytes = vec![0u8; 24];
        bytes[20..24].copy_from_slice(&f32::INFINITY.to_le_bytes());
        let t = tensor(ElementType::F32, &[2, 3], &bytes);
        assert_eq!(
            t.check(ValueRule::Finite).unwrap_err().to_string(),
            "tensor 't': want finite values, got inf at [1, 2]"
        );
        assert!(t.check(ValueRule::FiniteOrMinusInfinity).is_err());
        assert!(t.check(ValueRule::NotNan).is_ok());
    }
}
