/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: what becomes of cmds on their way to the device, at the limits of slots, rings and queues; and that all
 * they took is given back. */
#include "verbs_pair.h"

#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B
#define K ((size_t)1024)

/* Places in the completion queue of side A, but for those of messages, few of which ask for a completion. */
static int64_t room(struct verbs_pair *vp)
{
    const struct verbs_qp *control = &link_of(vp, A)->control;
    return nic_of(vp, A)->cq_room + (control->head - control->settled);
}

static uint32_t free_slots(const struct verbs_pool *pool)
{
    uint32_t n = 0;
    for (const struct verbs_slot *slot = pool->free; slot; slot = slot->next)
        n++;
    return n;
}

static bool nothing_taken(struct verbs_pair *vp, int64_t cq_room)
{
    const struct verbs_nic *nic = nic_of(vp, A);
    const struct verbs_link *link = link_of(vp, A);
    bool none = free_slots(&nic->sends) == nic->sends.nslots && free_slots(&nic->smalls) == nic->smalls.nslots &&
                room(vp) == cq_room && link->nposted == 0 && nic->nlong == 0 && !link->ops;
    for (uint32_t i = 0; i < link->ndata; i++)
        none = none && link->data[i].chunk_bytes == 0;
    return none;
}

/* What there is, but for the memory of slots, of which there may be more after a while. */
static int objects_of(struct verbs_pair *vp)
{
    int n = fake_verbs_objects();
    for (int side = 0; side < 2; side++) {
        const struct verbs_nic *nic = nic_of(vp, side);
        const struct verbs_pool *pools[] = {&nic->sends, &nic->smalls, &nic->recvs};
        for (size_t i = 0; i < ARRAY_LEN(pools); i++)
            for (const struct verbs_slab *slab = pools[i]->slabs; slab; slab = slab->next)
                n--;
    }
    return n;
}

/* Side A has back all that its cmds took. */
static void all_is_given_back(struct verbs_pair *vp, int64_t cq_room, int objects)
{
    TEST_UNTIL(nothing_taken(vp, cq_room), (pair_poll(&vp->pair, A), pair_poll(&vp->pair, B)),
               "what was taken: %lld of %lld, %u cmds", (long long)room(vp), (long long)cq_room,
               link_of(vp, A)->nposted);
    assert_int_equal(objects_of(vp), objects);
}

/* Neither end has anything to say. */
static void be_quiet(struct verbs_pair *vp)
{
    TEST_UNTIL(!link_of(vp, A)->busy && !link_of(vp, B)->busy, (pair_poll(&vp->pair, A), pair_poll(&vp->pair, B)),
               "quiet links");
}

/* --- long operations -------------------------------------------------------------------------- */

/* An operation of many chunks has failed with the first one: the others are not for the device. */
static void a_long_operation_that_is_refused_goes_no_further(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_READ, WEFT_OP_WRITE_IMM};
    for (size_t i = 0; i < 2 * ARRAY_LEN(ops); i++) {
        struct verbs_pair vp;
        struct fake_verbs_stats before, after;
        weft_config_set("WEFT_VERBS_CHUNK", "4096");
        verbs_pair_open(&vp, "");
        verbs_pair_works(&vp);
        int64_t cq_room = room(&vp);
        int objects = objects_of(&vp);
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[i / 2], 0, 0, VERBS_PAIR_BYTES);
        if (i % 2)
            cmd.remote_key ^= 0x5000;
        else
            cmd.remote_addr += VERBS_PAIR_BYTES - 1; /* all but one byte of it is not there */
        test_fill(vp.buf[B], VERBS_PAIR_BYTES, B + 1, 0);
        fake_verbs_stats(&before);
        assert_int_equal(pair_do(&vp.pair, A, &cmd), i % 2 ? WEFT_EKEY : WEFT_EBOUNDS);
        fake_verbs_stats(&after);
        CHECK(after.sends - before.sends < 200, "%d requests for %d chunks", (int)(after.sends - before.sends),
              (int)(VERBS_PAIR_BYTES / 4096));
        CHECK(test_differs(vp.buf[B], VERBS_PAIR_BYTES, B + 1, 0) < 0, "a byte was written");
        all_is_given_back(&vp, cq_room, objects);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* Pieces that nobody has registered are, each on its own, for as long as it takes; an empty one is nothing. With more
 * pieces than the device takes at once, or fewer. */
static void pieces_are_lent_for_one_operation(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "max_sge=3", "max_sge=1"};
    enum { N = 7 };
    for (size_t i = 0; i < 2 * ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        struct weft_iov_local iov[N];
        uint8_t *parts[N];
        const size_t len = 20 * K + 1;
        verbs_pair_open(&vp, devices[i / 2]);
        int64_t cq_room = room(&vp);
        int objects = objects_of(&vp);
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, i % 2 ? WEFT_OP_READ : WEFT_OP_WRITE, 0, 0, 0);
        for (size_t k = 0; k < N; k++) {
            parts[k] = malloc(len);
            test_fill(parts[k], len, 100 + k, 0);
            iov[k] = (struct weft_iov_local){parts[k], k == 3 ? 0 : len, NULL};
            cmd.len += iov[k].len;
        }
        iov[5] = (struct weft_iov_local){vp.buf[A] + 77, len, vp.mem[A].mem};
        test_fill(vp.buf[A] + 77, len, 105, 0);
        cmd.niov = N;
        cmd.iov = iov;
        assert_int_equal(pair_do(&vp.pair, A, &cmd), 0);
        for (size_t k = 0, at = 0; k < N; at += iov[k++].len) {
            if (i % 2)
                assert_memory_equal(iov[k].addr, vp.buf[B] + at, iov[k].len);
            else
                CHECK(test_differs(vp.buf[B] + at, iov[k].len, 100 + k, 0) < 0, "piece %d", (int)k);
        }
        all_is_given_back(&vp, cq_room, objects);
        /* the fourth registration of six fails: there is no operation */
        fake_verbs_fail_call("ibv_reg_mr_iova2", 4, ENOMEM, false);
        WEFT_FAILS(-ENOMEM, vp.pair.ops->post(vp.pair.side[A].link, &cmd, 1));
        all_is_given_back(&vp, cq_room, objects);
        for (size_t k = 0; k < N; k++)
            free(parts[k]);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* Of many long operations so much is in the queues at once, and no more than there is room for. */
static void long_operations_take_turns(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "max_qp_wr=32", "max_cqe=200"};
    enum { N = 8 };
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        struct weft_cmd cmds[N];
        weft_config_set("WEFT_VERBS_CHUNK", "4096");
        verbs_pair_open(&vp, devices[i]);
        verbs_pair_works(&vp);
        int64_t cq_room = room(&vp);
        int objects = objects_of(&vp);
        const size_t len = 100 * K;
        for (size_t k = 0; k < N; k++)
            cmds[k] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, k * len, k * len, len);
        fake_verbs_hold();
        int n = verbs_pair_try(&vp, A, cmds, N);
        const struct verbs_link *link = link_of(&vp, A);
        assert_true(n > 0 && room(&vp) >= 0);
        for (uint32_t k = 0; k < link->ndata; k++) {
            const struct verbs_qp *qp = &link->data[k];
            CHECK(qp->head - qp->tail <= VERBS_WINDOW && qp->head - qp->tail <= qp->depth,
                  "%u chunks in a queue pair", qp->head - qp->tail);
        }
        fake_verbs_release(-1);
        verbs_pair_post(&vp, A, cmds + n, N - n);
        for (size_t k = 0; k < N; k++)
            assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmds[k].ctx).comp.status, 0);
        assert_memory_equal(vp.buf[A], vp.buf[B], N * len);
        all_is_given_back(&vp, cq_room, objects);
        verbs_pair_close(&vp);
    }
}

/* --- room ------------------------------------------------------------------------------------- */

/* No completion comes for which the queue has no place, whatever is posted: the rest waits. */
static void no_request_goes_out_without_room_for_its_end(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_READ, WEFT_OP_ADD64};
    for (size_t i = 0; i < 2 * ARRAY_LEN(ops); i++) {
        struct verbs_pair vp;
        bool is_long = i % 2 && ops[i / 2] != WEFT_OP_ADD64;
        verbs_pair_open(&vp, "");
        verbs_pair_works(&vp);
        int64_t cq_room = room(&vp);
        int objects = objects_of(&vp);
        for (int64_t left = 0; left < 3; left++) {
            size_t len = ops[i / 2] == WEFT_OP_ADD64 ? 8 : is_long ? 2048 * K : 64;
            struct weft_cmd cmd = verbs_pair_cmd(&vp, A, ops[i / 2], 0, 0, len);
            int64_t taken = nic_of(&vp, A)->cq_room - left;
            int n = 0;
            nic_of(&vp, A)->cq_room = left;
            for (int k = 0; k < 4; k++)
                n += verbs_pair_try(&vp, A, &cmd, 1);
            CHECK(nic_of(&vp, A)->cq_room >= 0, "%d of %d places", (int)nic_of(&vp, A)->cq_room, (int)left);
            assert_int_equal(n, is_long ? 4 : left);
            nic_of(&vp, A)->cq_room += taken;
            for (; n > 0; n--)
                assert_int_equal(pair_wait(&vp.pair, A, ops[i / 2], cmd.ctx).comp.status, 0);
            all_is_given_back(&vp, cq_room, objects);
        }
        verbs_pair_close(&vp);
    }
}

/* The data of a long one is there, and its immediate has no place in the queue as yet. */
static void an_immediate_waits_for_room(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    int64_t cq_room = room(&vp);
    int objects = objects_of(&vp);
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 100 * K);
    assert_int_equal(verbs_pair_try(&vp, A, &cmd, 1), 1);
    nic_of(&vp, A)->cq_room -= cq_room;
    TEST_UNTIL(link_of(&vp, A)->imms.head, pair_poll(&vp.pair, A), "the data");
    for (int i = 0; i < 4; i++)
        pair_poll(&vp.pair, A);
    assert_int_equal(link_of(&vp, A)->data[0].imms_out, 0);
    nic_of(&vp, A)->cq_room += cq_room;
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, cmd.ctx).comp.status, 0);
    all_is_given_back(&vp, cq_room, objects);
    verbs_pair_close(&vp);
}

/* The data of a long one is there, and the device is full when the immediate comes to its turn; or it refuses it. */
static void an_immediate_of_a_long_one_is_tried_again(void **state)
{
    (void)state;
    static const int errors[] = {ENOMEM, EINVAL};
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        int64_t cq_room = room(&vp);
        int objects = objects_of(&vp);
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 100 * K);
        be_quiet(&vp);
        assert_int_equal(verbs_pair_try(&vp, A, &cmd, 1), 1);
        fake_verbs_fail_post(1, 1, errors[i]);
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, cmd.ctx).comp.status, i == 0 ? 0 : -errors[i]);
        all_is_given_back(&vp, cq_room, objects);
        if (i == 0)
            assert_int_equal(pair_wait(&vp.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, cmd.imm);
        assert_int_equal(link_of(&vp, A)->data[0].imms_out, link_of(&vp, B)->data[0].imms_in);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* Many requests of few bytes each: the device takes one piece at a time. No queue gets more than it holds. */
static void pieces_of_many_operations_take_turns(void **state)
{
    (void)state;
    enum { N = 20 };
    struct verbs_pair vp;
    struct weft_cmd cmds[N];
    struct weft_iov_local iov[VERBS_MAX_IOV];
    verbs_pair_open(&vp, "max_sge=1,max_qp_wr=32");
    int64_t cq_room = room(&vp);
    int objects = objects_of(&vp);
    for (size_t i = 0; i < VERBS_MAX_IOV; i++)
        iov[i] = (struct weft_iov_local){vp.buf[A] + 100 * i, 16, vp.mem[A].mem};
    for (size_t i = 0; i < N; i++) {
        cmds[i] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 2048 * i, 16 * VERBS_MAX_IOV);
        cmds[i].niov = VERBS_MAX_IOV;
        cmds[i].iov = iov;
    }
    fake_verbs_hold();
    int n = verbs_pair_try(&vp, A, cmds, N);
    for (uint32_t k = 0; k < link_of(&vp, A)->ndata; k++) {
        const struct verbs_qp *qp = &link_of(&vp, A)->data[k];
        CHECK(qp->head - qp->tail <= qp->depth, "%u requests", qp->head - qp->tail);
    }
    fake_verbs_release(-1);
    verbs_pair_post(&vp, A, cmds + n, N - n);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmds[i].ctx).comp.status, 0);
        for (size_t k = 0; k < VERBS_MAX_IOV; k++)
            assert_memory_equal(vp.buf[B] + 2048 * i + 16 * k, iov[k].addr, 16);
    }
    all_is_given_back(&vp, cq_room, objects);
    verbs_pair_close(&vp);
}

/* As many cmds as the nic says, of whatever kind, and not one more. */
static void a_link_takes_as_many_cmds_as_it_says(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    int64_t cq_room = room(&vp);
    int objects = objects_of(&vp), n = 0, depth = (int)nic_of(&vp, A)->base.attr.tx_depth;
    struct weft_cmd big = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 100 * K),
                    small = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
    fake_verbs_hold();
    for (int k = 0; k < 100; k++)
        n += verbs_pair_try(&vp, A, &big, 1);
    for (int k = 0; k < 2 * depth; k++)
        n += verbs_pair_try(&vp, A, &small, 1);
    assert_int_equal(n, depth);
    assert_int_equal(verbs_pair_try(&vp, A, &big, 1), 0);
    fake_verbs_release(-1);
    for (; n > 0; n--)
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, small.ctx).comp.status, 0);
    all_is_given_back(&vp, cq_room, objects);
    verbs_pair_close(&vp);
}

/* No more immediates than the peer has receives for, be they of short or of long operations; who waits looks whether
 * the peer is there. */
static void no_immediate_comes_without_a_receive(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    int64_t cq_room = room(&vp);
    int objects = objects_of(&vp), n = 0;
    struct weft_cmd small = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 0, 64),
                    big = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 4096, 4096, 100 * K);
    for (int k = 0; k < 2 * VERBS_IMMS; k++, pair_poll(&vp.pair, A))
        n += verbs_pair_try(&vp, A, &small, 1);
    assert_int_equal(n, VERBS_IMMS);
    assert_true(link_of(&vp, A)->ask_at > 0);
    assert_int_equal(verbs_pair_try(&vp, A, &big, 1), 1);
    TEST_UNTIL(link_of(&vp, A)->imms.head, pair_poll(&vp.pair, A), "the data of the long one");
    for (int k = 0; k < 4; k++)
        pair_poll(&vp.pair, A);
    assert_int_equal(fake_verbs_waiting(), 0); /* nothing met a peer without a receive */
    assert_int_equal(link_of(&vp, A)->data[0].imms_out, VERBS_IMMS);
    for (; n > 0; n--)
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, small.ctx).comp.status, 0);
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE_IMM, big.ctx).comp.status, 0);
    assert_int_equal(link_of(&vp, A)->data[0].imms_out, VERBS_IMMS + 1);
    assert_int_equal(link_of(&vp, B)->data[0].imms_in, VERBS_IMMS + 1);
    all_is_given_back(&vp, cq_room, objects);
    verbs_pair_close(&vp);
}

/* A few questions at a time; who asks looks whether the peer is there. */
static void questions_are_few_at_a_time(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_cmd cmds[2 * VERBS_CHECKS];
    verbs_pair_open(&vp, "");
    for (int k = 0; k < 2 * VERBS_CHECKS; k++) {
        cmds[k] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, (size_t)k, 0);
        cmds[k].remote_addr += k % 2 ? VERBS_PAIR_BYTES : 0;
    }
    assert_int_equal(verbs_pair_try(&vp, A, cmds, 2 * VERBS_CHECKS), VERBS_CHECKS);
    assert_int_equal(verbs_pair_try(&vp, A, cmds + VERBS_CHECKS, 1), 0);
    assert_true(link_of(&vp, A)->ask_at > 0);
    struct weft_cmd write = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 100, 64); /* others need not wait */
    assert_int_equal(verbs_pair_try(&vp, A, &write, 1), 1);
    /* an answer to a question that nobody asked is none */
    struct verbs_checked_msg stray = {.id = htole32(1000), .verdict = (int32_t)htole32((uint32_t)WEFT_EKEY)};
    verbs_op_checked(link_of(&vp, A), &stray);
    verbs_pair_post(&vp, A, cmds + VERBS_CHECKS, VERBS_CHECKS);
    for (int k = 0; k < 2 * VERBS_CHECKS; k++) {
        int status = pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmds[k].ctx).comp.status;
        CHECK(status == (k % 2 ? WEFT_EBOUNDS : 0), "question %d: %s", k, weft_err_name(status));
    }
    assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, write.ctx).comp.status, 0);
    verbs_pair_close(&vp);
}

/* --- lengths ---------------------------------------------------------------------------------- */

/* Memory that nobody has registered, or that may change at once: of each length around a limit, several at once, none
 * of which touches the bytes of another. In one piece, or in three. */
static void copies_of_any_length_stay_apart(void **state)
{
    (void)state;
    static const char *const devices[] = {"", "inline=0", "inline=64", "inline=100,inline_quiet=1", "max_msg=8192"};
    static const size_t lens[] = {1, 63, 64, 65, 100, 101, 255, 256, 257, 8191, 8192, 8193, 8703, 8704, 8705, 16385, 65536, 65537};
    enum { N = 4 };
    for (size_t i = 0; i < ARRAY_LEN(devices) * ARRAY_LEN(lens); i++) {
        struct verbs_pair vp;
        size_t len = lens[i / ARRAY_LEN(devices)], step = len + 9;
        verbs_pair_open(&vp, devices[i % ARRAY_LEN(devices)]);
        int64_t cq_room = room(&vp);
        int objects = objects_of(&vp);
        const uint32_t max_inline = nic_of(&vp, A)->base.attr.max_inline;
        for (int how = 0; how < 8; how++) {
            struct weft_cmd cmds[N];
            struct weft_iov_local iov[N][3];
            bool copied = how & 1, pieces = how & 2, read = how & 4;
            if (copied && (read || len > max_inline))
                continue;
            test_fill(vp.buf[A], N * step, 40, 0);
            test_fill(vp.buf[B], N * step, 50, 0);
            fake_verbs_hold();
            for (size_t k = 0; k < N; k++) {
                cmds[k] = verbs_pair_cmd(&vp, A, read ? WEFT_OP_READ : WEFT_OP_WRITE, k * step, k * step, len);
                cmds[k].flags = copied ? WEFT_CMD_INLINE : 0;
                size_t cut[4] = {0, len / 3, len - len / 3, len};
                for (int m = 0; m < 3; m++)
                    iov[k][m] = (struct weft_iov_local){vp.buf[A] + k * step + cut[m], cut[m + 1] - cut[m],
                                                        m == 0 ? vp.mem[A].mem : NULL};
                cmds[k].niov = pieces ? 3 : 0;
                if (pieces)
                    cmds[k].iov = iov[k];
                else
                    cmds[k].one.mem = NULL;
            }
            assert_int_equal(verbs_pair_try(&vp, A, cmds, N), N);
            if (copied)
                memset(vp.buf[A], 0, N * step);
            fake_verbs_release(-1);
            for (size_t k = 0; k < N; k++)
                assert_int_equal(pair_wait(&vp.pair, A, cmds[k].op, cmds[k].ctx).comp.status, 0);
            int from = read ? B : A, seed = read ? 50 : 40;
            uint8_t *want = malloc(N * step);
            test_fill(want, N * step, (uint64_t)seed, 0);
            for (size_t k = 0; k < N; k++)
                CHECK(!memcmp(vp.buf[!from] + k * step, want + k * step, len), "%s: %d bytes, how %d",
                      devices[i % ARRAY_LEN(devices)], (int)len, how);
            test_fill(want, N * step, read ? 40 : 50, 0); /* nothing between them */
            for (size_t k = 0; k < N; k++)
                CHECK(!memcmp(vp.buf[!from] + k * step + len, want + k * step + len, 9), "beyond %d bytes", (int)len);
            free(want);
            all_is_given_back(&vp, cq_room, objects);
        }
        verbs_pair_close(&vp);
    }
}

/* No message of the device is longer than its port takes. */
static void no_request_is_longer_than_the_port_takes(void **state)
{
    (void)state;
    static const char *const devices[] = {"max_msg=4096", "max_msg=16K", "max_msg=64K"};
    static const size_t most[] = {4096, 16 * K, 64 * K};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, devices[i]);
        assert_int_equal(nic_of(&vp, A)->base.attr.max_send, most[i] < VERBS_MAX_SEND ? most[i] : VERBS_MAX_SEND);
        for (size_t len = most[i] - 1; len <= most[i] + 1; len++) {
            for (int how = 0; how < 4; how++) {
                struct weft_cmd cmd = verbs_pair_cmd(&vp, A, how & 1 ? WEFT_OP_READ : WEFT_OP_WRITE, 100, 200, len);
                const struct weft_iov_local two[] = {{vp.buf[A] + 100, 50, vp.mem[A].mem},
                                                     {vp.buf[A] + 150, len - 50, vp.mem[A].mem}};
                if (how & 2) {
                    cmd.niov = 2;
                    cmd.iov = two;
                }
                test_fill(vp.buf[A], len + 300, len + (size_t)how, 0);
                int status = pair_do(&vp.pair, A, &cmd);
                CHECK(status == 0 && !memcmp(vp.buf[A] + 100, vp.buf[B] + 200, len), "%s: %d bytes, %s", devices[i],
                      (int)len, weft_err_name(status));
            }
        }
        verbs_pair_close(&vp);
    }
}

/* --- what the device does not take ------------------------------------------------------------ */

/* Each time a chain stops at another place. What was withdrawn costs no slot, no place and no immediate. */
static void what_is_withdrawn_is_given_back(void **state)
{
    (void)state;
    enum { N = 6 };
    struct verbs_pair vp;
    struct weft_cmd cmds[N];
    verbs_pair_open(&vp, "");
    int64_t cq_room = room(&vp);
    int objects = objects_of(&vp);
    for (size_t i = 0; i < N; i++) {
        cmds[i] = verbs_pair_cmd(&vp, A, i % 2 ? WEFT_OP_WRITE_IMM : WEFT_OP_WRITE, 1000 * i, 1000 * i, 900);
        cmds[i].one.mem = NULL; /* copied */
    }
    for (int turn = 0; turn < 60; turn++) {
        be_quiet(&vp);
        fake_verbs_fail_post(1, 1 + turn % N, ENOMEM);
        assert_int_equal(verbs_pair_try(&vp, A, cmds, N), turn % N);
        for (int i = 0; i < turn % N; i++)
            assert_int_equal(pair_wait(&vp.pair, A, cmds[i].op, cmds[i].ctx).comp.status, 0);
        struct pair_comp comp;
        while (pair_take(&vp.pair, B, WEFT_OP_WRITE_IMM, 0, &comp))
            ;
    }
    all_is_given_back(&vp, cq_room, objects);
    assert_int_equal(link_of(&vp, A)->data[0].imms_out, link_of(&vp, B)->data[0].imms_in);
    assert_int_equal(nic_of(&vp, A)->sends.nslots, VERBS_SLAB);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* A chain of which the device does not take all: what is behind the chain is not accepted before it. */
static void nothing_overtakes_what_is_withdrawn(void **state)
{
    (void)state;
    static const size_t lens[] = {64, 0, 100 * K};
    static const enum weft_op ops[] = {WEFT_OP_SEND, WEFT_OP_WRITE, WEFT_OP_WRITE};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct verbs_pair vp;
        struct pair_comp comp;
        verbs_pair_open(&vp, "");
        struct weft_cmd cmds[] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64),
                                  verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 4096, 4096, 64),
                                  verbs_pair_cmd(&vp, A, ops[i], 8192, 8192, lens[i]),
                                  verbs_pair_cmd(&vp, A, WEFT_OP_FENCE, 0, 1, 0)};
        be_quiet(&vp);
        fake_verbs_fail_post(1, 2, ENOMEM);
        assert_int_equal(verbs_pair_try(&vp, A, cmds, 4), 1);
        assert_int_equal(link_of(&vp, A)->nposted, 1);
        assert_true(!link_of(&vp, A)->fence && !link_of(&vp, A)->ops);
        verbs_pair_post(&vp, A, cmds + 1, 3);
        for (size_t k = 0; k < 4; k++)
            assert_int_equal(pair_wait(&vp.pair, A, cmds[k].op, cmds[k].ctx).comp.status, 0);
        for (int k = 0; k < 4; k++)
            pair_poll(&vp.pair, B);
        int n = 0;
        for (; pair_take(&vp.pair, B, WEFT_OP_RECV, 0, &comp); n++)
            free(comp.data);
        assert_int_equal(n, ops[i] == WEFT_OP_SEND);
        verbs_pair_close(&vp);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(a_long_operation_that_is_refused_goes_no_further),
        CASE(pieces_are_lent_for_one_operation),
        CASE(long_operations_take_turns),
        CASE(no_request_goes_out_without_room_for_its_end),
        CASE(an_immediate_waits_for_room),
        CASE(an_immediate_of_a_long_one_is_tried_again),
        CASE(pieces_of_many_operations_take_turns),
        CASE(a_link_takes_as_many_cmds_as_it_says),
        CASE(no_immediate_comes_without_a_receive),
        CASE(questions_are_few_at_a_time),
        CASE(copies_of_any_length_stay_apart),
        CASE(no_request_is_longer_than_the_port_takes),
        CASE(what_is_withdrawn_is_given_back),
        CASE(nothing_overtakes_what_is_withdrawn),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
