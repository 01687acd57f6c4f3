//! `cargo xtask toolchain rocm` and `cargo xtask plugin rocm`: AMD kernels, compiled without ROCm.

mod census;
mod compile;
mod mutants;
mod toolchain;

use std::path::{Path, PathBuf};

use msa_emu::gfx9::code_object::CodeObject;
use msa_emu::gfx9::disassemble::Disassembler;

use crate::artifact::Artifact;
use crate::target_folder;
use toolchain::Toolchain;

/// Architectures that kernels are built for.
const ARCHITECTURES: [&str; 2] = ["gfx942", "gfx950"];

/// Make sure that a compiler is there: clang 22 and lld 22, installed if they are not.
///
/// # Errors
/// None can be found or installed; the message says what to do by hand.
pub(crate) fn install_toolchain(root: &Path) -> Result<(), String> {
    let toolchain = Toolchain::find_or_install(&target_folder(root))?;
    println!("rocm toolchain: {}", toolchain.version()?);
    Ok(())
}

/// [`build_kernels`], then the library that embeds them, with its manifest, in `target/plugins`.
///
/// # Errors
/// As for [`build_kernels`] and [`Artifact::build`].
pub(crate) fn build_plugin(root: &Path, accept: bool) -> Result<PathBuf, String> {
    build_kernels(root, accept)?;
    let folder = target_folder(root).join("plugins").join("rocm");
    let arches = ARCHITECTURES.map(str::to_owned).to_vec();
    Artifact { name: "rocm", arches, kernels: Some(("MSA_ROCM_KERNELS", folder)) }.build(root)
}

/// Compile all kernels for all architectures, compare their census with the committed one, write the artifacts.
///
/// With `accept` the census of the sources is replaced by the one found.
///
/// # Errors
/// The compiler's message, a build that does not repeat, a kernel that breaks a rule, a census that differs.
pub(crate) fn build_kernels(root: &Path, accept: bool) -> Result<(), String> {
    let target = target_folder(root);
    let toolchain = Toolchain::find_or_install(&target)?;
    let folder = target.join("plugins").join("rocm");
    let sources = kernel_sources(root)?;
    let common = compile::Common::read(&toolchain.version()?, &root.join("msa-rocm").join("kernels"))?;
    let all: Vec<(&Path, &str)> = ARCHITECTURES
        .into_iter()
        .flat_map(|architecture| sources.iter().map(move |source| (source.as_path(), architecture)))
        .collect();
    let objects = compile::on_all_cores(&all, |(source, architecture)| {
        compile::build_if_changed(&toolchain, &common, source, architecture, &folder)
    })?;
    let compiled = objects.iter().filter(|(_, fresh)| fresh.0).count();
    let objects: Vec<_> = objects.into_iter().map(|(built, _)| built).collect();
    remove_others(&folder, &objects)?;
    let mut kernels = Vec::new();
    for architecture in ARCHITECTURES {
        let disassembler = Disassembler::new(architecture).map_err(|error| error.to_string())?;
        for built in objects.iter().filter(|built| built.object.architecture() == architecture) {
            kernels.extend(census::of_object(built, &disassembler)?);
        }
    }
    kernels.iter().try_for_each(census::check_rules)?;
    let census = root.join("msa-rocm").join("kernels").join("census");
    census::compare(&kernels, &census, accept)?;
    write_manifest(&folder, &toolchain.version()?, &kernels)?;
    println!(
        "rocm kernels: {} in {}, {compiled} of {} sources compiled",
        kernels.len(),
        folder.display(),
        all.len()
    );
    Ok(())
}

/// Compile the faulty kernels of `tests/emu/mutations.toml` beside the artifacts.
///
/// # Errors
/// As for [`build_plugin`]; a fault whose text is not in the sources.
pub(crate) fn build_mutants(root: &Path) -> Result<(), String> {
    let target = target_folder(root);
    let toolchain = Toolchain::find_or_install(&target)?;
    let folder = target.join("plugins").join("rocm").join("mutants");
    let (count, compiled) = mutants::build(root, &toolchain, &folder)?;
    println!("rocm mutants: {count} in {}, {compiled} compiled", folder.display());
    Ok(())
}

/// The `.cpp` files, sorted.
fn kernel_sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = root.join("msa-rocm").join("kernels");
    let sources = compile::files(&folder, "cpp")?;
    if sources.is_empty() { Err(format!("no kernels in {}", folder.display())) } else { Ok(sources) }
}

/// Removes code objects of sources and architectures that there are no more: whatever stands in the folder is embedded.
fn remove_others(folder: &Path, built: &[compile::Built]) -> Result<(), String> {
    for path in compile::files(folder, "hsaco")? {
        if built.iter().all(|built| built.path != path) {
            std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn read_object(path: &Path) -> Result<CodeObject, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    CodeObject::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// What the artifacts are, for whoever loads them: one line a kernel.
fn write_manifest(folder: &Path, version: &str, kernels: &[census::Counted]) -> Result<(), String> {
    let mut text = format!("# Written by `cargo xtask plugin rocm`.\ncompiler = {version:?}\n");
    for kernel in kernels {
        text.push_str(&format!(
            "\n[[kernel]]\nname = {:?}\nsymbol = {:?}\nfile = {:?}\narch = {:?}\n",
            kernel.name, kernel.census.kernel, kernel.file, kernel.architecture,
        ));
    }
    let path = folder.join("manifest.toml");
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler, if it was installed; a failure where it must be.
    fn toolchain(root: &Path) -> Option<Toolchain> {
        let found = Toolchain::find(&target_folder(root));
        assert!(found.is_some() || std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "no compiler");
        found
    }

    #[test]
    fn o02_an_unknown_architecture_fails_and_what_is_built_is_what_was_asked_for() {
        let root = crate::workspace_root();
        let Some(toolchain) = toolchain(&root) else { return };
        let folder = tempfile::tempdir().expect("a folder");
        let source = root.join("msa-rocm/kernels/exchange.cpp");
        let build = |architecture: &str| compile::build(&toolchain, &source, architecture, folder.path());
        for unknown in ["gfx951", "gfx95", "sm_90a", ""] {
            let error = build(unknown).map(|built| built.path).expect_err("there is no such processor");
            assert!(error.contains("target") && error.contains(unknown), "{unknown}: {error}");
        }
        // Known to the compiler, and not to the sources.
        let error = build("gfx90a").map(|built| built.path).expect_err("the sources say so");
        assert!(error.contains("gfx950 or gfx942"), "{error}");
        // What nobody asked for is not embedded.
        let wanted: Vec<compile::Built> =
            ARCHITECTURES.into_iter().map(|architecture| build(architecture).expect("as above")).collect();
        remove_others(folder.path(), &wanted).expect("the folder is ours");
        // Two builds of a source have the same code, and an edit shows: the comparison can fail.
        let again = build("gfx950").expect("as above");
        assert_eq!(again.object.code_sections(), wanted[1].object.code_sections());
        let edited = folder.path().join("exchange.cpp");
        let text = std::fs::read_to_string(&source).expect("it is there").replace("sleep(8)", "sleep(9)");
        std::fs::write(
            &edited,
            text.replace("\"device.h\"", &format!("{:?}", source.with_file_name("device.h"))),
        )
        .expect("the folder is ours");
        let other = compile::build(&toolchain, &edited, "gfx950", &folder.path().join("edited"));
        assert_ne!(other.expect("it compiles").object.code_sections(), again.object.code_sections());
        let left = compile::files(folder.path(), "hsaco").expect("it is there");
        assert_eq!(left.len(), ARCHITECTURES.len());
        assert!(
            ARCHITECTURES.iter().all(|arch| left.iter().any(|path| path.to_string_lossy().contains(arch)))
        );
    }
}
