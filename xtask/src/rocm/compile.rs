//! From a source to a code object, twice; and not again while nothing of it changes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use msa_emu::gfx9::code_object::CodeObject;
use sha2::{Digest, Sha256};

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

/// What every build of a folder of sources depends on: the compiler and the headers.
pub(super) struct Common {
    text: String,
}

impl Common {
    /// Of a compiler that says this `version` of itself.
    ///
    /// # Errors
    /// A header cannot be read.
    pub(super) fn read(version: &str, kernels: &Path) -> Result<Self, String> {
        let mut text = format!("{version}\n{}\n", FLAGS.join(" "));
        for header in files(kernels, "h")? {
            text.push_str(&read(&header)?);
        }
        Ok(Self { text })
    }

    /// SHA-256 of all that the code object of a source depends on.
    fn stamp(&self, source: &Path, architecture: &str) -> Result<String, String> {
        Ok(hex(format!("{architecture}\n{}\n{}", self.text, read(source)?).as_bytes()))
    }
}

/// The code object `path` of a source, made by `build` unless it is what was made of the same text before.
///
/// # Errors
/// As for `build`; a file that cannot be read or written.
pub(super) fn unless_current(
    path: &Path,
    common: &Common,
    source: &Path,
    architecture: &str,
    build: impl FnOnce() -> Result<(), String>,
) -> Result<Fresh, String> {
    let file = path.with_extension("stamp");
    let stamp = common.stamp(source, architecture)?;
    // The file's own hash: one that something else has written is no result of this source.
    let stamp_of = |bytes: &[u8]| format!("{stamp} {}", hex(bytes));
    let (object, old) = (std::fs::read(path), std::fs::read_to_string(&file));
    if object.is_ok_and(|bytes| old.is_ok_and(|old| old == stamp_of(&bytes))) {
        return Ok(Fresh(false));
    }
    build()?;
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    std::fs::write(&file, stamp_of(&bytes)).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Fresh(true))
}

/// As [`build_twice`], unless the code object in `folder` is current.
///
/// # Errors
/// As for [`build_twice`] and [`unless_current`].
pub(super) fn build_if_changed(
    toolchain: &Toolchain,
    common: &Common,
    source: &Path,
    architecture: &str,
    folder: &Path,
) -> Result<(Built, Fresh), String> {
    let path = object_path(source, architecture, folder);
    let fresh = unless_current(&path, common, source, architecture, || {
        build_twice(toolchain, source, architecture, folder).map(drop)
    })?;
    Ok((Built { object: read_object(&path)?, path }, fresh))
}

/// True if the compiler ran.
pub(super) struct Fresh(pub(super) bool);

/// `work` on every item, on all cores; the results in the order of the items.
///
/// # Errors
/// The first item's that failed.
pub(super) fn on_all_cores<I: Sync, T: Send>(
    items: &[I],
    work: impl Fn(&I) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let run = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return own };
            own.push((index, work(item)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned()));
        joined.collect::<Result<Vec<_>, String>>()
    })?;
    let mut all: Vec<_> = all.drain(..).flatten().collect();
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// The files of a folder with this extension, sorted.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|own| own == extension));
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn object_path(source: &Path, architecture: &str, folder: &Path) -> PathBuf {
    let stem = source.file_stem().unwrap_or_default().to_string_lossy();
    folder.join(format!("{stem}.{architecture}.hsaco"))
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
    let path = object_path(source, architecture, folder);
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects).map_err(|error| format!("{}: {error}", objects.display()))?;
    let object = objects.join(path.file_name().unwrap_or_default()).with_extension("o");
    let mut clang = toolchain.clang();
    clang.args(FLAGS).arg(format!("-mcpu={architecture}")).arg("-c").arg(source).arg("-o").arg(&object);
    run(&mut clang)?;
    let mut linker = toolchain.linker();
    linker.args(["-shared", "--no-undefined"]).arg(&object).arg("-o").arg(&path);
    run(&mut linker)?;
    let built = Built { object: read_object(&path)?, path };
    match built.object.architecture() {
        own if own == architecture => Ok(built),
        other => Err(format!("{}: want code for {architecture}, got {other}", built.path.display())),
    }
}

/// What the compiler says goes into the error, warnings of a build that succeeds to standard error.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        eprint!("{said}");
        return Ok(());
    }
    Err(format!("{command:?}: {}\n{said}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once_and_results_keep_their_order() {
        let items: Vec<u32> = (0..50).collect();
        assert_eq!(
            on_all_cores(&items, |item| Ok(item * 2)),
            Ok(items.iter().map(|item| item * 2).collect())
        );
        let failing = |item: &u32| if item % 7 == 6 { Err(format!("item {item}")) } else { Ok(*item) };
        assert_eq!(on_all_cores(&items, failing), Err("item 6".to_owned()));
    }

    #[test]
    fn a_stamp_depends_on_the_source_the_headers_the_flags_and_the_architecture() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("kernel.cpp");
        std::fs::write(&source, "one").expect("written");
        let common = |text: &str| Common { text: text.to_owned() };
        let stamp = |text: &str, arch: &str| common(text).stamp(&source, arch).expect("it is there");
        let first = stamp("clang 22 -O3", "gfx950");
        assert_eq!(first, stamp("clang 22 -O3", "gfx950"));
        assert_ne!(first, stamp("clang 22 -O2", "gfx950"));
        assert_ne!(first, stamp("clang 22 -O3", "gfx942"));
        std::fs::write(&source, "two").expect("written");
        assert_ne!(first, stamp("clang 22 -O3", "gfx950"));
    }
}
