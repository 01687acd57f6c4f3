//! What can be wrong with an input file, in the words of the person who has to repair it.

use std::path::PathBuf;

/// Why an input file was refused. Every variant says what was wanted and what was found; none of them is a bug.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The operating system did not give us the bytes.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file that was asked for.
        path: PathBuf,
        /// The reason, as the operating system words it.
        source: std::io::Error,
    },
    /// The file as a whole is not something to read: a folder, a pipe, too short, too long.
    #[error("file: want {want}, got {got}")]
    File {
        /// What a readable file looks like.
        want: String,
        /// What this one looks like.
        got: String,
    },
    /// The safetensors header is damaged, or claims what the file does not hold.
    #[error("header: want {want}, got {got}")]
    Header {
        /// What a valid header says.
        want: String,
        /// What this one says.
        got: String,
    },
    /// A metadata entry is missing, does not parse, or contradicts another one or a tensor.
    #[error("metadata '{key}': want {want}, got {got}")]
    Metadata {
        /// The key in the header's string map.
        key: String,
        /// The values that are accepted.
        want: String,
        /// The value found.
        got: String,
    },
    /// A tensor is missing, has another shape or type, or holds a value that it must not hold.
    #[error("tensor '{tensor}': want {want}, got {got}")]
    Tensor {
        /// The tensor's name in the file.
        tensor: String,
        /// The shape, type or value that is accepted.
        want: String,
        /// What the file holds.
        got: String,
    },
    /// The file named by `companion_of` is at fault.
    #[error("companion '{name}': {source}")]
    Companion {
        /// The plain file name.
        name: String,
        /// What is wrong with it.
        source: Box<InputError>,
    },
    /// Every tensor is well formed, but none of them belongs to a stage of the layer.
    #[error(
        "file: want the tensors of an attention step (q, k, v, index_q, index_k) or of a projection (hidden, g_q, ...), got {got}"
    )]
    NoStage {
        /// The names that the file does hold.
        got: String,
    },
}

impl InputError {
    /// A fault of the tensor called `tensor`.
    pub(super) fn tensor(tensor: &str, want: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Tensor { tensor: tensor.to_owned(), want: want.into(), got: got.into() }
    }

    /// A fault of the metadata entry `key`.
    pub(super) fn metadata(key: &str, want: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Metadata { key: key.to_owned(), want: want.into(), got: got.into() }
    }

    /// A fault of the safetensors header.
    pub(super) fn header(want: impl Into<String>, got: impl Into<String>) -> Self {
        Self::Header { want: want.into(), got: got.into() }
    }
}

/// Text of a file in quotes, made safe to print: control characters escaped, at most 60 characters.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, QUOTED_LIMIT))
}

/// Text that may repeat a file's own, without quotes: control characters escaped, at most `limit` characters.
pub(super) fn printable(text: &str, limit: usize) -> String {
    let shown: String = text.chars().take(limit).flat_map(char::escape_debug).collect();
    let dots = if text.chars().nth(limit).is_some() { "..." } else { "" };
    format!("{shown}{dots}")
}

/// A shape as it is printed everywhere, `[2560, 4, 64]`; a hostile file's hundredth axis is not shown.
pub(super) fn shape_text(shape: &[usize]) -> String {
    let mut axes: Vec<String> = shape.iter().take(AXES_SHOWN).map(usize::to_string).collect();
    if shape.len() > AXES_SHOWN {
        axes.push(format!("... {} axes", shape.len()));
    }
    format!("[{}]", axes.join(", "))
}

/// Longest piece of a file's own text that a message repeats; a line of a terminal holds it.
pub(super) const QUOTED_LIMIT: usize = 60;
/// No tensor of this format has more than three axes; eight leave room for a mistake to be recognised.
const AXES_SHOWN: usize = 8;
