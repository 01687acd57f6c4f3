//! `msa run` on the golden files, as a user runs it: agreement, exit status, and what bad files leave behind.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Every file under a bf16 cache, and every cache format under a prefill and a decode file.
const RUNS: [(&str, &str); 8] = [
    ("m3_prefill_small", "bf16"),
    ("m3_prefill_small", "nvfp4"),
    ("m3_prefill_m3shape", "bf16"),
    ("m3_prefill_m3shape", "fp8"),
    ("m3_prefill_m3shape_rows32", "bf16"),
    ("m3_decode_batch", "bf16"),
    ("m3_decode_batch", "fp8"),
    ("m3_decode_batch", "nvfp4"),
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(format!("{name}.safetensors"))
}

fn msa(file: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_msa")).arg("run").arg(file).args(arguments).output().unwrap()
}

/// Runs with `--json` and returns the agreement's entries.
fn agreement(name: &str, arguments: &[&str]) -> Vec<Value> {
    let output = msa(&golden(name), &[arguments, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{name} {arguments:?}: {text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    report["agreement"].as_array().unwrap().clone()
}

/// The quantities of `source` (the part after the comma) must agree, without a mismatch.
fn assert_agrees(run: (&str, &str), entries: &[Value], source: &str, quantities: &[&str]) {
    for quantity in quantities {
        let wanted = format!("{quantity}, {source}");
        let entry = entries.iter().find(|e| e["quantity"] == wanted.as_str());
        let entry = entry.unwrap_or_else(|| panic!("{run:?}: no {wanted} in {entries:?}"));
        assert_eq!(entry["verdict"], "agrees", "{run:?} {entry}");
        assert_eq!(entry["mismatches"], 0, "{run:?} {entry}");
        assert!(entry["compared"].as_u64().unwrap() > 0, "{run:?} {entry}");
    }
}

#[test]
fn every_file_agrees_with_the_equations_and_a_bf16_cache_with_the_file() {
    for (name, format) in RUNS {
        let entries = agreement(name, &["--cache", format]);
        let run = (name, format);
        assert_agrees(run, &entries, "equations over the cache", &["block_scores", "out", "lse"]);
        assert_agrees(run, &entries, "rule over these scores", &["block_indices"]);
        if format == "bf16" {
            assert_agrees(run, &entries, "file", &["block_scores", "block_indices", "out", "lse"]);
        }
    }
}

#[test]
fn norm_and_rope_give_the_bits_of_the_file_in_both_roundings() {
    let entries = agreement("m3_qkv_norm_rope", &[]);
    for kind in ["q", "k", "index_q", "index_k"] {
        let bits = format!("{kind}_rope_bf16, rounding per step");
        let entry = entries.iter().find(|e| e["quantity"] == bits.as_str()).unwrap();
        assert_eq!(
            (&entry["mismatches"], &entry["largest_error"]),
            (&Value::from(0), &Value::from(0.0)),
            "{entry}"
        );
        let once = format!("{kind}_rope_f32, rounding once, unrounded");
        let entry = entries.iter().find(|e| e["quantity"] == once.as_str()).unwrap();
        assert_eq!(entry["verdict"], "agrees", "{entry}");
    }
}

/// Runs on `bytes` as a file and expects exit status 2, a message with `words`, and no output.
fn assert_refused(bytes: &[u8], words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    std::fs::write(&input, bytes).unwrap();
    let plot = folder.path().join("map.svg");
    let arguments = ["--out", output.to_str().unwrap(), "--plot", plot.to_str().unwrap()];
    let result = msa(&input, &arguments);
    let message = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_eq!(result.status.code(), Some(2), "{words}: {message}");
    assert!(message.contains(words), "want '{words}' in: {message}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["in.safetensors"], "{words}");
}

/// The small file with its header changed by `change`.
fn with_header(change: impl Fn(&mut Value)) -> Vec<u8> {
    let bytes = std::fs::read(golden("m3_decode_batch")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[8 + length..]].concat()
}

#[test]
fn bad_files_are_refused_with_status_2_and_leave_nothing() {
    let whole = std::fs::read(golden("m3_decode_batch")).unwrap();
    assert_refused(b"", "");
    assert_refused(&whole[..7], "");
    assert_refused(&whole[..whole.len() / 2], "");
    assert_refused(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "");
    assert_refused(b"\x02\0\0\0\0\0\0\0[]", "");
    assert_refused(&with_header(|h| h["q"]["dtype"] = "I32".into()), "q");
    assert_refused(&with_header(|h| h["k"]["shape"][0] = 7000.into()), "k");
    let renamed = |h: &mut Value| {
        let tensors = h.as_object_mut().unwrap();
        let tensor = tensors.remove("index_k").unwrap();
        tensors.insert("index_key".to_owned(), tensor);
    };
    assert_refused(&with_header(renamed), "'index_k'");
    assert_refused(&with_header(|h| h["__metadata__"]["topk"] = "0".into()), "topk");
    assert_refused(&with_header(|h| h["__metadata__"]["num_kv_heads"] = "-4".into()), "num_kv_heads");
}

#[test]
fn lengths_and_ids_out_of_range_are_refused() {
    let patched = |tensor: &str, index: usize, value: i32| {
        let mut bytes = std::fs::read(golden("m3_decode_batch")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let begin = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[8 + length + begin + 4 * index..][..4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    assert_refused(&patched("kv_lens", 2, -1), "kv_lens");
    assert_refused(&patched("kv_lens", 2, i32::MAX), "kv_lens");
    assert_refused(&patched("cu_kv_lens", 1, 4000), "kv_lens");
}

#[test]
fn a_missing_file_and_an_unwritable_output_are_refused() {
    let missing = msa(Path::new("/nonexistent/file.safetensors"), &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("file.safetensors"));
    let unwritable = msa(&golden("m3_prefill_m3shape"), &["--out", "/nonexistent/out.safetensors"]);
    assert_eq!(unwritable.status.code(), Some(2));
}
