/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: a hash table from the keys that core chose to ranges. */
#include "tcp.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define MEM_SLOTS_FIRST 64
#define MEM_HASH 0x9e3779b97f4a7c15u /* 2^64 over the golden ratio: spreads keys that count up */

static uint32_t mem_slot(const struct tcp_nic *nic, uint64_t key)
{
    return (uint32_t)((key * MEM_HASH) >> 32) & (nic->mem_slots - 1);
}

static struct tcp_mem *mem_find_key(struct tcp_nic *nic, uint64_t key)
{
    if (!nic->mem_slots)
        return NULL;
    struct tcp_mem *mem = nic->mems[mem_slot(nic, key)];
    while (mem && mem->range.key != key)
        mem = mem->next;
    return mem;
}

static int mem_grow(struct tcp_nic *nic)
{
    uint32_t old_slots = nic->mem_slots;
    uint32_t slots = old_slots ? 2 * old_slots : MEM_SLOTS_FIRST;
    struct tcp_mem **old = nic->mems, **mems = calloc(slots, sizeof(*mems));
    if (!mems)
        return weft_fail(-ENOMEM, "tcp: no memory for a table of %u registrations", slots);
    nic->mems = mems;
    nic->mem_slots = slots;
    for (uint32_t i = 0; i < old_slots; i++) {
        for (struct tcp_mem *mem = old[i], *next; mem; mem = next) {
            uint32_t slot = mem_slot(nic, mem->range.key);
            next = mem->next;
            mem->next = mems[slot];
            mems[slot] = mem;
        }
    }
    free(old);
    return 0;
}

static int mem_check(struct tcp_nic *nic, const struct weft_mem_range *range)
{
    if (range->kind != WEFT_MEM_HOST)
        return weft_fail(WEFT_EUNSUPPORTED, "tcp: sockets reach host memory only");
    if (range->len == 0 || (uintptr_t)range->addr + range->len < range->len)
        return weft_fail(-EINVAL, "tcp: %" PRIu64 " bytes at %p are not a range of memory",
                         range->len, range->addr);
    if (mem_find_key(nic, range->key))
        return weft_fail(-EEXIST, "tcp: key %#" PRIx64 " is in use", range->key);
    return 0;
}

int tcp_mem_reg(struct weft_nic *base, const struct weft_mem_range *range,
                struct weft_mem_handle *handle)
{
    struct tcp_nic *nic = (struct tcp_nic *)base;
    int rc = mem_check(nic, range);
    if (rc == 0 && nic->nmems >= nic->mem_slots)
        rc = mem_grow(nic);
    if (rc < 0)
        return rc;
    struct tcp_mem *mem = calloc(1, sizeof(*mem));
    if (!mem)
        return weft_fail(-ENOMEM, "tcp: no memory for a registration");
    uint32_t slot = mem_slot(nic, range->key);
    mem->range = *range;
    mem->next = nic->mems[slot];
    nic->mems[slot] = mem;
    nic->nmems++;
    handle->mem = mem;
    handle->rkey = range->key;
    return 0;
}

int tcp_mem_dereg(struct weft_nic *base, void *handle)
{
    struct tcp_nic *nic = (struct tcp_nic *)base;
    struct tcp_mem *mem = handle;
    mem->closing = true;
    if (mem->busy > 0)
        return WEFT_EAGAIN;
    struct tcp_mem **at = &nic->mems[mem_slot(nic, mem->range.key)];
    while (*at != mem)
        at = &(*at)->next;
    *at = mem->next;
    nic->nmems--;
    free(mem);
    return 0;
}

enum tcp_code tcp_mem_find(struct tcp_nic *nic, uint64_t key, uint64_t addr, uint64_t len,
                           uint32_t access, struct tcp_mem **found)
{
    struct tcp_mem *mem = mem_find_key(nic, key);
    if (!mem || mem->closing)
        return TCP_CODE_KEY;
    uint64_t base = (uintptr_t)mem->range.addr;
    if (addr < base || addr - base > mem->range.len || len > mem->range.len - (addr - base))
        return TCP_CODE_BOUNDS;
    if ((mem->range.access & access) != access)
        return TCP_CODE_ACCESS;
    *found = mem;
    return TCP_OK;
}
