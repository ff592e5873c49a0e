/* SPDX-License-Identifier: Apache-2.0 */
/* Exports: memory of this end's GPUs that a conn's peer has mapped, and its end. */
#include "conn.h"
#include "copier.h"
#include "endpoint.h"
#include "ipc.h"
#include "lane.h"
#include "mem.h"
#include "msg.h"
#include "stage.h"
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct weft__export {
    struct weft__work work; /* first: the recall, in the lane's queue */
    struct weft_list in_conn, in_reg, in_own;
    struct weft__conn *conn;
    struct weft__link *link;
    struct weft__reg *reg;
    bool answered; /* the peer knows of it */
    bool refused;  /* but cannot map it */
    bool ending;   /* it is being recalled */
    bool begun;    /* lane lock: its turn is over */
};

/* What the copier does for one. */
struct making {
    struct weft__chore chore;
    struct weft__export *export;
    struct weft_gpu_device device;
    bool passed; /* a descriptor, too */
    uint8_t handle[WEFT_GPU_IPC_BYTES];
};

/* --- all of this process ------------------------------------------------------------------------ */

static void forget_own(void);
static struct weft_static_lock own_lock = WEFT_STATIC_LOCK(.in_child = forget_own); /* inside all others */
static struct weft_list own = {&own, &own};

/* A child's memory is not its parent's. */
static void forget_own(void)
{
    weft_list_init(&own);
}

static void own_add(struct weft__export *export)
{
    weft_static_lock(&own_lock);
    weft_list_push(&own, &export->in_own);
    weft_static_unlock(&own_lock);
}

static void own_remove(struct weft__export *export)
{
    weft_static_lock(&own_lock);
    weft_list_remove(&export->in_own);
    weft_static_unlock(&own_lock);
}

bool weft__ipc_is_own(uint64_t key, uint64_t addr, uint64_t len, uint32_t access)
{
    bool is = false;
    weft_static_lock(&own_lock);
    for (const struct weft_list *at = own.next; at != &own && !is;
         at = at->next) {
        const struct weft__reg *reg = WEFT_LIST_OF(at, struct weft__export, in_own)->reg;
        is = reg->key == key && (uintptr_t)reg->addr == addr && reg->len == len &&
             reg->access == access;
    }
    weft_static_unlock(&own_lock);
    return is;
}

/* --- made --------------------------------------------------------------------------------------- */

/* u64 key, i32 status, u8 was a descriptor passed, u32 access, u64 addr, u64 len, pci, handle */
static void answer(struct weft__conn *conn, uint64_t key, int status, const struct weft__reg *reg,
                   const struct making *making)
{
    uint8_t body[33 + WEFT__IPC_PCI + WEFT_GPU_IPC_BYTES] = {0};
    struct weft__writer w = {body, body + sizeof body, false};
    struct weft__msg_head head = {.type = WEFT__MSG_IPC_MAP};
    weft__put_u64(&w, key);
    weft__put_u32(&w, (uint32_t)status);
    if (status == 0) {
        weft__put_u8(&w, making->passed);
        weft__put_u32(&w, reg->access);
        weft__put_u64(&w, (uintptr_t)reg->addr);
        weft__put_u64(&w, reg->len);
        weft__put(&w, making->device.pci, WEFT__IPC_PCI);
        weft__put(&w, making->handle, sizeof making->handle);
    }
    weft__msg_post(conn, &head, body, sizeof body);
}

/* What belongs to the handle: before the message. */
static int pass(struct weft__link *link, uint64_t key, int fd)
{
    weft__lane_lock(link->lane);
    int rc = link->tl ? link->lane->nic->transport->ops->link_pass(link->tl, key, fd)
                      : weft_fail(WEFT_ELINK, "the link is closed");
    weft__lane_unlock(link->lane);
    close(fd);
    return rc;
}

static void run(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct making *making = (struct making *)chore; /* the first member */
    const struct weft__reg *reg = making->export->reg;
    const struct weft_gpu_ops *ops = ep->gpu->ops;
    int fd = -1;
    chore->status = ops->ipc_export(weft__gpu_opened(ep, reg->ordinal), reg->addr, reg->len,
                                    making->handle, &fd);
    making->passed = chore->status == 0 && fd >= 0;
    if (making->passed)
        chore->status = pass(making->export->link, reg->key, fd);
    if (chore->status == 0)
        ops->describe(reg->ordinal, &making->device); /* what it does not tell is empty */
    else
        weft_log(WEFT_LOG_INFO, "memory", "memory of GPU %d is staged for a peer of this host: %s",
                 reg->ordinal, weft_last_error());
}

/* Nothing refers to it any more but its lists. */
static void drop(struct weft__export *export)
{
    own_remove(export);
    weft_list_remove(&export->in_conn);
    weft_list_remove(&export->in_reg);
    free(export);
}

static void end(struct weft__export *export)
{
    struct weft__reg *reg = export->reg;
    export->ending = true;
    reg->undone++;
    weft__stage_hold(export->conn);
    export->work.kind = WEFT__WORK_RECALL;
    weft__lane_push(export->link->lane, &export->work);
}

static void done(struct weft__endpoint *ep, struct weft__chore *chore)
{
    struct making *making = (struct making *)chore;
    struct weft__export *export = making->export;
    struct weft__conn *conn = export->conn;
    struct weft__reg *reg = export->reg;
    (void)ep;
    export->refused = chore->status != 0;
    if (!export->refused)
        own_add(export);
    export->answered = true;
    if (conn->state != WEFT_CONN_DOWN)
        answer(conn, reg->key, chore->status, reg, making);
    free(making);
    if (export->link->closed)
        drop(export);
    else if (reg->shut)
        end(export);
    weft__reg_served(reg);
    weft__stage_release(conn);
}

static struct weft__export *find(const struct weft__conn *conn, const struct weft__reg *reg)
{
    const struct weft_list *all = &conn->ipc.exports;
    for (struct weft_list *at = all->next; at != all; at = at->next) {
        struct weft__export *export = WEFT_LIST_OF(at, struct weft__export, in_conn);
        if (export->reg == reg)
            return export;
    }
    return NULL;
}

/* u64 key */
int weft__ipc_ask_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__reader r = {body, body + len, false};
    uint64_t key = weft__get_u64(&r);
    if (r.bad || r.at != r.end || !conn->nlinks)
        return WEFT_EPROTO;
    bool enters = conn->links[0]->lane->nic->attr.enters;
    struct weft__reg *reg = weft__apart_find(conn->ep, key);
    if (!reg || !reg->lasting || !conn->ep->ipc || !enters) {
        answer(conn, key, WEFT_EKEY, NULL, NULL);
        return 0;
    }
    if (find(conn, reg))
        return WEFT_EPROTO; /* once is enough */
    struct weft__export *export = calloc(1, sizeof *export);
    struct making *making = calloc(1, sizeof *making);
    if (!export || !making) {
        free(export);
        free(making);
        answer(conn, key, WEFT_EKEY, NULL, NULL);
        return 0;
    }
    export->conn = conn;
    export->link = conn->links[0];
    export->reg = reg;
    weft_list_init(&export->in_own);
    weft_list_push(&conn->ipc.exports, &export->in_conn);
    weft_list_push(&reg->exports, &export->in_reg);
    making->chore = (struct weft__chore){.run = run, .done = done};
    making->export = export;
    weft__reg_serve(reg);
    weft__stage_hold(conn);
    weft__chore_push(conn->ep, &making->chore);
    return 0;
}

/* --- taken back ------------------------------------------------------------------------------------ */

void weft__ipc_revoke(struct weft__reg *reg)
{
    for (struct weft_list *at = reg->exports.next, *next; at != &reg->exports; at = next) {
        struct weft__export *export = WEFT_LIST_OF(at, struct weft__export, in_reg);
        next = at->next;
        if (export->answered && !export->ending) /* else `done` sees that it is to end */
            end(export);
    }
}

/* u64 key, u32 turn */
static void tell(struct weft__export *export)
{
    struct weft__conn *conn = export->conn;
    struct weft__msg_head head = {.type = WEFT__MSG_IPC_END};
    uint8_t body[12];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u64(&w, export->reg->key);
    weft__put_u32(&w, export->link->turn);
    pthread_mutex_lock(&conn->ep->lock);
    if (conn->state != WEFT_CONN_DOWN)
        weft__msg_post(conn, &head, body, sizeof body);
    pthread_mutex_unlock(&conn->ep->lock);
}

/* One turn at a time: false, another one is not over, or the link is to be closed. */
static bool begin(struct weft__export *export, const struct weft_transport_ops *ops)
{
    struct weft__link *link = export->link;
    if (!export->refused) {
        if (link->recalling || link->emptying)
            return false;
        link->recalling = true;
        link->turn = ops->link_recall(link->tl, 0);
    }
    export->begun = true;
    tell(export);
    return true;
}

bool weft__ipc_recall(struct weft__work *work)
{
    struct weft__export *export = (struct weft__export *)work; /* the first member */
    struct weft__link *link = export->link;
    struct weft__conn *conn = export->conn;
    struct weft__endpoint *ep = conn->ep;
    if (link->tl) { /* else who closed it has waited */
        const struct weft_transport_ops *ops = link->lane->nic->transport->ops;
        if (!export->begun && !begin(export, ops))
            return false;
        if (!export->refused && !ops->link_recalled(link->tl))
            return false;
        if (!export->refused)
            link->recalling = false;
    }
    pthread_mutex_lock(&ep->lock);
    struct weft__reg *reg = export->reg;
    drop(export);
    weft__reg_lane_done(reg);
    weft__stage_release(conn);
    pthread_mutex_unlock(&ep->lock);
    return true;
}

void weft__ipc_closed(struct weft__link *link)
{
    struct weft_list *all = &link->conn->ipc.exports;
    for (struct weft_list *at = all->next, *next; at != all; at = next) {
        struct weft__export *export = WEFT_LIST_OF(at, struct weft__export, in_conn);
        next = at->next;
        if (export->link == link && export->answered && !export->ending)
            drop(export);
    }
}
