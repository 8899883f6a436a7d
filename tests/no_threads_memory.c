// Loaded before Python: memory that is refused to all threads but the first, and threads that cannot be started.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static int refuse_memory = 0;
static int n_threads_left = -1;

// Let other threads than the first have memory, or not.
void set_refuse_memory(int refuse) { refuse_memory = refuse; }

// Let so many threads be started; -1: any number.
void set_threads_left(int n) { n_threads_left = n; }

static int is_refused(void) {
    return __atomic_load_n(&refuse_memory, __ATOMIC_SEQ_CST) && syscall(SYS_gettid) != getpid();
}

void *malloc(size_t n) { return is_refused() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return is_refused() ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t n) { return is_refused() ? NULL : __libc_realloc(old, n); }
void *aligned_alloc(size_t alignment, size_t n) { return is_refused() ? NULL : __libc_memalign(alignment, n); }

int posix_memalign(void **found, size_t alignment, size_t n) {
    *found = is_refused() ? NULL : __libc_memalign(alignment, n);
    return *found ? 0 : ENOMEM;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *data) {
    if (n_threads_left == 0) {
        return EAGAIN;
    }
    n_threads_left -= n_threads_left > 0;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*) (void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, run, data);
}
