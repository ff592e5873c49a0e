/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of registered memory: messages on their way in and out, payload that was copied. */
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define ALIGN 64u /* a cache line */

void verbs_pool_init(struct verbs_pool *pool, struct verbs_nic *nic, uint32_t size)
{
    *pool = (struct verbs_pool){.nic = nic, .size = (size + ALIGN - 1) / ALIGN * ALIGN};
    uint64_t most = nic->mr_max / pool->size;
    pool->at_once = most > VERBS_SLAB ? VERBS_SLAB : most > 0 ? (uint32_t)most : 1;
}

void verbs_pool_fini(struct verbs_pool *pool)
{
    while (pool->slabs) {
        struct verbs_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        pool->nic->lib->dereg_mr(slab->mr);
        free(slab->data);
        free(slab);
    }
    free(pool->by_index);
    pool->by_index = NULL;
    pool->free = NULL;
}

static struct verbs_slab *slab_new(const struct verbs_pool *pool)
{
    struct verbs_nic *nic = pool->nic;
    size_t bytes = (size_t)pool->size * pool->at_once;
    struct verbs_slab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return NULL;
    slab->data = aligned_alloc(ALIGN, bytes);
    if (slab->data) {
        memset(slab->data, 0, bytes);
        slab->mr = nic->lib->reg_mr(nic->pd, slab->data, bytes, IBV_ACCESS_LOCAL_WRITE);
    }
    if (slab->mr)
        return slab;
    weft_log(WEFT_LOG_WARN, "verbs", "%s: cannot register %zu bytes of its own: %m", nic->name,
             bytes);
    free(slab->data);
    free(slab);
    return NULL;
}

static bool grow(struct verbs_pool *pool)
{
    struct verbs_slot **by_index = realloc(pool->by_index,
                                           (pool->nslots + pool->at_once) * sizeof *by_index);
    if (!by_index)
        return false;
    pool->by_index = by_index;
    struct verbs_slab *slab = slab_new(pool);
    if (!slab)
        return false;
    slab->next = pool->slabs;
    pool->slabs = slab;
    for (uint32_t i = 0; i < pool->at_once; i++) {
        struct verbs_slot *slot = &slab->slots[i];
        slot->data = (uint8_t *)slab->data + (size_t)i * pool->size;
        slot->pool = pool;
        slot->lkey = slab->mr->lkey;
        slot->index = pool->nslots;
        pool->by_index[pool->nslots++] = slot;
        verbs_slot_put(slot);
    }
    return true;
}

struct verbs_slot *verbs_slot_get(struct verbs_pool *pool)
{
    if (!pool->free && !grow(pool))
        return NULL;
    struct verbs_slot *slot = pool->free;
    pool->free = slot->next;
    slot->next = NULL;
    slot->link = NULL;
    return slot;
}

void verbs_slot_put(struct verbs_slot *slot)
{
    slot->next = slot->pool->free;
    slot->pool->free = slot;
}
