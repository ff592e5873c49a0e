/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is measured, and the bytes in it. A region holds slots; a slot holds the pieces of
 * one operation in flight. Every byte of a run's contents follows from its seed.
 */
#ifndef WEFT_TOOLS_PERF_MEM_H
#define WEFT_TOOLS_PERF_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft.h"

struct weft_gpu;

/* Most bytes of one direction and thread in flight. */
#define PERF_WINDOW ((uint64_t)256 << 20)
/* Pieces begin at multiples of a cache line. */
#define PERF_ALIGN 64u

struct perf_layout {
    uint64_t bytes; /* of a piece */
    uint32_t iovs;  /* pieces of a slot */
    uint32_t slots;
    bool same;       /* memory of all slots: else each has its own */
    uint64_t stride; /* from piece to piece */
};

/* As many slots as asked for, but no more than fit in PERF_WINDOW; at least one. Returns -1 if
 * a slot is larger than an address space. */
int perf_layout_make(uint64_t bytes, uint32_t iovs, uint32_t depth, bool same, struct perf_layout *layout);
/* So many slots have memory of their own. */
static inline uint32_t perf_layout_places(const struct perf_layout *l)
{
    return l->same ? 1 : l->slots;
}
static inline uint64_t perf_layout_offset(const struct perf_layout *l, uint32_t slot,
                                          uint32_t piece)
{
    return ((uint64_t)(slot % perf_layout_places(l)) * l->iovs + piece) * l->stride;
}
static inline uint64_t perf_layout_size(const struct perf_layout *l)
{
    return (uint64_t)perf_layout_places(l) * l->iovs * l->stride;
}

struct perf_region {
    struct weft_gpu *gpu; /* NULL: host memory */
    uint8_t *addr;        /* NULL: no memory */
    uint64_t len;
    weft_mem_t mem;
};

/* Whose memory is measured. */
struct perf_place {
    bool gpu;
    int ordinal;         /* which */
    const char *backend; /* NULL: what WEFT_GPU names, or the first that has a device */
    bool small_pages;    /* of host memory */
};

/* These return -1 after perf_fail. */
/* What the endpoint is to have: the backend of the GPUs, with host memory, too, if it was named (it may copy from and to the peer's);
 * NULL: what its process has. */
int perf_place_backend(const struct perf_place *place, const char **name);
int perf_region_open(struct perf_region *region, weft_endpoint_t endpoint, uint64_t len,
                     const struct perf_place *place);
/* Free the memory. Its endpoint is closed before: operations that failed may still name it. */
void perf_region_close(struct perf_region *region);

/* What slots of a region hold before and after a run. */
enum perf_contents {
    PERF_BLANK = 0, /* differs from PERF_DATA in every byte */
    PERF_EVEN = 1,  /* PERF_DATA in slots with even numbers, PERF_BLANK in the others */
    PERF_ODD = 2,
    PERF_DATA = 3 /* what is to be moved */
};
int perf_region_fill(const struct perf_region *region, const struct perf_layout *layout,
                     uint64_t seed, enum perf_contents contents);
/* 1: the first n slots hold PERF_DATA; 0: they do not, and a message has said where; -1. */
int perf_region_check(const struct perf_region *region, const struct perf_layout *layout,
                      uint64_t seed, uint32_t n);
/* The same for bytes that are one piece. */
bool perf_bytes_check(const void *data, uint64_t len, uint64_t seed, uint32_t slot);

/* One word per slot: what additions start from, and what each adds. */
uint64_t perf_add_start(uint64_t seed, uint32_t slot);
uint64_t perf_add_value(uint64_t seed, uint32_t slot);
/* Read or write the first word of a slot. */
int perf_word_get(const struct perf_region *region, const struct perf_layout *layout,
                  uint32_t slot, uint64_t *word);
int perf_word_put(const struct perf_region *region, const struct perf_layout *layout,
                  uint32_t slot, uint64_t word);

#endif
