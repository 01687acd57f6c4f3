//! The plugin's library: msa-rocm with its kernels embedded, and the manifest beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Builds `libmsa_rocm.so` with the code objects of `kernels` and puts it, with its manifest, into the folder above them.
///
/// # Errors
/// Cargo fails, or a file cannot be read or written.
pub(super) fn build(
    root: &Path,
    target: &Path,
    kernels: &Path,
    architectures: &[&str],
) -> Result<PathBuf, String> {
    let build = built_from(root);
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .current_dir(root)
        .args([
            "rustc",
            "-p",
            "msa-rocm",
            "--lib",
            "--release",
            "--features",
            "plugin",
            "--crate-type",
            "cdylib",
        ])
        .env("MSA_ROCM_KERNELS", absolute(root, kernels))
        .env("MSA_BUILD", &build)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !status.success() {
        return Err(format!("cargo rustc -p msa-rocm: {status}"));
    }
    let folder = kernels.parent().unwrap_or(kernels);
    let library = folder.join("libmsa_rocm.so");
    let failed = |error: std::io::Error| format!("{}: {error}", library.display());
    std::fs::copy(target.join("release").join("libmsa_rocm.so"), &library).map_err(failed)?;
    let bytes = std::fs::read(&library).map_err(failed)?;
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        "abi = {:?}\nname = \"rocm\"\nversion = {:?}\narches = {architectures:?}\nbuild = {build:?}\nsha256 = {digest:?}\n",
        abi_version(root)?,
        env!("CARGO_PKG_VERSION"),
    );
    std::fs::write(library.with_extension("toml"), text).map_err(failed)?;
    Ok(library)
}

/// The commit, or `unversioned` outside a checkout.
fn built_from(root: &Path) -> String {
    let output = Command::new("git").current_dir(root).args(["rev-parse", "--short=12", "HEAD"]).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unversioned".to_owned(),
    }
}

fn absolute(root: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { root.join(path) }
}

/// `major.minor` as the source of the ABI has it: this program does not depend on msa-core.
fn abi_version(root: &Path) -> Result<String, String> {
    let path = root.join("msa-core").join("src").join("abi").join("table.rs");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let constant = |name: &str| {
        let start = format!("pub const {name}: u32 = ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix(';'));
        value.map(str::to_owned).ok_or_else(|| format!("{}: no {name}", path.display()))
    };
    Ok(format!("{}.{}", constant("ABI_MAJOR")?, constant("ABI_MINOR")?))
}
