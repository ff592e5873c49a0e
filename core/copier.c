/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from and to memory of GPUs, and the pinned buffers that they go through.
 *
 * A copy takes microseconds to begin and longer to end, so neither is done with the endpoint lock in hand. No
 * descriptor tells of the end of a copy: while copies run, the thread that would sleep asks again, and gives its
 * processor away in between (progress.c).
 */
#include "copier.h"
#include "endpoint.h"
#include "mem.h"
#include "progress.h"
#include "rail.h"
#include "stage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int weft__copier_open(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    c->kernels = weft_config_int("WEFT_GPU_KERNELS");
    c->slot_bytes = (uint64_t)weft_config_int("WEFT_STAGE_CHUNK") / WEFT__STAGE_SLOTS;
    c->queue_tail = &c->queue;
    c->running_tail = &c->running;
    c->chores_tail = &c->chores;
    return pthread_mutex_init(&c->lock, NULL) ? weft_fail(-ENOMEM, "no memory for a lock") : 0;
}

void weft__copier_fit(struct weft__endpoint *ep)
{
    int lanes = weft__lanes_asked(ep, true, true); /* as tcp has: no transport has more */
    int pieces = (int)weft_config_int("WEFT_STAGE_SLOTS") * lanes;
    int slots = pieces * WEFT__STAGE_SLOTS + WEFT__STAGE_SPARE;
    ep->copier.nslots = slots < WEFT__MAX_SLOTS ? slots : WEFT__MAX_SLOTS;
}

struct weft_gpu *weft__gpu_opened(struct weft__endpoint *ep, int ordinal)
{
    /* acquire pairs with the release in weft__chore_gpu */
    return atomic_load_explicit(&ep->copier.gpus[ordinal], memory_order_acquire);
}

int weft__chore_gpu(struct weft__endpoint *ep, int ordinal)
{
    if (ordinal < 0 || ordinal >= WEFT__MAX_GPUS)
        return weft_fail(WEFT_ELIMIT, "GPU %d of %s: only %d are known", ordinal, ep->gpu->name,
                         WEFT__MAX_GPUS);
    struct weft_gpu *gpu = weft__gpu_opened(ep, ordinal);
    int rc = gpu ? 0 : ep->gpu->ops->open(ordinal, &gpu);
    if (rc == 0) {
        gpu->backend = ep->gpu; /* its table has the defaults */
        atomic_store_explicit(&ep->copier.gpus[ordinal], gpu, memory_order_release);
    }
    return rc;
}

int weft__gpu_need(struct weft__endpoint *ep, int ordinal)
{
    struct weft__copier *c = &ep->copier;
    if (ordinal >= 0 && ordinal < WEFT__MAX_GPUS && weft__gpu_opened(ep, ordinal))
        return 0;
    pthread_mutex_lock(&c->lock);
    int rc = weft__chore_gpu(ep, ordinal);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int weft__gpu_copy_now(struct weft__endpoint *ep, int ordinal, void *dst, const void *src,
                       uint64_t len)
{
    return ep->gpu->ops->copy(weft__gpu_opened(ep, ordinal), dst, src, len, NULL);
}

int weft__gpu_mark(struct weft__endpoint *ep, int ordinal, void *stream, struct weft__copy *copy)
{
    *copy = (struct weft__copy){.ordinal = ordinal};
    return ep->gpu->ops->mark(weft__gpu_opened(ep, ordinal), stream, &copy->job);
}

/* --- areas ------------------------------------------------------------------------------------ */

/* Its registration has ended. */
static void area_free(struct weft__endpoint *ep, struct weft__area *area)
{
    if (area->pinned)
        ep->gpu->ops->host_unmap(area->pinned, area->addr);
    munmap(area->addr, ep->copier.slot_bytes * (uint64_t)ep->copier.nslots);
    free(area);
}

/* What one pins is pinned for all. */
struct weft_gpu *weft__gpu_any(struct weft__endpoint *ep)
{
    for (int i = 0; i < WEFT__MAX_GPUS; i++)
        if (weft__gpu_opened(ep, i))
            return weft__gpu_opened(ep, i);
    return NULL;
}

/* An endpoint that has no GPU of its own open (it writes to a peer's) has nobody to pin it for. */
static int area_fill(struct weft__endpoint *ep, struct weft__area *area, uint64_t len)
{
    struct weft_gpu *gpu = weft__gpu_any(ep);
    void *dev;
    int rc = gpu ? ep->gpu->ops->host_map(gpu, area->addr, len, &dev) : 0;
    if (rc < 0)
        return rc;
    area->pinned = rc == 0 ? gpu : NULL;
    area->reached = area->pinned && dev == area->addr;
    return weft__reg_open(ep, area->addr, len, WEFT_READ | WEFT_WRITE, &area->reg);
}

static int area_make(struct weft__endpoint *ep, struct weft__area **out)
{
    uint64_t len = ep->copier.slot_bytes * (uint64_t)ep->copier.nslots;
    struct weft__area *area = calloc(1, sizeof *area);
    void *addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!area || addr == MAP_FAILED) {
        if (addr != MAP_FAILED)
            munmap(addr, len);
        free(area);
        return weft_fail(-ENOMEM, "no memory for %" PRIu64 " bytes to stage memory of GPUs in",
                         len);
    }
    area->addr = addr;
    madvise(addr, len, MADV_HUGEPAGE); /* cheaper to pin and to lend */
    int rc = area_fill(ep, area, len);
    if (rc)
        area_free(ep, area); /* what it holds has no registration */
    else
        *out = area;
    return rc;
}

struct weft__area *weft__area_get(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    struct weft__area *area = c->areas;
    if (area) {
        c->areas = area->next;
        return area;
    }
    atomic_fetch_add(&c->wanted, 1);
    return NULL;
}

void weft__area_put(struct weft__endpoint *ep, struct weft__area *area)
{
    area->next = ep->copier.areas;
    ep->copier.areas = area;
}

void weft__area_retire(struct weft__endpoint *ep, struct weft__area *area)
{
    weft__reg_shut(area->reg);
    area->next = ep->copier.retired;
    ep->copier.retired = area;
}

/* One that no peer touches any more, or NULL. Endpoint lock held. */
static struct weft__area *next_retired(struct weft__copier *c)
{
    struct weft__area **at = &c->retired;
    while (*at && (*at)->reg->undone)
        at = &(*at)->next;
    struct weft__area *area = *at;
    if (area)
        *at = area->next;
    return area;
}

static void free_retired(struct weft__endpoint *ep)
{
    struct weft__area *area;
    do {
        pthread_mutex_lock(&ep->lock);
        area = next_retired(&ep->copier);
        pthread_mutex_unlock(&ep->lock);
        if (area) {
            free(area->reg);
            area_free(ep, area);
        }
    } while (area);
}

/* --- chores ------------------------------------------------------------------------------------ */

void weft__chore_push(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct weft__copier *c = &ep->copier;
    chore->next = NULL;
    *c->chores_tail = chore;
    c->chores_tail = &chore->next;
    atomic_fetch_add(&c->wanted, 1);
}

/* Copier lock held. False: there was none. */
static bool do_chore(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    pthread_mutex_lock(&ep->lock);
    struct weft__chore *chore = c->chores;
    if (chore)
        c->chores = chore->next;
    if (!c->chores)
        c->chores_tail = &c->chores;
    pthread_mutex_unlock(&ep->lock);
    if (!chore)
        return false;
    chore->run(ep, chore);
    pthread_mutex_lock(&ep->lock);
    chore->done(ep, chore);
    pthread_mutex_unlock(&ep->lock);
    return true;
}

/* One that is wanted. Copier lock held. */
static int make_wanted(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    if (atomic_load(&c->wanted) == 0)
        return 0;
    atomic_fetch_sub(&c->wanted, 1);
    if (do_chore(ep))
        return 1;
    free_retired(ep);
    struct weft__area *area = NULL;
    int rc = area_make(ep, &area);
    pthread_mutex_lock(&ep->lock);
    if (rc == 0)
        weft__area_put(ep, area);
    weft__stage_area(ep, rc, rc ? weft_last_error() : NULL);
    pthread_mutex_unlock(&ep->lock);
    return 1;
}

/* --- copies ------------------------------------------------------------------------------------ */

void weft__copy_push(struct weft__endpoint *ep, struct weft__copy *copy)
{
    struct weft__copier *c = &ep->copier;
    copy->next = NULL;
    *c->queue_tail = copy;
    c->queue_tail = &copy->next;
    atomic_store(&c->waiting, true);
}

static struct weft__copy *take(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    pthread_mutex_lock(&ep->lock);
    struct weft__copy *list = c->queue;
    c->queue = NULL;
    c->queue_tail = &c->queue;
    atomic_store(&c->waiting, false);
    pthread_mutex_unlock(&ep->lock);
    return list;
}

static void failed(struct weft__copy *copy, int status)
{
    copy->status = status;
    snprintf(copy->why, sizeof copy->why, "%s", weft_last_error());
}

static void start(struct weft__endpoint *ep, struct weft__copy *copy)
{
    struct weft_gpu *gpu = weft__gpu_opened(ep, copy->ordinal);
    copy->job = NULL;
    uint32_t flags = copy->host | (copy->reached && ep->copier.kernels ? WEFT_GPU_REACHED : 0u);
    int rc = ep->gpu->ops->copy_start(gpu, copy->list, copy->n, flags, &copy->job);
    if (rc)
        failed(copy, rc);
}

static void note_step(struct weft__copier *c, const struct weft__copy *copy)
{
    if (copy->patient)
        atomic_store_explicit(&c->stepped, weft_now(), memory_order_relaxed);
}

/* All that is queued is handed to the GPUs. Copier lock held. */
static int begin(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    int n = 0;
    if (!atomic_load(&c->waiting))
        return 0;
    for (struct weft__copy *copy = take(ep), *next; copy; copy = next, n++) {
        next = copy->next;
        copy->next = NULL;
        copy->status = 0;
        if (copy->n)
            start(ep, copy);
        note_step(c, copy);
        *c->running_tail = copy;
        c->running_tail = &copy->next;
    }
    if (n)
        atomic_store(&c->busy, true);
    return n;
}

static bool ended(struct weft__endpoint *ep, struct weft__copy *copy)
{
    int rc = copy->job ? ep->gpu->ops->copy_done(weft__gpu_opened(ep, copy->ordinal), copy->job)
                       : 1;
    if (rc < 0)
        failed(copy, rc);
    return rc != 0;
}

/* Give those that have ended back to their owners. Copier lock held. */
static int collect(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    struct weft__copy *over = NULL, **over_tail = &over, **at = &c->running, *copy;
    int n = 0;
    while ((copy = *at)) {
        if (!ended(ep, copy)) {
            at = &copy->next;
            continue;
        }
        note_step(c, copy);
        *at = copy->next;
        copy->next = NULL;
        *over_tail = copy;
        over_tail = &copy->next;
        n++;
    }
    c->running_tail = at;
    atomic_store(&c->busy, c->running != NULL);
    if (!over)
        return 0;
    pthread_mutex_lock(&ep->lock);
    while ((copy = over)) {
        over = copy->next;
        copy->done(copy, copy->status, copy->status ? copy->why : NULL);
    }
    pthread_mutex_unlock(&ep->lock);
    return n;
}

/* This thread may have other things to do than to ask for the end, or to make an area: who sleeps has not. */
static void wake(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    if (atomic_load(&c->sleeping) && !weft__copier_idle(c))
        weft__wake(ep);
}

void weft__copier_begin(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    while (atomic_load(&c->waiting)) {
        if (pthread_mutex_trylock(&c->lock))
            return; /* who holds it looks once more when it has let go */
        begin(ep);
        pthread_mutex_unlock(&c->lock);
    }
    wake(ep);
}

int weft__copier_drive(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    int n = 0;
    while (pthread_mutex_trylock(&c->lock) == 0) {
        n += make_wanted(ep) + begin(ep) + collect(ep);
        pthread_mutex_unlock(&c->lock);
        if (!atomic_load(&c->waiting))
            break;
    }
    if (n)
        weft__kick_all(ep);
    wake(ep);
    return n;
}

/* Marks of operations that were canceled: those that a stream has not reached end with its GPU's context. */
static void drop_all(struct weft__copy *list)
{
    for (struct weft__copy *copy = list, *next; copy; copy = next) {
        next = copy->next;
        copy->done(copy, WEFT_ECANCELED, NULL);
    }
}

void weft__copier_close(struct weft__endpoint *ep)
{
    struct weft__copier *c = &ep->copier;
    drop_all(c->running);
    drop_all(c->queue);
    while (do_chore(ep))
        ;
    free_retired(ep);
    while (c->areas) {
        struct weft__area *area = c->areas;
        c->areas = area->next;
        weft__reg_discard(ep, area->reg);
        area_free(ep, area);
    }
    for (int i = 0; i < WEFT__MAX_GPUS; i++)
        if (weft__gpu_opened(ep, i))
            ep->gpu->ops->close(weft__gpu_opened(ep, i));
    pthread_mutex_destroy(&c->lock);
}
