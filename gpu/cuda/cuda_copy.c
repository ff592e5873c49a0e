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

static int make(struct cuda_gpu *gpu, struct weft_gpu_job **out)
{
    struct weft_gpu_job *job = calloc(1, sizeof *job);
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
    *out = job;
    return 0;
}

/* One that is not in use, or a new one. In the context. */
static int get(struct cuda_gpu *gpu, struct weft_gpu_job **out)
{
    pthread_mutex_lock(&gpu->lock);
    struct weft_gpu_job *job = gpu->idle;
    if (job)
        gpu->idle = job->next;
    pthread_mutex_unlock(&gpu->lock);
    if (!job)
        return make(gpu, out);
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

/* On a way, whose lock is held: nothing comes between the copies and their event. */
static int start(struct cuda_gpu *gpu, struct cuda_way *way, const struct weft_gpu_copy *list,
                 int n, struct weft_gpu_job *job)
{
    const struct cuda_api *api = gpu->api;
    int result = 0;
    for (int i = 0; i < n && result == 0; i++)
        if (list[i].len)
            result = api->copy((uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].len,
                               way->stream);
    if (result == 0)
        result = api->event_record(job->event, way->stream);
    if (result) {
        api->stream_wait(way->stream); /* nothing may be under way */
        return cuda_fail(result, "cannot copy");
    }
    job->next = NULL;
    job->asked = 0;
    if (way->first)
        way->last->next = job;
    else
        way->first = job;
    way->last = job;
    return 0;
}

int cuda_copy_start(struct weft_gpu *base, const struct weft_gpu_copy *list, int n,
                    struct weft_gpu_job **out)
{
    struct cuda_gpu *gpu = cuda_of(base);
    struct weft_gpu_job *job;
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    rc = get(gpu, &job);
    if (rc == 0) {
        pthread_mutex_lock(&gpu->lock);
        job->way = (int)(gpu->way++ % CUDA_WAYS);
        rc = start(gpu, &gpu->ways[job->way], list, n, job);
        pthread_mutex_unlock(&gpu->lock);
        if (rc)
            put(gpu, job);
        else
            *out = job;
    }
    cuda_leave(gpu);
    return rc;
}

/* Its turn to be asked for? */
static bool is_due(struct cuda_gpu *gpu, struct weft_gpu_job *job)
{
    pthread_mutex_lock(&gpu->lock);
    bool due = job->way < 0 || gpu->ways[job->way].first == job || ++job->asked % CUDA_ASK == 0;
    pthread_mutex_unlock(&gpu->lock);
    return due;
}

/* It is no more among those under way. */
static void leave(struct cuda_gpu *gpu, const struct weft_gpu_job *job)
{
    struct cuda_way *way = &gpu->ways[job->way];
    struct weft_gpu_job **at = &way->first, *before = NULL;
    pthread_mutex_lock(&gpu->lock);
    for (; *at != job; at = &before->next)
        before = *at;
    *at = job->next;
    if (way->last == job)
        way->last = before;
    pthread_mutex_unlock(&gpu->lock);
}

int cuda_copy_done(struct weft_gpu *base, struct weft_gpu_job *job)
{
    struct cuda_gpu *gpu = cuda_of(base);
    if (!is_due(gpu, job))
        return 0;
    int result = gpu->api->event_query(job->event); /* in no context: an event knows its own */
    if (result == CUDA_EBUSY)
        return 0;
    if (job->way >= 0)
        leave(gpu, job);
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
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    rc = get(gpu, &job);
    if (rc == 0) {
        int result = gpu->api->event_record(job->event, stream);
        if (result) {
            put(gpu, job);
            rc = cuda_fail(result, "cannot wait for the stream");
        } else {
            job->way = -1;
            *out = job;
        }
    }
    cuda_leave(gpu);
    return rc;
}
