//! Test harness of the msa workspace.

pub mod decode_case;
pub mod plugin_files;
