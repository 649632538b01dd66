/* A libcuda.so.1 without a GPU: the driver API as far as Mainspring calls it, on memory of the host.
 *
 * Work is done when it is submitted; each stream has a clock that copies and kernels advance, and events keep
 * its time. Calls that CUDA refuses are refused with its error: no context in the thread, a handle of another
 * kind, memory that nobody allocated, calls that a capture forbids. Kernels are functions that a test
 * registers (`fake_kernel`). Every call is noted with the arguments that are not addresses (`fake_calls`).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef uint64_t Address;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
       ALREADY_REGISTERED = 712, CAPTURE_UNSUPPORTED = 900 };
enum { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, GRAPH, EXECUTABLE };
enum { COPY, CLEAR, KERNEL, RECORD, WAIT };
enum { DEVICE, HOST, REGISTERED };
#define MOST 4096
#define WORDS 512
#define PARAMETERS 64
#define NS_A_CALL 1000
#define BYTES_A_NS 50

typedef void (*Run)(uint64_t *values, void **variables);
typedef struct { char name[128]; Run run; int parameters, words[PARAMETERS]; int64_t duration_ns; } Kernel;
typedef struct { char name[128]; size_t size; } Symbol;
typedef struct { Address address; size_t size; int kind; void *block; } Memory;
typedef struct Object Object;
typedef struct { int kind; Address target, source; size_t size; Object *function, *event;
                 uint64_t values[WORDS]; } Step;
struct Object {
    int kind, flags, priority, capturing, recorded, shared, count;
    pthread_t owner;
    int64_t now_ns;
    Step *steps;
    Kernel *kernel;
    Object *module;
    void *variables[64];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized, contexts, context_flags, memories, kernels, symbols, failing, devices = 2;
static int version = 13000;
static size_t total_bytes = (size_t)1 << 30;
static Object context = {CONTEXT};
static __thread Object *current;
static __thread Object *captured;
static Memory memory[MOST];
static Kernel kernel[MOST];
static Symbol symbol[64];
static struct { char call[64]; Status status; } fails[64];
static char calls[1 << 20];
static size_t calls_size;
static int alive[EXECUTABLE + 1];

/* --- for tests --- */

void fake_reset(void) {
    initialized = contexts = context_flags = memories = kernels = symbols = failing = 0;
    current = captured = NULL;
    calls_size = calls[0] = 0;
    memset(alive, 0, sizeof alive);
    devices = getenv("FAKE_LIBCUDA_DEVICES") ? atoi(getenv("FAKE_LIBCUDA_DEVICES")) : 2;
    version = getenv("FAKE_LIBCUDA_VERSION") ? atoi(getenv("FAKE_LIBCUDA_VERSION")) : 13000;
}
__attribute__((constructor)) static void start(void) { fake_reset(); }
void fake_total(size_t bytes) { total_bytes = bytes; }
void fake_kernel(const char *name, Run run, const int *words, int parameters, int64_t duration_ns) {
    Kernel *made = &kernel[kernels++];
    memcpy(made->words, words, parameters * sizeof *words);
    snprintf(made->name, sizeof made->name, "%s", name);
    made->run = run, made->parameters = parameters, made->duration_ns = duration_ns;
}
void fake_symbol(const char *name, size_t size) {
    snprintf(symbol[symbols].name, sizeof symbol[symbols].name, "%s", name);
    symbol[symbols++].size = size;
}
void fake_fail(const char *call, Status status) {
    snprintf(fails[failing].call, sizeof fails[failing].call, "%s", call);
    fails[failing++].status = status;
}
const char *fake_calls(void) { return calls; }
void fake_forget_calls(void) { calls_size = calls[0] = 0; }
int fake_alive(int kind) { return kind ? alive[kind] : memories; }
int fake_contexts(void) { return contexts; }

/* --- inside --- */

static Status note(const char *call, const char *form, ...) {
    va_list values;
    va_start(values, form);
    size_t room = sizeof calls - calls_size;
    if (room > 512) {
        calls_size += snprintf(calls + calls_size, room, "%s", call);
        calls_size += vsnprintf(calls + calls_size, sizeof calls - calls_size, form, values);
        calls_size += snprintf(calls + calls_size, sizeof calls - calls_size, "\n");
    }
    va_end(values);
    for (int i = 0; i < failing; i++)
        if (!strcmp(fails[i].call, call)) return fails[i].status;
    return initialized || !strcmp(call, "cuInit") ? 0 : NOT_INITIALIZED;
}
static Status in_context(const char *call, Status noted, int unsafe) {
    (void)call;
    if (noted) return noted;
    if (!current || !contexts) return INVALID_CONTEXT;
    return unsafe && captured ? CAPTURE_UNSUPPORTED : 0;
}
static Object *make(int kind) {
    Object *made = calloc(1, sizeof *made);
    made->kind = kind;
    alive[kind]++;
    return made;
}
static int is(Object *object, int kind) { return object && object->kind == kind; }
static void destroy(Object *object) {
    alive[object->kind]--;
    free(object->steps);
    free(object);
}
static Memory *find(Address address, size_t size) {
    for (int i = 0; i < memories; i++)
        if (memory[i].address <= address && address + size <= memory[i].address + memory[i].size)
            return &memory[i];
    return NULL;
}
static int lies(Address address, size_t size, int on_device) {
    Memory *found = find(address, size);
    return found && (found->kind == DEVICE) == on_device;
}
static Status take(Address *target, size_t size, int kind) {
    size_t used = 0;
    for (int i = 0; i < memories; i++) used += memory[i].kind == DEVICE ? memory[i].size : 0;
    if (!size) return INVALID_VALUE;
    if (memories == MOST || (kind == DEVICE && used + size > total_bytes)) return OUT_OF_MEMORY;
    void *block = aligned_alloc(256, (size + 255) / 256 * 256);
    if (!block) return OUT_OF_MEMORY;
    memory[memories++] = (Memory){(Address)block, size, kind, block};
    *target = (Address)block;
    return 0;
}
static Status drop(Address address, int kind) {
    for (int i = 0; i < memories; i++)
        if (memory[i].address == address && memory[i].kind == kind) {
            free(memory[i].block);
            memory[i] = memory[--memories];
            return 0;
        }
    return INVALID_VALUE;
}
static void perform(Object *stream, Step *step) {
    if (step->kind == COPY) memmove((void *)step->target, (void *)step->source, step->size);
    if (step->kind == CLEAR) memset((void *)step->target, (int)step->source, step->size);
    if (step->kind == COPY || step->kind == CLEAR) stream->now_ns += NS_A_CALL + step->size / BYTES_A_NS;
    if (step->kind == KERNEL) {
        Kernel *kernel = step->function->kernel;
        stream->now_ns += kernel->duration_ns;
        kernel->run(step->values, step->function->module->variables);
    }
    if (step->kind == RECORD) step->event->now_ns = stream->now_ns, step->event->recorded = 1;
    if (step->kind == WAIT && step->event->now_ns > stream->now_ns) stream->now_ns = step->event->now_ns;
}
static Status submit(Object *stream, Step step) {
    if (!is(stream, STREAM)) return INVALID_HANDLE;
    if (!stream->capturing) return perform(stream, &step), 0;
    stream->steps = realloc(stream->steps, (stream->count + 1) * sizeof step);
    stream->steps[stream->count++] = step;
    return 0;
}
static void move_steps(Object *target, Object *source) {
    free(target->steps);
    target->steps = malloc((source->count + 1) * sizeof(Step));
    if (source->count) memcpy(target->steps, source->steps, source->count * sizeof(Step));
    target->count = source->count;
}

#define BEGIN(...) pthread_mutex_lock(&lock); Status status = note(__func__, __VA_ARGS__)
#define HERE(unsafe, ...) BEGIN(__VA_ARGS__); status = in_context(__func__, status, unsafe)
#define WITH(condition, error) if (!status && !(condition)) status = error
#define END pthread_mutex_unlock(&lock); return status

/* --- the driver, its devices and contexts --- */

Status cuInit(unsigned flags) { BEGIN(" %u", flags); WITH(devices, NO_DEVICE); if (!status) initialized = 1; END; }
Status cuDriverGetVersion(int *found) { *found = version; return 0; }
Status cuDeviceGetCount(int *count) { BEGIN(""); if (!status) *count = devices; END; }
Status cuDeviceGet(int *device, int ordinal) {
    BEGIN(" %d", ordinal);
    WITH(ordinal >= 0 && ordinal < devices, INVALID_DEVICE);
    if (!status) *device = ordinal;
    END;
}
Status cuDeviceGetName(char *name, int size, int device) {
    BEGIN(" %d", device);
    if (!status) snprintf(name, size, "NVIDIA Fake %d", device);
    END;
}
Status cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN(" %d %d", attribute, device);
    static const int attributes[][2] = {{13, 1980000}, {16, 16}, {36, 2619000}, {37, 5120},
                                        {75, 9}, {76, 0}, {82, 65536}, {97, 232448}, {113, 1}};
    size_t known = 0;
    while (known < 9 && attributes[known][0] != attribute) known++;
    WITH(known < 9, INVALID_VALUE);
    if (!status) *value = attributes[known][1];
    END;
}
Status cuDeviceGetPCIBusId(char *text, int size, int device) {
    BEGIN(" %d", device);
    if (!status) snprintf(text, size, "0000:%02X:00.0", 0x3b + device);
    END;
}
Status cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    BEGIN(" %d %u", device, flags);
    if (!status) context_flags = flags;
    END;
}
Status cuDevicePrimaryCtxRetain(Object **found, int device) {
    BEGIN(" %d", device);
    if (!status) contexts++, *found = &context;
    END;
}
Status cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN(" %d", device);
    WITH(contexts, INVALID_CONTEXT);
    if (!status) contexts--;
    END;
}
Status cuCtxSetCurrent(Object *wanted) {
    BEGIN("");
    WITH(wanted == &context && contexts, INVALID_CONTEXT);
    if (!status) current = wanted;
    END;
}
Status cuCtxSynchronize(void) { HERE(1, ""); END; }
Status cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    HERE(0, "");
    if (!status) *least = 0, *greatest = -5;
    END;
}
static const struct { Status status; const char *name, *text; } errors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
};
static Status look_up(Status status, const char **found, int text) {
    *found = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].status == status) return *found = text ? errors[i].text : errors[i].name, 0;
    return INVALID_VALUE;
}
Status cuGetErrorName(Status status, const char **found) { return look_up(status, found, 0); }
Status cuGetErrorString(Status status, const char **found) { return look_up(status, found, 1); }

/* --- memory --- */

Status cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    HERE(0, "");
    size_t used = 0;
    for (int i = 0; i < memories; i++) used += memory[i].kind == DEVICE ? memory[i].size : 0;
    if (!status) *total = total_bytes, *free_bytes = total_bytes - used;
    END;
}
Status cuMemAlloc_v2(Address *target, size_t size) {
    HERE(1, " %zu", size);
    if (!status) status = take(target, size, DEVICE);
    END;
}
Status cuMemFree_v2(Address address) { HERE(1, ""); if (!status) status = drop(address, DEVICE); END; }
Status cuMemHostAlloc(void **target, size_t size, unsigned flags) {
    HERE(1, " %zu %u", size, flags);
    Address found = 0;
    if (!status) status = take(&found, size, HOST);
    *target = (void *)found;
    END;
}
Status cuMemFreeHost(void *address) { HERE(1, ""); if (!status) status = drop((Address)address, HOST); END; }
Status cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    HERE(1, " %zu %u", size, flags);
    Address begin = (Address)address;
    for (int i = 0; i < memories; i++)
        WITH(begin + size <= memory[i].address || memory[i].address + memory[i].size <= begin, ALREADY_REGISTERED);
    WITH(size && memories < MOST, INVALID_VALUE);
    if (!status) memory[memories++] = (Memory){begin, size, REGISTERED, NULL};
    END;
}
Status cuMemHostUnregister(void *address) {
    HERE(1, "");
    if (!status) status = drop((Address)address, REGISTERED);
    END;
}
Status cuMemcpyHtoDAsync_v2(Address target, const void *source, size_t size, Object *stream) {
    HERE(0, " %zu", size);
    WITH(lies(target, size, 1) && lies((Address)source, size, 0), INVALID_VALUE);
    if (!status) status = submit(stream, (Step){COPY, target, (Address)source, size});
    END;
}
Status cuMemcpyDtoHAsync_v2(void *target, Address source, size_t size, Object *stream) {
    HERE(0, " %zu", size);
    WITH(lies((Address)target, size, 0) && lies(source, size, 1), INVALID_VALUE);
    if (!status) status = submit(stream, (Step){COPY, (Address)target, source, size});
    END;
}
Status cuMemcpyDtoDAsync_v2(Address target, Address source, size_t size, Object *stream) {
    HERE(0, " %zu", size);
    WITH(lies(target, size, 1) && lies(source, size, 1), INVALID_VALUE);
    if (!status) status = submit(stream, (Step){COPY, target, source, size});
    END;
}
Status cuMemsetD8Async(Address target, unsigned char value, size_t size, Object *stream) {
    HERE(0, " %u %zu", value, size);
    WITH(lies(target, size, 1), INVALID_VALUE);
    if (!status) status = submit(stream, (Step){CLEAR, target, value, size});
    END;
}

/* --- streams and events --- */

Status cuStreamCreateWithPriority(Object **made, unsigned flags, int priority) {
    HERE(0, " %u %d", flags, priority);
    if (!status) *made = make(STREAM), (*made)->flags = flags, (*made)->priority = priority;
    END;
}
Status cuStreamDestroy_v2(Object *stream) {
    HERE(0, "");
    WITH(is(stream, STREAM), INVALID_HANDLE);
    if (!status) destroy(stream);
    END;
}
Status cuStreamWaitEvent(Object *stream, Object *event, unsigned flags) {
    HERE(0, " %u", flags);
    WITH(is(event, EVENT), INVALID_HANDLE);
    if (!status) status = submit(stream, (Step){.kind = WAIT, .event = event});
    END;
}
Status cuEventCreate(Object **made, unsigned flags) {
    HERE(0, " %u", flags);
    if (!status) *made = make(EVENT), (*made)->flags = flags;
    END;
}
Status cuEventDestroy_v2(Object *event) {
    HERE(0, "");
    WITH(is(event, EVENT), INVALID_HANDLE);
    if (!status) destroy(event);
    END;
}
Status cuEventRecord(Object *event, Object *stream) {
    HERE(0, "");
    WITH(is(event, EVENT), INVALID_HANDLE);
    if (!status) status = submit(stream, (Step){.kind = RECORD, .event = event});
    END;
}
Status cuEventRecordWithFlags(Object *event, Object *stream, unsigned flags) {
    HERE(0, " %u", flags);
    WITH(is(event, EVENT) && is(stream, STREAM), INVALID_HANDLE);
    WITH(flags == 1 && stream->capturing, INVALID_VALUE);
    if (!status) status = submit(stream, (Step){.kind = RECORD, .event = event});
    END;
}
Status cuEventQuery(Object *event) {
    HERE(0, "");
    WITH(is(event, EVENT), INVALID_HANDLE);
    END;
}
Status cuEventSynchronize(Object *event) {
    HERE(1, "");
    WITH(is(event, EVENT), INVALID_HANDLE);
    END;
}
Status cuEventElapsedTime(float *milliseconds, Object *begin, Object *end) {
    HERE(0, "");
    WITH(is(begin, EVENT) && is(end, EVENT) && !(begin->flags & 2) && !(end->flags & 2), INVALID_HANDLE);
    WITH(begin->recorded && end->recorded, INVALID_HANDLE);
    if (!status) *milliseconds = (float)((end->now_ns - begin->now_ns) / 1e6);
    END;
}

/* --- kernels and graphs --- */

Status cuModuleLoadData(Object **made, const void *image) {
    HERE(1, "");
    WITH(memcmp(image, "machine code", 12) == 0, INVALID_IMAGE);
    if (!status) {
        *made = make(MODULE);
        for (int i = 0; i < symbols; i++) {
            Address place = 0;
            take(&place, symbol[i].size, DEVICE);
            memset((void *)place, 0, symbol[i].size);
            (*made)->variables[i] = (void *)place;
        }
    }
    END;
}
Status cuModuleUnload(Object *module) {
    HERE(1, "");
    WITH(is(module, MODULE), INVALID_HANDLE);
    if (!status) {
        for (int i = 0; i < symbols; i++) drop((Address)module->variables[i], DEVICE);
        destroy(module);
    }
    END;
}
Status cuModuleGetFunction(Object **made, Object *module, const char *name) {
    HERE(0, " %s", name);
    WITH(is(module, MODULE), INVALID_HANDLE);
    if (!status) {
        status = NOT_FOUND;
        for (int i = 0; i < kernels; i++)
            if (!strcmp(kernel[i].name, name)) {
                *made = make(FUNCTION), (*made)->kernel = &kernel[i], (*made)->module = module, (*made)->shared = 48 << 10, status = 0;
                break;
            }
    }
    END;
}
Status cuModuleGetGlobal_v2(Address *found, size_t *size, Object *module, const char *name) {
    HERE(0, " %s", name);
    WITH(is(module, MODULE), INVALID_HANDLE);
    if (!status) {
        status = NOT_FOUND;
        for (int i = 0; i < symbols; i++)
            if (!strcmp(symbol[i].name, name))
                *found = (Address)module->variables[i], *size = symbol[i].size, status = 0;
    }
    END;
}
Status cuFuncSetAttribute(Object *function, int attribute, int value) {
    HERE(0, " %d %d", attribute, value);
    WITH(is(function, FUNCTION), INVALID_HANDLE);
    WITH(attribute == 8 && value <= 227 << 10, INVALID_VALUE);
    if (!status) function->shared = value;
    END;
}
Status cuLaunchKernel(Object *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, Object *stream, void **parameters, void **extra) {
    HERE(0, " %u %u %u %u %u %u %u", gx, gy, gz, bx, by, bz, shared);
    WITH(is(function, FUNCTION), INVALID_HANDLE);
    WITH(gx && gy && gz && gy < 65536 && gz < 65536 && bx && by && bz && bx * by * bz <= 1024 && bz <= 64, INVALID_VALUE);
    WITH(shared <= (unsigned)function->shared && !extra, INVALID_VALUE);
    if (!status) {
        Step step = {.kind = KERNEL, .function = function};
        uint64_t *next = step.values;
        for (int i = 0; i < function->kernel->parameters; next += function->kernel->words[i++])
            memcpy(next, parameters[i], 8 * function->kernel->words[i]);
        status = submit(stream, step);
    }
    END;
}
Status cuStreamBeginCapture_v2(Object *stream, int mode) {
    HERE(0, " %d", mode);
    WITH(is(stream, STREAM), INVALID_HANDLE);
    WITH(!stream->capturing && mode == 1, INVALID_VALUE);
    if (!status) stream->capturing = 1, stream->count = 0, stream->owner = pthread_self(), captured = stream;
    END;
}
Status cuStreamEndCapture(Object *stream, Object **graph) {
    HERE(0, "");
    WITH(is(stream, STREAM) && stream->capturing, INVALID_VALUE);
    WITH(pthread_equal(stream->owner, pthread_self()), 908);
    if (!status) {
        *graph = make(GRAPH);
        move_steps(*graph, stream);
        stream->capturing = stream->count = 0, captured = NULL;
    }
    END;
}
Status cuGraphInstantiateWithFlags(Object **made, Object *graph, unsigned long long flags) {
    HERE(0, " %llu", flags);
    WITH(is(graph, GRAPH), INVALID_VALUE);
    if (!status) *made = make(EXECUTABLE), move_steps(*made, graph);
    END;
}
Status cuGraphUpload(Object *executable, Object *stream) {
    HERE(0, "");
    WITH(is(executable, EXECUTABLE) && is(stream, STREAM), INVALID_HANDLE);
    END;
}
Status cuGraphLaunch(Object *executable, Object *stream) {
    HERE(0, "");
    WITH(is(executable, EXECUTABLE) && is(stream, STREAM), INVALID_HANDLE);
    for (int i = 0; !status && i < executable->count; i++) perform(stream, &executable->steps[i]);
    END;
}
Status cuGraphDestroy(Object *graph) {
    HERE(0, "");
    WITH(is(graph, GRAPH), INVALID_VALUE);
    if (!status) destroy(graph);
    END;
}
Status cuGraphExecDestroy(Object *executable) {
    HERE(0, "");
    WITH(is(executable, EXECUTABLE), INVALID_VALUE);
    if (!status) destroy(executable);
    END;
}
