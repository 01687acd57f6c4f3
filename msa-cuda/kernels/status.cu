// The status words of a run start at zero. Where its first kernel cannot see to that (it has more blocks than there are words, or
// there is nothing to do), the run begins with this kernel.
#include "include/arguments.cuh"
#include "include/ptx.cuh"

extern "C" __global__ __launch_bounds__(1024) void clear_status(const __grid_constant__ msa::StatusArguments p) {
  msa::wait_for_predecessor();
  msa::release_successor();
  if (threadIdx.x < p.words) p.status[threadIdx.x] = 0;
}
