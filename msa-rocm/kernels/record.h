// The record of shared pages: which rows attend to which page.
//
// Rows are taken in tiles of 64. For every tile and list the record holds the pairs of a row and a slot that is attended
// to, ordered by page and then by pair, and where each page's pairs begin. msa_core::plan::shared builds the same.
#pragma once
#include "device.h"

constexpr u32 kTileRows = 64;
constexpr u32 kMostSlots = 64;

// A row and a slot that is attended to. Layout shared with msa_core::plan::shared.
struct Pair {
  u32 row;      // of the batch
  u32 slot;
  u32 visible;  // tokens of the block, from its first, 1 to 128
  u32 page;
};

// Words of the record of a tile and list: pages, pairs, 14 unused; [64 k] first pair of each page; [64 k] pairs.
constexpr u32 kHeaderWords = 16;
DEVICE u64 record_words(u32 top_k) { return kHeaderWords + (u64)kTileRows * top_k * 5; }
DEVICE u64 pairs_at(u32 top_k) { return kHeaderWords + (u64)kTileRows * top_k; }
