/* SPDX-License-Identifier: Apache-2.0 */
/* Copies. The driver finds out itself where each address lives (unified addressing). */
#include "cuda_gpu.h"

#include <errno.h>
#include <stdlib.h>

int cuda_copy(struct weft_gpu *base, void *dst, const void *src, uint64_t len, void *stream)
{
    struct cuda_gpu *gpu = cuda_of(base);
    const struct cuda_api *api = gpu->api;
    cuda_stream_t on = stream ? stream : gpu->stream;
    if (len == 0)
        return 0;
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    int result = api->copy((uintptr_t)dst, (uintptr_t)src, len, on);
    if (result == 0 && !stream)
        result = api->stream_wait(on);
    cuda_leave(gpu);
    return result ? cuda_fail(result, "cannot copy") : 0;
}

/* --- copies that are not waited for ------------------------------------------------------------------------ */

static void put(struct cuda_gpu *gpu, struct weft_gpu_job *job)
{
    pthread_mutex_lock(&gpu->lock);
    job->next = gpu->idle;
    gpu->idle = job;
    pthread_mutex_unlock(&gpu->lock);
}

/* One that is not in use, or a new one, and the next stream. In the context. */
static int get(struct cuda_gpu *gpu, struct weft_gpu_job **out, cuda_stream_t *way)
{
    pthread_mutex_lock(&gpu->lock);
    struct weft_gpu_job *job = gpu->idle;
    if (job)
        gpu->idle = job->next;
    *way = gpu->ways[gpu->way++ % CUDA_WAYS];
    pthread_mutex_unlock(&gpu->lock);
    if (!job) {
        job = calloc(1, sizeof *job);
        if (!job)
            return weft_fail(-ENOMEM, "gpu cuda: no memory for a copy");
        int result = gpu->api->event_create(&job->event, CUDA_EVENT_NO_TIMES);
        if (result) {
            free(job);
            return cuda_fail(result, "cannot make an event");
        }
        pthread_mutex_lock(&gpu->lock);
        job->next_of_all = gpu->jobs;
        gpu->jobs = job;
        pthread_mutex_unlock(&gpu->lock);
    }
    *out = job;
    return 0;
}

void cuda_copy_end(struct cuda_gpu *gpu)
{
    while (gpu->jobs) {
        struct weft_gpu_job *job = gpu->jobs;
        gpu->jobs = job->next_of_all;
        gpu->api->event_destroy(job->event);
        free(job);
    }
}

static int start(struct cuda_gpu *gpu, const struct weft_gpu_copy *list, int n, struct weft_gpu_job **out)
{
    const struct cuda_api *api = gpu->api;
    struct weft_gpu_job *job = NULL;
    cuda_stream_t way;
    int rc = get(gpu, &job, &way), result = 0;
    if (rc)
        return rc;
    for (int i = 0; i < n && result == 0; i++)
        if (list[i].len)
            result = api->copy((uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].len, way);
    int recorded = result ? api->stream_wait(way) : api->event_record(job->event, way);
    if (result == 0 && recorded == 0) {
        *out = job;
        return 0;
    }
    if (recorded && result == 0)
        api->stream_wait(way); /* nothing may be under way */
    put(gpu, job);
    return cuda_fail(result ? result : recorded, "cannot copy");
}

int cuda_copy_start(struct weft_gpu *base, const struct weft_gpu_copy *list, int n,
                    struct weft_gpu_job **job)
{
    struct cuda_gpu *gpu = cuda_of(base);
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    rc = start(gpu, list, n, job);
    cuda_leave(gpu);
    return rc;
}

int cuda_copy_done(struct weft_gpu *base, struct weft_gpu_job *job)
{
    struct cuda_gpu *gpu = cuda_of(base);
    int rc = cuda_enter(gpu);
    if (rc) { /* the context is no more, and copies nothing */
        put(gpu, job);
        return rc;
    }
    int result = gpu->api->event_query(job->event);
    cuda_leave(gpu);
    if (result == CUDA_EBUSY)
        return 0;
    put(gpu, job);
    return result ? cuda_fail(result, "a copy failed") : 1;
}

/* --- streams of callers ------------------------------------------------------------------------------------ */

/* WEFT_STREAM_DEFAULT is the driver's CU_STREAM_LEGACY. */
int cuda_stream_gpu(void *stream, int *ordinal)
{
    const struct cuda_api *api = cuda_api_quick();
    cuda_ctx_t ctx = NULL;
    int device = -1;
    if (!api)
        return WEFT_ENODEV;
    int result = api->stream_ctx(stream, &ctx);
    if (result == 0)
        result = api->ctx_push(ctx);
    if (result)
        return cuda_fail(result, "cannot tell whose stream it is");
    result = api->ctx_device(&device);
    api->ctx_pop(&ctx);
    int n = 0, at = -1, found = -1;
    api->device_count(&n);
    while (++at < n && found != device)
        api->device_get(&found, at);
    if (result || found != device)
        return cuda_fail(result ? result : CUDA_EDEVICE, "cannot tell whose stream it is");
    *ordinal = at - 1;
    return 0;
}

int cuda_mark(struct weft_gpu *base, void *stream, struct weft_gpu_job **out)
{
    struct cuda_gpu *gpu = cuda_of(base);
    struct weft_gpu_job *job;
    cuda_stream_t unused;
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    rc = get(gpu, &job, &unused);
    if (rc == 0) {
        int result = gpu->api->event_record(job->event, stream);
        if (result) {
            put(gpu, job);
            rc = cuda_fail(result, "cannot wait for the stream");
        } else {
            *out = job;
        }
    }
    cuda_leave(gpu);
    return rc;
}
