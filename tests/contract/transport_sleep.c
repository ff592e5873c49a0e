/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_fd: whoever sleeps on it is woken by everything that poll has something to do about, and by
 * nothing else. A lost wake-up shows as a deadline that passes. A nic may have none; then core polls
 * every millisecond, and so do these tests.
 */
#include "pair.h"

#include <poll.h>
#include <time.h>

#define MIB (1 << 20)
#define QUIET_MS 300
#define MOST_WAKES 10 /* of an idle nic in QUIET_MS: keep-alives, not a spin */

/* Without one, wait_fd never gives anything else. */
static bool has_fd(struct side *side)
{
    return side->ops->wait_fd(side->nic) != WEFT_EUNSUPPORTED;
}

static void nap(void)
{
    struct timespec ms = {.tv_nsec = 1000000};
    nanosleep(&ms, NULL);
}

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

/* Ask until there is no work left. */
static int arm(struct side *side)
{
    int fd = WEFT_EAGAIN;
    TEST_UNTIL((fd = side->ops->wait_fd(side->nic)) != WEFT_EAGAIN, side_poll(side),
               "wait_fd to say that there is no more work");
    CHECK(fd >= 0, "wait_fd: %s", weft_err_name(fd));
    return fd;
}

/* Sleep until there is work, then poll once. */
static void sleep_and_poll(struct side *side)
{
    int fd = side->ops->wait_fd(side->nic);
    if (fd == WEFT_EUNSUPPORTED)
        nap();
    else if (fd != WEFT_EAGAIN)
        CHECK(readable(fd, TEST_DEADLINE_MS), "nobody woke a nic that had %zu cmds to complete",
              side->pending);
    side_poll(side);
}

static void the_descriptor_stays_the_same(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    if (!has_fd(&p->a))
        return;
    int fd = arm(&p->a);
    pair_link(p, A);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, 64), 0);
    assert_int_equal(arm(&p->a), fd);
    pair_link_close(p, B, 1);
    pair_link_down(p, A, 1);
    assert_int_equal(arm(&p->a), fd);
}

static void an_idle_nic_sleeps(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    if (!has_fd(&p->a))
        return;
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, 64), 0);
    pair_linger(p);
    int wakes = 0;
    for (uint64_t end = weft_now() + QUIET_MS * 1000000ull; weft_now() < end;) {
        int fd_a = arm(&p->a), fd_b = arm(&p->b);
        struct pollfd fds[2] = {{.fd = fd_a, .events = POLLIN}, {.fd = fd_b, .events = POLLIN}};
        wakes += poll(fds, 2, QUIET_MS / 3) > 0;
        side_poll(&p->a);
        side_poll(&p->b);
        CHECK(wakes <= MOST_WAKES, "an idle nic was woken %d times", wakes);
    }
}

/* B sleeps; what A does wakes it, and the descriptor stays readable until B has polled. */
static void wake_by(struct pair *p, const struct weft_cmd *cmd)
{
    int fd = WEFT_EAGAIN;
    /* what it had to tell the peer may be on its way still, and its end wakes it */
    TEST_UNTIL(!readable(fd = arm(&p->b), 0), side_poll(&p->b),
               "a target with nothing to do to sleep");
    pair_post(p, A, 0, cmd);
    p->a.other = NULL; /* only A polls now */
    TEST_UNTIL(readable(fd, 0), side_poll(&p->a), "a sleeping target to be woken by a %s",
               weft_op_name(cmd->op));
    assert_true(readable(fd, 0));
    int again = p->b.ops->wait_fd(p->b.nic);
    CHECK(again == WEFT_EAGAIN || (again == fd && readable(fd, 0)),
          "wait_fd forgot the work that is waiting");
    p->a.other = &p->b;
    pair_settle(p, A);
}

static void arrivals_wake_the_target(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    struct weft_cmd send = cmd_send(near, 0, 100), imm = cmd_imm(near, 0, far, 0, 8, 3);
    if (!has_fd(&p->a))
        return;
    for (size_t i = 0; i < 20; i++) {
        wake_by(p, &send);
        pair_arrival(p, B, i);
    }
    if (pair_has(p, WEFT_OP_WRITE_IMM))
        wake_by(p, &imm);
}

/* Where the target's processor does the work, requests wake it. */
static void requests_wake_a_target_that_must_work(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    struct weft_cmd write = cmd_write(near, 0, far, 0, MIB);
    struct weft_cmd read = cmd_read(near, 0, far, 0, MIB);
    if (!pair_attr(p).target_progress || !has_fd(&p->a))
        return;
    wake_by(p, &write);
    wake_by(p, &read);
}

#define TO_AND_FRO 300
#define BURST                                                                                     \
    40 /* of the longest messages: more than a nic has room for, if the target does not poll */
#define BUSY_MS                                                                                   \
    4000 /* of a test that waits for nothing: longer, and what woke was a timer of the nic's own */

/* To and fro, and nobody sleeps. Returns how many messages either side has got by now. */
static size_t to_and_fro(struct pair *p, struct buf near, struct buf far)
{
    struct weft_cmd there = cmd_send(near, 0, 100), back = cmd_send(far, 0, 100);
    for (size_t i = 0; i < TO_AND_FRO; i++) {
        size_t had = p->b.narrivals, has = p->a.narrivals;
        pair_post(p, A, 0, &there);
        TEST_UNTIL(p->b.narrivals > had, side_poll(&p->a); side_poll(&p->b), "a message");
        pair_post(p, B, 0, &back);
        TEST_UNTIL(p->a.narrivals > has, side_poll(&p->a); side_poll(&p->b), "an answer");
    }
    return p->a.narrivals;
}

/* A nic may ask in another way while nobody sleeps. It still wakes who sleeps after that. */
static void who_was_busy_sleeps_again(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, 0);
    struct weft_cmd there = cmd_send(near, 0, 100), back = cmd_send(far, 0, 100);
    if (!has_fd(&p->a))
        return;
    uint64_t since = weft_now();
    for (int round = 0; round < 3; round++) {
        size_t had = to_and_fro(p, near, far);
        pair_settle(p, A);
        pair_settle(p, B);
        wake_by(p, &there);
        int fd = WEFT_EAGAIN;
        TEST_UNTIL(!readable(fd = arm(&p->a), 0), side_poll(&p->a), "who asked to sleep");
        pair_post(p, B, 0, &back);
        TEST_UNTIL(readable(fd, 0), side_poll(&p->b), "who asked to be woken");
        TEST_UNTIL(p->a.narrivals > had, side_poll(&p->a); side_poll(&p->b), "its answer");
        pair_settle(p, B);
    }
    CHECK(weft_now() - since < BUSY_MS * 1000000ull, "nobody was woken at once: %d ms",
          (int)((weft_now() - since) / 1000000));
}

/* ... and goes on when there is room again. */
static void who_was_busy_runs_out_of_room(void **state)
{
    struct pair *p = *state;
    uint64_t len = pair_attr(p).max_send < MIB ? pair_attr(p).max_send : MIB;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, 0);
    struct weft_cmd big = cmd_send(near, 0, len);
    size_t first;
    for (int round = 0; round < 2; round++) {
        to_and_fro(p, near, far);
        size_t want = p->b.narrivals;
        for (int i = 0; i < BURST && side_post_many(&p->a, 0, &big, 1, &first) == 1; i++)
            want++;
        for (int i = 0; i < BURST; i++) /* as far as it gets alone */
            side_poll(&p->a);
        TEST_UNTIL(p->b.narrivals == want, side_poll(&p->a); side_poll(&p->b), "a burst");
        pair_settle(p, A);
    }
}

/* Two sides that only ever poll when they are woken get everything done. */
static void pump_asleep(struct pair *p)
{
    int fds[2] = {p->a.ops->wait_fd(p->a.nic), p->b.ops->wait_fd(p->b.nic)};
    if (fds[0] == WEFT_EUNSUPPORTED && fds[1] == WEFT_EUNSUPPORTED)
        nap();
    for (int i = 0; i < 2; i++)
        if (fds[i] == WEFT_EUNSUPPORTED)
            fds[i] = WEFT_EAGAIN;
    if (fds[0] != WEFT_EAGAIN && fds[1] != WEFT_EAGAIN) {
        struct pollfd at[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
        CHECK(poll(at, 2, TEST_DEADLINE_MS) > 0, "both sides sleep, %zu and %zu cmds are open",
              p->a.pending, p->b.pending);
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] == WEFT_EAGAIN || readable(fds[i], 0))
            side_poll(i ? &p->b : &p->a);
}

static void two_sleepers_get_everything_done(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, ACCESS_ALL), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    size_t sent = 0;
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t len = i % 3 ? 100 * i : MIB;
        struct weft_cmd cmds[] = {cmd_write(near, 0, far, 0, len), cmd_read(near, 0, far, 0, len),
                                  cmd_send(near, 0, i)};
        struct weft_cmd back = cmd_send(far, 0, i);
        for (size_t c = 0; c < ARRAY_LEN(cmds); c++)
            pair_post(p, A, 0, &cmds[c]);
        pair_post(p, B, 0, &back);
        sent++;
        TEST_UNTIL(!p->a.pending && !p->b.pending && p->a.narrivals == sent &&
                       p->b.narrivals == sent,
                   pump_asleep(p), "two sleepers");
    }
}

/* The other process polls only when it is woken, too. */
static void answer_asleep(struct side *side, void *arg)
{
    size_t until = *(size_t *)arg;
    while (side->narrivals < until)
        sleep_and_poll(side);
}

static void sleepers_in_two_processes(void **state)
{
    struct pair *p = *state;
    size_t rounds = 200;
    struct buf near = pair_buf(p, A, 64, 0, 0);
    for (size_t i = 0; i < rounds; i++) {
        struct weft_cmd cmd = cmd_send(near, 0, 32);
        pair_post(p, A, 0, &cmd);
    }
    pair_call(p, B, answer_asleep, &rounds, sizeof rounds);
    while (p->a.pending)
        sleep_and_poll(&p->a);
    assert_int_equal(pair_arrivals(p, B), rounds);
}

static void death_wakes(void **state)
{
    struct pair *p = *state;
    test_peer_signal(&p->peer, SIGKILL);
    while (pair_attr(p).peer_death && !p->a.links[0].down)
        sleep_and_poll(&p->a);
    test_peer_join(&p->peer, SIGKILL);
    assert_true(p->a.links[0].status < 0 || !pair_attr(p).peer_death);
}

static void close_of_the_peer_wakes(void **state)
{
    struct pair *p = *state;
    int fd = has_fd(&p->a) ? arm(&p->a) : -1;
    side_link_close(&p->b, 0);
    TEST_UNTIL(fd < 0 || readable(fd, 1), side_poll(&p->b), "a sleeper to be told of the end");
    /* where nobody is woken, what B has to tell leaves while it is polled */
    TEST_UNTIL(p->a.links[0].down, sleep_and_poll(&p->a);
               if (fd < 0) side_poll(&p->b), "LINK_DOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(the_descriptor_stays_the_same),
        IN_ONE(an_idle_nic_sleeps),
        IN_ONE(arrivals_wake_the_target),
        IN_ONE(requests_wake_a_target_that_must_work),
        IN_ONE(who_was_busy_sleeps_again),
        IN_ONE(who_was_busy_runs_out_of_room),
        IN_ONE(two_sleepers_get_everything_done),
        IN_TWO(sleepers_in_two_processes),
        IN_ONE(close_of_the_peer_wakes),
        KILLED(death_wakes),
    };
    return PAIR_MAIN("transport_sleep", tests);
}
