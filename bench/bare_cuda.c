/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVIDIA's driver alone can do: a ring of slots copied to another one (cuMemcpyAsync), between two GPUs or a GPU and pinned
 * memory of the host, in one process and one thread, as many under way as weft_perf has, over up to STREAMS streams of the
 * first GPU; a floor for the transport local. Each slot is copied again as soon as its copy is seen to have ended. With -b every second
 * slot, of an even number, goes the other way. Compares every byte afterwards and prints a line of JSON.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bare.h"
#include "cuda_api.h"

#define STREAMS 4 /* with one slot each they are asked, else events are */
#define TIMES 65536
#define HOST (-1)

struct place {
    int device; /* or HOST */
    uint8_t *host;
    cuda_addr addr;
};

struct slot {
    cuda_event_t event;
    cuda_stream_t stream;
    double begun;
};

struct ring {
    uint64_t size, depth, iters; /* 0: about BARE_GOAL_S */
    bool both; /* slots with odd numbers go the other way */
    struct place from, to;
    struct slot *slots; /* depth */
    double *times;      /* TIMES: what copies took */
    uint64_t ntimes, back; /* copies that were begun the other way */
};

static struct cuda_api api;
static int (*allow_peer)(cuda_ctx_t, unsigned);
static cuda_ctx_t ctx[2];

static void check(int result, const char *what)
{
    const char *text = NULL;
    if (result == 0)
        return;
    if (api.error_text)
        api.error_text(result, &text);
    fprintf(stderr, "bare_cuda: %s: %s (%d)\n", what, text ? text : "failed", result);
    exit(1);
}

static bool find(void *library, const char *symbol, void *slot)
{
    void *found = dlsym(library, symbol);
    memcpy(slot, &found, sizeof found);
    return found;
}

static void open_driver(void)
{
    const char *name = getenv("WEFT_CUDA_LIBRARY");
    void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "bare_cuda: no driver of NVIDIA's: %s\n", dlerror());
        exit(1);
    }
    const char *lacks = find(library, "cuCtxEnablePeerAccess", &allow_peer) ? NULL : "cuCtxEnablePeerAccess";
#define FIND(member, symbol, parameters)                                                          \
    if (!find(library, #symbol, &api.member))                                                     \
        lacks = #symbol;
    CUDA_FUNCTIONS(FIND)
#undef FIND
    if (lacks) {
        fprintf(stderr, "bare_cuda: no driver of NVIDIA's: the library lacks %s\n", lacks);
        exit(1);
    }
    check(api.init(0), "cannot start the driver");
}

static void use(int device)
{
    static const char *const missing[] = {"there is no GPU 0", "there is no GPU 1"};
    int handle;
    if (device == HOST || ctx[device])
        return;
    check(api.device_get(&handle, device), missing[device]);
    check(api.ctx_retain(&ctx[device], handle), missing[device]);
}

/* In the context of the GPU that copies. */
static void make(struct place *at, uint64_t bytes, bool filled)
{
    cuda_ctx_t popped;
    if (at->device != HOST) {
        check(api.ctx_push(ctx[at->device]), "no context");
        check(api.mem_alloc(&at->addr, bytes), "no memory");
        check(api.ctx_pop(&popped), "no context");
    }
    at->host = bare_memory(bytes, filled, true); /* of a GPU's: what is to be there at first */
    check(api.host_register(at->host, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED),
          "cannot pin memory");
    if (at->device == HOST)
        at->addr = (uintptr_t)at->host;
}

static void copy_now(cuda_addr to, cuda_addr from, uint64_t bytes, cuda_stream_t stream)
{
    check(api.copy(to, from, bytes, stream), "cannot copy");
    check(api.stream_wait(stream), "cannot copy");
}

static bool goes_back(const struct ring *r, uint64_t slot)
{
    return r->both && slot % 2;
}

static void begin(struct ring *r, uint64_t i)
{
    uint64_t slot = i % r->depth, at = slot * r->size;
    struct slot *s = &r->slots[slot];
    cuda_addr to = r->to.addr + at, from = r->from.addr + at;
    s->begun = bare_now_s();
    if (goes_back(r, slot)) {
        r->back++;
        check(api.copy(from, to, r->size, s->stream), "cannot copy");
    } else {
        check(api.copy(to, from, r->size, s->stream), "cannot copy");
    }
    if (r->depth > STREAMS)
        check(api.event_record(s->event, s->stream), "cannot record an event");
}

static void end(struct ring *r, uint64_t i)
{
    struct slot *s = &r->slots[i % r->depth];
    int rc;
    do
        rc = r->depth > STREAMS ? api.event_query(s->event) : api.stream_query(s->stream);
    while (rc == 600); /* CUDA_ERROR_NOT_READY */
    check(rc, "a copy failed");
    r->times[r->ntimes++ % TIMES] = bare_now_s() - s->begun;
}

/* Seconds for so many copies. */
static double run(struct ring *r, uint64_t iters)
{
    double start = bare_now_s();
    for (uint64_t i = 0; i < iters + r->depth; i++) {
        if (i >= r->depth && i - r->depth < iters)
            end(r, i - r->depth);
        if (i < iters)
            begin(r, i);
    }
    return bare_now_s() - start;
}

/* What was copied to warm up is not there any more. */
static void blank(struct ring *r, cuda_stream_t stream)
{
    for (uint64_t i = 0; i < r->depth; i++) {
        const struct place *to = goes_back(r, i) ? &r->from : &r->to;
        uint64_t at = i * r->size;
        memset(to->host + at, 0, r->size);
        if (to->device != HOST)
            copy_now(to->addr + at, (uintptr_t)to->host + at, r->size, stream);
    }
}

/* From a GPU to what is in memory of the host for it, and back. */
static void fetch(const struct place *at, uint64_t bytes, cuda_stream_t stream)
{
    if (at->device != HOST)
        copy_now((uintptr_t)at->host, at->addr, bytes, stream);
}

static void store(const struct place *at, uint64_t bytes, cuda_stream_t stream)
{
    if (at->device != HOST)
        copy_now(at->addr, (uintptr_t)at->host, bytes, stream);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct ring *r)
{
    uint64_t n = r->ntimes < TIMES ? r->ntimes : TIMES;
    qsort(r->times, n, sizeof *r->times, by_value);
    return r->times[n / 2];
}

static int place_of(const char *text, struct place *at)
{
    static const char *const names[] = {"host", "gpu0", "gpu1"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            at->device = i - 1;
            return 1;
        }
    return 0;
}

static int parse(int argc, char **argv, struct ring *r)
{
    int option, right = 1;
    *r = (struct ring){.depth = 1, .from.device = 0, .to.device = 1};
    while ((option = getopt(argc, argv, "s:d:f:t:n:b")) != -1) {
        if (option == 's')
            r->size = bare_number(optarg);
        else if (option == 'd')
            r->depth = bare_number(optarg);
        else if (option == 'n')
            r->iters = bare_number(optarg);
        else if (option == 'b')
            r->both = true;
        else if (option == 'f' || option == 't')
            right &= place_of(optarg, option == 'f' ? &r->from : &r->to);
        else
            right = 0;
    }
    return right && optind == argc && r->size && r->size <= BARE_WINDOW && r->depth &&
           r->depth <= BARE_WINDOW / r->size && !(r->both && r->depth % 2) &&
           !(r->from.device == HOST && r->to.device == HOST);
}

int main(int argc, char **argv)
{
    struct ring r;
    if (!parse(argc, argv, &r)) {
        fputs("Usage: bare_cuda -s SIZE [-d DEPTH] [-f host|gpu0|gpu1] [-t host|gpu0|gpu1] [-n ITERS] [-b]\n",
              stderr);
        return 2;
    }
    uint64_t bytes = r.size * r.depth;
    int by = r.from.device == 0 || r.to.device == 0 ? 0 : 1; /* whose streams copy */
    r.slots = calloc(r.depth, sizeof *r.slots);
    r.times = calloc(TIMES, sizeof *r.times);
    if (!r.slots || !r.times)
        bare_die("memory");
    open_driver();
    use(r.from.device);
    use(r.to.device);
    check(api.ctx_push(ctx[by]), "no context");
    make(&r.from, bytes, true);
    make(&r.to, bytes, r.both);
    if (r.from.device != HOST && r.to.device != HOST && r.from.device != r.to.device)
        check(allow_peer(ctx[!by], 0), "the GPUs do not reach each other");
    cuda_stream_t streams[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        check(api.stream_create(&streams[i], CUDA_STREAM_ALONE), "no stream");
    for (uint64_t i = 0; i < r.depth; i++) {
        r.slots[i].stream = streams[i % STREAMS];
        check(api.event_create(&r.slots[i].event, CUDA_EVENT_NO_TIMES), "no event");
    }
    store(&r.from, bytes, streams[0]);
    store(&r.to, bytes, streams[0]);

    run(&r, r.depth); /* warm */
    double once = run(&r, r.depth * 4) / (double)(r.depth * 4);
    uint64_t iters = r.depth + (r.iters ? r.iters : (uint64_t)(BARE_GOAL_S / once));
    blank(&r, streams[0]);
    double cpu = bare_cpu_s();
    r.ntimes = r.back = 0;
    double seconds = run(&r, iters), moved = (double)iters * (double)r.size;
    cpu = bare_cpu_s() - cpu;
    fetch(&r.from, bytes, streams[0]);
    fetch(&r.to, bytes, streams[0]);
    uint64_t wrong = bare_wrong(r.to.host, bytes) + bare_wrong(r.from.host, bytes);
    printf("{\"GBps\": %.4f, \"p50_us\": %.3f, \"cpu_s_per_GB\": %.4f, \"iters\": %" PRIu64
           ", \"back\": %" PRIu64 ", \"verified\": %s}\n",
           moved / seconds / 1e9, median(&r) * 1e6, cpu / (moved / 1e9), iters, r.back,
           wrong ? "false" : "true");
    return wrong != 0;
}
