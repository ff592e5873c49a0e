/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from and to memory of GPUs, and the pinned buffers that they go through (copier.c).
 *
 * Much like a lane: what is to be copied is pushed under the endpoint lock; whoever holds the copier's lock, which is
 * outside the endpoint's, hands it to the GPU and asks for its end.
 */
#ifndef WEFT_CORE_COPIER_H
#define WEFT_CORE_COPIER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "util.h"
#include "weft/gpu.h"

struct weft__endpoint;
struct weft__reg;

#define WEFT__MAX_GPUS 64  /* devices of a backend */
#define WEFT__MAX_SLOTS 64 /* of an area: they are bits of a word */

struct weft__copy {
    struct weft__copy *next;
    int ordinal;                      /* the GPU that does it: weft__gpu_need has opened it */
    const struct weft_gpu_copy *list; /* &one, or the owner's until the end */
    int n;                            /* 0: a mark (weft__gpu_mark) */
    bool reached;                     /* by the GPU's kernels, all of it (WEFT_GPU_REACHED) */
    bool patient;                     /* a step of something long (WEFT__STAGE_LONG) */
    uint8_t host;                     /* WEFT_GPU_FROM_HOST or WEFT_GPU_TO_HOST, else 0 */
    struct weft_gpu_copy one;
    /* It has ended; why is a sentence, or NULL. Endpoint lock held. The copy is its owner's again. */
    void (*done)(struct weft__copy *copy, int status, const char *why);
    /* copier lock */
    struct weft_gpu_job *job;
    int status;
    char why[120];
};

/* For `host`: between the host's memory and a GPU's. */
static inline uint8_t weft__copy_host(bool to_gpu)
{
    return to_gpu ? WEFT_GPU_FROM_HOST : WEFT_GPU_TO_HOST;
}

/* Something that takes long, for the copier to do. */
struct weft__chore {
    struct weft__chore *next;
    void (*run)(struct weft__endpoint *ep,
                struct weft__chore *chore); /* copier lock held, no other */
    int status;                             /* run's, for done */
    void (*done)(struct weft__endpoint *ep, struct weft__chore *chore); /* endpoint lock held */
};

/* Pinned memory of the host, known to all nics: slots, WEFT__STAGE_SLOTS of them for each piece of WEFT_STAGE_CHUNK bytes. */
struct weft__area {
    struct weft__area *next;
    uint8_t *addr;
    struct weft__reg *reg;
    struct weft_gpu *pinned; /* by this one */
    bool reached;            /* by kernels, at the same addresses */
};

struct weft__copier {
    pthread_mutex_t lock; /* outside those of lanes and of the endpoint */
    _Atomic(struct weft_gpu *)
        gpus[WEFT__MAX_GPUS]; /* NULL: not needed yet. Written under the lock. */
    bool kernels;             /* may copy (WEFT_GPU_KERNELS) */
    uint64_t slot_bytes;      /* of an area */
    int nslots;
    /* endpoint lock */
    struct weft__copy *queue, **queue_tail;
    struct weft__chore *chores, **chores_tail;
    struct weft__area *areas;   /* that nobody uses */
    struct weft__area *retired; /* whose registration has to end */
    /* copier lock */
    struct weft__copy *running, **running_tail;
    /* written under either lock */
    _Atomic(bool) waiting; /* there is something in the queue */
    _Atomic(int) wanted;   /* areas that are waited for, and chores */
    _Atomic(bool) busy;    /* copies are running */
    _Atomic(int) sleeping; /* someone sleeps, or is about to, who asks for the end of copies */
    _Atomic(uint64_t)
        stepped; /* weft_now: a step of something long began or ended then; 0: never */
};

int weft__copier_open(struct weft__endpoint *ep);
/* How many pieces its areas have: the endpoint knows whether it has GPUs, and its threads. */
void weft__copier_fit(struct weft__endpoint *ep);
/* No copies are left. */
void weft__copier_close(struct weft__endpoint *ep);
/* This GPU is going to copy: open it, unless it is. No lock held. */
int weft__gpu_need(struct weft__endpoint *ep, int ordinal);
/* The same, from a chore. */
int weft__chore_gpu(struct weft__endpoint *ep, int ordinal);
/* One that was needed; any of those, or NULL. Any lock may be held. */
struct weft_gpu *weft__gpu_opened(struct weft__endpoint *ep, int ordinal);
struct weft_gpu *weft__gpu_any(struct weft__endpoint *ep);
/* Now, and here: returns when it is done. weft__gpu_need has opened the GPU. Any lock may be held. */
int weft__gpu_copy_now(struct weft__endpoint *ep, int ordinal, void *dst, const void *src,
                       uint64_t len);
/* To *copy, which moves nothing: what is queued on this stream now has ended. */
int weft__gpu_mark(struct weft__endpoint *ep, int ordinal, void *stream, struct weft__copy *copy);
/* Endpoint lock held; then, without it: kick. */
void weft__copy_push(struct weft__endpoint *ep, struct weft__copy *copy);
/* The same for a chore. */
void weft__chore_push(struct weft__endpoint *ep, struct weft__chore *chore);
/* An area that nobody uses, or NULL: one is being made, and weft__stage_area is called when it is there.
 * Endpoint lock held, for put, too. */
struct weft__area *weft__area_get(struct weft__endpoint *ep);
void weft__area_put(struct weft__endpoint *ep, struct weft__area *area);
/* Give one back that a peer knows: it is nobody's any more, and its key is revoked. */
void weft__area_retire(struct weft__endpoint *ep, struct weft__area *area);

/* Begin copies that were pushed, and wake who makes areas. No endpoint or copier lock held. */
void weft__copier_begin(struct weft__endpoint *ep);
/* The same, ask for the end of others, and make areas. No lock held. Returns how much has happened. */
int weft__copier_drive(struct weft__endpoint *ep);

/* Without a call where nothing is copied. */
static inline void weft__copier_kick(struct weft__endpoint *ep, struct weft__copier *copier)
{
    if (atomic_load_explicit(&copier->waiting, memory_order_relaxed) ||
        atomic_load_explicit(&copier->wanted, memory_order_relaxed))
        weft__copier_begin(ep);
}

static inline bool weft__copier_idle(struct weft__copier *copier)
{
    return WEFT_LIKELY(!atomic_load(&copier->waiting) && !atomic_load(&copier->busy) &&
                       !atomic_load(&copier->wanted));
}

#define WEFT__COPIER_LASTS                                                                        \
    1000000u /* ns: with no step for so long there is nothing long any more */

/* Something long is going through pinned memory: soon the next step will be due. */
static inline bool weft__copier_lasts(struct weft__copier *copier)
{
    uint64_t stepped = atomic_load_explicit(&copier->stepped, memory_order_relaxed);
    return stepped && weft_now() - stepped < WEFT__COPIER_LASTS;
}

static inline int weft__copier_progress(struct weft__endpoint *ep, struct weft__copier *copier)
{
    return weft__copier_idle(copier) ? 0 : weft__copier_drive(ep);
}

/* Before a sleep: true, nothing has to be asked for, and who pushes wakes the sleeper (weft__wake). */
static inline bool weft__copier_arm(struct weft__copier *copier)
{
    atomic_fetch_add(&copier->sleeping, 1);
    if (weft__copier_idle(copier))
        return true;
    atomic_fetch_sub(&copier->sleeping, 1);
    return false;
}

static inline void weft__copier_disarm(struct weft__copier *copier)
{
    atomic_fetch_sub(&copier->sleeping, 1);
}

#endif
