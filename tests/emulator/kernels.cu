// Kernels for the emulator's own tests, in the form that TVM generates them: right ones, and ones that are
// wrong in one way each. A device would run most of the wrong ones without a word.
#include <cuda.h>
#include <cuda_fp16.h>

// Reverses each block's 64 elements through shared memory.
extern "C" __global__ void __launch_bounds__(64) reverse(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = held[63 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) reverse_without_barrier(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
  out[blockIdx.x * 64 + threadIdx.x] = held[63 - threadIdx.x];
}

// Two rounds need a second barrier: else a fast thread overwrites what a slow one still has to read.
extern "C" __global__ void __launch_bounds__(64) rounds(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  float sum = 0.0f;
  for (int round = 0; round < 3; ++round) {
    __syncthreads();
    held[threadIdx.x] = a[round * 64 + threadIdx.x];
    __syncthreads();
    sum = sum + held[63 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(64) rounds_with_one_barrier(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  float sum = 0.0f;
  for (int round = 0; round < 3; ++round) {
    held[threadIdx.x] = a[round * 64 + threadIdx.x];
    __syncthreads();
    sum = sum + held[63 - threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

// One half of the block reads what the other half overwrites: whichever comes first, a barrier is missing.
extern "C" __global__ void __launch_bounds__(64) half_reads(float* __restrict__ a, float* __restrict__ out, int lower) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  float value = 0.0f;
  if (((int)threadIdx.x < 32) == (lower != 0)) {
    value = held[threadIdx.x ^ 32];
  } else {
    held[threadIdx.x] = 1.0f;
  }
  out[threadIdx.x] = value;
}

extern "C" __global__ void __launch_bounds__(64) barrier_for_some(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[threadIdx.x];
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = held[63 - threadIdx.x];
}

// Scales `n` elements of which a grid may have more threads; `first` moves all accesses.
extern "C" __global__ void __launch_bounds__(64) scale(float* __restrict__ a, float* __restrict__ out, int first, int n, float factor) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    out[i] = a[i + first] * factor;
  }
}

extern "C" __global__ void __launch_bounds__(64) write_beyond(float* __restrict__ a, float* __restrict__ out) {
  out[threadIdx.x + 1] = a[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) write_what_is_read(float* __restrict__ a, float* __restrict__ out) {
  out[threadIdx.x] = a[threadIdx.x];
  a[threadIdx.x] = 0.0f;
}

extern "C" __global__ void __launch_bounds__(64) shared_beyond(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[threadIdx.x + 64];
}

extern "C" __global__ void __launch_bounds__(64) shared_nobody_wrote(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  if (threadIdx.x < 63) {
    held[threadIdx.x] = a[threadIdx.x];
  }
  __syncthreads();
  out[threadIdx.x] = held[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) read_own_output(float* __restrict__ a, float* __restrict__ out) {
  out[threadIdx.x] = out[threadIdx.x] + a[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) everyone_writes_one(float* __restrict__ a, float* __restrict__ out) {
  out[0] = a[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) neighbours_output(float* __restrict__ a, float* __restrict__ out) {
  out[blockIdx.x * 64 + threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  if (blockIdx.x == 1) {
    out[64 + threadIdx.x] = out[threadIdx.x] + 1.0f;
  }
}

// A block may exchange values through global memory, between its barriers.
extern "C" __global__ void __launch_bounds__(64) global_exchange(float* __restrict__ a, float* __restrict__ out, float* __restrict__ scratch) {
  scratch[blockIdx.x * 64 + threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = scratch[blockIdx.x * 64 + 63 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) misaligned(float* __restrict__ a, float* __restrict__ out) {
  *(float2*)(out + threadIdx.x * 2) = *(float2*)(a + threadIdx.x * 2 + 1);
}

extern "C" __global__ void __launch_bounds__(64) vectors(float* __restrict__ a, float* __restrict__ out) {
  float4 v = *(float4*)(a + threadIdx.x * 4);
  float2 w = make_float2(v.x + v.y, v.z + v.w);
  *(float4*)(out + threadIdx.x * 4) = make_float4(w.x, w.y, max(v.x, v.w), min(v.y, v.z));
}

extern "C" __global__ void __launch_bounds__(64) halves(half* __restrict__ a, half* __restrict__ out) {
  __shared__ alignas(64) half held[64];
  held[threadIdx.x] = a[threadIdx.x] * __float2half_rn(2.0f);
  __syncthreads();
  out[threadIdx.x] = held[threadIdx.x ^ 1];
}

extern "C" __global__ void __launch_bounds__(64) functions(float* __restrict__ a, float* __restrict__ out) {
  float x = a[threadIdx.x];
  out[threadIdx.x * 4] = __expf(x) / (1.0f + expf(x));
  out[threadIdx.x * 4 + 1] = rsqrtf(x + 5.0f) + sqrtf(x + 5.0f) + __fdividef(x, 2.0f);
  out[threadIdx.x * 4 + 2] = erff(x) + tanhf(x) + __powf(x + 5.0f, 1.5f) + fmaf(x, x, 1.0f);
  out[threadIdx.x * 4 + 3] = __logf(x + 5.0f) + floorf(x) + fmaxf(x, 0.25f) + fminf(x, -0.25f);
}

extern "C" __global__ void __launch_bounds__(64) largest(float* __restrict__ a, float* __restrict__ out) {
  out[threadIdx.x] = max(a[threadIdx.x], 0.0f) + fmaxf(0.0f, a[threadIdx.x]);
}

// Each warp's sum, minimum and neighbours, without memory.
extern "C" __global__ void __launch_bounds__(64) shuffles(float* __restrict__ a, float* __restrict__ out) {
  float x = a[threadIdx.x];
  unsigned mask = __activemask();
  float sum = x;
  for (int offset = 16; offset > 0; offset >>= 1) {
    sum = sum + __shfl_down_sync(mask, sum, offset, 32);
  }
  float least = x;
  for (int offset = 16; offset > 0; offset >>= 1) {
    least = min(least, __shfl_xor_sync(mask, least, offset));
  }
  out[threadIdx.x * 4] = __shfl_sync(mask, sum, 0, 32);
  out[threadIdx.x * 4 + 1] = least;
  out[threadIdx.x * 4 + 2] = __shfl_up_sync(mask, x, 1, 32);
  out[threadIdx.x * 4 + 3] = __shfl_down_sync(mask, x, 1, 8);
}

extern "C" __global__ void __launch_bounds__(64) shuffle_for_some(float* __restrict__ a, float* __restrict__ out) {
  float x = a[threadIdx.x];
  if (threadIdx.x != 5) {
    x = __shfl_down_sync(0xffffffffu, x, 1);
  }
  __syncthreads();
  out[threadIdx.x] = x;
}

// Lanes of one warp need no barrier of the block.
extern "C" __global__ void __launch_bounds__(64) within_warps(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[threadIdx.x];
  __syncwarp();
  float other = held[threadIdx.x ^ 31];
  __syncwarp();
  held[threadIdx.x] = other + 1.0f;
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 31];
}

extern "C" __global__ void __launch_bounds__(64) between_warps(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 32];
}

extern "C" __global__ void __launch_bounds__(64) dynamic(float* __restrict__ a, float* __restrict__ out) {
  extern __shared__ unsigned char buf_dyn_shmem[];
  ((float*)buf_dyn_shmem)[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = ((float*)buf_dyn_shmem)[63 - threadIdx.x];
}

// Counts how often each of four values is there, and the largest place of each.
extern "C" __global__ void __launch_bounds__(64) histogram(int* __restrict__ a, int* __restrict__ out) {
  if (threadIdx.x < 8) {
    out[threadIdx.x] = 0;
  }
  __syncthreads();
  atomicAdd(out + a[threadIdx.x], 1);
  atomicMax(out + 4 + a[threadIdx.x], (int)threadIdx.x);
}

// Where each thread is: grids and blocks of three dimensions.
extern "C" __global__ void __launch_bounds__(64) places(int* __restrict__ out) {
  int block = (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  int thread = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  out[block * (int)(blockDim.x * blockDim.y * blockDim.z) + thread] =
      (int)(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z);
}

extern "C" __global__ void __launch_bounds__(64) endless(float* __restrict__ a, float* __restrict__ out) {
  for (int i = 0; a[0] < 1000000.0f; ++i) {
    __syncthreads();
  }
  out[threadIdx.x] = 0.0f;
}

extern "C" __global__ void __launch_bounds__(64) too_much_shared(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[16384];
  held[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) through_a_number(float* __restrict__ a, float* __restrict__ out) {
  float* nowhere = (float*)(size_t)4096;
  out[threadIdx.x] = a[threadIdx.x] + nowhere[threadIdx.x];
}

// Two groups of copies in the background: the first quarter of a warp's, then the others, the last eight zeros.
extern "C" __global__ void __launch_bounds__(16) copied(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  if (threadIdx.x < 4) mainspring_copy_16(held + threadIdx.x * 4, a + threadIdx.x * 4, 1);
  mainspring_commit();
  for (int i = 1; i < 4; ++i) mainspring_copy_4(held + i * 16 + threadIdx.x, a + i * 16 + threadIdx.x, i * 16 + threadIdx.x < 56);
  mainspring_commit();
  mainspring_wait_group<1>();
  __syncthreads();
  out[threadIdx.x] = held[15 - threadIdx.x];
  mainspring_wait_group<0>();
  __syncthreads();
  for (int i = 1; i < 4; ++i) out[i * 16 + threadIdx.x] = held[i * 16 + 15 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) copied_without_wait(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x, 1);
  mainspring_commit();
  __syncthreads();
  out[threadIdx.x] = held[63 - threadIdx.x];
  mainspring_wait_group<0>();
}

// The wait covers all groups but one: the only one is still under way.
extern "C" __global__ void __launch_bounds__(64) copied_with_too_short_a_wait(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x, 1);
  mainspring_commit();
  mainspring_wait_group<1>();
  __syncthreads();
  out[threadIdx.x] = held[63 - threadIdx.x];
  mainspring_wait_group<0>();
}

// A wait covers what was committed before it: a copy in no group is not.
extern "C" __global__ void __launch_bounds__(64) copied_without_commit(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x, 1);
  mainspring_wait_group<0>();
  __syncthreads();
  out[threadIdx.x] = held[63 - threadIdx.x];
  mainspring_commit();
  mainspring_wait_group<0>();
}

// Each thread waits for its own copies alone.
extern "C" __global__ void __launch_bounds__(64) copied_without_barrier(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x, 1);
  mainspring_commit();
  mainspring_wait_group<0>();
  out[threadIdx.x] = held[63 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) copied_over_what_is_read(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  held[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[63 - threadIdx.x];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x, 1);
  mainspring_commit();
  mainspring_wait_group<0>();
}

extern "C" __global__ void __launch_bounds__(64) copies_left(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x, 1);
  out[threadIdx.x] = a[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) copied_misaligned(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  if (threadIdx.x < 4) mainspring_copy_16(held + threadIdx.x * 4, a + threadIdx.x * 4 + 1, 1);
  mainspring_commit();
  mainspring_wait_group<0>();
  out[threadIdx.x] = 0.0f;
}

extern "C" __global__ void __launch_bounds__(64) copied_beyond(float* __restrict__ a, float* __restrict__ out) {
  __shared__ alignas(64) float held[64];
  mainspring_copy_4(held + threadIdx.x, a + threadIdx.x + 192, 1);
  mainspring_commit();
  mainspring_wait_group<0>();
  out[threadIdx.x] = 0.0f;
}
