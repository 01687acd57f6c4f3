//! Plugin artifacts: `libmsa_<name>.so` with its manifest in `target/plugins`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::{elf, target_folder};

/// A plugin that can be built: the library of `msa-<name>` under the feature `plugin`.
pub(crate) struct Artifact {
    /// Name of the backend.
    pub(crate) name: &'static str,
    /// Architectures with kernels, as the plugin's table lists them.
    pub(crate) arches: Vec<String>,
    /// Variable by which the crate finds its compiled kernels, and their folder.
    pub(crate) kernels: Option<(&'static str, PathBuf)>,
}

impl Artifact {
    /// The CPU reference.
    pub(crate) fn reference() -> Self {
        Self { name: "ref", arches: vec!["cpu".to_owned()], kernels: None }
    }

    /// Builds the library, checks what it exports and needs, and writes its manifest. Answers with its path.
    ///
    /// # Errors
    /// The build fails, or the library exports something else than the entry, needs a vendor's library or a newer glibc
    /// than [`elf::GLIBC`]. Then the plugin of before stays as it was.
    pub(crate) fn build(&self, root: &Path) -> Result<PathBuf, String> {
        let (build, package) = (revision(root), format!("msa-{}", self.name));
        let arguments =
            ["rustc", "--release", "-p", &package, "--lib", "--features", "plugin", "--crate-type", "cdylib"];
        let mut command = cargo(root, &arguments);
        command.env("MSA_BUILD", &build);
        if let Some((variable, folder)) = &self.kernels {
            command.env(variable, folder);
        }
        run(&mut command)?;
        let (target, file) = (target_folder(root), format!("libmsa_{}.so", self.name));
        let (built, library) = (target.join("release").join(&file), target.join("plugins").join(&file));
        create(&target.join("plugins"))?;
        let part = library.with_extension("part");
        copy(&built, &part)?;
        // The tools search the folder of the build, too, and would refuse a library without a manifest there.
        fs::remove_file(&built).map_err(|error| at(&built, &error))?;
        strip(&part)?;
        elf::check_plugin(&part)?;
        let manifest = self.manifest(root, &part, &build)?;
        // A process that runs the plugin of before keeps it: the new one is another file.
        fs::rename(&part, &library).map_err(|error| at(&library, &error))?;
        write(&library.with_extension("toml"), &manifest)?;
        println!("{}", library.display());
        Ok(library)
    }

    /// What the loader compares with the library.
    fn manifest(&self, root: &Path, library: &Path, build: &str) -> Result<String, String> {
        let bytes = fs::read(library).map_err(|error| at(library, &error))?;
        let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let (abi, version) = (abi(root)?, workspace_version(root)?);
        Ok(format!(
            "abi = {abi:?}\nname = {:?}\nversion = {version:?}\narches = {:?}\nbuild = {build:?}\nsha256 = {sha256:?}\n",
            self.name, self.arches
        ))
    }
}

/// Debug information stays behind: it is most of a program's size.
///
/// # Errors
/// `strip`, which comes with the linker, does not start or fails.
pub(crate) fn strip(program: &Path) -> Result<(), String> {
    run(Command::new("strip").arg("--strip-debug").arg(program))
}

/// Cargo, as it was called for this task, in the workspace.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    command
}

/// Runs a command whose output goes where ours does.
///
/// # Errors
/// It does not start, or ends with a status other than 0.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?} does not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}

/// `major.minor` of the ABI, from the constants of its source: this program does not depend on msa-core.
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

fn workspace_version(root: &Path) -> Result<String, String> {
    let path = root.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
    let table: toml::Table = text.parse().map_err(|error| at(&path, &error))?;
    let version = table.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    version.map(str::to_owned).ok_or_else(|| at(&path, &"no workspace.package.version"))
}

/// The commit that is built, with `+` if the tree differs from it.
fn revision(root: &Path) -> String {
    let git = Command::new("git").current_dir(root).args(["describe", "--always", "--dirty=+"]).output();
    let text =
        git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "unversioned".to_owned() } else { text }
}

/// Copies a file.
///
/// # Errors
/// The first path with the reason.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(|_| ()).map_err(|error| at(from, &error))
}

/// Makes a folder and those above it.
///
/// # Errors
/// The path with the reason.
pub(crate) fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))
}

/// Writes a text file.
///
/// # Errors
/// The path with the reason.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| at(path, &error))
}

/// A path with what went wrong there.
pub(crate) fn at(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_their_sources() {
        let root = crate::workspace_root();
        let version = abi(&root).expect("the constants are there");
        assert_eq!(version.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 2, "{version}");
        assert_eq!(workspace_version(&root).as_deref(), Ok(env!("CARGO_PKG_VERSION")));
        assert!(workspace_version(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_command_that_fails_is_an_error_with_its_words() {
        assert_eq!(run(&mut Command::new("true")), Ok(()));
        assert!(run(&mut Command::new("false")).is_err_and(|text| text.contains("\"false\" ended with")));
        assert!(run(&mut Command::new("no-such-program")).is_err_and(|text| text.contains("does not start")));
    }
}
