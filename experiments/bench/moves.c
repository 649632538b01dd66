/* Counts the bytes that a process copies, for `moves.py`: loaded before all else (LD_PRELOAD), it stands before
   the functions of the C library that copy, and adds up what they are asked to. Copies of fewer than LEAST bytes
   are not of tensors. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { USER, IN, OUT, KINDS, LEAST = 2048 };

static long *counts;

static void add(int kind, long bytes) {
    if (counts && bytes >= LEAST) __atomic_add_fetch(&counts[kind], bytes, __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("MAINSPRING_MOVES");
    char path[4096];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    void *mapped = MAP_FAILED;
    if (!ftruncate(file, KINDS * sizeof *counts))
        mapped = mmap(NULL, KINDS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) counts = mapped;
}

/* Before the real ones are known, the dynamic linker itself may copy. */
static void *plain(void *to, const void *from, size_t size) {
    char *t = to;
    const char *f = from;
    if (t < f)
        for (size_t i = 0; i < size; i++) t[i] = f[i];
    else
        for (size_t i = size; i--;) t[i] = f[i];
    return to;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void *copied(void *to, const void *from, size_t size) {
    static void *(*real)(void *, const void *, size_t);
    static int looking;
    if (!real && !looking) {
        looking = 1;
        real = (void *(*)(void *, const void *, size_t))dlsym(RTLD_NEXT, "memmove");
        looking = 0;
    }
    if (!real) return plain(to, from, size);
    add(USER, size);
    return real(to, from, size);
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) { return copied(to, from, size); }
void *memmove(void *to, const void *from, size_t size) { return copied(to, from, size); }
void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) {
    if (size > room) abort();
    return copied(to, from, size);
}
void *__memmove_chk(void *to, const void *from, size_t size, size_t room) {
    if (size > room) abort();
    return copied(to, from, size);
}

#define MOVES(kind, name, parameters, ...) \
    ssize_t name parameters { \
        REAL(name); \
        ssize_t moved = real(__VA_ARGS__); \
        add(kind, moved); \
        return moved; \
    }

MOVES(IN, read, (int f, void *b, size_t n), f, b, n)
MOVES(IN, readv, (int f, const struct iovec *v, int n), f, v, n)
MOVES(IN, recv, (int f, void *b, size_t n, int o), f, b, n, o)
MOVES(IN, recvfrom, (int f, void *b, size_t n, int o, struct sockaddr *a, socklen_t *l), f, b, n, o, a, l)
MOVES(IN, recvmsg, (int f, struct msghdr *m, int o), f, m, o)
MOVES(OUT, write, (int f, const void *b, size_t n), f, b, n)
MOVES(OUT, writev, (int f, const struct iovec *v, int n), f, v, n)
MOVES(OUT, send, (int f, const void *b, size_t n, int o), f, b, n, o)
MOVES(OUT, sendto, (int f, const void *b, size_t n, int o, const struct sockaddr *a, socklen_t l), f, b, n, o, a, l)
MOVES(OUT, sendmsg, (int f, const struct msghdr *m, int o), f, m, o)
