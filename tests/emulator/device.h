// What a generated CUDA kernel expects of its compiler, for the host's: included before the kernels' source.
//
// A block's threads are fibers (see runtime.cpp), so a kernel is an ordinary function that reads `threadIdx`
// and yields in `__syncthreads()` and in the exchanges of a warp. Shared memory is a section of the program,
// one for each kernel. Where the hardware forgets a NaN, in max and min, the emulator keeps it: a value that
// was never computed shall show in the outputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 : uint3 {};

extern "C" {
// Constant for as long as one thread runs; the runtime changes them between two threads.
extern const uint3 threadIdx, blockIdx;
extern const uint3 blockDim, gridDim;
extern unsigned char emulator_dynamic_shared[];
void emulator_barrier(unsigned line);
void emulator_warp_barrier(unsigned mask, unsigned line);
uint64_t emulator_exchange(unsigned mask, uint64_t bits, unsigned source_lane, unsigned line);
const unsigned (*emulator_fragments(const unsigned* left, const unsigned* right, unsigned line))[6];
unsigned emulator_active_lanes();
void emulator_copy(void* into, const void* from, unsigned bytes, int given);
void emulator_commit();
void emulator_wait(unsigned groups);
unsigned emulator_lane();
void emulator_atomic(void* address, unsigned bytes);
}

#define __global__
#define __device__
#define __host__
// One variable for all parts of the program, which no kernel may write.
#define __constant__ __attribute__((weak, section("emulator_constants")))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define alignas(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#ifndef EMULATOR_SECTION
#define EMULATOR_SECTION "emulator_shared_of_none"
#endif
#define __shared__ static __attribute__((section(EMULATOR_SECTION)))

inline void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }

#define __syncthreads() emulator_barrier(__LINE__)
#define __syncwarp(...) emulator_warp_barrier(emulator_mask(__VA_ARGS__), __LINE__)
#define __activemask() emulator_active_lanes()
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __shfl_sync(mask, value, ...) emulator_shuffle(emulator::At{}, mask, value, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(mask, value, ...) \
  emulator_shuffle(emulator::Down{}, mask, value, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(mask, value, ...) emulator_shuffle(emulator::Up{}, mask, value, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(mask, value, ...) \
  emulator_shuffle(emulator::Xor{}, mask, value, __LINE__, __VA_ARGS__)

inline unsigned emulator_mask(unsigned mask = 0xffffffffu) { return mask; }

namespace emulator {
// Which lane each exchange reads from; a lane outside the sub-group of `width` means one's own.
struct At {
  static int source(int lane, int operand, int width) { return (lane & -width) + (operand & (width - 1)); }
};
struct Down {
  static int source(int lane, int delta, int width) {
    return (lane & (width - 1)) + delta < width ? lane + delta : lane;
  }
};
struct Up {
  static int source(int lane, int delta, int width) {
    return (lane & (width - 1)) - delta >= 0 ? lane - delta : lane;
  }
};
struct Xor {
  static int source(int lane, int bits, int width) {
    return ((lane ^ bits) & -width) == (lane & -width) ? lane ^ bits : lane;
  }
};
}  // namespace emulator

template <class Direction, class T>
inline T emulator_shuffle(Direction, unsigned mask, T value, unsigned line, int operand, int width = 32) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "lanes exchange 8 bytes at most");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulator_exchange(mask, bits, Direction::source(emulator_lane(), operand, width), line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

#define EMULATOR_VECTORS(T, name)                                                        \
  struct __attribute__((aligned(sizeof(T) * 2))) name##2 {                               \
    T x, y;                                                                              \
  };                                                                                     \
  struct name##3 {                                                                       \
    T x, y, z;                                                                           \
  };                                                                                     \
  struct __attribute__((aligned(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16))) name##4 {     \
    T x, y, z, w;                                                                        \
  };                                                                                     \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                             \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                     \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
EMULATOR_VECTORS(signed char, char)
EMULATOR_VECTORS(unsigned char, uchar)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(unsigned short, ushort)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(long long, longlong)
#undef EMULATOR_VECTORS
struct __attribute__((aligned(8))) uint2 {
  unsigned x, y;
};
struct __attribute__((aligned(16))) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using half = _Float16;
struct half2 {
  half x, y;
};
using __half = half;
using __half2 = half2;
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half __float2half(float value) { return static_cast<half>(value); }
inline half __float2half_rn(float value) { return static_cast<half>(value); }
inline float __half2float(half value) { return static_cast<float>(value); }
inline half hexp(half value) { return static_cast<half>(expf(value)); }
inline half hsqrt(half value) { return static_cast<half>(sqrtf(value)); }
inline half __hmax(half a, half b) { return a != a || b != b ? a + b : a > b ? a : b; }
inline half __hmin(half a, half b) { return a != a || b != b ? a + b : a < b ? a : b; }

// A comparison that is false keeps the first NaN; the second is kept by asking for it.
template <class T, class U>
inline auto max(T a, U b) {
  using C = std::common_type_t<T, U>;
  return static_cast<C>(b) != static_cast<C>(b) || static_cast<C>(a) < static_cast<C>(b) ? C(b) : C(a);
}
template <class T, class U>
inline auto min(T a, U b) {
  using C = std::common_type_t<T, U>;
  return static_cast<C>(b) != static_cast<C>(b) || static_cast<C>(b) < static_cast<C>(a) ? C(b) : C(a);
}
#define fmaxf(a, b) max(static_cast<float>(a), static_cast<float>(b))
#define fminf(a, b) min(static_cast<float>(a), static_cast<float>(b))

// The fast intrinsics, as exact as the host has them: they differ from the GPU's in the last bits.
inline float __expf(float value) { return expf(value); }
inline float __exp10f(float value) { return powf(10.0f, value); }
inline float __logf(float value) { return logf(value); }
inline float __log2f(float value) { return log2f(value); }
inline float __powf(float base, float exponent) { return powf(base, exponent); }
inline float __sinf(float value) { return sinf(value); }
inline float __cosf(float value) { return cosf(value); }
inline float __tanf(float value) { return tanf(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float value) { return 1.0f / value; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value ? __builtin_clz(value) : 32; }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
template <class T>
inline T __ldg(const T* address) {
  return *address;
}

// The tensor cores: every lane of a warp brings its registers of both factors. What element of a matrix a
// register holds is computed from the lane and the register's number, as the PTX ISA has it. A lane's first
// four registers are the left factor's.
namespace emulator {
inline float of_bits(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }
// The hardware reads a TF32 number from the upper 19 bits of a register.
inline float tf32(unsigned bits) { return of_bits(bits & 0xffffe000u); }
inline float half_of(unsigned bits, unsigned which) {
  uint16_t part = static_cast<uint16_t>(bits >> 16 * which);
  half value;
  std::memcpy(&value, &part, sizeof value);
  return static_cast<float>(value);
}
template <unsigned TERMS>
struct Matrices {
  float left[16][TERMS], right[TERMS][8];
  void add_to(float* sums) const {
    unsigned group = emulator_lane() >> 2, place = emulator_lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
      unsigned row = i < 2 ? group : group + 8, column = place * 2 + (i & 1);
      // Products of such short numbers are exact; the hardware adds them in no order that it tells.
      double sum = sums[i];
      for (unsigned term = 0; term < TERMS; term++) sum += double{left[row][term]} * right[term][column];
      sums[i] = static_cast<float>(sum);
    }
  }
};
}  // namespace emulator
#define mainspring_mma_tf32(sums, left, right) emulator_mma_tf32(sums, left, right, __LINE__)
#define mainspring_mma_fp16(sums, left, right) emulator_mma_fp16(sums, left, right, __LINE__)
__attribute__((no_sanitize("thread"))) inline void emulator_mma_tf32(
    float* sums, const unsigned* left, const unsigned* right, unsigned line) {
  const auto* all = emulator_fragments(left, right, line);
  emulator::Matrices<8> matrices;
  for (unsigned lane = 0; lane < 32; lane++) {
    unsigned group = lane >> 2, place = lane % 4;
    for (unsigned i = 0; i < 4; i++)
      matrices.left[i == 0 || i == 2 ? group : group + 8][i < 2 ? place : place + 4] =
          emulator::tf32(all[lane][i]);
    for (unsigned i = 0; i < 2; i++)
      matrices.right[i == 0 ? place : place + 4][group] = emulator::tf32(all[lane][4 + i]);
  }
  matrices.add_to(sums);
}
__attribute__((no_sanitize("thread"))) inline void emulator_mma_fp16(
    float* sums, const unsigned* left, const unsigned* right, unsigned line) {
  const auto* all = emulator_fragments(left, right, line);
  emulator::Matrices<16> matrices;
  for (unsigned lane = 0; lane < 32; lane++) {
    unsigned group = lane >> 2, place = lane % 4;
    for (unsigned i = 0; i < 8; i++) {
      unsigned row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      unsigned column = place * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      matrices.left[row][column] = emulator::half_of(all[lane][i / 2], i % 2);
    }
    for (unsigned i = 0; i < 4; i++)
      matrices.right[place * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group] =
          emulator::half_of(all[lane][4 + i / 2], i % 2);
  }
  matrices.add_to(sums);
}

// Copies in the background (cp.async): the runtime keeps a queue for each thread, since nothing arrives before
// the wait that covers it.
#define mainspring_copy_16(into, from, given) emulator_copy(into, from, 16, given)
#define mainspring_copy_4(into, from, given) emulator_copy(into, from, 4, given)
#define mainspring_commit() emulator_commit()
template <int GROUPS>
inline void mainspring_wait_group() {
  emulator_wait(GROUPS);
}

// Atomics: blocks run in several processes, so these are real ones on the host too.
template <class T, class Change>
__attribute__((no_sanitize("thread"))) T emulator_update(T* address, Change change) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static_assert(sizeof(T) == sizeof(Bits), "atomics are of 4 or 8 bytes");
  emulator_atomic(address, sizeof(T));
  Bits* place = reinterpret_cast<Bits*>(address);
  Bits before = __atomic_load_n(place, __ATOMIC_RELAXED), after;
  T value;
  do {
    std::memcpy(&value, &before, sizeof value);
    T changed = change(value);
    std::memcpy(&after, &changed, sizeof after);
  } while (!__atomic_compare_exchange_n(place, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return value;
}
template <class T, class U>
inline T atomicAdd(T* address, U value) {
  return emulator_update(address, [value](T old) { return static_cast<T>(old + value); });
}
template <class T, class U>
inline T atomicMax(T* address, U value) {
  return emulator_update(address, [value](T old) { return static_cast<T>(max(old, value)); });
}
template <class T, class U>
inline T atomicMin(T* address, U value) {
  return emulator_update(address, [value](T old) { return static_cast<T>(min(old, value)); });
}
template <class T, class U>
inline T atomicExch(T* address, U value) {
  return emulator_update(address, [value](T) { return static_cast<T>(value); });
}
template <class T, class U, class V>
inline T atomicCAS(T* address, U expected, V value) {
  return emulator_update(address, [=](T old) { return old == static_cast<T>(expected) ? static_cast<T>(value) : old; });
}
