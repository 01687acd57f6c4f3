// exchange: every rank pushes its bytes to every peer and waits until every peer has pushed its own.
//
// Group p serves peer p: it stores this rank's bytes into slot [parity][rank] of the peer's buffer, releases them to the
// system, and raises its flag there to the epoch; then it waits for the peer's flag here. Flags only grow, so nothing is
// reset. Two buffers by the parity of the epoch: a rank that is one epoch ahead writes the other one, and it cannot be
// two ahead, because it waits for everybody's flag of the epoch between. A wait that takes too long ends in a status
// that names the rank.
#include "device.h"

struct Exchange {
  const u32x4 GLOBAL* own;     // [units of 16 bytes]
  const u64 GLOBAL* buffers;   // [world] address of each rank's buffer [2][world][units]
  const u64 GLOBAL* flags;     // [world] address of each rank's flags [world] u32
  const u32 GLOBAL* epoch;     // this rank's epoch, counted up before the launch
  u32 GLOBAL* status;
  u64 units;                   // 16-byte units that a rank hands over
  u32 rank;
  u32 world;
  u32 spins;                   // polls before a rank counts as missing
  u32 reserved;
};

DEVICE void push(const Exchange& a, u32 peer, u32 epoch) {
  u32x4 GLOBAL* slot = (u32x4 GLOBAL*)a.buffers[peer] + ((epoch & 1) * a.world + a.rank) * a.units;
  for (u64 i = thread_id(); i < a.units; i += kThreads) slot[i] = a.own[i];
  // Every wave releases its own stores and waits for that before the barrier. A release by thread 0 alone, after the
  // barrier, would not do: clang 22.1.8 leaves out the wait for a write-back where it knows of no store under way.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
  barrier();
  if (thread_id() == 0) {
    u32 GLOBAL* flag = (u32 GLOBAL*)a.flags[peer] + a.rank;
    __scoped_atomic_store_n(flag, epoch, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
  }
}

DEVICE void await(const Exchange& a, u32 peer, u32 epoch) {
  const u32 GLOBAL* flag = (const u32 GLOBAL*)a.flags[a.rank] + peer;
  for (u32 poll = 0; poll < a.spins; poll++) {
    u32 seen = __scoped_atomic_load_n(flag, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM);
    if ((i32)(seen - epoch) >= 0) return;
    __builtin_amdgcn_s_sleep(8);
  }
  report(a.status, kStatusRank | 1u << (16 + peer));
}

KERNEL(kThreads, exchange, b128, push)(Exchange a) {
  u32 epoch = *a.epoch, peer = group_x();
  push(a, peer, epoch);
  if (thread_id() == 0) await(a, peer, epoch);
}
