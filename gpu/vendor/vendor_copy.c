/* SPDX-License-Identifier: Apache-2.0 */
/* Copies. The library finds out itself where each address lives (unified addressing). */
#include "vendor_kernel.h"

#include <errno.h>
#include <stdlib.h>

int vendor_copy(struct weft_gpu *base, void *dst, const void *src, uint64_t len, void *stream)
{
    struct vendor_gpu *gpu = vendor_of(base);
    const struct vendor *vendor = gpu->vendor;
    void *on = stream ? stream : gpu->stream;
    if (len == 0)
        return 0;
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    int result = vendor->copy((uintptr_t)dst, (uintptr_t)src, len, on);
    if (result == 0 && !stream)
        result = vendor->stream_wait(on);
    vendor_leave(gpu);
    return result ? vendor_fail(gpu->vendor, result, "cannot copy") : 0;
}

/* --- copies that are not waited for ------------------------------------------------------------------------ */

static void put(struct vendor_gpu *gpu, struct weft_gpu_job *job)
{
    pthread_mutex_lock(&gpu->lock);
    job->next = gpu->idle;
    gpu->idle = job;
    pthread_mutex_unlock(&gpu->lock);
}

static int make(struct vendor_gpu *gpu, struct weft_gpu_job **out)
{
    struct weft_gpu_job *job = calloc(1, sizeof *job);
    if (!job)
        return weft_fail(-ENOMEM, "gpu %s: no memory for a copy", gpu->base.backend->name);
    int result = gpu->vendor->event_create(&job->event);
    if (result) {
        free(job);
        return vendor_fail(gpu->vendor, result, "cannot make an event");
    }
    pthread_mutex_lock(&gpu->lock);
    job->next_of_all = gpu->jobs;
    gpu->jobs = job;
    pthread_mutex_unlock(&gpu->lock);
    *out = job;
    return 0;
}

/* One that is not in use, or a new one. In the context. */
static int get(struct vendor_gpu *gpu, struct weft_gpu_job **out)
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

void vendor_copy_end(struct vendor_gpu *gpu)
{
    while (gpu->jobs) {
        struct weft_gpu_job *job = gpu->jobs;
        gpu->jobs = job->next_of_all;
        gpu->vendor->event_destroy(job->event);
        free(job);
    }
}

/* On a way, whose lock is held: nothing comes between the copies and their event. */
static int start(struct vendor_gpu *gpu, struct vendor_way *way, const struct weft_gpu_copy *list,
                 int n, uint32_t flags, struct weft_gpu_job *job)
{
    const struct vendor *vendor = gpu->vendor;
    int result = 0;
    if (vendor_kernel_fits(gpu, list, n, flags))
        result = vendor_kernel_copy(gpu, list, n, way->stream);
    else
        for (int i = 0; i < n && result == 0; i++)
            if (list[i].len)
                result = vendor->copy((uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].len,
                                      way->stream);
    if (result == 0)
        result = vendor->event_record(job->event, way->stream);
    if (result) {
        vendor->stream_wait(way->stream); /* nothing may be under way */
        return vendor_fail(gpu->vendor, result, "cannot copy");
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

int vendor_copy_start(struct weft_gpu *base, const struct weft_gpu_copy *list, int n,
                      uint32_t flags, struct weft_gpu_job **out)
{
    struct vendor_gpu *gpu = vendor_of(base);
    struct weft_gpu_job *job;
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    rc = get(gpu, &job);
    if (rc == 0) {
        pthread_mutex_lock(&gpu->lock);
        job->way = (int)(gpu->way++ % VENDOR_WAYS);
        rc = start(gpu, &gpu->ways[job->way], list, n, flags, job);
        pthread_mutex_unlock(&gpu->lock);
        if (rc)
            put(gpu, job);
        else
            *out = job;
    }
    vendor_leave(gpu);
    return rc;
}

/* Its turn to be asked for? */
static bool is_due(struct vendor_gpu *gpu, struct weft_gpu_job *job)
{
    pthread_mutex_lock(&gpu->lock);
    bool due = job->way < 0 || gpu->ways[job->way].first == job || ++job->asked % VENDOR_ASK == 0;
    pthread_mutex_unlock(&gpu->lock);
    return due;
}

/* It is no more among those under way. */
static void leave(struct vendor_gpu *gpu, const struct weft_gpu_job *job)
{
    struct vendor_way *way = &gpu->ways[job->way];
    struct weft_gpu_job **at = &way->first, *before = NULL;
    pthread_mutex_lock(&gpu->lock);
    for (; *at != job; at = &before->next)
        before = *at;
    *at = job->next;
    if (way->last == job)
        way->last = before;
    pthread_mutex_unlock(&gpu->lock);
}

int vendor_copy_done(struct weft_gpu *base, struct weft_gpu_job *job)
{
    struct vendor_gpu *gpu = vendor_of(base);
    if (!is_due(gpu, job))
        return 0;
    int result = gpu->vendor->event_query(job->event); /* in no context: an event knows its own */
    if (result == VENDOR_EBUSY)
        return 0;
    if (job->way >= 0)
        leave(gpu, job);
    put(gpu, job);
    return result ? vendor_fail(gpu->vendor, result, "a copy failed") : 1;
}

/* --- streams of callers ------------------------------------------------------------------------------------ */

int vendor_mark(struct weft_gpu *base, void *stream, struct weft_gpu_job **out)
{
    struct vendor_gpu *gpu = vendor_of(base);
    struct weft_gpu_job *job;
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    rc = get(gpu, &job);
    if (rc == 0) {
        int result = gpu->vendor->event_record(job->event, stream);
        if (result) {
            put(gpu, job);
            rc = vendor_fail(gpu->vendor, result, "cannot wait for the stream");
        } else {
            job->way = -1;
            *out = job;
        }
    }
    vendor_leave(gpu);
    return rc;
}
