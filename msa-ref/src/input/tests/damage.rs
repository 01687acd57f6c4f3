//! One row for each kind of damage, with the message that a person reads.

use safetensors::Dtype;

use super::super::*;
use super::draft::{Draft, decode, no_companion, prefill, projection};

fn refusal(draft: &Draft) -> String {
    draft.parse().expect_err("a damaged file was accepted").to_string()
}

fn check(rows: Vec<(Draft, &str)>) {
    for (draft, message) in rows {
        assert_eq!(refusal(&draft), message);
    }
}

#[test]
fn shapes_types_and_missing_tensors() {
    check(vec![
        (
            prefill().with_f32("k", &[10, 1, 4]),
            "tensor 'k': want shape [tokens, 1, 8] bf16, got [10, 1, 4] f32",
        ),
        (prefill().with_bf16("v", &[9, 1, 8]), "tensor 'v': want shape [10, 1, 8] bf16, got [9, 1, 8] bf16"),
        (prefill().with_bf16("q", &[3, 32]), "tensor 'q': want shape [rows, 4, 8] bf16, got [3, 32] bf16"),
        (
            prefill().with_bf16("q", &[0, 4, 8]),
            "tensor 'q': want shape [rows, 4, 8] bf16, got [0, 4, 8] bf16",
        ),
        (
            prefill().with("q", Dtype::F16, &[3, 4, 8], vec![0; 192]),
            "tensor 'q': want shape [rows, 4, 8] bf16, got [3, 4, 8] f16",
        ),
        (prefill().without(&["index_k"]), "tensor 'index_k': want shape [10, 4] bf16, got no such tensor"),
        (
            prefill().with("lse", Dtype::F64, &[3, 4], vec![0; 96]),
            "tensor 'lse': want shape [3, 4] f32, got [3, 4] f64",
        ),
        (
            prefill().without(&["out_rows"]),
            "tensor 'out': want shape [3, 4, 8] f32 or bf16 or f16, got [2, 4, 8] f32",
        ),
        (
            prefill().with_f32("block_scores", &[3, 2, 4]),
            "tensor 'block_scores': want shape [3, 2, 3] f32, got [3, 2, 4] f32",
        ),
        (decode().without(&["kv_lens"]), "tensor 'kv_lens': want shape [2] i32, got no such tensor"),
        (projection().without(&["w_v"]), "tensor 'w_v': want shape [8, 6] bf16, got no such tensor"),
        (projection().without(&["g_index_k"]), "tensor 'g_index_k': want shape [4] bf16, got no such tensor"),
        (
            projection().without(&["positions"]),
            "tensor 'positions': want shape [tokens] i32, got no such tensor",
        ),
        (
            projection().without(&["hidden", "q_proj_bf16"]),
            "tensor 'hidden': want shape [2, hidden] bf16, or q_proj_bf16 and the other projected tensors, got no \
             such tensor",
        ),
        (
            prefill().with_bf16("q", &[3, 4, 8, 1, 1, 1, 1, 1, 1, 1]),
            "tensor 'q': want shape [rows, 4, 8] bf16, got [3, 4, 8, 1, 1, 1, 1, 1, ... 10 axes] bf16",
        ),
    ]);
}

#[test]
fn values_of_inputs() {
    check(vec![
        (prefill().patch("k", 22, &[0xc0, 0x7f]), "tensor 'k': want finite values, got NaN at [1, 0, 3]"),
        (
            prefill().patch("index_q", 46, &[0x80, 0xff]),
            "tensor 'index_q': want finite values, got -inf at [2, 1, 3]",
        ),
        (projection().patch("w_k", 0, &[0x80, 0x7f]), "tensor 'w_k': want finite values, got inf at [0, 0]"),
        (
            projection().with_i32("positions", &[2], &[0, -1]),
            "tensor 'positions': want positions from 0 to 16777216, got -1 at [1]",
        ),
        (
            projection().with_i32("positions", &[2], &[16_777_217, 0]),
            "tensor 'positions': want positions from 0 to 16777216, got 16777217 at [0]",
        ),
        (
            decode().with_i32("kv_lens", &[2], &[-3, 12]),
            "tensor 'kv_lens': want lengths of at least 1, got -3 at [0]",
        ),
        (
            decode().with_i32("kv_lens", &[2], &[9, 0]),
            "tensor 'kv_lens': want lengths of at least 1, got 0 at [1]",
        ),
        (
            decode().with_i32("kv_lens", &[2], &[i32::MAX, i32::MAX]),
            "tensor 'kv_lens': want a sum of 9, the rows of 'k', got 4294967294",
        ),
        (
            decode().with_i32("kv_lens", &[2], &[3, 5]),
            "tensor 'kv_lens': want a sum of 9, the rows of 'k', got 8",
        ),
        (
            decode().with_i32("cu_kv_lens", &[3], &[0, 10, 9]),
            "tensor 'cu_kv_lens': want ascending offsets, got 9 at [2]",
        ),
        (
            decode().with_i32("cu_kv_lens", &[3], &[0, 4, 9]),
            "tensor 'cu_kv_lens': want the running sum of kv_lens, 3, got 4 at [1]",
        ),
        (
            decode().with_i32("cu_kv_lens", &[3], &[-1, 3, 9]),
            "tensor 'cu_kv_lens': want the running sum of kv_lens, 0, got -1 at [0]",
        ),
        (
            decode().with_i32("q_pos", &[2], &[2, 6]),
            "tensor 'q_pos': want a position from 0 to 5, got 6 at [1]",
        ),
        (
            decode().with_i32("q_pos", &[2], &[-1, 5]),
            "tensor 'q_pos': want a position from 0 to 2, got -1 at [0]",
        ),
        (
            prefill()
                .with_bf16("q", &[11, 4, 8])
                .with_bf16("index_q", &[11, 2, 4])
                .without_meta(&["n_q_rows"]),
            "tensor 'q': want at most the 10 rows of 'k', got 11",
        ),
    ]);
}

#[test]
fn values_of_expected_results() {
    let ids = |list: &[i32; 12]| prefill().with_i32("block_indices", &[3, 2, 2], list);
    check(vec![
        (
            ids(&[0, 1, 1, -1, 0, 3, 1, 2, 0, 2, 1, 2]),
            "tensor 'block_indices': want block ids from -1 to the row's own block 2, got 3 at [1, 0, 1]",
        ),
        (
            ids(&[0, 2, 1, -1, 0, 2, 1, 2, 0, 2, 1, 2]),
            "tensor 'block_indices': want block ids from -1 to the row's own block 1, got 2 at [0, 0, 1]",
        ),
        (
            ids(&[0, 1, 1, -2, 0, 2, 1, 2, 0, 2, 1, 2]),
            "tensor 'block_indices': want block ids from -1 to the row's own block 1, got -2 at [0, 1, 1]",
        ),
        (
            ids(&[0, 1, 1, -1, 0, 2, 1, 2, 0, 2, 2, 2]),
            "tensor 'block_indices': want every block once in a list, got 2 again at [2, 1, 1]",
        ),
        (
            prefill().with_i32("out_rows", &[2], &[0, 3]),
            "tensor 'out_rows': want ascending rows from 0 to 2, got 3 at [1]",
        ),
        (
            prefill().with_i32("out_rows", &[2], &[1, 1]),
            "tensor 'out_rows': want ascending rows from 0 to 2, got 1 at [1]",
        ),
        (
            prefill().patch("block_scores", 8, &f32::INFINITY.to_le_bytes()),
            "tensor 'block_scores': want finite values or -inf, got inf at [0, 0, 2]",
        ),
        (
            prefill().patch("topk_gap", 4, &f32::NAN.to_le_bytes()),
            "tensor 'topk_gap': want no NaN, got NaN at [0, 1]",
        ),
        (
            prefill().patch("out", 0, &f32::NEG_INFINITY.to_le_bytes()),
            "tensor 'out': want finite values, got -inf at [0, 0, 0]",
        ),
    ]);
    let infinite = prefill().patch("block_scores", 8, &f32::NEG_INFINITY.to_le_bytes()).patch(
        "topk_gap",
        4,
        &f32::INFINITY.to_le_bytes(),
    );
    assert!(infinite.parse().is_ok(), "these are the values of rows that see or drop nothing");
}

#[test]
fn metadata() {
    let whole = "a whole number from 1 to 65536";
    let long = "9".repeat(200);
    check(vec![
        (prefill().without_meta(&["topk"]), &format!("metadata 'topk': want {whole}, got no such entry")),
        (prefill().with_meta("topk", "0"), &format!("metadata 'topk': want {whole}, got \"0\"")),
        (prefill().with_meta("head_dim", "-8"), &format!("metadata 'head_dim': want {whole}, got \"-8\"")),
        (
            prefill().with_meta("block_size", &long),
            &format!("metadata 'block_size': want {whole}, got \"{}...\"", &long[..60]),
        ),
        (
            prefill().with_meta("softmax_scale", "NaN"),
            "metadata 'softmax_scale': want a finite number above 0, got \"NaN\"",
        ),
        (
            prefill().with_meta("rms_norm_eps", "x\u{1b}[31m"),
            "metadata 'rms_norm_eps': want a finite number above 0, got \"x\\u{1b}[31m\"",
        ),
        (
            prefill().with_meta("num_index_heads", "3"),
            "metadata 'num_index_heads': want a divisor of num_q_heads = 4, got 3",
        ),
        (
            prefill().with_meta("num_kv_heads", "4"),
            "metadata 'num_index_heads': want a multiple of num_kv_heads = 4, got 2",
        ),
        (
            prefill().with_meta("init_blocks", "2"),
            "metadata 'topk': want at least init_blocks + local_blocks = 3, got 2",
        ),
        (
            prefill().with_meta("rotary_dim", "6"),
            "metadata 'rotary_dim': want an even number up to the head dim 4, got 6",
        ),
        (
            prefill().with_meta("q_start", "8"),
            "metadata 'q_start': want at most 7, so that 3 rows end within 10 tokens, got 8",
        ),
        (prefill().with_meta("n_tokens", "11"), "metadata 'n_tokens': want 10, the tokens of 'k', got 11"),
        (decode().with_meta("total_tokens", "8"), "metadata 'total_tokens': want 9, the rows of 'k', got 8"),
        (
            projection().with_meta("hidden_size", "7"),
            "metadata 'hidden_size': want 6, the width of 'hidden', got 7",
        ),
        (
            projection().without_meta(&["rms_norm_eps"]),
            "metadata 'rms_norm_eps': want a number, for the norm and RoPE of a projection, got no such entry",
        ),
    ]);
}

#[test]
fn companions() {
    let refused = |named: &str| refusal(&prefill().with_meta("companion_of", named));
    let want = "metadata 'companion_of': want a plain file name of letters, digits, '_', '-' and '.', got ";
    for named in ["", ".", "..", "../m3", "/etc/passwd", "a/b", "a\\b", "c:x", "a..b", ".hidden", "a\0b"] {
        assert_eq!(refused(named), format!("{want}\"{}\"", named.escape_debug()));
    }
    let bytes = prefill().with_meta("companion_of", "other").bytes();
    let of = |companion: Vec<u8>| parse_input(&bytes, |_| Ok(companion)).unwrap_err().to_string();
    assert_eq!(
        of(prefill().with_meta("topk", "4").bytes()),
        "companion 'other.safetensors': metadata 'topk': want \"2\", as in the file that names this one, got \"4\""
    );
    assert_eq!(of(vec![1, 2]), "companion 'other.safetensors': file: want at least 8 bytes, got 2");
}

#[test]
fn no_stage() {
    let names = ["q", "k", "v", "index_q", "index_k"];
    let rest =
        prefill().without(&names).without(&["block_indices", "block_scores", "topk_gap", "lse", "out_rows"]);
    assert_eq!(
        refusal(&rest),
        "file: want the tensors of an attention step (q, k, v, index_q, index_k) or of a projection (hidden, g_q, \
         ...), got out [2, 4, 8] f32"
    );
    assert!(refusal(&rest.without(&["out"])).ends_with(", got no tensor"));
}

/// A file of this header text and `body` zero bytes.
fn raw(header: &str, body: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + body, 0);
    bytes
}

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}")
}

#[test]
fn headers() {
    let k = |dtype, shape, offsets| format!("{{{}}}", entry("k", dtype, shape, offsets));
    let two = |a, b| format!("{{{},{}}}", entry("k", "U8", "[4]", a), entry("v", "U8", "[4]", b));
    let max = "[18446744073709551615]";
    let rows: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "file: want at least 8 bytes, got 0"),
        (vec![1, 0, 0], "file: want at least 8 bytes, got 3"),
        (vec![255; 40], "header: want at most 1048576 bytes, got 18446744073709551615"),
        (
            [&100u64.to_le_bytes()[..], b"{}"].concat(),
            "header: want at most the 2 bytes that follow its length, got 100",
        ),
        (
            raw(&k("U8", "[4]", "[0,5]"), 4),
            "tensor 'k': want data within the 4 bytes of the file's body, got bytes 0..5",
        ),
        (raw(&k("U8", "[3]", "[0,4]"), 4), "tensor 'k': want 3 bytes for shape [3] u8, got bytes 0..4"),
        (raw(&k("U8", "[4]", "[4,0]"), 4), "tensor 'k': want 4 bytes for shape [4] u8, got bytes 4..0"),
        (
            raw(&k("BF16", "[4294967296,4294967296]", "[0,4]"), 4),
            "tensor 'k': want a size below 2^61 bytes for shape [4294967296, 4294967296] bf16, got bytes 0..4",
        ),
        (
            raw(&k("U8", max, "[0,18446744073709551615]"), 4),
            "tensor 'k': want data within the 4 bytes of the file's body, got bytes 0..18446744073709551615",
        ),
        (
            raw(&two("[0,4]", "[2,6]"), 8),
            "tensor 'v': want data that begin where the tensor before them ends, got bytes 2..6",
        ),
        (
            raw(&two("[0,4]", "[5,9]"), 9),
            "tensor 'v': want data that begin where the tensor before them ends, got bytes 5..9",
        ),
        (raw(&two("[0,4]", "[4,8]"), 9), "header: want tensors that cover the file's body of 9 bytes, got 8"),
    ];
    for (bytes, message) in rows {
        assert_eq!(parse_input(&bytes, no_companion).unwrap_err().to_string(), message);
    }
}

#[test]
fn headers_that_are_not_in_the_safetensors_layout() {
    let texts = [
        String::new(),
        "[]".to_owned(),
        "{\"k\":3}".to_owned(),
        "{\"__metadata__\":{\"topk\":4}}".to_owned(),
        format!("{{{}}}", entry("k", "X3", "[4]", "[0,4]")),
        format!("{{{}}}", entry("k", "U8", "[-4]", "[0,4]")),
        format!("{{{}}}", entry("k", "U8", "[99999999999999999999]", "[0,4]")),
        format!("{{\"k\":{}", "[".repeat(50_000)),
    ];
    for text in texts {
        let refusal = parse_input(&raw(&text, 4), no_companion).unwrap_err().to_string();
        assert!(refusal.starts_with("header: want a safetensors header in JSON, got "), "{refusal}");
    }
    let shouting = format!("{{{}}}", entry("k", &"\\u001b[2J".repeat(1000), "[4]", "[0,4]"));
    let refusal = parse_input(&raw(&shouting, 4), no_companion).unwrap_err().to_string();
    assert!(refusal.len() < 400 + 200 * "u{1b}".len() && !refusal.contains('\u{1b}'), "{refusal}");
    let not_utf8 = [&4u64.to_le_bytes()[..], &[b'{', 0xff, 0xff, b'}']].concat();
    assert!(parse_input(&not_utf8, no_companion).is_err());
}
