/* SPDX-License-Identifier: Apache-2.0 */
/* One thread's part of one size: the loop, and what it does in each turn. */
#include "perf_run.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "perf_fail.h"

/* Turns between looks at the clock, the stop flag and the control conn: some microseconds. */
#define LOOK_EVERY 64
/* Turns in a row in which nothing happened between looks at the clock (a turn takes from 50 ns, shared
 * memory, to 1 us, sockets), and for how long nothing has to happen before the core is offered to others
 * at each look: longer than an answer takes, so that a ping-pong keeps it; who polls and has a core of
 * its own loses its turn by a yield. More spinning threads than cores still get on. */
#define YIELD_EVERY 64
#define YIELD_AFTER_NS 500000
/* With progress threads: how long one turn sleeps for an operation. */
#define SLEEP_MS 1
/* Operations of so many bytes are taken in the order in which they end: lanes and conns do not end theirs in turn, and to wait for
 * the first would leave fewer under way than were asked for. So many others are asked in vain in a turn: to ask takes a turn of the
 * endpoint each. */
#define ANY_ORDER_FROM ((uint64_t)64 << 10)
#define ASK_OTHERS 4

/* The target gives up later than the initiator, which knows more, and tells it why. */
#define LATER_NS 3000000000u

static const enum weft_xfer_op xfer_ops[PERF_TESTS] = {
    WEFT_XFER_WRITE, WEFT_XFER_READ, WEFT_XFER_SEND, WEFT_XFER_NOTIFY, WEFT_XFER_ADD,
    WEFT_XFER_WRITE, /* and reads by slots with odd numbers */
};

/* Slots whose operations fetch what the peer has. */
static enum perf_contents fetched(const struct perf_worker *w)
{
    return w->run.test == PERF_READ ? PERF_DATA : w->run.test == PERF_RW ? PERF_ODD : PERF_BLANK;
}

bool perf_active(const struct perf_worker *w)
{
    return w->initiator || w->run.bidir || w->run.pingpong;
}

bool perf_passive(const struct perf_worker *w)
{
    return !w->initiator || w->run.bidir || w->run.pingpong;
}

/* --- operations of this side --------------------------------------------------------------- */

/* i modulo n. To divide 64 bits takes a tenth of the time of a small operation. */
static uint32_t in_turn(uint64_t i, uint32_t n)
{
    return i <= UINT32_MAX ? (uint32_t)i % n : (uint32_t)(i % n);
}

static struct perf_slot *slot_at(const struct perf_worker *w, const struct perf_ring *ring,
                                 uint64_t i)
{
    return &ring->slots[ring->order[in_turn(i, w->run.layout.slots)]];
}

/* Writes and reads. */
static bool is_one_sided(const struct perf_worker *w)
{
    return w->run.test == PERF_WRITE || w->run.test == PERF_READ || w->run.test == PERF_RW;
}

/* What all operations of a run have in common. */
static struct weft_xfer xfer_template(const struct perf_worker *w)
{
    uint32_t pieces = w->run.test == PERF_ADD || w->run.test == PERF_NOTIFY ? 0
                                                                            : w->run.layout.iovs;
    return (struct weft_xfer){.struct_size = sizeof(struct weft_xfer),
                              .op = xfer_ops[w->run.test],
                              .nlocal = pieces,
                              .remote = w->remotes,
                              .nremote = is_one_sided(w)           ? pieces
                                         : w->run.test == PERF_ADD ? 1
                                                                   : 0};
}

static uint32_t slot_index(const struct perf_worker *w, const struct perf_slot *slot)
{
    return (uint32_t)(slot - w->mine.slots);
}

/* The conns take turns; with rw two operations each, one of each kind, as slots do. */
static weft_conn_t conn_of(const struct perf_worker *w, uint64_t i)
{
    return w->conns[in_turn(w->run.test == PERF_RW ? i / 2 : i, w->nconns)];
}

/* now: when the caller last looked at the clock, which costs as much as a small operation. */
static int post_mine(struct perf_worker *w, struct weft_xfer *xfer, uint64_t now, bool more)
{
    struct perf_slot *slot = slot_at(w, &w->mine, w->mine.posted);
    xfer->flags = more ? WEFT_XFER_MORE : 0;
    xfer->local = slot->local;
    xfer->remote_offset = slot->offset;
    if (w->run.test == PERF_NOTIFY) {
        xfer->notify = slot->local->addr;
        xfer->notify_len = slot->local->len;
    } else if (w->run.test == PERF_ADD) {
        xfer->value = perf_add_value(w->seed_mine, slot_index(w, slot));
        xfer->result = &slot->result;
    } else if (w->run.test == PERF_RW) {
        xfer->op = slot_index(w, slot) % 2 ? WEFT_XFER_READ : WEFT_XFER_WRITE;
    }
    slot->posted_at = now;
    slot->op = 0;
    bool injects = w->run.inject && w->run.layout.bytes * w->run.layout.iovs <= WEFT_INJECT;
    return weft_post(conn_of(w, w->mine.posted), xfer, injects ? NULL : &slot->op);
}

/* How many operations may have been posted by now. */
static uint64_t post_limit(const struct perf_worker *w)
{
    uint64_t limit = w->mine.done + w->run.layout.slots;
    if (w->run.pingpong) { /* the initiator begins, then each answers the other */
        uint64_t turn = w->arrived + (w->initiator ? 1 : 0);
        limit = turn < limit ? turn : limit;
    }
    return limit < w->run.iters ? limit : w->run.iters;
}

/* When operations are posted, that is now. The initiator of a ping-pong has looked at the clock as the answer
 * came; what the target notes of its own answers is not used. */
static uint64_t post_time(const struct perf_worker *w)
{
    return w->run.pingpong && w->mine.posted ? w->ended_ns : now_ns();
}

static int post_more(struct perf_worker *w)
{
    uint64_t limit = post_limit(w);
    if (w->mine.posted == limit)
        return 0;
    struct weft_xfer xfer = xfer_template(w);
    uint64_t now = post_time(w);
    while (w->mine.posted < limit) {
        int rc = post_mine(w, &xfer, now, w->mine.posted + 1 < limit);
        if (rc == WEFT_EAGAIN)
            return 0;
        if (rc < 0)
            return perf_fail("cannot post operation %" PRIu64 ": %s", w->mine.posted,
                             weft_last_error());
        if (w->mine.posted++ == 0)
            w->started_ns = w->mine.slots[0].posted_at;
    }
    return 0;
}

/* Has the op ended? 1, 0, or -1 after perf_fail. With progress threads it may sleep for it. */
static int op_ended(const struct perf_worker *w, weft_op_t op, bool sleeps, const char *what,
                    struct weft_op_status *status)
{
    int rc;
    if (w->sleep_ms) {
        rc = weft_op_wait(op, sleeps ? w->sleep_ms : 0, status);
        rc = rc == 0 ? 1 : rc == WEFT_ETIMEOUT && status->status == WEFT_EAGAIN ? 0 : rc;
    } else {
        rc = weft_op_poll(op, status);
    }
    if (rc < 0)
        return perf_fail("%s failed: %s", what,
                         status->text[0] ? status->text : weft_strerror(rc));
    return rc;
}

/* The newest send of a ping-pong ends with the answer to it: it is not polled for before, since what
 * comes meanwhile is to be answered first. Unless there is but one slot, which the next one needs. */
static uint64_t may_have_ended(const struct perf_worker *w)
{
    bool answer_follows = w->run.pingpong && w->run.layout.slots > 1 && w->mine.posted &&
                          w->mine.posted < w->run.iters;
    return w->mine.posted - answer_follows;
}

/* Slots of writes and reads are alike, so that any may be used again; of additions each has its sum. */
static bool in_any_order(const struct perf_worker *w)
{
    return is_one_sided(w) && w->run.layout.bytes * w->run.layout.iovs >= ANY_ORDER_FROM;
}

/* Operation i has ended: its slot is the next to be used again, and the first one under way, if that is another, takes its place. */
static void take_mine(struct perf_worker *w, uint64_t i, uint64_t now)
{
    uint32_t *at = &w->mine.order[in_turn(i, w->run.layout.slots)];
    uint32_t *first = &w->mine.order[in_turn(w->mine.done, w->run.layout.slots)], slot = *at;
    *at = *first;
    *first = slot;
    if (!w->run.pingpong)
        perf_hist_add(&w->hist, now - w->mine.slots[slot].posted_at);
    if (++w->mine.done == w->run.iters)
        w->ended_ns = now;
}

/* Take operation i, if it has ended: 1, 0, or -1. now: 0, or when the caller last looked at the clock. */
static int collect_one(struct perf_worker *w, uint64_t i, bool sleeps, uint64_t *now)
{
    struct weft_op_status status = {0};
    const char *name = perf_test_name(w->run.test);
    uint64_t want = w->run.layout.bytes * w->run.layout.iovs;
    weft_op_t op = slot_at(w, &w->mine, i)->op;
    int rc = op ? op_ended(w, op, sleeps, name, &status) : 1;
    if (rc <= 0)
        return rc;
    if (is_one_sided(w) && status.bytes != want)
        return perf_fail("a %s of %" PRIu64 " bytes has moved %" PRIu64, name, want,
                         status.bytes);
    if (!*now || in_any_order(w)) /* short ones end many at a time */
        *now = now_ns();
    take_mine(w, i, *now);
    return 1;
}

/* Those that have ended, from the first on; then some of the others, in turn. */
static int collect_mine(struct perf_worker *w)
{
    uint64_t now = 0, *next = &w->mine.next;
    int rc = 1, vain = 0;
    while (rc > 0 && w->mine.done < may_have_ended(w))
        rc = collect_one(w, w->mine.done, now == 0, &now);
    while (rc >= 0 && in_any_order(w) && vain < ASK_OTHERS && w->mine.done + 1 < w->mine.posted) {
        if (*next <= w->mine.done || *next >= w->mine.posted)
            *next = w->mine.done + 1;
        rc = collect_one(w, (*next)++, false, &now);
        vain += rc == 0;
    }
    return rc < 0 ? -1 : 0;
}

/* --- operations of the peer ---------------------------------------------------------------- */

static int post_recv(struct perf_worker *w)
{
    struct perf_slot *slot = slot_at(w, &w->recvs, w->recvs.posted);
    int rc = weft_post(w->conns[0],
                       WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = slot->local,
                                 .nlocal = w->run.layout.iovs),
                       &slot->op);
    if (rc < 0)
        return perf_fail("cannot post a receive: %s", weft_last_error());
    w->recvs.posted++;
    return 0;
}

static int collect_recvs(struct perf_worker *w)
{
    struct weft_op_status status = {0};
    uint64_t want = w->run.layout.bytes * w->run.layout.iovs;
    while (w->recvs.done < w->recvs.posted) {
        struct perf_slot *slot = slot_at(w, &w->recvs, w->recvs.done);
        int rc = op_ended(w, slot->op, true, "receive", &status);
        if (rc <= 0)
            return rc;
        w->wrong_length += status.bytes != want;
        if (w->run.pingpong && w->initiator) {
            w->ended_ns = now_ns();
            uint64_t round = w->ended_ns - slot_at(w, &w->mine, w->arrived)->posted_at;
            perf_hist_add(&w->hist, round / 2);
        }
        w->arrived++;
        w->recvs.done++;
        /* answer at once: before polling again, for what is owed rides on the answer, and before
         * the next receive is posted, which the peer does not need until it has answered */
        if (w->run.pingpong && post_more(w))
            return -1;
        if (w->recvs.posted < w->run.iters && post_recv(w))
            return -1;
        if (w->run.pingpong)
            return 0;
    }
    return 0;
}

/* The newest notification of each slot is kept for the check. */
static int collect_notifs(struct perf_worker *w)
{
    struct weft_notif notif;
    int rc;
    while ((rc = weft_endpoint_notif(w->endpoint, w->sleep_ms, &notif)) == 0) {
        if (notif.conn != w->conns[0]) { /* of a stranger */
            weft_notif_free(&notif);
            continue;
        }
        struct weft_notif *kept = &w->notifs[w->arrived++ % w->run.layout.slots];
        w->wrong_length += notif.len != w->run.layout.bytes;
        if (kept->data)
            weft_notif_free(kept);
        *kept = notif;
    }
    return rc == WEFT_ETIMEOUT ? 0 : perf_fail("no notification: %s", weft_last_error());
}

static int collect_arrivals(struct perf_worker *w)
{
    if (w->run.test == PERF_SEND)
        return collect_recvs(w);
    if (w->run.test == PERF_NOTIFY && perf_passive(w))
        return collect_notifs(w);
    return 0;
}

/* --- the loop ------------------------------------------------------------------------------ */

static bool mine_done(const struct perf_worker *w)
{
    if (w->run.pingpong)
        return w->mine.done == w->mine.posted && (!w->initiator || w->arrived == w->run.iters);
    return !perf_active(w) || w->mine.done == w->run.iters;
}

static bool all_done(const struct perf_worker *w)
{
    bool peer = w->peer_done || (w->initiator && !w->run.bidir);
    return peer && mine_done(w) && !w->behind.under_way;
}

static int look_at_control(struct perf_worker *w)
{
    struct perf_msg msg;
    int rc = perf_channel_poll(&w->channel, &msg);
    if (rc <= 0)
        return rc;
    if (msg.type != (w->initiator ? PERF_MSG_FINISHED : PERF_MSG_END))
        return perf_fail("the other side says '%s' in the middle of a run",
                         perf_msg_name(msg.type));
    w->peer_done = true;
    return 0;
}

/* What need not be done in every turn. */
static int look_around(struct perf_worker *w, uint64_t deadline)
{
    uint64_t now = now_ns();
    if (look_at_control(w))
        return -1;
    if (perf_stopped())
        return perf_fail_stopped();
    if (now > deadline)
        return perf_fail("not done after %d s: %" PRIu64 " of %" PRIu64 " operations",
                         w->run.timeout_s, w->initiator ? w->mine.done : w->arrived, w->run.iters);
    if (w->tell)
        w->tell(w, now);
    if (w->run.bidir && !w->initiator && !w->told_done && mine_done(w)) {
        w->told_done = true;
        return perf_channel_send(&w->channel, &(struct perf_msg){.type = PERF_MSG_FINISHED});
    }
    return 0;
}

/* An operation that is polled drives the endpoint. */
static bool polls_one(const struct perf_worker *w)
{
    return w->run.test == PERF_SEND && !w->sleep_ms && w->recvs.done < w->recvs.posted;
}

/* Let bytes move. Returns how much happened, or -1. */
static int turn(const struct perf_worker *w)
{
    if (polls_one(w))
        return 0;
    if (w->args->away && !perf_active(w)) {
        usleep(SLEEP_MS * 1000);
        return 1;
    }
    bool asleep_elsewhere = w->sleep_ms && (perf_active(w) || w->run.test == PERF_SEND ||
                                            w->run.test == PERF_NOTIFY);
    if (asleep_elsewhere)
        return 1;
    int rc = weft_endpoint_progress(w->endpoint, w->sleep_ms);
    return rc < 0 ? perf_fail("no progress: %s", weft_last_error()) : rc;
}

static int turn_behind(struct perf_worker *w)
{
    return w->behind.layout.bytes ? perf_behind_turn(w, !mine_done(w)) : 0;
}

struct idle {
    uint32_t turns; /* in which nothing happened */
    uint64_t since; /* about; 0: not looked */
};

static void offer_core(const struct perf_worker *w, struct idle *idle)
{
    if (w->args->progress_threads || w->crowded) {
        sched_yield();
    } else if (++idle->turns % YIELD_EVERY == 0) {
        uint64_t now = now_ns();
        if (!idle->since)
            idle->since = now;
        else if (now - idle->since >= YIELD_AFTER_NS)
            sched_yield();
    }
}

int perf_run_drive(struct perf_worker *w)
{
    uint64_t deadline = now_ns() + (uint64_t)w->run.timeout_s * 1000000000;
    if (!w->initiator)
        deadline += LATER_NS;
    struct idle idle = {0};
    for (uint32_t n = 1;; n++) {
        if (perf_active(w) && (turn_behind(w) || post_more(w)))
            return -1;
        uint64_t ended = w->arrived + w->mine.done;
        int happened = turn(w);
        /* arrivals first: in a ping-pong the peer waits for the answer */
        if (happened < 0 || collect_arrivals(w) || collect_mine(w))
            return -1;
        if ((w->sleep_ms || n % LOOK_EVERY == 0) && look_around(w, deadline))
            return -1;
        if (all_done(w))
            return 0;
        if (happened || w->arrived + w->mine.done != ended)
            idle = (struct idle){0};
        else
            offer_core(w, &idle);
    }
}

int perf_run_arrivals(struct perf_worker *w)
{
    return turn(w) < 0 || collect_arrivals(w) ? -1 : 0;
}

/* --- before and after ---------------------------------------------------------------------- */

static int ring_open(const struct perf_worker *w, struct perf_ring *ring,
                     const struct perf_region *region)
{
    const struct perf_layout *l = &w->run.layout;
    uint64_t pieces = (uint64_t)l->slots * l->iovs;
    *ring = (struct perf_ring){.slots = calloc(l->slots, sizeof *ring->slots),
                               .order = calloc(l->slots, sizeof *ring->order),
                               .locals = calloc(pieces, sizeof *ring->locals),
                               .offsets = calloc(pieces, sizeof *ring->offsets)};
    if (!ring->slots || !ring->order || !ring->locals || !ring->offsets)
        return perf_fail("no memory for %" PRIu64 " pieces", pieces);
    for (uint64_t i = 0; i < pieces; i++) {
        ring->offsets[i] = perf_layout_offset(l, (uint32_t)(i / l->iovs), (uint32_t)(i % l->iovs));
        ring->locals[i] = (struct weft_local){
            .addr = region->addr + ring->offsets[i], .len = l->bytes, .mem = region->mem};
    }
    for (uint32_t i = 0; i < l->slots; i++) {
        ring->order[i] = i;
        ring->slots[i].local = ring->locals + (uint64_t)i * l->iovs;
        ring->slots[i].offset = ring->offsets + (uint64_t)i * l->iovs;
    }
    return 0;
}

static void ring_close(struct perf_ring *ring)
{
    free(ring->slots);
    free(ring->order);
    free(ring->locals);
    free(ring->offsets);
    *ring = (struct perf_ring){0};
}

static int prepare_mine(struct perf_worker *w)
{
    if (ring_open(w, &w->mine, &w->out))
        return -1;
    if (!w->run.verify || w->run.test == PERF_ADD)
        return 0;
    return perf_region_fill(&w->out, &w->run.layout, w->seed_mine, PERF_DATA & ~fetched(w));
}

static int prepare_words(struct perf_worker *w)
{
    for (uint32_t i = 0; i < w->run.layout.slots; i++)
        if (perf_word_put(&w->in, &w->run.layout, i, perf_add_start(w->seed_theirs, i)))
            return -1;
    return 0;
}

static int prepare_theirs(struct perf_worker *w)
{
    if (w->run.test == PERF_NOTIFY) {
        w->notifs = calloc(w->run.layout.slots, sizeof *w->notifs);
        return w->notifs ? 0 : perf_fail("no memory for notifications");
    }
    if (w->run.test == PERF_ADD)
        return prepare_words(w);
    if (w->run.verify && perf_region_fill(&w->in, &w->run.layout, w->seed_theirs, fetched(w)))
        return -1;
    if (w->run.test != PERF_SEND)
        return 0;
    if (ring_open(w, &w->recvs, &w->in))
        return -1;
    while (w->recvs.posted < w->run.layout.slots && w->recvs.posted < w->run.iters)
        if (post_recv(w))
            return -1;
    return 0;
}

/* The nic does all that this side has to do: whoever polled would but take the processor from others. */
static bool nic_serves(const struct perf_worker *w)
{
    struct weft_conn_info info;
    struct weft_nic_attr attr;
    return is_one_sided(w) && !perf_active(w) && weft_conn_info(w->conns[0], &info) == 0 &&
           weft_device_attr(info.transport, NULL, &attr) == 0 && !attr.target_progress;
}

int perf_run_prepare(struct perf_worker *w, const struct perf_run *run)
{
    uint64_t other = ~run->seed; /* contents of the two directions differ */
    w->run = *run;
    w->seed_mine = w->initiator ? run->seed : other;
    w->seed_theirs = w->initiator ? other : run->seed;
    w->arrived = w->wrong_length = w->started_ns = w->ended_ns = 0;
    w->peer_done = w->told_done = false;
    /* Both directions at once, or answers: sleeping for one would hold up the other. */
    bool one_way = !run->bidir && !run->pingpong;
    w->crowded = w->args->threads > 1 && 2 * (long)w->args->threads > sysconf(_SC_NPROCESSORS_ONLN);
    w->sleep_ms = one_way && (w->args->progress_threads || nic_serves(w)) ? SLEEP_MS : 0;
    perf_hist_clear(&w->hist);
    if (perf_behind_prepare(w))
        return -1;
    if (perf_active(w) && prepare_mine(w))
        return -1;
    return perf_passive(w) ? prepare_theirs(w) : 0;
}

int perf_run_aim(struct perf_worker *w, const struct perf_msg *msg)
{
    struct weft_remote remote;
    struct weft_remote_info info;
    if (!perf_active(w))
        return 0;
    if (msg->blob_len != (w->behind.layout.bytes ? 2 : 1) * sizeof remote)
        return perf_fail("the other side has sent no description of its memory");
    memcpy(&remote, msg->blob, sizeof remote);
    if (weft_remote_parse(&remote, &info) || info.len < perf_layout_size(&w->run.layout))
        return perf_fail("the other side's memory does not fit the run");
    if (w->behind.layout.bytes)
        memcpy(&w->behind.remote, msg->blob + sizeof remote, sizeof remote);
    w->remotes = calloc(w->run.layout.iovs, sizeof *w->remotes);
    if (!w->remotes)
        return perf_fail("no memory for %u pieces", w->run.layout.iovs);
    for (uint32_t i = 0; i < w->run.layout.iovs; i++)
        w->remotes[i] = remote;
    return 0;
}

void perf_run_finish(struct perf_worker *w)
{
    for (uint32_t i = 0; w->notifs && i < w->run.layout.slots; i++)
        if (w->notifs[i].data)
            weft_notif_free(&w->notifs[i]);
    free(w->notifs);
    free(w->remotes);
    w->notifs = NULL;
    w->remotes = NULL;
    ring_close(&w->mine);
    ring_close(&w->recvs);
}
