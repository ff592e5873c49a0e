/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: one nic, and the lock that whoever drives it holds.
 *
 * Anyone may push work; only the holder of the lock touches the nic. weft__lane_kick takes the
 * lock if it is free and does the work at once, so in the common case the thread that posts an
 * operation also hands it to the nic. If another thread holds the lock, that thread looks once
 * more for work after letting go, so none is left behind.
 *
 * A thread that is going to hold the endpoint lock with the lane lock in hand anyway (who posts,
 * who dispatches comps) takes what it pushes along (lane->held): no flag, no second look.
 */
#include "lane.h"
#include "conn.h"
#include "endpoint.h"
#include "ipc.h"
#include "mem.h"
#include "msg.h"
#include "progress.h"
#include "registry.h"
#include "stripe.h"
#include "weft/gpu.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 32      /* cmds handed over, comps collected, in one call */
#define ENTERED_NS 1000000000u /* how long a link that is to be closed waits for who is inside */
#define STUCK_NS 5000000u /* what was tried again for so long is not tried as fast as one can */
#define QUICK_POLLS 4 /* of a nic that can, in a row: to come back here takes longer than to ask it again */
#define MSG_RESERVE 8 /* cmds of a link's depth that data leaves to messages */

int weft__lane_open(struct weft__endpoint *ep, const struct weft_transport *transport,
                    const char *device, int number, const char *fault, const char *bind_host,
                    struct weft__lane **out)
{
    struct weft__lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return weft_fail(-ENOMEM, "no memory for a nic");
    struct weft_nic_opts opts = {.device = device,
                                 .bind_host = bind_host,
                                 .gpu = ep->gpu ? ep->gpu->name : NULL,
                                 .lane = number};
    int rc = weft__nic_open(transport, fault, &opts, &lane->nic);
    if (rc) {
        free(lane);
        return rc;
    }
    lane->endpoint = ep;
    lane->transport = transport;
    lane->key_slot = -1;
    lane->depth = lane->nic->attr.tx_depth;
    lane->data_depth = lane->depth > 2 * MSG_RESERVE ? lane->depth - MSG_RESERVE : lane->depth;
    snprintf(lane->device, sizeof lane->device, "%s", device);
    lane->queue_tail = &lane->queue;
    pthread_mutex_init(&lane->lock, NULL);
    *out = lane;
    return 0;
}

void weft__lane_close(struct weft__lane *lane)
{
    lane->nic->transport->ops->close(lane->nic);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

/* All queued work, oldest first. Endpoint lock held. */
static struct weft__work *take(struct weft__lane *lane)
{
    struct weft__work *list = lane->queue;
    lane->queue = NULL;
    lane->queue_tail = &lane->queue;
    lane->nqueued = 0;
    /* relaxed: who pushes sees it by the endpoint lock */
    atomic_store_explicit(&lane->waiting, false, memory_order_relaxed);
    return list;
}

/* --- the wrs of a link: first those that the nic has taken --------------------------------- */

static struct weft__wr *wr_at(const struct weft_list *at)
{
    return WEFT_LIST_OF(at, struct weft__wr, in_link);
}

static void enqueue(struct weft__link *link, struct weft__wr *wr)
{
    weft_list_push(&link->wrs, &wr->in_link);
    if (WEFT_LIKELY(link->unposted == &link->wrs))
        link->unposted = &wr->in_link;
}

/* It is not under way by its link any more. Endpoint lock held. */
static void disown(struct weft__wr *wr)
{
    weft_list_remove(&wr->in_link);
    wr->link->owned -= wr->ncmds;
    if (wr->kind == WEFT__WR_DATA)
        wr->link->bytes -= wr->bytes;
}

/* All cmds of a wr have ended: give it to its owner. Endpoint lock held. */
static void wr_end(struct weft__wr *wr, const struct weft_comp *comp)
{
    disown(wr);
    if (wr->kind == WEFT__WR_DATA)
        weft__stripe_done(wr, comp);
    else
        weft__msg_done(wr, comp);
}

/* The next cmd can never be accepted: it and what follows in its run have failed. */
static WEFT__APART void refuse(struct weft__link *link, int status)
{
    struct weft__wr *wr = wr_at(link->unposted);
    uint8_t rest = (uint8_t)(wr->ncmds - wr->posted);
    struct weft_comp comp = {.link = link->tl, .op = wr->cmd.op, .status = status};
    pthread_mutex_lock(&link->lane->endpoint->lock);
    link->unposted = link->unposted->next;
    for (uint32_t i = wr->posted; i < wr->ncmds && wr->kind == WEFT__WR_DATA; i++)
        weft__stripe_failed(wr, i, status, NULL);
    link->owned -= rest;
    wr->ncmds = wr->posted;
    wr->left = (uint8_t)(wr->left - rest);
    if (wr->left == 0) /* else the nic is at work on those before it */
        wr_end(wr, &comp);
    pthread_mutex_unlock(&link->lane->endpoint->lock);
}

/* The next n cmds of a link, at most BATCH, as an array. */
static int gather(const struct weft__link *link, struct weft_cmd cmds[BATCH])
{
    const struct weft_list *end = &link->wrs;
    int n = 0;
    for (const struct weft_list *at = link->unposted; at != end && n < BATCH; at = at->next) {
        const struct weft__wr *wr = wr_at(at);
        for (uint32_t i = wr->posted; i < wr->ncmds && n < BATCH; i++) {
            struct weft_cmd *cmd = &cmds[n++];
            *cmd = wr->cmd;
            if (i > 0)
                weft__stripe_cmd(wr, i, cmd);
            cmd->flags |= at->next != end || i + 1u < wr->ncmds ? WEFT_CMD_MORE : 0;
        }
    }
    return n;
}

static int post(struct weft__link *link, const struct weft_cmd *cmds, int n)
{
    return link->tl->nic->transport->ops->post(link->tl, cmds, n);
}

/* The nic has taken so many cmds. */
static void taken(struct weft__link *link, uint32_t n)
{
    while (n > 0) {
        struct weft__wr *wr = wr_at(link->unposted);
        uint32_t left = wr->ncmds - wr->posted;
        if (left > n) {
            wr->posted = (uint8_t)(wr->posted + n);
            return;
        }
        n -= left;
        link->unposted = link->unposted->next;
    }
}

static WEFT__APART int post_several(struct weft__link *link)
{
    struct weft_cmd cmds[BATCH];
    int n = gather(link, cmds), took = post(link, cmds, n);
    if (took > 0)
        taken(link, (uint32_t)took);
    return took < 0 ? took : took == n;
}

/* Hand over the next cmds, one where it is. 1: the nic has taken them; 0: not all; or what it says of
 * the first. */
static int post_next(struct weft__link *link)
{
    const struct weft__wr *wr = wr_at(link->unposted);
    if (wr->in_link.next != &link->wrs || wr->ncmds > 1)
        return post_several(link);
    int took = post(link, &wr->cmd, 1);
    if (took > 0)
        link->unposted = &link->wrs;
    return took;
}

/* Hand over as much as the nic takes. True if nothing is left to hand over. */
static inline bool flush(struct weft__link *link)
{
    while (link->unposted != &link->wrs && link->tl) {
        int rc = post_next(link);
        if (rc == 0)
            return false;
        if (rc == WEFT_ELINK)
            return true; /* LINK_DOWN is on its way, and ends them */
        if (rc < 0)
            refuse(link, rc);
    }
    return true;
}

static void stall(struct weft__link *link)
{
    if (link->stalled)
        return;
    link->stalled = true;
    link->stalled_next = link->lane->stalled;
    link->lane->stalled = link;
}

static inline void flush_or_stall(struct weft__link *link)
{
    if (!flush(link))
        stall(link);
}

/* Links that the nic had no room for, once more. */
static void flush_stalled(struct weft__lane *lane)
{
    struct weft__link *list = lane->stalled;
    lane->stalled = NULL;
    while (list) {
        struct weft__link *link = list;
        list = link->stalled_next;
        link->stalled = false;
        flush_or_stall(link);
    }
}

static void unstall(struct weft__link *link)
{
    struct weft__link **at = &link->lane->stalled;
    while (*at && *at != link)
        at = &(*at)->stalled_next;
    if (*at)
        *at = link->stalled_next;
    link->stalled = false;
}

static bool is_inside(struct weft__link *link)
{
    struct weft__endpoint *ep = link->lane->endpoint;
    pthread_mutex_lock(&ep->lock);
    bool inside = link->inside > 0;
    pthread_mutex_unlock(&ep->lock);
    return inside;
}

/* Does the peer copy from or to memory of this end? link_close would wait for it, with the lane in hand. */
static bool is_entered(struct weft__link *link)
{
    if (!link->tl || !link->lane->nic->attr.enters)
        return false;
    const struct weft_transport_ops *ops = link->lane->nic->transport->ops;
    uint64_t now = weft_now();
    if (!link->emptying)
        link->emptying = now;
    if (now - link->emptying >= ENTERED_NS)
        return false;
    if (!link->last_turn)
        ops->link_recall(link->tl, 1);
    link->last_turn = true;
    return !ops->link_recalled(link->tl);
}

/* Close the transport's link; what it had not completed is orphaned. False if it has to be tried again. */
static bool do_close(struct weft__link *link)
{
    struct weft__endpoint *ep = link->lane->endpoint;
    if (is_inside(link) || is_entered(link))
        return false;
    if (link->tl) {
        link->tl->nic->transport->ops->link_close(link->tl);
        link->tl = NULL;
    }
    unstall(link);
    pthread_mutex_lock(&ep->lock);
    while (link->wrs.next != &link->wrs) {
        struct weft__wr *wr = wr_at(link->wrs.next);
        disown(wr);
        wr->kind == WEFT__WR_DATA ? weft__stripe_orphan(wr) : weft__msg_orphan(wr);
    }
    link->unposted = &link->wrs;
    weft__link_closed(link);
    pthread_mutex_unlock(&ep->lock);
    return true;
}

/* Returns false if it has to be tried again. */
static bool do_dereg(struct weft__lane *lane, struct weft__work *work)
{
    struct weft__reg *reg = (struct weft__reg *)((char *)work - offsetof(struct weft__reg, on) -
                                                 (size_t)lane->index * sizeof reg->on[0]);
    if (reg->on[lane->index].registered &&
        lane->nic->transport->ops->mem_dereg(lane->nic, reg->on[lane->index].handle.mem) ==
            WEFT_EAGAIN)
        return false;
    struct weft__endpoint *ep = lane->endpoint;
    pthread_mutex_lock(&ep->lock);
    weft__reg_lane_done(reg);
    pthread_mutex_unlock(&ep->lock);
    return true;
}

/* What is not a cmd. False if it has to be tried again. */
static bool do_once(struct weft__lane *lane, struct weft__work *work)
{
    switch (work->kind) {
    case WEFT__WORK_CLOSE:
        return do_close((struct weft__link *)work);
    case WEFT__WORK_RECALL:
        return weft__ipc_recall(work);
    default:
        return do_dereg(lane, work);
    }
}

static void retry(struct weft__lane *lane, struct weft__work *work)
{
    work->next = lane->retry;
    lane->retry = work;
}

static void do_retries(struct weft__lane *lane)
{
    struct weft__work *list = lane->retry;
    lane->retry = NULL;
    while (list) {
        struct weft__work *work = list;
        list = work->next;
        if (!do_once(lane, work))
            retry(lane, work);
    }
}

static WEFT__APART void do_other(struct weft__lane *lane, struct weft__work *work)
{
    if (do_once(lane, work))
        return;
    if (!lane->retry)
        lane->retry_since = weft_now();
    retry(lane, work);
}

static void note_bulk(struct weft__lane *lane)
{
    bool bulk = lane->nic->bulk;
    if (bulk != atomic_load_explicit(&lane->bulk, memory_order_relaxed))
        atomic_store_explicit(&lane->bulk, bulk, memory_order_relaxed);
}

/* Do work that was taken: cmds of one link in a row go to the nic together. Returns how much there
 * was. */
static int run(struct weft__lane *lane, struct weft__work *list)
{
    int n = 0;
    for (struct weft__work *next; list; list = next, n++) {
        next = list->next;
        if (WEFT_UNLIKELY(list->kind != WEFT__WORK_POST)) {
            do_other(lane, list);
            continue;
        }
        struct weft__link *link = ((struct weft__wr *)list)->link;
        enqueue(link, (struct weft__wr *)list);
        if (!next || next->kind != WEFT__WORK_POST || ((struct weft__wr *)next)->link != link)
            flush_or_stall(link);
    }
    note_bulk(lane);
    return n;
}

/* Do what was pushed. Lane lock held. Returns how much there was. */
static inline WEFT__INLINE int drain(struct weft__lane *lane)
{
    int n = 0;
    while (WEFT_UNLIKELY(atomic_load(&lane->waiting))) {
        pthread_mutex_lock(&lane->endpoint->lock);
        struct weft__work *list = take(lane);
        pthread_mutex_unlock(&lane->endpoint->lock);
        n += run(lane, list);
    }
    return n;
}

static void cmd_ended(const struct weft_comp *comp)
{
    uint32_t nth;
    struct weft__wr *wr = weft__wr_of(comp->ctx, &nth);
    if (comp->status < 0 && wr->kind == WEFT__WR_DATA)
        weft__stripe_failed(wr, nth, comp->status, comp->data);
    if (--wr->left == 0)
        wr_end(wr, comp);
}

static void dispatch(struct weft__lane *lane, const struct weft_comp *comp)
{
    if (comp->ctx) {
        cmd_ended(comp);
    } else if (WEFT_LIKELY(comp->op == WEFT_OP_RECV)) {
        weft__msg_arrived(comp->link->user, comp->data, comp->len);
        if (lane->nic->attr.rx_scatter)
            lane->nic->transport->ops->rx_release(lane->nic, comp);
    } else if (comp->op == WEFT_OP_LINK_DOWN) {
        weft__link_lost(comp->link->user, comp->status, comp->data);
    } /* else: an immediate, which the endpoint does not use */
}

/* The nic is gone: so are all its links. Endpoint lock held. */
static void lane_lost(struct weft__lane *lane, int status)
{
    if (lane->lost)
        return;
    lane->lost = status;
    weft_log(WEFT_LOG_ERROR, lane->transport->name, "%s: lost: %s", lane->device,
             weft_last_error());
    for (struct weft__conn *conn = lane->endpoint->conns; conn; conn = conn->next)
        for (int i = 0; i < conn->nlinks; i++)
            if (conn->links[i]->lane == lane)
                weft__link_lost(conn->links[i], status, NULL);
}

/* Who has one nic has nothing else to look at. */
static inline WEFT__INLINE int ask(struct weft__lane *lane, struct weft_comp comps[BATCH])
{
    int most = lane->nic->attr.quick_poll && lane->endpoint->nlanes == 1 ? QUICK_POLLS : 1, n = 0;
    for (int i = 0; n == 0 && i < most; i++)
        n = lane->nic->transport->ops->poll(lane->nic, comps, BATCH);
    return n;
}

static inline WEFT__INLINE int poll_once(struct weft__lane *lane)
{
    struct weft_comp comps[BATCH];
    if (WEFT_UNLIKELY(lane->lost))
        return 0;
    int n = ask(lane, comps);
    note_bulk(lane);
    if (n == 0)
        return 0;
    pthread_mutex_lock(&lane->endpoint->lock);
    lane->held = true;
    if (WEFT_UNLIKELY(n < 0))
        lane_lost(lane, n);
    for (int i = 0; i < n; i++)
        dispatch(lane, &comps[i]);
    lane->held = false;
    struct weft__work *list = take(lane);
    pthread_mutex_unlock(&lane->endpoint->lock);
    if (list)
        run(lane, list);
    return n < 0 ? 1 : n;
}

/* Work may have been pushed for lanes whose locks we do not hold. */
static void kick_others(struct weft__lane *self)
{
    struct weft__endpoint *ep = self->endpoint;
    for (int i = 0; i < ep->nlanes; i++)
        if (ep->lanes[i] != self && atomic_load(&ep->lanes[i]->waiting))
            weft__lane_kick(ep->lanes[i]);
}

static inline WEFT__INLINE int progress_locked(struct weft__lane *lane)
{
    int n = drain(lane);
    if (WEFT_UNLIKELY(lane->stalled))
        flush_stalled(lane);
    int polled = poll_once(lane);
    if (WEFT_UNLIKELY(lane->retry))
        do_retries(lane);
    if (polled) {
        drain(lane);
        if (WEFT_UNLIKELY(lane->stalled))
            flush_stalled(lane);
    }
    return n + polled;
}

/* One writer at a time: no need to pay for more. */
static void count_event(struct weft__lane *lane)
{
    uint64_t events = atomic_load_explicit(&lane->events, memory_order_relaxed);
    atomic_store_explicit(&lane->events, events + 1, memory_order_relaxed);
}

int weft__lane_progress(struct weft__lane *lane)
{
    int n = 0;
    do {
        if (pthread_mutex_trylock(&lane->lock))
            return n;
        n += progress_locked(lane);
        if (n)
            count_event(lane);
        pthread_mutex_unlock(&lane->lock);
        /* pushed while we held the lock, by someone whose trylock failed */
    } while (atomic_load(&lane->waiting));
    if (n && lane->endpoint->nlanes > 1)
        kick_others(lane);
    return n;
}

/* With several threads what is long is for the lane's own: one hand in two lanes makes one of them wait. Lane lock held. */
static bool is_left(const struct weft__lane *lane)
{
    return lane->endpoint->nthreads > 1 && lane->nic->bulk;
}

/* Who sleeps on the nic's descriptor armed it before this work was there: go on in its place.
 * Lane lock held. */
static void stand_in(struct weft__lane *lane)
{
    for (int i = 0; i < 4 && !is_left(lane) && progress_locked(lane); i++)
        ;
    if (lane->stalled || lane->retry || atomic_load(&lane->endpoint->tells) ||
        atomic_load(&lane->endpoint->hears) ||
        lane->nic->transport->ops->wait_fd(lane->nic) == WEFT_EAGAIN)
        weft__wake_lane(lane->endpoint, lane->index);
}

void weft__lane_kick(struct weft__lane *lane)
{
    while (atomic_load(&lane->waiting)) {
        if (pthread_mutex_trylock(&lane->lock))
            return;
        drain(lane);
        if (atomic_load(&lane->sleeping))
            stand_in(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    if (lane->endpoint->nlanes > 1)
        kick_others(lane);
    weft__copier_kick(lane->endpoint, &lane->endpoint->copier);
}

struct weft__lane *weft__post_lock(struct weft__conn *conn, bool more)
{
    struct weft__lane *lane = more ? NULL
                                   : atomic_load_explicit(&conn->home, memory_order_acquire);
    if (lane && pthread_mutex_trylock(&lane->lock))
        lane = NULL;
    pthread_mutex_lock(&conn->ep->lock);
    if (lane)
        lane->held = true;
    return lane;
}

/* May what was posted with the promise of more wait for it? Who does not keep the promise waits no longer
 * than until there is this much of it. Endpoint lock held. */
static bool may_wait(const struct weft__conn *conn)
{
    for (int i = 0; i < conn->nlinks; i++)
        if (conn->links[i]->up && conn->links[i]->lane->nqueued >= BATCH)
            return false;
    return conn->lanes != 0;
}

void weft__post_unlock(struct weft__conn *conn, struct weft__lane *lane, bool more)
{
    struct weft__endpoint *ep = conn->ep;
    struct weft__work *list = NULL;
    if (lane) {
        lane->held = false;
        list = take(lane);
    } else {
        more = more && may_wait(conn);
    }
    pthread_mutex_unlock(&ep->lock);
    if (lane) {
        run(lane, list);
        if (WEFT_UNLIKELY(atomic_load(&lane->sleeping)))
            stand_in(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    if (!more)
        weft__kick_all(ep);
}

/* Who sleeps on the nic's descriptor went to sleep before the nic was called: is there something to do
 * that the descriptor will not tell of? Lane lock held. */
static bool must_wake(struct weft__lane *lane)
{
    if (!atomic_load(&lane->sleeping))
        return false;
    return lane->stalled || lane->retry ||
           (!lane->lost && lane->nic->transport->ops->wait_fd(lane->nic) == WEFT_EAGAIN);
}

void weft__lane_rearm(struct weft__lane *lane)
{
    if (WEFT_LIKELY(!atomic_load(&lane->sleeping)) || pthread_mutex_trylock(&lane->lock))
        return;
    bool wake = must_wake(lane);
    pthread_mutex_unlock(&lane->lock);
    if (wake)
        weft__wake_lane(lane->endpoint, lane->index);
    weft__lane_kick(lane); /* for those whose trylock failed */
}

void weft__lane_lock(struct weft__lane *lane)
{
    pthread_mutex_lock(&lane->lock);
}

void weft__lane_unlock(struct weft__lane *lane)
{
    bool wake = must_wake(lane); /* a link may be up now, on which no one waits for the peer */
    pthread_mutex_unlock(&lane->lock);
    if (wake)
        weft__wake_lane(lane->endpoint, lane->index);
    weft__lane_kick(lane); /* for those whose trylock failed */
}

int weft__lane_arm(struct weft__lane *lane)
{
    int rc = WEFT_EAGAIN;
    /* before the look at the queue: pairs with kick, which pushes before it looks at sleeping */
    atomic_fetch_add(&lane->sleeping, 1);
    int busy = pthread_mutex_trylock(&lane->lock);
    /* who copies holds it for long: to look again and again would slow it down */
    if (busy && atomic_load_explicit(&lane->bulk, memory_order_relaxed))
        busy = pthread_mutex_lock(&lane->lock);
    if (!busy) {
        /* what is stalled goes after a poll, and no descriptor tells of it */
        bool stuck = lane->retry && weft_now() - lane->retry_since > STUCK_NS;
        if (lane->lost || (stuck && !atomic_load(&lane->waiting) && !lane->stalled))
            rc = -1; /* looked at again and again */
        else if (!atomic_load(&lane->waiting) && !lane->stalled && !lane->retry)
            rc = lane->nic->transport->ops->wait_fd(lane->nic);
        pthread_mutex_unlock(&lane->lock);
        if (atomic_load(&lane->waiting)) /* pushed meanwhile, by someone whose trylock failed */
            rc = WEFT_EAGAIN;
    }
    if (rc == WEFT_EAGAIN)
        weft__lane_disarm(lane);
    return rc >= 0 ? rc : rc == WEFT_EAGAIN ? WEFT_EAGAIN : -1;
}
