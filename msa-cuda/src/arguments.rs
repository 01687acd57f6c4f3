//! Kernel arguments: the twins of `kernels/include/arguments.cuh`.

use msa_core::cache;
use msa_core::tensor::DType;

/// One component of a paged cache.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) page_stride: u64,
    pub(crate) head_stride: u64,
    pub(crate) token_stride: u64,
}

impl From<cache::View> for View {
    fn from(view: cache::View) -> Self {
        let cache::View { address, page_stride, head_stride, token_stride } = view;
        Self { address, page_stride, head_stride, token_stride }
    }
}

/// The device-resident description of a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Batch {
    pub(crate) query_offsets: u64,
    pub(crate) kv_lengths: u64,
    pub(crate) positions: u64,
    pub(crate) block_table: u64,
    pub(crate) bounds: u64,
    pub(crate) status: u64,
    pub(crate) table_stride: u64,
    pub(crate) pages: u64,
    pub(crate) null_page: i32,
    /// Status words of the run in its first kernel, else 0.
    pub(crate) own_status: u32,
    pub(crate) table_width: u32,
    pub(crate) requests: u32,
    pub(crate) rows: u32,
    pub(crate) max_query: u32,
}

/// Arguments of `index_score`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IndexArguments {
    pub(crate) batch: Batch,
    pub(crate) key: View,
    pub(crate) scale: View,
    pub(crate) query: u64,
    pub(crate) query_row: u64,
    pub(crate) query_head: u64,
    pub(crate) scores: u64,
    pub(crate) scores_row: u64,
    pub(crate) scores_head: u64,
    pub(crate) query_factor: u64,
    pub(crate) key_factor: u64,
    pub(crate) blocks: u32,
    pub(crate) heads: u32,
    pub(crate) query_is_e4m3: u32,
    pub(crate) exact: u32,
    pub(crate) one: u32,
    /// Ranks, and from bit 16 on the number of this one.
    pub(crate) ranks: u32,
}

/// Arguments of `select`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SelectArguments {
    pub(crate) batch: Batch,
    pub(crate) scores: u64,
    pub(crate) scores_row: u64,
    pub(crate) scores_head: u64,
    pub(crate) indices: u64,
    pub(crate) indices_row: u64,
    pub(crate) indices_list: u64,
    pub(crate) blocks: u32,
    pub(crate) heads: u32,
    pub(crate) lists: u32,
    pub(crate) k: u32,
    pub(crate) init_blocks: u32,
    pub(crate) local_blocks: u32,
    pub(crate) init_first: u32,
    pub(crate) nan_highest: u32,
    pub(crate) score_order: u32,
    /// Lists that the bounds of the plan allow.
    pub(crate) all_lists: u32,
    /// Blocks of threads that share a list.
    pub(crate) ranks: u32,
    pub(crate) pad: u32,
}

/// Scores that a list of `sparse_decode` is selected from, and how; `scores` is 0 where the lists are given.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListSource {
    pub(crate) scores: u64,
    pub(crate) scores_row: u64,
    pub(crate) scores_list: u64,
    pub(crate) blocks: u32,
    pub(crate) init_blocks: u32,
    pub(crate) local_blocks: u32,
    pub(crate) pad: u32,
}

/// Arguments of `sparse_decode` and `combine_parts`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DecodeArguments {
    pub(crate) batch: Batch,
    pub(crate) key: View,
    pub(crate) value: View,
    pub(crate) key_scale: View,
    pub(crate) value_scale: View,
    pub(crate) query: u64,
    pub(crate) query_row: u64,
    pub(crate) query_head: u64,
    pub(crate) output: u64,
    pub(crate) output_row: u64,
    pub(crate) output_head: u64,
    pub(crate) lse: u64,
    pub(crate) lse_row: u64,
    pub(crate) lse_head: u64,
    pub(crate) indices: u64,
    pub(crate) indices_row: u64,
    pub(crate) indices_list: u64,
    pub(crate) source: ListSource,
    pub(crate) parts: u64,
    pub(crate) query_factor: u64,
    pub(crate) key_factor: u64,
    pub(crate) value_factor: u64,
    pub(crate) partial_outputs: u64,
    pub(crate) partial_states: u64,
    pub(crate) softmax_scale: f32,
    pub(crate) k: u32,
    pub(crate) groups: u32,
    pub(crate) group_heads: u32,
    pub(crate) heads_per_kv: u32,
    pub(crate) lists: u32,
    pub(crate) splits: u32,
    pub(crate) query_is_e4m3: u32,
    pub(crate) output_type: u32,
    pub(crate) lse_base_two: u32,
    pub(crate) v_scale_linear: u32,
    pub(crate) one: u32,
    pub(crate) combine_in_workspace: u32,
    pub(crate) items: u32,
}

/// Arguments of `clear_status`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StatusArguments {
    pub(crate) status: u64,
    pub(crate) words: u32,
    pub(crate) pad: u32,
}

/// Arguments of `merge`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MergeArguments {
    pub(crate) outputs: u64,
    pub(crate) outputs_state: u64,
    pub(crate) outputs_row: u64,
    pub(crate) outputs_head: u64,
    pub(crate) lses: u64,
    pub(crate) lses_state: u64,
    pub(crate) lses_row: u64,
    pub(crate) sums: u64,
    pub(crate) sums_state: u64,
    pub(crate) sums_row: u64,
    pub(crate) output: u64,
    pub(crate) output_row: u64,
    pub(crate) output_head: u64,
    pub(crate) lse: u64,
    pub(crate) lse_row: u64,
    pub(crate) status: u64,
    pub(crate) rows: u32,
    pub(crate) heads: u32,
    pub(crate) channels: u32,
    pub(crate) states: u32,
    pub(crate) partial_is_bf16: u32,
    pub(crate) output_type: u32,
    pub(crate) base_two: u32,
    pub(crate) pad: u32,
}

/// Arguments of `select_merge`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SelectMergeArguments {
    pub(crate) keys: u64,
    pub(crate) keys_rank: u64,
    pub(crate) keys_row: u64,
    pub(crate) keys_head: u64,
    pub(crate) indices: u64,
    pub(crate) indices_row: u64,
    pub(crate) indices_list: u64,
    pub(crate) status: u64,
    pub(crate) rows: u32,
    pub(crate) heads: u32,
    pub(crate) lists: u32,
    pub(crate) world: u32,
    pub(crate) k: u32,
    pub(crate) score_order: u32,
}

/// Most ranks that share the pages of an index cache.
pub(crate) const MAX_WORLD: usize = msa_core::plan::PlanOptions::MAX_WORLD as usize;

/// Arguments of `exchange_keys` and `candidate_keys`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RankKeysArguments {
    pub(crate) batch: Batch,
    pub(crate) scores: u64,
    pub(crate) scores_row: u64,
    pub(crate) scores_head: u64,
    pub(crate) indices: u64,
    pub(crate) indices_row: u64,
    pub(crate) indices_list: u64,
    pub(crate) keys: u64,
    pub(crate) inboxes: [u64; MAX_WORLD],
    pub(crate) epochs: u64,
    pub(crate) parity_keys: u64,
    pub(crate) rank_keys: u64,
    pub(crate) columns: u32,
    pub(crate) heads: u32,
    pub(crate) lists: u32,
    pub(crate) k: u32,
    pub(crate) init_blocks: u32,
    pub(crate) local_blocks: u32,
    pub(crate) init_first: u32,
    pub(crate) nan_highest: u32,
    pub(crate) score_order: u32,
    pub(crate) world: u32,
    pub(crate) rank: u32,
    pub(crate) spins: u32,
    pub(crate) first_list: u32,
    pub(crate) end_list: u32,
    pub(crate) holds_successor: u32,
    pub(crate) pad: u32,
}

/// Arguments of `gather_queries`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GatherArguments {
    pub(crate) own: u64,
    pub(crate) own_row: u64,
    pub(crate) own_head: u64,
    pub(crate) queries: u64,
    pub(crate) inboxes: [u64; MAX_WORLD],
    pub(crate) epochs: u64,
    pub(crate) last_offset: u64,
    pub(crate) status: u64,
    pub(crate) rank_words: u64,
    pub(crate) own_status: u32,
    pub(crate) rows: u32,
    pub(crate) heads: u32,
    pub(crate) own_heads: u32,
    pub(crate) head_words: u32,
    pub(crate) world: u32,
    pub(crate) rank: u32,
    pub(crate) spins: u32,
    pub(crate) holds_successor: u32,
    pub(crate) pad: u32,
}

/// How kernels name the type of an output.
pub(crate) fn output_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 2,
        DType::F16 => 1,
        _ => 0,
    }
}

/// One tensor that `append` writes, with its source.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AppendTensor {
    pub(crate) source: u64,
    pub(crate) source_row: u64,
    pub(crate) source_head: u64,
    pub(crate) norm: u64,
    pub(crate) factor: u64,
    pub(crate) output: View,
    pub(crate) scale: View,
    pub(crate) pages: u64,
    pub(crate) null_page: i64,
    pub(crate) heads: u32,
    pub(crate) format: u32,
    pub(crate) is_cache: u32,
    pub(crate) rotates: u32,
    pub(crate) scale_is_quad: u32,
    pub(crate) first_block: u32,
    pub(crate) period: u32,
    pub(crate) row_step: u32,
    pub(crate) source_step: u64,
    pub(crate) output_step: u64,
}

/// Rows of `append`, and the table of the last row of every slot.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowArguments {
    pub(crate) slots: u64,
    pub(crate) positions: u64,
    pub(crate) winners: u64,
    pub(crate) last_offset: u64,
    pub(crate) row_begin: u32,
    pub(crate) row_end: u32,
    pub(crate) rows: u32,
    pub(crate) positions_end: u32,
    pub(crate) winner_mask: u32,
    pub(crate) later: u32,
}

/// Arguments of `append_once`, `append_per_step` and the two for many rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AppendArguments {
    pub(crate) tensors: [AppendTensor; 5],
    pub(crate) rows: RowArguments,
    pub(crate) cosines: u64,
    pub(crate) sines: u64,
    pub(crate) cosine_row: u64,
    pub(crate) sine_row: u64,
    pub(crate) status: u64,
    pub(crate) group_blocks: u32,
    pub(crate) group_magic: u32,
    pub(crate) group_shift: u32,
    pub(crate) passes: u32,
    pub(crate) half: u32,
    pub(crate) half_is_32: u32,
    pub(crate) epsilon: f32,
    pub(crate) reciprocal: u32,
    /// Status words of the run in its first kernel, else 0.
    pub(crate) own_status: u32,
    pub(crate) pad: u32,
}

/// A source of an NVFP4 cache.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ValidateSource {
    pub(crate) source: u64,
    pub(crate) row: u64,
    pub(crate) head: u64,
}

/// Arguments of `validate`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ValidateArguments {
    pub(crate) batch: Batch,
    pub(crate) rows: RowArguments,
    pub(crate) sources: [ValidateSource; 3],
    pub(crate) offsets: u64,
    pub(crate) indices: u64,
    pub(crate) indices_row: u64,
    pub(crate) indices_list: u64,
    pub(crate) pages: [u64; 2],
    pub(crate) null_pages: [i64; 2],
    pub(crate) most_pages: u32,
    pub(crate) lists: u32,
    pub(crate) k: u32,
    pub(crate) kv_heads: u32,
}

/// f16x2 1.0, opaque to the compiler of the kernels.
pub(crate) const ONE: u32 = 0x3c00_3c00;

// The same numbers are asserted in `arguments.cuh`.
const _: () = {
    assert!(size_of::<View>() == 32);
    assert!(size_of::<Batch>() == 88);
    assert!(size_of::<IndexArguments>() == 240);
    assert!(size_of::<SelectArguments>() == 184);
    assert!(size_of::<DecodeArguments>() == 456);
    assert!(size_of::<StatusArguments>() == 16);
    assert!(size_of::<MergeArguments>() == 160);
    assert!(size_of::<SelectMergeArguments>() == 88);
    assert!(size_of::<RankKeysArguments>() == 296 && size_of::<GatherArguments>() == 168);
    assert!(size_of::<AppendTensor>() == 168 && size_of::<RowArguments>() == 56);
    assert!(size_of::<AppendArguments>() == 976);
    assert!(size_of::<ValidateArguments>() == 296);
};
