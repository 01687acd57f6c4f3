//! The golden files: all of them parse, with the shapes that their documentation states.

use std::path::PathBuf;

use super::super::*;

fn golden(name: &str) -> InputFile {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    let file = read_input(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(file.ignored, [""; 0], "every tensor of {name} belongs to a stage");
    file
}

#[test]
fn prefill_with_trimmed_output_rows() {
    let file = golden("m3_prefill_small.safetensors");
    let read = file.prefill.unwrap();
    assert_eq!((read.q.shape(), read.k.shape()), (&[1536, 4, 128][..], &[1536, 2, 128][..]));
    assert_eq!((read.positions[0], read.positions[1535]), (0, 1535));
    let rows = read.expected.out_rows.unwrap();
    assert!(rows.len() == 768 && rows.iter().all(|row| matches!(row % 4, 0 | 3)));
    assert_eq!(read.expected.out.unwrap().shape(), [768, 4, 128]);
    assert_eq!(read.expected.block_scores.unwrap().shape(), [1536, 2, 12]);
    assert_eq!(file.metadata.softmax_scale as f32, 128f32.sqrt().recip());
}

#[test]
fn prefill_of_the_last_rows_and_its_companion() {
    let main = golden("m3_prefill_m3shape.safetensors").prefill.unwrap();
    assert_eq!((main.positions[0], main.positions.len(), main.q.shape()), (2553, 7, &[7, 64, 128][..]));
    let file = golden("m3_prefill_m3shape_rows32.safetensors");
    assert_eq!(file.metadata.companion_of.as_deref(), Some("m3_prefill_m3shape"));
    let rows = file.prefill.unwrap();
    assert_eq!((rows.positions[0], rows.positions.len()), (2528, 32));
    assert_eq!(rows.k.bytes(), main.k.bytes(), "k is the companion's");
    // The seven rows of the main file are the last seven here, bit for bit.
    assert_eq!(&rows.q.bytes()[25 * 64 * 128 * 2..], main.q.bytes());
    assert_eq!(&rows.expected.lse.unwrap().bytes()[25 * 64 * 4..], main.expected.lse.unwrap().bytes());
}

#[test]
fn decode_batch() {
    let read = golden("m3_decode_batch.safetensors").decode.unwrap();
    assert_eq!(read.kv_lens, [1, 127, 128, 2049, 5000]);
    assert_eq!(read.cu_kv_lens, [0, 1, 128, 256, 2305, 7305]);
    assert_eq!(read.q_pos, [0, 126, 127, 2048, 4999]);
    assert_eq!(read.expected.block_scores.unwrap().at(&[3, 0, 17]), Some(f32::NEG_INFINITY));
}

#[test]
fn projection_with_every_stage() {
    let file = golden("m3_qkv_norm_rope.safetensors");
    let read = file.projection.unwrap();
    assert!(file.prefill.is_none() && file.decode.is_none());
    assert_eq!((read.positions.len(), read.positions[63]), (64, 1_048_575));
    assert_eq!(read.hidden.as_ref().unwrap().shape(), [64, 512]);
    for branch in Branch::ALL {
        for step in branch.steps() {
            for precision in Precision::ALL {
                let staged = read.staged(branch, *step, precision).unwrap();
                assert_eq!(staged.shape(), [64, branch.heads(&file.metadata), 128]);
            }
        }
    }
    assert!(Precision::ALL.iter().all(|at| read.cos(*at).is_some() && read.sin(*at).is_some()));
    assert_eq!(read.inv_freq.unwrap().at(&[0]), Some(1.0));
}
