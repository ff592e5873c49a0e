/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: mems, the registrations that they share, and remotes (memory.c). */
#ifndef WEFT_CORE_MEM_H
#define WEFT_CORE_MEM_H

#include <stdbool.h>

#include "weft/endpoint.h"
#include "weft/transport.h"

#include "lane.h"

struct weft__endpoint;
struct weft__op;

/* A range registered with every nic of an endpoint; shared by the mems that lie in it. */
struct weft__reg {
    struct weft__reg *next; /* in endpoint->regs, if shared */
    struct weft__endpoint *ep;
    void *addr;
    uint64_t len;
    uint32_t access, kind;
    uint64_t key;
    uint32_t refs;       /* mems that share it */
    uint32_t users;      /* operations of this side that use it */
    uint32_t undone;     /* lanes that still have to deregister it */
    bool abandoned;      /* no one waits for its end: the last lane frees it */
    struct weft__op *op; /* temporary one: the op that waits for its end */
    struct {
        struct weft__work work; /* first */
        struct weft__reg *reg;
        struct weft_mem_handle handle;
        bool registered;
    } on[WEFT__MAX_LANES];
};

struct weft__mem {
    struct weft__endpoint *ep;
    weft_mem_t handle;
    weft_endpoint_t ep_handle;
    struct weft__reg *reg;
    void *addr;
    uint64_t len;
    struct weft__mem *prev, *next; /* in endpoint->mems */
};

/* Register with all lanes. No lock held. Temporary ones are not in the cache. */
int weft__reg_open(struct weft__endpoint *ep, void *addr, uint64_t len, uint32_t access,
                   struct weft__reg **out);
/* Push the work that ends a registration. Endpoint lock held. */
void weft__reg_shut(struct weft__reg *reg);
/* End one that no peer knows of. No lock held. */
void weft__reg_discard(struct weft__endpoint *ep, struct weft__reg *reg);
/* One lane has deregistered it. Endpoint lock held. */
void weft__reg_lane_done(struct weft__reg *reg);
/* n bytes at addr are inside len bytes at base. */
static inline bool weft__contains(uint64_t base, uint64_t len, uint64_t addr, uint64_t n)
{
    return addr >= base && addr - base <= len && n <= len - (addr - base);
}

static inline bool weft__reg_contains(const struct weft__reg *reg, const void *addr, uint64_t len)
{
    return weft__contains((uintptr_t)reg->addr, reg->len, (uintptr_t)addr, len);
}

/* The shared registration with this key, or NULL. Endpoint lock held. */
struct weft__reg *weft__reg_find(struct weft__endpoint *ep, uint64_t key);
/* The registration under mem, if mem is of this endpoint and [addr, addr+len) lies in it. */
int weft__mem_reg_of(struct weft__endpoint *ep, weft_mem_t mem, const void *addr, uint64_t len,
                     struct weft__reg **reg);
/* Describe a range of a registration for peers. */
void weft__reg_describe(const struct weft__reg *reg, const void *addr, uint64_t len,
                        struct weft_remote *remote);

/* A remote, decoded. */
struct weft__remote {
    uint64_t addr, len, key;
    uint32_t keys[8];
    uint32_t owner;
    uint32_t access;
};
int weft__remote_decode(const struct weft_remote *remote, struct weft__remote *out);
uint32_t weft__owner_id(const uint8_t uuid[16]);

#endif
