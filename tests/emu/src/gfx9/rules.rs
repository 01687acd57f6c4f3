//! What every shipped kernel must and must not contain, checked on its listing.
//!
//! A flag is a word that another GPU reads or writes while a kernel runs: a load or store at system scope.

use super::census::Census;
use super::disassemble::Line;

/// What every kernel of its kind must and must not contain.
///
/// # Errors
/// The first rule that the kernel breaks.
pub fn check(name: &str, census: &Census, listing: &[Line]) -> Result<(), String> {
    let broken = |rule: String| Err(format!("{}: {rule}", name));
    if census.scratch_bytes != 0 {
        return broken(format!("{} bytes of scratch: registers are spilled", census.scratch_bytes));
    }
    for mnemonic in required(name) {
        if census.count(mnemonic) == 0 {
            return broken(format!("no {mnemonic}"));
        }
    }
    if has_flags(name) {
        return check_flags(name, listing);
    }
    match listing.iter().find(|line| is_system(&line.text)) {
        Some(line) => broken(format!(
            "+{:#x}: `{}` is a flag, and only the exchange has flags",
            line.address, line.text
        )),
        None => Ok(()),
    }
}

/// The variant `op.formats.arch.trick` of the symbol `op_formats_arch_trick`; only the op may hold more underscores.
///
/// # Errors
/// Another form of symbol.
pub fn variant_name(symbol: &str, architecture: &str) -> Result<String, String> {
    let wrong = || format!("symbol {symbol} is not op_formats_{architecture}_trick");
    let (head, trick) = symbol.split_once(&format!("_{architecture}_")).ok_or_else(wrong)?;
    let (op, formats) = head.rsplit_once('_').ok_or_else(wrong)?;
    Ok(format!("{op}.{formats}.{architecture}.{trick}"))
}

/// True for a kernel that talks to kernels on other GPUs.
pub fn has_flags(name: &str) -> bool {
    name.starts_with("exchange.")
}

/// True for an access that goes past all caches.
fn is_system(text: &str) -> bool {
    text.ends_with("sc0 sc1")
        && ["global_load", "global_store", "global_atomic"].iter().any(|op| text.starts_with(op))
}

fn required(name: &str) -> Vec<&'static str> {
    let mut wanted = Vec::new();
    let nvfp4 = name.contains(".lut") || name.contains("kv4.");
    if nvfp4 {
        wanted.extend(["v_perm_b32", "ds_read_b64"]);
    }
    let (new, wide) = (name.contains(".gfx950."), name.contains(".q16"));
    if name.starts_with("index_score.") || name.starts_with("sparse_decode.") {
        wanted.push(match (new, wide) {
            (true, false) => "v_mfma_f32_16x16x128_f8f6f4",
            (false, false) => "v_mfma_f32_16x16x32_fp8_fp8",
            (true, true) => "v_mfma_f32_16x16x32_bf16",
            (false, true) => "v_mfma_f32_16x16x16_bf16",
        });
    }
    // P times V is a product of FP8 but for bf16 caches.
    if name.starts_with("sparse_decode.") && !name.contains("kv16.") {
        wanted.push("v_mfma_f32_16x16x32_fp8_fp8");
    }
    wanted
}

/// Every flag goes out after a write-back that was waited for, and comes in before an invalidation.
fn check_flags(name: &str, listing: &[Line]) -> Result<(), String> {
    let at = |index: usize| listing.get(index).map_or("", |line| line.text.as_str());
    let mut flags = (0, 0);
    for (index, line) in listing.iter().enumerate() {
        let (text, place) = (at(index), line.address);
        let wrong = |what: &str| Err(format!("{}+{place:#x}: {what}", name));
        if text.starts_with("global_store_dword ") && is_system(text) {
            flags.0 += 1;
            let before = (0..index).rev().map(at).take_while(|text| !text.starts_with("global_store"));
            let before: Vec<&str> = before.collect();
            let release = before.iter().position(|text| *text == "buffer_wbl2 sc0 sc1");
            let waits = |count| before.iter().take(count).any(|text| text.starts_with("s_waitcnt vmcnt(0)"));
            if !release.is_some_and(waits) {
                return wrong("a flag is stored without a release that was waited for");
            }
        }
        if text.starts_with("global_load_dword ") && is_system(text) {
            flags.1 += 1;
            let after: Vec<&str> = (index + 1..index + 4).map(at).collect();
            if !after.contains(&"s_waitcnt vmcnt(0)") || !after.contains(&"buffer_inv sc0 sc1") {
                return wrong("a flag is loaded without an acquire");
            }
        }
    }
    match flags {
        (0, _) => Err(format!("{}: no flag is stored", name)),
        (_, 0) => Err(format!("{}: no flag is loaded", name)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfx9::code_object::KernelCode;

    fn exchange(texts: &[&str]) -> Result<(), String> {
        listing_of("exchange.b128.gfx950.push", texts)
    }

    fn listing_of(name: &str, texts: &[&str]) -> Result<(), String> {
        with_scratch(name, texts, 0)
    }

    fn with_scratch(name: &str, texts: &[&str], scratch_bytes: u32) -> Result<(), String> {
        let line = |(index, text): (usize, &&str)| Line {
            address: 4 * index as u64,
            bytes: 4,
            text: (*text).to_owned(),
        };
        let listing: Vec<Line> = texts.iter().enumerate().map(line).collect();
        let kernel = KernelCode {
            name: name.replace('.', "_"),
            code: Vec::new(),
            lds_bytes: 0,
            scratch_bytes,
            argument_bytes: 0,
            vector_registers: 8,
            group_ids: [true, false, false],
            user_registers: 2,
            properties: 8,
        };
        check(name, &Census::of(&kernel, &listing), &listing)
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
        assert_eq!(exchange(&PROTOCOL), Ok(()));
        for (missing, what) in PROTOCOL.iter().enumerate() {
            let mut texts = PROTOCOL.to_vec();
            texts.remove(missing);
            assert!(exchange(&texts).is_err(), "without {what}");
        }
        let mut agent = PROTOCOL;
        agent[0] = "buffer_wbl2 sc1";
        assert!(exchange(&agent).is_err());
    }

    #[test]
    fn flags_elsewhere_are_refused() {
        let name = "select.f32.gfx950.radix";
        assert_eq!(listing_of(name, &["global_store_dword v[0:1], v2, off", "s_endpgm"]), Ok(()));
        for flag in [PROTOCOL[2], PROTOCOL[3], "global_atomic_or v[0:1], v2, off sc0 sc1"] {
            assert!(
                listing_of(name, &[flag]).is_err_and(|text| text.contains("only the exchange")),
                "{flag}"
            );
        }
    }

    #[test]
    fn every_kernel_has_the_instructions_of_its_kind_and_no_scratch() {
        let (new, old) = ("v_mfma_f32_16x16x128_f8f6f4", "v_mfma_f32_16x16x32_fp8_fp8");
        let cases: &[(&str, &[&str])] = &[
            ("index_score.q8k4.gfx950.lut", &["v_perm_b32", "ds_read_b64", new]),
            ("index_score.q8k8.gfx942.mfma", &[old]),
            ("index_score.q16k16.gfx950.mfma", &["v_mfma_f32_16x16x32_bf16"]),
            ("sparse_decode.q8kv4.gfx942.shared", &["v_perm_b32", "ds_read_b64", old]),
            ("sparse_decode.q8kv8.gfx950.mfma", &[new, old]),
            (
                "sparse_decode.q16kv4.gfx942.lut",
                &["v_perm_b32", "ds_read_b64", "v_mfma_f32_16x16x16_bf16", old],
            ),
            ("sparse_decode.q16kv16.gfx942.mfma", &["v_mfma_f32_16x16x16_bf16"]),
        ];
        for (name, texts) in cases {
            assert_eq!(listing_of(name, texts), Ok(()), "{name}");
            for (missing, text) in texts.iter().enumerate() {
                let mut others = texts.to_vec();
                others.remove(missing);
                assert_eq!(listing_of(name, &others), Err(format!("{name}: no {text}")));
            }
            assert!(with_scratch(name, texts, 4).is_err_and(|text| text.contains("spilled")), "{name}");
        }
    }

    #[test]
    fn symbols_become_variant_names() {
        let name = variant_name("index_score_q8k4_gfx950_lut", "gfx950");
        assert_eq!(name.as_deref(), Ok("index_score.q8k4.gfx950.lut"));
        assert!(variant_name("index_score_q8k4", "gfx950").is_err());
        assert!(variant_name("index_score_q8k4_gfx942_lut", "gfx950").is_err());
    }
}
