use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn options(line: &str) -> Options {
    Line::try_parse_from(std::iter::once("plan").chain(line.split_whitespace())).unwrap().options
}

fn refused(line: &str) -> String {
    let parsed = Line::try_parse_from(std::iter::once("plan").chain(line.split_whitespace()));
    match parsed {
        Ok(line) => line.options.output().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_decode_step_over_two_ranks_as_text() {
    let want = "\
decode step of 8 x 1 tokens at a context of 524,288; heads 64/4/4, tp 1, index over 2 ranks; cache fp8, index nvfp4
one layer on each of 2 GPUs, NVIDIA H200 141 GB

stage              time     bytes       rate        work          rate  bound   basis
append          1.59 us   299 KiB   192 GB/s           -             -  launch  extrapolated
gather_queries  1.82 us  8.00 KiB  4.50 GB/s           -             -  launch  extrapolated
index_score     45.7 us   144 MiB  3.31 TB/s  2.15 GFLOP  47.0 TFLOP/s  hbm     measured
select          2.38 us   256 KiB   110 GB/s           -             -  launch  measured
select_merge    2.31 us  4.00 KiB  1.77 GB/s           -             -  launch  extrapolated
sparse_decode   8.87 us  16.0 MiB  1.89 TB/s   537 MFLOP  60.5 TFLOP/s  issue   measured
total           62.7 us   161 MiB  2.69 TB/s  2.68 GFLOP  42.8 TFLOP/s

in all
60 layers              3.76 ms
workspace              1.54 MiB
cache                  1060 B a token, layer and GPU
tokens that fit a GPU  1,108,490 in 50% of its memory
parts of a request     4
exchange               12.0 KiB sent by a rank, 2 hops

ceilings
name                 value  source    how
memory              141 GB  public    NVIDIA H200 data sheet
clock             1.75 GHz  measured  1.71 to 1.80 GHz under load
HBM read         4.64 TB/s  measured  16-byte loads over 8 GB
HBM copy         4.29 TB/s  measured  cudaMemcpy, read and written
L2 to SM         9.10 TB/s  measured  bulk copies into shared memory, 16 to 40 MB
fp8 matmul    1274 TFLOP/s  measured  8192^3, 2 s back to back
bf16 matmul    675 TFLOP/s  measured  8192^3, 2 s back to back
exponentials      4.15 T/s  measured  ex2.approx.ftz.f32
launch gap         0.50 us  measured  empty kernels in a graph
hop                1.80 us  measured  1 KB, fence, flag, spin, and back, halved
links             392 GB/s  measured  peer copy over 18 NVLinks

Measured: ceilings, and stages whose prototype ran on an H200 on 2026-11-30; those are predicted within 25%.
Extrapolated: not measured in these formats or with these heads.
";
    let text = options("--requests 8 --context 512K --world 2 --cache fp8 --index nvfp4").output().unwrap();
    assert_eq!(text, want);
}

#[test]
fn machines_that_were_not_measured_say_so() {
    for device in ["b200", "gb300", "mi355x"] {
        let text = options(&format!("--device {device}")).output().unwrap();
        assert!(text.contains("Not measured: ") && !text.contains(" measured  "), "{text}");
        assert!(!options(&format!("--device {device} --json")).output().unwrap().contains("\"measured\""));
    }
}

#[test]
fn prefill_names_its_schedule_and_json_parses() {
    let json = options("--op prefill --tokens 32K --pattern random --cache fp8 --workspace-mib 4096 --json");
    let value: serde_json::Value = serde_json::from_str(&json.output().unwrap()).unwrap();
    assert_eq!(value["schedule"], "kv_outer");
    let seconds = value["stages"].as_array().unwrap().iter().map(|s| s["seconds"].as_f64().unwrap());
    assert!((seconds.sum::<f64>() / value["seconds"].as_f64().unwrap() - 1.0).abs() < 1e-12);
    assert!(options("--op prefill --tokens 32K --pattern random").output().unwrap().contains("union"));
}

#[test]
fn the_text_of_a_plan_parses_and_verifies() {
    for line in
        ["--text --requests 3 --context 1M", "--text --op prefill --tokens 10000 --device mi355x --tp 4"]
    {
        let plan: msa_core::Plan = options(line).output().unwrap().parse().unwrap();
        plan.verify().unwrap();
    }
}

#[test]
fn the_table_has_every_deployment() {
    let table = options("--table").output().unwrap();
    let rows: Vec<&str> =
        table.lines().filter(|l| l.starts_with("| NVIDIA") || l.starts_with("| AMD")).collect();
    assert_eq!(rows.len(), 15);
    assert!(rows.iter().all(|r| r.matches('|').count() == 11), "{table}");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    assert_eq!(refused("--device h100"), "device: want h200, b200, gb300, mi355x, got h100");
    for (line, known) in [
        ("--op merge", "want decode or prefill"),
        ("--cache int8", "bf16, fp8, fp8fnuz or nvfp4"),
        ("--pattern sink", "want random or drift"),
        ("--schedule hybrid", "want auto, union or kv_outer"),
        ("--heads 64/4", "want query/KV/index heads"),
        ("--heads 64/4/2", "a multiple of kv_heads = 4"),
        ("--context 4096M", "want a number of tokens"),
        ("--precision exact", "want faithful or fast"),
        ("--cache-percent 101", "101 is not in 1..=100"),
        ("--context 16M", "65536 blocks"),
        ("--world 9", "world: want 1 to 8"),
    ] {
        assert!(refused(line).contains(known), "{line}: {}", refused(line));
    }
}
