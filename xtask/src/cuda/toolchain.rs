//! The CUDA compiler: one that is installed, or pinned wheels from PyPI in a virtual environment under the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A CUDA compiler with its disassembler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Toolchain {
    bin: PathBuf,
    version: Version,
}

/// Version of nvcc, as printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The first release whose assembler knows `mul.e4m3x4.e2m1x4.e4m3x4` and sm_107a.
const OLDEST: Version = Version { major: 13, minor: 4 };

/// Disk that the installed wheels take, with room for pip's own copies.
const WHEEL_BYTES: u64 = 700 << 20;

/// Wheels with their sha256. `pip` is told to take these and nothing else: nvcc's own requirements are not pinned.
const WHEELS: &str = "\
nvidia-cuda-nvcc==13.5.37 --hash=sha256:f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7
nvidia-nvvm==13.5.37 --hash=sha256:c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070
nvidia-cuda-crt==13.5.37 --hash=sha256:e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29
nvidia-cuda-runtime==13.5.37 --hash=sha256:df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d
nvidia-cuda-cccl==13.3.5.0.6 --hash=sha256:d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326
";

/// Disassembler, for the census alone.
const TOOLS: &str = "nvidia-cuda-cuobjdump==13.5.37\nnvidia-cuda-nvdisasm==13.5.37\n";

impl Toolchain {
    /// nvcc in PATH, then in CUDA_HOME, then in the virtual environment; if none is recent enough, the wheels are
    /// installed there.
    ///
    /// # Errors
    /// What is missing (Python, venv, network, disk), with what was tried.
    pub(crate) fn find_or_install(root: &Path) -> Result<Self, String> {
        let mut refused = Vec::new();
        for bin in candidates(root) {
            match Self::at(&bin) {
                Ok(found) => return Ok(found),
                Err(reason) => refused.push(reason),
            }
        }
        install(&environment(root), "python3").map_err(|error| nothing_usable(&error, &refused))?;
        Self::at(&wheel_bin(root)?)
    }

    /// The compiler in folder `bin`.
    fn at(bin: &Path) -> Result<Self, String> {
        let nvcc = bin.join("nvcc");
        let output = Command::new(&nvcc).arg("--version").output();
        let output = output.map_err(|error| format!("{}: {error}", nvcc.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version =
            parse_version(&text).ok_or_else(|| format!("{}: no release in its answer", nvcc.display()))?;
        if version < OLDEST {
            return Err(format!("{}: {version}, want {OLDEST} or newer", nvcc.display()));
        }
        Ok(Self { bin: bin.to_owned(), version })
    }

    /// Version.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// The compiler.
    pub(crate) fn nvcc(&self) -> PathBuf {
        self.bin.join("nvcc")
    }

    /// A tool beside the compiler, with that folder first in its PATH (cuobjdump starts nvdisasm).
    pub(crate) fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&rest));
        if let Ok(path) = std::env::join_paths(paths) {
            command.env("PATH", path);
        }
        command
    }
}

/// Folders that may hold nvcc. A link is followed: nvcc finds its headers by the path that it is called with.
fn candidates(root: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    all.retain(|folder| folder.join("nvcc").is_file());
    for folder in &mut all {
        let real = folder.join("nvcc").canonicalize().ok();
        *folder = real.and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_else(|| folder.clone());
    }
    all.extend(std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin")));
    all.extend(wheel_bin(root).ok());
    all
}

fn environment(root: &Path) -> PathBuf {
    crate::target_folder(root).join("cuda-toolchain").join("venv")
}

/// `venv/lib/python3.N/site-packages/nvidia/cu13/bin`.
fn wheel_bin(root: &Path) -> Result<PathBuf, String> {
    let library = environment(root).join("lib");
    let entries = std::fs::read_dir(&library).map_err(|error| format!("{}: {error}", library.display()))?;
    let mut found = entries
        .flatten()
        .map(|entry| entry.path().join("site-packages/nvidia/cu13/bin"))
        .filter(|bin| bin.join("nvcc").is_file());
    found.next().ok_or_else(|| format!("{}: no nvcc installed", library.display()))
}

fn nothing_usable(error: &str, refused: &[String]) -> String {
    let tried = refused.iter().map(|reason| format!("\n  {reason}")).collect::<String>();
    format!("no nvcc of {OLDEST} or newer, and its wheels cannot be installed: {error}\ntried:{tried}")
}

/// Makes a virtual environment `venv` with `python` and puts the wheels there.
fn install(venv: &Path, python: &str) -> Result<(), String> {
    let parent = venv.parent().unwrap_or(venv);
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    check_disk(parent)?;
    println!("installing the CUDA compiler into {}", venv.display());
    let made = run(Command::new(python).args(["-m", "venv"]).arg(venv));
    made.map_err(|error| format!("python3 with the venv module is needed: {error}"))?;
    for (name, text, hashed) in [("wheels.txt", WHEELS, true), ("tools.txt", TOOLS, false)] {
        let list = parent.join(name);
        std::fs::write(&list, text).map_err(|error| format!("{}: {error}", list.display()))?;
        let mut pip = Command::new(venv.join("bin/pip"));
        pip.args(["install", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]);
        if hashed {
            pip.arg("--require-hashes");
        }
        run(pip.arg("-r").arg(&list)).map_err(|error| format!("pip cannot install {name}: {error}"))?;
    }
    Ok(())
}

/// Room is asked of `df`, which every supported host has; a host without it is left to fail by itself.
fn check_disk(folder: &Path) -> Result<(), String> {
    let Ok(output) = Command::new("df").args(["-Pk"]).arg(folder).output() else { return Ok(()) };
    check_room(folder, &String::from_utf8_lossy(&output.stdout))
}

fn check_room(folder: &Path, table: &str) -> Result<(), String> {
    match free_kilobytes(table) {
        Some(free) if free * 1024 < WHEEL_BYTES => {
            let (want, got) = (WHEEL_BYTES >> 20, free >> 10);
            Err(format!("{}: {want} MiB of disk wanted, {got} MiB free", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Fourth column of the second line of `df -Pk`.
fn free_kilobytes(text: &str) -> Option<u64> {
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

/// Runs a command; its error output is the error.
pub(super) fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    Err(format!("{program} ended with {}:\n{}{}", output.status, printed, errors))
}

/// `... release 13.5, V13.5.37`.
fn parse_version(text: &str) -> Option<Version> {
    let release = text.split("release ").nth(1)?.split(',').next()?;
    let (major, minor) = release.trim().split_once('.')?;
    Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_number() {
        let version = parse_version("Cuda compilation tools, release 13.10, V13.10.2").unwrap();
        assert_eq!(version, Version { major: 13, minor: 10 });
        assert!(version > OLDEST && parse_version("release 13.3, V13.3.73").unwrap() < OLDEST);
        assert_eq!(parse_version("nvcc: not found"), None);
    }

    #[test]
    fn a_full_disk_is_an_error_before_anything_is_downloaded() {
        let table = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 100 99 1 99% /\n";
        assert_eq!(free_kilobytes(table), Some(1));
        assert_eq!(free_kilobytes("nonsense"), None);
        let folder = Path::new("target");
        let error = check_room(folder, table).unwrap_err();
        assert_eq!(error, "target: 700 MiB of disk wanted, 0 MiB free");
        assert_eq!(check_room(folder, &table.replace(" 1 99%", " 717000 1%")), Ok(()));
        assert_eq!(check_room(folder, "nonsense"), Ok(()));
    }

    #[test]
    fn a_missing_python_says_what_is_needed_and_what_was_tried() {
        let folder = tempfile::tempdir().unwrap();
        let error = install(&folder.path().join("venv"), "no-such-python").unwrap_err();
        assert!(error.starts_with("python3 with the venv module is needed: no-such-python"), "{error}");
        let refused = ["/usr/local/cuda/bin/nvcc: 12.9, want 13.4 or newer".to_owned()];
        let text = nothing_usable(&error, &refused);
        assert!(
            text.starts_with("no nvcc of 13.4 or newer, and its wheels cannot be installed: python3 with")
        );
        assert!(text.ends_with("tried:\n  /usr/local/cuda/bin/nvcc: 12.9, want 13.4 or newer"), "{text}");
    }

    #[test]
    fn a_python_without_venv_or_wheels_fails_with_its_own_words() {
        // `false` starts, and fails as a python without the module does.
        let folder = tempfile::tempdir().unwrap();
        let error = install(&folder.path().join("venv"), "false").unwrap_err();
        assert!(error.starts_with("python3 with the venv module is needed: false ended with"), "{error}");
    }

    #[test]
    fn a_missing_compiler_is_named() {
        let error = Toolchain::at(Path::new("/nowhere")).unwrap_err();
        assert!(error.starts_with("/nowhere/nvcc: "), "{error}");
    }
}
