/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tcp nic in a storm: bare peers of more links than it reads without epoll say pieces of frames and hang up in every way, while it
 * is polled with room for some comps or none, and asked for a descriptor to sleep on, and the clock creeps, stands or goes back.
 * Whatever came is where it belongs, nobody would sleep on bytes that are there, and each end is heard.
 *
 * WEFT_STORM_SEED: one storm, of this seed.
 */
#include "still_clock.h"
#include "tcp_stranger.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "transports/tcp/tcp.h"

#define PEERS 10
#define SLOTS 4 /* frames of a peer that may be there at once */
#define SLOT_BYTES 400000
#define FIRST_KEY 1000
#define SEEDS 4
#define ROUNDS 12
#define STEPS 800
#define ROOM 64
#define CALM_NS 15000000000u /* for what is under way to arrive, on a slow machine */

struct peer {
    struct stranger_link at; /* link NULL: it has ended */
    bool hung_up;
    uint8_t *mem, *said; /* SLOTS of memory; the frame that is being said */
    struct weft_mem_handle handle;
    size_t done, len; /* of that frame, in bytes */
    uint32_t begun, got; /* frames */
    uint32_t sent, received; /* messages */
    struct {
        uint32_t seed, len;
    } slots[SLOTS];
};

static struct stranger *all;
static struct peer peers[PEERS];
static uint64_t random_state;

/* xorshift64 */
static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % below);
}

static struct tcp_nic *nic(void)
{
    return (struct tcp_nic *)all->pair.side[PAIR_B].nic;
}

/* Joining takes a peer's time. */
static void join(struct peer *p)
{
    uint64_t still = stopped;
    stopped = 0;
    p->at = stranger_join_another(all);
    p->hung_up = false;
    p->done = p->len = 0;
    p->begun = p->got = p->sent = p->received = 0;
    stopped = still;
}

/* --- the nic ------------------------------------------------------------------------------------- */

/* Its lists are what its counts and its sockets say. */
static void check_lists(void)
{
    const struct tcp_nic *n = nic();
    struct tcp_sock *const *tail = &n->unread;
    uint32_t unread = 0, parked = 0, hot = 0, marked = 0;
    for (const struct tcp_sock *s = n->unread; s; tail = &s->unread_next, s = s->unread_next, unread++)
        assert_true(s->unread && s->state != TCP_CLOSED);
    assert_ptr_equal(tail, n->unread_tail);
    for (const struct tcp_sock *s = n->parked; s; s = s->parked_next)
        parked++;
    for (const struct tcp_link *l = n->links; l; l = l->next)
        for (uint32_t i = 0; i < l->nsocks; i++) {
            marked += l->socks[i].unread;
            hot += l->socks[i].hot;
            assert_true(l->socks[i].hot || !l->socks[i].unwatched);
        }
    assert_int_equal(unread, n->nunread);
    assert_int_equal(marked, n->nunread);
    assert_int_equal(parked, n->nparked);
    assert_int_equal(hot, n->nhot);
}

static void take(const struct weft_comp *comp)
{
    struct peer *p = peers;
    while (p < peers + PEERS && p->at.link != comp->link)
        p++;
    if (p == peers + PEERS)
        return; /* of the pair */
    if (comp->op == WEFT_OP_RECV) {
        p->received++;
    } else if (comp->op == WEFT_OP_WRITE_IMM) {
        uint32_t slot = p->got % SLOTS;
        assert_int_equal(comp->imm, p->got++);
        assert_true(pair_filled(p->mem + slot * SLOT_BYTES, p->slots[slot].len, p->slots[slot].seed));
    } else {
        assert_int_equal(comp->op, WEFT_OP_LINK_DOWN);
        assert_true(p->hung_up);
        all->pair.ops->link_close(p->at.link);
        for (int i = 0; i < 2; i++)
            if (p->at.fd[i] >= 0)
                close(p->at.fd[i]);
        p->at = (struct stranger_link){NULL, {-1, -1}};
    }
}

static int poll_nic(int room)
{
    struct weft_comp comps[ROOM];
    int n = all->pair.ops->poll(all->pair.side[PAIR_B].nic, comps, room);
    assert_in_range(n, 0, room);
    for (int i = 0; i < n; i++)
        take(&comps[i]);
    check_lists();
    return n;
}

static bool is_readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
    return poll(&p, 1, ms) > 0;
}

/* A socket of the nic has something, or a link's end has not been handed out. */
static bool anything_there(void)
{
    for (int i = 0; i < PEERS; i++) {
        const struct tcp_link *link = (const struct tcp_link *)peers[i].at.link;
        if (link && (link->down_due || (link->state == TCP_LINK_UP && (is_readable(link->socks[0].fd, 0) ||
                                                                       is_readable(link->socks[1].fd, 0)))))
            return true;
    }
    return false;
}

/* A descriptor to sleep on, or -1: there is something to do. */
static int sleep_on(void)
{
    int fd = all->pair.ops->wait_fd(all->pair.side[PAIR_B].nic);
    check_lists();
    if (fd == WEFT_EAGAIN)
        return -1;
    assert_true(fd >= 0);
    if (anything_there() && !is_readable(fd, 0))
        assert_true(is_readable(fd, 50) || !anything_there());
    return fd;
}

/* --- the peers ------------------------------------------------------------------------------------ */

static void begin_frame(struct peer *p)
{
    uint32_t slot = p->begun % SLOTS, len = draw(3) ? 140000 + draw(250000) : 1 + draw(60000);
    p->slots[slot].len = len;
    p->slots[slot].seed = draw(1000);
    struct tcp_frame frame = {.type = TCP_WRITE_IMM, .len = len, .id = p->begun++,
                              .word = {FIRST_KEY + (uint64_t)(p - peers), (uintptr_t)p->mem + slot * SLOT_BYTES}};
    p->len = stranger_encode(p->said, frame);
    pair_fill(p->said + p->len, len, p->slots[slot].seed);
    p->len += len;
    p->done = 0;
}

/* Bytes of a frame on the socket for long ones, as many as it takes. */
static void say_piece(struct peer *p)
{
    if (p->done == p->len && p->begun - p->got >= SLOTS - 1)
        return;
    if (p->done == p->len)
        begin_frame(p);
    size_t most = p->len - p->done, n = 1 + (draw(3) ? draw(3000) : draw(120000));
    ssize_t sent = send(p->at.fd[1], p->said + p->done, n < most ? n : most, MSG_NOSIGNAL | MSG_DONTWAIT);
    p->done += sent > 0 ? (size_t)sent : 0;
}

static void say_message(struct peer *p)
{
    uint8_t bytes[TCP_FRAME_MAX + 300] = {0};
    uint32_t text = draw(300);
    size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = text}) + text;
    for (int n = draw(12) ? 1 : 30; n > 0 && p->sent - p->received < 50; n--)
        p->sent += send(p->at.fd[0], bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len;
}

static void say(struct peer *p)
{
    uint8_t heard[4096];
    if (!p->at.link || p->hung_up)
        return;
    for (int i = 0; i < 2; i++)
        while (recv(p->at.fd[i], heard, sizeof heard, MSG_DONTWAIT) > 0)
            ;
    if (draw(6))
        say_piece(p);
    else
        say_message(p);
}

static void hang_up(struct peer *p)
{
    struct linger reset = {.l_onoff = 1};
    if (!p->at.link || p->hung_up)
        return;
    p->hung_up = true;
    uint32_t how = draw(4), i = draw(2);
    if (how < 2) {
        shutdown(p->at.fd[i], SHUT_WR);
        return;
    }
    for (uint32_t k = 0; k < 2; k++) {
        if (how == 2 && k != i)
            continue; /* one of them, hard */
        if (how == 2)
            setsockopt(p->at.fd[k], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(p->at.fd[k]);
        p->at.fd[k] = -1;
    }
}

/* Bytes are on their way to the nic. */
static bool is_moving(void)
{
    for (int i = 0; i < PEERS; i++)
        for (int k = 0; k < 2; k++) {
            int left = 0;
            if (peers[i].at.link && peers[i].at.fd[k] >= 0 && ioctl(peers[i].at.fd[k], SIOCOUTQ, &left) == 0 && left > 0)
                return true;
        }
    return false;
}

/* Until nothing is left to do, for one who sleeps whenever that is offered, or for one who never does. */
static void calm_down(bool sleeper)
{
    uint64_t deadline = real_now() + CALM_NS;
    for (int calm = 0; calm < 3;) {
        assert_true(real_now() < deadline);
        int fd = sleeper ? sleep_on() : -1;
        if (fd >= 0 && !is_readable(fd, 5)) {
            calm += !is_moving();
            continue;
        }
        stopped += sleeper ? 0 : draw(3000);
        bool any = poll_nic(1 + (int)draw(16)) > 0 || sleeper || is_moving() || anything_there();
        for (int i = 0; i < 300 && !any; i++)
            poll_nic(16);
        calm = any ? 0 : calm + 1;
    }
    assert_false(anything_there());
    for (struct peer *p = peers; p < peers + PEERS; p++) {
        assert_true(!p->hung_up || !p->at.link);
        if (!p->at.link)
            continue;
        assert_int_equal(p->received, p->sent);
        assert_int_equal(p->got, p->begun - (p->done < p->len));
    }
}

static void storm(struct stranger *s, uint64_t seed)
{
    all = s;
    random_state = 88172645463325252u ^ seed * 0x9e3779b97f4a7c15u;
    stopped = real_now();
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t talking = 1 + draw(PEERS), sleeps = draw(4) ? draw(20) : 0, step = draw(3) ? 4000 : 0;
        bool little = draw(3) == 0;
        for (struct peer *p = peers; p < peers + PEERS; p++)
            if (!p->at.link)
                join(p);
        for (int i = 0; i < STEPS; i++) {
            uint32_t what = draw(100);
            stopped += step ? draw(step) : 0;
            if (what < 45)
                say(&peers[draw(talking)]);
            else if (what < 97 - sleeps)
                poll_nic(little ? (int)draw(3) : 16);
            else if (what < 97)
                sleep_on();
            else if (draw(300) == 0)
                stopped -= 40000;
            else if (draw(15) == 0)
                hang_up(&peers[draw(talking)]);
        }
        calm_down(draw(2));
    }
}

static void nothing_is_lost_in_a_storm(void **state)
{
    struct stranger *s = *state;
    const char *one = getenv("WEFT_STORM_SEED");
    uint64_t first = one ? strtoull(one, NULL, 0) : 1;
    for (int i = 0; i < PEERS; i++) {
        peers[i] = (struct peer){.mem = calloc(SLOTS, SLOT_BYTES), .said = malloc(SLOT_BYTES + TCP_FRAME_MAX)};
        peers[i].handle = pair_reg(&s->pair, PAIR_B, peers[i].mem, SLOTS * SLOT_BYTES, PAIR_ALL, FIRST_KEY + (uint64_t)i);
    }
    for (uint64_t seed = first; seed < first + (one ? 1 : SEEDS); seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        storm(s, seed);
    }
    for (struct peer *p = peers; p < peers + PEERS; p++)
        hang_up(p);
    calm_down(true);
    stopped = 0;
    for (struct peer *p = peers; p < peers + PEERS; p++) {
        assert_int_equal(s->pair.ops->mem_dereg(s->pair.side[PAIR_B].nic, p->handle.mem), 0);
        free(p->mem);
        free(p->said);
    }
}

/* Also after a test that has failed while the clock stood. */
static int teardown(void **state)
{
    stopped = 0;
    return stranger_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_lost_in_a_storm, stranger_setup_joined, teardown),
    };
    return cmocka_run_group_tests_name("tcp_storm", tests, NULL, NULL);
}
