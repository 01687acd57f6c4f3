//! Which instructions the checks execute: every shipped kernel, and nearly all of each.

use msa_emu::gfx9::Kernel;

use crate::rig::{ARCHITECTURES, kernel};

/// Every shipped kernel as (op, formats, trick).
const KERNELS: [(&str, &str, &str); 26] = [
    ("append", "bf16", "row"),
    ("append", "fp8", "row"),
    ("append", "nvfp4", "row"),
    ("index_score", "q8k8", "mfma"),
    ("index_score", "q8k4", "lut"),
    ("index_score", "q16k8", "mfma"),
    ("index_score", "q16k4", "lut"),
    ("index_score", "q16k16", "mfma"),
    ("select", "f32", "radix"),
    ("candidate_keys", "f32", "radix"),
    ("exchange", "b128", "push"),
    ("select_merge", "u64", "count"),
    ("sparse_decode", "q8kv8", "mfma"),
    ("sparse_decode", "q8kv4", "lut"),
    ("sparse_decode", "q16kv8", "mfma"),
    ("sparse_decode", "q16kv4", "lut"),
    ("sparse_decode", "q16kv16", "mfma"),
    ("share_pages", "i32", "sort"),
    ("sparse_decode", "q8kv8", "shared"),
    ("sparse_decode", "q8kv4", "shared"),
    ("sparse_decode", "q16kv8", "shared"),
    ("sparse_decode", "q16kv4", "shared"),
    ("sparse_decode", "q16kv16", "shared"),
    ("merge", "f32", "lse"),
    ("validate", "i32", "check"),
    ("validate", "i32", "gate"),
];

/// Instructions of a kernel that no check need execute, of a hundred.
const LARGEST_GAP: usize = 4;

fn gap(kernel: &Kernel) -> Option<String> {
    let missed = kernel.not_executed();
    let allowed = kernel.instructions() * LARGEST_GAP / 100;
    if missed.len() <= allowed {
        return None;
    }
    let lines: Vec<String> = missed.iter().map(|(address, text)| format!("  {address:#x} {text}")).collect();
    Some(format!(
        "{}: {} of {}\n{}",
        kernel.code().name,
        missed.len(),
        kernel.instructions(),
        lines.join("\n")
    ))
}

#[test]
fn the_checks_execute_every_kernel_and_nearly_every_instruction() {
    crate::append::all();
    crate::index_score::all();
    crate::sparse_decode::all();
    crate::shared_pages::all();
    crate::select::all();
    crate::select::candidate_keys_are_the_largest_of_a_rank();
    crate::select_merge::all();
    crate::context_parallel::all();
    crate::context_parallel::a_rank_that_does_not_arrive_is_named_and_nobody_hangs();
    crate::merge::all();
    crate::validate::all();
    let kernels = ARCHITECTURES.iter().flat_map(|(architecture, _)| {
        KERNELS.iter().filter_map(move |(op, formats, trick)| kernel(op, formats, architecture, trick))
    });
    let gaps: Vec<String> = kernels.filter_map(|kernel| gap(&kernel)).collect();
    assert!(gaps.is_empty(), "not executed:\n{}", gaps.join("\n"));
}
