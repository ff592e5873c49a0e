/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of tcp that are polled all the time: epoll does not know them, so what poll does not look at is heard of by no one
 * (transports/tcp/tcp_poll.c).
 */
#include "contract/pair.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transports/tcp/tcp.h"

#define TO_AND_FRO 300
#define COOL 1000 /* polls in which nothing comes: more than a socket stays hot for */
#define MESSAGES 5 /* among floods: of those that are forgotten, half */
#define BIG (4u << 20) /* more than a poll receives, in one frame */
#define LONG (64u << 10) /* by a socket of long payload */
#define UNDER_WAY 16
#define ALONE 12 /* polls of who floods, for one of the target */
#define SELDOM_MS 20 /* between polls of one who does not sleep */
#define FULL (16u << 10) /* by a socket of short payload; some of them fill it */
#define ROOM_POLLS 10 /* in which one hears that there is room: fewer than until it is left to epoll for another reason */
#define OTHERS 9 /* links that are newer: more than are retried */
#define TURNS 400   /* messages over many links in turn */
#define SETTLED 100 /* of which the first ones are not counted */
#define OFTEN 16    /* polls of the target for one of the sender, as between two processes */
#define TURN_POLLS 3 /* of the target for a message, times what it polls for one of the sender: more if epoll is asked too seldom */
#define TURN_LOOKS 3 /* receives for a message, where there are too many sockets to ask one by one */
/* In which it finds a host gone with WEFT_TCP_TIMEOUT=1000: 1.5 to 3 s, and 80 s with a clock that is seldom looked at. */
#define GONE_MS 8000
#define LOSSY_MS 4000 /* in which one is not, that has acknowledged just now: longer than it would take */
/* Of the target, for as many messages among floods. Short ones: one each, and 4 if they wait for their turn among what is long. Long:
 * 4 each; 8 to 128, each time twice as many, if they wait for epoll. */
#define SHORT_POLLS (MESSAGES + 2)
#define LONG_POLLS (6 * MESSAGES)
#define MANY_POLLS 10000 /* none of them has brought it */
#define TRIES 3 /* a busy kernel hands bytes on late: the best counts */

static void both(struct pair *p)
{
    side_poll(&p->a);
    side_poll(&p->b);
}

static void to_and_fro(struct pair *p, struct buf near, struct buf far)
{
    struct weft_cmd there = cmd_send(near, 0, 100), back = cmd_send(far, 0, 100);
    for (int i = 0; i < TO_AND_FRO; i++) {
        size_t had = p->b.narrivals, has = p->a.narrivals;
        pair_post(p, A, 0, &there);
        TEST_UNTIL(p->b.narrivals > had, both(p), "a message");
        pair_post(p, B, 0, &back);
        TEST_UNTIL(p->a.narrivals > has, both(p), "an answer");
    }
    pair_settle(p, A);
    pair_settle(p, B);
}

static void who_has_cooled_hears(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, 0), far = pair_buf(p, B, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    for (int round = 0; round < 3; round++) {
        to_and_fro(p, near, far);
        for (int i = 0; i < COOL; i++)
            both(p);
        size_t had = p->b.narrivals;
        pair_post(p, A, 0, &there);
        TEST_UNTIL(p->b.narrivals > had, both(p), "a message to who has cooled");
        pair_settle(p, A);
    }
}

/* Long writes over another link take all that a poll may receive, by so few sockets that all stay hot. */
static void flood(struct pair *p, const struct weft_cmd *write)
{
    size_t first;
    if (p->a.pending < UNDER_WAY)
        side_post_many(&p->a, 1, write, 1, &first);
    for (int i = 0; i < ALONE; i++)
        side_poll(&p->a);
    side_poll(&p->b);
}

/* How many the target takes, MESSAGES times, for n messages over link 0. */
static size_t polls_in_a_flood(struct pair *p, const struct weft_cmd *write, const struct weft_cmd *what, size_t n)
{
    size_t first, polls = 0;
    for (int i = 0; i < MESSAGES; i++) {
        size_t had = p->b.narrivals;
        for (size_t k = 0; k < n; k++)
            assert_int_equal(side_post_many(&p->a, 0, what, 1, &first), 1);
        for (; p->b.narrivals < had + n && polls < MANY_POLLS; polls++)
            flood(p, write);
        assert_int_equal(p->b.narrivals, had + n);
    }
    return polls;
}

/* n at a time, and again if it took too many. */
static void comes_through_a_flood(struct pair *p, const struct weft_cmd *what, size_t n, size_t most)
{
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct weft_cmd write = cmd_write(near, 0, far, 0, BIG);
    size_t fewest = SIZE_MAX;
    pair_link(p, A);
    to_and_fro(p, near, far);
    p->a.other = p->b.other = NULL;
    for (int i = 0; i < 100; i++)
        flood(p, &write);
    assert_false(((struct tcp_nic *)p->b.nic)->crowd);
    for (int i = 0; i < TRIES && fewest > most; i++) {
        size_t polls = polls_in_a_flood(p, &write, what, n);
        fewest = polls < fewest ? polls : fewest;
    }
    CHECK(fewest <= most, "%d times %zu of %" PRIu64 " bytes took %zu polls, more than %zu", MESSAGES, n, what->len, fewest,
          most);
    p->a.other = &p->b;
    p->b.other = &p->a;
    pair_settle(p, A);
}

static void a_flood_of_others_does_not_delay_what_is_short(void **state)
{
    struct buf near = pair_buf(*state, A, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    comes_through_a_flood(*state, &there, 1, SHORT_POLLS);
}

static void nor_several(void **state)
{
    struct buf near = pair_buf(*state, A, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    comes_through_a_flood(*state, &there, MESSAGES, SHORT_POLLS);
}

static void nor_long_what_is_long(void **state)
{
    struct buf near = pair_buf(*state, A, LONG, 0, 0), far = pair_buf(*state, B, LONG, 0, ACCESS_ALL);
    struct weft_cmd there = cmd_imm(near, 0, far, 0, LONG, 7);
    comes_through_a_flood(*state, &there, 1, LONG_POLLS);
}

/* A socket that epoll does not know is full. The next links are retried without a word from epoll (RETRY_LINKS), this one waits for it. */
static void who_is_full_hears_of_room(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, FULL, 0, 0), far = pair_buf(p, B, FULL, 0, ACCESS_ALL);
    struct weft_cmd write = cmd_write(near, 0, far, 0, FULL);
    const struct tcp_sock *sock = ((struct tcp_link *)p->a.links[0].link)->socks;
    size_t first;
    for (int i = 0; i < OTHERS; i++)
        pair_link(p, A);
    to_and_fro(p, near, far);
    assert_true(sock->unwatched);
    p->a.other = p->b.other = NULL;
    TEST_UNTIL(sock->blocked, { side_post_many(&p->a, 0, &write, 1, &first); side_poll(&p->a); }, "a full socket");
    for (int i = 0; i < COOL; i++)
        side_poll(&p->b);
    for (int i = 0; i < ROOM_POLLS && sock->blocked; i++)
        side_poll(&p->a);
    assert_false(sock->blocked);
    p->a.other = &p->b;
    p->b.other = &p->a;
    pair_settle(p, A);
}

static void settle_both(struct pair *p)
{
    p->a.other = &p->b;
    p->b.other = &p->a;
    pair_settle(p, A);
    pair_settle(p, B);
}

/* A has an answer, which says of its last question that it was taken, and nothing else to do: a READ that came with it has let the link send,
 * and acknowledge. The question's number, or -1: a busy kernel has handed on the one without the other. */
static int64_t ask(struct pair *p, struct buf near, struct buf far)
{
    struct weft_cmd question = cmd_send(near, 0, 100), answer = cmd_send(far, 0, 100);
    struct weft_cmd read = cmd_read(far, 200, near, 200, 100);
    const struct tcp_nic *nic = (const struct tcp_nic *)p->a.nic;
    const size_t had = p->b.narrivals, has = p->a.narrivals;
    size_t number = 0;
    p->a.other = p->b.other = NULL;
    question.flags |= WEFT_CMD_QUIET;
    for (int i = 0; i < 2; i++)
        number = pair_post(p, A, 0, &question);
    side_poll(&p->a);
    const int most = p->b.max;
    p->b.max = 1; /* the READ says of the first question that it was taken, the answer of the second */
    for (size_t i = 0; i < 2; i++) {
        TEST_UNTIL(p->b.narrivals > had + i, side_poll(&p->b), "a question");
        pair_post(p, B, 0, i == 0 ? &read : &answer);
    }
    p->b.max = most;
    side_poll(&p->b);
    TEST_UNTIL(p->a.narrivals > has, side_poll(&p->a), "an answer");
    return nic->heard && !nic->ready && !p->a.recs[number].done ? (int64_t)number : -1;
}

/* What an answer brings along is looked at in the next poll. Who sleeps instead would hear of it when something else comes. */
static void who_has_heard_does_not_sleep(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, ACCESS_ALL), far = pair_buf(p, B, 4096, 0, 0);
    int64_t number = -1;
    to_and_fro(p, near, far);
    TEST_UNTIL((number = ask(p, near, far)) >= 0, settle_both(p), "one who has only heard");
    TEST_UNTIL(p->a.ops->wait_fd(p->a.nic) != WEFT_EAGAIN, side_poll(&p->a), "one who sleeps");
    assert_true(p->a.recs[number].done);
    settle_both(p);
}

static uint64_t asked, looks; /* system calls: epoll, and receives of sockets */

int __real_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout)
{
    asked++;
    return __real_epoll_wait(epoll, events, max, timeout);
}

ssize_t __real_recv(int fd, void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags)
{
    looks++;
    return __real_recv(fd, data, len, flags);
}

/* Messages over n links in turn, one at a time, to who has cooled; the target polls so often while the sender does once. Polls of the target for
 * one, in the mean; *vain: receives. */
static double in_turn(struct pair *p, int n, int often, double *vain)
{
    struct buf near = pair_buf(p, A, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    size_t first, polls = 0;
    for (int i = 0; i < COOL; i++)
        side_poll(&p->b);
    for (int i = 0; i < TURNS; i++) {
        assert_int_equal(side_post_many(&p->a, i % n, &there, 1, &first), 1);
        if (i == SETTLED)
            polls = looks = 0;
        for (uint64_t end = test_deadline(); p->a.pending > 0;) {
            uint64_t before = looks;
            side_poll(&p->a);
            looks = before;
            for (int k = 0; k < often; k++, polls++)
                side_poll(&p->b);
            CHECK(weft_now() < end, "a message of many did not arrive");
        }
    }
    *vain = (double)looks / (TURNS - SETTLED);
    return (double)polls / (TURNS - SETTLED);
}

/* However many links there are, and whether the target polls as often as the sender or, as between processes, far more often. */
static void who_is_one_of_many_is_heard_at_once(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, 0), far = pair_buf(p, B, 4096, 0, 0);
    for (int i = 1; i < 2 * TCP_HOT; i++)
        pair_link(p, A);
    to_and_fro(p, near, far);
    p->a.other = p->b.other = NULL;
    for (int n = 2; n <= 2 * TCP_HOT; n++) {
        for (int often = 1; often <= OFTEN; often *= 4) {
            double vain, polls = in_turn(p, n, often, &vain);
            CHECK(polls <= TURN_POLLS * often, "%d links, %d polls: %.1f polls a message", n, often, polls);
            if (n > TCP_HOT)
                CHECK(vain <= TURN_LOOKS, "%d links, %d polls: %.1f receives a message", n, often, vain);
        }
    }
    p->a.other = &p->b;
    p->b.other = &p->a;
    /* and when only one is left, it is read without epoll again */
    to_and_fro(p, near, far);
    asked = 0;
    to_and_fro(p, near, far);
    CHECK(asked < TO_AND_FRO, "epoll was asked %" PRIu64 " times", asked);
}

/* An epoll that takes no more sockets, as with /proc/sys/fs/epoll/max_user_watches of a busy machine. */
static bool full;
static int refused;

int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    if (!full || op != EPOLL_CTL_ADD)
        return __real_epoll_ctl(epoll, op, fd, event);
    refused++;
    errno = ENOSPC;
    return -1;
}

/* A peer's host that is gone: the kernel of this one has asked again, and heard nothing. Or it has heard something, just now. */
static bool gone, heard;

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (gone && rc == 0 && level == IPPROTO_TCP && name == TCP_INFO) {
        struct tcp_info *info = value;
        info->tcpi_unacked = info->tcpi_retransmits = 1;
        info->tcpi_last_ack_recv = heard ? 0 : UINT32_MAX;
    }
    return rc;
}

static void poll_seldom(struct pair *p, int ms)
{
    uint64_t since = weft_now();
    while (!pair_link_state(p, A, 0).down && weft_now() - since < (uint64_t)ms * 1000000) {
        side_poll(&p->a);
        test_sleep_ms(SELDOM_MS);
    }
}

static void who_polls_seldom_finds_that_a_host_is_gone(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, 0), far = pair_buf(p, B, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    to_and_fro(p, near, far);
    p->a.other = NULL;
    gone = heard = true;
    pair_post(p, A, 0, &there);
    poll_seldom(p, LOSSY_MS);
    CHECK(!pair_link_state(p, A, 0).down, "a host that has acknowledged just now was given up");
    heard = false;
    poll_seldom(p, GONE_MS);
    gone = false;
    p->a.other = &p->b;
    CHECK(pair_link_state(p, A, 0).down, "polls in %d ms did not find it", GONE_MS);
    assert_int_equal(pair_link_state(p, A, 0).status, -ETIMEDOUT);
    pair_link_down(p, B, 0);
}

static void note_line(enum weft_log_level level, const char *subsystem, const char *line, void *user)
{
    if (level == WEFT_LOG_WARN && !strcmp(subsystem, "tcp") && strstr(line, "max_user_watches"))
        ++*(int *)user;
}

static void where_epoll_is_full_no_one_sleeps(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, 0), far = pair_buf(p, B, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    int lines = 0;
    to_and_fro(p, near, far);
    weft_log_set(note_line, &lines);
    full = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(p->b.ops->wait_fd(p->b.nic), WEFT_EAGAIN);
    assert_true(refused > 0);
    assert_int_equal(lines, 1);
    for (int i = 0; i < COOL; i++)
        both(p);
    size_t had = p->b.narrivals;
    pair_post(p, A, 0, &there);
    TEST_UNTIL(p->b.narrivals > had, both(p), "a message to who cannot be woken");
    full = false;
    to_and_fro(p, near, far);
    weft_log_set(NULL, NULL);
    TEST_UNTIL(p->b.ops->wait_fd(p->b.nic) >= 0, both(p), "a nic that is slept on again");
}

static int setup_short_buffers(void **state)
{
    weft_config_set("WEFT_TCP_RCVBUF", "64K");
    int rc = pair_setup_with(state, "WEFT_TCP_SNDBUF", "64K");
    weft_config_set("WEFT_TCP_RCVBUF", NULL);
    return rc;
}

static int setup_long_chunks(void **state)
{
    return pair_setup_with(state, "WEFT_TCP_CHUNK", "4M");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(who_has_cooled_hears),
        cmocka_unit_test_setup_teardown(a_flood_of_others_does_not_delay_what_is_short, setup_long_chunks, pair_teardown),
        cmocka_unit_test_setup_teardown(nor_several, setup_long_chunks, pair_teardown),
        cmocka_unit_test_setup_teardown(nor_long_what_is_long, setup_long_chunks, pair_teardown),
        cmocka_unit_test_setup_teardown(who_is_full_hears_of_room, setup_short_buffers, pair_teardown),
        IN_ONE(who_has_heard_does_not_sleep),
        IN_ONE(who_is_one_of_many_is_heard_at_once),
        IN_ONE(where_epoll_is_full_no_one_sleeps),
        IN_ONE(who_polls_seldom_finds_that_a_host_is_gone),
    };
    return PAIR_MAIN("tcp_hot", tests);
}
