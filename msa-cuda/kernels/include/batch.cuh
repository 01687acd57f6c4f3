// Requests, rows and pages: device-resident values are bounded here and nowhere else.
#pragma once

#include "arguments.cuh"
#include "ptx.cuh"
#include "ranks.cuh"
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

// What the device says of a request, unchecked: offsets and length. The plan may have bounds for more requests than there are.
MSA_DEVICE int3 read_request(const Batch& batch, int request) {
  if (request >= (int)batch.requests) return make_int3(0, 0, 0);
  return make_int3(batch.query_offsets[request], batch.query_offsets[request + 1], batch.kv_lengths[request]);
}

// A request whose offsets or length are out of range is empty; its rows are not touched. `bound`: its most rows and tokens.
MSA_DEVICE Request check_request(const Batch& batch, int3 said, uint2 bound, bool report) {
  const int begin = said.x, end = said.y, tokens = said.z;
  const bool ordered = 0 <= begin && begin <= end && (uint32_t)end <= batch.rows;
  const bool bounded = tokens >= 0 && (uint32_t)tokens <= bound.y && (int64_t)end - begin <= (int64_t)bound.x;
  if (!(ordered && bounded)) {
    if (report) raise(batch, STATUS_LENGTH);
    return {0, 0, 0};
  }
  return {begin, end - begin, tokens};
}

MSA_DEVICE Request load_request(const Batch& batch, int request, bool report) {
  return check_request(batch, read_request(batch, request), ((const uint2*)batch.bounds)[request], report);
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
#ifdef MSA_RANKS  // even a call that does nothing changes the code of other kernels
  page = page_of_rank(batch, page);
#endif
  return page < batch.table_width ? batch.block_table[(uint64_t)request * batch.table_stride + page] : -1;
}

// Brings the block table to the L2 cache while lengths are still on their way: one line a thread of the grid.
MSA_DEVICE void prefetch_table(const Batch& batch, uint32_t blocks) {
  const uint32_t lines = (min(batch.table_width, page_of_rank(batch, blocks)) + 31) / 32, line = blockIdx.x * blockDim.x + threadIdx.x;
  if (blockIdx.y == 0 && lines > 0 && line / lines < batch.requests)
    prefetch_l2(batch.block_table + (uint64_t)(line / lines) * batch.table_stride + line % lines * 32);
}

// The physical page of an entry of the block table, or -1 if it must not be read.
MSA_DEVICE int64_t check_page(const Batch& batch, int32_t id) {
  if (id < 0 || (uint64_t)id >= batch.pages) {
    raise(batch, STATUS_PAGE);
    return -1;
  }
  return id == batch.null_page ? -1 : id;
}

MSA_DEVICE float scale_or_one(const float* scale) { return scale ? *scale : 1.0f; }

}  // namespace msa
