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
    pthread_mutex_lock(&gpu->lock);
    job->next_of_all = gpu->jobs;
    gpu->jobs = job;
    pthread_mutex_unlock(&gpu->lock);
    *out = job;
    return 0;
}

/* One that is not in use, or a new one; with an event, if it needs one. In the context. */
static int get(struct vendor_gpu *gpu, bool event, struct weft_gpu_job **out)
{
    pthread_mutex_lock(&gpu->lock);
    struct weft_gpu_job *job = gpu->idle;
    if (job)
        gpu->idle = job->next;
    pthread_mutex_unlock(&gpu->lock);
    int rc = job ? 0 : make(gpu, &job), result = 0;
    if (rc == 0 && event && !job->event)
        result = gpu->vendor->event_create(&job->event);
    if (result) {
        put(gpu, job);
        return vendor_fail(gpu->vendor, result, "cannot make an event");
    }
    if (rc == 0)
        *out = job;
    return rc;
}

void vendor_copy_end(struct vendor_gpu *gpu)
{
    while (gpu->jobs) {
        struct weft_gpu_job *job = gpu->jobs;
        gpu->jobs = job->next_of_all;
        if (job->event)
            gpu->vendor->event_destroy(job->event);
        free(job);
    }
}

/* Behind those that are under way. */
static void join(struct vendor_way *way, struct weft_gpu_job *job)
{
    job->next = NULL;
    if (way->first)
        way->last->next = job;
    else
        way->first = job;
    way->last = job;
}

/* On its way, with the lock held: nothing comes between the copies and what tells of their end. */
static int start(struct vendor_gpu *gpu, const struct weft_gpu_copy *list, int n, bool kernel,
                 struct weft_gpu_job *job)
{
    const struct vendor *vendor = gpu->vendor;
    struct vendor_way *way = &gpu->ways[job->way];
    int result = 0;
    if (kernel)
        result = vendor_kernel_copy(gpu, list, n, job->way);
    else
        for (int i = 0; i < n && result == 0; i++)
            if (list[i].len)
                result = vendor->copy((uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].len,
                                      way->stream);
    if (result == 0)
        result = gpu->words ? vendor_word_write(gpu, job)
                            : vendor->event_record(job->event, way->stream);
    if (result) {
        vendor->stream_wait(way->stream); /* nothing may be under way */
        return vendor_fail(gpu->vendor, result, "cannot copy");
    }
    job->asked = 0;
    if (!gpu->words)
        join(way, job);
    return 0;
}

static enum vendor_route route_of(const struct weft_gpu_copy *list, int n, uint32_t flags,
                                  bool kernel)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n && bytes < VENDOR_BRIEF; i++)
        bytes += list[i].len;
    return bytes < VENDOR_BRIEF         ? VENDOR_SHORT
           : kernel                     ? VENDOR_BY_KERNEL
           : flags & WEFT_GPU_FROM_HOST ? VENDOR_FROM_HOST
           : flags & WEFT_GPU_TO_HOST   ? VENDOR_TO_HOST
                                        : VENDOR_AMONG;
}

/* One of the route's, in turn. The gpu's lock held. */
static int pick_way(struct vendor_gpu *gpu, enum vendor_route route)
{
    int first = vendor_first_way(route), n = vendor_first_way(route + 1) - first;
    return first + (int)(gpu->turns[route]++ % (unsigned)n);
}

int vendor_copy_start(struct weft_gpu *base, const struct weft_gpu_copy *list, int n,
                      uint32_t flags, struct weft_gpu_job **out)
{
    struct vendor_gpu *gpu = vendor_of(base);
    struct weft_gpu_job *job;
    bool kernel = vendor_kernel_fits(gpu, list, n, flags);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    rc = get(gpu, !gpu->words, &job);
    if (rc == 0) {
        pthread_mutex_lock(&gpu->lock);
        job->way = pick_way(gpu, route_of(list, n, flags, kernel));
        rc = start(gpu, list, n, kernel, job);
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

static int ask_event(struct vendor_gpu *gpu, struct weft_gpu_job *job)
{
    if (!is_due(gpu, job))
        return VENDOR_EBUSY;
    vendor_capture_relax(gpu->vendor);
    int result = gpu->vendor->event_query(job->event); /* in no context: an event knows its own */
    vendor_capture_restore(gpu->vendor);
    if (job->way >= 0 && result != VENDOR_EBUSY)
        leave(gpu, job);
    return result;
}

int vendor_copy_done(struct weft_gpu *base, struct weft_gpu_job *job)
{
    struct vendor_gpu *gpu = vendor_of(base);
    int result = gpu->words && job->way >= 0 ? vendor_word_query(gpu, job) : ask_event(gpu, job);
    if (result == VENDOR_EBUSY)
        return 0;
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
    rc = get(gpu, true, &job);
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
