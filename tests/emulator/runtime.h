// What the parts of the emulated device share: the program that it runs, and the threads that run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct Index {
  unsigned x, y, z;
};

// A kernel of the generated source; the table of them is written when the source is compiled (build.py).
struct Kernel {
  const char* name;
  void (*invoke)(void** arguments);
  unsigned char* shared_begin;
  unsigned char* shared_end;
  bool placed;  // Its arrays are places: an entry of the table of addresses, and the bytes from there.
};
extern const Kernel kernels[];
extern const unsigned kernel_count;

// Places in the arena, which holds all that a kernel can be given an address of.
struct Region {
  std::string name;
  size_t begin, size;
  bool written;  // It held values before the first launch, and no kernel may write it.
};

struct Argument {
  bool pointer, writes;
  size_t begin, size;  // A pointer's place in the arena.
  std::vector<uint64_t> bits;  // A number's value, or what is passed by value.
  uint32_t extent;     // The same for all pointers to the same place and size.
};

struct Launch {
  const Kernel* kernel;
  Index grid, block;
  unsigned dynamic_bytes;
  std::vector<Argument> arguments;
};

struct Program {
  unsigned workers = 1;
  size_t arena_bytes = 0;
  std::vector<Region> regions;
  std::vector<Launch> launches;
};

// Each argument of a kernel of places has an entry of its own.
extern unsigned long long mainspring_addresses[] __attribute__((weak));
constexpr unsigned ENTRY_SHIFT = 48;

constexpr unsigned MOST_THREADS = 1024;
constexpr unsigned WARP = 32;
constexpr unsigned MOST_DYNAMIC_BYTES = 227 * 1024;

// Each pointer argument is an address in a view of the arena of its own, so that an address says which
// argument it was computed from.
constexpr unsigned VIEW_SHIFT = 34;
constexpr unsigned MOST_VIEWS = 256;

struct Now {
  const Program* program;
  const Launch* launch;
  uint32_t number;      // Of the launch, from 1.
  uint32_t epoch;       // Rises with each barrier and each block.
  uint32_t block_epoch; // The first epoch of the block that runs.
  uint64_t block;
  unsigned thread;      // In its block.
  uint16_t warp_epoch;  // Rises with each barrier of the thread's warp.
  unsigned char* views;
};
extern Now now;

// Say what went wrong, where, and end the process.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail_at(const void* code, const char* format, ...);

constexpr int POISON = 0xff;  // Bytes of a NaN in every floating-point type, and of -1 in integers.

// Memory checks (checks.cpp).
void prepare_checks(const Program& program);
void begin_launch_checks();
void forget_written();
void check_all_is_written();

// Blocks (fibers.cpp).
void run_block(Index block, void** arguments);
bool on_own_stack(uintptr_t address);

// Copies in the background (copies.cpp): of the thread that runs.
unsigned pending_copies();
// A copy to shared memory has been asked for, of which nothing has arrived; or it arrives.
void begin_copy(void* into, const void* from, unsigned bytes, bool given, const void* code);
void end_copy(void* into, unsigned bytes, const void* code);
