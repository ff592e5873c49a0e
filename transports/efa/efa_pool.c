/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of the nic's own memory: messages on their way in and out, payload that was copied. */
#include <stdlib.h>
#include <string.h>

#include "efa.h"

#define ALIGN 64u /* a cache line */

void efa_pool_init(struct efa_pool *pool, struct efa_nic *nic, uint32_t size)
{
    *pool = (struct efa_pool){.nic = nic, .size = (size + ALIGN - 1) / ALIGN * ALIGN};
    weft_list_init(&pool->free);
}

void efa_pool_fini(struct efa_pool *pool)
{
    while (pool->slabs) {
        struct efa_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        if (slab->mr)
            fi_close(&slab->mr->fid);
        free(slab->data);
        free(slab);
    }
    weft_list_init(&pool->free);
}

/* Where local memory has to be; nobody is told its key. */
static int reg(struct efa_nic *nic, struct efa_slab *slab, size_t bytes)
{
    if (!(nic->info->domain_attr->mr_mode & FI_MR_LOCAL))
        return 0;
    return efa_mr_reg(nic, slab->data, bytes, FI_SEND | FI_RECV | FI_WRITE | FI_READ, &slab->mr);
}

static bool grow(struct efa_pool *pool)
{
    size_t bytes = (size_t)pool->size * EFA_SLAB;
    struct efa_slab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return false;
    slab->data = aligned_alloc(ALIGN, bytes);
    if (slab->data)
        memset(slab->data, 0, bytes);
    if (!slab->data || reg(pool->nic, slab, bytes)) {
        free(slab->data);
        free(slab);
        return false;
    }
    slab->next = pool->slabs;
    pool->slabs = slab;
    for (uint32_t i = 0; i < EFA_SLAB; i++) {
        struct efa_slot *slot = &slab->slots[i];
        slot->data = (uint8_t *)slab->data + (size_t)i * pool->size;
        slot->desc = slab->mr ? fi_mr_desc(slab->mr) : NULL;
        slot->pool = pool;
        weft_list_push(&pool->free, &slot->in);
    }
    return true;
}

struct efa_slot *efa_slot_get(struct efa_pool *pool)
{
    if (weft_list_empty(&pool->free) && !grow(pool))
        return NULL;
    struct efa_slot *slot = WEFT_LIST_OF(pool->free.next, struct efa_slot, in);
    weft_list_remove(&slot->in);
    slot->link = NULL;
    slot->to = NULL;
    slot->process = NULL;
    return slot;
}

void efa_slot_put(struct efa_slot *slot)
{
    weft_list_remove(&slot->in);
    weft_list_push_first(&slot->pool->free, &slot->in);
}
