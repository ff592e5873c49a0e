/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: registrations with every nic of an endpoint, the mems that share them, and
 * the 64-byte remotes that describe pieces of them to peers.
 */
#include "mem.h"

#include "endpoint.h"
#include "ipc.h"
#include "lane.h"
#include "op.h"
#include "progress.h"
#include "registry.h"
#include "span.h"
#include "util.h"
#include "weft/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* WEFT_ACCESS_* of the transport interface are the same bits, so access passes through. */
_Static_assert(WEFT_READ == WEFT_ACCESS_READ && WEFT_WRITE == WEFT_ACCESS_WRITE &&
                   WEFT_ATOMIC == WEFT_ACCESS_ATOMIC,
               "access bits differ between endpoint.h and transport.h");

/* --- registrations -------------------------------------------------------------------------- */

static int reg_on_lane(struct weft__reg *reg, struct weft__lane *lane)
{
    struct weft_mem_range range = {.addr = reg->addr,
                                   .len = reg->len,
                                   .access = reg->access,
                                   .kind = reg->kind,
                                   .dmabuf_fd = -1,
                                   .ordinal = reg->ordinal,
                                   .key = reg->key};
    if (!(lane->nic->attr.mem_kinds & reg->kind))
        return weft_fail(WEFT_EUNSUPPORTED, "%s cannot reach this kind of memory",
                         lane->transport->name);
    weft__lane_lock(lane);
    int rc = lane->nic->transport->ops->mem_reg(lane->nic, &range, &reg->on[lane->index].handle);
    weft__lane_unlock(lane);
    reg->on[lane->index].registered = rc == 0;
    return rc;
}

/* No peer knows the key yet, so nothing can be under way. */
static void unreg_on_lane(struct weft__reg *reg, struct weft__lane *lane)
{
    if (!reg->on[lane->index].registered)
        return;
    weft__lane_lock(lane);
    lane->nic->transport->ops->mem_dereg(lane->nic, reg->on[lane->index].handle.mem);
    weft__lane_unlock(lane);
}

/* Whose memory it is. */
static int query(const struct weft__endpoint *ep, const void *addr, struct weft_gpu_range *range)
{
    *range = (struct weft_gpu_range){.kind = WEFT_MEM_HOST, .ordinal = -1};
    int rc = ep->gpu && addr ? ep->gpu->ops->query(addr, range) : 0;
    return rc < 0 ? rc : 0;
}

static void look_for_gpus(struct weft__endpoint *ep)
{
    const struct weft_gpu_backend *found = weft__gpu_used();
    if (!found || !strcmp(found->name, "host"))
        return;
    pthread_mutex_lock(&ep->lock);
    atomic_store(&ep->gpu, found);
    atomic_store(&ep->gpu_apart, true);
    pthread_mutex_unlock(&ep->lock);
}

bool weft__mem_gpus(struct weft__endpoint *ep)
{
    uint64_t loads = !ep->gpu_apart && ep->gpu_auto ? weft__loads() : 0;
    if (loads && loads != atomic_load_explicit(&ep->gpu_loads, memory_order_relaxed)) {
        look_for_gpus(ep);
        atomic_store_explicit(&ep->gpu_loads, loads, memory_order_relaxed);
    }
    return ep->gpu_apart;
}

int weft__mem_gpu(struct weft__endpoint *ep, const void *addr, uint16_t *gpu)
{
    struct weft_gpu_range range;
    int rc = query(ep, addr, &range);
    *gpu = 0;
    if (rc || range.kind == WEFT_MEM_HOST)
        return rc;
    *gpu = (uint16_t)(1 + range.ordinal);
    return weft__gpu_need(ep, range.ordinal);
}

int weft__mem_check_host(struct weft__endpoint *ep, const void *addr, const char *what)
{
    struct weft_gpu_range range;
    int rc = query(ep, addr, &range);
    return rc || range.kind == WEFT_MEM_HOST
               ? rc
               : weft_fail(WEFT_EUNSUPPORTED,
                           "%s at %p is memory of GPU %d of %s: it has to be the host's", what,
                           addr, range.ordinal, ep->gpu->name);
}

static int find_owner(struct weft__endpoint *ep, struct weft__reg *reg)
{
    struct weft_gpu_range range;
    weft__mem_gpus(ep);
    int rc = query(ep, reg->addr, &range);
    reg->kind = range.kind;
    reg->ordinal = range.ordinal;
    reg->apart = range.kind != WEFT_MEM_HOST;
    if (rc || !reg->apart)
        return rc;
    rc = weft__gpu_need(ep, reg->ordinal);
    if (rc)
        return rc;
    rc = weft__gpu_span(ep->gpu->ops, reg->addr, reg->len,
                        &range); /* what kernels reach is known now */
    reg->reached = rc == 1 && range.reached;
    if (rc == 0) /* peers would reach what lies behind, whosever that is */
        rc = weft_fail(-EFAULT, "%llu bytes at %p are not all memory of GPU %d of %s",
                       (unsigned long long)reg->len, reg->addr, reg->ordinal, ep->gpu->name);
    return rc < 0 ? rc : 0;
}

/* What a nic does not reach, or not now, is staged: but for the host's memory, that is no error. */
static int reg_on_lanes(struct weft__reg *reg)
{
    for (int i = 0; i < reg->ep->nlanes; i++) {
        struct weft__lane *lane = reg->ep->lanes[i];
        int rc = reg_on_lane(reg, lane);
        if (rc && !reg->apart)
            return rc;
        if (rc) {
            reg->unreached |= UINT32_C(1) << i;
            weft_log(WEFT_LOG_DEBUG, "memory", "%s: memory of GPU %d is staged: %s", lane->device,
                     reg->ordinal, weft_last_error());
        }
    }
    return 0;
}

const char *weft__reg_why(struct weft__reg *reg, struct weft__lane *lane)
{
    weft_fail(0, "%s", "");
    return reg_on_lane(reg, lane) ? weft_last_error() : "it does now";
}

int weft__reg_open(struct weft__endpoint *ep, void *addr, uint64_t len, uint32_t access,
                   struct weft__reg **out)
{
    struct weft__reg *reg = calloc(1, sizeof *reg);
    if (!reg)
        return weft_fail(-ENOMEM, "no memory for a registration");
    *reg = (struct weft__reg){.ep = ep, .addr = addr, .len = len, .access = access, .refs = 1};
    weft_list_init(&reg->in_apart);
    weft_list_init(&reg->exports);
    int rc = find_owner(ep, reg);
    if (rc == 0 && !reg->apart)
        rc = weft__mapping_check(ep->maps_fd, addr, len, access & (WEFT_READ | WEFT_ATOMIC),
                                 access & (WEFT_WRITE | WEFT_ATOMIC));
    if (rc == 0)
        rc = weft_random(&reg->key, sizeof reg->key);
    if (rc == 0)
        rc = reg_on_lanes(reg);
    if (rc) {
        weft__reg_discard(ep, reg);
        return rc;
    }
    if (reg->apart) {
        pthread_mutex_lock(&ep->lock);
        weft_list_push(&ep->aparts, &reg->in_apart);
        pthread_mutex_unlock(&ep->lock);
    }
    *out = reg;
    return 0;
}

void weft__reg_unpin(struct weft__endpoint *ep, struct weft__reg *reg)
{
    struct weft_gpu *gpu = reg->pin == WEFT__PIN_OURS ? weft__gpu_any(ep) : NULL;
    if (gpu)
        gpu->backend->ops->host_unmap(gpu, reg->addr);
}

void weft__reg_discard(struct weft__endpoint *ep, struct weft__reg *reg)
{
    weft__reg_unpin(ep, reg);
    for (int i = 0; i < ep->nlanes; i++)
        unreg_on_lane(reg, ep->lanes[i]);
    if (reg->apart) {
        pthread_mutex_lock(&ep->lock);
        weft_list_remove(&reg->in_apart);
        pthread_mutex_unlock(&ep->lock);
    }
    free(reg);
}

void weft__reg_shut(struct weft__reg *reg)
{
    struct weft__endpoint *ep = reg->ep;
    weft_list_remove(&reg->in_apart);
    reg->shut = true;
    reg->undone = (uint32_t)ep->nlanes + reg->serving;
    weft__ipc_revoke(reg);
    weft__ipc_unpin(reg);
    for (int i = 0; i < ep->nlanes; i++) {
        reg->on[i].work.kind = WEFT__WORK_DEREG;
        weft__lane_push(ep->lanes[i], &reg->on[i].work);
    }
}

void weft__reg_lane_done(struct weft__reg *reg)
{
    if (--reg->undone)
        return;
    struct weft__endpoint *ep = reg->ep;
    if (reg->op) {
        struct weft__op *op = reg->op;
        free(reg);
        weft__op_unpend(op);
    } else if (reg->abandoned) {
        free(reg);
    }
    weft__changed(ep);
}

void weft__reg_serve(struct weft__reg *reg)
{
    reg->serving++;
}

void weft__reg_served(struct weft__reg *reg)
{
    reg->serving--;
    if (reg->shut)
        weft__reg_lane_done(reg);
}

struct weft__reg *weft__apart_find(struct weft__endpoint *ep, uint64_t key)
{
    for (struct weft_list *at = ep->aparts.next; at != &ep->aparts; at = at->next) {
        struct weft__reg *reg = WEFT_LIST_OF(at, struct weft__reg, in_apart);
        if (reg->key == key)
            return reg;
    }
    return NULL;
}

struct weft__reg *weft__reg_find(struct weft__endpoint *ep, uint64_t key)
{
    for (struct weft__reg *reg = ep->regs; reg; reg = reg->next)
        if (reg->key == key)
            return reg;
    return NULL;
}

/* The shared registration of just this range with this access, or NULL. One of a larger range
 * would do as well, but would have to outlive that range's own mem: peers could then still reach
 * what its owner has taken back. Endpoint lock held. */
static struct weft__reg *cached(struct weft__endpoint *ep, const void *addr, uint64_t len,
                                uint32_t access)
{
    for (struct weft__reg *reg = ep->regs; reg; reg = reg->next)
        if (reg->access == access && reg->addr == addr && reg->len == len)
            return reg;
    return NULL;
}

static void uncache(struct weft__reg *reg)
{
    struct weft__reg **at = &reg->ep->regs;
    while (*at != reg)
        at = &(*at)->next;
    *at = reg->next;
}

static bool reg_done(void *arg)
{
    return ((struct weft__reg *)arg)->undone == 0;
}

/* --- mems ----------------------------------------------------------------------------------- */

static int check_range(const void *addr, size_t len)
{
    if (!addr || !len)
        return weft_fail(-EINVAL, "cannot register %zu bytes at %p", len, addr);
    if ((uintptr_t)addr + len < (uintptr_t)addr)
        return weft_fail(-EINVAL, "%zu bytes at %p wrap around the address space", len, addr);
    return 0;
}

static int mem_open(struct weft__endpoint *ep, void *addr, size_t len, uint32_t access,
                    weft_mem_t *out)
{
    struct weft__mem *mem = calloc(1, sizeof *mem);
    weft_mem_t handle = mem ? weft__handle_open(WEFT__MEM, mem, ep) : 0;
    if (!handle) {
        free(mem);
        return weft_fail(-ENOMEM, "no memory for a mem");
    }
    pthread_mutex_lock(&ep->lock);
    struct weft__reg *reg = cached(ep, addr, len, access);
    if (reg)
        reg->refs++;
    pthread_mutex_unlock(&ep->lock);
    int rc = reg ? 0 : weft__reg_open(ep, addr, len, access, &reg);
    if (rc) {
        weft__handle_shut(handle, WEFT__MEM);
        weft__handle_drain(handle, 0);
        free(mem);
        return rc;
    }
    pthread_mutex_lock(&ep->lock);
    *mem = (struct weft__mem){.ep = ep,
                              .handle = handle,
                              .ep_handle = ep->handle,
                              .reg = reg,
                              .addr = addr,
                              .len = len};
    reg->lasting = true;
    if (reg->refs == 1 && !weft__reg_find(ep, reg->key)) {
        reg->next = ep->regs;
        ep->regs = reg;
    }
    mem->next = ep->mems;
    if (ep->mems)
        ep->mems->prev = mem;
    ep->mems = mem;
    *out = handle;
    pthread_mutex_unlock(&ep->lock);
    return 0;
}

int weft_mem_reg(weft_endpoint_t endpoint, void *addr, size_t len,
                 const struct weft_mem_opts *opts, weft_mem_t *mem)
{
    struct weft_mem_opts o = {0};
    int rc = weft__opts_copy(&o, sizeof o, opts, "weft_mem_opts");
    if (rc == 0)
        rc = check_range(addr, len);
    if (rc == 0 && (o.access & ~WEFT__ALL_ACCESS))
        rc = weft_fail(-EINVAL, "weft_mem_opts.access has unknown bits: 0x%x", o.access);
    if (rc == 0 && !mem)
        rc = weft_fail(-EINVAL, "weft_mem_reg: mem is NULL");
    if (rc)
        return rc;
    struct weft__endpoint *ep = weft__handle_get(endpoint, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    rc = mem_open(ep, addr, len, o.access ? o.access : WEFT__ALL_ACCESS, mem);
    weft__handle_put(endpoint);
    return rc;
}

static void mem_unlink(struct weft__mem *mem)
{
    for (int i = 0; i < 2; i++)
        if (mem->ep->last[i].mem == mem->handle)
            mem->ep->last[i].mem = 0;
    if (mem->prev)
        mem->prev->next = mem->next;
    else
        mem->ep->mems = mem->next;
    if (mem->next)
        mem->next->prev = mem->prev;
}

/* Wait for all lanes to let go of a registration that was shut. */
static int reg_finish(struct weft__endpoint *ep, struct weft__reg *reg)
{
    weft__kick_all(ep);
    if (weft__wait(ep, reg_done, reg, weft_now() + ep->grace_ns)) {
        free(reg);
        return 0;
    }
    pthread_mutex_lock(&ep->lock);
    bool done = reg->undone == 0;
    reg->abandoned = true;
    pthread_mutex_unlock(&ep->lock);
    if (done) {
        free(reg);
        return 0;
    }
    return weft_fail(WEFT_ETIMEOUT, "a peer or a GPU that does not go on still touches this memory: it "
                                    "must stay mapped until its conn is closed (0 of weft_conn_close), or the endpoint "
                                    "if the log tells of a device that keeps it");
}

/* Endpoint lock held. */
static int mem_check_unused(const struct weft__mem *mem)
{
    if (mem->reg->refs == 1 && mem->reg->users)
        return weft_fail(-EBUSY, "mem is in use by %u operations of this side", mem->reg->users);
    return 0;
}

int weft_mem_dereg(weft_mem_t handle)
{
    struct weft__mem *mem = weft__handle_get(handle, WEFT__MEM);
    if (!mem)
        return WEFT_EHANDLE;
    struct weft__endpoint *ep = weft__handle_get(mem->ep_handle, WEFT__ENDPOINT);
    if (!ep) {
        weft__handle_put(handle);
        return WEFT_EHANDLE;
    }
    weft_endpoint_t ep_handle = ep->handle;
    pthread_mutex_lock(&ep->lock);
    int rc = mem_check_unused(mem);
    if (rc == 0 && !weft__handle_shut(handle, WEFT__MEM))
        rc = weft_fail(WEFT_EHANDLE, "mem was deregistered by another thread");
    if (rc) {
        pthread_mutex_unlock(&ep->lock);
        weft__handle_put(handle);
        weft__handle_put(ep_handle);
        return rc;
    }
    mem_unlink(mem);
    struct weft__reg *reg = mem->reg;
    bool last = --reg->refs == 0;
    if (last) {
        uncache(reg);
        weft__reg_shut(reg);
    }
    pthread_mutex_unlock(&ep->lock);
    weft__handle_drain(handle, 1);
    free(mem);
    if (last)
        rc = reg_finish(ep, reg);
    weft__handle_put(ep_handle);
    return rc;
}

WEFT__APART int weft__mem_reg_of(struct weft__endpoint *ep, weft_mem_t handle, const void *addr, uint64_t len,
                                 struct weft__reg **reg)
{
    const struct weft__mem *mem = weft__handle_peek(handle, WEFT__MEM, ep);
    if (!mem)
        return WEFT_EHANDLE;
    if (!weft__contains((uintptr_t)mem->addr, mem->len, (uintptr_t)addr, len))
        return weft_fail(WEFT_EBOUNDS,
                         "%llu bytes at %p are not inside the mem of %llu bytes at %p",
                         (unsigned long long)len, addr, (unsigned long long)mem->len, mem->addr);
    *reg = mem->reg;
    return 0;
}

/* --- remotes --------------------------------------------------------------------------------- */

uint32_t weft__owner_id(const uint8_t uuid[16])
{
    uint32_t id;
    memcpy(&id, uuid, sizeof id); /* uuids are random */
    return id;
}

static void encode(const struct weft__remote *r, struct weft_remote *out)
{
    struct weft__writer w = {out->bytes, out->bytes + sizeof out->bytes, false};
    weft__put_u8(&w, WEFT__REMOTE_VERSION);
    weft__put_u8(&w, (uint8_t)r->access);
    weft__put_u16(&w, WEFT__REMOTE_MAGIC);
    weft__put_u32(&w, r->owner);
    weft__put_u64(&w, r->addr);
    weft__put_u64(&w, r->len);
    weft__put_u64(&w, r->key);
    for (int i = 0; i < WEFT__KEYS; i++)
        weft__put_u32(&w, r->keys[i]);
}

int weft__remote_refuse(const struct weft_remote *remote)
{
    const uint8_t *at = remote->bytes;
    uint64_t addr = weft__le64(at + 8), len = weft__le64(at + 16);
    if (weft__le32(at) >> 16 != WEFT__REMOTE_MAGIC ||
        at[1] & ~(WEFT__ALL_ACCESS | WEFT__REMOTE_FLAGS) || addr + len < addr)
        return weft_fail(WEFT_EPROTO, "these 64 bytes are not a remote");
    return weft_fail(WEFT_EVERSION, "remote has version %u, this library reads %u", at[0],
                     WEFT__REMOTE_VERSION);
}

void weft__reg_describe(const struct weft__reg *reg, const void *addr, uint64_t len,
                        struct weft_remote *remote)
{
    struct weft__remote r = {.addr = (uintptr_t)addr,
                             .len = len,
                             .key = reg->key,
                             .access = reg->access,
                             .owner = weft__owner_id(reg->ep->uuid)};
    for (int i = 0; i < reg->ep->nlanes; i++) {
        int slot = reg->ep->lanes[i]->key_slot;
        if (reg->unreached >> i & 1)
            r.access |= slot < 0 ? WEFT__STAGED_CHOSEN : WEFT__STAGED_OWN;
        else if (slot >= 0)
            r.keys[slot] = (uint32_t)reg->on[i].handle.rkey;
        if (reg->unreached >> i & 1 && reg->lasting && reg->ep->ipc &&
            reg->ep->lanes[i]->nic->attr.enters)
            r.access |= WEFT__MAPPABLE;
    }
    encode(&r, remote);
}

int weft_mem_advertise(weft_mem_t handle, const void *addr, size_t len, struct weft_remote *remote)
{
    struct weft__mem *mem = weft__handle_get(handle, WEFT__MEM);
    if (!mem)
        return WEFT_EHANDLE;
    int rc = 0;
    if (!remote)
        rc = weft_fail(-EINVAL, "weft_mem_advertise: remote is NULL");
    else if (!weft__contains((uintptr_t)mem->addr, mem->len, (uintptr_t)addr, len))
        rc = weft_fail(WEFT_EBOUNDS, "%zu bytes at %p are not inside the mem of %llu bytes at %p",
                       len, addr, (unsigned long long)mem->len, mem->addr);
    else
        weft__reg_describe(mem->reg, addr, len, remote);
    weft__handle_put(handle);
    return rc;
}

int weft_remote_parse(const struct weft_remote *remote, struct weft_remote_info *info)
{
    struct weft__remote r;
    if (!remote || !info)
        return weft_fail(-EINVAL, "weft_remote_parse: an argument is NULL");
    int rc = weft__remote_decode(remote, &r);
    if (rc == 0)
        *info = (struct weft_remote_info){
            .addr = r.addr, .len = r.len, .access = r.access & WEFT__ALL_ACCESS};
    return rc;
}

int weft_remote_slice(const struct weft_remote *remote, uint64_t offset, uint64_t len,
                      struct weft_remote *piece)
{
    struct weft__remote r;
    if (!remote || !piece)
        return weft_fail(-EINVAL, "weft_remote_slice: an argument is NULL");
    int rc = weft__remote_decode(remote, &r);
    if (rc)
        return rc;
    if (!weft__contains(0, r.len, offset, len))
        return weft_fail(WEFT_EBOUNDS, "bytes %llu..+%llu are not inside a remote of %llu bytes",
                         (unsigned long long)offset, (unsigned long long)len,
                         (unsigned long long)r.len);
    r.addr += offset;
    r.len = len;
    encode(&r, piece);
    return 0;
}

/* --- lists of regions ------------------------------------------------------------------------ */

/* u32 magic, u16 version, u16 zero, u64 count, then count remotes. */
#define REGIONS_MAGIC 0x52465457u
#define REGIONS_VERSION 1
#define REGIONS_HEAD 16

int64_t weft_regions_pack(const struct weft_region *regions, size_t n, void *buf, size_t cap)
{
    if (n > (INT64_MAX - REGIONS_HEAD) / sizeof(struct weft_remote) || (n && !regions))
        return weft_fail(-EINVAL, "weft_regions_pack: bad list of regions");
    size_t len = REGIONS_HEAD + n * sizeof(struct weft_remote);
    if (!buf || cap < len)
        return (int64_t)len;
    struct weft__writer w = {buf, (uint8_t *)buf + len, false};
    weft__put_u32(&w, REGIONS_MAGIC);
    weft__put_u16(&w, REGIONS_VERSION);
    weft__put_u16(&w, 0);
    weft__put_u64(&w, n);
    for (size_t i = 0; i < n; i++) {
        struct weft_remote remote;
        int rc = weft_mem_advertise(regions[i].mem, regions[i].addr, regions[i].len, &remote);
        if (rc)
            return rc;
        weft__put(&w, remote.bytes, sizeof remote.bytes);
    }
    return (int64_t)len;
}

int64_t weft_regions_unpack(const void *blob, size_t len, struct weft_remote *remotes, size_t max)
{
    if (!blob || (!remotes && max > 0))
        return weft_fail(-EINVAL, "weft_regions_unpack: %s is NULL", blob ? "remotes" : "blob");
    struct weft__reader r = {blob, (const uint8_t *)blob + len, false};
    uint32_t magic = weft__get_u32(&r);
    uint16_t version = weft__get_u16(&r);
    uint16_t zero = weft__get_u16(&r);
    uint64_t n = weft__get_u64(&r);
    if (r.bad || magic != REGIONS_MAGIC || zero)
        return weft_fail(WEFT_EPROTO, "%zu bytes that are not a list of regions", len);
    if (version != REGIONS_VERSION)
        return weft_fail(WEFT_EVERSION, "list of regions has version %u, this library reads %u",
                         version, REGIONS_VERSION);
    if (n != (len - REGIONS_HEAD) / sizeof(struct weft_remote) ||
        (len - REGIONS_HEAD) % sizeof(struct weft_remote))
        return weft_fail(WEFT_EPROTO, "list of %llu regions in %zu bytes", (unsigned long long)n,
                         len);
    for (uint64_t i = 0; i < n; i++) {
        struct weft_remote remote;
        struct weft__remote decoded;
        weft__get(&r, remote.bytes, sizeof remote.bytes);
        int rc = weft__remote_decode(&remote, &decoded);
        if (rc)
            return rc;
        if (i < max)
            remotes[i] = remote;
    }
    return (int64_t)n;
}
