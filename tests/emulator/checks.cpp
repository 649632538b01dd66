// The emulated device's memory checks: bounds, values that nobody wrote, and races.
//
// The kernels are compiled with the host compiler's instrumentation for races, whose runtime library this
// file replaces: it is called before every access that the compiler could not prove to be to a variable of
// the thread's own. For each granule of memory it remembers who wrote it last, and when. Threads are ordered
// by barriers: two accesses of a block, one of them a write, of different threads between the same two
// barriers are a race, whatever order the emulator ran them in. Threads of different blocks are not ordered.
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "runtime.h"

extern "C" {
extern unsigned char emulator_dynamic_shared[];
extern char __executable_start[], data_start[];  // The linker's: between them are code and constants.
extern char __start_emulator_constants[] __attribute__((weak)), __stop_emulator_constants[] __attribute__((weak));
}

// The smallest element that the kernels have pointers to; threads may write two neighbours at a time.
#ifndef GRANULE_BYTES
#define GRANULE_BYTES 4
#endif

namespace {

constexpr uint16_t SEVERAL = 0x8000;  // Readers: several threads, of the warp in the lower bits.
constexpr uint16_t SEVERAL_WARPS = 0xffff;
constexpr uint32_t COPYING = 0xffffffff;  // The epoch of a write that is under way in the background.

struct SharedCell {
  uint32_t write_epoch, read_epoch;
  uint16_t writer, writer_warp_epoch, reader, reader_warp_epoch;
};

struct GlobalCell {
  uint32_t launch;  // 0: nobody wrote it.
  uint32_t extent;
  uint64_t thread;  // Of the whole launch.
  uint32_t epoch;
  uint32_t atomic;
};

constexpr size_t MOST_STATIC_BYTES = 48 * 1024;  // More needs dynamic shared memory, on every device.
SharedCell static_cells[MOST_STATIC_BYTES / GRANULE_BYTES + 4];
SharedCell dynamic_cells[MOST_DYNAMIC_BYTES / GRANULE_BYTES + 1];
GlobalCell* cells;      // Of the arena from `cells_begin`: regions that kernels may write.
size_t cells_begin;
uintptr_t static_begin, static_bytes;

enum Access { READ, WRITE, ATOMIC };
const char* const VERBS[] = {"reads", "writes", "updates"};

// Whether what another thread did in this epoch came before: threads of one warp have barriers of their own.
bool ordered_in_warp(unsigned thread, uint16_t warp_epoch) {
  unsigned warp = thread / WARP;
  return warp == now.thread / WARP && warp_epoch != now.warp_epoch;
}

[[noreturn]] __attribute__((noinline)) void shared_race(const void* code, Access access, size_t offset,
                                                        bool with_write, unsigned other) {
  const char* verb = with_write ? "wrote" : "read";
  if (other >= SEVERAL)
    fail_at(code, "race: it %s byte %zu of shared memory, which other threads %s since the last barrier",
            VERBS[access], offset, verb);
  fail_at(code, "race: it %s byte %zu of shared memory, which thread %u of the block %s since the last barrier",
          VERBS[access], offset, other, verb);
}

inline void note_reader(SharedCell& cell) {
  if (cell.read_epoch != now.epoch) {
    cell.read_epoch = now.epoch;
    cell.reader = now.thread;
  } else if (cell.reader != SEVERAL_WARPS && cell.reader != now.thread) {
    unsigned warp = cell.reader & SEVERAL ? cell.reader & ~SEVERAL : cell.reader / WARP;
    cell.reader = warp == now.thread / WARP ? SEVERAL | warp : SEVERAL_WARPS;
  }
  cell.reader_warp_epoch = now.warp_epoch;
}

inline void check_readers(const SharedCell& cell, const void* code, Access access, size_t offset) {
  if (cell.read_epoch != now.epoch || cell.reader == now.thread) return;
  unsigned one = cell.reader & SEVERAL ? (cell.reader & ~SEVERAL) * WARP : cell.reader;
  if (cell.reader == SEVERAL_WARPS || !ordered_in_warp(one, cell.reader_warp_epoch))
    shared_race(code, access, offset, false, cell.reader);
}

template <Access access>
inline void check_shared(SharedCell* cell, size_t offset, unsigned bytes, const void* code) {
  for (unsigned done = 0; done < bytes; done += GRANULE_BYTES, ++cell) {
    if (cell->write_epoch == COPYING)
      fail_at(code, "race: it %s byte %zu of shared memory, to which a copy of thread %u is under way", VERBS[access],
              offset + done, cell->writer);
    bool this_epoch = cell->write_epoch == now.epoch;
    if (this_epoch && cell->writer != now.thread && !ordered_in_warp(cell->writer, cell->writer_warp_epoch))
      shared_race(code, access, offset + done, true, cell->writer);
    if (access == READ) {
      if (cell->write_epoch < now.block_epoch)
        fail_at(code, "it reads byte %zu of shared memory, which no thread of its block wrote before", offset + done);
      note_reader(*cell);
    } else {
      check_readers(*cell, code, access, offset + done);
      cell->write_epoch = now.epoch;
      cell->writer = now.thread;
      cell->writer_warp_epoch = now.warp_epoch;
    }
  }
}

// "workspace byte 512" for a place in the arena.
std::string place_of(size_t offset) {
  for (const Region& region : now.program->regions)
    if (offset - region.begin < region.size) return region.name + " byte " + std::to_string(offset - region.begin);
  return "memory between the regions";
}

[[noreturn]] __attribute__((noinline)) void out_of_bounds(const void* code, Access access, unsigned view,
                                                          size_t offset, unsigned bytes) {
  const auto& arguments = now.launch->arguments;
  if (view >= arguments.size() || !arguments[view].pointer)
    fail_at(code, "out of bounds: it %s through no argument's pointer", VERBS[access]);
  const Argument& argument = arguments[view];
  fail_at(code, "out of bounds: it %s %u bytes at byte %td of argument %u, which has %zu", VERBS[access], bytes,
          static_cast<ptrdiff_t>(offset - argument.begin), view, argument.size);
}

__attribute__((noinline)) void unwritten(const void* code, unsigned view, size_t offset, const GlobalCell& cell) {
  size_t byte = offset - now.launch->arguments[view].begin;
  if (cell.launch)
    fail_at(code, "it reads byte %zu of argument %u (%s), which launch %u wrote as part of another tensor", byte,
            view, place_of(offset).c_str(), cell.launch - 1);
  fail_at(code, "it reads byte %zu of argument %u (%s), which nobody wrote", byte, view, place_of(offset).c_str());
}

// Threads of one block are ordered by its barriers; other threads of a launch are not ordered at all.
inline bool ordered_globally(const GlobalCell& cell, uint64_t thread, uint64_t block_threads) {
  return cell.thread == thread || (cell.thread / block_threads == now.block && cell.epoch < now.epoch);
}

template <Access access>
inline void check_cells(const Argument& argument, unsigned view, size_t offset, unsigned bytes, const void* code) {
  const Index& block = now.launch->block;
  uint64_t block_threads = uint64_t{block.x} * block.y * block.z;
  uint64_t thread = now.block * block_threads + now.thread;
  GlobalCell* cell = cells + (offset - cells_begin) / GRANULE_BYTES;
  for (unsigned done = 0; done < bytes; done += GRANULE_BYTES, ++cell) {
    if (cell->launch == now.number && !ordered_globally(*cell, thread, block_threads) &&
        !(access == ATOMIC && cell->atomic))
      fail_at(code, "race: it %s byte %zu of argument %u, which thread %zu of block %zu wrote in the same launch",
              VERBS[access], offset + done - argument.begin, view, size_t(cell->thread % block_threads),
              size_t(cell->thread / block_threads));
    if (access != WRITE && (!cell->launch || cell->extent != argument.extent))
      unwritten(code, view, offset + done, *cell);
    if (access != READ) *cell = {now.number, argument.extent, thread, now.epoch, access == ATOMIC};
  }
}

template <Access access>
inline void check_global(uintptr_t distance, unsigned bytes, const void* code) {
  unsigned view = distance >> VIEW_SHIFT;
  size_t offset = distance & ((size_t{1} << VIEW_SHIFT) - 1);
  const auto& arguments = now.launch->arguments;
  if (view >= arguments.size() || !arguments[view].pointer || offset < arguments[view].begin ||
      offset + bytes > arguments[view].begin + arguments[view].size)
    out_of_bounds(code, access, view, offset, bytes);
  const Argument& argument = arguments[view];
  if (access != READ && !argument.writes)
    fail_at(code, "it writes to argument %u, which its plan says is only read", view);
  if (offset >= cells_begin) check_cells<access>(argument, view, offset, bytes, code);
}

// Dynamic shared memory, the thread's own stack and constants; everything else is nobody's to touch.
template <Access access>
__attribute__((noinline)) void check_elsewhere(uintptr_t at, unsigned bytes, const void* code) {
  size_t dynamic = at - reinterpret_cast<uintptr_t>(emulator_dynamic_shared);
  if (dynamic < MOST_DYNAMIC_BYTES) {
    if (dynamic + bytes > now.launch->dynamic_bytes)
      fail_at(code, "out of bounds: it %s %u bytes at byte %zu of %u of dynamic shared memory", VERBS[access], bytes,
              dynamic, now.launch->dynamic_bytes);
    return check_shared<access>(dynamic_cells + dynamic / GRANULE_BYTES, dynamic, bytes, code);
  }
  bool constant = (at >= reinterpret_cast<uintptr_t>(__executable_start) && at < reinterpret_cast<uintptr_t>(data_start)) ||
                  (at >= reinterpret_cast<uintptr_t>(__start_emulator_constants) &&
                   at < reinterpret_cast<uintptr_t>(__stop_emulator_constants));
  if (!on_own_stack(at) && !(constant && access == READ))
    fail_at(code, "out of bounds: it %s %u bytes beside the %zu of shared memory and all arguments", VERBS[access],
            bytes, size_t(static_bytes));
}

template <Access access, bool aligned>
__attribute__((noinline)) void check(const void* address, unsigned bytes, const void* code) {
  uintptr_t at = reinterpret_cast<uintptr_t>(address);
  if (aligned && at & (bytes - 1)) fail_at(code, "misaligned: it %s %u bytes at an odd address", VERBS[access], bytes);
  uintptr_t in_static = at - static_begin, in_view = at - reinterpret_cast<uintptr_t>(now.views);
  if (in_static < static_bytes) {
    // Its end may be past it, if it is not aligned.
    if (in_static + bytes > static_bytes)
      fail_at(code, "out of bounds: it %s %u bytes at byte %zu of %zu of shared memory", VERBS[access], bytes,
              size_t(in_static), size_t(static_bytes));
    check_shared<access>(static_cells + in_static / GRANULE_BYTES, in_static, bytes, code);
  } else if (in_view < uintptr_t{MOST_VIEWS} << VIEW_SHIFT) {
    check_global<access>(in_view, bytes, code);
  } else {
    check_elsewhere<access>(at, bytes, code);
  }
}

// What nearly all accesses are: to static shared memory, aligned, and ordered by barriers after all others.
// Return false, having changed nothing, for what needs a closer look.
inline bool plainly_read(const void* address, unsigned bytes) {
  uintptr_t offset = reinterpret_cast<uintptr_t>(address) - static_begin;
  if (offset >= static_bytes || offset & (bytes - 1)) return false;
  SharedCell* cell = static_cells + offset / GRANULE_BYTES;
  SharedCell* const end = cell + (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
  for (SharedCell* each = cell; each != end; ++each)
    if (each->write_epoch - now.block_epoch >= now.epoch - now.block_epoch) return false;
  for (SharedCell* each = cell; each != end; ++each) note_reader(*each);
  return true;
}

inline bool plainly_written(const void* address, unsigned bytes) {
  uintptr_t offset = reinterpret_cast<uintptr_t>(address) - static_begin;
  if (offset >= static_bytes || offset & (bytes - 1)) return false;
  SharedCell* cell = static_cells + offset / GRANULE_BYTES;
  SharedCell* const end = cell + (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
  for (SharedCell* each = cell; each != end; ++each)
    if (each->read_epoch == now.epoch || each->write_epoch == now.epoch || each->write_epoch == COPYING) return false;
  for (SharedCell* each = cell; each != end; ++each) {
    each->write_epoch = now.epoch;
    each->writer = now.thread;
    each->writer_warp_epoch = now.warp_epoch;
  }
  return true;
}

}  // namespace

namespace {

// The cells of a place in shared memory that a copy goes to.
SharedCell* cells_of(const void* into, unsigned bytes, const void* code) {
  size_t offset = reinterpret_cast<uintptr_t>(into) - static_begin;
  if (offset >= static_bytes || offset + bytes > static_bytes)
    fail_at(code, "out of bounds: it copies %u bytes to what is no static shared memory", bytes);
  return static_cells + offset / GRANULE_BYTES;
}

}  // namespace

void begin_copy(void* into, const void* from, unsigned bytes, bool given, const void* code) {
  SharedCell* cell = cells_of(into, bytes, code);
  if (given) {
    uintptr_t in_view = reinterpret_cast<uintptr_t>(from) - reinterpret_cast<uintptr_t>(now.views);
    if (in_view >= uintptr_t{MOST_VIEWS} << VIEW_SHIFT)
      fail_at(code, "out of bounds: it copies %u bytes from what is no global memory", bytes);
    check<READ, true>(from, bytes, code);
  }
  check<WRITE, true>(into, bytes, code);
  std::memset(into, POISON, bytes);
  for (unsigned done = 0; done < bytes; done += GRANULE_BYTES) cell++->write_epoch = COPYING;
}

void end_copy(void* into, unsigned bytes, const void* code) {
  SharedCell* cell = cells_of(into, bytes, code);
  for (unsigned done = 0; done < bytes; done += GRANULE_BYTES, ++cell) {
    cell->write_epoch = now.epoch;
    cell->writer_warp_epoch = now.warp_epoch;
  }
}

void prepare_checks(const Program& program) {
  cells_begin = program.arena_bytes;
  for (const Region& region : program.regions)
    if (!region.written && region.begin < cells_begin) cells_begin = region.begin;
  size_t count = (program.arena_bytes - cells_begin) / GRANULE_BYTES + 1;
  void* memory = mmap(nullptr, count * sizeof(GlobalCell), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory to remember who wrote %zu bytes", program.arena_bytes);
  cells = static_cast<GlobalCell*>(memory);
}

void begin_launch_checks() {
  const Kernel& kernel = *now.launch->kernel;
  static_begin = reinterpret_cast<uintptr_t>(kernel.shared_begin);
  static_bytes = kernel.shared_end - kernel.shared_begin;
  if (static_bytes > MOST_STATIC_BYTES)
    fail("kernel %s declares %zu bytes of shared memory; a block has %zu", kernel.name, size_t(static_bytes),
         MOST_STATIC_BYTES);
}

// What a launch writes is nobody's any more when it begins.
void forget_written() {
  for (const Argument& argument : now.launch->arguments) {
    if (!argument.writes) continue;
    std::memset(now.views + argument.begin, POISON, argument.size);
    std::memset(static_cast<void*>(cells + (argument.begin - cells_begin) / GRANULE_BYTES), 0,
                argument.size / GRANULE_BYTES * sizeof(GlobalCell));
  }
}

void check_all_is_written() {
  for (size_t index = 0; index < now.launch->arguments.size(); ++index) {
    const Argument& argument = now.launch->arguments[index];
    const GlobalCell* cell = cells + (argument.begin - cells_begin) / GRANULE_BYTES;
    for (size_t byte = 0; argument.writes && byte < argument.size; byte += GRANULE_BYTES, ++cell)
      if (!cell->launch)
        fail("launch %u (%s) left byte %zu of argument %zu unwritten", now.number - 1, now.launch->kernel->name,
             byte, index);
  }
}

extern "C" {
void __tsan_init() {}
#define HOOKS(bytes)                                                                                        \
  void __tsan_read##bytes(void* at) {                                                                       \
    if (!plainly_read(at, bytes)) check<READ, true>(at, bytes, __builtin_return_address(0));                \
  }                                                                                                         \
  void __tsan_write##bytes(void* at) {                                                                      \
    if (!plainly_written(at, bytes)) check<WRITE, true>(at, bytes, __builtin_return_address(0));            \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS
#define HOOKS(bytes)                                                                                             \
  void __tsan_unaligned_read##bytes(void* at) { check<READ, false>(at, bytes, __builtin_return_address(0)); }    \
  void __tsan_unaligned_write##bytes(void* at) { check<WRITE, false>(at, bytes, __builtin_return_address(0)); }
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS
void __tsan_read_range(void* at, size_t bytes) { check<READ, false>(at, bytes, __builtin_return_address(0)); }
void __tsan_write_range(void* at, size_t bytes) { check<WRITE, false>(at, bytes, __builtin_return_address(0)); }
void emulator_atomic(void* at, unsigned bytes) { check<ATOMIC, true>(at, bytes, __builtin_return_address(0)); }
}
