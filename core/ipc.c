/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: memory of peers' GPUs, mapped into this process.
 *
 * A driver maps in the context of one GPU, the one that is going to copy: that of this end's memory, or, if that is the
 * host's, the same one as the peer's. To map, to pin memory of the host and to undo either takes long: the copier does it.
 */
#include "ipc.h"
#include "conn.h"
#include "copier.h"
#include "endpoint.h"
#include "mem.h"
#include "msg.h"
#include "span.h"
#include "stage.h"
#include "util.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS 256
#define AT_HOME (-1)                 /* mapping->wanted: the GPU whose memory it is */
#define TAKE_NS                                                                                   \
    ((uint64_t)1000000000) /* the descriptor is sent before the message that tells of it */
#define PIN_MOST ((uint64_t)1 << 30) /* to pin more takes a second and longer */

/* In one GPU's context. */
struct mapping {
    struct weft__chore chore;
    struct mapping *next;
    struct weft__import *import;
    int wanted, ordinal; /* ordinal: once it is there */
    enum { MAPPING_OPENING, MAPPING_THERE, MAPPING_NONE } state;
    bool reached; /* by kernels of that GPU */
    void *addr;
};

struct weft__import {
    struct weft__import *next; /* of its bucket; gone: of none */
    struct weft__conn *conn;
    uint64_t key, addr, len;
    uint32_t access;
    enum { IMPORT_ASKED, IMPORT_TAKING, IMPORT_THERE, IMPORT_REFUSED } state;
    bool gone;      /* the peer has taken it back, or is gone */
    bool unknown;   /* refused: the peer has no such key, so there will be no END */
    bool own;       /* the peer is this process */
    bool direct;    /* and its memory is there without being mapped */
    uint32_t users; /* copies, mappings that are being made, a descriptor that is being taken */
    struct weft__chore take; /* the descriptor that belongs to the handle */
    uint64_t take_by;        /* weft_now; 0: it was not looked for yet */
    int fd;                  /* it, until it was used; or -1 */
    char pci[WEFT__IPC_PCI];
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct mapping *mappings;
};

void weft__ipc_init(struct weft__ipc *ipc)
{
    weft_list_init(&ipc->exports);
}

/* The link that imports belong to: the same one at both ends. */
static struct weft__link *link_of(const struct weft__conn *conn)
{
    struct weft__link *link = conn->nlinks ? conn->links[0] : NULL;
    return link && link->up && !link->closing && link->lane->nic->attr.enters ? link : NULL;
}

/* --- mappings ----------------------------------------------------------------------------------- */

static struct mapping *mapping_of(struct weft__chore *chore)
{
    return (struct mapping *)chore; /* the first member */
}

static void mapping_close(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct mapping *mapping = mapping_of(chore);
    struct weft_gpu *gpu = weft__gpu_opened(ep, mapping->ordinal);
    gpu->backend->ops->ipc_close(gpu, mapping->addr);
}

static void mapping_closed(struct weft__endpoint *ep, struct weft__chore *chore)
{
    (void)ep;
    free(mapping_of(chore));
}

/* What nobody has taken out of it counts against the limit of who has passed it. */
static void close_fd(struct weft__import *import)
{
    if (import->fd >= 0)
        close(import->fd);
    import->fd = -1;
}

/* Nobody uses it any more, and nobody finds it. */
static void import_free(struct weft__import *import)
{
    struct weft__endpoint *ep = import->conn->ep;
    close_fd(import);
    for (struct mapping *mapping = import->mappings, *next; mapping; mapping = next) {
        next = mapping->next;
        if (mapping->state != MAPPING_THERE || import->direct) {
            free(mapping);
            continue;
        }
        mapping->chore = (struct weft__chore){.run = mapping_close, .done = mapping_closed};
        weft__chore_push(ep, &mapping->chore);
    }
    free(import);
}

static void import_put(struct weft__import *import)
{
    if (--import->users == 0 && import->gone)
        import_free(import);
}

/* This process's number of the peer's GPU, which may have another one there; or -1. */
static int find_home(const struct weft_gpu_ops *ops, const char *pci)
{
    struct weft_gpu_device device;
    int n = *pci ? ops->probe() : 0;
    for (int i = 0; i < n; i++)
        if (ops->describe(i, &device) == 0 && strcmp(device.pci, pci) == 0)
            return i;
    return -1;
}

/* Once one GPU has opened it the backend knows it, so that another one needs no descriptor. How long the memory is
 * is the peer's word. */
static int map(struct weft__endpoint *ep, const struct weft__import *import,
               struct mapping *mapping)
{
    struct weft_gpu *gpu = weft__gpu_opened(ep, mapping->ordinal);
    return ep->gpu->ops->ipc_open(gpu, import->handle, import->fd, import->len, &mapping->addr);
}

/* This process's own: whether it is its backend's, too. What is the same GPU's is reached. */
static int take_own(const struct weft__endpoint *ep, struct mapping *mapping)
{
    struct weft_gpu_range range;
    mapping->addr = (void *)(uintptr_t)mapping->import->addr;
    int rc = weft__gpu_span(ep->gpu->ops, mapping->addr, mapping->import->len, &range);
    if (rc == 0)
        rc = weft_fail(WEFT_EUNSUPPORTED, "it is no memory of a GPU of %s", ep->gpu->name);
    mapping->reached = rc == 1 && range.reached && range.ordinal == mapping->ordinal;
    return rc < 0 ? rc : 0;
}

static void mapping_open(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct mapping *mapping = mapping_of(chore);
    struct weft__import *import = mapping->import;
    const struct weft_gpu_ops *ops = ep->gpu->ops;
    int ordinal = mapping->wanted == AT_HOME ? find_home(ops, import->pci) : mapping->wanted;
    mapping->ordinal = ordinal;
    mapping->reached = true;
    int rc = ordinal < 0
                 ? weft_fail(WEFT_ENODEV, "its GPU, %s, is none of this process's", import->pci)
                 : weft__chore_gpu(ep, ordinal);
    if (rc == 0)
        rc = import->direct ? take_own(ep, mapping) : map(ep, import, mapping);
    close_fd(import);
    if (rc)
        weft_log(WEFT_LOG_INFO, "conn", "memory of the peer's GPU is staged: %s",
                 weft_last_error());
    chore->status = rc;
}

static void mapping_opened(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct mapping *mapping = mapping_of(chore);
    struct weft__conn *conn = mapping->import->conn;
    (void)ep;
    mapping->state = chore->status ? MAPPING_NONE : MAPPING_THERE;
    import_put(mapping->import);
    weft__stage_release(conn);
}

static struct mapping *mapping_find(struct weft__import *import, int wanted)
{
    struct mapping *mapping = import->mappings;
    while (mapping && mapping->wanted != wanted)
        mapping = mapping->next;
    if (mapping)
        return mapping;
    mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return NULL;
    mapping->import = import;
    mapping->wanted = wanted;
    mapping->next = import->mappings;
    import->mappings = mapping;
    import->users++;
    weft__stage_hold(import->conn);
    mapping->chore = (struct weft__chore){.run = mapping_open, .done = mapping_opened};
    weft__chore_push(import->conn->ep, &mapping->chore);
    return mapping;
}

/* --- imports -------------------------------------------------------------------------------------- */

static struct weft__import **bucket_of(struct weft__ipc *ipc, uint64_t key)
{
    return &ipc->imports[key % BUCKETS]; /* keys are random */
}

static struct weft__import *find(struct weft__ipc *ipc, uint64_t key)
{
    struct weft__import *import = ipc->imports ? *bucket_of(ipc, key) : NULL;
    while (import && import->key != key)
        import = import->next;
    return import;
}

/* It is not to be found any more. */
static void forget(struct weft__import **at)
{
    struct weft__import *import = *at;
    *at = import->next;
    import->gone = true;
    import->users++;
    import_put(import);
}

/* Keys that the peer did not know; it will not tell of their end. */
static void forget_unknown(struct weft__import **at)
{
    while (*at)
        if ((*at)->unknown)
            forget(at);
        else
            at = &(*at)->next;
}

/* Ask the peer for a key. False: no memory. */
static bool ask(struct weft__conn *conn, uint64_t key)
{
    struct weft__ipc *ipc = &conn->ipc;
    struct weft__msg_head head = {.type = WEFT__MSG_IPC_ASK};
    uint8_t body[8];
    struct weft__writer w = {body, body + sizeof body, false};
    if (!ipc->imports)
        ipc->imports = calloc(BUCKETS, sizeof(struct weft__import *));
    struct weft__import *import = ipc->imports ? calloc(1, sizeof *import) : NULL;
    if (!import)
        return false;
    struct weft__import **at = bucket_of(ipc, key);
    forget_unknown(at);
    import->conn = conn;
    import->key = key;
    import->fd = -1;
    import->next = *at;
    *at = import;
    weft__put_u64(&w, key);
    weft__msg_post(conn, &head, body, sizeof body);
    return true;
}

static struct weft__import *taker_of(struct weft__chore *chore)
{
    return (struct weft__import *)(void *)((char *)chore - offsetof(struct weft__import, take));
}

/* It was passed before the message that tells of it, but nobody may have looked at the socket since. */
static void take_run(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct weft__import *import = taker_of(chore);
    struct weft__link *link = import->conn->links[0];
    (void)ep;
    if (!import->take_by)
        import->take_by = weft_now() + TAKE_NS;
    weft__lane_lock(link->lane);
    chore->status = link->tl ? link->lane->nic->transport->ops->link_take(link->tl, import->key,
                                                                          &import->fd)
                             : weft_fail(WEFT_ELINK, "the link is closed");
    weft__lane_unlock(link->lane);
    if (chore->status == WEFT_EAGAIN && weft_now() > import->take_by)
        chore->status = weft_fail(WEFT_EPROTO, "the peer has not passed what it says");
    if (chore->status && chore->status != WEFT_EAGAIN)
        weft_log(WEFT_LOG_INFO, "conn", "memory of the peer's GPU is staged: %s",
                 weft_last_error());
}

static void take_done(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct weft__import *import = taker_of(chore);
    struct weft__conn *conn = import->conn;
    if (chore->status == WEFT_EAGAIN) {
        weft__chore_push(ep, chore);
        return;
    }
    import->state = chore->status ? IMPORT_REFUSED : IMPORT_THERE;
    import_put(import);
    weft__stage_release(conn);
}

static void take(struct weft__import *import)
{
    import->state = IMPORT_TAKING;
    import->take = (struct weft__chore){.run = take_run, .done = take_done};
    import->users++;
    weft__stage_hold(import->conn);
    weft__chore_push(import->conn->ep, &import->take);
}

/* All of them went with the link that they belong to; what the peer says of them may come later, by another one. */
static bool is_late(const struct weft__conn *conn, const struct weft__import *import)
{
    return !import && conn->nlinks && conn->links[0]->closing;
}

int weft__ipc_map_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    struct weft__import *import = find(&conn->ipc, weft__get_u64(&r));
    int32_t status = (int32_t)weft__get_u32(&r);
    if (r.bad || status > 0)
        return WEFT_EPROTO;
    if (is_late(conn, import))
        return 0;
    if (!import || import->state != IMPORT_ASKED)
        return WEFT_EPROTO;
    uint8_t passed = weft__get_u8(&r);
    import->access = weft__get_u32(&r);
    import->addr = weft__get_u64(&r);
    import->len = weft__get_u64(&r);
    weft__get(&r, import->pci, sizeof import->pci);
    weft__get(&r, import->handle, sizeof import->handle);
    import->pci[sizeof import->pci - 1] = 0;
    if (r.bad || r.at != r.end || passed > 1 || import->addr + import->len < import->addr)
        return WEFT_EPROTO;
    /* which a peer of another process may say as well: the link knows better */
    const struct weft__link *link = link_of(conn);
    import->own = link && link->tl->own &&
                  weft__ipc_is_own(import->key, import->addr, import->len, import->access);
    import->direct = import->own && !passed;
    if (passed && !status)
        take(import);
    else
        import->state = status ? IMPORT_REFUSED : IMPORT_THERE;
    import->unknown = status == WEFT_EKEY;
    weft__stage_fill(conn);
    return 0;
}

/* u64 key, u32 turn */
int weft__ipc_end_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__ipc *ipc = &conn->ipc;
    struct weft__reader r = {body, body + len, false};
    uint64_t key = weft__get_u64(&r);
    uint32_t turn = weft__get_u32(&r);
    const struct weft__import *import = find(ipc, key);
    if (r.bad || r.at != r.end)
        return WEFT_EPROTO;
    if (is_late(conn, import))
        return 0;
    if (!import || import->state == IMPORT_ASKED)
        return WEFT_EPROTO;
    struct weft__import **at = bucket_of(ipc, key);
    while (*at != import)
        at = &(*at)->next;
    forget(at);
    ipc->turn = turn;
    weft__stage_fill(conn);
    return 0;
}

void weft__ipc_down(struct weft__conn *conn)
{
    for (int i = 0; conn->ipc.imports && i < BUCKETS; i++)
        while (conn->ipc.imports[i])
            forget(&conn->ipc.imports[i]);
}

void weft__ipc_free(struct weft__conn *conn)
{
    free(conn->ipc.imports);
}

/* --- memory of the host --------------------------------------------------------------------------- */

static struct weft__reg *reg_of(struct weft__chore *chore)
{
    return (struct weft__reg *)(void *)((char *)chore - offsetof(struct weft__reg, pinning.chore));
}

static void pin_run(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct weft__reg *reg = reg_of(chore);
    struct weft_gpu *gpu = weft__gpu_any(ep);
    chore->status = gpu ? gpu->backend->ops->host_map(gpu, reg->addr, reg->len, &reg->pinning.dev)
                        : WEFT_ENODEV;
    if (chore->status < 0)
        weft_log(WEFT_LOG_INFO, "memory", "memory of the host is not pinned: %s",
                 weft_last_error());
}

static void pin_done(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct weft__reg *reg = reg_of(chore);
    struct weft__conn *conn = reg->pinning.conn;
    reg->pin = chore->status < 0    ? WEFT__PIN_NOT
               : chore->status == 0 ? WEFT__PIN_OURS
                                    : WEFT__PIN_OTHERS;
    reg->reached = chore->status == 0 && reg->pinning.dev == reg->addr;
    if (reg->shut)
        weft__ipc_unpin(reg);
    weft__reg_served(reg);
    weft__stage_release(conn);
    weft__stage_fill_all(ep); /* the registration is that of other conns, too */
}

static void unpin_run(struct weft__endpoint *ep, struct weft__chore *chore)
{
    weft__reg_unpin(ep, reg_of(chore));
}

static void unpin_done(struct weft__endpoint *ep, struct weft__chore *chore)
{
    (void)ep;
    weft__reg_lane_done(reg_of(chore));
}

static bool is_pinned_for_another(const struct weft__reg *reg)
{
    const uint8_t *from = reg->addr, *to = from + reg->len;
    for (const struct weft__reg *other = reg->ep->regs; other; other = other->next) {
        const uint8_t *start = other->addr;
        bool ours = other->pin == WEFT__PIN_OURS || other->pin == WEFT__PIN_WANTED;
        if (other != reg && ours && start < to && from < start + other->len)
            return true;
    }
    return false;
}

/* A GPU copies at once from and to what is pinned; else through buffers of its driver's, at a processor's pace. */
static enum weft__ipc_way pinned(struct weft__conn *conn, struct weft__reg *reg)
{
    if (!reg || !reg->lasting || reg->pin == WEFT__PIN_NOT)
        return WEFT__IPC_NONE;
    if (reg->pin == WEFT__PIN_OURS || reg->pin == WEFT__PIN_OTHERS)
        return WEFT__IPC_THERE;
    if (reg->pin == WEFT__PIN_WANTED)
        return WEFT__IPC_WAIT;
    if (is_pinned_for_another(reg))
        return WEFT__IPC_NONE; /* whose end would unpin it */
    if (reg->len > PIN_MOST) {
        reg->pin = WEFT__PIN_NOT;
        return WEFT__IPC_NONE;
    }
    reg->pinning.chore = (struct weft__chore){.run = pin_run, .done = pin_done};
    reg->pinning.conn = conn;
    reg->pin = WEFT__PIN_WANTED;
    weft__reg_serve(reg);
    weft__stage_hold(conn);
    weft__chore_push(conn->ep, &reg->pinning.chore);
    return WEFT__IPC_WAIT;
}

void weft__ipc_unpin(struct weft__reg *reg)
{
    if (reg->pin != WEFT__PIN_OURS)
        return;
    reg->pinning.chore = (struct weft__chore){.run = unpin_run, .done = unpin_done};
    reg->undone++;
    weft__chore_push(reg->ep, &reg->pinning.chore);
}

/* --- for the one who copies ------------------------------------------------------------------------ */

static bool may(const struct weft__import *import, const struct weft__piece *piece,
                uint32_t access)
{
    return import->access & access &&
           weft__contains(import->addr, import->len, piece->raddr, piece->len);
}

enum weft__ipc_way weft__ipc_way(struct weft__conn *conn, const struct weft__piece *piece,
                                 uint32_t access, struct weft__mapped *mapped)
{
    struct weft__endpoint *ep = conn->ep;
    if (!(piece->far & WEFT__MAPPABLE) || !ep->ipc || !ep->gpu_apart || !link_of(conn))
        return WEFT__IPC_NONE;
    struct weft__import *import = find(&conn->ipc, piece->rkey);
    if (!import)
        return ask(conn, piece->rkey) ? WEFT__IPC_WAIT : WEFT__IPC_NONE;
    if (import->state == IMPORT_ASKED || import->state == IMPORT_TAKING)
        return WEFT__IPC_WAIT;
    if (import->state == IMPORT_REFUSED || !may(import, piece, access))
        return WEFT__IPC_NONE; /* staged, or refused where the memory is */
    const struct mapping *mapping = mapping_find(import, piece->gpu ? piece->gpu - 1 : AT_HOME);
    if (!mapping || mapping->state == MAPPING_NONE)
        return WEFT__IPC_NONE;
    if (mapping->state == MAPPING_OPENING)
        return WEFT__IPC_WAIT;
    mapped->import = import;
    mapped->addr = (uint8_t *)mapping->addr + (piece->raddr - import->addr);
    mapped->ordinal = mapping->ordinal;
    mapped->from = import->addr;
    mapped->to = import->addr + import->len;
    mapped->reached = mapping->reached && piece->reg && piece->reg->reached;
    return piece->gpu ? WEFT__IPC_THERE : pinned(conn, piece->reg);
}

bool weft__ipc_enter(struct weft__conn *conn, struct weft__import *import, uint32_t *turn)
{
    struct weft__link *link = link_of(conn);
    *turn = conn->ipc.turn;
    if (!link || link->inside >= WEFT__INSIDE_MOST ||
        !link->lane->nic->transport->ops->link_enter(link->tl, *turn))
        return false;
    link->inside++;
    import->users++;
    return true;
}

void weft__ipc_leave(struct weft__conn *conn, struct weft__import *import, uint32_t turn)
{
    struct weft__link *link = conn->links[0];
    link->lane->nic->transport->ops->link_leave(link->tl, turn);
    link->inside--;
    import_put(import);
}
