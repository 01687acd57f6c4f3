//! The feature `hip-rs` of msa-rocm, type-checked without ROCm: the crate hip-rs itself, over stand-ins for ROCm's headers.
//!
//! hip-rs makes its bindings from headers with libclang when it is built, and links ROCm. A check links nothing, so that it
//! needs libclang (pinned from PyPI, unless `LIBCLANG_PATH` names one) and the declarations that hip-rs uses.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Outcome, cargo};
use crate::target_folder;

/// The Python package that carries libclang.
const PACKAGE: &str = "libclang==18.1.1";

/// The stand-in for a ROCm folder.
const HEADERS: &str = "tests/fixtures/hip-rs";

/// Checks the feature.
///
/// # Errors
/// What the compiler says.
pub(super) fn check(root: &Path) -> Result<Outcome, String> {
    let folder = match libclang(root) {
        Ok(folder) => folder,
        Err(reason) => {
            println!("skipped: {reason}");
            return Ok(Outcome::Skipped(reason));
        }
    };
    let variables =
        [("LIBCLANG_PATH", folder.into_os_string()), ("ROCM_PATH", root.join(HEADERS).into_os_string())];
    cargo(root, &["check", "-p", "msa-rocm", "--features", "hip-rs"], &variables)
}

/// The folder of libclang: the one that is named, or the package's, which is installed under the target folder.
fn libclang(root: &Path) -> Result<PathBuf, String> {
    if let Some(folder) = std::env::var_os("LIBCLANG_PATH") {
        return Ok(folder.into());
    }
    let venv = target_folder(root).join("toolchain").join("libclang");
    if let Some(found) = in_environment(&venv) {
        return Ok(found);
    }
    let (python, wanted) = (venv.join("bin").join("python"), format!("{PACKAGE} cannot be had"));
    let run = |program: &Path, arguments: &[&str]| match Command::new(program).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{wanted}: {} {}: {status}", program.display(), arguments.join(" "))),
        Err(error) => Err(format!("{wanted}: {}: {error}", program.display())),
    };
    run(Path::new("python3"), &["-m", "venv", &venv.to_string_lossy()])?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
    run(&python, &[&quiet[..], &["--only-binary=:all:", PACKAGE]].concat())?;
    in_environment(&venv).ok_or_else(|| format!("{PACKAGE} holds no libclang.so"))
}

/// `lib/python3.x/site-packages/clang/native` of a virtual environment, if the library is there.
fn in_environment(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?;
    let native = |entry: std::fs::DirEntry| entry.path().join("site-packages/clang/native");
    versions.filter_map(Result::ok).map(native).find(|folder| folder.join("libclang.so").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_an_environment_that_has_it() {
        let venv = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(in_environment(venv.path()), None);
        let native = venv.path().join("lib/python3.11/site-packages/clang/native");
        std::fs::create_dir_all(&native).expect("writable");
        assert_eq!(in_environment(venv.path()), None);
        std::fs::write(native.join("libclang.so"), "").expect("writable");
        assert_eq!(in_environment(venv.path()), Some(native));
    }
}
