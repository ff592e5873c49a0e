/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: mems, the registrations that they share, and remotes (memory.c). */
#ifndef WEFT_CORE_MEM_H
#define WEFT_CORE_MEM_H

#include <stdbool.h>

#include "weft/endpoint.h"
#include "weft/transport.h"

#include "copier.h"
#include "lane.h"
#include "util.h"
#include "weft/list.h"

struct weft__endpoint;
struct weft__op;

/* The host's memory, for copies of GPUs. */
enum weft__pin {
    WEFT__PIN_NONE, /* nobody has asked for it */
    WEFT__PIN_WANTED,
    WEFT__PIN_OURS,
    WEFT__PIN_OTHERS, /* it was pinned before */
    WEFT__PIN_NOT     /* it cannot be */
};

/* A range registered with every nic of an endpoint; shared by the mems of just this range. */
struct weft__reg {
    struct weft__reg *next; /* in endpoint->regs, if shared */
    struct weft__endpoint *ep;
    void *addr;
    uint64_t len;
    uint32_t access, kind;
    int ordinal; /* of the GPU whose it is; -1: host memory */
    bool apart;  /* no processor reaches it */
    struct weft_list in_apart; /* endpoint->aparts, with those that are temporary */
    uint32_t
        unreached;    /* lanes, as bits, whose nic does not reach it: what goes there is staged */
    uint32_t serving; /* copies for peers that touch it */
    bool lasting;     /* of a mem: its key is good for more than one message */
    uint8_t pin;      /* enum weft__pin */
    bool
        reached; /* by kernels, all of it: those of its GPU; the host's memory: of any, pinned by us */
    struct {
        struct weft__chore chore;
        struct weft__conn *conn; /* that waits for it */
        void *dev;               /* its address for GPUs */
    } pinning;                   /* or its end: one at a time */
    struct weft_list exports; /* to peers that map it (ipc_serve.c) */
    bool shut;
    uint64_t key;
    uint32_t refs;       /* mems that share it */
    uint32_t users;      /* operations of this side that use it */
    uint32_t undone;     /* lanes that still have to deregister it, and copies that have to end */
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
/* Undo what pinned it. No lock held but the copier's. */
void weft__reg_unpin(struct weft__endpoint *ep, struct weft__reg *reg);
/* Push the work that ends a registration. Endpoint lock held. */
void weft__reg_shut(struct weft__reg *reg);
/* End one that no peer knows of. No lock held. */
void weft__reg_discard(struct weft__endpoint *ep, struct weft__reg *reg);
/* One lane has deregistered it. Endpoint lock held. */
void weft__reg_lane_done(struct weft__reg *reg);
/* A copy for a peer touches it, or does so no more. Endpoint lock held. */
void weft__reg_serve(struct weft__reg *reg);
void weft__reg_served(struct weft__reg *reg);
/* That of no processor's memory with this key, temporary or not; or NULL. Endpoint lock held. */
struct weft__reg *weft__apart_find(struct weft__endpoint *ep, uint64_t key);
/* n bytes at addr are inside len bytes at base. */
static inline bool weft__contains(uint64_t base, uint64_t len, uint64_t addr, uint64_t n)
{
    return addr >= base && addr - base <= len && n <= len - (addr - base);
}

static inline bool weft__reg_contains(const struct weft__reg *reg, const void *addr, uint64_t len)
{
    return weft__contains((uintptr_t)reg->addr, reg->len, (uintptr_t)addr, len);
}

/* Why this lane's nic does not reach it, which it did not when it was registered. No lock held. */
const char *weft__reg_why(struct weft__reg *reg, struct weft__lane *lane);

/* The shared registration with this key, or NULL. Endpoint lock held. */
struct weft__reg *weft__reg_find(struct weft__endpoint *ep, uint64_t key);
/* To *gpu: 1 + the ordinal of the GPU whose memory it is, which is opened, if no processor reaches it; else 0. */
int weft__mem_gpu(struct weft__endpoint *ep, const void *addr, uint16_t *gpu);
/* Does the endpoint know of GPUs? If none was named, the process may have begun to use them since it was opened. No lock held. */
bool weft__mem_gpus(struct weft__endpoint *ep);
/* 0: a processor reaches what is at addr; WEFT_EUNSUPPORTED: it is a GPU's, and what is for messages. */
int weft__mem_check_host(struct weft__endpoint *ep, const void *addr, const char *what);
/* The registration under mem, if mem is of this endpoint and [addr, addr+len) lies in it. Endpoint lock held. */
int weft__mem_reg_of(struct weft__endpoint *ep, weft_mem_t mem, const void *addr, uint64_t len,
                     struct weft__reg **reg);
/* Describe a range of a registration for peers. */
void weft__reg_describe(const struct weft__reg *reg, const void *addr, uint64_t len,
                        struct weft_remote *remote);

/* A remote, decoded. */
struct weft__remote {
    uint64_t addr, len, key;
    uint32_t keys[WEFT__KEYS]; /* by key slot */
    uint32_t owner;
    uint32_t access;
};

/*
 * The 64 bytes, little-endian: u8 version, u8 access and flags, u16 magic, u32 owner, u64 addr, u64 len,
 * u64 key, u32 keys[8]. `key` is what nics with chosen keys go by; those that make their own have a
 * slot each in `keys`, which the other end of a link is told in the handshake.
 */
#define WEFT__ALL_ACCESS (WEFT_READ | WEFT_WRITE | WEFT_ATOMIC)
/* With the access: memory that nics with chosen keys, or those that make their own, do not reach. */
#define WEFT__STAGED_CHOSEN 0x10u
#define WEFT__STAGED_OWN 0x20u
#define WEFT__STAGED (WEFT__STAGED_CHOSEN | WEFT__STAGED_OWN)
/* Such memory, which a peer of the same host may ask to map. */
#define WEFT__MAPPABLE 0x40u
#define WEFT__REMOTE_FLAGS (WEFT__STAGED | WEFT__MAPPABLE)
#define WEFT__REMOTE_VERSION 1u
#define WEFT__REMOTE_MAGIC 0x7257u

/* Why these bytes are no remote: a code and a sentence. */
int weft__remote_refuse(const struct weft_remote *remote);

/* In the path of every operation, so read at fixed places. This is all but the keys by slot. */
static inline int weft__remote_check(const struct weft_remote *remote, struct weft__remote *out)
{
    const uint8_t *at = remote->bytes;
    uint32_t head = weft__le32(at);
    out->access = head >> 8 & 0xff;
    out->owner = weft__le32(at + 4);
    out->addr = weft__le64(at + 8);
    out->len = weft__le64(at + 16);
    out->key = weft__le64(at + 24);
    bool known = (head & ~((WEFT__ALL_ACCESS | WEFT__REMOTE_FLAGS) << 8)) ==
                 (WEFT__REMOTE_MAGIC << 16 | WEFT__REMOTE_VERSION);
    return known && out->addr + out->len >= out->addr ? 0 : weft__remote_refuse(remote);
}

/* Is it as another one, which was checked, but for its place, which goes to *addr and *len? */
static inline bool weft__remote_alike(const struct weft_remote *remote,
                                      const struct weft_remote *model, uint64_t *addr, uint64_t *len)
{
    const uint8_t *at = remote->bytes, *as = model->bytes;
    *addr = weft__le64(at + 8);
    *len = weft__le64(at + 16);
    return weft__le64(at) == weft__le64(as) && weft__le64(at + 24) == weft__le64(as + 24) &&
           *addr + *len >= *addr;
}

static inline void weft__remote_keys(const struct weft_remote *remote, uint32_t keys[WEFT__KEYS])
{
    _Static_assert(sizeof remote->bytes == 32 + WEFT__KEYS * sizeof *keys, "the layout above");
    memcpy(keys, remote->bytes + 32, WEFT__KEYS * sizeof *keys);
    for (int i = 0; i < WEFT__KEYS; i++)
        keys[i] = le32toh(keys[i]);
}

static inline int weft__remote_decode(const struct weft_remote *remote, struct weft__remote *out)
{
    weft__remote_keys(remote, out->keys);
    return weft__remote_check(remote, out);
}

uint32_t weft__owner_id(const uint8_t uuid[16]);

#endif
