//! The compiler: clang 22 and lld 22, from the system or pinned from PyPI.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Python package whose clang and lld are pinned: its 0.17.1 carries LLVM 22.1.8. The published kernels are built with
/// it; Debian's clang-22 gives the same code sections.
const PACKAGE: &str = "ziglang==0.17.1";

/// Major version of LLVM: older ones do not know gfx950's instructions.
const LLVM: &str = "22";

/// How to call the compiler and the linker.
pub(super) struct Toolchain {
    clang: Vec<OsString>,
    linker: Vec<OsString>,
}

impl Toolchain {
    /// `clang-22` and `ld.lld-22` of the system, or the package in `target`.
    pub(super) fn find(target: &Path) -> Option<Self> {
        let python = Self::python(target);
        Self::of_system()
            .or_else(|| runs(&python, &["-m", "ziglang", "version"]).then(|| Self::of_package(&python)))
    }

    /// As [`Toolchain::find`], or the package after installing it in `target`.
    ///
    /// # Errors
    /// Python or the package cannot be had.
    pub(super) fn find_or_install(target: &Path) -> Result<Self, String> {
        if let Some(found) = Self::find(target) {
            return Ok(found);
        }
        let python = Self::python(target);
        install(&Self::folder(target), &python)?;
        Ok(Self::of_package(&python))
    }

    fn folder(target: &Path) -> PathBuf {
        target.join("toolchain").join("rocm")
    }

    fn python(target: &Path) -> PathBuf {
        Self::folder(target).join("bin").join("python")
    }

    fn of_package(python: &Path) -> Self {
        let call = |tool: &str| vec![python.into(), "-m".into(), "ziglang".into(), tool.into()];
        Self { clang: call("clang"), linker: call("ld.lld") }
    }

    fn of_system() -> Option<Self> {
        let (clang, linker) = (format!("clang-{LLVM}"), format!("ld.lld-{LLVM}"));
        let both = [&clang, &linker].into_iter().all(|tool| runs(Path::new(tool), &["--version"]));
        both.then(|| Self { clang: vec![clang.into()], linker: vec![linker.into()] })
    }

    /// The first line that the compiler says about itself.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn version(&self) -> Result<String, String> {
        let output =
            command(&self.clang).arg("--version").output().map_err(|error| format!("clang: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned).ok_or_else(|| "clang says no version".to_owned())
    }

    pub(super) fn clang(&self) -> Command {
        command(&self.clang)
    }

    pub(super) fn linker(&self) -> Command {
        command(&self.linker)
    }
}

fn command(words: &[OsString]) -> Command {
    let mut command = Command::new(words.first().map_or_else(|| Path::new("clang"), Path::new));
    command.args(words.iter().skip(1));
    command
}

fn runs(program: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn install(folder: &Path, python: &Path) -> Result<(), String> {
    println!("installing {PACKAGE} in {}", folder.display());
    let by_hand = format!("install clang-{LLVM} and lld-{LLVM}, or Python 3 with venv and pip");
    let run = |program: &Path, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{} {}: {status}; {by_hand}", program.display(), arguments.join(" "))),
            Err(error) => Err(format!("{}: {error}; {by_hand}", program.display())),
        }
    };
    run(Path::new("python3"), &["-m", "venv", &folder.to_string_lossy()])?;
    run(python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE])
}
