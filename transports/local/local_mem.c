/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys: which memory peers may reach. A hash table per nic; keys are random, so their low bits are
 * the hash. Copies for peers run inside poll and look their key up at every step, so a registration
 * is over as soon as its key is not found and no peer is inside a copy that it makes itself
 * (local_share.c).
 */
#include "local.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define BUCKETS_MIN 64 /* half a page */

static struct local_mem **bucket_of(const struct local_mem_table *table, uint64_t key)
{
    return &table->buckets[key & table->mask];
}

static struct local_mem *find(const struct local_mem_table *table, uint64_t key)
{
    if (!table->buckets)
        return NULL;
    struct local_mem *mem = *bucket_of(table, key);
    while (mem && mem->key != key)
        mem = mem->next;
    return mem;
}

static void insert(struct local_mem_table *table, struct local_mem *mem)
{
    struct local_mem **bucket = bucket_of(table, mem->key);
    mem->next = *bucket;
    *bucket = mem;
}

/* Make room for one more: as many buckets as mems. */
static int grow(struct local_mem_table *table)
{
    if (table->buckets && table->count <= table->mask)
        return 0;
    size_t n = table->buckets ? 2 * (table->mask + 1) : BUCKETS_MIN;
    struct local_mem_table bigger = {.mask = n - 1, .count = table->count};
    bigger.buckets = calloc(n, sizeof(struct local_mem *));
    if (!bigger.buckets)
        return -ENOMEM;
    for (size_t i = 0; table->buckets && i <= table->mask; i++)
        for (struct local_mem *mem = table->buckets[i], *next; mem; mem = next) {
            next = mem->next;
            insert(&bigger, mem);
        }
    free(table->buckets);
    *table = bigger;
    return 0;
}

static int check_range(const struct local_mem_table *table, const struct weft_mem_range *range)
{
    if (range->kind != WEFT_MEM_HOST)
        return weft_fail(WEFT_EUNSUPPORTED, "local: memory of kind %#x; only host memory",
                         range->kind);
    if (range->len == 0 || (uint64_t)(uintptr_t)range->addr + range->len < range->len)
        return weft_fail(-EINVAL, "local: %" PRIu64 " bytes at %p are no range", range->len,
                         range->addr);
    if (find(table, range->key))
        return weft_fail(-EEXIST, "local: key %#" PRIx64 " is in use", range->key);
    return 0;
}

int local_mem_reg(struct weft_nic *base, const struct weft_mem_range *range,
                  struct weft_mem_handle *handle)
{
    struct local_mem_table *table = &((struct local_nic *)base)->mems;
    int rc = check_range(table, range);
    if (rc)
        return rc;
    struct local_mem *mem = malloc(sizeof *mem);
    if (!mem || grow(table)) {
        free(mem);
        return weft_fail(-ENOMEM, "local: no memory for a registration");
    }
    *mem = (struct local_mem){.key = range->key,
                              .addr = (uintptr_t)range->addr,
                              .len = range->len,
                              .access = range->access};
    insert(table, mem);
    table->count++;
    *handle = (struct weft_mem_handle){.mem = mem, .rkey = mem->key};
    return 0;
}

int local_mem_dereg(struct weft_nic *base, void *handle)
{
    struct local_nic *nic = (struct local_nic *)base;
    struct local_mem_table *table = &nic->mems;
    struct local_mem *mem = handle, **at = bucket_of(table, mem->key);
    mem->closing = true;
    if (local_share_revoke(nic, mem->key))
        return WEFT_EAGAIN;
    while (*at != mem)
        at = &(*at)->next;
    *at = mem->next;
    table->count--;
    free(mem);
    return 0;
}

void local_mem_free_all(struct local_nic *nic)
{
    struct local_mem_table *table = &nic->mems;
    for (size_t i = 0; table->buckets && i <= table->mask; i++)
        for (struct local_mem *mem = table->buckets[i], *next; mem; mem = next) {
            next = mem->next;
            free(mem);
        }
    free(table->buckets);
}

int local_mem_check(const struct local_nic *nic, uint64_t key, uint64_t addr, uint64_t len,
                    uint32_t access)
{
    const struct local_mem *mem = find(&nic->mems, key);
    if (!mem || mem->closing)
        return WEFT_EKEY;
    /* below mem->addr, the difference wraps to more than any length */
    uint64_t offset = addr - mem->addr;
    if (offset > mem->len || len > mem->len - offset)
        return WEFT_EBOUNDS;
    return (mem->access & access) == access ? 0 : WEFT_EACCESS;
}
