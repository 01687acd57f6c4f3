//! Faulty kernels for the tests that must catch them: `tests/emu/mutations.toml`, compiled.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::compile;
use super::toolchain::Toolchain;

#[derive(Deserialize)]
struct Catalogue {
    mutation: Vec<Mutation>,
}

/// A fault; those of the listing have no `file` and are made by the test itself.
#[derive(Deserialize)]
struct Mutation {
    family: String,
    name: String,
    arch: Option<String>,
    file: Option<String>,
    from: Option<String>,
    to: Option<String>,
}

/// Compiles every fault of a source into `folder`, as `<family>.<name>.<arch>.hsaco`. Answers with how many there are and for
/// how many the compiler ran.
///
/// # Errors
/// A text that does not stand once in its file, or the compiler's message.
pub(super) fn build(root: &Path, toolchain: &Toolchain, folder: &Path) -> Result<(usize, usize), String> {
    let path = root.join("tests").join("emu").join("mutations.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let catalogue: Catalogue =
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let kernels = root.join("msa-rocm").join("kernels");
    let sources: Vec<&Mutation> = catalogue.mutation.iter().filter(|m| m.file.is_some()).collect();
    // Each is a second of one core.
    let version = toolchain.version()?;
    let fresh = compile::on_all_cores(&sources, |mutation| {
        build_one(mutation, &kernels, toolchain, &version, folder)
    })?;
    Ok((sources.len(), fresh.iter().filter(|fresh| fresh.0).count()))
}

fn build_one(
    mutation: &Mutation,
    kernels: &Path,
    toolchain: &Toolchain,
    version: &str,
    folder: &Path,
) -> Result<compile::Fresh, String> {
    let label = format!("{}.{}", mutation.family, mutation.name);
    let copy = folder.join("sources").join(&label);
    copy_sources(kernels, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    let file = copy.join(mutation.file.as_deref().unwrap_or_default());
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let (from, to) =
        (mutation.from.as_deref().unwrap_or_default(), mutation.to.as_deref().unwrap_or_default());
    if text.matches(from).count() != 1 {
        return Err(format!("{label}: `{from}` stands {} times in its file", text.matches(from).count()));
    }
    std::fs::write(&file, text.replacen(from, to, 1)).map_err(|error| format!("{label}: {error}"))?;
    let source = copy.join(format!("{}.cpp", mutation.family));
    let architecture = mutation.arch.as_deref().unwrap_or("gfx950");
    let target: PathBuf = folder.join(format!("{label}.{architecture}.hsaco"));
    let common = compile::Common::read(version, &copy)?;
    compile::unless_current(&target, &common, &source, architecture, || {
        let built = compile::build(toolchain, &source, architecture, &copy)?;
        std::fs::rename(&built.path, &target).map_err(|error| format!("{}: {error}", target.display()))
    })
    .map_err(|error| format!("{label}: {error}"))
}

fn copy_sources(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
