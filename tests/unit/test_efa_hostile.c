/* SPDX-License-Identifier: Apache-2.0 */
/* efa: a peer that says what it should not, or not when it should. */
#include "efa_pair.h"

#include "transports/efa/efa.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define A PAIR_A
#define B PAIR_B

static struct efa_link *link_of(const struct efa_pair *ep, int side)
{
    return (struct efa_link *)ep->pair.side[side].link;
}

static void both(struct efa_pair *ep, int n)
{
    while (n-- > 0) {
        pair_poll(&ep->pair, A);
        pair_poll(&ep->pair, B);
    }
}

/* A number that a failed WRITE_IMM had is missing at the peer. */
static void immediates_after_one_that_failed(void **state)
{
    (void)state;
    static const char *const kinds[] = {"", LIKE_EFA};
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct efa_pair ep;
        char fail[64];
        efa_pair_open(&ep, kinds[k], NULL);
        snprintf(fail, sizeof fail, "%s%sfail=1", kinds[k], *kinds[k] ? "," : "");
        struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE_IMM, 64);
        fake_fabric_set(fail);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), -EIO);
        fake_fabric_set(kinds[k]);
        for (int i = 0; i < 300; i++) {
            struct pair_comp comp;
            assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
            both(&ep, 50);
            CHECK(pair_take(&ep.pair, B, WEFT_OP_WRITE_IMM, 0, &comp), "kind %zu: immediate %d after the failed one is lost",
                  k, i);
        }
        efa_pair_close(&ep);
    }
}

/* The same in the ordinary way: the memory goes while a WRITE_IMM to it is under way, which is refused. */
static void immediates_after_memory_that_went(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct pair_comp comp;
    bool gone = false, ended = false;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    uint8_t *more = calloc(1, 4096);
    struct weft_cmd cmd, good = efa_pair_cmd(&ep, WEFT_OP_WRITE_IMM, 64);
    struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd);
    fake_fabric_set(LIKE_EFA ",fail=1");
    cmd.op = WEFT_OP_WRITE_IMM;
    pair_post(&ep.pair, A, &cmd);
    for (uint64_t until = test_deadline(); !gone || !ended;) {
        CHECK(weft_now() < until, "ended %d, gone %d", ended, gone);
        gone = gone || ep.pair.ops->mem_dereg(ep.pair.side[B].nic, other.mem) == 0;
        both(&ep, 1);
        ended = ended || pair_take(&ep.pair, A, WEFT_OP_WRITE_IMM, 1, &comp);
    }
    assert_int_not_equal(comp.comp.status, 0);
    fake_fabric_set(LIKE_EFA);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(pair_do(&ep.pair, A, &good), 0);
        both(&ep, 50);
        CHECK(pair_take(&ep.pair, B, WEFT_OP_WRITE_IMM, 0, &comp), "immediate %d is lost", i);
    }
    efa_pair_close(&ep);
    free(more);
}

/* One is under way for long, while others pass it. */
static void immediates_that_pass_a_slow_one(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct pair_comp comp;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct efa_nic *nic = efa_pair_nic(&ep, A);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    fake_fabric_set(LIKE_EFA ",fail=1");
    cmd.op = WEFT_OP_WRITE_IMM;
    cmd.ctx = 5;
    pair_post(&ep.pair, A, &cmd);
    TEST_UNTIL(!weft_list_empty(&nic->again), efa_progress(nic), "it to fail");
    fake_fabric_set(LIKE_EFA);
    struct efa_req *slow = WEFT_LIST_OF(nic->again.next, struct efa_req, in);
    weft_list_remove(&slow->in); /* the network has it */
    cmd.ctx = 1;
    int n = 0, ended = 0, came = 0;
    while (n < 300 && ep.pair.ops->post(ep.pair.side[A].link, &cmd, 1) == 1) {
        n++;
        both(&ep, 50);
        while (pair_take(&ep.pair, A, WEFT_OP_WRITE_IMM, 1, &comp))
            ended++;
        while (pair_take(&ep.pair, B, WEFT_OP_WRITE_IMM, 0, &comp))
            came++;
        CHECK(came >= ended, "%d have ended, %d have come", ended, came); /* or they wait for the slow one */
    }
    weft_list_push(&nic->again, &slow->in);
    efa_busy(link_of(&ep, A));
    assert_int_equal(pair_wait(&ep.pair, A, WEFT_OP_WRITE_IMM, 5).comp.status, 0);
    for (; ended < n; ended++)
        pair_wait(&ep.pair, A, WEFT_OP_WRITE_IMM, 1);
    for (; came < n + 1; came++)
        pair_wait(&ep.pair, B, WEFT_OP_WRITE_IMM, 0);
    efa_pair_close(&ep);
}

/* Who has shown no key yet takes no more of the nic's receives than its link brought along. */
static void early_messages_have_a_limit(void **state)
{
    (void)state;
    struct efa_pair ep;
    static const uint8_t zeros[64];
    efa_pair_open(&ep, "", NULL);
    struct efa_link *to = link_of(&ep, B), *from = link_of(&ep, A);
    to->state = EFA_LINK_JOINING; /* as before the peer's proof */
    int n = 0;
    for (int i = 0; i < 20000; i++) {
        efa_msg_note(from, EFA_LOOKUP, zeros, sizeof(struct efa_lookup_msg));
        both(&ep, 3);
        from->seq = from->acked;
        from->unsure = 0;
        if (to->state == EFA_LINK_DOWN)
            break;
    }
    for (struct weft_list *at = to->early.next; at != &to->early; at = at->next)
        n++;
    CHECK(n <= (int)to->own_window, "%d messages of %u bytes each wait", n, efa_pair_nic(&ep, B)->larges.size);
    to->state = EFA_LINK_UP;
    efa_pair_close(&ep);
}

static void a_status_that_is_none(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_ADD64, 8);
    pair_post(&ep.pair, A, &cmd);
    const struct efa_op *op = WEFT_LIST_OF(link_of(&ep, A)->asked.next, struct efa_op, in);
    struct efa_added_msg msg = {.id = htole32(op->id), .status = (int32_t)htole32(5)};
    efa_msg_note(link_of(&ep, B), EFA_ADDED, &msg, sizeof msg);
    TEST_UNTIL(link_of(&ep, B)->nnotes == 0, pair_poll(&ep.pair, B), "the answer to go");
    struct weft_comp comp = pair_wait(&ep.pair, A, WEFT_OP_ADD64, 1).comp;
    CHECK(comp.status <= 0, "status %d", comp.status);
    efa_pair_close(&ep);
}

/* This side's link goes down for what the other one says; and the pair is closed. */
static void expect_down(struct efa_pair *ep, int side, int status, const char *what)
{
    struct pair_comp comp;
    for (uint64_t until = weft_now() + 4000000000ull;;) {
        both(ep, 1);
        if (pair_take(&ep->pair, side, WEFT_OP_LINK_DOWN, 0, &comp))
            break;
        CHECK(weft_now() < until, "%s: the link stays up", what);
    }
    CHECK(comp.comp.status == status, "%s: status %d", what, comp.comp.status);
    efa_pair_close(ep);
}

static void malformed_messages(void **state)
{
    (void)state;
    static const struct {
        enum efa_kind kind;
        uint32_t len;
    } cases[] = {{EFA_LOOKUP, 4}, {EFA_LOOKUP, 24}, {EFA_ADD, 8}, {EFA_TARGET, 4}, {EFA_STAY, 0}, {EFA_IMM, 17},
                 {EFA_FETCH, 31}, {EFA_DATA, 0}, {EFA_DATA, 15}, {EFA_UP, 1}, {EFA_KINDS, 0}, {(enum efa_kind)0, 0},
                 {EFA_ANSWER, sizeof(struct efa_answer_msg)}, {EFA_ADDED, sizeof(struct efa_added_msg)},
                 {EFA_HELLO, sizeof(struct efa_hello)}, {EFA_UP, 0}};
    static const uint8_t zeros[256];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct efa_pair ep;
        char what[64];
        efa_pair_open(&ep, "", NULL);
        snprintf(what, sizeof what, "kind %u of %u bytes", cases[i].kind, cases[i].len);
        efa_msg_note(link_of(&ep, A), cases[i].kind, zeros, cases[i].len);
        expect_down(&ep, B, WEFT_EPROTO, what);
    }
}

static void wrong_numbers(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd;
    /* one too far ahead */
    efa_pair_open(&ep, "", NULL);
    cmd = efa_pair_cmd(&ep, WEFT_OP_SEND, 64);
    link_of(&ep, A)->seq += EFA_SEEN;
    link_of(&ep, A)->acked += EFA_SEEN;
    pair_post(&ep.pair, A, &cmd);
    expect_down(&ep, B, WEFT_EPROTO, "a number too far ahead");
    /* one that has been */
    efa_pair_open(&ep, "", NULL);
    cmd = efa_pair_cmd(&ep, WEFT_OP_SEND, 64);
    link_of(&ep, A)->seq += 2;
    pair_post(&ep.pair, A, &cmd);
    free(pair_wait(&ep.pair, B, WEFT_OP_RECV, 0).data);
    link_of(&ep, A)->seq -= 1;
    pair_post(&ep.pair, A, &cmd);
    expect_down(&ep, B, WEFT_EPROTO, "a number twice");
}

/* More is answered to a READ by messages than was asked for. */
static void too_much_data(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset;
        uint32_t n;
    } cases[] = {{0, 65}, {1, 64}, {65, 0}, {UINT64_MAX, 2}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct efa_pair ep;
        struct {
            struct efa_data_msg head;
            uint8_t bytes[128];
        } data = {{0}, {0}};
        efa_pair_open(&ep, "noread=1", NULL);
        struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_READ, 64);
        pair_post(&ep.pair, A, &cmd);
        const struct efa_op *op = WEFT_LIST_OF(link_of(&ep, A)->asked.next, struct efa_op, in);
        data.head.id = htole32(op->id);
        data.head.offset = htole64(cases[i].offset);
        efa_msg_note(link_of(&ep, B), EFA_DATA, &data, (uint32_t)sizeof data.head + cases[i].n);
        expect_down(&ep, A, WEFT_EPROTO, "data");
    }
}

/* What counts up to a limit is counted down again. */
static void counts_come_back(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd;
    efa_pair_open(&ep, "noread=1", NULL);
    for (int i = 0; i < EFA_NOTES + 50; i++) {
        cmd = efa_pair_cmd(&ep, WEFT_OP_READ, 8);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        cmd = efa_pair_cmd(&ep, WEFT_OP_ADD64, 8);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    }
    assert_int_equal(link_of(&ep, B)->nfetches, 0);
    efa_pair_close(&ep);
    efa_pair_open(&ep, LIKE_EFA, NULL);
    for (int i = 0; i < 1100; i++) {
        cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE_IMM, 8);
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        pair_wait(&ep.pair, B, WEFT_OP_WRITE_IMM, 0);
    }
    assert_int_equal(link_of(&ep, B)->nhalves, 0);
    efa_pair_close(&ep);
}

/* The peer says goodbye, and its last message never comes. */
static void a_last_message_that_is_lost(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    efa_link_on_bye(link_of(&ep, B), link_of(&ep, B)->taken + 1);
    expect_down(&ep, B, WEFT_ELINK, "a last message that never comes");
}

/* Of two that libfabric took over the first arrives. */
static void the_second_of_two_is_lost(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_SEND, 16);
    struct weft_cmd other = cmd;
    other.ctx = 2;
    pair_do(&ep.pair, A, &cmd);
    link_of(&ep, A)->ninjected = 0;
    for (uint64_t until = weft_now() + 3000000; weft_now() < until;)
        both(&ep, 64);
    pair_post(&ep.pair, A, &cmd);
    for (int i = 0; i < 100; i++)
        pair_poll(&ep.pair, B); /* it is taken, and that is said */
    fake_fabric_unreachable(true);
    pair_post(&ep.pair, A, &other);
    pair_wait(&ep.pair, A, WEFT_OP_SEND, 1);
    struct pair_comp comp;
    for (uint64_t until = weft_now() + 4000000000ull; !pair_take(&ep.pair, A, WEFT_OP_LINK_DOWN, 0, &comp);) {
        both(&ep, 1);
        CHECK(weft_now() < until, "%s", "nobody misses it");
    }
    fake_fabric_unreachable(false);
    efa_pair_close(&ep);
}

/* What went out when the memory was known by another question is given back, too. */
static void an_older_use_of_memory_that_goes(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    uint8_t *more = calloc(1, 4096);
    struct weft_cmd cmd;
    struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd);
    struct efa_region *old = WEFT_LIST_OF(link_of(&ep, A)->regions.prev, struct efa_region, in);
    old->users++; /* a req that is under way for long */
    efa_region_doubt(old); /* another one has failed */
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0); /* asked again */
    assert_int_equal(efa_pair_nic(&ep, B)->nleases, 1);
    assert_int_equal(ep.pair.ops->mem_dereg(ep.pair.side[B].nic, other.mem), WEFT_EAGAIN);
    both(&ep, 50);
    assert_int_equal(efa_pair_nic(&ep, B)->nleases, 1);
    efa_region_leave(old);
    efa_pair_dereg(&ep, B, other);
    assert_int_equal(efa_pair_nic(&ep, B)->nleases, 0);
    efa_pair_close(&ep);
    free(more);
}

/* Of two words on staying awake the later one holds, whichever comes first. */
static void words_that_overtake_each_other(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct efa_link *link = link_of(&ep, B);
    struct efa_stay_msg stay = {.stay = htole32(1), .count = htole32(1)}, go = {.count = htole32(2)};
    efa_link_on_stay(link, &go);
    efa_link_on_stay(link, &stay);
    assert_int_equal(efa_pair_nic(&ep, B)->nstays, 0);
    struct efa_target old = {.epoch = htole32(link->epoch - 1), .len = htole16(link->target->len)};
    memcpy(old.name, link->to->bytes, link->to->len);
    const struct efa_name *target = link->target;
    efa_link_on_target(link, &old);
    assert_ptr_equal(link->target, target);
    efa_pair_close(&ep);
}

/* More keys than a link remembers; what is in use is not forgotten. */
static void more_keys_than_are_remembered(void **state)
{
    (void)state;
    enum { N = EFA_REGIONS + 50 };
    static struct weft_mem_handle mems[N];
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct efa_link *link = link_of(&ep, A);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    struct efa_region *used = NULL;
    for (uint64_t i = 0; i < N; i++) {
        mems[i] = pair_reg(&ep.pair, B, ep.buf[B], 4096, PAIR_ALL, 1000 + i);
        cmd.remote_key = mems[i].rkey;
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        assert_true(link->nregions <= EFA_REGIONS);
        if (i == 0) {
            used = WEFT_LIST_OF(link->regions.prev, struct efa_region, in);
            used->users++; /* a req that is under way for long */
        }
    }
    assert_true(weft_list_empty(&link->stale));
    efa_region_leave(used);
    for (int i = 0; i < N; i++)
        efa_pair_dereg(&ep, B, mems[i]);
    efa_pair_close(&ep);
}

/* What has arrived for a link is forgotten with it. */
static void arrivals_of_a_link_that_is_closed(void **state)
{
    (void)state;
    struct weft_comp comps[8];
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE_IMM, 64), send = efa_pair_cmd(&ep, WEFT_OP_SEND, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    pair_wait(&ep.pair, B, WEFT_OP_WRITE_IMM, 0);
    pair_post(&ep.pair, A, &cmd);
    pair_post(&ep.pair, A, &send);
    struct efa_nic *nic = efa_pair_nic(&ep, B);
    TEST_UNTIL(nic->imms && !weft_list_empty(&nic->arrivals), (pair_poll(&ep.pair, A), efa_progress(nic)), "both to arrive");
    ep.pair.ops->link_close(ep.pair.side[B].link);
    assert_null(nic->imms->link);
    assert_null(WEFT_LIST_OF(nic->arrivals.next, struct efa_slot, in)->link);
    assert_int_equal(ep.pair.ops->poll(&nic->base, comps, 8), 0);
    ep.pair.ops->link_close(ep.pair.side[A].link);
    pair_connect(&ep.pair);
    efa_pair_close(&ep);
}

/* An address that is whole, and wrong. */
static void an_address_with_a_wrong_length(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct efa_address a;
    efa_pair_open(&ep, "", NULL);
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    static const uint16_t lens[] = {EFA_MAX_NAME + 1, 60000, 0};
    for (size_t k = 0; k < ARRAY_LEN(lens); k++) {
        struct weft_link *link;
        PAIR_OK(ep.pair.ops->link_address(ep.pair.side[B].link, &a, sizeof a));
        memset(a.name, 'x', sizeof a.name);
        a.len = htole16(lens[k]);
        a.check = 0;
        uint32_t sum = 2166136261u;
        for (size_t i = 0; i < sizeof a; i++)
            sum = (sum ^ ((const uint8_t *)&a)[i]) * 16777619u;
        a.check = htole32(sum);
        PAIR_OK(ep.pair.ops->link_open(ep.pair.side[A].nic, &opts, &link));
        assert_int_equal(ep.pair.ops->link_connect(link, &a, sizeof a), WEFT_EPROTO);
        ep.pair.ops->link_close(link);
    }
    efa_pair_close(&ep);
}

/* A link is closed while the peer, who knows of memory here, does not poll: it cannot reach it afterwards. */
static void a_link_that_is_closed_takes_its_memory_back(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    pair_fill(ep.buf[A], 64, 1);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    assert_int_equal(efa_pair_nic(&ep, B)->where.epoch, 1);
    ep.pair.ops->link_close(ep.pair.side[B].link);
    assert_int_equal(efa_pair_nic(&ep, B)->where.epoch, 2);
    pair_fill(ep.buf[A], 64, 2);
    ep.pair.ops->post(ep.pair.side[A].link, &cmd, 1); /* A has not heard of it */
    struct weft_comp comps[8];
    for (int i = 0; i < 2000; i++) {
        ep.pair.ops->poll(ep.pair.side[B].nic, comps, 8);
        pair_poll(&ep.pair, A);
    }
    assert_true(pair_filled(ep.buf[B], 64, 1));
    ep.pair.ops->link_close(ep.pair.side[A].link);
    while (ep.pair.side[A].ncomps > 0)
        free(ep.pair.side[A].comps[--ep.pair.side[A].ncomps].data);
    pair_connect(&ep.pair);
    efa_pair_close(&ep);
}

/* What the peer wants back is under way, and does not end: this end opens its own endpoint anew, long before the peer would. */
static void what_does_not_end_is_made_to(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    uint8_t *more = calloc(1, 4096);
    struct weft_cmd cmd;
    struct weft_mem_handle other = efa_pair_more(&ep, more, &cmd);
    const struct efa_region *region = WEFT_LIST_OF(link_of(&ep, A)->regions.prev, struct efa_region, in);
    ((struct efa_region *)region)->users++; /* a req that does not end */
    const struct fid_ep *work = efa_pair_nic(&ep, A)->work.ep;
    assert_int_equal(ep.pair.ops->mem_dereg(ep.pair.side[B].nic, other.mem), WEFT_EAGAIN);
    for (uint64_t until = weft_now() + 80000000; weft_now() < until;)
        both(&ep, 1);
    assert_ptr_not_equal(efa_pair_nic(&ep, A)->work.ep, work);
    assert_int_equal(efa_pair_nic(&ep, B)->where.epoch, 1);
    efa_region_leave((struct efa_region *)region);
    efa_pair_dereg(&ep, B, other);
    efa_pair_close(&ep);
    free(more);
}

/* The answer has overtaken where the memory is: nothing goes to where it was. */
static void an_answer_that_overtakes_the_target(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct pair_comp comp;
    efa_pair_open(&ep, LIKE_EFA, NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    efa_pair_nic(&ep, B)->where.epoch++; /* the word on it is on its way */
    pair_post(&ep.pair, A, &cmd);
    both(&ep, 200);
    assert_false(pair_take(&ep.pair, A, WEFT_OP_WRITE, 1, &comp));
    assert_int_equal(efa_pair_nic(&ep, A)->nflying, 0);
    struct efa_target where = efa_pair_nic(&ep, B)->where;
    where.epoch = htole32(where.epoch);
    where.len = htole16(where.len);
    efa_msg_note(link_of(&ep, B), EFA_TARGET, &where, sizeof where);
    assert_int_equal(pair_wait(&ep.pair, A, WEFT_OP_WRITE, 1).comp.status, 0);
    efa_pair_close(&ep);
}

/* Before the peer has shown its key nothing that it wants is done. */
static void what_comes_early_waits(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct pair_comp comp;
    efa_pair_open(&ep, "", NULL);
    struct efa_link *to = link_of(&ep, B);
    to->state = EFA_LINK_JOINING;
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_ADD64, 8), send = efa_pair_cmd(&ep, WEFT_OP_SEND, 8);
    cmd.value = 3;
    pair_post(&ep.pair, A, &cmd);
    pair_post(&ep.pair, A, &send);
    both(&ep, 200);
    assert_int_equal(*(uint64_t *)ep.buf[B], 0);
    assert_false(pair_take(&ep.pair, B, WEFT_OP_RECV, 0, &comp));
    to->state = EFA_LINK_UP;
    efa_msg_early(to);
    assert_int_equal(pair_wait(&ep.pair, A, WEFT_OP_ADD64, 1).comp.status, 0);
    free(pair_wait(&ep.pair, B, WEFT_OP_RECV, 0).data);
    assert_int_equal(*(uint64_t *)ep.buf[B], 3);
    efa_pair_close(&ep);
}

/* Who asks and takes no answer is left, before its questions fill the memory. */
static void who_asks_and_takes_no_answer(void **state)
{
    (void)state;
    for (int fetch = 0; fetch < 2; fetch++) {
        struct efa_pair ep;
        efa_pair_open(&ep, "noread=1", NULL);
        struct efa_lookup_msg lookup = {.key = htole64(1)};
        struct efa_fetch_msg want = {.key = htole64(ep.mem[B].rkey), .addr = htole64((uintptr_t)ep.buf[B]), .len = htole64(8)};
        link_of(&ep, B)->window = 0;
        for (int i = 0; i < EFA_NOTES + 50; i++) {
            if (fetch)
                efa_msg_note(link_of(&ep, A), EFA_FETCH, &want, sizeof want);
            else
                efa_msg_note(link_of(&ep, A), EFA_LOOKUP, &lookup, sizeof lookup);
            both(&ep, 2);
            if (link_of(&ep, B)->state == EFA_LINK_DOWN)
                break;
        }
        expect_down(&ep, B, WEFT_EPROTO, fetch ? "fetches" : "lookups");
    }
}

static void an_answer_twice(void **state)
{
    (void)state;
    struct efa_pair ep;
    efa_pair_open(&ep, "", NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    const struct efa_region *region = WEFT_LIST_OF(link_of(&ep, A)->regions.prev, struct efa_region, in);
    struct efa_answer_msg msg = {.id = htole32(region->id)};
    efa_msg_note(link_of(&ep, B), EFA_ANSWER, &msg, sizeof msg);
    expect_down(&ep, A, WEFT_EPROTO, "an answer twice");
}

/* It lives, and says nothing: link_connect gives up by itself. */
static void a_peer_that_never_joins(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_link *link[2];
    uint8_t address[WEFT_LINK_ADDRESS_MAX];
    efa_pair_open(&ep, "", NULL);
    for (int i = 0; i < 2; i++) {
        struct weft_link_opts opts = {.role = i == A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
        PAIR_OK(ep.pair.ops->link_open(ep.pair.side[i].nic, &opts, &link[i]));
    }
    size_t len = (size_t)PAIR_OK(ep.pair.ops->link_address(link[B], address, sizeof address));
    int rc;
    for (uint64_t until = weft_now() + 7000000000ull;
         (rc = ep.pair.ops->link_connect(link[A], address, len)) == WEFT_EAGAIN && weft_now() < until;)
        both(&ep, 1);
    assert_int_equal(rc, WEFT_ELINK);
    for (int i = 0; i < 2; i++)
        ep.pair.ops->link_close(link[i]);
    efa_pair_close(&ep);
}

/* Two go at once, and one of them is in use at the peer: what is given back is the other one. */
static void two_that_go_at_once(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_mem_handle mem[2];
    struct efa_region *used = NULL;
    efa_pair_open(&ep, "", NULL);
    struct weft_cmd cmd = efa_pair_cmd(&ep, WEFT_OP_WRITE, 64);
    for (unsigned i = 0; i < 2; i++) {
        mem[i] = pair_reg(&ep.pair, B, ep.buf[B], 4096, PAIR_ALL, 200 + i);
        cmd.remote_key = mem[i].rkey;
        assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
        if (i == 0)
            used = WEFT_LIST_OF(link_of(&ep, A)->regions.prev, struct efa_region, in);
    }
    used->users++; /* a req that is under way */
    for (int i = 0; i < 2; i++)
        assert_int_equal(ep.pair.ops->mem_dereg(ep.pair.side[B].nic, mem[i].mem), WEFT_EAGAIN);
    both(&ep, 50);
    assert_false(weft_list_empty(&((struct efa_mem *)mem[0].mem)->leases));
    assert_true(weft_list_empty(&((struct efa_mem *)mem[1].mem)->leases));
    efa_region_leave(used);
    for (int i = 0; i < 2; i++)
        efa_pair_dereg(&ep, B, mem[i]);
    efa_pair_close(&ep);
}

/* --- joining --- */

static int join(struct efa_pair *ep, const uint8_t key[2][WEFT_MAC], int trick)
{
    struct weft_nic *nic[2];
    uint8_t address[2][WEFT_LINK_ADDRESS_MAX];
    size_t len[2];
    int rc = WEFT_EAGAIN, victim = trick == 2 ? B : A;
    fake_fabric_set("");
    for (int i = 0; i < 2; i++) {
        struct weft_nic_opts opts = {.device = "shm", .lane = i};
        PAIR_OK(weft_transport_efa.ops->open(&opts, &nic[i]));
    }
    pair_adopt(&ep->pair, nic[A], nic[B]);
    for (int i = 1; i >= 0; i--) {
        struct weft_link_opts opts = {.role = i == A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE, .key = key[i]};
        PAIR_OK(ep->pair.ops->link_open(nic[i], &opts, &ep->pair.side[i].link));
        len[i] = (size_t)PAIR_OK(ep->pair.ops->link_address(ep->pair.side[i].link, address[i], sizeof address[i]));
    }
    if (trick == 1) { /* up, without a proof */
        ep->pair.ops->link_connect(ep->pair.side[B].link, address[A], len[A]);
        efa_slot_put(WEFT_LIST_OF(link_of(ep, B)->notes.next, struct efa_slot, in));
        link_of(ep, B)->nnotes--;
        efa_msg_note(link_of(ep, B), EFA_UP, NULL, 0);
    }
    if (trick == 3) { /* twice */
        ep->pair.ops->link_connect(ep->pair.side[B].link, address[A], len[A]);
        struct efa_slot *slot = WEFT_LIST_OF(link_of(ep, B)->notes.next, struct efa_slot, in);
        struct efa_hello hello;
        memcpy(&hello, (struct efa_head *)slot->data + 1, sizeof hello);
        efa_msg_note(link_of(ep, B), EFA_HELLO, &hello, sizeof hello);
    }
    if (trick == 2) { /* the passive end's own proof, back to it */
        ep->pair.ops->link_connect(ep->pair.side[B].link, address[A], len[A]);
        TEST_UNTIL(link_of(ep, A)->hello_seen, both(ep, 1), "the proof");
        struct efa_hello hello = link_of(ep, A)->hello;
        link_of(ep, A)->hello_seen = false;
        ep->pair.ops->link_connect(ep->pair.side[A].link, address[B], len[B]);
        efa_msg_note(link_of(ep, A), EFA_HELLO, &hello, sizeof hello);
    }
    for (int k = 0; k < 3000 && rc == WEFT_EAGAIN; k++) {
        for (int i = 0; i < 2; i++) {
            int r = ep->pair.ops->link_connect(ep->pair.side[i].link, address[!i], len[!i]);
            if (i == victim)
                rc = r;
            pair_poll(&ep->pair, i);
        }
    }
    pair_close(&ep->pair);
    return rc;
}

static void joining_without_the_key(void **state)
{
    (void)state;
    static const uint8_t keys[2][2][WEFT_MAC] = {{{1}, {1}}, {{1}, {2}}};
    struct efa_pair ep;
    assert_int_equal(join(&ep, keys[0], 0), 0);
    assert_int_equal(join(&ep, keys[1], 0), WEFT_EAUTH);
    assert_int_equal(join(&ep, keys[1], 1), WEFT_EPROTO);
    assert_int_equal(join(&ep, keys[1], 2), WEFT_EAUTH);
    assert_int_equal(join(&ep, keys[0], 3), WEFT_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(immediates_after_one_that_failed),
        cmocka_unit_test(immediates_after_memory_that_went),
        cmocka_unit_test(immediates_that_pass_a_slow_one),
        cmocka_unit_test(early_messages_have_a_limit),
        cmocka_unit_test(a_status_that_is_none),
        cmocka_unit_test(malformed_messages),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(too_much_data),
        cmocka_unit_test(counts_come_back),
        cmocka_unit_test(a_last_message_that_is_lost),
        cmocka_unit_test(the_second_of_two_is_lost),
        cmocka_unit_test(an_older_use_of_memory_that_goes),
        cmocka_unit_test(joining_without_the_key),
        cmocka_unit_test(a_link_that_is_closed_takes_its_memory_back),
        cmocka_unit_test(what_does_not_end_is_made_to),
        cmocka_unit_test(an_answer_that_overtakes_the_target),
        cmocka_unit_test(what_comes_early_waits),
        cmocka_unit_test(who_asks_and_takes_no_answer),
        cmocka_unit_test(an_answer_twice),
        cmocka_unit_test(two_that_go_at_once),
        cmocka_unit_test(a_peer_that_never_joins),
        cmocka_unit_test(words_that_overtake_each_other),
        cmocka_unit_test(more_keys_than_are_remembered),
        cmocka_unit_test(arrivals_of_a_link_that_is_closed),
        cmocka_unit_test(an_address_with_a_wrong_length),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
