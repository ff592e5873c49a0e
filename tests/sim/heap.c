/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's memory: counted by process, filled with rubbish when it comes and when it goes,
 * and refused now and then where the plan says so.
 *
 * What is made under a lock of all processes (tables of handles and operations) lives on by
 * design and is counted for no one.
 */
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x5e3711a5u
#define FRESH 0xa5
#define FREED 0xdb
#define FILL_MOST 4096 /* of a large block only the beginning: time */

struct block {
    uint32_t magic, proc; /* proc: id + 1, 0: no one's */
    size_t len;
    void *base;
    const void *caller;
    struct block *prev, *next;
    uint64_t pad[2];
};
_Static_assert(sizeof(struct block) % 16 == 0, "keeps the alignment of malloc");

static struct block blocks = {.prev = &blocks, .next = &blocks};

static void fill(void *at, size_t len, int byte)
{
    memset(at, byte, len < FILL_MOST ? len : FILL_MOST);
}

static void *take(size_t len, size_t align, bool zero, const void *caller)
{
    struct sim_proc *proc = sim_self();
    if (proc && sim.nagging && sim_once_in(sim.plan.no_memory_every)) {
        sim_trace("no memory", (int64_t)len, 0, 0);
        errno = ENOMEM;
        return NULL;
    }
    if (len > (size_t)1 << 40)
        return NULL;
    char *base = __real_malloc(sizeof(struct block) + len + align);
    if (!base)
        return NULL;
    uintptr_t at = (uintptr_t)base + sizeof(struct block);
    at = (at + align - 1) / align * align;
    struct block *block = (struct block *)(at - sizeof *block);
    bool counted = proc && !sim_holds_shared(proc);
    *block = (struct block){.magic = MAGIC,
                            .proc = counted ? (uint32_t)proc->id + 1 : 0,
                            .len = len,
                            .base = base,
                            .caller = caller,
                            .prev = &blocks,
                            .next = blocks.next};
    blocks.next->prev = block;
    blocks.next = block;
    if (counted)
        proc->live++;
    if (zero)
        memset((void *)at, 0, len);
    else
        fill((void *)at, len, FRESH);
    return (void *)at;
}

void *__wrap_malloc(size_t len)
{
    return take(len, 16, false, __builtin_return_address(0));
}

void *__wrap_calloc(size_t n, size_t size)
{
    size_t len;
    if (__builtin_mul_overflow(n, size, &len))
        return NULL;
    return take(len, 16, true, __builtin_return_address(0));
}

int __wrap_posix_memalign(void **out, size_t align, size_t len)
{
    *out = take(len, align, false, __builtin_return_address(0));
    return *out ? 0 : ENOMEM;
}

char *__wrap_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = take(len, 16, false, __builtin_return_address(0));
    if (copy)
        memcpy(copy, text, len);
    return copy;
}

void __wrap_free(void *at)
{
    if (!at)
        return;
    struct block *block = (struct block *)at - 1;
    SIM_CHECK(block->magic == MAGIC, "memory is freed that is not allocated (twice?)");
    block->magic = 0;
    block->prev->next = block->next;
    block->next->prev = block->prev;
    if (block->proc)
        sim.procs[block->proc - 1].live--;
    fill(at, block->len, FREED);
    __real_free(block->base);
}

void *__wrap_realloc(void *old, size_t len)
{
    void *at = take(len, 16, false, __builtin_return_address(0));
    if (!at || !old)
        return at;
    size_t had = ((struct block *)old - 1)->len;
    memcpy(at, old, had < len ? had : len);
    __wrap_free(old);
    return at;
}

void sim_heap_report(const struct sim_proc *proc)
{
    for (const struct block *block = blocks.next; block != &blocks; block = block->next)
        if (block->proc == (uint32_t)proc->id + 1)
            printf("    %zu bytes, allocated at %p\n", block->len, block->caller);
}

void *sim_alloc(size_t len)
{
    void *at = __real_calloc(1, len);
    SIM_CHECK(at, "no memory for the simulation");
    return at;
}
