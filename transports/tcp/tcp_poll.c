/* SPDX-License-Identifier: Apache-2.0 */
/* Poll: who is read and when, who may send, what has ended; and the descriptor that who sleeps waits for. */
#include "tcp.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Bytes that one poll may receive, and as many that it may send. */
#define POLL_BYTES (1024 * 1024)
#define EVENTS 64
/* While sockets are hot, epoll is asked in every n-th poll: a system call that mostly says no. The
 * more often it has told of nothing but them, the less often, up to some 50 us: so who is not hot waits at most as long
 * again as it has been silent. */
#define QUIET_MOST 128 /* and TCP_QUIET_LEAST at first */
/* A hot socket that had nothing in so many polls in a row is not hot any more. */
#define HOT_MISSES 200
/* If more than TCP_HOT sockets had something in so many polls that found any, none is hot: epoll tells of all of them by
 * one system call, where the hot ones would be asked in vain, one by one, while the others wait. */
#define CROWD_POLLS 64
/*
 * A hot socket that had something in so many polls while nobody slept is taken out of epoll's set until someone is
 * about to sleep: else each arrival queues an event, on the processor of who sends and with the socket locked, that nobody
 * asks for. Half a round trip of plain sockets that spin is 3.80 us without and 3.98 us with (2026-11-24, 2 cores of an AMD EPYC).
 */
#define HITS 64
/*
 * Looks at such a socket in one poll, and the rest between two of them. What comes while the socket is being looked at is queued by the
 * kernel until the look, which has found nothing, lets go of it; the next one finds it, 0.8 us later than one that has to
 * wait for the kernel's work on it, which takes some 1.5 us. So looks are to be rare, and one is to begin in those 1.5 us. Half a round
 * trip is 2 % shorter than with three in a row on 2 cores of an AMD EPYC, and no different on 16 processors of an Intel Xeon
 * (2026-11-29, bench/paired).
 */
#define LOOKS 4
#define REST_NS 1000u
/*
 * Who polls all the time tries a full socket again in every n-th poll, of a few links: epoll tells of room only when a third of the
 * buffer is free, and bytes that leave sooner are read sooner, while they are in a cache. Writes of 64 MiB over loopback: 6.0
 * GB/s with it, 5.5 without, plain sockets 5.8 (2026-11-24, 2 cores of an AMD EPYC; in every poll it was no better).
 */
#define RETRY_POLLS 4
#define RETRY_LINKS 8
/* Polls between looks at the clock while a peer's kernel owes something: a nanosecond or two of each. Not more, since some
 * poll once in 100 ms and never sleep. */
#define CLOCK_POLLS 16

/* --- what has ended ------------------------------------------------------------------------------- */

static void hand_out_op(struct tcp_poll *poll)
{
    struct tcp_op *op = tcp_queue_pop(&poll->nic->done);
    op->link->posted--;
    poll->comps[poll->n++] = (struct weft_comp){
        .ctx = op->ctx,
        .link = &op->link->base,
        .op = op->op,
        .status = op->status,
        .value = op->op == WEFT_OP_ADD64 ? op->value : 0,
        .len = op->status == 0 ? op->len : 0,
    };
    tcp_op_forget(op);
}

/* Links die after what they completed. */
static void hand_out_down(struct tcp_poll *poll)
{
    for (struct tcp_link *link = poll->nic->links; link; link = link->next) {
        if (WEFT_LIKELY(poll->nic->ndown == 0) || poll->n == poll->max)
            return;
        if (!link->down_due)
            continue;
        link->down_due = false;
        poll->nic->ndown--;
        poll->comps[poll->n++] = (struct weft_comp){
            .link = &link->base, .op = WEFT_OP_LINK_DOWN, .status = link->status};
    }
}

static void hand_out(struct tcp_poll *poll)
{
    while (poll->nic->done.head && poll->n < poll->max)
        hand_out_op(poll);
    hand_out_down(poll); /* if there is room left: then all that they completed has been handed out */
}

/* --- who sends ------------------------------------------------------------------------------------ */

/* Let links send, the one that has waited longest first. */
static void run_ready(struct tcp_nic *nic, int64_t budget)
{
    struct tcp_link *link = nic->ready, **tail = nic->ready_tail;
    nic->ready = NULL;
    nic->ready_tail = &nic->ready;
    while (link && budget > 0) {
        struct tcp_link *next = link->ready_next;
        int64_t turn = tcp_tx_turn(link), share = turn;
        link->ready = false;
        tcp_tx_run(link, &share);
        budget -= turn - share;
        link = next;
    }
    if (!link)
        return;
    *tail = nic->ready; /* the rest goes before those that have had a turn */
    if (!nic->ready)
        nic->ready_tail = tail;
    nic->ready = link;
}

/* --- hot sockets --------------------------------------------------------------------------------- */

static void make_hot(struct tcp_nic *nic, struct tcp_sock *sock)
{
    if (sock->hot || nic->crowd || nic->nhot == TCP_HOT || sock->state != TCP_JOINED)
        return;
    sock->hot = true;
    sock->misses = sock->hits = 0;
    nic->hot[nic->nhot++] = sock;
}

static void unwatch(struct tcp_nic *nic, struct tcp_sock *sock)
{
    sock->hits = 0;
    if (!sock->blocked && !sock->ending)
        sock->unwatched = tcp_watch(nic, EPOLL_CTL_DEL, sock->fd, 0, NULL) == 0;
}

int tcp_rewatch(struct tcp_sock *sock)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    if (!sock->unwatched)
        return 0;
    int rc = tcp_watch(nic, EPOLL_CTL_ADD, sock->fd, TCP_EDGES, sock);
    if (rc < 0) {
        tcp_tell_full(nic, "sockets are polled, and no one sleeps");
        return rc;
    }
    sock->unwatched = false;
    nic->stale = true; /* that it is writable is an edge */
    return 0;
}

/* Leave it to epoll. False: that would not tell of it. */
static bool cool(struct tcp_nic *nic, uint32_t i)
{
    struct tcp_sock *sock = nic->hot[i];
    sock->misses = 0;
    if (tcp_rewatch(sock) < 0)
        return false;
    sock->hot = false;
    nic->hot[i] = nic->hot[--nic->nhot];
    return true;
}

/* After a poll that found something. */
static void look_for_crowd(struct tcp_nic *nic)
{
    nic->busy_polls++;
    if (WEFT_LIKELY(nic->busy_polls < CROWD_POLLS) && (WEFT_LIKELY(nic->nbusy <= TCP_HOT) || nic->crowd))
        return;
    nic->crowd = nic->nbusy > TCP_HOT;
    nic->busy_round++;
    nic->busy_polls = nic->nbusy = 0;
    for (uint32_t i = nic->crowd ? nic->nhot : 0; i > 0; i--)
        cool(nic, i - 1);
}

/* It is read without asking epoll. False: it has had nothing for long. */
static bool stays_hot(struct tcp_nic *nic, struct tcp_sock *sock, bool any)
{
    sock->misses = any ? 0 : (uint8_t)(sock->misses + 1);
    if (WEFT_UNLIKELY(any && !sock->unwatched) && ++sock->hits == HITS)
        unwatch(nic, sock);
    return sock->misses < HOT_MISSES;
}

/* More than one look at a socket that is the only one to wait for, and that epoll does not tell of: of what is between two polls
 * only a part is looking. But there is no rest for who has something to send, or to give to his caller. */
static bool look(struct tcp_poll *poll, struct tcp_sock *sock)
{
    const struct tcp_nic *nic = poll->nic;
    bool any = tcp_rx_turn(poll, sock);
    for (int i = 1; WEFT_UNLIKELY(i < LOOKS && !any && sock->unwatched && sock->misses > 0 && nic->nhot == 1); i++) {
        if (nic->ready || poll->n > 0)
            return false;
        weft_rest(REST_NS);
        any = tcp_rx_turn(poll, sock);
    }
    return any;
}

/* Other sockets took all of this poll. What carries only what is short is read all the same: the peer may wait for it, and a poll
 * that receives so much takes long. The rest come first in later polls: epoll tells of them seldom, or not at all. */
static void read_short(struct tcp_poll *poll)
{
    struct tcp_nic *nic = poll->nic;
    for (uint32_t i = 0; i < nic->nhot;) {
        struct tcp_sock *sock = nic->hot[i];
        if (sock->turn != nic->polls && sock->index == 0 && sock->link->nsocks > 1) {
            poll->budget = TCP_TURN;
            nic->stale |= tcp_rx_turn(poll, sock);
        } else if (sock->turn != nic->polls) {
            tcp_rx_unread(sock);
        }
        i += i < nic->nhot && nic->hot[i] == sock; /* or its link is dead */
    }
    poll->budget = 0;
}

/* Sockets that had bytes of late are read without asking epoll first. */
static void read_hot(struct tcp_poll *poll)
{
    struct tcp_nic *nic = poll->nic;
    for (uint32_t i = 0; i < nic->nhot && poll->budget > 0;) {
        struct tcp_sock *sock = nic->hot[i];
        if (sock->turn != nic->polls && tcp_rx_pauses(sock)) {
            i++;
            continue;
        }
        bool any = sock->turn == nic->polls || look(poll, sock);
        nic->stale |= any;
        if (WEFT_UNLIKELY(i >= nic->nhot || nic->hot[i] != sock))
            continue; /* its link is dead */
        if (WEFT_LIKELY(stays_hot(nic, sock, any)) || !cool(nic, i))
            i++;
    }
    if (WEFT_UNLIKELY(poll->budget <= 0))
        read_short(poll);
}

/* --- what epoll tells ---------------------------------------------------------------------------- */

/* Note what epoll tells of a socket of a link that is up. True if there is something to read. */
static bool note_edges(struct tcp_sock *sock, uint32_t events)
{
    if ((events & EPOLLOUT) && sock->blocked) {
        sock->blocked = false;
        tcp_nic_of(sock->link)->nblocked--;
        tcp_tx_ready(sock->link);
    }
    sock->ending |= (events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0;
    return (events & EPOLLIN) || sock->ending;
}

/* More than the hot ones are: epoll is asked again at once. */
static void note_at_work(struct tcp_nic *nic, const struct tcp_sock *sock)
{
    if (sock->hot)
        return;
    nic->quiet = QUIET_MOST;
    nic->patience = TCP_QUIET_LEAST;
}

static void sock_event(struct tcp_poll *poll, struct tcp_sock *sock, uint32_t events)
{
    struct tcp_nic *nic = poll->nic;
    if (sock->state == TCP_CLOSED)
        return;
    if (sock->link->state != TCP_LINK_UP) {
        tcp_sock_greet(sock);
        return;
    }
    if (!note_edges(sock, events))
        return;
    note_at_work(nic, sock);
    /* in a later poll: what it tells of may have come after this one's turn */
    if (sock->turn == nic->polls || poll->budget <= 0 || tcp_rx_pauses(sock)) {
        tcp_rx_unread(sock);
        return;
    }
    if (tcp_rx_turn(poll, sock))
        make_hot(nic, sock);
}

/* Sockets whose turn ended before their bytes did, and those that bytes came for while they were left alone. */
static void read_unread(struct tcp_poll *poll)
{
    struct tcp_nic *nic = poll->nic;
    for (uint32_t n = nic->nunread; n > 0 && nic->unread && poll->budget > 0; n--) {
        struct tcp_sock *sock = nic->unread;
        tcp_rx_forget(sock);
        if (tcp_rx_pauses(sock)) {
            tcp_rx_unread(sock);
            continue;
        }
        nic->stale = true;
        note_at_work(nic, sock);
        if (tcp_rx_turn(poll, sock))
            make_hot(nic, sock);
    }
}

static void timer_event(struct tcp_nic *nic)
{
    uint64_t ticks;
    if (read(nic->timer_fd, &ticks, sizeof(ticks)) > 0)
        nic->timer_set = false;
    tcp_half_expire(nic);
    tcp_check_silence(nic);
}

static void read_epoll(struct tcp_poll *poll)
{
    struct tcp_nic *nic = poll->nic;
    struct epoll_event events[EVENTS];
    int n = epoll_wait(nic->epoll_fd, events, EVENTS, 0);
    nic->quiet = 0;
    nic->patience = nic->patience < QUIET_MOST ? 2 * nic->patience : QUIET_MOST;
    nic->stale = false;
    /* All of them: it does not tell of an edge again. */
    for (int i = 0; i < n; i++) {
        const struct epoll_event *event = &events[i];
        enum tcp_source *source = event->data.ptr;
        if (*source == TCP_SOCK)
            sock_event(poll, (struct tcp_sock *)source, event->events);
        else if (*source == TCP_LISTENER)
            tcp_accept(nic);
        else if (*source == TCP_TIMER)
            timer_event(nic);
        else if (((struct tcp_half *)source)->fd >= 0)
            tcp_half_event(nic, (struct tcp_half *)source);
    }
}

/* --- a poll -------------------------------------------------------------------------------------- */

/* The timer is for those that sleep. */
static void look_at_clock(struct tcp_nic *nic)
{
    if (nic->polls % CLOCK_POLLS != 0 || (nic->nunproven == 0 && nic->nhalf == 0))
        return;
    if (weft_now() - nic->checked > (uint64_t)nic->timeout * 1000000 / 4) {
        tcp_half_expire(nic);
        tcp_check_silence(nic);
    }
}

/* A system call that mostly says no while sockets are hot. Who sleeps between polls asks once a
 * wake-up: if there is more, it will not sleep for long. */
static bool ask_epoll(struct tcp_nic *nic)
{
    if (nic->was_woken && !nic->woken)
        return false;
    return nic->nhot == 0 || nic->crowd || nic->nblocked > 0 || ++nic->quiet >= nic->patience;
}

static void retry_blocked(struct tcp_nic *nic)
{
    if (nic->nblocked == 0 || nic->woken || nic->polls % RETRY_POLLS != 0)
        return;
    struct tcp_link *link = nic->links;
    for (int i = 0; link && i < RETRY_LINKS; link = link->next, i++) {
        for (uint32_t k = 0; link->state == TCP_LINK_UP && k < link->nsocks; k++) {
            if (!link->socks[k].blocked)
                continue;
            link->socks[k].blocked = false;
            nic->nblocked--;
            tcp_tx_ready(link);
        }
    }
}

/* What the last message brought along. */
static void hear(struct tcp_nic *nic)
{
    struct tcp_link *heard = nic->heard;
    if (heard && !tcp_post_hear(nic))
        tcp_link_fail(heard, WEFT_EPROTO);
}

int tcp_poll(struct weft_nic *base, struct weft_comp *comps, int max)
{
    struct tcp_nic *nic = (struct tcp_nic *)base;
    struct tcp_poll poll = {.nic = nic, .comps = comps, .max = max, .budget = POLL_BYTES};
    nic->polls++;
    tcp_bufs_take_back(nic);
    weft_listener_look(&nic->listener);
    look_at_clock(nic);
    nic->stirred = false;
    bool heard = tcp_post_must_hear(nic);
    if (heard)
        hear(nic);
    hand_out(&poll);
    if (poll.n > 0 && (heard || poll.n == max)) /* who polls has something to do, and asks again */
        return poll.n;
    retry_blocked(nic);
    run_ready(nic, POLL_BYTES / 2);
    tcp_rx_resume(&poll);
    read_unread(&poll);
    if (ask_epoll(nic))
        read_epoll(&poll);
    if (!nic->woken)
        read_hot(&poll);
    if (WEFT_LIKELY(poll.found))
        look_for_crowd(nic);
    nic->was_woken = nic->woken;
    nic->woken = nic->sleepy = false;
    if (poll.n == 0)
        hear(nic);
    if (nic->stirred ||
        poll.n == 0) /* who has got a message is not to wait for acknowledgements */
        run_ready(nic, POLL_BYTES / 2);
    hand_out(&poll);
    return poll.n;
}

/* --- sleep --------------------------------------------------------------------------------------- */

/* Sleep no longer than it may take to find that a peer is silent. */
static void set_timer(struct tcp_nic *nic)
{
    struct itimerspec when = {0};
    if (nic->timer_set || (nic->nunproven == 0 && nic->nhalf == 0))
        return;
    when.it_value.tv_sec = nic->timeout / 4000;
    when.it_value.tv_nsec = nic->timeout % 4000 * 250000;
    nic->timer_set = timerfd_settime(nic->timer_fd, 0, &when, NULL) == 0;
}

/* Take the edges of what was read without epoll: they would wake who sleeps, for nothing. */
static void take_edges(struct tcp_nic *nic)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(nic->epoll_fd, events, EVENTS, 0);
    nic->stale = n == EVENTS;
    for (int i = 0; i < n; i++) {
        enum tcp_source *source = events[i].data.ptr;
        struct tcp_sock *sock = (struct tcp_sock *)source;
        /* the others are not told of by edges: the next poll hears of them again */
        if (*source == TCP_SOCK && sock->state != TCP_CLOSED && sock->link->state == TCP_LINK_UP &&
            note_edges(sock, events[i].events))
            tcp_rx_unread(sock);
    }
}

/* False: epoll would not tell of all sockets. */
static bool rewatch_hot(struct tcp_nic *nic)
{
    for (uint32_t i = 0; i < nic->nhot; i++) {
        nic->hot[i]->hits = 0;
        if (tcp_rewatch(nic->hot[i]) < 0)
            return false;
    }
    return true;
}

int tcp_wait_fd(struct weft_nic *base)
{
    struct tcp_nic *nic = (struct tcp_nic *)base;
    nic->sleepy = true;
    if (!rewatch_hot(nic))
        return WEFT_EAGAIN; /* who cannot sleep polls */
    if (nic->stale)
        take_edges(nic);
    if (nic->done.head || nic->ndown || nic->parked || nic->ready || nic->unread || nic->heard)
        return WEFT_EAGAIN;
    set_timer(nic);
    nic->woken = true;
    nic->quiet = QUIET_MOST; /* what ends the sleep may be no hot socket */
    return nic->epoll_fd;
}
