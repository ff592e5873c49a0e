/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: what poll hands out and what ends a sleep; ports; and what peers may do with memory. */
#include "verbs_pair.h"

#include <poll.h>
#include <sys/mman.h>

#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B

/* Neither end has anything to say. */
static void be_quiet(struct verbs_pair *vp)
{
    TEST_UNTIL(!link_of(vp, A)->busy && !link_of(vp, B)->busy, (pair_poll(&vp->pair, A), pair_poll(&vp->pair, B)),
               "quiet links");
}

/* --- polling ---------------------------------------------------------------------------------- */

/* What was read before a sleep, and what came after it, is handed out in such pieces as were asked for. */
static void a_poll_gives_no_more_than_was_asked_for(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_comp comps[32];
    verbs_pair_open(&vp, "");
    be_quiet(&vp);
    struct weft_nic *nic = vp.pair.side[B].nic;
    struct weft_cmd imm = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64);
    for (int i = 0; i < 8; i++)
        assert_int_equal(verbs_pair_try(&vp, A, &imm, 1), 1);
    TEST_UNTIL(vp.pair.ops->wait_fd(nic) == WEFT_EAGAIN, pair_poll(&vp.pair, B), "a reason not to sleep");
    assert_true(nic_of(&vp, B)->stash_n - nic_of(&vp, B)->stash_first == 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(verbs_pair_try(&vp, A, &imm, 1), 1);
    memset(comps, 0xee, sizeof comps);
    for (int total = 0, n; total < 16; total += n) {
        CHECK(vp.pair.ops->wait_fd(nic) == WEFT_EAGAIN || total >= 8, "a sleep after %d of 16", total);
        n = PAIR_OK(vp.pair.ops->poll(nic, comps, 3));
        CHECK(n >= 1 && n <= 3, "%d comps", n);
        for (size_t i = 3 * sizeof *comps; i < sizeof comps; i++)
            CHECK(((uint8_t *)comps)[i] == 0xee, "byte %d behind the comps", (int)(i - 3 * sizeof *comps));
    }
    verbs_pair_close(&vp);
}

/* A sleeper is woken hundreds of times; each event is acknowledged, also those of the last ones. */
static void many_sleeps_end(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_nic *nic = vp.pair.side[B].nic;
    struct fake_verbs_stats before, after;
    fake_verbs_stats(&before);
    for (int i = 0; i < 600; i++) {
        int fd;
        TEST_UNTIL((fd = vp.pair.ops->wait_fd(nic)) >= 0, (pair_poll(&vp.pair, B), pair_poll(&vp.pair, A)), "a sleep");
        struct weft_cmd imm = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64);
        verbs_pair_post(&vp, A, &imm, 1);
        CHECK(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, TEST_DEADLINE_MS) == 1, "nothing wakes");
        pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0);
        pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, imm.ctx);
    }
    fake_verbs_stats(&after);
    assert_true(after.events - before.events >= 600);
    verbs_pair_close(&vp);
}

static int no_arming(struct ibv_cq *cq, int solicited)
{
    (void)cq;
    (void)solicited;
    return EIO;
}

static int no_reading(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    (void)cq;
    (void)n;
    (void)wc;
    return -1;
}

/* The device does not say when there are completions, or does not let them be read: the caller is told, and does not sleep. */
static void who_cannot_sleep_is_told(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_comp comp;
    verbs_pair_open(&vp, "");
    struct weft_nic *nic = vp.pair.side[B].nic;
    struct ibv_context_ops *ops = &nic_of(&vp, B)->context->ops, right = *ops;
    be_quiet(&vp);
    TEST_UNTIL(vp.pair.ops->wait_fd(nic) != WEFT_EAGAIN, (pair_poll(&vp.pair, B), pair_poll(&vp.pair, A)), "a sleep");
    struct weft_cmd imm = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64);
    verbs_pair_post(&vp, A, &imm, 1); /* it ends what was armed */
    pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0);
    pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, imm.ctx);
    be_quiet(&vp);
    ops->req_notify_cq = no_arming;
    WEFT_FAILS(-EIO, vp.pair.ops->wait_fd(nic));
    *ops = right;
    TEST_UNTIL(vp.pair.ops->wait_fd(nic) >= 0, (pair_poll(&vp.pair, B), pair_poll(&vp.pair, A)), "a sleep");
    verbs_pair_works(&vp);
    be_quiet(&vp);
    ops->poll_cq = no_reading;
    WEFT_FAILS(WEFT_ENODEV, vp.pair.ops->poll(nic, &comp, 1));
    WEFT_FAILS(WEFT_EAGAIN, (weft_fail(0, "-"), vp.pair.ops->wait_fd(nic)));
    *ops = right;
    verbs_pair_end(&vp, B);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

/* A message is there until the next poll, also when its link is closed; then its receive serves another link. */
static void a_message_outlives_its_link(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "srq=0"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        struct weft_comp comp;
        verbs_pair_open(&vp, devices[i]);
        be_quiet(&vp);
        uint32_t slots = nic_of(&vp, B)->recvs.nslots;
        for (int turn = 0; turn < 5; turn++) {
            struct weft_cmd msg = verbs_pair_cmd(&vp, A, WEFT_OP_SEND, 0, 0, 64);
            verbs_pair_post(&vp, A, &msg, 1);
            TEST_UNTIL(PAIR_OK(vp.pair.ops->poll(vp.pair.side[B].nic, &comp, 1)) == 1 && comp.op == WEFT_OP_RECV, (void)0,
                       "a message");
            assert_true(nic_of(&vp, B)->lent && &nic_of(&vp, B)->lent->link->base == comp.link);
            verbs_pair_end(&vp, B);
            assert_memory_equal(comp.data, vp.buf[A], 64);
            verbs_pair_end(&vp, A);
            TEST_UNTIL(!nic_of(&vp, A)->closed && !nic_of(&vp, B)->closed, (pair_poll(&vp.pair, A), pair_poll(&vp.pair, B)),
                       "goodbyes");
            pair_connect(&vp.pair);
            be_quiet(&vp);
        }
        CHECK(nic_of(&vp, B)->recvs.nslots <= slots + VERBS_SLAB, "%u slots, and then %u", slots,
              nic_of(&vp, B)->recvs.nslots);
        verbs_pair_close(&vp);
    }
}

/* The queue of receives that links share is shorter than what they may send: senders wait, and nothing is lost. */
static void a_short_shared_queue_is_enough(void **state)
{
    (void)state;
    enum { N = 200 };
    struct verbs_pair vp;
    struct pair_comp comp;
    verbs_pair_open(&vp, "max_srq_wr=8");
    uint64_t until = test_deadline();
    for (int i = 0, got = 0; got < N;) {
        struct weft_cmd msg = verbs_pair_cmd(&vp, A, WEFT_OP_SEND, 0, 0, 64);
        memset(vp.buf[A], i, 64);
        int took = i < N ? PAIR_OK(vp.pair.ops->post(vp.pair.side[A].link, &msg, 1)) : 0;
        i += took;
        assert_true(nic_of(&vp, B)->srq_posted <= 8);
        if (took == 0 || i % 16 == 0) /* several wait at a time */
            pair_poll(&vp.pair, B);
        pair_poll(&vp.pair, A);
        for (; pair_take(&vp.pair, B, WEFT_OP_RECV, 0, &comp); got++, free(comp.data))
            CHECK(comp.data[0] == (uint8_t)got, "message %d is %d", got, comp.data[0]);
        while (pair_take(&vp.pair, A, WEFT_OP_SEND, msg.ctx, &comp))
            assert_int_equal(comp.comp.status, 0);
        CHECK(weft_now() < until, "%d of %d messages", got, N);
    }
    verbs_pair_close(&vp);
}

/* --- what has failed -------------------------------------------------------------------------- */

/* A READ into memory that is not registered goes by way of a slot. If it fails, the slot holds what others left there. */
static void a_read_that_fails_leaves_no_bytes(void **state)
{
    (void)state;
    static const size_t lens[] = {8, 300, 5000, 8704};
    for (size_t i = 0; i < 2 * ARRAY_LEN(lens); i++) {
        struct verbs_pair vp;
        bool parts = i % 2;
        size_t len = lens[i / 2];
        verbs_pair_open(&vp, "");
        if (parts) { /* of 4 KiB: it is in several */
            PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, vp.mem[B].mem));
            nic_of(&vp, B)->mr_max = 4096;
            vp.mem[B] = pair_reg(&vp.pair, B, vp.buf[B], VERBS_PAIR_BYTES, PAIR_ALL, 0);
        }
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_READ, 0, 4096 - 4, len);
        cmd.one.mem = NULL;
        assert_int_equal(pair_do(&vp.pair, A, &cmd), 0);
        assert_memory_equal(vp.buf[A], vp.buf[B] + 4096 - 4, len);
        test_fill(vp.buf[A], len, 9, 0);
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, vp.mem[B].mem));
        assert_int_equal(pair_do(&vp.pair, A, &cmd), WEFT_EKEY);
        CHECK(test_differs(vp.buf[A], len, 9, 0) < 0, "bytes of a READ of %d that failed", (int)len);
        vp.mem[B] = pair_reg(&vp.pair, B, vp.buf[B], VERBS_PAIR_BYTES, PAIR_ALL, 0);
        verbs_pair_close(&vp);
    }
}

/* --- ports ------------------------------------------------------------------------------------ */

/* Another port of the device is none of the nic's business; when its own goes down twice, it is down since the first time. */
static void a_port_is_down_since_it_went_down(void **state)
{
    (void)state;
    struct verbs_pair vp;
    CHECK(!fake_verbs_configure("ports=2"), "configure");
    pair_open(&vp.pair, &weft_transport_verbs, "fake0:1");
    struct verbs_nic *nic = nic_of(&vp, A);
    fake_verbs_event("fake0", IBV_EVENT_PORT_ERR, 2);
    verbs_events(nic);
    assert_true(nic->port_lost == 0);
    fake_verbs_event("fake0", IBV_EVENT_PORT_ERR, 1);
    verbs_events(nic);
    uint64_t since = nic->port_lost;
    assert_true(since > 0);
    TEST_UNTIL(weft_now() > since, (void)0, "the clock");
    fake_verbs_event("fake0", IBV_EVENT_PORT_ERR, 1);
    fake_verbs_event("fake0", IBV_EVENT_PORT_ACTIVE, 2);
    verbs_events(nic);
    assert_true(nic->port_lost == since);
    fake_verbs_event("fake0", IBV_EVENT_PORT_ACTIVE, 1);
    verbs_events(nic);
    assert_true(nic->port_lost == 0);
    pair_close(&vp.pair);
    verbs_pair_check_fake();
}

/* --- memory ----------------------------------------------------------------------------------- */

static int judge(struct verbs_pair *vp, uint64_t addr, uint64_t len, uint64_t key, unsigned op)
{
    const struct verbs_question question = {.addr = addr, .len = len, .rkey = (uint32_t)key, .op = (uint8_t)op};
    return verbs_mem_judge(nic_of(vp, A), &question, NULL);
}

/* Each memory is found as long as it is there, whatever the order in which others go. */
static void memory_may_go_in_any_order(void **state)
{
    (void)state;
    static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 2, 0, 3}, {2, 1, 3, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}};
    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        struct verbs_pair vp;
        struct weft_mem_handle mem[4];
        bool there[4];
        verbs_pair_open(&vp, "");
        for (size_t k = 0; k < 4; k++) {
            mem[k] = pair_reg(&vp.pair, A, vp.buf[A] + 4096 * k, 4096, PAIR_ALL, 0);
            there[k] = true;
        }
        for (int turn = 0; turn < 4; turn++) {
            int gone = orders[i][turn];
            PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[A].nic, mem[gone].mem));
            there[gone] = false;
            for (size_t k = 0; k < 4; k++)
                assert_int_equal(judge(&vp, (uintptr_t)vp.buf[A] + 4096 * k, 0, mem[k].rkey, WEFT_OP_WRITE),
                                 there[k] ? 0 : WEFT_EKEY);
            assert_int_equal(judge(&vp, (uintptr_t)vp.buf[A], 1, vp.mem[A].rkey, WEFT_OP_READ), 0);
        }
        verbs_pair_close(&vp);
    }
}

/* What the target's program says of an operation, at each border. */
static void the_judge_knows_borders(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct weft_mem_handle mem = pair_reg(&vp.pair, A, vp.buf[A] + 4096, 4096, WEFT_ACCESS_READ, 0);
    uint64_t base = (uintptr_t)vp.buf[A] + 4096, key = mem.rkey;
    assert_int_equal(judge(&vp, base, 4096, key, WEFT_OP_READ), 0);
    assert_int_equal(judge(&vp, base + 4095, 1, key, WEFT_OP_READ), 0);
    assert_int_equal(judge(&vp, base + 4096, 0, key, WEFT_OP_READ), 0);
    assert_int_equal(judge(&vp, base + 4096, 1, key, WEFT_OP_READ), WEFT_EBOUNDS);
    assert_int_equal(judge(&vp, base + 4097, 0, key, WEFT_OP_READ), WEFT_EBOUNDS);
    assert_int_equal(judge(&vp, base + 4097, UINT64_MAX, key, WEFT_OP_READ), WEFT_EBOUNDS);
    assert_int_equal(judge(&vp, base - 1, 1, key, WEFT_OP_READ), WEFT_EBOUNDS);
    assert_int_equal(judge(&vp, base - 1, 0, key, WEFT_OP_READ), WEFT_EBOUNDS);
    assert_int_equal(judge(&vp, base, 4097, key, WEFT_OP_READ), WEFT_EBOUNDS);
    assert_int_equal(judge(&vp, base + 1, UINT64_MAX, key, WEFT_OP_READ), WEFT_EBOUNDS);
    static const unsigned others[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_ADD64, WEFT_OP_SEND,
                                      WEFT_OP_FENCE, WEFT_OP_COUNT,     WEFT_OP_COUNT + 100, 254};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_int_equal(judge(&vp, base, 8, key, others[i]), WEFT_EACCESS);
    assert_int_equal(judge(&vp, base, 8, key ^ 0x5000, WEFT_OP_READ), WEFT_EKEY);
    PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[A].nic, mem.mem));
    verbs_pair_close(&vp);
}

/* The keys that a peer has told are those of its memory: not of what lies before or behind it, nor of other keys. */
static void keys_are_of_the_memory_that_was_told(void **state)
{
    (void)state;
    enum { PART = 4096 };
    const uint64_t base = 0x7f0000000000;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct verbs_link *link = link_of(&vp, A);
    const struct verbs_keys_msg msg = {.addr = htole64(base),
                                       .len = htole64(2 * PART + 100),
                                       .key = htole32(11),
                                       .shift = 12,
                                       .keys = {htole32(11), htole32(22), htole32(33)}};
    static const struct {
        int64_t at;
        uint32_t key, found;
        uint64_t len, left;
    } cases[] = {{0, 11, 11, 2 * PART, PART}, {1, 11, 11, PART, PART - 1},    {PART - 1, 11, 11, 1, 1},
                 {PART, 11, 22, PART, PART},  {2 * PART, 11, 33, 9000, 9000}, {2 * PART + 99, 11, 33, 1, 1},
                 {-1, 11, 11, 10, 10},        {2 * PART + 100, 11, 11, 1, 1}, {1 << 30, 11, 11, 1, 1},
                 {PART, 12, 12, PART + 1, PART + 1}};
    verbs_keys_heard(link, &msg);
    assert_int_equal(link->ntables, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t len = cases[i].len;
        assert_int_equal(verbs_keys_find(link, cases[i].key, base + (uint64_t)cases[i].at, &len), cases[i].found);
        assert_int_equal(len, cases[i].left);
    }
    assert_false(verbs_keys_span(link, 11, base, PART));
    assert_true(verbs_keys_span(link, 11, base, PART + 1));
    assert_true(verbs_keys_span(link, 11, base, 2 * PART + 100));
    assert_false(verbs_keys_span(link, 11, base, 2 * PART + 101));
    assert_false(verbs_keys_span(link, 11, base - 1, PART + 1));
    assert_false(verbs_keys_span(link, 12, base, PART + 1));
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* The longest memory in parts that peers may be told of, and one byte more. */
static void memory_has_as_many_parts_as_peers_are_told(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_mem_handle mem;
    const size_t len = 4096 * (size_t)VERBS_MAX_PARTS;
    uint8_t *at = mmap(NULL, len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(at != MAP_FAILED);
    verbs_pair_open(&vp, "");
    struct weft_nic *nic = vp.pair.side[A].nic;
    struct weft_mem_range range = {.addr = at, .len = len, .access = PAIR_ALL, .kind = WEFT_MEM_HOST, .dmabuf_fd = -1};
    nic_of(&vp, A)->mr_max = 4096;
    PAIR_OK(vp.pair.ops->mem_reg(nic, &range, &mem));
    assert_int_equal(((struct verbs_mem *)mem.mem)->nparts, VERBS_MAX_PARTS);
    PAIR_OK(vp.pair.ops->mem_dereg(nic, mem.mem));
    range.len++;
    WEFT_FAILS(-EMSGSIZE, vp.pair.ops->mem_reg(nic, &range, &mem));
    verbs_pair_close(&vp);
    munmap(at, len + 4096);
}

/* A peer may do what it was allowed, and no more. */
static void access_is_what_was_allowed(void **state)
{
    (void)state;
    static const struct {
        enum weft_op op;
        uint32_t needs;
    } ops[] = {{WEFT_OP_WRITE, WEFT_ACCESS_WRITE}, {WEFT_OP_READ, WEFT_ACCESS_READ}, {WEFT_OP_ADD64, WEFT_ACCESS_ATOMIC}};
    static const uint32_t accesses[] = {WEFT_ACCESS_READ, WEFT_ACCESS_WRITE, WEFT_ACCESS_ATOMIC,
                                        WEFT_ACCESS_READ | WEFT_ACCESS_WRITE, WEFT_ACCESS_READ | WEFT_ACCESS_ATOMIC};
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (size_t i = 0; i < ARRAY_LEN(accesses); i++) {
        struct weft_mem_handle mem = pair_reg(&vp.pair, B, vp.buf[B], 4096, accesses[i], 0);
        for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
            struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[k].op, 0, 0, 8);
            cmd.remote_key = mem.rkey;
            int status = pair_do(&vp.pair, A, &cmd);
            CHECK(status == (accesses[i] & ops[k].needs ? 0 : WEFT_EACCESS), "op %d with access %u: %s", ops[k].op,
                  accesses[i], weft_err_name(status));
        }
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, mem.mem));
    }
    struct fake_verbs_stats before, after; /* the adds of peers may be announced by other nics */
    fake_verbs_stats(&before);
    struct weft_mem_handle mem = pair_reg(&vp.pair, B, vp.buf[B], 4096, WEFT_ACCESS_ATOMIC, 0);
    fake_verbs_stats(&after);
    assert_int_equal(after.relaxed, before.relaxed);
    PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, mem.mem));
    struct weft_mem_range two = {.addr = vp.buf[B], .len = 4096, .access = PAIR_ALL, .kind = WEFT_MEM_HOST | WEFT_MEM_DMABUF,
                                 .dmabuf_fd = -1};
    WEFT_FAILS(WEFT_EUNSUPPORTED, vp.pair.ops->mem_reg(vp.pair.side[B].nic, &two, &mem));
    verbs_pair_close(&vp);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(a_poll_gives_no_more_than_was_asked_for),
        CASE(many_sleeps_end),
        CASE(who_cannot_sleep_is_told),
        CASE(a_message_outlives_its_link),
        CASE(a_short_shared_queue_is_enough),
        CASE(a_read_that_fails_leaves_no_bytes),
        CASE(a_port_is_down_since_it_went_down),
        CASE(memory_may_go_in_any_order),
        CASE(the_judge_knows_borders),
        CASE(keys_are_of_the_memory_that_was_told),
        CASE(memory_has_as_many_parts_as_peers_are_told),
        CASE(access_is_what_was_allowed),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
