//! Plugins for tests: the one that cargo built beside the test, copies of it with manifests, and small C libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use msa_core::abi::table::{ABI_MAJOR, ABI_MINOR, MsaHostInfo, MsaText};
use sha2::{Digest, Sha256};

/// What a host of this version without a log or options tells a plugin.
pub fn host_info() -> MsaHostInfo {
    MsaHostInfo {
        struct_size: size_of::<MsaHostInfo>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        reserved: 0,
        log: None,
        log_context: std::ptr::null_mut(),
        options: MsaText::EMPTY,
    }
}

/// The test plugin that cargo built for the running test: it lies beside the test's executable.
///
/// # Panics
/// If it is not there: the test was started in a way that cargo does not know.
pub fn test_plugin() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    let path = executable.with_file_name("libmsa_test_plugin.so");
    assert!(path.is_file(), "no {}: run the test with cargo", path.display());
    path
}

/// The plugin of a vendor that `cargo xtask plugin <vendor>` built: in `plugins` of the target folder, above the running test.
///
/// # Panics
/// If it is not there and `MSA_REQUIRE_KERNELS` is set, as in continuous integration.
pub fn vendor_plugin(vendor: &str) -> Option<PathBuf> {
    let executable = std::env::current_exe().unwrap_or_default();
    let file = format!("plugins/libmsa_{vendor}.so");
    let found =
        executable.ancestors().skip(1).take(3).map(|folder| folder.join(&file)).find(|path| path.is_file());
    let required = std::env::var_os("MSA_REQUIRE_KERNELS").is_some();
    assert!(found.is_some() || !required, "no {file}: run cargo xtask plugin {vendor}");
    if found.is_none() {
        println!("skipped: no {file}");
    }
    found
}

/// Copies the test plugin into `folder` as `libmsa_<stem>.so`, with a manifest that agrees with it.
///
/// # Panics
/// If the folder cannot be written.
pub fn install(folder: &Path, stem: &str) -> PathBuf {
    let library = folder.join(format!("libmsa_{stem}.so"));
    fs::copy(test_plugin(), &library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    write_manifest(&library, &manifest_of(&library));
    library
}

/// A manifest that agrees with a copy of the test plugin at `library`, TOML.
///
/// # Panics
/// If the library cannot be read.
pub fn manifest_of(library: &Path) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let sha256 = sha256_of(library);
    format!(
        "abi = \"1.0\"\nname = \"ref\"\nversion = \"{version}\"\narches = [\"cpu\"]\nbuild = \"test\"\n\
         sha256 = \"{sha256}\"\n"
    )
}

/// Writes the manifest of a library.
///
/// # Panics
/// If it cannot be written.
pub fn write_manifest(library: &Path, text: &str) {
    let path = library.with_extension("toml");
    fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// SHA-256 of a file, hexadecimal.
///
/// # Panics
/// If it cannot be read.
pub fn sha256_of(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file of `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// The folder of `msa_plugin.h`.
pub fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../msa-core/include")
}

/// Compiles the C file `source` to `output` with the system compiler, against the header, warnings as errors.
///
/// # Panics
/// If there is no C compiler, or it refuses the file.
pub fn compile_c(source: &Path, output: &Path, arguments: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(include_folder());
    command.args(arguments).arg("-o").arg(output).arg(source).args(["-ldl", "-lpthread"]);
    let result = command.output().unwrap_or_else(|error| panic!("the C compiler `cc` is needed: {error}"));
    assert!(result.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&result.stderr));
}

/// True if there is a C++ compiler; where there is none, its tests say that they prove nothing.
///
/// # Panics
/// Without one where `MSA_REQUIRE_KERNELS` is set, as in continuous integration.
pub fn has_cpp() -> bool {
    has_compiler("c++", std::env::var_os("MSA_REQUIRE_KERNELS").is_some())
}

fn has_compiler(name: &str, required: bool) -> bool {
    let found = Command::new(name).arg("--version").output().is_ok();
    assert!(found || !required, "the compiler `{name}` is needed where MSA_REQUIRE_KERNELS is set");
    if !found {
        println!("skipped: there is no compiler `{name}`");
    }
    found
}

/// Compiles a plugin of `tests/fixtures` that is written in C++17 to `output`, with definitions, warnings as errors; gives
/// the compiler's words if it refuses.
///
/// # Panics
/// If the compiler does not start.
pub fn compile_cpp(name: &str, output: &Path, definitions: &[&str]) -> Result<(), String> {
    let mut command = Command::new("c++");
    command.args([
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ]);
    command.args(definitions.iter().map(|definition| format!("-D{definition}")));
    command.arg("-I").arg(include_folder()).arg("-o").arg(output).arg(fixture(name));
    let result = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if result.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&result.stderr).into_owned()) }
}

/// Compiles `tests/fixtures/hostile.c` with definitions, as `libmsa_<stem>.so` in `folder`.
///
/// # Panics
/// As [`compile_c`].
pub fn hostile(folder: &Path, stem: &str, definitions: &[&str]) -> PathBuf {
    let library = folder.join(format!("libmsa_{stem}.so"));
    let flags: Vec<String> = definitions.iter().map(|definition| format!("-D{definition}")).collect();
    let mut arguments = vec!["-shared", "-fPIC", "-fvisibility=hidden"];
    arguments.extend(flags.iter().map(String::as_str));
    compile_c(&fixture("hostile.c"), &library, &arguments);
    library
}

#[cfg(test)]
mod tests {
    use super::has_compiler;

    #[test]
    fn a_compiler_that_is_missing_is_skipped_or_a_failure() {
        assert!(!has_compiler("no-such-compiler", false));
        assert!(std::panic::catch_unwind(|| has_compiler("no-such-compiler", true)).is_err());
    }
}
