// Requests, rows and pages: device-resident values are bounded here and nowhere else.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"
#include "status.cuh"

namespace msa {

struct Request {
  int first_row, rows, tokens;
};

// Every thread of a block, before its first access to memory that an earlier kernel may write.
MSA_DEVICE void begin(const Batch& batch) {
  wait_for_predecessor();
  if (!batch.own_status) return;
  clear_own_status(batch.status, batch.own_status);
  __syncthreads();
}

MSA_DEVICE void raise(const Batch& batch, uint32_t bit) { raise(batch.status, batch.own_status, bit); }

// A request whose offsets or length are out of range is empty; its rows are not touched.
MSA_DEVICE Request load_request(const Batch& batch, int request, bool report) {
  const int begin = batch.query_offsets[request], end = batch.query_offsets[request + 1], tokens = batch.kv_lengths[request];
  const uint2 bound = ((const uint2*)batch.bounds)[request];
  const bool ordered = 0 <= begin && begin <= end && (uint32_t)end <= batch.rows;
  const bool bounded = tokens >= 0 && (uint32_t)tokens <= bound.y && (int64_t)end - begin <= (int64_t)bound.x;
  if (!(ordered && bounded)) {
    if (report) raise(batch, STATUS_LENGTH);
    return {0, 0, 0};
  }
  return {begin, end - begin, tokens};
}

// Tokens that row `i` of the request sees: 0 to tokens.
MSA_DEVICE int visible_tokens(const Batch& batch, const Request& request, int i) {
  int64_t position = batch.positions ? (int64_t)batch.positions[request.first_row + i]
                                     : (int64_t)request.tokens - request.rows + i;
  int64_t visible = position + 1;
  return (int)(visible < 0 ? 0 : visible > request.tokens ? request.tokens : visible);
}

// What the block table says of a logical page, unchecked; -1 beyond the table. The load is not waited for.
MSA_DEVICE int32_t load_page_id(const Batch& batch, int request, uint32_t page) {
  return page < batch.table_width ? batch.block_table[(uint64_t)request * batch.table_stride + page] : -1;
}

// The physical page of an id, or -1 if it must not be read.
MSA_DEVICE int64_t checked_page(const Batch& batch, int32_t id) {
  if (id < 0 || (uint64_t)id >= batch.pages) {
    raise(batch, STATUS_PAGE);
    return -1;
  }
  return id == batch.null_page ? -1 : id;
}

// Physical page of a logical page, or -1 if it must not be read.
MSA_DEVICE int64_t physical_page(const Batch& batch, int request, uint32_t page) {
  return checked_page(batch, load_page_id(batch, request, page));
}

MSA_DEVICE float scale_or_one(const float* scale) { return scale ? *scale : 1.0f; }

}  // namespace msa
