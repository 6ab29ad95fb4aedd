/* What an exported model shares with its runtime: memory, messages, threads. */

#ifndef TC_RUNTIME_H
#define TC_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

struct model {
    const unsigned char *weights; /* of the file, behind its head */
    void *file;                   /* what is to be given back */
    size_t file_bytes;
    unsigned char *arena;
    int64_t arena_bytes;
    int64_t threads;
    char message[1024];
};

/* Say what went wrong, as printf does; 1. */
int tc_fail(struct model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A new block of so many bytes at a multiple of 64; NULL when there is no memory. `free` gives it back. */
void *tc_allocate(int64_t size_bytes);

/* Have an arena of so many bytes; 0 if there is one. */
int tc_reserve(struct model *m, int64_t size_bytes);

/* Read a file of weights that has this size and this mark; NULL if it cannot be, or is another file. */
struct model *tc_open(const char *path, int64_t size_bytes, uint64_t mark, int threads);
void tc_close(struct model *m);

/* Run body(context, begin, end, thread) over [0, count): on the calling thread, numbered 0, and on others. A range has at least `grain`
   iterations, but for the last one. A call from inside of another one, or beside it, runs on its own thread alone. */
void tc_parallel_for(void (*body)(void *, int64_t, int64_t, int64_t), void *context, int64_t count, int64_t grain, int64_t max_threads);

#endif
