// Requests, rows and pages: where a query row stands and where its tokens lie.
#pragma once
#include "device.h"

// Lengths and tables of a batch, all on the device. Layout shared with the host.
struct Batch {
  const i32 GLOBAL* block_table;    // [requests, table_stride] physical pages
  const i32 GLOBAL* kv_lengths;     // [requests] tokens, the new ones included
  const i32 GLOBAL* query_offsets;  // [requests + 1] first row of each request
  const i32 GLOBAL* positions;      // [rows] or null: kv_len - q_len + i
  const u32x2 GLOBAL* bounds;       // [requests] most query rows and most tokens: what the plan was made for
  u32 GLOBAL* status;               // status word
  u32 requests;
  u32 table_stride;  // elements
  u32 table_pages;   // entries of a request that may be read
  u32 pages;         // pages of the cache
  u32 rows;          // rows of the run's tensors
  i32 null_page;     // a page that stands for none, or -1
};

// One component of a paged cache: bytes.
struct PagedView {
  const u8 GLOBAL* base;
  u64 page_stride;
  u64 head_stride;
  u64 token_stride;
};

// A range of work of one request: slots of its lists, or blocks of its context.
struct Part {
  u32 request;
  u32 part;
  u32 begin;
  u32 end;
};

struct Request {
  i32 first_row;
  i32 rows;
  i32 kv_len;
};

// A request whose lengths are out of their bounds is empty, with a status bit: nothing is followed that is not in range.
// One beyond the batch, which may have fewer requests than its plan, is empty without.
DEVICE Request request_of(const Batch& batch, u32 request) {
  if (request >= batch.requests) return Request{0, 0, 0};
  i32 first = batch.query_offsets[request], end = batch.query_offsets[request + 1];
  i32 kv_len = batch.kv_lengths[request];
  u32x2 most = batch.bounds[request];
  bool ordered = first >= 0 && first <= end && end <= (i32)batch.rows;
  bool bounded = ordered && (u32)(end - first) <= most.x && kv_len >= 0 && (u32)kv_len <= most.y;
  if (bounded) return Request{first, end - first, kv_len};
  report(batch.status, kStatusLength);
  return Request{0, 0, 0};
}

// The request of a row, which all lanes ask for together; `batch.requests` if the row belongs to none.
DEVICE u32 request_of_row(const Batch& batch, i32 row) {
  for (u32 first = 0; first < batch.requests; first += kWave) {
    Request request = request_of(batch, first + lane_id());
    u64 found = lanes_where(row >= request.first_row && row < request.first_row + request.rows);
    if (found) return first + (u32)__builtin_ctzl(found);
  }
  return batch.requests;
}

// Tokens of the context that row `i` of the request sees.
DEVICE i32 visible_tokens(const Batch& batch, const Request& request, i32 i) {
  i32 position = batch.positions ? batch.positions[request.first_row + i] : request.kv_len - request.rows + i;
  i32 end = position < request.kv_len ? position + 1 : request.kv_len;
  return end > 0 ? end : 0;
}

// The physical page of a block; -1 if it is the null page or, with a status bit, if the table names none that exists.
DEVICE i32 page_of(const Batch& batch, u32 request, u32 block) {
  i32 page = -1;
  if (block < batch.table_pages) page = batch.block_table[(u64)request * batch.table_stride + block];
  if (page < 0 || page >= (i32)batch.pages) {
    report(batch.status, kStatusPage);
    return -1;
  }
  return page == batch.null_page ? -1 : page;
}
