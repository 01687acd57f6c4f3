//! G03 of `tests/field.toml`: odd numbers of rows, compared with the reference, and the same under the vendor's checker of
//! memory accesses where it is installed.

use std::path::PathBuf;
use std::process::Command;

use crate::pair::{ARCHITECTURES, device, plain, ready, ready_alone};

const SMALL: &str = "hq=8,hkv=2,hi=2";

#[test]
fn g03_every_odd_number_of_rows() {
    if !ready() {
        return;
    }
    for (rows, batch) in [3, 5, 7].into_iter().flat_map(|rows| [1, 2, 33].map(|batch| (rows, batch))) {
        // A token less than, as many as, and one more than multiples of 64.
        let lengths: Vec<String> =
            (0..batch).map(|i| format!("{rows}x{}", 64 * (1 + i % 5) + (i + rows) % 3 - 1)).collect();
        let lengths = format!("len=[{}]", lengths.join(","));
        plain(&format!("index_score({SMALL},iq=e4m3,ik=nvfp4,{lengths})"));
        plain(&format!("index_score({SMALL},iq=bf16,ik=bf16,{lengths})"));
        plain(&format!("sparse_decode({SMALL},q=e4m3,kv=fp8,k=2,{lengths})"));
        plain(&format!("sparse_decode({SMALL},q=e4m3,kv=nvfp4,k=2,splits=2,{lengths})"));
    }
}

/// `compute-sanitizer` of the PATH, or of the toolkit's usual folder.
fn sanitizer() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).chain(std::iter::once("/usr/local/cuda/bin".into()));
    folders.map(|folder| folder.join("compute-sanitizer")).find(|tool| tool.is_file())
}

/// Starts the test above in a process of its own under the tool. A rehearsal runs there as it does here: the tool sees no kernel.
#[test]
fn g03_every_odd_number_of_rows_under_the_sanitizer() {
    if !ready_alone() {
        return;
    }
    let Some(sanitizer) = sanitizer() else {
        assert!(std::env::var_os("MSA_REQUIRE_SANITIZER").is_none(), "no compute-sanitizer in the PATH");
        println!("skipped: no compute-sanitizer in the PATH");
        return;
    };
    // The child opens its own device; kernels are there for it to see on a card alone.
    let kernels = device(ARCHITECTURES[0], 0, 0).name().starts_with("cuda:");
    assert!(kernels || std::env::var_os("MSA_TEST_DEVICE").is_some());
    for tool in ["memcheck", "synccheck"] {
        let mut child = Command::new(&sanitizer);
        child.args(["--tool", tool, "--error-exitcode", "99"]).arg(std::env::current_exe().unwrap());
        child.args(["field_sanitizer::g03_every_odd_number_of_rows", "--exact", "--nocapture"]);
        let output = child.output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let text = text.concat();
        assert!(output.status.success() && text.contains("1 passed"), "{tool}: {}\n{text}", output.status);
        assert!(!text.contains("skipped: "), "{tool}: {text}");
        assert!(!kernels || text.contains("ERROR SUMMARY: 0 errors"), "{tool}: {text}");
        println!("{tool}: no errors");
    }
}
