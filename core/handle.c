/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles: 64-bit values that name objects without pointing at them.
 *
 * A slot's state holds the generation of the handle that is valid now, the kind of the object and
 * the number of calls that are using it. Slots are never unmapped, so a stale handle can be looked
 * up safely; generations start at a random value, so one from another process is not mistaken for
 * ours. In a forked child all that the parent had are shut: their sockets and rings are the parent's.
 */
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define CHUNK 256
#define CHUNKS 4096 /* a million objects a process */

/* A slot's state: 32 bits generation, the shut bit, 4 bits kind, 27 bits users. */
#define SHUT 0x80000000u
#define KIND_SHIFT 27
#define USERS ((1u << KIND_SHIFT) - 1)

struct slot {
    _Alignas(WEFT__CACHE_LINE) _Atomic(uint64_t) state; /* written to by every call */
    _Atomic(void *) owner; /* see weft__handle_peek */
    void *obj;
    uint32_t next_free;
};

static void shut_all(void);
static struct weft_static_lock lock = WEFT_STATIC_LOCK(.in_child = shut_all);
static _Atomic(struct slot *) chunks[CHUNKS];
static uint32_t nslots, free_head = UINT32_MAX, free_tail = UINT32_MAX;

/* The state of a slot that is open and that nobody uses. */
static uint64_t opened(uint32_t generation, enum weft__kind kind)
{
    return (uint64_t)generation << 32 | (uint64_t)kind << KIND_SHIFT;
}

static struct slot *slot_at(uint32_t i)
{
    if (i / CHUNK >= CHUNKS)
        return NULL;
    /* pairs with the release in grow */
    struct slot *chunk = atomic_load_explicit(&chunks[i / CHUNK], memory_order_acquire);
    return chunk ? &chunk[i % CHUNK] : NULL;
}

/* That of a handle which was valid once. */
static struct slot *slot_of(uint64_t handle)
{
    uint32_t i = weft__handle_slot(handle);
    return &atomic_load_explicit(&chunks[i / CHUNK], memory_order_relaxed)[i % CHUNK];
}

/* Oldest free slot first, so that generations of one slot are used up slowly. */
static void give(uint32_t i)
{
    slot_at(i)->next_free = UINT32_MAX;
    if (free_tail == UINT32_MAX)
        free_head = i;
    else
        slot_at(free_tail)->next_free = i;
    free_tail = i;
}

static int grow(void)
{
    if (nslots / CHUNK >= CHUNKS)
        return weft_fail(WEFT_ELIMIT, "more than %d objects in one process", CHUNK * CHUNKS);
    struct slot *chunk = aligned_alloc(WEFT__CACHE_LINE, CHUNK * sizeof *chunk);
    if (!chunk)
        return weft_fail(-ENOMEM, "no memory for handles");
    memset(chunk, 0, CHUNK * sizeof *chunk);
    for (int i = 0; i < CHUNK; i++) {
        uint32_t generation;
        if (weft_random(&generation, sizeof generation)) {
            free(chunk);
            return -EIO;
        }
        atomic_init(&chunk[i].state, (uint64_t)generation << 32 | SHUT);
    }
    atomic_store_explicit(&chunks[nslots / CHUNK], chunk, memory_order_release);
    for (int i = 0; i < CHUNK; i++)
        give(nslots++);
    return 0;
}

/* All that a child has of the table. */
static void shut_all(void)
{
    for (uint32_t i = 0; i < nslots; i++)
        atomic_fetch_or(&slot_at(i)->state, SHUT);
}

uint64_t weft__handle_open(enum weft__kind kind, void *obj, void *owner)
{
    weft_static_lock(&lock);
    if (free_head == UINT32_MAX && grow()) {
        weft_static_unlock(&lock);
        return 0;
    }
    uint32_t i = free_head;
    struct slot *slot = slot_at(i);
    free_head = slot->next_free;
    if (free_head == UINT32_MAX)
        free_tail = UINT32_MAX;
    slot->obj = obj;
    atomic_store_explicit(&slot->owner, owner, memory_order_relaxed);
    uint32_t generation = (uint32_t)(atomic_load(&slot->state) >> 32) + 1;
    /* pairs with the acquire in get: obj is there before the generation is */
    atomic_store_explicit(&slot->state, opened(generation, kind), memory_order_release);
    weft_static_unlock(&lock);
    return weft__handle_make(kind, i, generation);
}

/* Is this state of the slot that of the open object which the handle names? The kind in the handle is
 * what its bearer says: the slot knows. */
static bool names(uint64_t handle, enum weft__kind kind, uint64_t state)
{
    return state >> KIND_SHIFT == ((uint64_t)(uint32_t)handle << (32 - KIND_SHIFT) | kind);
}

static const char *const kind_names[] = {"?", "endpoint", "conn", "mem", "op"};

void *weft__handle_get(uint64_t handle, enum weft__kind kind)
{
    struct slot *slot = slot_at(weft__handle_slot(handle));
    if (slot && weft__handle_is(handle, kind)) {
        uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
        while (names(handle, kind, state)) {
            if (atomic_compare_exchange_weak_explicit(&slot->state, &state, state + 1,
                                                      memory_order_acquire, memory_order_acquire))
                return slot->obj;
        }
    }
    weft_fail(WEFT_EHANDLE, "0x%016llx is not the handle of an open %s of this process",
              (unsigned long long)handle, kind_names[kind]);
    return NULL;
}

void *weft__handle_peek(uint64_t handle, enum weft__kind kind, const void *owner)
{
    struct slot *slot = slot_at(weft__handle_slot(handle));
    if (slot && weft__handle_is(handle, kind)) {
        /* acquire: pairs with the release in open. The slot is the owner's: then the lock that the
         * caller holds keeps it as it is; or another's: then it is not looked at. */
        uint64_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
        if (names(handle, kind, state) &&
            atomic_load_explicit(&slot->owner, memory_order_relaxed) == owner)
            return slot->obj;
    }
    weft_fail(WEFT_EHANDLE, "0x%016llx is not the handle of an open %s of this endpoint",
              (unsigned long long)handle, kind_names[kind]);
    return NULL;
}

void weft__handle_put(uint64_t handle)
{
    /* pairs with the acquire in drain: what the user did is seen by who frees */
    atomic_fetch_sub_explicit(&slot_of(handle)->state, 1, memory_order_release);
}

bool weft__handle_shut(uint64_t handle, enum weft__kind kind)
{
    struct slot *slot = slot_at(weft__handle_slot(handle));
    if (!slot || !weft__handle_is(handle, kind))
        return false;
    uint64_t state = atomic_load(&slot->state);
    while (names(handle, kind, state))
        if (atomic_compare_exchange_weak(&slot->state, &state, state | SHUT))
            return true;
    return false;
}

static uint32_t users(uint64_t handle)
{
    return atomic_load_explicit(&slot_of(handle)->state, memory_order_acquire) & USERS;
}

static void recycle(uint64_t handle)
{
    uint32_t i = weft__handle_slot(handle);
    uint64_t generation = (uint32_t)handle;
    atomic_store(&slot_of(handle)->state, generation << 32 | SHUT);
    weft_static_lock(&lock);
    give(i);
    weft_static_unlock(&lock);
}

void weft__handle_drain(uint64_t handle, uint32_t mine)
{
    while (users(handle) > mine)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    recycle(handle);
}

bool weft__handle_try_drain(uint64_t handle)
{
    if (users(handle))
        return false;
    recycle(handle);
    return true;
}
