//! `cargo xtask dist`: one folder that is copied to a machine with a GPU and run there, without any toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifact::{Artifact, at, cargo, copy, create, run, strip, write};
use crate::{Vendor, cuda, elf, rocm, target_folder};

/// Most bytes of the folder: it is copied to rented machines over slow lines.
const LIMIT: u64 = 30 << 20;

/// Programs. One call builds both, so that what they share is built once.
const TOOLS: [&str; 2] = ["msa", "msa-check"];
const BUILD_TOOLS: [&str; 10] =
    ["build", "--release", "-p", "msa-ref", "-p", "msa-tests", "--bin", TOOLS[0], "--bin", TOOLS[1]];

/// The decode batch that `msa run` is shown on.
const GOLDEN: &str = "m3_decode_batch.safetensors";

/// Texts that go along: what to run, and the licences.
const TEXTS: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.md"];

/// Hashes of the smoke set on the reference.
const HASHES: &str = "hashes/smoke.ref.txt";

/// Makes `target/dist` with the plugins of all vendors but those in `without`, and tries it as another machine would: from
/// another folder, with an empty environment. Answers with its path. On an error the folder of before stays.
///
/// # Errors
/// A build, a recording or a trial fails, a file needs more than the oldest machine has, or the folder is above 30 MiB.
pub(crate) fn make(root: &Path, without: &[Vendor]) -> Result<PathBuf, String> {
    let plugins = build_plugins(root, without)?;
    run(&mut cargo(root, &BUILD_TOOLS))?;
    let (part, folder) = (target_folder(root).join("dist.part"), target_folder(root).join("dist"));
    remove(&part)?;
    fill(root, &part, &plugins)?;
    let bytes = check_size(&part, LIMIT)?;
    try_out(&part, &plugins)?;
    remove(&folder)?;
    fs::rename(&part, &folder).map_err(|error| at(&folder, &error))?;
    println!("{} ({:.1} MiB)", folder.display(), bytes as f64 / f64::from(1 << 20));
    Ok(folder)
}

fn build_plugins(root: &Path, without: &[Vendor]) -> Result<Vec<PathBuf>, String> {
    if without.contains(&Vendor::Ref) {
        return Err("--without ref: the reference is part of every folder".to_owned());
    }
    let mut plugins = vec![Artifact::reference().build(root)?];
    if !without.contains(&Vendor::Cuda) {
        plugins.push(cuda::build_plugin(root)?);
    }
    if !without.contains(&Vendor::Rocm) {
        plugins.push(rocm::build_plugin(root, false)?);
    }
    Ok(plugins)
}

fn fill(root: &Path, folder: &Path, plugins: &[PathBuf]) -> Result<(), String> {
    for sub in ["plugins", "cases", "hashes", "golden"] {
        create(&folder.join(sub))?;
    }
    for program in TOOLS {
        let to = folder.join(program);
        copy(&target_folder(root).join("release").join(program), &to)?;
        strip(&to)?;
        elf::check_program(&to)?;
    }
    for library in plugins {
        for file in [library.clone(), library.with_extension("toml")] {
            copy(&file, &folder.join("plugins").join(file.file_name().unwrap_or_default()))?;
        }
    }
    copy_all(&root.join("tests/cases"), &folder.join("cases"))?;
    copy(&root.join("tests/golden").join(GOLDEN), &folder.join("golden").join(GOLDEN))?;
    for text in TEXTS {
        copy(&root.join(text), &folder.join(text))?;
    }
    write(&folder.join("README.md"), include_str!("dist/README.md"))?;
    let mut record = Command::new(folder.join("msa-check"));
    run(record.args(["record", "-b", "ref", "-s", "smoke", "--output"]).arg(folder.join(HASHES)))
}

/// Every plugin is loaded, none is refused, a device that nobody has is an error, and the smoke set gives the recorded
/// hashes through the reference plugin.
fn try_out(folder: &Path, plugins: &[PathBuf]) -> Result<(), String> {
    let listing = answer(&mut elsewhere(folder, "msa", &["env"]), 0)?;
    let count = listing.lines().filter(|line| line.trim_start().starts_with("loaded ")).count();
    if count != plugins.len() || listing.lines().any(|line| line.trim_start().starts_with("refused ")) {
        return Err(format!(
            "`msa env`: want {} loaded plugins and none refused, got\n{listing}",
            plugins.len()
        ));
    }
    for library in plugins {
        let name = backend_name(library);
        says_why(&listing, &name).map_err(|what| format!("`msa env`: {what}, got\n{listing}"))?;
        answer(&mut elsewhere(folder, "msa", &["run", "--backend", &format!("{name}:99")]), 2)?;
    }
    let expected = folder.join(HASHES);
    let mut check = elsewhere(folder, "msa-check", &["-b", "plugin:ref", "-s", "smoke", "--expected"]);
    run(check.arg(expected))
}

/// Under which name the tools have the plugin: they bring a `ref` themselves.
fn backend_name(library: &Path) -> String {
    let stem = library.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match stem.trim_start_matches("libmsa_") {
        "ref" => "plugin:ref".to_owned(),
        vendor => vendor.to_owned(),
    }
}

/// After the line of a backend `msa env` prints its devices, or the reason why it has none.
fn says_why(listing: &str, name: &str) -> Result<(), String> {
    let mut lines = listing.lines().skip_while(|line| !line.starts_with(&format!("backend {name} ")));
    let after = lines.nth(1).unwrap_or_default().trim_start();
    let reason = after.strip_prefix(&format!("no device: {name} is unavailable: "));
    if after.starts_with(&format!("{name}:0 ")) || reason.is_some_and(|reason| !reason.is_empty()) {
        return Ok(());
    }
    Err(format!("want devices of {name} or the reason why it has none"))
}

/// A program of the folder, run from the root of the file system with nothing in its environment.
pub(crate) fn elsewhere(folder: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(folder.join(program));
    command.env_clear().current_dir("/").args(arguments);
    command
}

/// What a command printed, if it ended with `status`.
fn answer(command: &mut Command, status: i32) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?} does not start: {error}"))?;
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.code() == Some(status) {
        return Ok(text);
    }
    Err(format!("{command:?}: want exit status {status}, got {}\n{text}", output.status))
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    for entry in fs::read_dir(from).map_err(|error| at(from, &error))?.flatten() {
        if entry.path().is_file() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn check_size(folder: &Path, limit: u64) -> Result<u64, String> {
    let bytes = size(folder)?;
    if bytes > limit {
        return Err(format!("{}: {bytes} bytes, want at most {limit}", folder.display()));
    }
    Ok(bytes)
}

fn size(folder: &Path) -> Result<u64, String> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let path = entry.map_err(|error| at(folder, &error))?.path();
        let data = path.metadata().map_err(|error| at(&path, &error))?;
        bytes += if data.is_dir() { size(&path)? } else { data.len() };
    }
    Ok(bytes)
}

fn remove(folder: &Path) -> Result<(), String> {
    if folder.exists() { fs::remove_dir_all(folder).map_err(|error| at(folder, &error)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_above_the_limit_is_refused_and_the_reference_cannot_be_left_out() {
        let folder = crate::workspace_root().join("tests/cases");
        let bytes = check_size(&folder, LIMIT).expect("case files are small");
        assert!(bytes > 1000);
        let message = check_size(&folder, bytes - 1).expect_err("one byte too many");
        assert!(message.ends_with(&format!("{bytes} bytes, want at most {}", bytes - 1)), "{message}");
        assert!(
            make(Path::new("/nowhere"), &[Vendor::Ref]).is_err_and(|text| text.contains("--without ref"))
        );
    }

    #[test]
    fn a_backend_without_devices_and_without_a_reason_is_seen() {
        let listing = "backend ref 1\n  ref:0  CPU\n\nbackend cuda 1\n  no device: cuda is unavailable: no driver\n\n\
                       backend rocm 1\n  no device: rocm is unavailable: \n\nbackend plugin:ref 1\n";
        assert_eq!([says_why(listing, "ref"), says_why(listing, "cuda")], [Ok(()), Ok(())]);
        for name in ["rocm", "plugin:ref", "other"] {
            assert!(says_why(listing, name).is_err(), "{name}");
        }
        assert_eq!(backend_name(Path::new("plugins/libmsa_ref.so")), "plugin:ref");
        assert_eq!(backend_name(Path::new("plugins/libmsa_rocm.so")), "rocm");
    }

    #[test]
    fn another_exit_status_is_an_error_with_what_was_printed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo words; echo more >&2; exit 3"]);
        assert_eq!(answer(&mut command, 3), Ok("words\nmore\n".to_owned()));
        assert!(answer(&mut command, 0).is_err_and(|text| text.contains("words\nmore")));
    }
}
