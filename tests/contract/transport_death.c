/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a link: one LINK_DOWN that says why, nothing after it, no memory touched after
 * link_close; and peers that are killed at any moment.
 */
#include "pair.h"

#define MIB (1 << 20)

/* --- closed by the peer -------------------------------------------------------------------- */

static void the_other_end_sees_one_link_down(void **state)
{
    struct pair *p = *state;
    for (int link = 1; link <= 4; link++) {
        pair_link(p, link & 1 ? A : B);
        enum who closer = link & 2 ? A : B, other = closer == A ? B : A;
        pair_link_close(p, closer, link);
        int why = pair_link_down(p, other, link);
        assert_true(why < 0);
        pair_linger(p); /* a second one would fail in side_poll */
        pair_link_close(p, other, link);
    }
    assert_false(pair_link_state(p, A, 0).down);
}

/* Closing ends a link also while a child of this process, which did not exec, holds copies of all
 * its descriptors. */
static void a_child_does_not_keep_a_link_open(void **state)
{
    struct pair *p = *state;
    int ends[2];
    char byte;
    pair_link(p, A);
    pair_link(p, B);
    CHECK(!pipe(ends), "pipe: %m");
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (child == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    for (int link = 1; link <= 2; link++) {
        pair_link_close(p, A, link);
        pair_link_down(p, B, link);
        pair_linger(p);
        pair_link_close(p, B, link);
    }
    close(ends[0]);
    close(ends[1]);
    test_join(child, 0);
}

static void a_dead_link_takes_nothing(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    struct weft_cmd cmd = cmd_write(near, 0, far, 0, 8);
    pair_link_close(p, B, 0);
    pair_link_down(p, A, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pair_try(p, A, 0, &cmd), WEFT_ELINK);
    pair_link_close(p, A, 0);
    assert_int_equal(pair_link(p, A), 1); /* and the nics can be linked again */
    pair_do(p, A, 1, cmd, 0);
}

/* What was in flight when the peer closed ends with its comp, or with the link: not in both. */
static void close_of_the_peer_under_load(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, MIB, 0, 0), far = pair_buf(p, B, MIB, 0, ACCESS_ALL);
    struct buf back = pair_buf(p, A, MIB, 0, 0);
    pair_link(p, A);
    for (int i = 0; i < 16; i++) {
        struct weft_cmd write = cmd_write(near, 0, far, 0, i % 3 ? 100 : MIB);
        struct weft_cmd read = cmd_read(back, 0, far, 0, i % 3 ? 100 : MIB);
        struct weft_cmd send = cmd_send(near, 0, 100);
        pair_post(p, A, 1, &write);
        pair_post(p, A, 1, &read);
        pair_post(p, A, 1, &send);
    }
    pair_link_close(p, B, 1);
    pair_link_down(p, A, 1);
    pair_settle(p, A);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, MIB), 0);
}

/* --- closed on this side ------------------------------------------------------------------- */

/* What is under way over the link, for longer the higher its number, changes nothing any more. */
static void close_under_way(struct pair *p, struct buf near, int link)
{
    for (int i = 0; i < 2 * link; i++)
        pair_pump(p);
    pair_link_close(p, A, link);
    pair_fill(p, near, 2);
    pair_link_down(p, B, link);
    pair_linger(p);
    pair_check(p, near, 0, 4 * MIB, 2);
    pair_link_close(p, B, link);
}

/* After link_close the payload of its cmds is this side's again. */
static void after_close_no_memory_is_touched(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4 * MIB, 0, 0), far = pair_buf(p, B, 4 * MIB, 0, ACCESS_ALL);
    for (int link = 1; link <= 6; link++) {
        pair_link(p, A);
        pair_fill(p, far, 1);
        for (int i = 0; i < 4; i++) {
            struct weft_cmd read = cmd_read(near, (uint64_t)i * MIB, far, 0, MIB);
            pair_post(p, A, link, &read);
        }
        close_under_way(p, near, link);
    }
}

/* And nothing that the peer had under way lands here any more. */
static void after_close_the_peer_writes_nothing(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 4 * MIB, 0, ACCESS_ALL), far = pair_buf(p, B, MIB, 0, 0);
    for (int link = 1; link <= 6; link++) {
        pair_link(p, A);
        for (int i = 0; i < 4; i++) {
            struct weft_cmd write = cmd_write(far, 0, near, (uint64_t)i * MIB, MIB);
            pair_post(p, B, link, &write);
        }
        close_under_way(p, near, link);
    }
}

/* Everything that completed here is there, although the link is closed at once. */
static void completed_means_delivered_even_if_closed(void **state)
{
    struct pair *p = *state;
    enum { N = 200 };
    struct buf near = pair_buf(p, A, 8 * N, 0, 0), far = pair_buf(p, B, 8 * N, 0, ACCESS_ALL);
    size_t sends[N], writes[N], sent = 0;
    pair_link(p, A);
    for (uint64_t i = 0; i < N; i++) {
        pair_set_word(p, near, 8 * i, i + 1);
        struct weft_cmd write = cmd_write(near, 8 * i, far, 8 * i, 8);
        struct weft_cmd send = cmd_send(near, 8 * i, 8);
        writes[i] = pair_post(p, A, 1, &write);
        sends[i] = pair_post(p, A, 1, &send);
    }
    TEST_UNTIL(p->a.pending < N, pair_pump(p), "half of the cmds to complete");
    side_link_close(&p->a, 1);
    pair_link_down(p, B, 1);
    for (uint64_t i = 0; i < N; i++)
        sent += pair_wait(p, A, sends[i]).done;
    if (pair_attr(p).done != WEFT_DONE_DELIVERED)
        return;
    CHECK(pair_arrivals(p, B) >= sent, "%zu messages were delivered, but %zu arrived", sent,
          pair_arrivals(p, B));
    for (uint64_t i = 0; i < N; i++)
        if (pair_wait(p, A, writes[i]).done)
            CHECK(pair_word(p, far, 8 * i) == i + 1, "write %" PRIu64 " was not delivered", i);
}

/* --- killed -------------------------------------------------------------------------------- */

/* LINK_DOWN comes, and alone. */
static void expect_down(struct pair *p, int link)
{
    TEST_UNTIL(p->a.links[link].down, side_pump(&p->a), "LINK_DOWN of a killed peer");
    assert_int_equal(p->a.pending, 0);
    pair_linger(p);
}

static void killed_while_idle(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 64, 0, 0), far = pair_buf(p, B, 64, 0, ACCESS_ALL);
    pair_do(p, A, 0, cmd_write(near, 0, far, 0, 64), 0);
    test_peer_kill(&p->peer);
    struct weft_cmd cmd = cmd_write(near, 0, far, 0, 64);
    if (!pair_attr(p).peer_death)
        side_post(&p->a, 0, &cmd);
    expect_down(p, 0);
    assert_int_equal(side_post(&p->a, 0, &cmd), WEFT_ELINK);
}

static void post_some(struct pair *p, struct weft_cmd cmd)
{
    for (int i = 0; i < 8; i++)
        pair_post(p, A, 0, &cmd);
}

/* Some nics notice the death of a peer only when they want something of it. */
static void say_something(struct pair *p, struct buf near)
{
    struct weft_cmd cmd = cmd_send(near, 0, 8);
    if (!pair_attr(p).peer_death)
        side_post(&p->a, 0, &cmd);
}

static void killed_under(struct pair *p, enum weft_op op)
{
    struct buf near = pair_buf(p, A, 8 * MIB, 0, ACCESS_ALL);
    struct buf far = pair_buf(p, B, 8 * MIB, 0, ACCESS_ALL);
    pair_fill(p, near, 1);
    pair_fill(p, far, 1);
    struct weft_cmd cmd = op == WEFT_OP_READ    ? cmd_read(near, 0, far, 0, 8 * MIB)
                          : op == WEFT_OP_SEND  ? cmd_send(near, 0, 4096)
                                                : cmd_write(near, 0, far, 0, 8 * MIB);
    post_some(p, cmd);
    for (int i = 0; i < 5; i++)
        side_pump(&p->a);
    test_peer_kill(&p->peer);
    say_something(p, near);
    expect_down(p, 0);
}

static void killed_under_writes(void **state)
{
    killed_under(*state, WEFT_OP_WRITE);
}

static void killed_under_reads(void **state)
{
    killed_under(*state, WEFT_OP_READ);
}

static void killed_under_sends(void **state)
{
    killed_under(*state, WEFT_OP_SEND);
}

/* The peer was reading from and writing to this side's memory when it died. */
static void killed_as_initiator(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 8 * MIB, 0, ACCESS_ALL);
    struct buf far = pair_buf(p, B, 8 * MIB, 0, 0);
    struct weft_cmd write = cmd_write(far, 0, near, 0, 8 * MIB);
    struct weft_cmd read = cmd_read(far, 0, near, 0, 8 * MIB);
    pair_fill(p, near, 1);
    pair_post(p, B, 0, &read);
    pair_post(p, B, 0, &write);
    for (int i = 0; i < 5; i++)
        side_pump(&p->a);
    test_peer_kill(&p->peer);
    say_something(p, near);
    expect_down(p, 0);
    pair_dereg(p, &near); /* its memory comes free */
    pair_fill(p, near, 2);
    pair_linger(p);
    pair_check(p, near, 0, 8 * MIB, 2);
}

/* The other peer of the same nic notices nothing. */
static void only_the_links_of_the_dead_go_down(void **state)
{
    struct pair *p = *state;
    struct side third;
    side_open(&third, 1);
    side_join(&p->a, &third, NULL, 0);
    p->a.other = &third;
    int from = side_buf(&p->a, MIB, 0, 0), to = side_buf(&third, MIB, 0, ACCESS_ALL);
    test_fill(p->a.bufs[from].mem.at, MIB, 3, 0);
    test_peer_kill(&p->peer);
    for (int i = 0; i < 20; i++) {
        struct weft_cmd cmd = side_write(&p->a.bufs[from], &third.bufs[to]);
        assert_true(side_post(&p->a, 1, &cmd) >= 0);
    }
    pair_settle(p, A);
    assert_true(test_differs(third.bufs[to].mem.at, MIB, 3, 0) < 0);
    if (pair_attr(p).peer_death)
        expect_down(p, 0);
    assert_false(p->a.links[1].down);
    p->a.other = NULL;
    side_close(&third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(the_other_end_sees_one_link_down),
        IN_BOTH(a_child_does_not_keep_a_link_open),
        IN_BOTH(a_dead_link_takes_nothing),
        IN_BOTH(close_of_the_peer_under_load),
        IN_BOTH(after_close_no_memory_is_touched),
        IN_BOTH(after_close_the_peer_writes_nothing),
        IN_BOTH(completed_means_delivered_even_if_closed),
        KILLED(killed_while_idle),
        KILLED(killed_under_writes),
        KILLED(killed_under_reads),
        KILLED(killed_under_sends),
        KILLED(killed_as_initiator),
        KILLED(only_the_links_of_the_dead_go_down),
    };
    return PAIR_MAIN("transport_death", tests);
}
