//! A builder of small valid files that tests then damage.

use std::collections::{BTreeMap, HashMap};

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::super::{InputError, InputFile, parse_input};

/// Type, shape and bytes of a tensor.
type Stored = (Dtype, Vec<usize>, Vec<u8>);

/// A file that is not written yet.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) meta: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, Stored>,
}

/// Three query rows at positions 7..10 of ten tokens; Hq 4, Hkv 1, Hi 2, D 8, Di 4, B 4, k 2, hence 3 blocks.
pub(super) fn prefill() -> Draft {
    geometry(&[("case", "small"), ("n_tokens", "10"), ("n_q_rows", "3"), ("q_start", "7")])
        .with_bf16("q", &[3, 4, 8])
        .with_bf16("k", &[10, 1, 8])
        .with_bf16("v", &[10, 1, 8])
        .with_bf16("index_q", &[3, 2, 4])
        .with_bf16("index_k", &[10, 4])
        .with_i32("block_indices", &[3, 2, 2], &[0, 1, 1, -1, 0, 2, 1, 2, 0, 2, 1, 2])
        .with_f32("block_scores", &[3, 2, 3])
        .with_f32("topk_gap", &[3, 2])
        .with_f32("out", &[2, 4, 8])
        .with_i32("out_rows", &[2], &[0, 2])
        .with_f32("lse", &[3, 4])
}

/// Two requests of 3 and 6 tokens, same layer.
pub(super) fn decode() -> Draft {
    geometry(&[("total_tokens", "9"), ("n_q_rows", "2")])
        .with_bf16("q", &[2, 4, 8])
        .with_bf16("k", &[9, 1, 8])
        .with_bf16("v", &[9, 1, 8])
        .with_bf16("index_q", &[2, 2, 4])
        .with_bf16("index_k", &[9, 4])
        .with_i32("kv_lens", &[2], &[3, 6])
        .with_i32("cu_kv_lens", &[3], &[0, 3, 9])
        .with_i32("q_pos", &[2], &[2, 5])
        .with_i32("block_indices", &[2, 2, 2], &[0, -1, 0, -1, 0, 1, 1, -1])
        .with_f32("block_scores", &[2, 2, 2])
        .with_f32("lse", &[2, 4])
}

/// Two tokens of hidden size 6 through the same layer's projections.
pub(super) fn projection() -> Draft {
    geometry(&[("n_tokens", "2"), ("hidden_size", "6")])
        .with_bf16("hidden", &[2, 6])
        .with_i32("positions", &[2], &[0, 1_048_575])
        .with_f32("inv_freq", &[2])
        .with_bf16("w_q", &[32, 6])
        .with_bf16("w_k", &[8, 6])
        .with_bf16("w_v", &[8, 6])
        .with_bf16("w_index_q", &[8, 6])
        .with_bf16("w_index_k", &[4, 6])
        .with_bf16("g_q", &[8])
        .with_bf16("g_k", &[8])
        .with_bf16("g_index_q", &[4])
        .with_bf16("g_index_k", &[4])
        .with_bf16("q_proj_bf16", &[2, 4, 8])
        .with_bf16("v_proj_bf16", &[2, 1, 8])
        .with_f32("cos_f32", &[2, 4])
}

/// The companion of a file that names none.
pub(super) fn no_companion(name: &str) -> Result<Vec<u8>, InputError> {
    panic!("asked for companion {name}")
}

fn geometry(more: &[(&str, &str)]) -> Draft {
    let layer = [
        ("head_dim", "8"),
        ("index_head_dim", "4"),
        ("block_size", "4"),
        ("topk", "2"),
        ("num_q_heads", "4"),
        ("num_kv_heads", "1"),
        ("num_index_heads", "2"),
        ("rotary_dim", "4"),
        ("rope_theta", "5000000.0"),
        ("rms_norm_eps", "1e-06"),
        ("softmax_scale", "0.5"),
        ("local_blocks", "1"),
        ("init_blocks", "0"),
    ];
    let entry = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let meta = layer.into_iter().chain(more.iter().copied()).map(entry).collect();
    Draft { meta, tensors: BTreeMap::new() }
}

impl Draft {
    /// Adds or replaces a tensor.
    pub(super) fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        self.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), bytes));
        self
    }

    /// Adds a tensor of [`sample`] values.
    pub(super) fn with_bf16(self, name: &str, shape: &[usize]) -> Self {
        let bytes = sample(shape).flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
        self.with(name, Dtype::BF16, shape, bytes)
    }

    /// Adds a tensor of [`sample`] values.
    pub(super) fn with_f32(self, name: &str, shape: &[usize]) -> Self {
        let bytes = sample(shape).flat_map(f32::to_le_bytes).collect();
        self.with(name, Dtype::F32, shape, bytes)
    }

    pub(super) fn with_i32(self, name: &str, shape: &[usize], values: &[i32]) -> Self {
        self.with(name, Dtype::I32, shape, values.iter().copied().flat_map(i32::to_le_bytes).collect())
    }

    /// Overwrites bytes of a tensor from `at`.
    pub(super) fn patch(mut self, name: &str, at: usize, bytes: &[u8]) -> Self {
        let (_, _, stored) = self.tensors.get_mut(name).unwrap();
        stored[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn without(mut self, names: &[&str]) -> Self {
        for name in names {
            self.tensors.remove(*name).unwrap();
        }
        self
    }

    pub(super) fn with_meta(mut self, key: &str, value: &str) -> Self {
        self.meta.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(super) fn without_meta(mut self, keys: &[&str]) -> Self {
        for key in keys {
            self.meta.remove(*key).unwrap();
        }
        self
    }

    /// The file's bytes, written by the safetensors crate.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let meta: HashMap<String, String> = self.meta.clone().into_iter().collect();
        safetensors::serialize(views, Some(meta)).unwrap()
    }

    pub(super) fn parse(&self) -> Result<InputFile, InputError> {
        parse_input(&self.bytes(), no_companion)
    }
}

/// Counts up from -1 in steps of 1/8, again from -1 after 31 elements; exact in bf16.
fn sample(shape: &[usize]) -> impl Iterator<Item = f32> {
    let len: usize = shape.iter().product();
    (0..len).map(|at| (at % 31) as f32 / 8.0 - 1.0)
}
