//! Small synthetic files, every kind of damage to them, and the real golden files.

mod damage;
mod draft;
mod fuzz;
mod golden;

use super::*;
use draft::{Draft, decode, no_companion, prefill, projection};
use safetensors::Dtype;

#[test]
fn a_whole_prefill_is_read() {
    let file = prefill().parse().unwrap();
    let read = file.prefill.unwrap();
    assert_eq!(read.positions, [7, 8, 9]);
    assert_eq!((read.q.shape(), read.index_k.shape()), (&[3, 4, 8][..], &[10, 4][..]));
    assert_eq!(read.expected.out_rows.unwrap(), [0, 2]);
    assert_eq!(read.expected.block_indices.unwrap().to_i32().unwrap()[..2], [0, 1]);
    assert!(file.decode.is_none() && file.projection.is_none() && file.ignored.is_empty());
    assert_eq!((file.metadata.softmax_scale, file.metadata.local_blocks), (0.5, 1));
}

#[test]
fn values_come_out_as_they_went_in() {
    let file = prefill().parse().unwrap();
    let k = file.prefill.unwrap().k;
    // The draft counts up in steps of 1/8 from -1, modulo 31 elements, all exact in bf16.
    assert_eq!((k.at(&[0, 0, 0]), k.at(&[1, 0, 2]), k.at(&[3, 0, 7])), (Some(-1.0), Some(0.25), Some(-1.0)));
    assert_eq!(k.to_bits16().unwrap()[..2], [0xbf80, 0xbf60]);
}

#[test]
fn what_the_metadata_leaves_out_has_defaults() {
    let draft = prefill().without_meta(&["q_start", "softmax_scale", "local_blocks", "init_blocks", "case"]);
    let file = draft.parse().unwrap();
    assert_eq!(file.prefill.unwrap().positions, [7, 8, 9], "bottom-right aligned");
    assert_eq!(file.metadata.softmax_scale, 1.0 / 8f64.sqrt());
    assert_eq!((file.metadata.local_blocks, file.metadata.init_blocks, file.metadata.case), (1, 0, None));
}

#[test]
fn expected_results_are_optional() {
    let draft = prefill().without(&["block_indices", "block_scores", "topk_gap", "out", "out_rows", "lse"]);
    let expected = draft.parse().unwrap().prefill.unwrap().expected;
    assert!(expected.block_indices.is_none() && expected.out.is_none() && expected.lse.is_none());
    let only_rows = prefill().without(&["out"]).parse().unwrap();
    assert_eq!(only_rows.ignored, ["out_rows [2] i32"], "rows of a missing output mean nothing");
}

#[test]
fn a_decode_batch_is_read() {
    let read = decode().parse().unwrap().decode.unwrap();
    assert_eq!((read.kv_lens, read.cu_kv_lens, read.q_pos), (vec![3, 6], vec![0, 3, 9], vec![2, 5]));
    let derived = decode().without(&["cu_kv_lens", "q_pos"]).parse().unwrap().decode.unwrap();
    assert_eq!((derived.cu_kv_lens, derived.q_pos), (vec![0, 3, 9], vec![2, 5]));
}

#[test]
fn a_projection_is_read_and_may_stand_beside_a_prefill() {
    let file = projection().parse().unwrap();
    let read = file.projection.unwrap();
    assert_eq!(read.positions, [0, 1_048_575]);
    assert_eq!(read.weight(Branch::IndexQ).unwrap().shape(), [8, 6]);
    assert_eq!(read.norm_weight(Branch::K).unwrap().shape(), [8]);
    assert!(read.norm_weight(Branch::V).is_none());
    assert!(read.staged(Branch::V, Step::Proj, Precision::Bf16).is_some());
    assert!(read.staged(Branch::Q, Step::Rope, Precision::F32).is_none());
    assert!(read.cos(Precision::F32).is_some() && read.sin(Precision::Bf16).is_none());
    let mut both = prefill();
    both.tensors.extend(projection().tensors);
    both.meta.extend(projection().meta);
    let file = both.without_meta(&["n_tokens"]).parse().unwrap();
    assert!(file.prefill.is_some() && file.projection.is_some());
}

#[test]
fn a_projection_without_weights_starts_at_its_projected_tensors() {
    let weights = ["hidden", "w_q", "w_k", "w_v", "w_index_q", "w_index_k"];
    let read = projection().without(&weights).parse().unwrap().projection.unwrap();
    assert!(read.hidden.is_none() && read.weight(Branch::Q).is_none());
    assert!(read.staged(Branch::Q, Step::Proj, Precision::Bf16).is_some());
}

#[test]
fn tensors_that_nobody_knows_are_listed() {
    let draft =
        prefill().with("router", Dtype::F64, &[1], vec![0; 8]).with("odd\n", Dtype::I64, &[], vec![0; 8]);
    assert_eq!(draft.parse().unwrap().ignored, ["odd\\n [] i64", "router [1] f64"]);
}

#[test]
fn missing_tensors_come_from_the_companion() {
    let own = prefill().without(&["k", "v", "index_k"]).with_meta("companion_of", "main");
    let file = parse_input(&own.bytes(), |name| {
        assert_eq!(name, "main.safetensors");
        Ok(prefill().bytes())
    });
    assert_eq!(file.unwrap().prefill.unwrap().k.rows(), 10);
}

#[test]
fn rows_of_a_companion_do_not_mix_with_rows_of_the_file() {
    let all_rows = Draft::with_f32(Draft { tensors: Default::default(), ..prefill() }, "out", &[3, 4, 8]);
    let file = parse_input(&all_rows.with_meta("companion_of", "main").bytes(), |_| Ok(prefill().bytes()));
    let expected = file.unwrap().prefill.unwrap().expected;
    assert_eq!((expected.out.unwrap().rows(), expected.out_rows), (3, None));
    assert!(expected.lse.is_some(), "q is the companion's, so its results belong to these rows");

    let own_q = prefill().without(&["k", "v", "index_k", "lse", "out", "out_rows"]);
    let file = parse_input(&own_q.with_meta("companion_of", "main").bytes(), |_| Ok(prefill().bytes()));
    let expected = file.unwrap().prefill.unwrap().expected;
    assert!(expected.lse.is_none() && expected.out.is_none() && expected.topk_gap.is_some());
}

#[test]
fn a_companion_is_read_from_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.safetensors");
    let own = prefill().without(&["k", "v", "index_k"]).with_meta("companion_of", "main.safetensors");
    std::fs::write(&path, own.bytes()).unwrap();
    let missing = read_input(&path).unwrap_err().to_string();
    assert!(missing.starts_with("companion 'main.safetensors': cannot read "), "{missing}");
    std::fs::write(folder.path().join("main.safetensors"), prefill().bytes()).unwrap();
    assert!(read_input(&path).unwrap().prefill.is_some());
}

#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = read_input(folder.path()).unwrap_err().to_string();
    assert_eq!(refusal, "file: want a regular file, got a folder");
    let device = read_input(Path::new("/dev/null")).unwrap_err().to_string();
    assert_eq!(device, "file: want a regular file, got a pipe, socket or device");
    let absent = read_input(&folder.path().join("absent")).unwrap_err().to_string();
    assert!(absent.starts_with("cannot read ") && absent.contains("absent: "), "{absent}");
}

#[test]
fn a_header_claim_is_refused_before_the_body_is_read() {
    // 2 TiB that take no room on disk: reading them would not end well.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.safetensors");
    std::fs::write(&path, (1u64 << 40).to_le_bytes()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(20 << 30).unwrap();
    let refusal = read_input(&path).unwrap_err().to_string();
    assert_eq!(refusal, "header: want at most 1048576 bytes, got 1099511627776");
    file.set_len(2 << 40).unwrap();
    let refusal = read_input(&path).unwrap_err().to_string();
    assert_eq!(refusal, "file: want at most 34359738368 bytes, got 2199023255552");
}

#[test]
fn no_companion_is_asked_for_without_a_name() {
    assert!(parse_input(&prefill().bytes(), no_companion).is_ok());
}
