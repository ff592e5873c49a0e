/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What backends over a vendor's library share: contexts, memory, copies on streams, memory of other processes. NVIDIA's
 * driver and AMD's runtime have the same things under other names, and give the same numbers to what goes wrong
 * (HIP took CUDA's); a backend fills a table of them, and finds devices and whose memory is whose by itself.
 */
#ifndef WEFT_VENDOR_H
#define WEFT_VENDOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "vendor_result.h"
#include "weft/gpu.h"

#define VENDOR_IPC_BYTES 64 /* of either's handles */

struct vendor_gpu;

/*
 * Memory that a program maps by itself (CUDA's virtual memory management, which torch's expandable segments are made of): segments of
 * physical memory side by side, each of which a descriptor can stand for.
 */
struct vendor_segments {
    /* That of a whole segment, by any address in it. A new reference. */
    int (*retain)(uint64_t *segment, uintptr_t addr);
    int (*release)(uint64_t segment);
    int (*to_fd)(int *fd, uint64_t segment);
    int (*from_fd)(uint64_t *segment, int fd);
    int (*reserve)(uintptr_t *addr, size_t len);
    int (*unreserve)(uintptr_t addr, size_t len);
    int (*map)(uintptr_t addr, size_t len, uint64_t segment);
    int (*unmap)(uintptr_t addr, size_t len);
    /* The device may read and write there. */
    int (*allow)(const struct vendor_gpu *gpu, uintptr_t addr, size_t len);
};

/* The library's functions. All give its results, and are called between enter and leave, but for
 * event_query. Addresses are the device's. */
struct vendor {
    const struct weft_gpu_backend *backend;
    const char *(*text)(int result); /* or NULL */

    /* This device, gpu->base.ordinal, is going to be used, until detach. In no context. */
    int (*attach)(struct vendor_gpu *gpu);
    void (*detach)(struct vendor_gpu *gpu);
    /* Exchange the thread's stream capture mode (VENDOR_CAPTURE_RELAXED, or what it was), in any context; with a result it is as before. */
    int (*capture_mode)(int *mode);
    /* It is the thread's between the two, which do not nest; then what was before. */
    int (*enter)(const struct vendor_gpu *gpu);
    void (*leave)(const struct vendor_gpu *gpu);

    /* Streams go on without waiting for the default one. A caller's may be WEFT_STREAM_DEFAULT. */
    int (*stream_create)(void **stream);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*event_create)(void **event);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    /* NULL, the library has none of it: once all that is on the stream has been done, and hosts see that, the word has this value. */
    int (*word_write)(void *stream, uintptr_t word, uint32_t value);
    int (*stream_query)(void *stream); /* as an event's; in the context. With word_write. */

    int (*copy)(uintptr_t dst, uintptr_t src, size_t len, void *stream);
    int (*alloc)(uintptr_t *addr, size_t len);
    int (*free)(uintptr_t addr);
    /* The allocation with this address. */
    int (*range)(uintptr_t addr, uintptr_t *base, size_t *len);
    /* For all devices, and for kernels. */
    int (*host_register)(void *host, size_t len);
    int (*host_unregister)(void *host);
    int (*host_addr)(void *host, uintptr_t *addr);
    /* 0: all of this memory of the host's is pinned, as far as the library tells. */
    int (*host_pinned)(uintptr_t host, size_t len);
    int (*dmabuf)(uintptr_t addr, size_t len, int *fd, uint64_t *offset);
    int (*ipc_get)(void *handle, uintptr_t base);
    int (*ipc_open)(uintptr_t *base, const void *handle);
    int (*ipc_close)(uintptr_t base);
    const struct vendor_segments *segments; /* NULL: it has none of them */

    /* Weft's kernels, compiled: of the file that the setting names, else these; NULL: there was no compiler. */
    const char *kernels_setting;
    const void *image;
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_kernel)(void **kernel, void *module, const char *name);
    /* args: one struct, by value to the kernel */
    int (*launch)(void *kernel, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                  void *stream, const void *args);
    /* NULL, the library has none of it: the kernel in blocks of so many threads, as a graph that is launched on this stream again
     * and again, with other arguments each time. A launch of it takes the library half as long (vendor_kernel.c). */
    int (*graph_make)(void **graph, void *kernel, uint32_t threads, const void *args, void *stream);
    int (*graph_launch)(void *graph, uint32_t blocks, const void *args, void *stream);
    void (*graph_unmake)(void *graph);
};

enum { VENDOR_COPY, VENDOR_KERNELS };

/*
 * How copies go that are not waited for: each route has streams of its own. A stream does one after the other, and what goes to the
 * host and what comes from it do not get in each other's way, nor in that of what goes among devices. What is short would wait for
 * all that is on its stream. Of copies two streams: the next has begun when one ends; four share the link, end at once, and it rests
 * until there are others. Of kernels, which take longer to begin behind another, four. No two of 17 streams shared a queue of the
 * driver's, whatever CUDA_DEVICE_MAX_CONNECTIONS said (all of it: bench/results/2026-11-27-gpu-5.md). Kernels' routes come last.
 */
enum vendor_route {
    VENDOR_AMONG,
    VENDOR_FROM_HOST,
    VENDOR_TO_HOST,
    VENDOR_BY_KERNEL,
    VENDOR_SHORT,
    VENDOR_ROUTES
};
#define VENDOR_WAYS 12
/* Those of a route, up to the first of the next one. */
static inline int vendor_first_way(enum vendor_route route)
{
    static const int first[VENDOR_ROUTES + 1] = {0, 2, 4, 6, 10, VENDOR_WAYS};
    return first[route];
}
#define VENDOR_BRIEF ((uint64_t)64 << 10) /* bytes of all copies of a job that is short */
/* Of so many times that a copy is asked for which is not the first, one goes to the library. */
#define VENDOR_ASK 16

/* How to hear of the end, and its place among those that are not in use, or behind which it stands. */
struct weft_gpu_job {
    struct weft_gpu_job *next, *next_of_all;
    void *event;    /* NULL: none was needed yet */
    int way;        /* -1: a mark */
    uint32_t word;  /* the way's word from then on, if words are written */
    unsigned asked; /* in vain */
};

/* A stream of copies that are not waited for. It does one after the other: while the first is not done, the library is
 * asked for others now and then only. */
struct vendor_way {
    void *stream;
    void *graph;                       /* of VENDOR_COPY; NULL: there is none */
    uint32_t written;                  /* its word, once all of it is done */
    struct weft_gpu_job *first, *last; /* under way; none where words are written */
};

/* A word of a way, in pinned memory of the host, in a line of the cache of its own. */
struct vendor_word {
    _Atomic(uint32_t) value;
    uint8_t apart[60];
};

struct vendor_gpu {
    struct weft_gpu base;
    const struct vendor *vendor;
    int device;                             /* the library's number or handle of it: attach's */
    void *ctx;                              /* the same */
    void *module, *kernels[VENDOR_KERNELS]; /* NULL: the device has none */
    void *stream;         /* of copies that nobody named a stream for, and that are waited for */
    pthread_mutex_t lock; /* of what follows */
    struct vendor_way ways[VENDOR_WAYS];
    struct vendor_word *words;        /* of each way. NULL: events tell of the end of copies */
    void *words_page;                 /* what they are in; NULL: there is none */
    uintptr_t words_at;               /* where the device has them */
    unsigned turns[VENDOR_ROUTES];
    struct weft_gpu_job *idle, *jobs; /* all */
};

static inline struct vendor_gpu *vendor_of(struct weft_gpu *gpu)
{
    return (struct vendor_gpu *)gpu;
}

/* --- vendor.c --- */

/* A sentence and a code for what the library says: `what` failed. */
int vendor_fail(const struct vendor *vendor, int result, const char *what);
/* The same where nobody can be told but who reads the log. Nothing if nothing failed. */
void vendor_complain(const struct vendor_gpu *gpu, int result, const char *what, const void *addr);
/* 0, or a code; try_enter: the library's result, which is no failure yet. */
int vendor_enter(const struct vendor_gpu *gpu);
int vendor_try_enter(const struct vendor_gpu *gpu);
void vendor_leave(const struct vendor_gpu *gpu);
/*
 * Around what is called outside of a context and may wait; enter and leave do it, too. The application may be capturing streams into a
 * graph, by this thread or another (torch: for all threads). Unless the thread's mode is relaxed, the library refuses to say whether
 * ours are done, and that breaks the capture. What is done here is on no stream of a capture.
 */
void vendor_capture_relax(const struct vendor *vendor);
void vendor_capture_restore(const struct vendor *vendor);
/* To *slot, a pointer to a function: that of the opened library's with this name, or NULL. */
void vendor_find(void *library, const char *symbol, void *slot);
int vendor_open(const struct vendor *vendor, int ordinal, struct weft_gpu **gpu);
weft_gpu_close_fn vendor_close;

/* --- the rest, for a backend's table --- */

weft_gpu_alloc_fn vendor_alloc;
weft_gpu_free_fn vendor_free;
weft_gpu_host_map_fn vendor_host_map;
weft_gpu_host_unmap_fn vendor_host_unmap;
weft_gpu_export_dmabuf_fn vendor_export_dmabuf;
weft_gpu_copy_fn vendor_copy;
weft_gpu_copy_start_fn vendor_copy_start;
weft_gpu_copy_done_fn vendor_copy_done;
weft_gpu_mark_fn vendor_mark;
/* All jobs. In the context. */
void vendor_copy_end(struct vendor_gpu *gpu);
weft_gpu_ipc_export_fn vendor_ipc_export;
weft_gpu_ipc_open_fn vendor_ipc_open;
weft_gpu_ipc_close_fn vendor_ipc_close;
weft_gpu_launch_fn vendor_launch;

/* --- vendor_word.c --- */

/* Words for the ways, if the device writes such: tried once. In the context, as is unmake, while the streams are there. */
void vendor_words_make(struct vendor_gpu *gpu);
void vendor_words_unmake(struct vendor_gpu *gpu);
/* To the job: its way's next word, behind what is on the stream. The gpu's lock held, in the context. The library's result. */
int vendor_word_write(struct vendor_gpu *gpu, struct weft_gpu_job *job);
/* All that was on the way is done, as its word tells; false where words are not written. The gpu's lock held. */
bool vendor_word_idle(const struct vendor_gpu *gpu, int way);
/* Has it been written? VENDOR_EBUSY: not yet; else the library's result. */
int vendor_word_query(struct vendor_gpu *gpu, struct weft_gpu_job *job);

/* --- vendor_segments.c: in the context; they return codes --- */

#define VENDOR_ID_BYTES 16

/* What a peer needs to know of them, beside the descriptor of a bag of theirs. */
struct vendor_shared {
    uint8_t id[VENDOR_ID_BYTES]; /* random */
    uint64_t bytes;              /* of all of them */
};
/* Is addr in one? */
bool vendor_segments_has(const struct vendor *vendor, uintptr_t addr);
/* Of len bytes at addr; *offset: of addr in them. */
int vendor_segments_share(const struct vendor_gpu *gpu, uintptr_t addr, uint64_t len,
                          struct vendor_shared *shared, uint64_t *offset, int *fd);
/* Side by side at *start, for this device; what is there already is that. */
int vendor_segments_open(const struct vendor_gpu *gpu, const struct vendor_shared *shared, int fd,
                         uintptr_t *start);
/* False: it is none of these. */
bool vendor_segments_close(const struct vendor_gpu *gpu, uintptr_t addr);

#endif
