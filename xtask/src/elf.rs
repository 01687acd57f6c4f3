//! What a built library or program exports, and what it asks of the machine that runs it.

use std::path::Path;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, Sym as _};

/// The one symbol that a plugin exports.
const ENTRY: &str = "msa_plugin_entry";

/// Newest version of glibc that may be asked for: that of Debian 12, RHEL 10 and Ubuntu 24.04 have it or a newer one.
pub(crate) const GLIBC: Version = (2, 36);

/// Major and minor version of glibc.
type Version = (u32, u32);

/// Libraries that may be needed: glibc's own and the unwinder of gcc, which every Linux distribution with glibc has. A
/// vendor's runtime is none of them: plugins open drivers at run time, whatever version is there.
const SYSTEM_LIBRARIES: [&str; 8] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// Refuses a plugin that exports anything but its entry, or that [`check_program`] refuses.
///
/// # Errors
/// The file with what is wrong.
pub(crate) fn check_plugin(library: &Path) -> Result<(), String> {
    let (links, at) = (Links::read(library)?, library.display());
    match &links.exported[..] {
        [entry] if entry == ENTRY => links.check(GLIBC).map_err(|what| format!("{at}: {what}")),
        others => Err(format!("{at}: exports {others:?}, want [{ENTRY:?}]")),
    }
}

/// Refuses a file that needs a library of a vendor, or a newer glibc than [`GLIBC`].
///
/// # Errors
/// The file with what is wrong.
pub(crate) fn check_program(program: &Path) -> Result<(), String> {
    Links::read(program)?.check(GLIBC).map_err(|what| format!("{}: {what}", program.display()))
}

/// The dynamic links of a file.
#[derive(Debug, Default)]
struct Links {
    /// Symbols that others can bind to, sorted.
    exported: Vec<String>,
    /// Names of needed libraries.
    needed: Vec<String>,
    /// Versions that must be there, `GLIBC_2.34`.
    versions: Vec<String>,
    /// Folders in which needed libraries are looked for first.
    folders: Vec<String>,
}

impl Links {
    fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(bytes: &[u8]) -> object::Result<Self> {
        let header = FileHeader64::<LittleEndian>::parse(bytes)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, bytes)?;
        let mut links = Self::default();
        let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM)?;
        for symbol in symbols.iter().filter(|symbol| symbol.st_shndx(endian) != elf::SHN_UNDEF) {
            links.exported.push(text(symbol.name(endian, symbols.strings())?));
        }
        links.exported.sort();
        let dynamic = sections.dynamic_table(endian, bytes)?;
        for entry in dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
            links.needed.push(text(dynamic.string(entry)?));
        }
        let is_folder = |tag| tag == elf::DT_RPATH || tag == elf::DT_RUNPATH;
        for entry in dynamic.iter().filter(|entry| is_folder(entry.tag)) {
            links.folders.push(text(dynamic.string(entry)?));
        }
        if let Some((libraries, link)) = sections.gnu_verneed(endian, bytes)? {
            let strings = sections.strings(endian, bytes, link)?;
            for library in libraries {
                for version in library?.1 {
                    let version = version?;
                    // The dynamic linker goes on without a weak one: its symbols are null, and asked about.
                    if !version.vna_flags.get(endian).contains(elf::VER_FLG_WEAK) {
                        links.versions.push(text(version.name(endian, strings)?));
                    }
                }
            }
        }
        Ok(links)
    }

    fn check(&self, limit: Version) -> Result<(), String> {
        if let Some(other) = self.needed.iter().find(|name| !SYSTEM_LIBRARIES.contains(&name.as_str())) {
            return Err(format!("needs {other}, want only {}", SYSTEM_LIBRARIES.join(" ")));
        }
        if let Some(folder) = self.folders.first() {
            return Err(format!(
                "looks for libraries in {folder}, which is a folder of the machine that built it"
            ));
        }
        let newest = self.versions.iter().filter_map(|name| glibc_version(name)).max();
        match newest.filter(|newest| *newest > limit) {
            None => Ok(()),
            Some((major, minor)) => Err(format!(
                "needs glibc {major}.{minor}, want {}.{} or older: build on a machine with that glibc",
                limit.0, limit.1
            )),
        }
    }
}

/// `GLIBC_2.34` as numbers; none for versions of other libraries and for `GLIBC_PRIVATE`.
fn glibc_version(name: &str) -> Option<Version> {
    let mut parts = name.strip_prefix("GLIBC_")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use tempfile::tempdir;

    use super::*;

    /// Compiles C text to `lib<name>.so` in `folder`.
    fn library(folder: &Path, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let (file, library) = (folder.join("source.c"), folder.join(format!("lib{name}.so")));
        fs::write(&file, source).expect("writable");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).args(arguments);
        assert!(command.status().expect("a C compiler").success(), "{command:?}");
        library
    }

    #[test]
    fn a_library_that_exports_more_or_less_than_the_entry_is_refused() {
        let entry = "int msa_plugin_entry(void) { return 0; }\n";
        let folder = tempdir().expect("a temporary folder");
        check_plugin(&library(folder.path(), "one", entry, &[])).expect("the entry alone");
        for (name, source) in
            [("two", format!("{entry}int other(void) {{ return 1; }}\n")), ("none", String::new())]
        {
            let message = check_plugin(&library(folder.path(), name, &source, &[])).expect_err("refused");
            assert!(
                message.contains("exports [") && message.contains("want [\"msa_plugin_entry\"]"),
                "{message}"
            );
        }
    }

    #[test]
    fn n03_a_plugin_that_needs_a_vendors_runtime_is_refused() {
        let folder = tempdir().expect("a temporary folder");
        let source = "int cudaGetDriverEntryPointByVersion(void) { return 0; }\n";
        let runtime = library(folder.path(), "cudart", source, &[]);
        let named = runtime.with_file_name("libcudart.so.12");
        fs::rename(&runtime, &named).expect("renamed");
        let source = "int cudaGetDriverEntryPointByVersion(void);\n\
                      int msa_plugin_entry(void) { return cudaGetDriverEntryPointByVersion(); }\n";
        let plugin = library(folder.path(), "plugin", source, &[named.to_str().expect("UTF-8")]);
        let message = check_plugin(&plugin).expect_err("refused");
        assert!(message.contains("libcudart.so.12, want only libc.so.6"), "{message}");
    }

    #[test]
    fn a_library_that_names_a_folder_of_this_machine_is_refused() {
        let folder = tempdir().expect("a temporary folder");
        let source = "int msa_plugin_entry(void) { return 0; }\n";
        for tags in ["-Wl,--enable-new-dtags,-rpath,here", "-Wl,--disable-new-dtags,-rpath,here"] {
            let message =
                check_plugin(&library(folder.path(), "found", source, &[tags])).expect_err("refused");
            assert!(message.contains("looks for libraries in here, "), "{message}");
        }
    }

    #[test]
    fn a_newer_glibc_than_the_limit_is_refused() {
        let own = std::env::current_exe().expect("this test is a program");
        let links = Links::read(&own).expect("a readable program");
        assert!(links.versions.iter().any(|name| name.starts_with("GLIBC_2.")), "{links:?}");
        links.check((2, 99)).expect("no glibc is that new");
        let message = links.check((2, 0)).expect_err("nothing runs on glibc 2.0");
        assert!(message.starts_with("needs glibc 2.") && message.contains("want 2.0 or older"), "{message}");
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert!(glibc_version("GLIBC_2.4") < glibc_version("GLIBC_2.36"));
        for other in ["GLIBC_PRIVATE", "GCC_3.0", "GLIBCXX_3.4.30"] {
            assert_eq!(glibc_version(other), None);
        }
    }

    #[test]
    fn a_file_that_is_no_elf_is_an_error() {
        let message = check_program(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
        assert!(message.expect_err("refused").contains("Cargo.toml: "));
    }
}
