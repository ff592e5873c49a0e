/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll and wait_fd: which links are looked at, and when the sockets are.
 *
 * Poll looks at the rings of active links only. A link that was quiet for a while is put to sleep:
 * it leaves the list, and its flag in shared memory asks the peer for a wake-up packet with the
 * next entry. So thousands of quiet links cost nothing, and a busy one costs no system call.
 */
#include "local.h"

#include <string.h>

/* How long a link stays in the list without traffic: long against a round trip, short against
 * what a person notices. */
#define QUIET_NS 2000000u
/* The sockets are looked at this often while polling: a system call in 20 us is 2 %. */
#define SOCKETS_NS 20000u
/* The clock is read this often while there is traffic; without traffic, in every poll. */
#define CLOCK_POLLS 16
/* What an entry costs beside its bytes, in bytes: a poll does bounded work on small ones too. */
#define ENTRY_COST 256
/*
 * If a poll took so many entries, and nothing came of them for the caller, the next one rests for so long first. Who writes has to take
 * the lines back that each look takes away, so looks are not to find one entry each. 64-byte writes, 64 under way, with this and a
 * moment's rest after a look in vain: 2.2 to 3.2 million a second instead of 2.0 to 2.2 on 16 processors of an Intel Xeon, 3 to 5 % more on 2
 * cores of an AMD EPYC; half a round trip 0.84 to 0.91 us instead of 0.99 to 1.07, and as before. From four entries on it was a fifth
 * fewer of 4 under way on the AMD EPYC (2026-11-29, bench/paired).
 */
#define GATHER_FROM 5
#define GATHER_NS 600u
/* Room is given back to the producer when so much of the ring was read: it need not wait for the
 * end of this poll. */
#define RELEASE_PART 4

/* --- one link ------------------------------------------------------------------------------- */

static int dispatch(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                    struct local_sink *sink)
{
    uint64_t len = head->len - sizeof *head;
    switch (head->type) {
    case LOCAL_CMD:
        return local_serve_cmd(link, head, body, len, sink);
    case LOCAL_WRITE:
        return local_serve_write(link, head, body, len);
    case LOCAL_SEND:
        return local_serve_send(link, head, body, len, sink);
    case LOCAL_TO_TARGET:
        return local_serve_piece(link, head, body, len, sink);
    case LOCAL_TO_INITIATOR:
        return local_post_piece(link, head, body, len);
    case LOCAL_ACKS:
        return local_post_acks(link, body, len);
    case LOCAL_ANSWER:
        return local_post_answer(link, head->slot, body, len);
    case LOCAL_OFFER:
        return local_help_offered(link, head->slot, body, len);
    case LOCAL_HELPED: /* it has woken us, and progress looks for itself */
        return 0;
    default:
        return WEFT_EPROTO;
    }
}

/* Take entries while there are some, and room for the comp that each may give. Returns how many,
 * or WEFT_EPROTO. */
static int take_entries(struct local_link *link, struct local_sink *sink)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    struct local_entry head;
    const uint8_t *body;
    int taken = 0, rc = 0;
    bool wake = false;
    while (sink->n < sink->max && nic->budget > 0 &&
           (rc = local_ring_peek(&link->rx, &head, &body)) > 0) {
        rc = dispatch(link, &head, body, sink);
        if (rc)
            break;
        local_ring_advance(&link->rx, &head);
        nic->budget -= head.len + ENTRY_COST;
        taken++;
        if (link->rx.head - link->rx.released > link->rx.size / RELEASE_PART)
            wake |= local_ring_release(&link->rx);
        local_post_comps(link, sink);
    }
    nic->taken += taken;
    wake |= local_ring_release(&link->rx);
    if (wake)
        local_wake(link);
    return rc < 0 ? rc : taken;
}

/* The peer is gone: once all is taken that it left, say so. */
static void end_link(struct local_link *link, struct local_sink *sink)
{
    struct local_entry head;
    const uint8_t *body;
    if (sink->n == sink->max || link->done.count || local_ring_peek(&link->rx, &head, &body) > 0)
        return;
    sink->comps[sink->n++] = (struct weft_comp){
        .link = &link->base, .op = WEFT_OP_LINK_DOWN, .status = link->status};
    link->state = LOCAL_DOWN;
    local_link_deactivate(link);
}

/* All that poll does for a link. */
static void advance_link(struct local_link *link, struct local_sink *sink)
{
    struct local_nic *nic = (struct local_nic *)link->base.nic;
    local_post_comps(link, sink);
    int taken = take_entries(link, sink);
    if (taken < 0 || link->tx.broken) {
        weft_log(WEFT_LOG_WARN, "local", "peer %d broke the protocol: its link is cut",
                 (int)link->pid);
        local_link_lost(link, WEFT_EPROTO);
    }
    if (link->state == LOCAL_ENDING) {
        end_link(link, sink);
        return;
    }
    link->starved = false;
    local_serve_progress(link, sink);
    local_post_progress(link);
    local_help_progress(link);
    local_post_comps(link, sink);
    if (local_ring_publish(&link->tx))
        local_wake(link);
    if (taken || link->running.count || link->nfree < LOCAL_DEPTH)
        link->busy_at = nic->now;
}

/* --- sleeping links ------------------------------------------------------------------------- */

/* Make the peer wake us when there is something for this link. False: there is already. */
static bool put_to_sleep(struct local_link *link)
{
    if (link->state != LOCAL_UP || link->done.count || link->copying || local_help_ready(link) ||
        local_share_ready(link))
        return false;
    /* what waits for room waits for the peer; without, it can go on */
    bool waiting = link->sending.count || link->running.count || link->ended.count ||
                   link->help.tell;
    if (waiting && !link->starved)
        return false;
    if (link->starved && !local_ring_starve(&link->tx))
        return false;
    if (!local_ring_sleep(&link->rx))
        return false;
    local_link_deactivate(link);
    return true;
}

static bool quiet(const struct local_nic *nic, const struct local_link *link)
{
    return nic->now - link->busy_at > QUIET_NS;
}

/* --- the nic -------------------------------------------------------------------------------- */

static void look_at_sockets(struct local_nic *nic, bool had_traffic)
{
    if (!nic->armed && had_traffic && nic->polls++ % CLOCK_POLLS)
        return;
    nic->now = weft_now();
    if (!nic->armed && nic->now - nic->sockets_at < SOCKETS_NS)
        return;
    nic->armed = false;
    nic->sockets_at = nic->now;
    local_sockets_progress(nic);
}

/* Who has just looked in vain leaves the lines to the peer, who is about to write to them, for a moment; and for longer, to let
 * what is being written gather, if there is much of it and this end only takes it. */
static void make_way(const struct local_nic *nic)
{
    if (nic->gave)
        return;
    if (nic->taken >= GATHER_FROM)
        weft_rest(GATHER_NS);
    else
        weft_relax();
}

int local_poll(struct weft_nic *base, struct weft_comp *comps, int max)
{
    struct local_nic *nic = (struct local_nic *)base;
    struct local_sink sink = {.comps = comps, .max = max};
    make_way(nic);
    look_at_sockets(nic, nic->budget < LOCAL_POLL_BYTES);
    nic->budget = LOCAL_POLL_BYTES;
    nic->taken = 0;
    nic->arena_used = 0;
    /* each poll begins with the next link, so that the first ones do not take all the room */
    uint32_t n = nic->nactive, at = nic->next_active++;
    for (uint32_t i = 0; i < n && nic->nactive && sink.n < max; i++) {
        struct local_link *link = nic->active[(at + i) % nic->nactive];
        advance_link(link, &sink);
        if (quiet(nic, link))
            put_to_sleep(link);
    }
    nic->gave = sink.n > 0;
    return sink.n;
}

int local_wait_fd(struct weft_nic *base)
{
    struct local_nic *nic = (struct local_nic *)base;
    for (uint32_t i = nic->nactive; i-- > 0;)
        if (!put_to_sleep(nic->active[i]))
            return WEFT_EAGAIN;
    nic->armed = true;
    return nic->epoll;
}
