//! Input files of the `msa` tool: safetensors with the tensors of an attention step, of the projection before it,
//! or of both, and a string map that gives the layer's geometry.
//!
//! Everything in a file is untrusted. Header claims are compared with the length of the file before anything is
//! allocated for them, values are checked once here, and what comes out needs no further check. All tensors are
//! row-major and token first; names, shapes and types are listed at [`Prefill`], [`Decode`] and [`Projection`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

mod attention;
mod error;
mod expected;
mod header;
mod metadata;
mod projection;
mod source;
mod tensor;

pub use attention::{Decode, Prefill};
pub use error::InputError;
pub use expected::Expected;
pub use header::MAX_HEADER_BYTES;
pub use metadata::Metadata;
pub use projection::{Branch, Precision, Projection, Step};
pub use tensor::{ElementType, Tensor};

use header::{LENGTH_BYTES, header_length, parse_header};
use source::{Container, Source};

/// A whole input file, checked. At least one stage is there.
#[derive(Clone, Debug)]
pub struct InputFile {
    /// Geometry and other entries of the header.
    pub metadata: Metadata,
    /// Query rows of one sequence, if the file has attention inputs without request lengths.
    pub prefill: Option<Prefill>,
    /// A batch of requests, if the file has attention inputs with `kv_lens`.
    pub decode: Option<Decode>,
    /// Projection, norm and RoPE, if the file has their inputs.
    pub projection: Option<Projection>,
    /// Tensors of the file that no stage uses, as `name [shape] type`.
    pub ignored: Vec<String>,
}

/// Reads the file at `path`, and the companion that it names from the same folder.
///
/// # Errors
/// [`InputError`] for anything that is not a complete, consistent input; nothing in a file can cause a panic.
pub fn read_input(path: &Path) -> Result<InputFile, InputError> {
    let bytes = read_file(path)?;
    parse_owned(bytes, |name| read_file(&path.with_file_name(name)))
}

/// Parses a file that is already in memory. `companion` is called at most once, with a plain file name, if the
/// file names a companion; it returns the whole of that file.
///
/// # Errors
/// As [`read_input`], and whatever `companion` returns.
pub fn parse_input(
    bytes: &[u8],
    companion: impl FnOnce(&str) -> Result<Vec<u8>, InputError>,
) -> Result<InputFile, InputError> {
    parse_owned(bytes.to_vec(), companion)
}

/// Largest file that is read. A million tokens of queries, keys and values of the M3 layer take 18 GiB.
pub const MAX_FILE_BYTES: u64 = 32 << 30;

fn parse_owned(
    bytes: Vec<u8>,
    companion: impl FnOnce(&str) -> Result<Vec<u8>, InputError>,
) -> Result<InputFile, InputError> {
    let own = Container::parse(bytes)?;
    let metadata = Metadata::parse(own.metadata().clone())?;
    let companion = match &metadata.companion_of {
        Some(named) => Some(load_companion(&metadata, &companion_file_name(named)?, companion)?),
        None => None,
    };
    let mut source = Source::new(own, companion);
    let prefill = attention::read_prefill(&mut source, &metadata)?;
    let decode = attention::read_decode(&mut source, &metadata)?;
    let projection = projection::read_projection(&mut source, &metadata)?;
    let ignored = source.ignored();
    if prefill.is_none() && decode.is_none() && projection.is_none() {
        let names: Vec<&str> = ignored.iter().take(NAMES_SHOWN).map(String::as_str).collect();
        let got = if names.is_empty() { "no tensor".to_owned() } else { names.join(", ") };
        return Err(InputError::NoStage { got });
    }
    Ok(InputFile { metadata, prefill, decode, projection, ignored })
}

fn load_companion(
    metadata: &Metadata,
    name: &str,
    load: impl FnOnce(&str) -> Result<Vec<u8>, InputError>,
) -> Result<Container, InputError> {
    let parse = || {
        let container = Container::parse(load(name)?)?;
        metadata.check_companion(container.metadata())?;
        Ok(container)
    };
    parse().map_err(|source| InputError::Companion { name: name.to_owned(), source: Box::new(source) })
}

/// The companion's file name, with the extension that the metadata may omit. Only a plain name is accepted: a file
/// that somebody sent must not choose which folder is read.
fn companion_file_name(named: &str) -> Result<String, InputError> {
    let plain = !named.is_empty()
        && named.len() <= LONGEST_NAME
        && !named.starts_with('.')
        && !named.contains("..")
        && named.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !plain {
        let want = "a plain file name of letters, digits, '_', '-' and '.'";
        return Err(InputError::metadata("companion_of", want, error::quoted(named)));
    }
    let complete = named.ends_with(".safetensors");
    Ok(if complete { named.to_owned() } else { format!("{named}.safetensors") })
}

/// Reads a regular file once, after its header has been checked against its length.
fn read_file(path: &Path) -> Result<Vec<u8>, InputError> {
    let failed = |source| InputError::Read { path: path.to_owned(), source };
    // Opening a pipe would wait for its writer, so the kind is asked for before.
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(InputError::File { want: "a regular file".to_owned(), got: kind_of(found.file_type()) });
    }
    let mut file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    if len > MAX_FILE_BYTES {
        return Err(InputError::File {
            want: format!("at most {MAX_FILE_BYTES} bytes"),
            got: len.to_string(),
        });
    }
    let mut bytes = Vec::new();
    read_part(&mut file, LENGTH_BYTES as u64, &mut bytes).map_err(failed)?;
    let text_len = header_length(&bytes, len)?;
    read_part(&mut file, text_len as u64, &mut bytes).map_err(failed)?;
    parse_header(bytes.get(LENGTH_BYTES..).unwrap_or_default(), len)?;
    let rest = len.saturating_sub(bytes.len() as u64);
    let room = usize::try_from(rest).ok().and_then(|rest| bytes.try_reserve_exact(rest).ok());
    room.ok_or_else(|| failed(std::io::ErrorKind::OutOfMemory.into()))?;
    read_part(&mut file, rest, &mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn read_part(file: &mut File, len: u64, into: &mut Vec<u8>) -> std::io::Result<()> {
    file.take(len).read_to_end(into).map(|_| ())
}

fn kind_of(kind: std::fs::FileType) -> String {
    if kind.is_dir() { "a folder" } else { "a pipe, socket or device" }.to_owned()
}

/// Longest file name of the usual file systems.
const LONGEST_NAME: usize = 200;
/// Tensor names in the message about a file without a stage.
const NAMES_SHOWN: usize = 8;

#[cfg(test)]
mod tests;
