//! Where a tensor is taken from: the file itself, or the companion that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use safetensors::tensor::TensorInfo;

use super::error::{InputError, QUOTED_LIMIT, printable, shape_text};
use super::header::{Header, LENGTH_BYTES, header_length, parse_header};
use super::tensor::{ElementType, Tensor};

/// One safetensors file in memory, header checked.
#[derive(Debug)]
pub(super) struct Container {
    bytes: Arc<Vec<u8>>,
    header: Header,
}

impl Container {
    /// Takes the whole file `bytes` and checks its header.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, InputError> {
        let length = header_length(&bytes, bytes.len() as u64)?;
        let text = bytes.get(LENGTH_BYTES..LENGTH_BYTES + length).unwrap_or_default();
        let header = parse_header(text, bytes.len() as u64)?;
        Ok(Self { bytes: Arc::new(bytes), header })
    }

    /// The string map of the header.
    pub(super) fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensors.get(name)
    }
}

/// The tensors that a reader can ask for, and the ones that it did.
#[derive(Debug)]
pub(super) struct Source {
    own: Container,
    companion: Option<Container>,
    used: BTreeSet<String>,
}

/// Files in which a tensor is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file itself; results that belong to its own rows.
    Own,
    /// The file itself, then its companion.
    Either,
}

/// What a tensor must look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form<'a> {
    /// Axis lengths, slowest first.
    pub(super) axes: &'a [Axis],
    /// Accepted types, the usual one first.
    pub(super) elements: &'a [ElementType],
}

/// The length of one axis.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// At least one; the name appears in messages.
    Named(&'static str),
    /// Exactly this.
    Is(usize),
}

impl Source {
    /// The tensors of `own`, and of `companion` where `own` lacks them.
    pub(super) fn new(own: Container, companion: Option<Container>) -> Self {
        Self { own, companion, used: BTreeSet::new() }
    }

    /// Whether the tensor is in one of the files of `origin`.
    pub(super) fn has(&self, name: &str, origin: Origin) -> bool {
        self.find(name, origin).is_some()
    }

    /// The tensor called `name`, from the file or its companion.
    pub(super) fn required(&mut self, name: &str, form: Form<'_>) -> Result<Tensor, InputError> {
        self.optional(name, Origin::Either, form)?
            .ok_or_else(|| InputError::tensor(name, form.to_string(), "no such tensor"))
    }

    /// The tensor called `name`, if a file of `origin` has it.
    pub(super) fn optional(
        &mut self,
        name: &str,
        origin: Origin,
        form: Form<'_>,
    ) -> Result<Option<Tensor>, InputError> {
        let Some((container, info)) = self.find(name, origin) else { return Ok(None) };
        let got = || format!("{} {}", shape_text(&info.shape), info.dtype.to_string().to_lowercase());
        let refuse = || InputError::tensor(name, form.to_string(), got());
        let element = ElementType::of(info.dtype).filter(|element| form.elements.contains(element));
        let element = element.filter(|_| form.fits(&info.shape)).ok_or_else(refuse)?;
        let start = container.header.body_start + info.data_offsets.0;
        let tensor = Tensor::new(name, element, &info.shape, &container.bytes, start).ok_or_else(refuse)?;
        self.used.insert(name.to_owned());
        Ok(Some(tensor))
    }

    /// The tensors of the file itself that nobody asked for, as `name shape type`.
    pub(super) fn ignored(&self) -> Vec<String> {
        let unused = self.own.header.tensors.iter().filter(|(name, _)| !self.used.contains(*name));
        unused
            .map(|(name, info)| {
                let dtype = info.dtype.to_string().to_lowercase();
                format!("{} {} {dtype}", printable(name, QUOTED_LIMIT), shape_text(&info.shape))
            })
            .collect()
    }

    fn find(&self, name: &str, origin: Origin) -> Option<(&Container, &TensorInfo)> {
        if let Some(info) = self.own.info(name) {
            return Some((&self.own, info));
        }
        let companion = self.companion.as_ref().filter(|_| origin == Origin::Either)?;
        companion.info(name).map(|info| (companion, info))
    }
}

impl Form<'_> {
    fn fits(&self, shape: &[usize]) -> bool {
        let fits_axis = |(axis, length): (&Axis, &usize)| match axis {
            Axis::Named(_) => *length > 0,
            Axis::Is(want) => length == want,
        };
        shape.len() == self.axes.len() && self.axes.iter().zip(shape).all(fits_axis)
    }
}

impl std::fmt::Display for Form<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axis = |axis: &Axis| match axis {
            Axis::Named(name) => (*name).to_owned(),
            Axis::Is(length) => length.to_string(),
        };
        let axes: Vec<String> = self.axes.iter().map(axis).collect();
        let elements: Vec<&str> = self.elements.iter().map(|element| element.name()).collect();
        write!(f, "shape [{}] {}", axes.join(", "), elements.join(" or "))
    }
}
