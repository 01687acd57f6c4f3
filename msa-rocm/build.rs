//! Embeds the code objects that `cargo xtask plugin rocm` compiled, if it says where they are: `MSA_ROCM_KERNELS` is the
//! folder. Without it the table of kernels is empty. No compiler is called here.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=MSA_ROCM_KERNELS");
    let mut table = String::from("&[");
    if let Some(folder) = std::env::var_os("MSA_ROCM_KERNELS") {
        println!("cargo:rerun-if-changed={}", Path::new(&folder).display());
        for path in code_objects(Path::new(&folder))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            table.push_str(&format!("({name:?}, include_bytes!({:?})),", path.display().to_string()));
        }
    }
    table.push(']');
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    Ok(std::fs::write(Path::new(&out).join("images.rs"), table)?)
}

fn code_objects(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path().canonicalize()?;
        if path.extension().is_some_and(|extension| extension == "hsaco") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
