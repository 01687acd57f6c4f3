//! Plugin artifacts, `libmsa_<name>.so` with its manifest, and the folder that is taken to another machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// The one symbol that a plugin exports.
const ENTRY: &str = "msa_plugin_entry";

/// Most bytes of the folder.
const DIST_BYTES: u64 = 30 << 20;

/// Build the reference as a plugin into `target/plugins`, with its manifest, and check what it exports.
///
/// # Errors
/// The build fails, or the library exports something else than the entry.
pub(crate) fn build_reference(root: &Path) -> Result<(), String> {
    let build = revision(root);
    let arguments =
        ["rustc", "--release", "-p", "msa-ref", "--lib", "--features", "plugin", "--crate-type", "cdylib"];
    cargo(root, &arguments, &[("MSA_BUILD", &build)])?;
    let folder = target_folder(root).join("plugins");
    let library = folder.join("libmsa_ref.so");
    create(&folder)?;
    copy(&target_folder(root).join("release").join("libmsa_ref.so"), &library)?;
    check_symbols(&library)?;
    let manifest = manifest(root, &library, "ref", "cpu", &build)?;
    write(&library.with_extension("toml"), &manifest)?;
    println!("{}", library.display());
    Ok(())
}

/// Make `target/dist`: the plugins of `target/plugins`, `msa`, `msa-check`, the case sets and the recorded hashes of
/// the smoke set. It needs no toolchain where it is run.
///
/// # Errors
/// A build or a recording fails, or the folder is above 30 MiB.
pub(crate) fn dist(root: &Path) -> Result<(), String> {
    build_reference(root)?;
    cargo(root, &["build", "--release", "-p", "msa-ref", "--bin", "msa"], &[])?;
    cargo(root, &["build", "--release", "-p", "msa-tests", "--bin", "msa-check"], &[])?;
    let (target, folder) = (target_folder(root), target_folder(root).join("dist"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    }
    for sub in ["plugins", "cases", "hashes"] {
        create(&folder.join(sub))?;
    }
    for program in ["msa", "msa-check"] {
        copy(&target.join("release").join(program), &folder.join(program))?;
        strip(&folder.join(program))?;
    }
    copy_all(&target.join("plugins"), &folder.join("plugins"))?;
    copy_all(&root.join("tests").join("cases"), &folder.join("cases"))?;
    let hashes = folder.join("hashes").join("smoke.ref.txt");
    let mut record = Command::new(folder.join("msa-check"));
    run(record.args(["record", "-b", "ref", "-s", "smoke", "--output"]).arg(&hashes))?;
    let bytes = size(&folder)?;
    println!("{} ({:.1} MiB)", folder.display(), bytes as f64 / f64::from(1 << 20));
    if bytes > DIST_BYTES {
        return Err(format!("the folder has {bytes} bytes, want at most {DIST_BYTES}"));
    }
    Ok(())
}

/// What the loader compares with the library.
fn manifest(root: &Path, library: &Path, name: &str, arches: &str, build: &str) -> Result<String, String> {
    let workspace = root.join("Cargo.toml");
    let text = fs::read_to_string(&workspace).map_err(|error| at(&workspace, &error))?;
    let table: toml::Table = text.parse().map_err(|error| at(&workspace, &error))?;
    let version = table["workspace"]["package"]["version"].as_str().unwrap_or_default();
    let bytes = fs::read(library).map_err(|error| at(library, &error))?;
    let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!(
        "abi = \"{}\"\nname = \"{name}\"\nversion = \"{version}\"\narches = [\"{arches}\"]\nbuild = \"{build}\"\n\
         sha256 = \"{sha256}\"\n",
        abi(root)?
    ))
}

/// `major.minor` of the ABI, from the constants of its source.
fn abi(root: &Path) -> Result<String, String> {
    let path = root.join("msa-core/src/abi/table.rs");
    let text = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
    let number = |name: &str| {
        let rest = text.split_once(&format!("pub const {name}: u32 = "))?.1;
        rest.split_once(';').map(|(number, _)| number.trim().to_owned())
    };
    let both = number("ABI_MAJOR").zip(number("ABI_MINOR"));
    both.map(|(major, minor)| format!("{major}.{minor}")).ok_or_else(|| at(&path, &"no ABI version"))
}

/// The library exports the entry and nothing else of ours.
fn check_symbols(library: &Path) -> Result<(), String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .map_err(|error| format!("nm does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match exported(&text)[..] {
        [ENTRY] => Ok(()),
        ref others => Err(at(library, &format!("want the one symbol {ENTRY}, got {others:?}"))),
    }
}

/// Names in the output of `nm`.
fn exported(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_whitespace().last()).collect()
}

/// The commit that is built, with `+` if the tree differs from it.
fn revision(root: &Path) -> String {
    let git = Command::new("git").current_dir(root).args(["describe", "--always", "--dirty=+"]).output();
    let text =
        git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "unversioned".to_owned() } else { text }
}

/// Debug information stays behind: it is most of a program's size.
fn strip(program: &Path) -> Result<(), String> {
    run(Command::new("strip").arg("--strip-debug").arg(program))
}

fn cargo(root: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(Command::new(program).current_dir(root).args(arguments).envs(variables.iter().copied()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?} does not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    for entry in fs::read_dir(from).map_err(|error| at(from, &error))?.flatten() {
        if entry.path().is_file() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64, String> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))?.flatten() {
        let path = entry.path();
        bytes += if path.is_dir() { size(&path)? } else { path.metadata().map_or(0, |data| data.len()) };
    }
    Ok(bytes)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(|_| ()).map_err(|error| at(from, &error))
}

fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| at(path, &error))
}

fn at(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_last_words_of_nm() {
        assert_eq!(exported("0000 T msa_plugin_entry\n"), [ENTRY]);
        assert_eq!(exported("0 T a\n0 B b\n"), ["a", "b"]);
    }

    #[test]
    fn the_abi_version_is_found_in_its_source() {
        let version = abi(&crate::workspace_root()).expect("the constants are there");
        assert_eq!(version.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 2, "{version}");
    }
}
