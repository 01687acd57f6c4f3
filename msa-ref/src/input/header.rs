//! The safetensors header, checked against the length of the file before anything is allocated for its claims.

use std::collections::{BTreeMap, HashMap};

use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata as Layout, TensorInfo};
use serde::Deserialize;

use super::error::{InputError, QUOTED_LIMIT, printable, shape_text};

/// Longest header that is parsed. The largest file of this format needs 4.3 KB; the format itself allows 100 MB,
/// which a parser turns into many times as much memory.
pub const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Bytes of the length field that every file begins with.
pub(super) const LENGTH_BYTES: usize = 8;

/// A header whose every claim fits the file that it came with.
#[derive(Debug)]
pub(super) struct Header {
    /// The string map `__metadata__`.
    pub(super) metadata: BTreeMap<String, String>,
    /// Type, shape and byte range of every tensor; ranges are contiguous and cover the body.
    pub(super) tensors: BTreeMap<String, TensorInfo>,
    /// Byte of the file at which the tensors' data begin.
    pub(super) body_start: usize,
}

/// The length of the header text, from the first bytes of a file of `file_len` bytes.
pub(super) fn header_length(first_bytes: &[u8], file_len: u64) -> Result<usize, InputError> {
    let Some(field) = first_bytes.first_chunk::<LENGTH_BYTES>() else {
        return Err(InputError::File {
            want: format!("at least {LENGTH_BYTES} bytes"),
            got: format!("{file_len}"),
        });
    };
    let claimed = u64::from_le_bytes(*field);
    if claimed > MAX_HEADER_BYTES {
        return Err(InputError::header(format!("at most {MAX_HEADER_BYTES} bytes"), format!("{claimed}")));
    }
    let room = file_len.saturating_sub(LENGTH_BYTES as u64);
    if claimed > room {
        let want = format!("at most the {room} bytes that follow its length");
        return Err(InputError::header(want, format!("{claimed}")));
    }
    usize::try_from(claimed)
        .map_err(|_| InputError::header("a length of this machine's word", claimed.to_string()))
}

/// Parses the header `text` of a file of `file_len` bytes.
pub(super) fn parse_header(text: &[u8], file_len: u64) -> Result<Header, InputError> {
    let raw: RawHeader = serde_json::from_slice(text).map_err(|error| {
        InputError::header("a safetensors header in JSON", printable(&error.to_string(), JSON_ERROR_LIMIT))
    })?;
    let body_start = LENGTH_BYTES + text.len();
    let body_len = file_len.saturating_sub(body_start as u64);
    for (name, info) in &raw.tensors {
        check_range(name, info, body_len)?;
    }
    check_cover(&raw.tensors, body_len)?;
    Ok(Header { metadata: raw.metadata.unwrap_or_default(), tensors: raw.tensors, body_start })
}

#[derive(Deserialize)]
struct RawHeader {
    #[serde(rename = "__metadata__")]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorInfo>,
}

/// The range lies in the body and has as many bytes as the shape needs.
fn check_range(name: &str, info: &TensorInfo, body_len: u64) -> Result<(), InputError> {
    let (begin, end) = info.data_offsets;
    let range = format!("bytes {begin}..{end}");
    let refuse = |want: String| Err(InputError::tensor(&printable(name, QUOTED_LIMIT), want, range.clone()));
    if end as u64 > body_len {
        return refuse(format!("data within the {body_len} bytes of the file's body"));
    }
    let shape = shape_text(&info.shape);
    let dtype = info.dtype.to_string().to_lowercase();
    let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |product, axis| product.checked_mul(*axis));
    let Some(bits) = bits else {
        return refuse(format!("a size below 2^61 bytes for shape {shape} {dtype}"));
    };
    if end.checked_sub(begin) != Some(bits / 8) || bits % 8 != 0 {
        return refuse(format!("{} bytes for shape {shape} {dtype}", bits.div_ceil(8)));
    }
    Ok(())
}

/// The ranges neither overlap nor leave gaps, and end with the body. The safetensors crate decides this.
fn check_cover(tensors: &BTreeMap<String, TensorInfo>, body_len: u64) -> Result<(), InputError> {
    let copy = |(name, info): (&String, &TensorInfo)| {
        let info =
            TensorInfo { dtype: info.dtype, shape: info.shape.clone(), data_offsets: info.data_offsets };
        (name.clone(), info)
    };
    let mut ordered: Vec<(String, TensorInfo)> = tensors.iter().map(copy).collect();
    ordered.sort_by_key(|(_, info)| info.data_offsets);
    let layout = Layout::new(None::<HashMap<String, String>>, ordered).map_err(|error| match error {
        SafeTensorError::InvalidOffset(name) => InputError::tensor(
            &printable(&name, QUOTED_LIMIT),
            "data that begin where the tensor before them ends",
            offsets_of(tensors.get(&name)),
        ),
        other => InputError::header("consistent tensor entries", other.to_string()),
    })?;
    let covered = layout.data_len();
    if covered as u64 != body_len {
        return Err(InputError::header(
            format!("tensors that cover the file's body of {body_len} bytes"),
            format!("{covered}"),
        ));
    }
    Ok(())
}

fn offsets_of(info: Option<&TensorInfo>) -> String {
    info.map_or_else(String::new, |info| format!("bytes {}..{}", info.data_offsets.0, info.data_offsets.1))
}

/// Room for a complaint of the JSON parser about a name, with its line and column.
const JSON_ERROR_LIMIT: usize = 200;
