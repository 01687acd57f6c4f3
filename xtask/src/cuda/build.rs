//! Compiles images: source to PTX and SASS, SASS to a compressed fatbin; two at a time, and only what changed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::images::Image;
use super::toolchain::{Toolchain, run};

/// Compilers that run at once.
const JOBS: usize = 2;

/// Everything is rounded where the source says so, hence no contraction.
const FLAGS: [&str; 3] = ["-std=c++17", "-O3", "-fmad=false"];

/// Builds what changed and writes `table.rs`; the report is one line.
pub(super) fn build(root: &Path, compiler: &Toolchain, images: &[Image]) -> Result<String, String> {
    let start = Instant::now();
    let output = super::output_folder(root);
    std::fs::create_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let headers = read_folder(&root.join("msa-cuda/kernels/include"))?;
    let work: Vec<(&Image, &str)> =
        images.iter().flat_map(|image| image.archs().into_iter().map(move |arch| (image, arch))).collect();
    let (next, compiled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while let Some((image, arch)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match (Job { root, compiler, output: &output, image, arch }).run(&headers) {
                        Ok(true) => _ = compiled.fetch_add(1, Ordering::Relaxed),
                        Ok(false) => {}
                        Err(error) => failures.lock().unwrap_or_else(PoisonError::into_inner).push(error),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(first) = failures.first() {
        return Err(format!("{} of {} images failed; the first: {first}", failures.len(), work.len()));
    }
    write_if_changed(&output.join("table.rs"), &table(images))?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!("{} images, {} compiled in {seconds:.1} s", work.len(), compiled.into_inner()))
}

struct Job<'a> {
    root: &'a Path,
    compiler: &'a Toolchain,
    output: &'a Path,
    image: &'a Image,
    arch: &'a str,
}

impl Job<'_> {
    /// True if the image was compiled, false if it was up to date.
    fn run(&self, headers: &str) -> Result<bool, String> {
        let source = self.root.join("msa-cuda/kernels").join(&self.image.source);
        let text = read(&source)?;
        let stamp = self.stamp(&text, headers);
        let file = |extension: &str| self.output.join(format!("{}.{extension}", self.image.stem(self.arch)));
        let current = std::fs::read_to_string(file("stamp")).is_ok_and(|old| old == stamp);
        if current && file("fatbin").is_file() && file("cubin").is_file() && file("ptx").is_file() {
            return Ok(false);
        }
        let name = self.image.stem(self.arch);
        self.compile(&source, "-ptx", &file("ptx")).map_err(|error| format!("{name}: {error}"))?;
        self.assemble(&file("ptx"), &file("cubin")).map_err(|error| format!("{name}: {error}"))?;
        self.compress(&file("cubin"), &file("fatbin")).map_err(|error| format!("{name}: {error}"))?;
        write_if_changed(&file("stamp"), &stamp)?;
        println!("compiled {name}");
        Ok(true)
    }

    /// SHA-256 of all that the result depends on.
    fn stamp(&self, source: &str, headers: &str) -> String {
        let flags = self.image.flags().join(" ");
        let version = self.compiler.version();
        let text = format!("{version}\n{}\n{flags}\n{}\n{source}\n{headers}", FLAGS.join(" "), self.arch);
        Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    fn compile(&self, source: &Path, kind: &str, to: &Path) -> Result<(), String> {
        let arch = self.arch;
        let mut command = self.compiler.tool("nvcc");
        command.args(FLAGS).args(self.image.flags()).arg(kind);
        command.arg(format!("-arch=compute_{arch}")).arg(source).arg("-o").arg(to);
        run(&mut command).map(drop)
    }

    fn assemble(&self, ptx: &Path, to: &Path) -> Result<(), String> {
        let mut command = self.compiler.tool("ptxas");
        command.arg(format!("-arch=sm_{}", self.arch)).args(["-O3", "-o"]).arg(to).arg(ptx);
        run(&mut command).map(drop)
    }

    fn compress(&self, cubin: &Path, to: &Path) -> Result<(), String> {
        let mut command = self.compiler.tool("fatbinary");
        command.arg("--64").arg("--compress-mode=size").arg(format!("--create={}", to.display()));
        command.arg(format!("--image3=kind=elf,sm={},file={}", self.arch, cubin.display()));
        run(&mut command).map(drop)
    }
}

/// The table that msa-cuda includes: images in order, each with its kernels.
fn table(images: &[Image]) -> String {
    let mut text = String::from("&[\n");
    for image in images {
        for arch in image.archs() {
            let stem = image.stem(arch);
            let _ = writeln!(text, "Image {{ name: {:?}, arch: \"sm{arch}\",", image.name);
            let _ = writeln!(
                text,
                "  bytes: include_bytes!(concat!(env!(\"MSA_CUDA_KERNELS\"), \"/{stem}.fatbin\")),"
            );
            let _ = writeln!(text, "  kernels: &[");
            for kernel in &image.kernels {
                let super::images::Kernel { symbol, threads, shared, blocks } = kernel;
                let _ = writeln!(
                    text,
                    "    Kernel {{ symbol: {symbol:?}, threads: {threads}, shared: {shared}, blocks: {blocks} }},"
                );
            }
            text.push_str("  ] },\n");
        }
    }
    text.push_str("]\n");
    text
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// All files of a folder, in order of their names.
fn read_folder(folder: &Path) -> Result<String, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn write_if_changed(path: &Path, text: &str) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
