/* Weights in a file that is mapped, an arena, and a small pool of threads. */

#define _GNU_SOURCE

#include "runtime.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 64, MOST_THREADS = 256, SHARES_PER_THREAD = 4, SPINS = 4000 };

int tc_fail(struct model *m, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->message, sizeof m->message, format, arguments);
    va_end(arguments);
    return 1;
}

void *tc_allocate(int64_t size_bytes) {
    if (size_bytes < 0 || size_bytes > INT64_MAX - 128) return NULL;
    return aligned_alloc(64, ((size_t)size_bytes + 127) / 64 * 64);
}

int tc_reserve(struct model *m, int64_t size_bytes) {
    if (m->arena != NULL && size_bytes <= m->arena_bytes) return 0;
    free(m->arena);
    m->arena = tc_allocate(size_bytes);
    m->arena_bytes = m->arena == NULL ? 0 : size_bytes;
    return m->arena == NULL;
}

static void start_threads(int threads);

static void *map_file(const char *path, size_t size_bytes) {
    struct stat about;
    void *found = MAP_FAILED;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    if (fstat(file, &about) == 0 && (uint64_t)about.st_size == size_bytes) found = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    return found == MAP_FAILED ? NULL : found;
}

struct model *tc_open(const char *path, int64_t size_bytes, uint64_t mark, int threads) {
    struct model *m;
    uint64_t found;
    void *file = map_file(path, (size_t)size_bytes);
    if (file == NULL) return NULL;
    memcpy(&found, file, sizeof found);
    m = found == mark ? calloc(1, sizeof *m) : NULL;
    if (m == NULL) {
        munmap(file, (size_t)size_bytes);
        return NULL;
    }
    m->file = file;
    m->file_bytes = (size_t)size_bytes;
    m->weights = (const unsigned char *)file + HEAD_BYTES;
    m->threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    start_threads((int)m->threads);
    return m;
}

void tc_close(struct model *m) {
    if (m == NULL) return;
    munmap(m->file, m->file_bytes);
    free(m->arena);
    free(m);
}

/* -- threads

   A job has a number. Workers spin for a moment when a job is done, then sleep until the number changes. A worker that takes part counts
   itself in before it looks for iterations, and out behind; the caller closes the job and waits until none is in. */

typedef void (*loop_body)(void *, int64_t, int64_t, int64_t);

static struct {
    pthread_mutex_t turn; /* held by the thread whose job runs */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint number;
    atomic_int is_open, inside;
    atomic_llong next;
    loop_body body;
    void *context;
    int64_t count, share, threads;
    int workers;
} pool = {.turn = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static _Thread_local int is_working;

static void work(int64_t thread) {
    for (;;) {
        const int64_t begin = atomic_fetch_add(&pool.next, pool.share);
        if (begin >= pool.count) return;
        pool.body(pool.context, begin, pool.count - begin < pool.share ? pool.count : begin + pool.share, thread);
    }
}

static unsigned wait_for_job(unsigned seen) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load(&pool.number) != seen) return atomic_load(&pool.number);
    }
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.number) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    return atomic_load(&pool.number);
}

static void *run_worker(void *argument) {
    const int64_t thread = (int64_t)(intptr_t)argument;
    unsigned seen = 0;
    is_working = 1;
    for (;;) {
        seen = wait_for_job(seen);
        atomic_fetch_add(&pool.inside, 1);
        if (atomic_load(&pool.is_open) && thread < pool.threads) work(thread);
        atomic_fetch_sub(&pool.inside, 1);
    }
    return NULL;
}

static void start_threads(int threads) {
    pthread_mutex_lock(&pool.turn);
    while (pool.workers < threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_worker, (void *)(intptr_t)(pool.workers + 1)) != 0) break;
        pthread_detach(thread);
        pool.workers++;
    }
    pthread_mutex_unlock(&pool.turn);
}

void tc_parallel_for(loop_body body, void *context, int64_t count, int64_t grain, int64_t max_threads) {
    int64_t share;
    if (count <= 0) return;
    if (max_threads <= 1 || count <= grain || is_working || pthread_mutex_trylock(&pool.turn) != 0) {
        body(context, 0, count, 0);
        return;
    }
    share = count / (max_threads * SHARES_PER_THREAD);
    pool.body = body;
    pool.context = context;
    pool.count = count;
    pool.share = share > grain ? share : grain > 1 ? grain : 1;
    pool.threads = max_threads;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.is_open, 1);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.number, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    is_working = 1;
    work(0);
    is_working = 0;
    atomic_store(&pool.is_open, 0);
    while (atomic_load(&pool.inside) != 0) sched_yield();
    pthread_mutex_unlock(&pool.turn);
}
