//! AMD's runtime as Debian packages it, under the target folder: the tests open it on a machine without a device.
//!
//! Nothing is installed and no rights are needed: packages are downloaded and unpacked. Where that cannot be done the reason is
//! printed, and the tests say that they were not run.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Outcome;
use crate::target_folder;

/// The package that holds the runtime; what it needs and this machine lacks comes with it.
const PACKAGE: &str = "libamdhip64-5";

/// The file that says that everything is there.
const LIBRARY: &str = "lib/libamdhip64.so.5";

/// A folder as `ROCM_PATH` names one, if the runtime was unpacked.
pub(super) fn unpacked(root: &Path) -> Option<PathBuf> {
    let folder = target_folder(root).join("hip-runtime");
    folder.join(LIBRARY).exists().then_some(folder)
}

/// Unpacks the runtime, once.
///
/// # Errors
/// The target folder cannot be written.
pub(super) fn unpack(root: &Path) -> Result<Outcome, String> {
    if let Some(folder) = unpacked(root) {
        println!("{} is there", folder.join(LIBRARY).display());
        return Ok(Outcome::Passed);
    }
    let folder = target_folder(root).join("hip-runtime");
    // What a run before left half done.
    let _ = std::fs::remove_dir_all(&folder);
    for part in ["lists/partial", "cache/archives/partial"] {
        let path = folder.join(part);
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    match download(&folder).and_then(|()| unpack_all(&folder)) {
        Ok(()) => {
            println!("unpacked {}", folder.join(LIBRARY).display());
            Ok(Outcome::Passed)
        }
        Err(reason) => {
            let reason = format!("{PACKAGE} cannot be had here: {reason}");
            println!("skipped: {reason}");
            Ok(Outcome::Skipped(reason))
        }
    }
}

/// Downloads the package and what it needs: with the package lists of this machine, or else with lists of our own.
fn download(folder: &Path) -> Result<(), String> {
    if let Ok(packages) = missing_packages(folder, &[])
        && fetch(folder, &[], &packages).is_ok()
    {
        return Ok(());
    }
    let lists = format!("Dir::State::Lists={}", folder.join("lists").display());
    apt(folder, &[&lists], &["update"])?;
    let packages = missing_packages(folder, &[&lists])?;
    fetch(folder, &[&lists], &packages)
}

fn missing_packages(folder: &Path, options: &[&str]) -> Result<Vec<String>, String> {
    let text = apt(folder, options, &["install", "--simulate", "--no-install-recommends", PACKAGE])?;
    let packages = to_install(&text);
    if packages.is_empty() { Err("it is installed, but not found".to_owned()) } else { Ok(packages) }
}

/// Names in lines `Inst name (version ...)`.
fn to_install(simulation: &str) -> Vec<String> {
    let lines = simulation.lines().filter_map(|line| line.strip_prefix("Inst "));
    lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn fetch(folder: &Path, options: &[&str], packages: &[String]) -> Result<(), String> {
    let arguments: Vec<&str> =
        std::iter::once("download").chain(packages.iter().map(String::as_str)).collect();
    apt(folder, options, &arguments).map(drop)
}

/// Runs apt-get in `folder`, with its caches there.
fn apt(folder: &Path, options: &[&str], arguments: &[&str]) -> Result<String, String> {
    let cache = format!("Dir::Cache={}", folder.join("cache").display());
    let patience = ["Acquire::Retries=0", "Acquire::http::Timeout=10", "Acquire::https::Timeout=10"];
    let mut command = Command::new("apt-get");
    command.current_dir(folder).env("LC_ALL", "C").args(["-q", "-o", &cache]);
    for option in patience.iter().chain(options) {
        command.args(["-o", option]);
    }
    run(command.args(arguments))
}

/// Unpacks every package, and puts the libraries where a ROCm folder has them.
fn unpack_all(folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(folder.join("root")))?;
        }
    }
    let libraries = std::fs::read_dir(folder.join("root/usr/lib")).map_err(failed)?;
    let mut folders = libraries.filter_map(Result::ok).map(|entry| entry.path());
    let found = folders.find(|path| path.join("libamdhip64.so.5").exists());
    let found = found.ok_or_else(|| format!("the packages hold no {LIBRARY}"))?;
    std::fs::rename(found, folder.join("lib")).map_err(failed)
}

fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program} does not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| line.starts_with("E:")).or(errors.lines().last());
    Err(format!("{program} ended with {}: {}", output.status, last.unwrap_or("no message")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_those_that_a_simulation_installs() {
        let text = "Reading state information...\n  libamd-comgr2\nInst libamd-comgr2 (5.2.3-2 Debian:12 [amd64])\n\
                    Inst libamdhip64-5 (5.2.3-8 Debian:12 [amd64])\nConf libamdhip64-5 (5.2.3-8 Debian:12 [amd64])\n";
        assert_eq!(to_install(text), ["libamd-comgr2", "libamdhip64-5"]);
        assert!(to_install("libamdhip64-5 is already the newest version (5.2.3-8).\n").is_empty());
    }

    #[test]
    fn what_cannot_be_run_is_a_reason() {
        let missing = run(&mut Command::new("no-such-program")).expect_err("it does not start");
        assert!(missing.starts_with("no-such-program does not start: "), "{missing}");
        let failed = run(Command::new("sh").args(["-c", "echo W: so >&2; echo E: why >&2; exit 3"]));
        assert!(failed.is_err_and(|text| text.ends_with("exit status: 3: E: why")));
    }
}
