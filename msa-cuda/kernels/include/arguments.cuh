// Kernel arguments. Every structure has a twin in msa-cuda/src/arguments.rs; sizes and offsets are asserted on both sides.
#pragma once

#include <stdint.h>

namespace msa {

// Bits of the status word, as in msa_core::backend::Status.
constexpr uint32_t STATUS_PAGE = 1u << 0, STATUS_SLOT = 1u << 1, STATUS_LENGTH = 1u << 2, STATUS_BLOCK = 1u << 3,
                   STATUS_DUPLICATE = 1u << 4, STATUS_NAN = 1u << 5, STATUS_POSITION = 1u << 6, STATUS_RANK = 1u << 7, STATUS_REFUSED = 1u << 8,
                   STATUS_INFINITE = 1u << 9;

// Tokens of a block and of a page.
constexpr int BLOCK = 128;
// Channels of a head.
constexpr int CHANNELS = 128;

// One component of a paged cache; strides in bytes, multiples of 16.
struct View {
  uint64_t address, page_stride, head_stride, token_stride;
};

// The device-resident description of a batch.
struct Batch {
  const int32_t* query_offsets;  // [requests + 1]
  const int32_t* kv_lengths;     // [requests]
  const int32_t* positions;      // [rows], or null for kv_len - count + i
  const int32_t* block_table;    // [requests][table_stride]
  const uint32_t* bounds;        // [requests][2]: most query rows, most tokens
  uint32_t* status;              // [0] is shared by the kernels after the first
  uint64_t table_stride;         // elements
  uint64_t pages;
  int32_t null_page;             // -1 if there is none
  uint32_t own_status;           // words of the run if this kernel is its first, else 0
  uint32_t table_width, requests, rows, max_query;
};

struct IndexArguments {
  Batch batch;
  View key, scale;
  const uint8_t* query;  // [rows][heads][128]
  uint64_t query_row, query_head;
  uint8_t* scores;       // [rows][heads][blocks] f32
  uint64_t scores_row, scores_head;
  const float* query_factor;  // tensor scales, null for 1
  const float* key_factor;
  uint32_t blocks, heads, query_is_e4m3, exact;
  uint32_t one;    // f16x2 1.0
  uint32_t ranks;  // of the images with MSA_RANKS: ranks, and from bit 16 on the number of this one
};

struct SelectArguments {
  Batch batch;
  const uint8_t* scores;  // [rows][heads][blocks] f32
  uint64_t scores_row, scores_head;
  uint8_t* indices;       // [rows][lists][k] i32
  uint64_t indices_row, indices_list;
  uint32_t blocks, heads, lists, k;
  uint32_t init_blocks, local_blocks, init_first, nan_highest;
  uint32_t score_order, all_lists;  // lists that the plan's bounds allow
  uint32_t ranks, pad;  // blocks of threads that share a list
};

// Scores that a list of `sparse_decode` is selected from, and how; null where the lists are given.
struct ListSource {
  const uint8_t* scores;  // [rows][lists][blocks] f32
  uint64_t scores_row, scores_list;
  uint32_t blocks, init_blocks, local_blocks, pad;
};

struct DecodeArguments {
  Batch batch;
  View key, value, key_scale, value_scale;
  const uint8_t* query;  // [rows][query heads][128]
  uint64_t query_row, query_head;
  uint8_t* output;       // [rows][query heads][128]
  uint64_t output_row, output_head;
  uint8_t* lse;          // [rows][query heads] f32, or null
  uint64_t lse_row, lse_head;
  uint8_t* indices;      // [rows][lists][k] i32; written if the lists are selected here
  uint64_t indices_row, indices_list;
  ListSource source;
  const uint2* parts;    // [requests][splits]: first slot, one past the last
  const float* query_factor;  // tensor scales, null for 1
  const float* key_factor;
  const float* value_factor;
  float* partial_outputs;  // [rows][splits][query heads][128], only for more splits than a cluster has blocks
  float* partial_states;   // [rows][splits][query heads][2]: maximum, sum
  float softmax_scale;
  uint32_t k, groups, group_heads, heads_per_kv, lists, splits;
  uint32_t query_is_e4m3, output_type, lse_base_two, v_scale_linear;
  uint32_t one, combine_in_workspace, items;  // items: (row, list) pairs that the bounds allow
};

struct StatusArguments {
  uint32_t* status;
  uint32_t words, pad;  // at most 1024
};

struct MergeArguments {
  const uint8_t* outputs;  // [states][rows][heads][channels] f32 or bf16
  uint64_t outputs_state, outputs_row, outputs_head;
  const uint8_t* lses;     // [states][rows][heads] f32: LSEs or maxima
  uint64_t lses_state, lses_row;
  const uint8_t* sums;     // [states][rows][heads] f32, or null where the outputs are normalised
  uint64_t sums_state, sums_row;
  uint8_t* output;         // [rows][heads][channels]
  uint64_t output_row, output_head;
  uint8_t* lse;            // [rows][heads] f32
  uint64_t lse_row;
  uint32_t* status;
  uint32_t rows, heads, channels, states;
  uint32_t partial_is_bf16, output_type, base_two, pad;
};

struct SelectMergeArguments {
  const uint8_t* keys;  // [world][rows][heads][k] u64
  uint64_t keys_rank, keys_row, keys_head;
  uint8_t* indices;     // [rows][lists][k] i32
  uint64_t indices_row, indices_list;
  uint32_t* status;
  uint32_t rows, heads, lists, world;
  uint32_t k, score_order;
};

// Most ranks that share the pages of an index cache.
constexpr int MAX_WORLD = 8;

// exchange_keys and candidate_keys: the best keys of this rank's blocks, block i of which is block i * world + rank.
struct RankKeysArguments {
  Batch batch;             // lengths only
  const uint8_t* scores;   // [rows][heads][columns] f32
  uint64_t scores_row, scores_head;
  uint8_t* indices;        // [rows][listed lists][k] i32 (exchange_keys)
  uint64_t indices_row, indices_list;
  uint64_t* keys;          // [rows][lists][k], descending, then 0 (candidate_keys)
  uint64_t inboxes[MAX_WORLD];  // of every rank as this one sees it: [2 parities][world][rows][lists][k] u64
  uint32_t* epochs;        // [rows][lists] of this rank: exchanges of the list so far
  uint64_t parity_keys, rank_keys;  // keys of one parity and of one rank in an inbox
  uint32_t columns, heads, lists, k;
  uint32_t init_blocks, local_blocks, init_first, nan_highest;
  uint32_t score_order, world, rank, spins;
  uint32_t first_list, end_list;  // lists that are merged here; all are handed over
  uint32_t holds_successor, pad;  // 1: the next kernel starts when this one has waited, as ranks share a device
};

// gather_queries: the index queries of every rank's heads to all ranks.
struct GatherArguments {
  const uint8_t* own;      // [rows][own heads][head_words] u32
  uint64_t own_row, own_head;
  uint32_t* queries;       // [rows][heads][head_words]
  uint64_t inboxes[MAX_WORLD];  // of every rank as this one sees it: [world][rows][own heads][head_words] u64
  uint32_t* epochs;        // [rows] of this rank: exchanges of the row so far
  const int32_t* last_offset;  // rows from it on are padding
  uint32_t* status;
  uint64_t rank_words;     // words of one rank in an inbox
  uint32_t own_status;     // words of the run if this kernel is its first, else 0
  uint32_t rows, heads, own_heads, head_words, world, rank, spins;
  uint32_t holds_successor, pad;  // as above
};

// One tensor that append writes, with its source. `format` is one of append.cuh's Stored.
struct AppendTensor {
  const uint8_t* source;  // [rows][heads][128] bf16
  uint64_t source_row, source_head;
  const uint16_t* norm;   // [128] bf16, applied as 1 + w, or null
  const float* factor;    // a cache: what is stored is divided by it; null for 1
  View output;            // a query: page_stride is that of a row, token_stride unused
  View scale;             // block scales, NVFP4 only
  uint64_t pages;         // a cache's
  int64_t null_page;      // -1 if there is none
  uint32_t heads, format, is_cache, rotates, scale_is_quad;
  uint32_t first_block;   // blocks of threads in a group of rows, from here to the next tensor's
  uint32_t period;        // of few rows, blocks after which head 0 is first again; of many, passes of a warp
  uint32_t row_step;      // rows from a pass to the next; of many, 0 if they go on in a row
  uint64_t source_step, output_step;  // bytes from a pass to the next; a cache's slots say where a row is
};

// An entry of the table that finds the last row of a slot: open addressing, at most half full.
struct Winner {
  unsigned long long key;  // slot + 1, 0 for an empty entry
  uint32_t row, pad;       // row + 1
};

// Rows and the table that they are entered into.
struct RowArguments {
  const int64_t* slots;      // [rows]
  const int32_t* positions;  // [rows], or null if nothing is rotated
  Winner* winners;           // null: the slots are searched instead
  const int32_t* last_offset;  // rows from it on are padding; null if none is
  uint32_t row_begin, row_end, rows;  // of this launch, and in all
  uint32_t positions_end;    // rows of the tables of cosines and sines; 1 without positions
  uint32_t winner_mask, later;
};

struct AppendArguments {
  AppendTensor tensors[5];
  RowArguments rows;
  const float* cosines;  // [positions_end][half]
  const float* sines;
  uint64_t cosine_row, sine_row;  // elements
  uint32_t* status;
  uint32_t group_blocks, group_magic, group_shift;  // blocks of a group of 16 * passes rows, or 32; n / blocks = n * magic >> 32 >> shift
  uint32_t passes;       // of few rows, heads that a lane takes, one after the other
  uint32_t half;         // rotated pairs
  uint32_t half_is_32;   // and the tables can be read two at a time, and have one stride
  float epsilon;
  uint32_t reciprocal;
  uint32_t own_status;   // words of the run if this kernel is its first, else 0
  uint32_t pad;
};

// A source of an NVFP4 cache: [rows][heads][128] bf16.
struct ValidateSource {
  const uint8_t* source;  // null if the cache has another format
  uint64_t row, head;
};

struct ValidateArguments {
  Batch batch;                // as the caller gives it; without offsets for an append on its own
  RowArguments rows;          // of the append; no slots if there is none
  ValidateSource sources[3];  // K, V, index K
  int32_t* offsets;           // what the other kernels of the run read as query_offsets; for an append on its own, its rows
  const uint8_t* indices;     // [rows][lists][k] i32, or null
  uint64_t indices_row, indices_list;
  uint64_t pages[2];          // of the KV and the index cache of the append
  int64_t null_pages[2];      // -1 if there is none
  uint32_t most_pages;        // of a request; 0 if tables are not looked at
  uint32_t lists, k, kv_heads;
};

static_assert(sizeof(View) == 32 && sizeof(Batch) == 88, "as in arguments.rs");
static_assert(sizeof(ValidateArguments) == 296, "as in arguments.rs");
static_assert(sizeof(AppendTensor) == 168 && sizeof(RowArguments) == 56 && sizeof(AppendArguments) == 976 && sizeof(Winner) == 16,
              "as in arguments.rs");
static_assert(sizeof(IndexArguments) == 240 && sizeof(SelectArguments) == 184 && sizeof(DecodeArguments) == 456, "as in arguments.rs");
static_assert(sizeof(MergeArguments) == 160 && sizeof(SelectMergeArguments) == 88, "as in arguments.rs");
static_assert(sizeof(RankKeysArguments) == 296 && sizeof(GatherArguments) == 168, "as in arguments.rs");

}  // namespace msa
