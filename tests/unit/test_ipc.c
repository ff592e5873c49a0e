/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a peer's GPU that this process maps and copies from and to by itself, over local and the double of a driver: that
 * it is done, where it is not, and that the peer can take its memory back at any time. Ends in the midst of a copy are
 * test_stage's, too (test_stage.mapped).
 */
#include "contract/duo.h"

#include "conn.h"
#include "endpoint.h"
#include "mem.h"
#include "util.h"

#define T TEST_DEADLINE_MS
#define LEN ((size_t)3 << 20)

int cuInit(unsigned flags);
int fake_cuda_pinned(void);
int fake_cuda_launches(void);

static uint64_t mapped(const struct duo *d)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(d->conn, &stats));
    return stats.bytes_mapped;
}

static int64_t move(struct duo *d, enum weft_xfer_op op, struct area near, size_t len,
                    const struct weft_remote *remote)
{
    struct weft_local local = area_local(near, 0, len);
    return weft_transfer(d->conn,
                         WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1,
                                   .remote = remote, .nremote = 1),
                         T, NULL);
}

/* Both ways; returns the bytes that were copied by mappings. */
static uint64_t both_ways(struct duo *d, struct area near, struct area far, size_t len,
                          uint64_t seed)
{
    uint64_t before = mapped(d);
    struct weft_remote remote;
    WEFT_OK(weft_remote_slice(&far.remote, 0, len, &remote));
    duo_fill(d, near, seed);
    assert_int_equal(move(d, WEFT_XFER_WRITE, near, len, &remote), len);
    duo_check(d, far, 0, len, seed);
    duo_fill(d, far, seed + 1);
    assert_int_equal(move(d, WEFT_XFER_READ, near, len, &remote), len);
    duo_check(d, near, 0, len, seed + 1);
    return mapped(d) - before;
}

static void it_is_mapped(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 1, 0), far = duo_area(d, B, LEN, 3, 0);
    static const size_t lens[] = {1, 7, 8, 4097, 65536, 1000001, LEN};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++)
        assert_int_equal(both_ways(d, near, far, lens[i], i * 10), 2 * lens[i]);
}

/* What the other side has mapped of this side's memory, too. */
static void both_sides_map(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    struct area back = duo_area(d, B, LEN, 0, 0);
    struct weft_local local = area_local(back, 0, LEN);
    assert_int_equal(both_ways(d, near, far, LEN, 1), 2 * LEN);
    duo_fill(d, near, 5);
    for (int i = 0; i < 3; i++) {
        weft_op_t op = duo_post(d, B, 0,
                                WEFT_OPTS(weft_xfer, .op = WEFT_XFER_READ, .local = &local,
                                          .nlocal = 1, .remote = &near.remote, .nremote = 1));
        duo_wait(d, B, op, 0);
        duo_check(d, back, 0, LEN, 5);
    }
}

/* 128 regions and more of some registrations, in one call. */
static void many_regions(void **state)
{
    enum { N = 300, REGS = 3, STEP = 9000 };
    struct duo *d = *state;
    struct area near[REGS], far[REGS];
    struct weft_local local[N];
    struct weft_remote remote[N];
    uint64_t total = 0, before = mapped(d);
    bool shifted = strstr(test_env("FAKE_CUDA", ""), "shift");
    for (int i = 0; i < REGS; i++) {
        near[i] = duo_area(d, A, (size_t)N * STEP, 0, 0);
        far[i] = duo_area(d, B, (size_t)N * STEP, 0, 0);
        duo_fill(d, near[i], (uint64_t)i);
    }
    for (size_t i = 0; i < N; i++) {
        size_t len = i * 977 % STEP;
        local[i] = area_local(near[i % REGS], i * STEP, len);
        WEFT_OK(weft_remote_slice(&far[i / 100].remote, i * STEP, len, &remote[i]));
        total += len;
    }
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = N,
                          .remote = remote,
                          .nremote = N};
    for (int round = 0; round < 3; round++) {
        int launches = fake_cuda_launches();
        assert_int_equal(weft_transfer(d->conn, &x, T, NULL), total);
        /* a kernel reaches what is mapped, and not another GPU of this process */
        assert_in_range(fake_cuda_launches() - launches, d->peer.pid && !shifted ? REGS : 0,
                        2 * REGS);
    }
    assert_int_equal(mapped(d) - before, 3 * total);
    for (size_t i = 0; i < N; i++) {
        duo_check(d, far[i / 100], i * STEP, local[i].len, i % REGS);
        duo_check_zero(d, far[i / 100], i * STEP + local[i].len, STEP - local[i].len);
    }
}

enum { LIST = 100, LIST_STEP = 5000 };

/* A list in one registration at each end, scattered, at offsets of its remotes; piece `odd` is changed by `how`. */
static int64_t move_list(struct duo *d, enum weft_xfer_op op, struct area near, struct area far,
                         size_t odd, void (*how)(struct weft_local *local, uint64_t *offset))
{
    struct weft_local local[LIST];
    struct weft_remote remote[LIST];
    uint64_t offset[LIST];
    for (size_t i = 0; i < LIST; i++) {
        size_t len = 1 + i * 977 % (LIST_STEP - 100);
        local[i] = area_local(near, i * LIST_STEP, len);
        offset[i] = i % 3 * 16;
        WEFT_OK(weft_remote_slice(&far.remote, i * 7 % LIST * LIST_STEP, offset[i] + len, &remote[i]));
    }
    if (how)
        how(&local[odd], &offset[odd]);
    return weft_transfer(d->conn,
                         WEFT_OPTS(weft_xfer, .op = op, .local = local, .nlocal = LIST,
                                   .remote = remote, .nremote = LIST, .remote_offset = offset),
                         T, NULL);
}

static void too_far(struct weft_local *local, uint64_t *offset)
{
    (void)local;
    (*offset)++;
}

static void of_no_mem(struct weft_local *local, uint64_t *offset)
{
    (void)offset;
    local->mem = 0;
}

static void before_its_mem(struct weft_local *local, uint64_t *offset)
{
    (void)offset;
    local->addr = (char *)local->addr - LEN;
}

static void empty(struct weft_local *local, uint64_t *offset)
{
    (void)offset;
    local->len = 0;
}

/* Of other memory in the midst, of none, wrong. */
static void lists_of_one_registration(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    int64_t total = 0;
    for (size_t i = 0; i < LIST; i++)
        total += (int64_t)(1 + i * 977 % (LIST_STEP - 100));
    for (uint64_t round = 0; round < 6; round++) {
        static void (*const how[])(struct weft_local *local, uint64_t *offset) = {NULL, of_no_mem, NULL, empty};
        uint64_t before = mapped(d), seed = 10 * round;
        size_t odd = 57, none = how[round % 4] == empty ? 1 + odd * 977 % (LIST_STEP - 100) : 0;
        duo_fill(d, near, seed);
        duo_fill(d, far, seed + 1);
        assert_int_equal(move_list(d, WEFT_XFER_WRITE, near, far, odd, how[round % 4]), total - (int64_t)none);
        assert_int_equal(move_list(d, WEFT_XFER_WRITE, near, far, 41, too_far), WEFT_EBOUNDS);
        CHECK(strstr(weft_last_error(), "remote[41]"), "%s", weft_last_error());
        assert_int_equal(move_list(d, WEFT_XFER_WRITE, near, far, 99, before_its_mem), WEFT_EBOUNDS);
        CHECK(strstr(weft_last_error(), "local[99]"), "%s", weft_last_error());
        if (round > 1 && how[round % 4] != of_no_mem) /* the host's is not pinned for once */
            assert_int_equal(mapped(d) - before, total - (int64_t)none);
        duo_fill(d, near, seed + 2);
        assert_int_equal(move_list(d, WEFT_XFER_READ, near, far, odd, how[round % 4]), total - (int64_t)none);
        for (size_t i = 0; i < LIST; i++) /* what is between them is as it was */
            duo_check(d, near, i * LIST_STEP, 1 + i * 977 % (LIST_STEP - 100), i == odd && none ? seed + 2 : seed);
        for (size_t i = 0; i < LIST; i += 9) { /* where they are, one by one */
            size_t len = 1 + i * 977 % (LIST_STEP - 100);
            struct weft_remote remote;
            struct weft_local local = area_local(near, i * LIST_STEP, len);
            WEFT_OK(weft_remote_slice(&far.remote, i * 7 % LIST * LIST_STEP + i % 3 * 16, len, &remote));
            duo_fill(d, near, seed + 3);
            assert_int_equal(weft_transfer(d->conn,
                                           WEFT_OPTS(weft_xfer, .op = WEFT_XFER_READ, .local = &local, .nlocal = 1,
                                                     .remote = &remote, .nremote = 1),
                                           T, NULL),
                             len);
            duo_check(d, near, i * LIST_STEP, len, seed);
            duo_check(d, near, i * LIST_STEP + len, LIST_STEP - len, seed + 3);
        }
    }
}

/* To the address in a remote (core/mem.h has the places). */
static void forge_address(struct weft_remote *remote, uint64_t more)
{
    uint64_t addr;
    memcpy(&addr, remote->bytes + 8, sizeof addr);
    addr = htole64(le64toh(addr) + more);
    memcpy(remote->bytes + 8, &addr, sizeof addr);
}

/* In the midst of a list of one registration a piece that is none of it: the code, the piece by name, and nothing is held afterwards. */
static void lists_with_a_bad_piece(void **state)
{
    enum { N = 20, STEP = 4096, BAD = 13 };
    struct duo *d = *state;
    struct area near = duo_area(d, A, N * STEP, 0, 0), far = duo_area(d, B, N * STEP, 0, 0);
    const uint64_t beyond = N * STEP - BAD * STEP; /* from the bad piece's start */
    const struct {
        int code, byte; /* of the remote that is turned; 0: none */
        uint64_t offset, len, moved; /* the remote's address */
        bool longer; /* the remote says so */
    } bad[] = {
        {WEFT_EBOUNDS, .offset = beyond + 1, .len = 1}, /* behind the remote's end */
        {WEFT_EBOUNDS, .offset = UINT64_MAX - 5, .len = 16},
        {WEFT_EBOUNDS, .len = beyond + 1},       /* too long for both ends */
        {WEFT_EKEY, .byte = 4, .len = 16},       /* of another owner */
        {-EINVAL, .byte = 2, .len = 16},         /* no remote */
        {-EINVAL, .len = 16, .longer = true},    /* its end is beyond all addresses */
        {WEFT_EBOUNDS, .len = 16, .moved = beyond - 15}, /* what its key is for ends a byte before */
        {WEFT_EBOUNDS, .len = 16, .moved = -(uint64_t)(BAD * STEP + 1)}, /* or begins one later */
    };
    struct weft_local local[N];
    struct weft_remote remote[N];
    uint64_t offset[N];
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = local, .nlocal = N,
                          .remote = remote, .nremote = N, .remote_offset = offset};
    for (int round = 0; round < 3; round++) /* once memory is mapped, too */
        for (size_t k = 0; k <= ARRAY_LEN(bad); k++) {
            duo_fill(d, near, k);
            for (size_t i = 0; i < N; i++) {
                local[i] = area_local(near, i * STEP, 16);
                WEFT_OK(weft_remote_slice(&far.remote, i * STEP, N * STEP - i * STEP, &remote[i]));
                offset[i] = 0;
            }
            if (k == ARRAY_LEN(bad)) {
                assert_int_equal(weft_transfer(d->conn, &x, T, NULL), N * 16);
                continue;
            }
            if (bad[k].byte)
                remote[BAD].bytes[bad[k].byte] ^= 0x80;
            forge_address(&remote[BAD], bad[k].moved);
            if (bad[k].longer)
                memset(remote[BAD].bytes + 16, 0xff, 8);
            local[BAD].len = bad[k].len;
            offset[BAD] = bad[k].offset;
            assert_int_equal(weft_transfer(d->conn, &x, T, NULL), bad[k].code);
            if (!bad[k].moved) /* else the peer's memory tells */
                CHECK(strstr(weft_last_error(), "[13]"), "%zu: %s", k, weft_last_error());
        }
    duo_check(d, far, 0, 16, ARRAY_LEN(bad));
}

/* One more piece than a copy takes; and one that is of another registration of the peer's, in the midst. */
static void lists_that_are_not_of_one(void **state)
{
    enum { N = 129, LEN_EACH = 3000 };
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0), other = duo_area(d, B, LEN, 0, 0);
    for (size_t n = N; n > 40; n -= 40)
        for (size_t odd = 0; odd < n + 60; odd += 60) { /* the last one: none */
            struct weft_local local[N];
            struct weft_remote remote[N];
            duo_fill(d, near, n);
            duo_fill(d, far, 1);
            duo_fill(d, other, 2);
            for (size_t i = 0; i < n; i++) {
                local[i] = area_local(near, i * LEN_EACH, LEN_EACH - 1);
                WEFT_OK(weft_remote_slice(i == odd ? &other.remote : &far.remote, i * LEN_EACH, LEN_EACH - 1, &remote[i]));
            }
            assert_int_equal(weft_transfer(d->conn,
                                           WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local, .nlocal = n,
                                                     .remote = remote, .nremote = n),
                                           T, NULL),
                             n * (LEN_EACH - 1));
            for (size_t i = 0; i < n; i++) {
                duo_check(d, far, i * LEN_EACH, LEN_EACH - 1, i == odd ? 1 : n);
                duo_check(d, other, i * LEN_EACH, LEN_EACH - 1, i == odd ? n : 2);
            }
        }
}

/* A handle or a key that is no more, where what it named still is: in the midst of a list that is else of one registration. */
static void lists_with_what_is_gone(void **state)
{
    enum { N = 20, STEP = 4096 };
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    struct weft_local local[N];
    struct weft_remote remote[N], old;
    weft_mem_t mine, theirs;
    struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_WRITE, .local = local, .nlocal = N,
                          .remote = remote, .nremote = N};
    WEFT_OK(weft_mem_reg(d->a.endpoint, near.addr, LEN / 2, NULL, &mine)); /* all of it has one key, however often */
    WEFT_OK(weft_mem_reg(d->b.endpoint, far.addr, LEN / 2, NULL, &theirs));
    WEFT_OK(weft_mem_advertise(theirs, far.addr, LEN / 2, &old));
    WEFT_OK(weft_mem_dereg(mine));
    WEFT_OK(weft_mem_dereg(theirs));
    for (size_t i = 0; i < N; i++) {
        local[i] = area_local(near, i * STEP, STEP);
        WEFT_OK(weft_remote_slice(&far.remote, i * STEP, STEP, &remote[i]));
    }
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), N * STEP);
    local[11].mem = mine;
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), WEFT_EHANDLE);
    local[11].mem = near.mem;
    WEFT_OK(weft_remote_slice(&old, 11 * STEP, STEP, &remote[11]));
    assert_int_equal(weft_transfer(d->conn, &x, T, NULL), WEFT_EKEY);
}

/* A notification is there after the bytes. */
static void a_notification_comes_after_the_bytes(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    char note[16];
    test_fill(note, sizeof note, 9, 0);
    for (uint64_t i = 0; i < 10; i++) {
        struct weft_local local = area_local(near, 0, LEN);
        duo_fill(d, near, i);
        WEFT_OK(weft_transfer(d->conn,
                              WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                        .nlocal = 1, .remote = &far.remote, .nremote = 1,
                                        .notify = note, .notify_len = sizeof note),
                              T, NULL));
        duo_notif(d, B, 0, sizeof note, 9);
        duo_check(d, far, 0, LEN, i);
    }
}

/* The same registration over several conns, all of which wait for it to be pinned and mapped. */
static void several_conns_at_once(void **state)
{
    enum { CONNS = 4 };
    struct duo *d = *state;
    struct area far[CONNS];
    weft_op_t ops[CONNS];
    struct area near = duo_area(d, A, LEN, 0, 0);
    for (int i = 1; i < CONNS; i++)
        duo_connect(d);
    for (int i = 0; i < CONNS; i++)
        far[i] = duo_area(d, B, LEN, 0, 0);
    duo_fill(d, near, 1);
    for (int i = 0; i < CONNS; i++) {
        struct weft_local local = area_local(near, 0, LEN);
        ops[i] = duo_post(d, A, i,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                    .remote = &far[i].remote, .nremote = 1));
    }
    for (int i = 0; i < CONNS; i++) {
        duo_wait(d, A, ops[i], 0);
        duo_check(d, far[i], 0, LEN, 1);
    }
    assert_int_equal(mapped(d), LEN);
}

/* A peer that knows this side's memory from before asks for it as soon as it is connected. */
static void asked_before_the_conn_is_up_here(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    char bytes[WEFT_METADATA_MAX];
    int len = WEFT_OK(weft_endpoint_metadata(d->b.endpoint, bytes, sizeof bytes));
    struct weft_conn_stats stats;
    weft_conn_t other;
    duo_fill(d, near, 1);
    for (int i = 0; i < 50; i++) {
        weft_conn_t conn;
        WEFT_OK(weft_endpoint_connect(d->a.endpoint, bytes, (size_t)len, NULL, &conn));
        struct weft_local local = area_local(near, 0, LEN);
        assert_int_equal(weft_transfer(conn,
                                       WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                                 .nlocal = 1, .remote = &far.remote, .nremote = 1),
                                       T, NULL),
                         LEN);
        WEFT_OK(weft_conn_stats(conn, &stats));
        assert_int_equal(stats.bytes_mapped, LEN);
        WEFT_OK(weft_endpoint_accept(d->b.endpoint, T, &other));
        WEFT_OK(weft_conn_close(conn));
        WEFT_OK(weft_conn_close(other));
    }
}

/* The link that mappings belong to goes while the peer is asked: what it answers comes by the other one, and is of nothing. */
static void their_link_goes(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    setenv("WEFT_LANES", "2", 1);
    weft__config_read();
    weft_endpoint_t from = duo_endpoint(), to = duo_endpoint();
    unsetenv("WEFT_LANES");
    weft__config_read();
    weft_mem_t mine, theirs;
    struct weft_remote remote;
    WEFT_OK(weft_mem_reg(from, near.addr, LEN, NULL, &mine));
    WEFT_OK(weft_mem_reg(to, far.addr, LEN, NULL, &theirs));
    WEFT_OK(weft_mem_advertise(theirs, far.addr, LEN, &remote));
    for (int i = 0; i < 40; i++) {
        weft_conn_t conn, other;
        duo_join(from, to, &conn, &other);
        struct weft__conn *c = weft__handle_get(conn, WEFT__CONN);
        struct weft_local local = {.addr = near.addr, .len = LEN, .mem = mine};
        weft_op_t op;
        duo_fill(d, near, (uint64_t)i);
        WEFT_OK(weft_post(conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                    .nlocal = 1, .remote = &remote, .nremote = 1),
                          &op));
        pthread_mutex_lock(&c->ep->lock);
        assert_int_equal(c->nlinks, 2);
        weft__link_lost(c->links[0], WEFT_ELINK, "of the test");
        pthread_mutex_unlock(&c->ep->lock);
        weft__handle_put(conn);
        WEFT_OK(weft_op_wait(op, T, NULL));
        duo_check(d, far, 0, LEN, (uint64_t)i);
        WEFT_OK(weft_conn_close(conn));
        WEFT_OK(weft_conn_close(other));
    }
    WEFT_OK(weft_endpoint_close(from));
    WEFT_OK(weft_endpoint_close(to));
}

/* --- where it is not done -------------------------------------------------------------------------- */

static void driver(struct host *host, void *arg)
{
    (void)host;
    setenv("FAKE_CUDA", arg, 1);
    assert_int_equal(cuInit(0), 0);
}

static void drivers(struct duo *d, const char *a, const char *b)
{
    char there[64];
    snprintf(there, sizeof there, "%s", b);
    driver(NULL, (void *)(uintptr_t)a);
    duo_call(d, B, driver, there, sizeof there);
}

static void what_cannot_be_mapped_is_staged(void **state)
{
    struct duo *d = *state;
    static const char *const settings[][2] = {{"devices=2", "devices=2,ipc=0"},
                                              {"devices=2,ipc=1", "devices=2"},
                                              {"devices=1", "devices=2"}};
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        struct area near = duo_area(d, A, LEN, 1, 0), far = duo_area(d, B, LEN, 3, 0);
        /* copied by the GPU of this side, which need not know the other; a segment's has to be known */
        bool home = i == 2 && test_memory(A) >= 0 && (!test_segment() || test_memory(B) == 0);
        drivers(d, settings[i][0], settings[i][1]);
        uint64_t bytes = both_ways(d, near, far, LEN, i) + both_ways(d, near, far, 100, i);
        assert_int_equal(bytes, home ? 2 * LEN + 200 : 0);
    }
    drivers(d, "devices=2", "devices=2");
    struct area near = duo_area(d, A, LEN, 1, 0), far = duo_area(d, B, LEN, 3, 0);
    assert_int_equal(both_ways(d, near, far, LEN, 1), 2 * LEN);
}

/* Its memory is the host's. */
static void what_is_not_a_gpus(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, LEN, 0, 0);
    char bytes[1000]; /* not registered */
    uint64_t before = mapped(d);
    test_fill(bytes, sizeof bytes, 3, 0);
    assert_int_equal(weft_write(d->conn, bytes, sizeof bytes, &far.remote, 0, T), sizeof bytes);
    duo_check(d, far, 0, sizeof bytes, 3);
    assert_int_equal(mapped(d), before);
}

/* --- what the peer takes back ------------------------------------------------------------------------ */

static void dereg(struct host *host, void *arg)
{
    weft_mem_t mem = *(weft_mem_t *)arg;
    (void)host;
    WEFT_OK(weft_mem_dereg(mem));
}

static void what_was_taken_back_is_not_touched(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), other = duo_area(d, B, LEN, 0, 0);
    for (uint64_t i = 0; i < 20; i++) {
        struct area far = duo_area(d, B, LEN, 0, 0);
        assert_int_equal(both_ways(d, near, far, LEN, i), 2 * LEN);
        duo_call(d, B, dereg, &far.mem, sizeof far.mem);
        duo_fill(d, far, 99);
        WEFT_FAILS(WEFT_EKEY, move(d, WEFT_XFER_WRITE, near, LEN, &far.remote));
        WEFT_FAILS(WEFT_EKEY, move(d, WEFT_XFER_READ, near, 8, &far.remote));
        duo_check(d, far, 0, LEN, 99);
        assert_int_equal(both_ways(d, near, other, LEN, i),
                         2 * LEN); /* which is as good as before */
    }
}

/* While it is being written to: from then on, not a byte. */
static void taken_back_in_the_midst(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0);
    struct weft_local local = area_local(near, 0, LEN);
    for (int i = 0; i < 30; i++) {
        struct area far = duo_area(d, B, LEN, 0, 0);
        weft_op_t ops[6];
        if (i % 3)
            assert_int_equal(both_ways(d, near, far, 8, 1), 16);
        duo_fill(d, near, 1);
        for (size_t j = 0; j < ARRAY_LEN(ops); j++)
            WEFT_OK(weft_post(d->conn,
                              WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                        .nlocal = 1, .remote = &far.remote, .nremote = 1),
                              &ops[j]));
        test_sleep_ms(i % 4);
        duo_call(d, B, dereg, &far.mem, sizeof far.mem);
        duo_fill(d, far, 99);
        for (size_t j = 0; j < ARRAY_LEN(ops); j++) {
            struct weft_op_status status;
            int rc = weft_op_wait(ops[j], T, &status);
            CHECK(rc == 0 || rc == WEFT_EKEY, "it ended with %s: %s", weft_err_name(rc),
                  status.text);
        }
        duo_check(d, far, 0, LEN, 99);
    }
}

/* Side B writes to this memory of A's. */
static weft_op_t written_by_peer(struct duo *d, struct area far, struct area near)
{
    struct weft_local local = area_local(far, 0, LEN);
    return duo_post(d, B, 0,
                    WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                              .remote = &near.remote, .nremote = 1));
}

/* A copy of the peer's that does not end holds up neither this side nor, once it has ended, what comes after. */
static void a_peer_that_does_not_go_on(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), other = duo_area(d, A, LEN, 0, 0);
    struct area far = duo_area(d, B, LEN, 0, 0);
    if (test_memory(A) < 0)
        return; /* B copies to a GPU of A's, if there is one */
    duo_fill(d, far, 1);
    duo_wait(d, B, written_by_peer(d, far, near), 0);
    drivers(d, "devices=2", "devices=2,delay=4000000000");
    weft_op_t op = written_by_peer(d, far, near);
    test_sleep_ms(50);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_mem_dereg(near.mem));
    drivers(d, "devices=2", "devices=2");
    duo_wait(d, B, op, 0);
    duo_wait(d, B, written_by_peer(d, far, other), 0);
    duo_check(d, other, 0, LEN, 1);
    WEFT_OK(weft_mem_dereg(other.mem));
}

static void closed_while_a_peer_does_not_go_on(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    duo_fill(d, far, 1);
    duo_wait(d, B, written_by_peer(d, far, near), 0);
    drivers(d, "devices=2", "devices=2,delay=4000000000");
    written_by_peer(d, far, near);
    test_sleep_ms(50);
    WEFT_OK(weft_conn_close(d->conn)); /* does not wait for ever */
    WEFT_OK(weft_mem_dereg(near.mem));
    test_peer_kill(&d->peer);
}

static void access_and_bounds(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, WEFT_READ);
    assert_int_equal(move(d, WEFT_XFER_READ, near, LEN, &far.remote), LEN);
    WEFT_FAILS(WEFT_EACCESS, move(d, WEFT_XFER_WRITE, near, LEN, &far.remote));
    struct weft_remote forged = far.remote; /* its length, and its access */
    forged.bytes[1] |= WEFT_WRITE;
    duo_fill(d, far, 4);
    WEFT_FAILS(WEFT_EACCESS, move(d, WEFT_XFER_WRITE, near, LEN, &forged));
    forged = far.remote;
    forged.bytes[16 + 3] += 1;
    struct area more = duo_area(d, A, LEN + 4096, 0, 0);
    struct weft_remote beyond;
    WEFT_OK(weft_remote_slice(&forged, 0, LEN + 4096, &beyond));
    WEFT_FAILS(WEFT_EBOUNDS, move(d, WEFT_XFER_READ, more, LEN + 4096, &beyond));
    duo_check(d, far, 0, LEN, 4);
}

/* --- the host's memory ------------------------------------------------------------------------------- */

static void what_was_pinned_is_let_go(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, LEN, 0, 0);
    int before = fake_cuda_pinned();
    for (int i = 0; i < 5; i++) {
        struct area near = duo_area(d, A, LEN, 0, 0);
        assert_int_equal(both_ways(d, near, far, LEN, 1), 2 * LEN);
        if (test_memory(A) < 0)
            assert_int_equal(fake_cuda_pinned(), before + 1);
        WEFT_OK(weft_mem_dereg(near.mem));
        assert_int_equal(fake_cuda_pinned(), before);
    }
}

/* --- the other one dies ------------------------------------------------------------------------------- */

static void killed(struct duo *d, enum weft_xfer_op kind, int ms)
{
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    struct weft_local local = area_local(near, 0, LEN);
    weft_op_t ops[4];
    assert_int_equal(both_ways(d, near, far, 8, 1), 16);
    for (size_t j = 0; j < ARRAY_LEN(ops); j++)
        WEFT_OK(weft_post(d->conn,
                          WEFT_OPTS(weft_xfer, .op = kind, .local = &local, .nlocal = 1,
                                    .remote = &far.remote, .nremote = 1),
                          &ops[j]));
    test_sleep_ms(ms);
    test_peer_kill(&d->peer);
    for (size_t j = 0; j < ARRAY_LEN(ops); j++) {
        struct weft_op_status status;
        int rc = weft_op_wait(ops[j], T, &status);
        CHECK(rc == 0 || rc == WEFT_EPEER, "it ended with %s: %s", weft_err_name(rc), status.text);
    }
    WEFT_OK(weft_mem_dereg(near.mem));
}

static void the_peer_dies_while_it_is_written_to(void **state)
{
    killed(*state, WEFT_XFER_WRITE, 1);
}

static void the_peer_dies_while_it_is_read(void **state)
{
    killed(*state, WEFT_XFER_READ, 2);
}

/* While it copies from and to this side's memory. */
static void who_copies_dies(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, LEN, 0, 0), far = duo_area(d, B, LEN, 0, 0);
    struct weft_local local = area_local(far, 0, LEN);
    for (int i = 0; i < 6; i++)
        duo_post(d, B, 0,
                 WEFT_OPTS(weft_xfer, .op = i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE,
                           .local = &local, .nlocal = 1, .remote = &near.remote, .nremote = 1));
    test_sleep_ms(2);
    test_peer_kill(&d->peer);
    WEFT_OK(weft_mem_dereg(near.mem));
    duo_fill(d, near, 7);
    test_sleep_ms(20);
    duo_check(d, near, 0, LEN, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(it_is_mapped),
        IN_BOTH(both_sides_map),
        IN_BOTH(many_regions),
        IN_BOTH(lists_of_one_registration),
        IN_BOTH(lists_that_are_not_of_one),
        IN_BOTH(lists_with_a_bad_piece),
        IN_ONE(lists_with_what_is_gone),
        IN_BOTH(a_notification_comes_after_the_bytes),
        IN_BOTH(several_conns_at_once),
        IN_ONE(asked_before_the_conn_is_up_here),
        IN_ONE(their_link_goes),
        IN_TWO(what_cannot_be_mapped_is_staged),
        IN_BOTH(what_is_not_a_gpus),
        IN_BOTH(what_was_taken_back_is_not_touched),
        IN_BOTH(taken_back_in_the_midst),
        IN_TWO(a_peer_that_does_not_go_on),
        KILLED(closed_while_a_peer_does_not_go_on),
        IN_BOTH(access_and_bounds),
        IN_BOTH(what_was_pinned_is_let_go),
        KILLED(the_peer_dies_while_it_is_written_to),
        KILLED(the_peer_dies_while_it_is_read),
        KILLED(who_copies_dies),
    };
    return DUO_MAIN("test_ipc", tests);
}
