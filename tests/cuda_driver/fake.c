/* A CUDA driver on host memory, for tests: the functions that tc calls, with their arguments checked.

   Work given to a stream is done as late as the driver's rules let it be: when somebody waits. So whoever forgets to wait sees old bytes.
   Addresses of device memory cannot be read or written by the host; their bytes lie at a fixed distance (fake_shift). Memory is filled with
   0xCD when it is allocated and 0xDD when it is freed. What is wrong is written down (fake_complaints), and fails the call or what waits
   for it. A launch calls back with the image and the parameters as they were at the launch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t u64;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
       LAUNCH_FAILED = 719, OUT_OF_RESOURCES = 701 };

#define MAX 4096
#define SPACE (64ULL << 30)
#define GAP 4096

typedef struct { int magic, device, retained; } Context;
typedef struct Stream Stream;
typedef struct { int magic; Stream *stream; u64 ticket; } Event;
typedef struct { u64 address, size; Stream *born; int alive, freeing, usable; } Memory;
typedef struct { int magic; char *image; size_t size; int loaded; u64 number; } Module;
typedef struct { int magic; Module *module; char name[256]; int dynamic_shared; } Function;
typedef struct { int magic; u64 threshold; } Pool;
typedef void (*Launch)(const char *image, u64 image_bytes, const char *name, const unsigned *grid, const unsigned *block, unsigned shared,
                       const void *parameters, u64 parameter_bytes);
typedef struct Op {
    int kind; /* 1 kernel, 2 copy in, 3 copy out, 4 copy, 5 birth, 6 death, 7 wait */
    u64 to, from, size, ticket;
    char *bytes;
    Function *function;
    unsigned grid[3], block[3], shared;
    Stream *other;
    struct Op *next;
} Op;
struct Stream { int magic, alive, own; u64 given, done; Op *first, *last; };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int archs[8], devices, started, lost, pid;
static char *space, *shadow;
static u64 top, capacity = 1ULL << 30, in_use, max_in_use;
static Context contexts[8];
static Stream streams[MAX], legacy = {0x57, 1, 0, 0, 0, 0, 0};
static int stream_count, memory_count;
static Memory memories[1 << 16];
static Launch launch_back;
static char *texts[2];
static size_t text_sizes[2];
static __thread Context *stack[64];
static __thread int depth;
static int fail_next_status;
static char fail_next_name[64];

static void say(int which, const char *format, va_list arguments) {
    char line[2048];
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    line[n] = 0;
    texts[which] = realloc(texts[which], text_sizes[which] + n + 1);
    memcpy(texts[which] + text_sizes[which], line, n + 1);
    text_sizes[which] += n;
}
static void note(const char *format, ...) { va_list a; va_start(a, format); say(0, format, a); va_end(a); }
static CUresult wrong(CUresult status, const char *format, ...) {
    va_list a;
    va_start(a, format);
    say(1, format, a);
    va_end(a);
    return status;
}

/* -- what tests ask */
const char *fake_log(void) { return texts[0] ? texts[0] : ""; }
const char *fake_complaints(void) { return texts[1] ? texts[1] : ""; }
void fake_clear(void) { for (int k = 0; k < 2; k++) { free(texts[k]); texts[k] = 0; text_sizes[k] = 0; } }
/* A context that was lost takes work again. */
void fake_revive(void) { lost = 0; }
void fake_on_launch(Launch function) { launch_back = function; }
u64 fake_shift(void) { return (u64)(shadow - space); }
void fake_set_capacity(u64 bytes) { capacity = bytes; }
u64 fake_in_use(void) { return in_use; }
u64 fake_max_in_use(void) { return max_in_use; }
void fake_complain(const char *text) { pthread_mutex_lock(&lock); lost = LAUNCH_FAILED; wrong(0, "%s", text); pthread_mutex_unlock(&lock); }
/* The next call of a function fails so. */
void fake_fail_next(const char *name, int status) { snprintf(fail_next_name, sizeof fail_next_name, "%s", name); fail_next_status = status; }
/* The allocation that holds an address: its start and size, 0 where there is none alive. */
u64 fake_allocation(u64 address, u64 *size) {
    for (int k = 0; k < memory_count; k++) {
        Memory *m = &memories[k];
        if (m->alive && address >= m->address && address < m->address + m->size) { *size = m->size; return m->address; }
    }
    return 0;
}

/* -- checks at the begin of a call */
static CUresult begin(const char *name, int needs_context) {
    if (!started) return wrong(NOT_INITIALIZED, "%s before cuInit", name);
    if (getpid() != pid) return wrong(NOT_INITIALIZED, "%s in a forked child", name);
    note("%s", name);
    if (fail_next_status && !strcmp(name, fail_next_name)) { int s = fail_next_status; fail_next_status = 0; return s; }
    if (needs_context && (!depth || !stack[depth - 1])) return wrong(INVALID_CONTEXT, "%s without a current context", name);
    if (needs_context && !stack[depth - 1]->retained) return wrong(INVALID_CONTEXT, "%s in a context that was released", name);
    return OK;
}
#define BEGIN(needs) pthread_mutex_lock(&lock); CUresult status = begin(__func__, needs); if (status) { pthread_mutex_unlock(&lock); return status; }
#define END(value) do { CUresult r_ = (value); pthread_mutex_unlock(&lock); return r_; } while (0)

static Stream *stream_of(void *handle) {
    if (handle == 0 || handle == (void *)1 || handle == (void *)2) return &legacy;
    for (int k = 0; k < stream_count; k++) if (handle == &streams[k]) return streams[k].alive ? &streams[k] : 0;
    return 0;
}
static Memory *memory_of(u64 address, u64 size) {
    for (int k = memory_count - 1; k >= 0; k--) {
        Memory *m = &memories[k];
        if (m->alive && address >= m->address && address + size <= m->address + m->size) return m;
    }
    return 0;
}
static char *bytes_of(u64 address) { return (char *)address + (shadow - space); }
static int is_device(u64 address) { return address >= (u64)space && address < (u64)space + SPACE; }

/* -- the work of streams */
static int check_range(const char *what, u64 address, u64 size) {
    Memory *m = memory_of(address, size);
    if (m && m->usable) return 1;
    lost = ILLEGAL_ADDRESS;
    wrong(0, m ? "%s of %#lx, %lu bytes, before its allocation is done in another stream" : "%s of %#lx, %lu bytes, outside of live memory",
          what, address, size);
    return 0;
}
static void run_until(Stream *stream, u64 ticket);
static void perform(Stream *stream, Op *op) {
    switch (op->kind) {
    case 1:
        if (lost) break;
        if (!launch_back) { lost = LAUNCH_FAILED; wrong(0, "nobody runs kernels"); break; }
        launch_back(op->function->module->image, op->function->module->size, op->function->name, op->grid, op->block, op->shared, op->bytes,
                    op->size);
        break;
    case 2: if (check_range("a copy to the device", op->to, op->size)) memcpy(bytes_of(op->to), op->bytes, op->size); break;
    case 3: if (check_range("a copy to the host", op->from, op->size)) memcpy((void *)op->to, bytes_of(op->from), op->size); break;
    case 4:
        if (check_range("a copy to", op->to, op->size) && check_range("a copy from", op->from, op->size)) {
            if (op->to < op->from + op->size && op->from < op->to + op->size) wrong(0, "a copy upon itself");
            memmove(bytes_of(op->to), bytes_of(op->from), op->size);
        }
        break;
    case 5: for (int k = 0; k < memory_count; k++) if (memories[k].address == op->to) memories[k].usable = 1; break;
    case 6: {
        Memory *m = memory_of(op->to, 1);
        if (m) { memset(bytes_of(m->address), 0xDD, m->size); m->alive = 0; in_use -= m->size; }
        break;
    }
    case 7: run_until(op->other, op->ticket); break;
    }
    free(op->bytes);
}
static void run_until(Stream *stream, u64 ticket) {
    while (stream->first && stream->done < ticket) {
        Op *op = stream->first;
        stream->first = op->next;
        if (!stream->first) stream->last = 0;
        perform(stream, op);
        stream->done++;
        free(op);
    }
}
static Op *give(Stream *stream, int kind) {
    Op *op = calloc(1, sizeof *op);
    op->kind = kind;
    if (stream->last) stream->last->next = op; else stream->first = op;
    stream->last = op;
    stream->given++;
    return op;
}
static CUresult outcome(void) { return lost; }

/* -- devices */
CUresult cuInit(unsigned flags) {
    pthread_mutex_lock(&lock);
    int failing = getenv("FAKE_CUDA_INIT") ? atoi(getenv("FAKE_CUDA_INIT")) : 0;
    if (!started && !failing) {
        const char *text = getenv("FAKE_CUDA_ARCHS");
        char *copy = strdup(text ? text : "80"), *rest = copy, *word;
        while ((word = strsep(&rest, ",")) && devices < 8) archs[devices++] = atoi(word);
        free(copy);
        space = mmap(0, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        shadow = mmap(0, SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        started = 1;
        pid = getpid();
    }
    pthread_mutex_unlock(&lock);
    return flags ? INVALID_VALUE : failing;
}
CUresult cuDriverGetVersion(int *version) { *version = 13000; return OK; }
CUresult cuDeviceGetCount(int *count) { BEGIN(0); *count = devices; END(OK); }
CUresult cuDeviceGet(int *device, int number) { BEGIN(0); if (number < 0 || number >= devices) END(INVALID_DEVICE); *device = number; END(OK); }
CUresult cuDeviceGetName(char *name, int size, int device) { BEGIN(0); snprintf(name, size, "Fake sm_%d", archs[device]); END(OK); }
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { BEGIN(0); (void)device; *bytes = capacity; END(OK); }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN(0);
    if (device < 0 || device >= devices) END(INVALID_DEVICE);
    int arch = archs[device], optin = arch >= 90 ? 232448 : arch == 80 ? 166912 : arch == 75 ? 65536 : 101376;
    switch (attribute) {
    case 1: *value = 1024; break;                      /* threads of a block */
    case 8: *value = 49152; break;                     /* shared memory of a block */
    case 12: *value = 65536; break;                    /* registers of a block */
    case 13: *value = 1400000; break;                  /* clock, kHz */
    case 16: *value = 8; break;                        /* processors */
    case 36: *value = 1200000; break;                  /* memory clock, kHz */
    case 37: *value = 5120; break;                     /* bits of the bus */
    case 38: *value = 40 << 20; break;                 /* L2 */
    case 39: *value = arch == 75 ? 1024 : 2048; break; /* threads of a processor */
    case 75: *value = arch / 10; break;
    case 76: *value = arch % 10; break;
    case 81: *value = optin + 1024; break;             /* shared memory of a processor */
    case 82: *value = 65536; break;                    /* registers of a processor */
    case 97: *value = optin; break;
    case 106: *value = arch == 75 ? 16 : 32; break;    /* blocks of a processor */
    case 111: *value = 1024; break;                    /* shared memory that the system keeps */
    case 115: *value = !getenv("FAKE_CUDA_NO_POOLS"); break;
    default: *value = 0;
    }
    END(OK);
}
CUresult cuGetErrorString(CUresult error, const char **text) { *text = error == OK ? "no error" : "an error of the fake driver"; return OK; }
CUresult cuGetErrorName(CUresult error, const char **text) { *text = error == OK ? "CUDA_SUCCESS" : "CUDA_ERROR"; return OK; }

/* -- contexts */
CUresult cuDevicePrimaryCtxRetain(Context **context, int device) {
    BEGIN(0);
    contexts[device].device = device;
    contexts[device].retained++;
    *context = &contexts[device];
    END(OK);
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) { BEGIN(0); contexts[device].retained--; END(OK); }
CUresult cuCtxGetCurrent(Context **context) { *context = depth ? stack[depth - 1] : 0; return started ? OK : NOT_INITIALIZED; }
CUresult cuCtxSetCurrent(Context *context) { BEGIN(0); if (!depth) depth = 1; stack[depth - 1] = context; END(OK); }
CUresult cuCtxPushCurrent_v2(Context *context) {
    BEGIN(0);
    if (!context || depth == 64) END(wrong(INVALID_CONTEXT, "cuCtxPushCurrent"));
    stack[depth++] = context;
    END(OK);
}
CUresult cuCtxPopCurrent_v2(Context **context) {
    BEGIN(0);
    if (!depth) END(wrong(INVALID_CONTEXT, "cuCtxPopCurrent of nothing"));
    depth--;
    if (context) *context = stack[depth];
    END(OK);
}
int fake_depth(void) { return depth; }
CUresult cuCtxGetDevice(int *device) { BEGIN(1); *device = stack[depth - 1]->device; END(OK); }
CUresult cuCtxSynchronize(void) {
    BEGIN(1);
    run_until(&legacy, legacy.given);
    for (int k = stream_count - 1; k >= 0; k--) run_until(&streams[k], streams[k].given);
    END(outcome());
}

/* -- streams and events */
CUresult cuStreamCreate(Stream **stream, unsigned flags) {
    BEGIN(1);
    if (flags > 1 || stream_count == MAX) END(INVALID_VALUE);
    streams[stream_count] = (Stream){0x57, 1, 1, 0, 0, 0, 0};
    *stream = &streams[stream_count++];
    END(OK);
}
CUresult cuStreamDestroy_v2(Stream *stream) {
    BEGIN(1);
    Stream *found = stream_of(stream);
    if (!found || found == &legacy) END(wrong(INVALID_HANDLE, "cuStreamDestroy of %p", (void *)stream));
    run_until(found, found->given);
    found->alive = 0;
    END(OK);
}
CUresult cuStreamSynchronize(Stream *handle) {
    BEGIN(1);
    Stream *stream = stream_of(handle);
    if (!stream) END(wrong(INVALID_HANDLE, "cuStreamSynchronize of %p", (void *)handle));
    run_until(stream, stream->given);
    END(outcome());
}
CUresult cuEventCreate(Event **event, unsigned flags) { BEGIN(1); (void)flags; *event = calloc(1, sizeof **event); (*event)->magic = 0xE7; END(OK); }
CUresult cuEventDestroy_v2(Event *event) { BEGIN(1); if (event->magic != 0xE7) END(wrong(INVALID_HANDLE, "cuEventDestroy")); event->magic = 0; END(OK); }
CUresult cuEventRecord(Event *event, Stream *handle) {
    BEGIN(1);
    Stream *stream = stream_of(handle);
    if (!stream || event->magic != 0xE7) END(wrong(INVALID_HANDLE, "cuEventRecord"));
    event->stream = stream;
    event->ticket = stream->given;
    END(OK);
}
CUresult cuStreamWaitEvent(Stream *handle, Event *event, unsigned flags) {
    BEGIN(1);
    (void)flags;
    Stream *stream = stream_of(handle);
    if (!stream || event->magic != 0xE7) END(wrong(INVALID_HANDLE, "cuStreamWaitEvent"));
    if (event->stream && event->stream != stream) {
        Op *op = give(stream, 7);
        op->other = event->stream;
        op->ticket = event->ticket;
    }
    END(OK);
}

/* -- memory */
CUresult cuMemPoolCreate(Pool **pool, const void *properties) { BEGIN(0); (void)properties; *pool = calloc(1, sizeof **pool); (*pool)->magic = 0x9001; END(OK); }
CUresult cuMemPoolDestroy(Pool *pool) { BEGIN(0); pool->magic = 0; END(OK); }
CUresult cuMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
    BEGIN(0);
    if (pool->magic != 0x9001) END(wrong(INVALID_HANDLE, "cuMemPoolSetAttribute"));
    if (attribute == 4) pool->threshold = *(u64 *)value;
    END(OK);
}
CUresult cuMemPoolTrimTo(Pool *pool, size_t kept) { BEGIN(0); (void)kept; if (pool->magic != 0x9001) END(wrong(INVALID_HANDLE, "cuMemPoolTrimTo")); END(OK); }
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { BEGIN(1); *free_bytes = capacity > in_use ? capacity - in_use : 0; *total = capacity; END(OK); }
CUresult cuMemAllocFromPoolAsync(u64 *address, size_t size, Pool *pool, Stream *handle) {
    BEGIN(1);
    Stream *stream = stream_of(handle);
    if (!stream) END(wrong(INVALID_HANDLE, "cuMemAllocFromPoolAsync in stream %p", (void *)handle));
    if (!size || pool->magic != 0x9001) END(wrong(INVALID_VALUE, "cuMemAllocFromPoolAsync of %lu bytes", (u64)size));
    if (size > capacity || in_use + size > capacity) {
        cuCtxSynchronize(); /* what is to be freed is free then */
        if (size > capacity || in_use + size > capacity) END(OUT_OF_MEMORY);
    }
    if (top + size + 2 * GAP > SPACE || memory_count == 1 << 16) END(OUT_OF_MEMORY);
    u64 start = (u64)space + (top = (top + GAP + 511) / 512 * 512);
    top += size;
    memories[memory_count++] = (Memory){start, size, stream, 1, 0, 0};
    memset(bytes_of(start), 0xCD, size);
    in_use += size;
    if (in_use > max_in_use) max_in_use = in_use;
    give(stream, 5)->to = start;
    *address = start;
    END(OK);
}
CUresult cuMemFreeAsync(u64 address, Stream *handle) {
    BEGIN(1);
    Stream *stream = stream_of(handle);
    Memory *m = memory_of(address, 1);
    if (!stream) END(wrong(INVALID_HANDLE, "cuMemFreeAsync in stream %p", (void *)handle));
    if (!m || m->address != address) END(wrong(INVALID_VALUE, "cuMemFreeAsync of %#lx, which is not allocated", address));
    if (m->freeing) END(wrong(INVALID_VALUE, "cuMemFreeAsync of %#lx for the second time", address));
    m->freeing = 1;
    give(stream, 6)->to = address;
    END(OK);
}
CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    BEGIN(1);
    if (!size || flags > 7) END(INVALID_VALUE);
    *address = malloc(size);
    memset(*address, 0xCD, size);
    END(OK);
}
CUresult cuMemFreeHost(void *address) { BEGIN(1); free(address); END(OK); }
static CUresult copy(const char *name, int kind, u64 to, u64 from, u64 size, void *handle) {
    Stream *stream = stream_of(handle);
    if (!stream) return wrong(INVALID_HANDLE, "%s in stream %p", name, handle);
    if (is_device(to) != (kind != 3) || is_device(from) != (kind != 2)) return wrong(INVALID_VALUE, "%s from %#lx to %#lx", name, from, to);
    if ((kind != 3 && !memory_of(to, size)) || (kind != 2 && !memory_of(from, size)))
        return wrong(INVALID_VALUE, "%s of %lu bytes from %#lx to %#lx, outside of live memory", name, size, from, to);
    note("  %lu bytes", size);
    Op *op = give(stream, kind);
    op->to = to;
    op->from = from;
    op->size = size;
    if (kind == 2) { op->bytes = malloc(size); memcpy(op->bytes, (void *)from, size); }
    return OK;
}
CUresult cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t size, void *stream) { BEGIN(1); END(copy(__func__, 2, to, (u64)from, size, stream)); }
CUresult cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t size, void *stream) { BEGIN(1); END(copy(__func__, 3, (u64)to, from, size, stream)); }
CUresult cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void *stream) { BEGIN(1); END(copy(__func__, 4, to, from, size, stream)); }

/* -- code */
static int arch_in(const char *image, size_t size) {
    const char *found = memmem(image, size, ".target sm_", 11);
    return found ? atoi(found + 11) : 0;
}
CUresult cuModuleLoadDataEx(Module **module, const void *image, unsigned count, int *options, void **values) {
    BEGIN(1);
    size_t size = strlen(image);
    int device = stack[depth - 1]->device, arch = arch_in(image, size);
    if (!arch || arch > archs[device]) {
        for (unsigned k = 0; k < count; k++) if (options[k] == 5) strcpy(values[k], arch ? "ptxas fatal: no such SM" : "ptxas fatal: no target");
        END(arch ? NO_BINARY : INVALID_PTX);
    }
    static u64 loaded;
    *module = calloc(1, sizeof **module);
    **module = (Module){0x30D, strdup(image), size, 1, ++loaded};
    END(OK);
}
CUresult cuModuleUnload(Module *module) {
    BEGIN(1);
    if (module->magic != 0x30D || !module->loaded) END(wrong(INVALID_HANDLE, "cuModuleUnload"));
    module->loaded = 0;
    END(OK);
}
CUresult cuModuleGetFunction(Function **function, Module *module, const char *name) {
    BEGIN(1);
    char entry[300];
    snprintf(entry, sizeof entry, ".entry %s", name);
    if (module->magic != 0x30D || !module->loaded) END(wrong(INVALID_HANDLE, "cuModuleGetFunction"));
    char *at = strstr(module->image, entry), after = at ? at[strlen(entry)] : 0;
    if (!at || (after != '(' && after != ' ' && after != '\n')) END(NOT_FOUND);
    *function = calloc(1, sizeof **function);
    (*function)->magic = 0xF0;
    (*function)->module = module;
    snprintf((*function)->name, 256, "%s", name);
    END(OK);
}
static u64 static_shared(Function *f) { /* of arrays declared in the function or before it: the sum, by their texts */
    u64 total = 0;
    for (char *at = f->module->image; (at = strstr(at, ".shared ")); at += 8) {
        char *line = at; /* memory that launches ask for has no size */
        while (line > f->module->image && line[-1] != '\n') line--;
        char *end = strchr(at, ';'), *open = strchr(at, '[');
        if (memmem(line, at - line, ".extern", 7) || memmem(line, at - line, "ld", 2) || memmem(line, at - line, "st", 2)) continue;
        if (end && open && open < end) total += strtoull(open + 1, 0, 10) * (strstr(at, ".b64") && strstr(at, ".b64") < open ? 8 : strstr(at, ".b32") && strstr(at, ".b32") < open ? 4 : 1);
    }
    return total;
}
CUresult cuFuncGetAttribute(int *value, int attribute, Function *function) {
    BEGIN(1);
    if (function->magic != 0xF0) END(wrong(INVALID_HANDLE, "cuFuncGetAttribute"));
    *value = attribute == 1 ? (int)static_shared(function) : attribute == 0 ? 1024 : 0;
    END(OK);
}
CUresult cuFuncSetAttribute(Function *function, int attribute, int value) {
    BEGIN(1);
    if (function->magic != 0xF0) END(wrong(INVALID_HANDLE, "cuFuncSetAttribute"));
    note("  attribute %d = %d", attribute, value);
    if (attribute == 8) function->dynamic_shared = value;
    END(OK);
}
/* The parameters of a function one behind the other, as they are declared: arrays of bytes, and words. Only their places are taken: a buffer
   of all has gaps in it where one is aligned to more than the place where the device has them, which the driver does not tell. */
static char *gathered(const Function *function, void **parameters, u64 *size) {
    char entry[300], *bytes = malloc(4352);
    snprintf(entry, sizeof entry, ".entry %s", function->name);
    char *at = strchr(strstr(function->module->image, entry), '('), *end = strchr(at, ')');
    *size = 0;
    for (int k = 0; (at = strstr(at, ".param")) && at < end; at += 6, k++) {
        char *stop = at + strcspn(at, ",)"), *open = memchr(at, '[', stop - at);
        u64 each = open ? strtoull(open + 1, 0, 10) : 8;
        memcpy(bytes + *size, parameters[k], each);
        *size += each;
    }
    return bytes;
}
CUresult cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        void *handle, void **parameters, void **extra) {
    BEGIN(1);
    Stream *stream = stream_of(handle);
    if (!stream) END(wrong(INVALID_HANDLE, "cuLaunchKernel in stream %p", handle));
    if (!function || function->magic != 0xF0 || !function->module->loaded) END(wrong(INVALID_HANDLE, "cuLaunchKernel of no function"));
    if (!gx || !gy || !gz || gx > 2147483647u || gy > 65535 || gz > 65535) END(wrong(INVALID_VALUE, "cuLaunchKernel of a grid %u %u %u", gx, gy, gz));
    if (!bx || !by || !bz || bx > 1024 || by > 1024 || bz > 64 || bx * by * bz > 1024)
        END(wrong(INVALID_VALUE, "cuLaunchKernel of a block %u %u %u", bx, by, bz));
    if (shared + static_shared(function) > 49152 && (int)shared > function->dynamic_shared)
        END(wrong(INVALID_VALUE, "cuLaunchKernel with %u bytes of shared memory that were not asked for", shared));
    if (!parameters || extra) END(wrong(INVALID_VALUE, "cuLaunchKernel without the places of parameters"));
    Op *op = give(stream, 1);
    op->function = function;
    op->bytes = gathered(function, parameters, &op->size);
    note("  %s grid %u %u %u block %u %u %u shared %u bytes %lu", function->name, gx, gy, gz, bx, by, bz, shared, op->size);
    op->grid[0] = gx, op->grid[1] = gy, op->grid[2] = gz;
    op->block[0] = bx, op->block[1] = by, op->block[2] = bz;
    op->shared = shared;
    END(OK);
}

/* -- graphs: each launch has the nodes as they are then; of those whose predecessors are done the last added runs first */
#define MAX_NODES 4096
typedef struct { int kind; Function *function; unsigned sizes[6], shared; u64 to, from, size; int copies_in; char *bytes; int before; } Work;
typedef struct { Work work[MAX_NODES]; int count; } Nodes;
typedef struct { int magic; Nodes nodes; } Graph;
typedef struct { int magic, runs; Graph *graph; Nodes nodes; } Executable;
typedef struct { Function *function; unsigned sizes[6], shared; void **parameters, **extra; void *kernel, *context; } KernelNode;
typedef struct { size_t x, y, z, level; int kind; void *host; u64 device; void *array, *reserved; size_t pitch, height; } End;
typedef struct { End from, to; size_t width, height, depth; } CopyNode;
static int graphs_alive, captured;
int fake_graphs(void) { return graphs_alive; }
void fake_capture(int value) { captured = value; }
CUresult cuStreamIsCapturing(void *stream, int *value) { BEGIN(1); if (!stream_of(stream)) END(INVALID_HANDLE); *value = captured; END(OK); }
CUresult cuGraphCreate(Graph **graph, unsigned flags) {
    BEGIN(0);
    if (flags) END(INVALID_VALUE);
    *graph = calloc(1, sizeof **graph);
    (*graph)->magic = 0x6AF;
    graphs_alive++;
    END(OK);
}
CUresult cuGraphDestroy(Graph *graph) { BEGIN(0); if (graph->magic != 0x6AF) END(wrong(INVALID_HANDLE, "cuGraphDestroy")); graph->magic = 0; graphs_alive--; END(OK); }
static CUresult kernel_work(Work *work, const KernelNode *node) {
    unsigned gx = node->sizes[0], gy = node->sizes[1], gz = node->sizes[2], threads = node->sizes[3] * node->sizes[4] * node->sizes[5];
    if (!node->function || node->function->magic != 0xF0 || node->kernel || node->context) return wrong(INVALID_VALUE, "a node of no function");
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || !threads || threads > 1024) return wrong(INVALID_VALUE, "a node of a wrong size");
    if (node->shared + static_shared(node->function) > 49152 && (int)node->shared > node->function->dynamic_shared)
        return wrong(INVALID_VALUE, "a node with shared memory that was not asked for");
    if (!node->parameters || node->extra) return wrong(INVALID_VALUE, "a node without the places of parameters");
    work->kind = 1;
    work->function = node->function;
    memcpy(work->sizes, node->sizes, sizeof work->sizes);
    work->shared = node->shared;
    work->bytes = gathered(node->function, node->parameters, &work->size);
    return OK;
}
static CUresult copy_work(Work *work, const CopyNode *node, Context *context) {
    if (node->height != 1 || node->depth != 1 || !node->width || node->to.kind != 2 || (node->from.kind != 2 && node->from.kind != 1) || !context)
        return wrong(INVALID_VALUE, "a copy of another form in a graph");
    work->copies_in = node->from.kind == 1;
    work->kind = work->copies_in ? 2 : 4;
    work->to = node->to.device;
    work->from = work->copies_in ? (u64)node->from.host : node->from.device;
    work->size = node->width;
    if (!memory_of(work->to, work->size) || (!work->copies_in && !memory_of(work->from, work->size)))
        return wrong(INVALID_VALUE, "a copy in a graph outside of live memory");
    return OK;
}
static CUresult add(Work **node, Graph *graph, Work **before, size_t count, Work work) {
    if (graph->magic != 0x6AF || graph->nodes.count == MAX_NODES || count > 1) return wrong(INVALID_VALUE, "a node added wrongly");
    work.before = count ? (int)(before[0] - graph->nodes.work) : -1;
    if (count && (work.before < 0 || work.before >= graph->nodes.count)) return wrong(INVALID_VALUE, "a node after no node");
    *node = &graph->nodes.work[graph->nodes.count];
    graph->nodes.work[graph->nodes.count++] = work;
    return OK;
}
CUresult cuGraphAddKernelNode_v2(Work **node, Graph *graph, Work **before, size_t count, const KernelNode *made) {
    BEGIN(1);
    Work work = {0};
    CUresult found = kernel_work(&work, made);
    END(found ? found : add(node, graph, before, count, work));
}
CUresult cuGraphAddMemcpyNode(Work **node, Graph *graph, Work **before, size_t count, const CopyNode *made, Context *context) {
    BEGIN(1);
    Work work = {0};
    CUresult found = copy_work(&work, made, context);
    END(found ? found : add(node, graph, before, count, work));
}
CUresult cuGraphInstantiateWithFlags(Executable **made, Graph *graph, u64 flags) {
    BEGIN(1);
    if (graph->magic != 0x6AF || flags) END(INVALID_VALUE);
    *made = calloc(1, sizeof **made);
    (*made)->magic = 0xE8EC;
    (*made)->graph = graph;
    (*made)->nodes = graph->nodes;
    END(OK);
}
CUresult cuGraphExecDestroy(Executable *made) { BEGIN(0); if (made->magic != 0xE8EC) END(wrong(INVALID_HANDLE, "cuGraphExecDestroy")); made->magic = 0; END(OK); }
static Work *work_of(Executable *made, Work *node) {
    long k = node - made->graph->nodes.work;
    return made->magic == 0xE8EC && made->graph->magic == 0x6AF && k >= 0 && k < made->nodes.count ? &made->nodes.work[k] : 0;
}
CUresult cuGraphExecKernelNodeSetParams_v2(Executable *made, Work *node, const KernelNode *new) {
    BEGIN(1);
    Work *work = work_of(made, node);
    if (!work || work->kind != 1) END(wrong(INVALID_VALUE, "cuGraphExecKernelNodeSetParams of no such node"));
    END(kernel_work(work, new));
}
CUresult cuGraphExecMemcpyNodeSetParams(Executable *made, Work *node, const CopyNode *new, Context *context) {
    BEGIN(1);
    Work *work = work_of(made, node);
    if (!work || work->kind == 1) END(wrong(INVALID_VALUE, "cuGraphExecMemcpyNodeSetParams of no such node"));
    END(copy_work(work, new, context));
}
CUresult cuGraphLaunch(Executable *made, void *handle) {
    BEGIN(1);
    Stream *stream = stream_of(handle);
    if (!stream || made->magic != 0xE8EC) END(wrong(INVALID_HANDLE, "cuGraphLaunch in stream %p", handle));
    note("  %d nodes", made->nodes.count);
    char done[MAX_NODES] = {0};
    for (int left = made->nodes.count; left > 0; left--) {
        int k = made->nodes.count - 1;
        while (done[k] || (made->nodes.work[k].before >= 0 && !done[made->nodes.work[k].before])) k--;
        done[k] = 1;
        Work *work = &made->nodes.work[k];
        Op *op = give(stream, work->kind == 1 ? 1 : 4);
        op->kind = work->kind;
        op->size = work->size;
        op->to = work->to;
        op->from = work->from;
        op->function = work->function;
        memcpy(op->grid, work->sizes, 12);
        memcpy(op->block, work->sizes + 3, 12);
        op->shared = work->shared;
        if (work->kind == 1) { op->bytes = malloc(op->size + 1); memcpy(op->bytes, work->bytes, op->size); }
        if (work->kind == 2) { op->bytes = malloc(op->size); memcpy(op->bytes, (void *)work->from, op->size); }
    }
    END(OK);
}

/* What boxes are copied from, as words: a mark, the address, kind | rank << 8 | swizzle << 16, five sizes, four strides, five extents. */
CUresult cuTensorMapEncodeTiled(u64 *map, int kind, unsigned rank, void *base, const u64 *sizes, const u64 *strides, const unsigned *box,
                                const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    BEGIN(0);
    static const int bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2}, spans[] = {0, 32, 64, 128};
    if ((u64)map % 64 || (u64)base % 16 || !is_device((u64)base)) END(wrong(INVALID_VALUE, "cuTensorMapEncodeTiled of %p at %p", base, (void *)map));
    if (kind < 0 || kind > 9 || rank < 1 || rank > 5 || interleave || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 || fill)
        END(wrong(INVALID_VALUE, "cuTensorMapEncodeTiled: kind %d, rank %u, swizzle %d", kind, rank, swizzle));
    if (box[0] * bytes[kind] % 16 || (swizzle && (int)box[0] * bytes[kind] > spans[swizzle])) END(wrong(INVALID_VALUE, "rows of %u", box[0]));
    u64 last = bytes[kind];
    for (unsigned k = 0; k < rank; k++) {
        u64 stride = k ? strides[k - 1] : (u64)bytes[kind];
        if (!sizes[k] || sizes[k] > 1ULL << 32 || (k && (stride % 16 || stride >= 1ULL << 40)) || !box[k] || box[k] > 256 || steps[k] != 1)
            END(wrong(INVALID_VALUE, "cuTensorMapEncodeTiled: dim %u of size %lu, stride %lu, box %u", k, sizes[k], stride, box[k]));
        last += (sizes[k] - 1) * stride;
    }
    if (!memory_of((u64)base, last)) END(wrong(INVALID_VALUE, "a tensor map of %lu bytes at %p, outside of live memory", last, base));
    memset(map, 0, 128);
    map[0] = 0x7E5502;
    map[1] = (u64)base;
    map[2] = (u64)kind | rank << 8 | swizzle << 16;
    for (unsigned k = 0; k < rank; k++) map[3 + k] = sizes[k];
    for (unsigned k = 1; k < rank; k++) map[7 + k] = strides[k - 1];
    memcpy(map + 12, box, rank * sizeof *box);
    note("  tensor map");
    END(OK);
}

/* -- how the bindings find functions: by name, and by the newest version of it */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, u64 flags, int *found) {
    static void *self;
    char name[128];
    (void)version;
    (void)flags;
    if (!self) self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *function = 0;
    for (int v = 3; v >= 1 && !*function; v--) {
        snprintf(name, sizeof name, v == 1 ? "%s" : "%s_v%d", symbol, v);
        *function = dlsym(self, name);
    }
    if (found) *found = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
CUresult cuGetProcAddress(const char *symbol, void **function, int version, u64 flags) { return cuGetProcAddress_v2(symbol, function, version, flags, 0); }
