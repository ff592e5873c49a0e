/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: its context, then the functions of each file. */
#ifndef WEFT_CUDA_GPU_H
#define WEFT_CUDA_GPU_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda_api.h"
#include "weft/gpu.h"

/* Streams for copies that are not waited for: as many as the engines that copy one way or the other. */
#define CUDA_WAYS 4
/* Of so many times that a copy is asked for which is not the first, one goes to the driver. */
#define CUDA_ASK 16

/* An event, and its place among those that are not in use, or behind which it stands. */
struct weft_gpu_job {
    struct weft_gpu_job *next, *next_of_all;
    cuda_event_t event;
    int way;        /* -1: a mark */
    unsigned asked; /* in vain, because others were before it */
};

/* A stream of copies that are not waited for. It does one after the other: while the first is not done, the driver is
 * asked for others now and then only. */
struct cuda_way {
    cuda_stream_t stream;
    struct weft_gpu_job *first, *last; /* under way */
};

struct cuda_gpu {
    struct weft_gpu base;
    const struct cuda_api *api;
    int device;           /* CUdevice */
    cuda_ctx_t ctx;       /* the primary one, which the runtime and torch use, too */
    cuda_stream_t stream; /* of copies that nobody named a stream for, and that are waited for */
    pthread_mutex_t lock; /* of what follows */
    struct cuda_way ways[CUDA_WAYS];
    unsigned way;                     /* the next one */
    struct weft_gpu_job *idle, *jobs; /* all */
};

static inline struct cuda_gpu *cuda_of(struct weft_gpu *gpu)
{
    return (struct cuda_gpu *)gpu;
}

/* --- cuda_lib.c --- */

/* The driver, initialised; or NULL and why not in weft_last_error. Any thread. */
const struct cuda_api *cuda_api(void);
/* It is in this process already, whoever has loaded it. */
bool cuda_present(void);
/* The same, which never changes once it was there, and asks no more than that. */
const struct cuda_api *cuda_api_quick(void);
/* A sentence and a code for what the driver says: `what` failed. */
int cuda_fail(int result, const char *what);

/* --- cuda.c --- */

/* This device's context is the thread's between the two. 0, or a code. */
int cuda_enter(const struct cuda_gpu *gpu);
void cuda_leave(const struct cuda_gpu *gpu);

/* --- the rest --- */

weft_gpu_alloc_fn cuda_alloc;
weft_gpu_free_fn cuda_free;
weft_gpu_query_fn cuda_query;
weft_gpu_host_map_fn cuda_host_map;
weft_gpu_host_unmap_fn cuda_host_unmap;
weft_gpu_export_dmabuf_fn cuda_export_dmabuf;
weft_gpu_copy_fn cuda_copy;
weft_gpu_copy_start_fn cuda_copy_start;
weft_gpu_copy_done_fn cuda_copy_done;
weft_gpu_stream_gpu_fn cuda_stream_gpu;
weft_gpu_mark_fn cuda_mark;
/* All events. In the context. */
void cuda_copy_end(struct cuda_gpu *gpu);
weft_gpu_ipc_export_fn cuda_ipc_export;
weft_gpu_ipc_open_fn cuda_ipc_open;
weft_gpu_ipc_close_fn cuda_ipc_close;

#endif
