/* Calls of the C library on files below one folder, of which the n-th of some kinds fails: loaded before it (LD_PRELOAD).

   Everything that reads or writes files in a process passes here: Python, Arrow (C++), delta-rs and Polars (Rust), and the JVM.
   tests/failing_files.py compiles it and says what is to fail. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, LIST = 16, STAT = 32, NAME = 64, DELETE = 128, MAKE = 256 };
enum mode { FAIL, FAIL_AFTERWARDS, SHORT, END_OF_FILE, SLOW };

/* What is to fail, and what did: in this process, or in all that FAILING_FILES names the same file to. */
static struct state {
    char folder[4096], failed_path[4096];
    size_t folder_length;
    int mode, number;
    long first, last;
    atomic_int kinds;
    atomic_long calls, failed;
} own, *state = &own;

__attribute__((constructor)) static void share(void) {
    const char *name = getenv("FAILING_FILES");
    int fd = name ? (int)syscall(SYS_open, name, O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, sizeof own)) return;
    void *shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) state = shared;
    syscall(SYS_close, fd);
}

/* Who is told of each call that a thread of Python makes, and the paths of all calls, while somebody listens. */
static void (*listener)(long);
enum { HEARD = 1 << 16 };
static char *paths[HEARD];

void failing_files_listen(void (*told)(long)) {
    for (long n = 0; n < HEARD; n++) { free(paths[n]); paths[n] = NULL; }
    listener = told;
}

const char *failing_files_path_of(long n) { return n < HEARD && paths[n] ? paths[n] : ""; }

void failing_files_stop(void) { state->kinds = 0; }

void failing_files_start(const char *below, int which, int how, long from, long to, int error) {
    state->kinds = 0;
    snprintf(state->folder, sizeof state->folder, "%s", below);
    state->folder_length = strlen(state->folder);
    state->mode = how, state->first = from, state->last = to, state->number = error;
    state->calls = state->failed = 0;
    state->kinds = which;
}

long failing_files_calls(void) { return state->calls; }
long failing_files_failed(void) { return state->failed; }
const char *failing_files_path(void) { return state->failed_path; }

static void hear(long n, const char *path) {
    static void *(*python)(void);
    int before = errno;
    if (!python) python = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    if (n < HEARD) paths[n] = strdup(path);
    if (python && python()) listener(n);
    errno = before;
}

static int is_below(const char *path) { return path && !strncmp(path, state->folder, state->folder_length); }

/* Whether this call is one of those that fail. A slow one only takes its time. */
static int fails(int kind, const char *path) {
    if (!(state->kinds & kind) || !is_below(path)) return 0;
    long n = atomic_fetch_add(&state->calls, 1) + 1;
    if (listener) hear(n, path);
    if (n < state->first || n > state->last) return 0;
    if (!atomic_fetch_add(&state->failed, 1)) snprintf(state->failed_path, sizeof state->failed_path, "%s", path);
    if (state->mode == SLOW) { usleep(50000); return 0; }
    return 1;
}

static int fails_fd(int kind, int fd) {
    if (!(state->kinds & kind)) return 0;
    int before = errno;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
/* A call that is done and said to have failed is one whose answer was lost. */
#define ANSWER(failing, call) \
    do { \
        if (!(failing)) return call; \
        if (state->mode == FAIL_AFTERWARDS) (void)!call; \
        errno = state->number; \
        return -1; \
    } while (0)

static int kind_of(int flags) { return flags & O_CREAT ? MAKE : OPEN; }

#define OPENED(name, declared, path, given) \
    int name declared { \
        REAL(name); \
        mode_t bits = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); } \
        if (fails(kind_of(flags), path)) { errno = state->number; return -1; } \
        return real given; \
    }
OPENED(open, (const char *path, int flags, ...), path, (path, flags, bits))
OPENED(open64, (const char *path, int flags, ...), path, (path, flags, bits))
OPENED(openat, (int at, const char *path, int flags, ...), path, (at, path, flags, bits))
OPENED(openat64, (int at, const char *path, int flags, ...), path, (at, path, flags, bits))

#define READS(name, declared, given, shorter) \
    ssize_t name declared { \
        REAL(name); \
        if (!fails_fd(READ, fd)) return real given; \
        if (state->mode == SHORT) return real shorter; \
        if (state->mode == END_OF_FILE) return 0; \
        errno = state->number; \
        return -1; \
    }
READS(read, (int fd, void *data, size_t size), (fd, data, size), (fd, data, size > 1 ? size / 2 : size))
READS(pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size > 1 ? size / 2 : size, at))
READS(pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at), (fd, data, size > 1 ? size / 2 : size, at))

#define WRITES(name, declared, given, shorter) \
    ssize_t name declared { \
        REAL(name); \
        if (!fails_fd(WRITE, fd)) return real given; \
        if (state->mode == SHORT) return real shorter; \
        if (state->mode == FAIL_AFTERWARDS) (void)!real shorter; \
        errno = state->number; \
        return -1; \
    }
WRITES(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size > 1 ? size / 2 : size))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size > 1 ? size / 2 : size, at))
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), (fd, data, size > 1 ? size / 2 : size, at))
WRITES(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), (fd, parts, count > 1 ? count / 2 : count))

int fsync(int fd) { REAL(fsync); ANSWER(fails_fd(SYNC, fd), real(fd)); }
int fdatasync(int fd) { REAL(fdatasync); ANSWER(fails_fd(SYNC, fd), real(fd)); }

DIR *opendir(const char *path) {
    REAL(opendir);
    if (fails(LIST, path)) { errno = state->number; return NULL; }
    return real(path);
}
#define LISTS(name, type) \
    struct type *name(DIR *open) { \
        REAL(name); \
        if (fails_fd(LIST, dirfd(open))) { errno = state->number; return NULL; } \
        return real(open); \
    }
LISTS(readdir, dirent)
LISTS(readdir64, dirent64)

int stat(const char *path, struct stat *found) { REAL(stat); ANSWER(fails(STAT, path), real(path, found)); }
int stat64(const char *path, struct stat64 *found) { REAL(stat64); ANSWER(fails(STAT, path), real(path, found)); }
int lstat(const char *path, struct stat *found) { REAL(lstat); ANSWER(fails(STAT, path), real(path, found)); }
int lstat64(const char *path, struct stat64 *found) { REAL(lstat64); ANSWER(fails(STAT, path), real(path, found)); }
int fstat(int fd, struct stat *found) { REAL(fstat); ANSWER(fails_fd(STAT, fd), real(fd, found)); }
int fstat64(int fd, struct stat64 *found) { REAL(fstat64); ANSWER(fails_fd(STAT, fd), real(fd, found)); }
int fstatat(int at, const char *path, struct stat *found, int flags) { REAL(fstatat); ANSWER(fails(STAT, path), real(at, path, found, flags)); }
int fstatat64(int at, const char *path, struct stat64 *found, int flags) { REAL(fstatat64); ANSWER(fails(STAT, path), real(at, path, found, flags)); }
int statx(int at, const char *path, int flags, unsigned int mask, struct statx *found) {
    REAL(statx);
    ANSWER(path && *path ? fails(STAT, path) : fails_fd(STAT, at), real(at, path, flags, mask, found));
}
/* What programs call that were linked with an older C library. */
#define OLDER(name, type) \
    int __x##name(int version, const char *path, struct type *found); \
    int __x##name(int version, const char *path, struct type *found) { \
        REAL(__x##name); \
        ANSWER(fails(STAT, path), real(version, path, found)); \
    }
#define OLDER_L(name, type) \
    int __lx##name(int version, const char *path, struct type *found); \
    int __lx##name(int version, const char *path, struct type *found) { \
        REAL(__lx##name); \
        ANSWER(fails(STAT, path), real(version, path, found)); \
    }
#define OLDER_FD(name, type) \
    int __fx##name(int version, int fd, struct type *found); \
    int __fx##name(int version, int fd, struct type *found) { \
        REAL(__fx##name); \
        ANSWER(fails_fd(STAT, fd), real(version, fd, found)); \
    }
OLDER(stat, stat)
OLDER(stat64, stat64)
OLDER_L(stat, stat)
OLDER_L(stat64, stat64)
OLDER_FD(stat, stat)
OLDER_FD(stat64, stat64)

int link(const char *from, const char *to) { REAL(link); ANSWER(fails(NAME, to), real(from, to)); }
int linkat(int a, const char *from, int b, const char *to, int flags) { REAL(linkat); ANSWER(fails(NAME, to), real(a, from, b, to, flags)); }
int rename(const char *from, const char *to) { REAL(rename); ANSWER(fails(NAME, to), real(from, to)); }
int renameat(int a, const char *from, int b, const char *to) { REAL(renameat); ANSWER(fails(NAME, to), real(a, from, b, to)); }
int renameat2(int a, const char *from, int b, const char *to, unsigned int flags) {
    REAL(renameat2);
    ANSWER(fails(NAME, to), real(a, from, b, to, flags));
}
int unlink(const char *path) { REAL(unlink); ANSWER(fails(DELETE, path), real(path)); }
int unlinkat(int at, const char *path, int flags) { REAL(unlinkat); ANSWER(fails(DELETE, path), real(at, path, flags)); }
int remove(const char *path) { REAL(remove); ANSWER(fails(DELETE, path), real(path)); }
int rmdir(const char *path) { REAL(rmdir); ANSWER(fails(DELETE, path), real(path)); }
int mkdir(const char *path, mode_t bits) { REAL(mkdir); ANSWER(fails(MAKE, path), real(path, bits)); }
