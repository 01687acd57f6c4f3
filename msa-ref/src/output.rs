//! What a step of the `msa` tool computed, as a safetensors file.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::Serialize;

use crate::atomic_file::write_atomically;

/// Results of an attention step, row-major, query row first.
#[derive(Clone, Copy, Debug)]
pub struct StepOutput<'a> {
    /// Attention output `[rows, Hq, D]`.
    pub out: &'a [f32],
    /// Natural-log sum of exponentials `[rows, Hq]`.
    pub lse: &'a [f32],
    /// Selected block ids `[rows, Hi, k]`, -1 for an empty slot.
    pub block_indices: &'a [i32],
    /// Index scores `[rows, Hi, blocks]`; `None` if the step did not keep them.
    pub block_scores: Option<&'a [f32]>,
    /// Axis lengths of all of these.
    pub shape: OutputShape,
    /// Entries of the header's string map: geometry, variant names.
    pub metadata: &'a BTreeMap<String, String>,
}

/// The axes of a [`StepOutput`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputShape {
    /// Query rows.
    pub rows: usize,
    /// Query heads, `Hq`.
    pub num_q_heads: usize,
    /// Index heads, `Hi`.
    pub num_index_heads: usize,
    /// Channels of a head, `D`.
    pub head_dim: usize,
    /// Slots of a list, `k`.
    pub topk: usize,
    /// Blocks that have a score.
    pub blocks: usize,
}

/// Why no output file was written. What stood at the path is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// A tensor does not have the elements that its axes say.
    #[error("output '{tensor}': want {want} elements for {shape:?}, got {got}")]
    Length {
        /// Name of the tensor.
        tensor: &'static str,
        /// Its axes.
        shape: Vec<usize>,
        /// Product of the axes; none if it overflows.
        want: String,
        /// Elements given.
        got: usize,
    },
    /// The file system refused.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

/// Writes `out`, `lse`, `block_indices` and, if there, `block_scores` to `path`. The same results give the same bytes.
///
/// # Errors
/// [`OutputError`]; no partial file is left behind.
pub fn write_output(path: &Path, output: &StepOutput<'_>) -> Result<(), OutputError> {
    let tensors = output.tensors()?;
    let header = header_text(output.metadata, &tensors)?;
    write_atomically(path, |temporary| {
        let mut file = BufWriter::new(OpenOptions::new().write(true).truncate(true).open(temporary)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for tensor in &tensors {
            tensor.values.write_to(&mut file)?;
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    })
}

struct OutputTensor<'a> {
    name: &'static str,
    shape: Vec<usize>,
    values: Values<'a>,
}

#[derive(Clone, Copy)]
enum Values<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
}

impl<'a> StepOutput<'a> {
    /// The tensors in the order of the file, lengths checked.
    fn tensors(&self) -> Result<Vec<OutputTensor<'a>>, OutputError> {
        let OutputShape { rows, num_q_heads, num_index_heads, head_dim, topk, blocks } = self.shape;
        let mut tensors = vec![
            checked("block_indices", vec![rows, num_index_heads, topk], Values::I32(self.block_indices))?,
            checked("lse", vec![rows, num_q_heads], Values::F32(self.lse))?,
            checked("out", vec![rows, num_q_heads, head_dim], Values::F32(self.out))?,
        ];
        if let Some(scores) = self.block_scores {
            tensors.push(checked("block_scores", vec![rows, num_index_heads, blocks], Values::F32(scores))?);
        }
        Ok(tensors)
    }
}

fn checked<'a>(
    name: &'static str,
    shape: Vec<usize>,
    values: Values<'a>,
) -> Result<OutputTensor<'a>, OutputError> {
    let want = shape.iter().try_fold(1usize, |product, axis| product.checked_mul(*axis));
    if want != Some(values.len()) {
        let want = want.map_or_else(|| "no".to_owned(), |want| want.to_string());
        return Err(OutputError::Length { tensor: name, shape, want, got: values.len() });
    }
    Ok(OutputTensor { name, shape, values })
}

impl Values<'_> {
    fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::I32(_) => Dtype::I32,
        }
    }

    fn write_to(self, file: &mut impl Write) -> io::Result<()> {
        match self {
            Self::F32(values) => values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())),
            Self::I32(values) => values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes())),
        }
    }
}

/// The header in sorted order. The safetensors crate would write the metadata in the order of a hash map, another
/// one on every run.
fn header_text(
    metadata: &BTreeMap<String, String>,
    tensors: &[OutputTensor<'_>],
) -> Result<Vec<u8>, OutputError> {
    #[derive(Serialize)]
    struct Header<'a> {
        #[serde(rename = "__metadata__")]
        metadata: &'a BTreeMap<String, String>,
        #[serde(flatten)]
        tensors: BTreeMap<&'static str, TensorInfo>,
    }
    let mut end = 0;
    let mut infos = BTreeMap::new();
    for tensor in tensors {
        let begin = end;
        end += tensor.values.len() * ELEMENT_BYTES;
        let (dtype, shape) = (tensor.values.dtype(), tensor.shape.clone());
        infos.insert(tensor.name, TensorInfo { dtype, shape, data_offsets: (begin, end) });
    }
    let mut text = serde_json::to_vec(&Header { metadata, tensors: infos }).map_err(io::Error::from)?;
    // Spaces up to a multiple of 8, so that a reader can map the data in place: the format's rule.
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(text)
}

/// Both types of an output are four bytes wide.
const ELEMENT_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    const SHAPE: OutputShape =
        OutputShape { rows: 2, num_q_heads: 2, num_index_heads: 1, head_dim: 3, topk: 2, blocks: 4 };

    fn metadata() -> BTreeMap<String, String> {
        (0..20).map(|at| (format!("key{at}"), format!("va\"lue{at}"))).collect()
    }

    fn output<'a>(out: &'a [f32], metadata: &'a BTreeMap<String, String>) -> StepOutput<'a> {
        const LSE: [f32; 4] = [0.0, -1.5, f32::NEG_INFINITY, 3.0];
        const SCORES: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, f32::NEG_INFINITY];
        let block_scores = Some(&SCORES[..]);
        StepOutput { out, lse: &LSE, block_indices: &[0, -1, 1, 3], block_scores, shape: SHAPE, metadata }
    }

    #[test]
    fn another_reader_finds_the_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let values: Vec<f32> = (0..12).map(|at| at as f32 * 0.1).collect();
        write_output(&path, &output(&values, &metadata())).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let out = read.tensor("out").unwrap();
        assert_eq!((out.dtype(), out.shape()), (Dtype::F32, &[2, 2, 3][..]));
        let stored = |value: &f32| value.to_le_bytes();
        assert_eq!(out.data(), values.iter().flat_map(stored).collect::<Vec<u8>>());
        let ids = read.tensor("block_indices").unwrap();
        assert_eq!(
            (ids.dtype(), ids.shape(), &ids.data()[4..8]),
            (Dtype::I32, &[2, 1, 2][..], &[255u8; 4][..])
        );
        assert_eq!((read.tensor("block_scores").unwrap().shape(), read.len()), (&[2, 1, 4][..], 4));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["key7"], "va\"lue7");
    }

    #[test]
    fn the_same_results_give_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        for path in &paths {
            write_output(path, &StepOutput { block_scores: None, ..output(&[1.0; 12], &metadata()) })
                .unwrap();
        }
        let [first, second] = paths.map(|path| std::fs::read(path).unwrap());
        assert_eq!(first, second);
        assert_eq!(u64::from_le_bytes(first[..8].try_into().unwrap()) % 8, 0);
        assert_eq!(SafeTensors::deserialize(&first).unwrap().len(), 3);
    }

    #[test]
    fn nothing_is_left_after_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let short = write_output(&path, &output(&[0.0; 11], &metadata())).unwrap_err();
        assert_eq!(short.to_string(), "output 'out': want 12 elements for [2, 2, 3], got 11");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let shape = OutputShape { rows: usize::MAX, ..SHAPE };
        let huge = write_output(&path, &StepOutput { shape, ..output(&[0.0; 12], &metadata()) }).unwrap_err();
        assert!(huge.to_string().starts_with("output 'block_indices': want no elements"), "{huge}");
        let nowhere = Path::new("/absent/out.safetensors");
        assert!(write_output(nowhere, &output(&[0.0; 12], &metadata())).is_err());
    }
}
