// One block at a time: its threads are fibers, which take turns at barriers and in exchanges of a warp.
//
// A fiber is a stack; switching to another costs some nanoseconds. Between two barriers threads run one after
// the other, in ascending order and in descending order by turns.
#include <sys/mman.h>

#include <cstring>

#include "runtime.h"

extern "C" {
struct Index threadIdx, blockIdx, blockDim, gridDim;  // Constants to the kernels (device.h).
__attribute__((aligned(256))) unsigned char emulator_dynamic_shared[MOST_DYNAMIC_BYTES];
void emulator_switch(void** from, void* to);
}

// Keep what a call has to keep, on the one stack and from the other.
#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, . - emulator_switch
)");
constexpr unsigned KEPT_WORDS = 6;
#else
#error "the emulator switches fibers on x86-64 only"
#endif

namespace {

enum State : unsigned char { READY, AT_BARRIER, IN_WARP, DONE };

struct Fiber {
  void* stack_pointer;
  State state;
  uint16_t warp_epoch;
  unsigned line;
  Index index;
};

struct Warp {
  unsigned arrived;  // Lanes that wait for the others of `mask`.
  unsigned mask;
  unsigned live;
  unsigned generation;
  uint64_t slots[2][WARP];
  unsigned fragments[2][WARP][6];
};

// Not a power of two: else all threads' variables would compete for the same lines of the cache.
constexpr size_t STACK_BYTES = 48 * 1024 + 320;
constexpr uint64_t CANARY = 0x5afe57ac6b075afe;

Fiber fibers[MOST_THREADS];
Warp warps[MOST_THREADS / WARP];
unsigned char* stacks;
void* scheduler;
void** kernel_arguments;
unsigned threads, live;

unsigned char* stack_of(unsigned thread) { return stacks + thread * STACK_BYTES; }

uint64_t& canary_of(unsigned thread) { return *reinterpret_cast<uint64_t*>(stack_of(thread)); }

void yield(State state) {
  Fiber& fiber = fibers[now.thread];
  fiber.state = state;
  emulator_switch(&fiber.stack_pointer, scheduler);
}

void release_warp(Warp& warp) {
  unsigned first = (&warp - warps) * WARP;
  for (unsigned lane = 0; lane < WARP; ++lane)
    if (warp.arrived >> lane & 1) fibers[first + lane].state = READY;
  warp.arrived = 0;
  ++warp.generation;
}

void run_thread() {
  now.launch->kernel->invoke(kernel_arguments);
  if (unsigned left = pending_copies()) fail_at(nullptr, "it ends with %u copies that it did not wait for", left);
  Warp& warp = warps[now.thread / WARP];
  warp.live &= ~(1u << now.thread % WARP);
  // Lanes that named this one in their mask don't wait for it for ever: it has left the kernel.
  if (warp.arrived && warp.arrived == (warp.mask & warp.live)) release_warp(warp);
  --live;
  yield(DONE);
  __builtin_trap();
}

void start_fiber(unsigned thread) {
  const Index& block = now.launch->block;
  Fiber& fiber = fibers[thread];
  fiber.state = READY;
  fiber.warp_epoch = 0;
  fiber.index = {thread % block.x, thread / block.x % block.y, thread / block.x / block.y};
  canary_of(thread) = CANARY;
  // As if it had been called: the address that it returns to lies below 16 bytes' alignment.
  auto* top = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(stack_of(thread) + STACK_BYTES) & ~uintptr_t{15});
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(run_thread);
  top -= KEPT_WORDS;
  std::memset(top, 0, KEPT_WORDS * sizeof *top);
  fiber.stack_pointer = top;
}

void start_block(Index block, void** arguments) {
  const Kernel& kernel = *now.launch->kernel;
  const Index& shape = now.launch->block;
  if (!stacks)
    stacks = static_cast<unsigned char*>(mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  blockIdx = block;
  blockDim = shape;
  gridDim = now.launch->grid;
  kernel_arguments = arguments;
  threads = live = shape.x * shape.y * shape.z;
  if (kernel.shared_begin) std::memset(kernel.shared_begin, POISON, kernel.shared_end - kernel.shared_begin);
  std::memset(emulator_dynamic_shared, POISON, now.launch->dynamic_bytes);
  std::memset(warps, 0, sizeof warps);
  for (unsigned thread = 0; thread < threads; ++thread) {
    start_fiber(thread);
    warps[thread / WARP].live |= 1u << thread % WARP;
  }
  now.block_epoch = ++now.epoch;
}

// Let every thread that can go on do so once; return whether any could.
bool run_ready(bool descending) {
  bool any = false;
  for (unsigned turn = 0; turn < threads; ++turn) {
    unsigned thread = descending ? threads - 1 - turn : turn;
    Fiber& fiber = fibers[thread];
    if (fiber.state != READY) continue;
    any = true;
    now.thread = thread;
    now.warp_epoch = fiber.warp_epoch;
    threadIdx = fiber.index;
    emulator_switch(&scheduler, fiber.stack_pointer);
    if (canary_of(thread) != CANARY) fail_at(nullptr, "its variables don't fit into %zu bytes", STACK_BYTES);
  }
  return any;
}

// All threads wait: at the same barrier, or for each other for ever.
void release_barrier() {
  const Fiber* first = nullptr;
  for (unsigned thread = 0; thread < threads; ++thread) {
    Fiber& fiber = fibers[thread];
    if (fiber.state == DONE) continue;
    now.thread = thread;
    threadIdx = fiber.index;
    if (fiber.state == IN_WARP)
      fail_at(nullptr, "deadlock: it waits at line %u for lanes %08x of its warp, of which %08x came", fiber.line,
              warps[thread / WARP].mask, warps[thread / WARP].arrived);
    if (first && first->line != fiber.line)
      fail_at(nullptr, "deadlock: it waits at the barrier of line %u, thread %td at that of line %u", fiber.line,
              first - fibers, first->line);
    if (!first) first = &fiber;
  }
  for (unsigned thread = 0; thread < threads; ++thread)
    if (fibers[thread].state == AT_BARRIER) fibers[thread].state = READY;
  ++now.epoch;
}

}  // namespace

bool on_own_stack(uintptr_t address) {
  return address - reinterpret_cast<uintptr_t>(stack_of(now.thread)) < STACK_BYTES;
}

void run_block(Index block, void** arguments) {
  start_block(block, arguments);
  while (live)
    if (!run_ready(now.epoch & 1)) release_barrier();
}

extern "C" {

void emulator_barrier(unsigned line) {
  fibers[now.thread].line = line;
  yield(AT_BARRIER);
}

unsigned emulator_lane() { return now.thread % WARP; }

unsigned emulator_active_lanes() { return warps[now.thread / WARP].live; }

}  // extern "C"

namespace {

// Wait until every lane of `mask` that still runs the kernel has come.
void meet(unsigned mask, unsigned line) {
  Warp& warp = warps[now.thread / WARP];
  unsigned own = 1u << emulator_lane();
  if (!(mask & own)) fail_at(nullptr, "it waits at line %u for lanes %08x of its warp, without being one", line, mask);
  if (warp.arrived && warp.mask != mask)
    fail_at(nullptr, "it waits at line %u for lanes %08x of its warp, others for %08x", line, mask, warp.mask);
  warp.mask = mask;
  warp.arrived |= own;
  fibers[now.thread].line = line;
  if (warp.arrived == (mask & warp.live)) {
    release_warp(warp);
  } else {
    yield(IN_WARP);
  }
}

}  // namespace

extern "C" {

void emulator_warp_barrier(unsigned mask, unsigned line) {
  meet(mask, line);
  now.warp_epoch = ++fibers[now.thread].warp_epoch;
}

// Return what lane `source` offers; a lane that takes no part offers a NaN. It orders no access to memory.
uint64_t emulator_exchange(unsigned mask, uint64_t bits, unsigned source, unsigned line) {
  Warp& warp = warps[now.thread / WARP];
  unsigned generation = warp.generation & 1;
  warp.slots[generation][emulator_lane()] = bits;
  unsigned taking_part = mask & warp.live;
  meet(mask, line);
  return taking_part >> source & 1 ? warp.slots[generation][source] : ~uint64_t{0};
}

// Return what all lanes of the warp bring to its tensor cores; every lane has to come.
const unsigned (*emulator_fragments(const unsigned* left, const unsigned* right, unsigned line))[6] {
  Warp& warp = warps[now.thread / WARP];
  if (~warp.live) fail_at(nullptr, "mma of line %u needs all lanes of its warp, of which %08x run", line, warp.live);
  auto& brought = warp.fragments[warp.generation & 1];
  memcpy(brought[emulator_lane()], left, 4 * sizeof(unsigned));
  memcpy(brought[emulator_lane()] + 4, right, 2 * sizeof(unsigned));
  meet(~0u, line);
  return brought;
}
}
