//! Says whether kernels are embedded: `MSA_CUDA_KERNELS` names the folder that `cargo xtask plugin cuda` filled. Nothing
//! is compiled here.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(msa_cuda_kernels)");
    println!("cargo::rerun-if-env-changed=MSA_CUDA_KERNELS");
    if let Some(folder) = std::env::var_os("MSA_CUDA_KERNELS") {
        let table = std::path::Path::new(&folder).join("table.rs");
        println!("cargo::rerun-if-changed={}", table.display());
        println!("cargo::rustc-cfg=msa_cuda_kernels");
    }
}
