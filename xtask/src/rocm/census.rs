//! The census of every kernel: rules that it must keep, and the committed copy that it must equal.

use std::path::Path;

use msa_emu::gfx9::census::Census;
use msa_emu::gfx9::disassemble::{Disassembler, Line};
use msa_emu::gfx9::rules;

use super::compile::Built;

/// A kernel with its census.
pub(super) struct Counted {
    /// `op.formats.arch.trick`.
    pub(super) name: String,
    pub(super) architecture: String,
    /// Name of the code object's file.
    pub(super) file: String,
    pub(super) census: Census,
    listing: Vec<Line>,
}

/// All kernels of a code object.
///
/// # Errors
/// The code cannot be disassembled, or a symbol is no variant's name.
pub(super) fn of_object(built: &Built, disassembler: &Disassembler) -> Result<Vec<Counted>, String> {
    let architecture = built.object.architecture();
    let file = built.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let count = |(symbol, kernel): (&String, _)| {
        let kernel: &msa_emu::gfx9::code_object::KernelCode = kernel;
        let listing = disassembler.listing(&kernel.code).map_err(|error| format!("{symbol}: {error}"))?;
        Ok(Counted {
            name: rules::variant_name(symbol, architecture)?,
            architecture: architecture.to_owned(),
            file: file.clone(),
            census: Census::of(kernel, &listing),
            listing,
        })
    };
    built.object.kernels().iter().map(count).collect()
}

/// What every kernel of its kind must and must not contain.
///
/// # Errors
/// The first rule that `kernel` breaks.
pub(super) fn check_rules(kernel: &Counted) -> Result<(), String> {
    rules::check(&kernel.name, &kernel.census, &kernel.listing)
}

/// Compares with the files of `folder`, or replaces them.
///
/// # Errors
/// The kernels that differ and how to accept them; files that belong to no kernel.
pub(super) fn compare(kernels: &[Counted], folder: &Path, accept: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut differing = Vec::new();
    let mut stale: Vec<String> = std::fs::read_dir(folder)
        .map_err(failed)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    for kernel in kernels {
        let file = format!("{}.txt", kernel.name);
        stale.retain(|name| *name != file);
        let (path, text) = (folder.join(&file), kernel.census.to_string());
        if std::fs::read_to_string(&path).is_ok_and(|committed| committed == text) {
            continue;
        }
        if accept {
            std::fs::write(&path, text).map_err(failed)?;
        } else {
            differing.push(kernel.name.clone());
        }
    }
    if accept {
        return stale.iter().try_for_each(|name| std::fs::remove_file(folder.join(name))).map_err(failed);
    }
    differing.extend(stale);
    if differing.is_empty() {
        return Ok(());
    }
    let names = differing.join(", ");
    Err(format!("the census differs: {names}; `cargo xtask plugin rocm --accept` writes what was found"))
}
