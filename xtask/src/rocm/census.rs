//! The census of every kernel: rules that it must keep, and the committed copy that it must equal.

use std::path::Path;

use msa_emu::gfx9::census::Census;
use msa_emu::gfx9::disassemble::{Disassembler, Line};

use super::compile::Built;

/// A kernel with its census.
pub(super) struct Counted {
    /// `op.formats.arch.trick`.
    pub(super) name: String,
    pub(super) architecture: String,
    /// Name of the code object's file.
    pub(super) file: String,
    pub(super) census: Census,
    listing: Vec<Line>,
}

/// All kernels of a code object.
///
/// # Errors
/// The code cannot be disassembled, or a symbol is no variant's name.
pub(super) fn of_object(built: &Built, disassembler: &Disassembler) -> Result<Vec<Counted>, String> {
    let architecture = built.object.architecture();
    let file = built.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let count = |(symbol, kernel): (&String, _)| {
        let kernel: &msa_emu::gfx9::code_object::KernelCode = kernel;
        let listing = disassembler.listing(&kernel.code).map_err(|error| format!("{symbol}: {error}"))?;
        Ok(Counted {
            name: variant_name(symbol, architecture)?,
            architecture: architecture.to_owned(),
            file: file.clone(),
            census: Census::of(kernel, &listing),
            listing,
        })
    };
    built.object.kernels().iter().map(count).collect()
}

/// The variant `op.formats.arch.trick` of the symbol `op_formats_arch_trick`; only the op may hold more underscores.
fn variant_name(symbol: &str, architecture: &str) -> Result<String, String> {
    let wrong = || format!("symbol {symbol} is not op_formats_{architecture}_trick");
    let (head, trick) = symbol.split_once(&format!("_{architecture}_")).ok_or_else(wrong)?;
    let (op, formats) = head.rsplit_once('_').ok_or_else(wrong)?;
    Ok(format!("{op}.{formats}.{architecture}.{trick}"))
}

/// What every kernel of its kind must and must not contain.
///
/// # Errors
/// The first rule that `kernel` breaks.
pub(super) fn check_rules(kernel: &Counted) -> Result<(), String> {
    let broken = |rule: String| Err(format!("{}: {rule}", kernel.name));
    if kernel.census.scratch_bytes != 0 {
        return broken(format!("{} bytes of scratch: registers are spilled", kernel.census.scratch_bytes));
    }
    for mnemonic in required(&kernel.name) {
        if kernel.census.count(mnemonic) == 0 {
            return broken(format!("no {mnemonic}"));
        }
    }
    if kernel.name.starts_with("exchange.") { check_flags(kernel) } else { Ok(()) }
}

fn required(name: &str) -> Vec<&'static str> {
    let mut wanted = Vec::new();
    if name.contains(".lut") {
        wanted.extend(["v_perm_b32", "ds_read_b64"]);
    }
    if name.starts_with("index_score.") || name.starts_with("sparse_decode.") {
        wanted.push(match name.contains(".gfx950.") {
            true => "v_mfma_f32_16x16x128_f8f6f4",
            false => "v_mfma_f32_16x16x32_fp8_fp8",
        });
    }
    wanted
}

/// Every flag goes out after a write-back that was waited for, and comes in before an invalidation.
fn check_flags(kernel: &Counted) -> Result<(), String> {
    let at = |index: usize| kernel.listing.get(index).map_or("", |line| line.text.as_str());
    let system = |text: &str| text.ends_with("sc0 sc1");
    let mut flags = (0, 0);
    for index in 0..kernel.listing.len() {
        let (text, place) = (at(index), kernel.listing[index].address);
        let wrong = |what: &str| Err(format!("{}+{place:#x}: {what}", kernel.name));
        if text.starts_with("global_store_dword ") && system(text) {
            flags.0 += 1;
            let before = (0..index).rev().map(at).take_while(|text| !text.starts_with("global_store"));
            let before: Vec<&str> = before.collect();
            let release = before.iter().position(|text| *text == "buffer_wbl2 sc0 sc1");
            let waits = |count| before.iter().take(count).any(|text| text.starts_with("s_waitcnt vmcnt(0)"));
            if !release.is_some_and(waits) {
                return wrong("a flag is stored without a release that was waited for");
            }
        }
        if text.starts_with("global_load_dword ") && system(text) {
            flags.1 += 1;
            let after: Vec<&str> = (index + 1..index + 4).map(at).collect();
            if !after.contains(&"s_waitcnt vmcnt(0)") || !after.contains(&"buffer_inv sc0 sc1") {
                return wrong("a flag is loaded without an acquire");
            }
        }
    }
    match flags {
        (0, _) => Err(format!("{}: no flag is stored", kernel.name)),
        (_, 0) => Err(format!("{}: no flag is loaded", kernel.name)),
        _ => Ok(()),
    }
}

/// Compares with the files of `folder`, or replaces them.
///
/// # Errors
/// The kernels that differ and how to accept them; files that belong to no kernel.
pub(super) fn compare(kernels: &[Counted], folder: &Path, accept: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut differing = Vec::new();
    let mut stale: Vec<String> = std::fs::read_dir(folder)
        .map_err(failed)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    for kernel in kernels {
        let file = format!("{}.txt", kernel.name);
        stale.retain(|name| *name != file);
        let (path, text) = (folder.join(&file), kernel.census.to_string());
        if std::fs::read_to_string(&path).is_ok_and(|committed| committed == text) {
            continue;
        }
        if accept {
            std::fs::write(&path, text).map_err(failed)?;
        } else {
            differing.push(kernel.name.clone());
        }
    }
    if accept {
        return stale.iter().try_for_each(|name| std::fs::remove_file(folder.join(name))).map_err(failed);
    }
    differing.extend(stale);
    if differing.is_empty() {
        return Ok(());
    }
    let names = differing.join(", ");
    Err(format!("the census differs: {names}; `cargo xtask plugin rocm --accept` writes what was found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(texts: &[&str]) -> Counted {
        let line = |(index, text): (usize, &&str)| Line {
            address: 4 * index as u64,
            bytes: 4,
            text: (*text).to_owned(),
        };
        let listing: Vec<Line> = texts.iter().enumerate().map(line).collect();
        let kernel = msa_emu::gfx9::code_object::KernelCode {
            name: "exchange_b128_gfx950_push".to_owned(),
            code: Vec::new(),
            lds_bytes: 0,
            scratch_bytes: 0,
            argument_bytes: 0,
            vector_registers: 8,
            group_ids: [true, false, false],
            user_registers: 2,
            properties: 8,
        };
        Counted {
            name: "exchange.b128.gfx950.push".to_owned(),
            architecture: "gfx950".to_owned(),
            file: String::new(),
            census: Census::of(&kernel, &listing),
            listing,
        }
    }

    const PROTOCOL: [&str; 6] = [
        "buffer_wbl2 sc0 sc1",
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "global_store_dword v[0:1], v2, off sc0 sc1",
        "global_load_dword v3, v[4:5], off sc0 sc1",
        "s_waitcnt vmcnt(0)",
        "buffer_inv sc0 sc1",
    ];

    #[test]
    fn flags_need_a_release_before_and_an_acquire_after() {
        assert_eq!(check_rules(&exchange(&PROTOCOL)), Ok(()));
        for missing in 0..PROTOCOL.len() {
            let mut texts = PROTOCOL.to_vec();
            texts.remove(missing);
            assert!(check_rules(&exchange(&texts)).is_err(), "without {}", PROTOCOL[missing]);
        }
        let mut agent = PROTOCOL;
        agent[0] = "buffer_wbl2 sc1";
        assert!(check_rules(&exchange(&agent)).is_err());
    }

    #[test]
    fn symbols_become_variant_names() {
        let name = variant_name("index_score_q8k4_gfx950_lut", "gfx950");
        assert_eq!(name.as_deref(), Ok("index_score.q8k4.gfx950.lut"));
        assert!(variant_name("index_score_q8k4", "gfx950").is_err());
    }
}
