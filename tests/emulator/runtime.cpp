// The emulated device: it reads a program, runs its launches in order, and says what a device would not.
//
// Called as `emulator PROGRAM ARENA`. The arena is a file of all memory, which launches read and write in
// place. Blocks are shared out among several processes, since shared memory is static; at the end of each
// launch all wait for all. Exits with 0, or with 3 after one line on standard error.
#include "runtime.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" const Index threadIdx, blockIdx;

Now now;

namespace {

constexpr int FAILED = 3;
constexpr size_t MOST_ARENA_BYTES = size_t{1} << VIEW_SHIFT;

[[noreturn]] void say(const std::string& text) {
  std::string line = text + "\n";
  // One call: lines of two processes don't mix.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(FAILED + 1);
  _exit(FAILED);
}

std::string formatted(const char* format, va_list values) {
  char text[1024];
  vsnprintf(text, sizeof text, format, values);
  return text;
}

const Kernel* find_kernel(const char* name) {
  for (unsigned index = 0; index < kernel_count; ++index)
    if (!strcmp(name, kernels[index].name)) return &kernels[index];
  fail("the source has no kernel %s", name);
}

// The program's words, one after the other; after the last they are empty.
class Words {
 public:
  explicit Words(const char* path) : path_(path), file_(fopen(path, "r")) {
    if (!file_) fail("%s does not open", path);
  }
  bool next() { return fscanf(file_, "%255s", word_) == 1; }
  const char* text() {
    if (!next()) fail("%s ends early", path_);
    return word_;
  }
  uint64_t number(int base = 10) {
    char* end;
    uint64_t value = strtoull(text(), &end, base);
    if (*end) fail("%s: %s is no number", path_, word_);
    return value;
  }
  Index index() {
    unsigned x = number(), y = number(), z = number();
    return {x, y, z};
  }
  bool is(const char* word) const { return !strcmp(word_, word); }
  const char* word() const { return word_; }

 private:
  const char* path_;
  FILE* file_;
  char word_[256];
};

Argument read_argument(Words& words, std::vector<Argument>& known) {
  Argument argument{};
  words.text();
  if (words.is("number")) {
    for (size_t left = words.number(); left; --left) argument.bits.push_back(words.number(16));
    return argument;
  }
  argument.pointer = true;
  argument.begin = words.number();
  argument.size = words.number();
  argument.writes = words.number();
  for (const Argument& other : known)
    if (other.begin == argument.begin && other.size == argument.size) argument.extent = other.extent;
  if (!argument.extent) {
    argument.extent = known.size() + 1;
    known.push_back(argument);
  }
  return argument;
}

Launch read_launch(Words& words, std::vector<Argument>& known) {
  Launch launch;
  launch.kernel = find_kernel(words.text());
  launch.grid = words.index();
  launch.block = words.index();
  launch.dynamic_bytes = words.number();
  for (size_t left = words.number(); left; --left) launch.arguments.push_back(read_argument(words, known));
  return launch;
}

Program read_program(const char* path) {
  Words words(path);
  Program program;
  std::vector<Argument> known;
  while (words.next()) {
    if (words.is("workers")) {
      program.workers = words.number();
    } else if (words.is("arena")) {
      program.arena_bytes = words.number();
    } else if (words.is("region")) {
      Region region{words.text(), words.number(), words.number(), words.number() != 0};
      program.regions.push_back(region);
    } else if (words.is("launch")) {
      program.launches.push_back(read_launch(words, known));
    } else {
      fail("%s: %s is no statement", path, words.word());
    }
  }
  if (program.arena_bytes > MOST_ARENA_BYTES) fail("%zu bytes are more than a view has", program.arena_bytes);
  return program;
}

// Map the arena once for each argument that a launch may have.
void map_views(const Program& program, const char* path) {
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) fail("%s does not open", path);
  size_t span = size_t{MOST_VIEWS} << VIEW_SHIFT;
  void* reserved = mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail("%zu bytes of addresses are not to be had", span);
  now.views = static_cast<unsigned char*>(reserved);
  size_t most = 1;
  for (const Launch& launch : program.launches) most = std::max(most, launch.arguments.size());
  if (most > MOST_VIEWS) fail("a launch has %zu arguments; the emulator has %u views", most, MOST_VIEWS);
  for (size_t view = 0; view < most; ++view)
    if (mmap(now.views + (view << VIEW_SHIFT), program.arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
             0) == MAP_FAILED)
      fail("%s can't be mapped", path);
}

void run_launch(const Launch& launch, unsigned worker, unsigned workers) {
  std::vector<std::vector<uint64_t>> values;
  std::vector<void*> arguments;
  for (size_t index = 0; index < launch.arguments.size(); ++index) {
    const Argument& argument = launch.arguments[index];
    uint64_t address = reinterpret_cast<uint64_t>(now.views + (index << VIEW_SHIFT) + argument.begin);
    values.push_back(argument.pointer ? std::vector<uint64_t>{address} : argument.bits);
    if (!argument.pointer || !launch.kernel->placed) continue;
    mainspring_addresses[index] = address;
    values.back() = {uint64_t{index} << ENTRY_SHIFT};
  }
  for (std::vector<uint64_t>& value : values) arguments.push_back(value.data());
  begin_launch_checks();
  uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  for (now.block = worker; now.block < blocks; now.block += workers) {
    auto in_plane = static_cast<unsigned>(now.block / launch.grid.x);
    run_block({static_cast<unsigned>(now.block % launch.grid.x), in_plane % launch.grid.y, in_plane / launch.grid.y},
              arguments.data());
  }
}

void run_worker(const Program& program, unsigned worker, pthread_barrier_t* barrier) {
  for (const Launch& launch : program.launches) {
    now.launch = &launch;
    ++now.number;
    if (worker == 0) forget_written();
    pthread_barrier_wait(barrier);
    run_launch(launch, worker, program.workers);
    pthread_barrier_wait(barrier);
    if (worker == 0) check_all_is_written();
  }
}

pthread_barrier_t* make_barrier(unsigned workers) {
  void* memory = mmap(nullptr, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* barrier = static_cast<pthread_barrier_t*>(memory);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(barrier, &shared, workers);
  return barrier;
}

// Wait for all; when one fails, end the others, which wait for it. Return its status.
int wait_for(std::vector<pid_t>& workers) {
  for (size_t left = workers.size(); left; --left) {
    int status;
    pid_t ended = wait(&status);
    workers.erase(std::find(workers.begin(), workers.end(), ended));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    for (pid_t worker : workers) kill(worker, SIGKILL);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    fprintf(stderr, "a kernel was ended by signal %d\n", WTERMSIG(status));
    return FAILED;
  }
  return 0;
}

}  // namespace

void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  say(formatted(format, values));
}

void fail_at(const void* code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  char where[256];
  snprintf(where, sizeof where, "launch %u (%s), block (%u, %u, %u), thread (%u, %u, %u)", now.number - 1,
           now.launch->kernel->name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  std::string text = std::string(where) + ": " + formatted(format, values);
  if (code) {
    snprintf(where, sizeof where, " [at %p]", code);
    text += where;
  }
  say(text);
}

int main(int count, char** words) {
  if (count != 3) fail("usage: emulator PROGRAM ARENA");
  Program program = read_program(words[1]);
  now.program = &program;
  map_views(program, words[2]);
  prepare_checks(program);
  pthread_barrier_t* barrier = make_barrier(program.workers);
  std::vector<pid_t> workers;
  const pid_t parent = getpid();
  for (unsigned worker = 0; worker < program.workers; ++worker) {
    pid_t child = fork();
    if (child < 0) fail("no process for worker %u", worker);
    if (child == 0) {
      // A worker of its own would run on for ever, if its kernel does.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(FAILED);
      run_worker(program, worker, barrier);
      _exit(0);
    }
    workers.push_back(child);
  }
  return wait_for(workers);
}
