/* SPDX-License-Identifier: Apache-2.0 */
/* SEND and RECV: each message arrives once and whole, whoever is fast and whoever is slow. */
#include "pair.h"

#define MESSAGES 2000
#define SLOT 64

static void every_size_arrives_exactly(void **state)
{
    struct pair *p = *state;
    uint64_t most = pair_attr(p).max_send;
    const uint64_t sizes[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025,
                              4095, 4096, most / 2 + 1, most - 1, most};
    struct buf from = pair_buf(p, A, most, 1, 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        pair_fill(p, from, i);
        pair_do(p, A, 0, cmd_send(from, 0, sizes[i]), 0);
        struct arrived got = pair_arrival(p, B, i);
        assert_int_equal(got.op, WEFT_OP_RECV);
        assert_int_equal(got.link, 0);
        assert_int_equal(got.len, sizes[i]);
        pair_check_arrival(p, B, i, i, 0);
    }
}

static void the_longest_is_at_least_4096(void **state)
{
    assert_true(pair_attr(*state).max_send >= 4096);
}

static void a_longer_one_is_refused(void **state)
{
    struct pair *p = *state;
    uint64_t most = pair_attr(p).max_send;
    struct buf from = pair_buf(p, A, most + 1, 0, 0);
    struct weft_cmd cmd = cmd_send(from, 0, most + 1);
    assert_true(pair_try(p, A, 0, &cmd) < 0);
    pair_do(p, A, 0, cmd_send(from, 0, most), 0);
    assert_int_equal(pair_arrival(p, B, 0).len, most);
    assert_int_equal(pair_arrivals(p, B), 1);
}

static void pieces_are_gathered_in_order(void **state)
{
    struct pair *p = *state;
    uint32_t n = pair_attr(p).max_iov < 16 ? pair_attr(p).max_iov : 16;
    struct buf from = pair_buf(p, A, 4096, 3, 0);
    struct weft_iov_local iov[16];
    uint64_t len = 0;
    pair_fill(p, from, 1);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t piece = i % 4 == 2 ? 0 : i * 17 + 1;
        iov[i] = (struct weft_iov_local){(char *)(uintptr_t)from.addr + len, piece, from.mem};
        len += piece;
    }
    struct weft_cmd cmd = cmd_send(from, 0, len);
    cmd.niov = (uint16_t)n;
    cmd.iov = iov;
    pair_do(p, A, 0, cmd, 0);
    assert_int_equal(pair_arrival(p, B, 0).len, len);
    pair_check_arrival(p, B, 0, 1, 0);
}

/* Number the messages, send them all, and see each exactly once; in order if that is promised. */
static void send_numbered(struct pair *p, enum who who, struct buf from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        struct weft_cmd cmd = cmd_send(from, i % SLOT * 16, 8 + i % 9);
        pair_set_word(p, from, i % SLOT * 16, i);
        pair_post(p, who, 0, &cmd);
        if (i % SLOT == SLOT - 1) /* a slot is used again when it is the caller's again */
            pair_settle(p, who);
    }
}

static void expect_numbered(struct pair *p, enum who who, uint64_t n)
{
    unsigned char *seen = calloc(n, 1);
    for (uint64_t i = 0; i < n; i++) {
        struct arrived got = pair_arrival(p, who, i);
        CHECK(got.head < n && got.len == 8 + got.head % 9, "message %" PRIu64 " is damaged", i);
        CHECK(!seen[got.head]++, "message %" PRIu64 " arrived twice", got.head);
        CHECK(pair_attr(p).order != WEFT_ORDER_LINK || got.head == i,
              "message %" PRIu64 " came as number %" PRIu64, got.head, i);
    }
    free(seen);
}

static void each_message_arrives_once(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, SLOT * 16, 0, 0);
    send_numbered(p, A, from, MESSAGES);
    expect_numbered(p, B, MESSAGES);
    pair_linger(p);
    assert_int_equal(pair_arrivals(p, B), MESSAGES);
}

static void both_directions_at_once(void **state)
{
    struct pair *p = *state;
    struct buf a = pair_buf(p, A, SLOT * 16, 0, 0), b = pair_buf(p, B, SLOT * 16, 0, 0);
    send_numbered(p, A, a, MESSAGES / 2);
    send_numbered(p, B, b, MESSAGES / 2);
    expect_numbered(p, A, MESSAGES / 2);
    expect_numbered(p, B, MESSAGES / 2);
}

/* The receiver does not poll: the sender is slowed down, and nothing is lost. */
static void a_slow_receiver_loses_nothing(void **state)
{
    struct pair *p = *state;
    uint64_t n = 3ull * pair_attr(p).tx_depth < 5000 ? 3ull * pair_attr(p).tx_depth : 5000;
    struct buf from = pair_buf(p, A, 8 * n, 0, 0);
    uint64_t sent = 0;
    p->a.other = NULL; /* only A polls */
    for (int idle = 0; idle < 200 && sent < n;) {
        struct weft_cmd cmd = cmd_send(from, 8 * sent, 8);
        size_t number;
        memcpy((char *)(uintptr_t)from.addr + 8 * sent, &sent, 8);
        int took = side_post_many(&p->a, 0, &cmd, 1, &number);
        assert_true(took >= 0);
        sent += (uint64_t)took;
        idle = took || side_poll(&p->a) ? 0 : idle + 1;
    }
    p->a.other = &p->b;
    assert_true(sent > 0);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < sent; i++)
        sum += pair_arrival(p, B, i).head;
    assert_true(sum == sent * (sent - 1) / 2);
    pair_settle(p, A);
    assert_int_equal(pair_arrivals(p, B), sent);
}

/* Nobody waits for these, but they end: those that others follow, and the last ones. */
static void quiet_ones_end_too(void **state)
{
    struct pair *p = *state;
    struct buf a = pair_buf(p, A, SLOT * 16, 0, 0), b = pair_buf(p, B, SLOT * 16, 0, 0);
    for (uint64_t i = 0; i < 200; i++) {
        struct weft_cmd there = cmd_send(a, i % SLOT * 16, 8), back = cmd_send(b, i % SLOT * 16, 8);
        there.flags = back.flags = WEFT_CMD_QUIET;
        if (i % SLOT == 0) {
            pair_settle(p, A);
            pair_settle(p, B);
        }
        pair_set_word(p, a, i % SLOT * 16, i);
        pair_post(p, A, 0, &there);
        assert_int_equal(pair_arrival(p, B, i).len, 8);
        pair_post(p, B, 0, &back);
        assert_int_equal(pair_arrival(p, A, i).len, 8);
    }
    pair_settle(p, A);
    pair_settle(p, B);
    assert_int_equal(pair_arrivals(p, A), 200);
    assert_int_equal(pair_arrivals(p, B), 200);
}

/* poll returns as few comps as it is asked for, and keeps the rest. */
static void one_comp_at_a_time(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, SLOT * 16, 0, 0);
    p->a.max = p->b.max = 1;
    send_numbered(p, A, from, 300);
    expect_numbered(p, B, 300);
    p->a.max = p->b.max = 0;
    assert_int_equal(side_poll(&p->a), 0);
    p->a.max = p->b.max = 8;
}

/* Who is sent one message after the other hears soon all the same that its own has ended. */
static void ends_come_between_messages(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, 8, 0, 0), back = pair_buf(p, B, 8, 0, 0);
    struct weft_cmd cmd = cmd_send(from, 0, 8), more = cmd_send(back, 0, 8);
    size_t n = pair_post(p, A, 0, &cmd);
    pair_arrival(p, B, 0);
    p->a.max = 1;
    p->a.other = p->b.other = NULL;
    uint64_t until = weft_now() + 20000000000u;
    while (p->a.narrivals < 8 && !p->a.recs[n].done && weft_now() < until) {
        size_t first;
        while (p->b.nrecs < p->a.narrivals + 4 && side_post_many(&p->b, 0, &more, 1, &first) == 1)
            ;
        side_poll(&p->b);
        side_poll(&p->a);
    }
    p->a.other = &p->b;
    p->b.other = &p->a;
    p->a.max = 8;
    assert_true(p->a.recs[n].done);
}

static void messages_of_several_links_do_not_mix(void **state)
{
    struct pair *p = *state;
    struct buf from = pair_buf(p, A, 8 * 400, 0, 0);
    for (int link = 1; link < 4; link++)
        pair_link(p, link & 1 ? B : A);
    for (uint64_t i = 0; i < 400; i++) {
        struct weft_cmd cmd = cmd_send(from, i * 8, 8);
        pair_set_word(p, from, i * 8, i);
        pair_post(p, A, (int)(i % 4), &cmd);
    }
    uint64_t next[4] = {0, 1, 2, 3};
    for (uint64_t i = 0; i < 400; i++) {
        struct arrived got = pair_arrival(p, B, i);
        assert_int_equal(got.head % 4, got.link);
        if (pair_attr(p).order == WEFT_ORDER_LINK)
            assert_int_equal(got.head, next[got.link]);
        next[got.link] += 4;
    }
    pair_settle(p, A);
}

/* The message is the payload as it was when the comp came, whatever the sender does after. */
static void a_comp_gives_the_memory_back(void **state)
{
    struct pair *p = *state;
    uint64_t len = pair_attr(p).max_send;
    struct buf from = pair_buf(p, A, len, 0, 0);
    for (uint64_t i = 0; i < 20; i++) {
        pair_fill(p, from, i);
        pair_do(p, A, 0, cmd_send(from, 0, len), 0);
    }
    pair_fill(p, from, 99);
    for (uint64_t i = 0; i < 20; i++) {
        struct arrived got = pair_arrival(p, B, i);
        uint64_t seed = i;
        if (pair_attr(p).order != WEFT_ORDER_LINK)
            for (seed = 0; seed < 20; seed++) {
                uint64_t head;
                test_fill(&head, 8, seed, 0);
                if (head == got.head)
                    break;
            }
        pair_check_arrival(p, B, i, seed, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(the_longest_is_at_least_4096),
        IN_BOTH(every_size_arrives_exactly),
        IN_BOTH(a_longer_one_is_refused),
        IN_BOTH(pieces_are_gathered_in_order),
        IN_BOTH(each_message_arrives_once),
        IN_BOTH(both_directions_at_once),
        IN_ONE(a_slow_receiver_loses_nothing),
        IN_BOTH(quiet_ones_end_too),
        IN_ONE(one_comp_at_a_time),
        IN_ONE(ends_come_between_messages),
        IN_BOTH(messages_of_several_links_do_not_mix),
        IN_BOTH(a_comp_gives_the_memory_back),
    };
    return PAIR_MAIN("transport_send", tests);
}
