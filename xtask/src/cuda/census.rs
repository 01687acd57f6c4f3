//! What the compiler made of every kernel: instructions by kind, registers, stack and spills, as committed text.
//!
//! A difference means that ptxas, a flag or a source changed the machine code: someone must look before it ships.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::images::{self, Image};
use super::toolchain::{Toolchain, run};

/// Writes `<image>.<arch>.txt` beside every image.
pub(super) fn write(root: &Path, compiler: &Toolchain, images: &[Image]) -> Result<(), String> {
    let output = super::output_folder(root);
    for image in images {
        for arch in image.archs() {
            let stem = image.stem(arch);
            let (cubin, path) = (output.join(format!("{stem}.cubin")), output.join(format!("{stem}.txt")));
            if newer(&path, &cubin) {
                continue;
            }
            let resources = run(compiler.tool("cuobjdump").arg("-res-usage").arg(&cubin))?;
            let sass = run(compiler.tool("cuobjdump").arg("-sass").arg(&cubin))?;
            let text = census(&resources, &sass);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Compares the built census with the committed one and checks what must hold of any; `accept` replaces the latter.
pub(super) fn compare(root: &Path, accept: bool) -> Result<(), String> {
    let (built, committed) = (super::output_folder(root), committed_folder(root));
    let mut problems = Vec::new();
    let mut expected = Vec::new();
    for image in images::read(root)? {
        for arch in image.archs() {
            let name = format!("{}.txt", image.stem(arch));
            let path = built.join(&name);
            let new = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}: run cargo xtask plugin cuda", path.display()))?;
            problems.extend(rules(&image, arch, &new).into_iter().map(|rule| format!("{name}: {rule}")));
            let old = std::fs::read_to_string(committed.join(&name)).unwrap_or_default();
            if old != new && accept {
                std::fs::create_dir_all(&committed).map_err(|error| error.to_string())?;
                std::fs::write(committed.join(&name), &new).map_err(|error| error.to_string())?;
            } else if old != new {
                problems.push(format!("{name}: {}", first_difference(&old, &new)));
            }
            expected.push(name);
        }
    }
    problems.extend(left_over(&committed, &expected, accept));
    if problems.is_empty() {
        println!("census: {} images as committed", expected.len());
        return Ok(());
    }
    Err(format!("census differs (accept with cargo xtask census --accept):\n{}", problems.join("\n")))
}

fn committed_folder(root: &Path) -> PathBuf {
    root.join("msa-cuda/kernels/census")
}

/// Rules that hold whatever is committed: no spill, QMUL4 where NVFP4 is read on 100a and 103a and nowhere else, and
/// the product that the image is named for.
fn rules(image: &Image, arch: &str, census: &str) -> Vec<String> {
    let mut broken = Vec::new();
    if census.lines().any(|line| line.starts_with("kernel ") && !line.ends_with(" stack 0 local 0")) {
        broken.push("a kernel spills or has a stack".to_owned());
    }
    let has = |kind: &str| census.lines().any(|line| line.trim_start().starts_with(kind));
    let wants_qmul4 = matches!(arch, "100a" | "103a") && image.name.contains("k4");
    if has("QMUL4") != wants_qmul4 {
        broken.push(format!("QMUL4 {}", if wants_qmul4 { "is missing" } else { "must not be here" }));
    }
    // Hopper has two instructions for products of 16-bit operands: a warp's and a warpgroup's.
    let products: &[&str] = match (image.name.rsplit('.').next(), arch) {
        (Some("wgmma"), _) => &["QGMMA"],
        (Some("f16" | "bf16" | "mixed"), "90a") => &["HMMA", "HGMMA"],
        (Some("f16" | "bf16" | "mixed"), _) => &["HMMA"],
        _ => &[],
    };
    if !products.is_empty() && !products.iter().any(|kind| has(kind)) {
        broken.push(format!("{} is missing", products.join(" or ")));
    }
    broken
}

fn left_over(committed: &Path, expected: &[String], accept: bool) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(committed) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let extra: Vec<String> = names.filter(|name| !expected.contains(name)).collect();
    if accept {
        extra.iter().for_each(|name| _ = std::fs::remove_file(committed.join(name)));
        return Vec::new();
    }
    extra.into_iter().map(|name| format!("{name}: committed, but no such image")).collect()
}

fn first_difference(old: &str, new: &str) -> String {
    if old.is_empty() {
        return "not committed".to_owned();
    }
    let (mut old, mut new) = (old.lines(), new.lines());
    loop {
        match (old.next(), new.next()) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => return format!("committed `{}`, built `{}`", a.unwrap_or("end"), b.unwrap_or("end")),
        }
    }
}

fn newer(file: &Path, than: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    matches!((time(file), time(than)), (Some(a), Some(b)) if a >= b)
}

/// The census of one image from the disassembler's two listings.
fn census(resources: &str, sass: &str) -> String {
    let counts = count_instructions(sass);
    let mut text = String::new();
    for (kernel, usage) in usages(resources) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "kernel {kernel} {usage}");
        for (kind, count) in counts.get(&kernel).into_iter().flatten() {
            let _ = writeln!(text, "  {kind} {count}");
        }
    }
    text
}

/// ` Function NAME:` followed by ` REG:96 STACK:0 SHARED:0 LOCAL:0 ...`, in order of the names.
fn usages(resources: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut kernel = String::new();
    for line in resources.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function ") {
            kernel = name.trim_end_matches(':').to_owned();
        } else if line.starts_with("REG:") {
            let value = |key: &str| {
                line.split_whitespace().find_map(|word| word.strip_prefix(key)).unwrap_or("?").to_owned()
            };
            let usage = format!(
                "registers {} shared {} stack {} local {}",
                value("REG:"),
                value("SHARED:"),
                value("STACK:"),
                value("LOCAL:")
            );
            found.insert(std::mem::take(&mut kernel), usage);
        }
    }
    found
}

/// Instructions of every function by opcode; matrix and conversion opcodes keep their first modifiers.
fn count_instructions(sass: &str) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let mut kernel = String::new();
    for line in sass.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function : ") {
            kernel = name.to_owned();
        } else if let Some(opcode) = opcode(line) {
            *counts.entry(kernel.clone()).or_default().entry(kind(opcode)).or_default() += 1;
        }
    }
    counts
}

/// The opcode of `/*0000*/ @P0 LDC.64 R1, c[0x0][0x28] ; /* 0x... */`.
fn opcode(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("/*")?;
    let (address, rest) = rest.split_once("*/")?;
    if address.len() < 4 || !address.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut words = rest.split_whitespace();
    let first = words.next()?;
    let word = if first.starts_with('@') { words.next()? } else { first };
    word.starts_with(|c: char| c.is_ascii_uppercase()).then(|| word.trim_end_matches(';'))
}

fn kind(opcode: &str) -> String {
    let keep = match opcode.split('.').next() {
        Some("HMMA" | "QGMMA" | "HGMMA" | "F2FP" | "QMUL4" | "MUFU") => 3,
        _ => 1,
    };
    opcode.split('.').take(keep).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SASS: &str = "
		Function : f
        /*0000*/                   LDC R1, c[0x0][0x28] ;       /* 0x00000a00ff017b82 */
                                                                /* 0x000fe20000000800 */
        /*0010*/              @!P0 HMMA.16816.F32 R4, R8, R2, R4 ; /* 0x00 */
        /*0020*/                   EXIT ;
";

    #[test]
    fn instructions_are_counted_with_their_predicates_cut_off() {
        let counts = count_instructions(SASS);
        let all: Vec<_> = counts["f"].iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(all, [("EXIT", 1), ("HMMA.16816.F32", 1), ("LDC", 1)]);
    }

    #[test]
    fn a_spill_and_a_misplaced_qmul4_break_the_rules() {
        let image = Image {
            name: "index_score.q8k4.f16".to_owned(),
            source: String::new(),
            defines: Vec::new(),
            archs: None,
            kernels: Vec::new(),
        };
        let census = "kernel f registers 8 shared 0 stack 0 local 0\n  HMMA.16816.F32 1\n";
        assert_eq!(rules(&image, "90a", census), Vec::<String>::new());
        assert_eq!(rules(&image, "100a", census), ["QMUL4 is missing"]);
        let group = census.replace("HMMA.16816.F32", "HGMMA.64x8x16.F32");
        assert_eq!(rules(&image, "90a", &group), Vec::<String>::new());
        assert_eq!(rules(&image, "107a", &group), ["HMMA is missing"]);
        assert_eq!(
            rules(&image, "90a", "kernel f registers 8 stack 0 local 0\n"),
            ["HMMA or HGMMA is missing"]
        );
        let spilled = census.replace("local 0", "local 24") + "  QMUL4.E4M3x4 4\n";
        assert_eq!(rules(&image, "90a", &spilled).len(), 2);
    }

    #[test]
    fn the_first_difference_is_shown() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), "committed `b`, built `c`");
        assert_eq!(first_difference("", "a\n"), "not committed");
    }
}
