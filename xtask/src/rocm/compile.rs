//! From a source to a code object, twice.

use std::path::{Path, PathBuf};
use std::process::Command;

use msa_emu::gfx9::code_object::CodeObject;

use super::read_object;
use super::toolchain::Toolchain;

/// No header of the system, no device library, no contraction of products and sums: every rounding is written down.
const FLAGS: [&str; 14] = [
    "-x",
    "c++",
    "-std=c++20",
    "-target",
    "amdgcn-amd-amdhsa",
    "-nogpulib",
    "-nostdinc",
    "-ffreestanding",
    "-fno-exceptions",
    "-fno-rtti",
    "-O3",
    "-ffp-contract=off",
    "-Wall",
    "-Werror",
];

/// A code object and the file that holds it.
pub(super) struct Built {
    pub(super) object: CodeObject,
    pub(super) path: PathBuf,
}

/// Builds `source` for `architecture` into `folder`, then again elsewhere, and compares the code sections.
///
/// # Errors
/// The compiler fails, or the second build differs.
pub(super) fn build_twice(
    toolchain: &Toolchain,
    source: &Path,
    architecture: &str,
    folder: &Path,
) -> Result<Built, String> {
    let built = build(toolchain, source, architecture, folder)?;
    let again = build(toolchain, source, architecture, &folder.join("again"))?;
    if built.object.code_sections() != again.object.code_sections() {
        return Err(format!("{}: a second build gives other code", built.path.display()));
    }
    Ok(built)
}

/// One build of `source` for `architecture` into `folder`.
///
/// # Errors
/// The compiler's or linker's status, after its message.
pub(super) fn build(
    toolchain: &Toolchain,
    source: &Path,
    architecture: &str,
    folder: &Path,
) -> Result<Built, String> {
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects).map_err(|error| format!("{}: {error}", objects.display()))?;
    let object = objects.join(format!("{stem}.{architecture}.o"));
    let path = folder.join(format!("{stem}.{architecture}.hsaco"));
    let mut clang = toolchain.clang();
    clang.args(FLAGS).arg(format!("-mcpu={architecture}")).arg("-c").arg(source).arg("-o").arg(&object);
    run(&mut clang)?;
    let mut linker = toolchain.linker();
    linker.args(["-shared", "--no-undefined"]).arg(&object).arg("-o").arg(&path);
    run(&mut linker)?;
    Ok(Built { object: read_object(&path)?, path })
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
