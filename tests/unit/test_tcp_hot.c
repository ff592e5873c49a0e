/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of tcp that are polled all the time: epoll does not know them, so what poll does not look at is heard of by no one
 * (transports/tcp/tcp.c).
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
#define FLOODERS 16
#define MESSAGES 5 /* among floods: of those that are forgotten, half */
#define BIG (4u << 20)
#define ALONE 12 /* polls of who floods, for one of the target */
#define SELDOM_MS 20 /* between polls of one who does not sleep */
#define TURNS 400   /* messages over many links in turn */
#define SETTLED 100 /* of which the first ones are not counted */
#define TURN_POLLS 3 /* of the target, for one of them: 1 or 2, and 8 if epoll is asked once the hot ones have found nothing for a while */
/* In which it finds a host gone with WEFT_TCP_TIMEOUT=1000: 1.5 to 3 s, and 80 s with a clock that is seldom looked at. */
#define GONE_MS 8000
#define MOST_POLLS                                                                                \
    1500 /* of the target, until a message among floods is there: 15 to 120, and 7500 if it is forgotten */

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

/* Long writes over many links take all that a poll may receive. */
static void flood(struct pair *p, const struct weft_cmd *write)
{
    size_t first;
    for (int i = 1; i <= FLOODERS; i++)
        if (p->a.pending < 4 * FLOODERS)
            side_post_many(&p->a, i, write, 1, &first);
    for (int i = 0; i < ALONE; i++)
        side_poll(&p->a);
    side_poll(&p->b);
}

static void a_flood_of_others_does_not_silence_it(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    struct weft_cmd there = cmd_send(near, 0, 100), write = cmd_write(near, 0, far, 0, BIG);
    size_t first;
    for (int i = 0; i < FLOODERS; i++)
        pair_link(p, A);
    to_and_fro(p, near, far);
    p->a.other = p->b.other = NULL;
    for (int i = 0; i < 100; i++)
        flood(p, &write);
    for (int i = 0; i < MESSAGES; i++) {
        size_t had = p->b.narrivals, polls = 0;
        assert_int_equal(side_post_many(&p->a, 0, &there, 1, &first), 1);
        while (p->b.narrivals == had && polls++ < MOST_POLLS)
            flood(p, &write);
        CHECK(p->b.narrivals > had, "a message did not arrive in %d polls", MOST_POLLS);
    }
    p->a.other = &p->b;
    p->b.other = &p->a;
    pair_settle(p, A);
}

static uint64_t asked; /* looks at epoll */

int __real_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout)
{
    asked++;
    return __real_epoll_wait(epoll, events, max, timeout);
}

/* More links than sockets are read without asking epoll, one message at a time. */
static void many_in_turn_are_heard_at_once(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, 0), far = pair_buf(p, B, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    size_t first, polls = 0;
    for (int i = 1; i < 2 * TCP_HOT; i++)
        pair_link(p, A);
    to_and_fro(p, near, far);
    p->a.other = p->b.other = NULL;
    for (int i = 0; i < TURNS; i++) {
        size_t had = p->b.narrivals;
        assert_int_equal(side_post_many(&p->a, i % (2 * TCP_HOT), &there, 1, &first), 1);
        TEST_UNTIL(p->b.narrivals > had, both(p); polls += i >= SETTLED, "a message of many");
    }
    p->a.other = &p->b;
    p->b.other = &p->a;
    CHECK(polls < TURN_POLLS * (TURNS - SETTLED), "%d messages took %zu polls", TURNS - SETTLED, polls);
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

/* A peer's host that is gone: the kernel of this one has asked again, and heard nothing. */
static bool gone;

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (gone && rc == 0 && level == IPPROTO_TCP && name == TCP_INFO) {
        struct tcp_info *info = value;
        info->tcpi_unacked = info->tcpi_retransmits = 1;
        info->tcpi_last_ack_recv = UINT32_MAX;
    }
    return rc;
}

static void who_polls_seldom_finds_that_a_host_is_gone(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4096, 0, 0), far = pair_buf(p, B, 4096, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100);
    to_and_fro(p, near, far);
    p->a.other = NULL;
    gone = true;
    pair_post(p, A, 0, &there);
    uint64_t since = weft_now();
    while (!pair_link_state(p, A, 0).down && weft_now() - since < GONE_MS * 1000000ull) {
        side_poll(&p->a);
        test_sleep_ms(SELDOM_MS);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(who_has_cooled_hears),
        IN_ONE(a_flood_of_others_does_not_silence_it),
        IN_ONE(many_in_turn_are_heard_at_once),
        IN_ONE(where_epoll_is_full_no_one_sleeps),
        IN_ONE(who_polls_seldom_finds_that_a_host_is_gone),
    };
    return PAIR_MAIN("tcp_hot", tests);
}
