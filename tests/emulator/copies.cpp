// Copies in the background from global to shared memory, as the PTX ISA has cp.async.
//
// A thread's copies are in groups; waiting for all groups but the latest few makes the copies of the others
// arrive, in order, and no copy arrives earlier. On a device some may: a kernel that reads too early is right
// there now and then. Until a copy arrives nobody may touch the place that it goes to (checks.cpp).
#include <cstring>
#include <deque>

#include "runtime.h"

namespace {

struct Copy {
  void* into;
  const void* from;  // None if zeros are copied.
  unsigned bytes;
  const void* code;
};

struct Queue {
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;  // Copies that no group has yet.
};

Queue queues[MOST_THREADS];

}  // namespace

unsigned pending_copies() {
  const Queue& queue = queues[now.thread];
  unsigned count = queue.open.size();
  for (const auto& group : queue.groups) count += group.size();
  return count;
}

extern "C" {

void emulator_copy(void* into, const void* from, unsigned bytes, int given) {
  const void* code = __builtin_return_address(0);
  begin_copy(into, from, bytes, given, code);
  queues[now.thread].open.push_back({into, given ? from : nullptr, bytes, code});
}

void emulator_commit() {
  Queue& queue = queues[now.thread];
  queue.groups.push_back(std::move(queue.open));
  queue.open.clear();
}

void emulator_wait(unsigned groups) {
  Queue& queue = queues[now.thread];
  for (; queue.groups.size() > groups; queue.groups.pop_front())
    for (const Copy& copy : queue.groups.front()) {
      end_copy(copy.into, copy.bytes, copy.code);
      if (copy.from)
        std::memcpy(copy.into, copy.from, copy.bytes);
      else
        std::memset(copy.into, 0, copy.bytes);
    }
}
}
