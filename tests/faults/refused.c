/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that the target has to refuse, and lengths at both ends of what there is: stale keys,
 * ranges that only a forged remote has, nothing at all, more than 4 GiB, 10 000 pieces of which one
 * is bad. Each ends with its code, whichever side began it; both ends of its conn stay up, and
 * another conn between the same two endpoints goes on meanwhile.
 */
#include "party.h"

#include <endian.h>
#include <sys/mman.h>

#define T TEST_DEADLINE_MS
#define DEPTH 6 /* operations that are posted at once */
#define LARGE 300000
#define GIB ((size_t)1 << 30)

struct scene {
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    struct party target;
    struct witness witness; /* on a conn of its own to the same target */
    struct test_mem mem;
    weft_mem_t handle;
    struct weft_remote remote;
};

/* --- attempts ---------------------------------------------------------------------------------- */

/* One operation, by either side, and how it ended. */
struct attempt {
    enum weft_xfer_op op;
    bool posted; /* several at once, else blocking */
    size_t len;
    struct weft_remote remote;
    uint64_t offset;
    int64_t rc;
};

static void post_all(weft_conn_t conn, const struct weft_xfer *x, struct attempt *a)
{
    weft_op_t ops[DEPTH];
    struct weft_op_status status;
    for (int i = 0; i < DEPTH; i++) {
        a->rc = weft_post(conn, x, &ops[i]);
        CHECK(i == 0 || a->rc == 0, "the same operation was posted and refused");
        if (a->rc)
            return; /* refused on this side */
    }
    for (int i = 0; i < DEPTH; i++) {
        int rc = weft_op_wait(ops[i], T, &status);
        CHECK(i == 0 || (rc < 0 ? rc : (int64_t)status.bytes) == a->rc,
              "the same operation ended with %s and with %s", weft_err_name((int)a->rc),
              weft_err_name(rc));
        CHECK(!rc == !*status.text, "%s says '%s'", weft_err_name(rc), status.text);
        a->rc = rc < 0 ? rc : (int64_t)status.bytes;
    }
}

static void attempt(weft_conn_t conn, unsigned char *mem, struct attempt *a)
{
    bool add = a->op == WEFT_XFER_ADD;
    struct weft_local local = {.addr = mem, .len = a->len};
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = a->op,
                          .local = add ? NULL : &local,
                          .nlocal = !add,
                          .remote = &a->remote,
                          .nremote = 1,
                          .remote_offset = &a->offset,
                          .value = 1};
    if (a->posted)
        post_all(conn, &x, a);
    else
        a->rc = weft_transfer(conn, &x, T, NULL);
    CHECK(a->rc >= 0 || *weft_last_error(), "an operation failed without a sentence");
}

static void attempt_there(struct member *member, void *arg)
{
    attempt(member->conn, member->mem.at + PARTY_LEN - LARGE, arg); /* the witness has the start */
}

/* By this side on the target's memory, or the other way round. */
static void must_end(struct scene *s, bool there, struct attempt a, int64_t want)
{
    if (there)
        party_call(&s->target, attempt_there, &a, sizeof a);
    else
        attempt(s->conn, s->mem.at, &a);
    CHECK(a.rc == want,
          "operation %d of %zu bytes at %" PRIu64 ", %s, by the %s: %" PRId64
          " (%s), not %" PRId64,
          a.op, a.len, a.offset, a.posted ? "posted" : "blocking", there ? "target" : "initiator",
          a.rc, a.rc < 0 ? weft_err_name((int)a.rc) : "well", want);
}

/* Writes and reads, short and long, and additions. */
static void all_must_end(struct scene *s, bool there, const struct weft_remote *remote,
                         uint64_t offset, int64_t want)
{
    static const size_t lens[] = {8, 1000, LARGE};
    for (int posted = 0; posted < 2; posted++) {
        struct attempt a = {.posted = posted, .remote = *remote, .offset = offset};
        for (size_t i = 0; i < 2 * ARRAY_LEN(lens); i++) {
            a.op = i % 2 ? WEFT_XFER_READ : WEFT_XFER_WRITE;
            a.len = lens[i / 2];
            must_end(s, there, a, want);
        }
        a.op = WEFT_XFER_ADD;
        a.len = 8;
        must_end(s, there, a, want);
    }
}

/* --- the target's memory ----------------------------------------------------------------------- */

/* Memory that the target lends beside what it has anyway. Its pages come when they are touched. */
struct lent {
    size_t len, used; /* mapped, and registered of it, from the middle on */
    unsigned char *base, *at;
    weft_mem_t mem;
    struct weft_remote remote;
    uint64_t offset, check_len, seed; /* to compare; seed 0: zeros */
};

static void lend(weft_endpoint_t endpoint, struct lent *l)
{
    l->base = mmap(NULL, l->len, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(l->base != MAP_FAILED, "%zu bytes: %m", l->len);
    l->at = l->base + (l->len - l->used) / 2;
    WEFT_OK(weft_mem_reg(endpoint, l->at, l->used, NULL, &l->mem));
    WEFT_OK(weft_mem_advertise(l->mem, l->at, l->used, &l->remote));
}

static void lend_there(struct member *member, void *arg)
{
    lend(member->endpoint, arg);
}

static void dereg_there(struct member *member, void *arg)
{
    (void)member;
    WEFT_OK(weft_mem_dereg(((struct lent *)arg)->mem));
}

static void unmap_there(struct member *member, void *arg)
{
    const struct lent *l = arg;
    (void)member;
    munmap(l->base, l->len);
}

static void compare_there(struct member *member, void *arg)
{
    const struct lent *l = arg;
    (void)member;
    const unsigned char *at = l->at + l->offset;
    int64_t i = l->seed ? test_differs(at, l->check_len, l->seed, 0)
                        : test_nonzero(at, l->check_len);
    CHECK(i < 0, "byte %" PRIu64 " of the target's memory is wrong", l->offset + (uint64_t)i);
}

static struct lent lend_target(struct scene *s, size_t len, size_t used)
{
    struct lent l = {.len = len, .used = used};
    party_call(&s->target, lend_there, &l, sizeof l);
    return l;
}

static void compare(struct scene *s, struct lent l, uint64_t offset, size_t len, uint64_t seed)
{
    l.offset = offset;
    l.check_len = len;
    l.seed = seed;
    party_call(&s->target, compare_there, &l, sizeof l);
}

static void give_back(struct scene *s, struct lent *l)
{
    party_call(&s->target, dereg_there, l, sizeof *l);
    party_call(&s->target, unmap_there, l, sizeof *l);
}

/* --- both ends go on --------------------------------------------------------------------------- */

static void is_up(weft_conn_t conn)
{
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(conn, &info));
    CHECK(info.state == WEFT_CONN_UP, "a conn went down: %s", info.why);
}

static void is_up_there(struct member *member, void *arg)
{
    (void)arg;
    is_up(member->conn);
}

/* This conn works in both directions, and so does the other one. */
static void all_goes_on(struct scene *s)
{
    struct attempt a = {.op = WEFT_XFER_WRITE,
                        .len = LARGE,
                        .remote = s->target.remote,
                        .offset = PARTY_LEN - LARGE};
    must_end(s, false, a, LARGE);
    a.remote = s->remote;
    a.op = WEFT_XFER_READ;
    must_end(s, true, a, LARGE);
    is_up(s->conn);
    party_call(&s->target, is_up_there, NULL, 0);
    witness_goes_on(&s->witness);
    test_mem_check_guards(&s->mem);
}

/* --- keys, ranges, access ---------------------------------------------------------------------- */

/* Words of a remote, at these places: what a peer that lies would change. */
#define REMOTE_ADDR 8
#define REMOTE_LEN 16
#define REMOTE_KEY 24

static struct weft_remote forge(struct weft_remote remote, size_t at, int64_t more)
{
    uint64_t word;
    memcpy(&word, remote.bytes + at, sizeof word);
    word = htole64(le64toh(word) + (uint64_t)more);
    memcpy(remote.bytes + at, &word, sizeof word);
    return remote;
}

static void stale_keys(void **state)
{
    struct scene *s = *state;
    struct lent l = lend_target(s, PARTY_LEN, PARTY_LEN);
    struct lent near = {.len = PARTY_LEN, .used = PARTY_LEN};
    lend(s->endpoint, &near);
    party_call(&s->target, dereg_there, &l, sizeof l);
    WEFT_OK(weft_mem_dereg(near.mem));
    all_must_end(s, false, &l.remote, 0, WEFT_EKEY);
    all_must_end(s, true, &near.remote, 0, WEFT_EKEY);
    struct weft_remote guess = forge(s->target.remote, REMOTE_KEY, 1);
    all_must_end(s, false, &guess, 0, WEFT_EKEY);
    compare(s, l, 0, PARTY_LEN, 0);
    assert_true(test_nonzero(near.at, PARTY_LEN) < 0);
    all_goes_on(s);
    party_call(&s->target, unmap_there, &l, sizeof l);
    munmap(near.base, near.len);
}

/* A remote says where it ends, and this side believes it; then one that says more than is true. */
static void out_of_bounds(void **state)
{
    struct scene *s = *state;
    struct lent l = lend_target(s, 2 * PARTY_LEN, PARTY_LEN);
    const uint64_t beyond[] = {PARTY_LEN, PARTY_LEN + 8, 1ull << 32, UINT64_MAX - 7};
    const int64_t moved[] = {-8, 8, -(int64_t)PARTY_LEN, (int64_t)PARTY_LEN};
    for (size_t i = 0; i < ARRAY_LEN(beyond); i++) {
        all_must_end(s, false, &l.remote, beyond[i], WEFT_EBOUNDS);
        all_must_end(s, true, &s->remote, beyond[i], WEFT_EBOUNDS);
    }
    for (size_t i = 0; i < ARRAY_LEN(moved); i++) { /* at its start, or at its end */
        struct weft_remote far = forge(l.remote, REMOTE_ADDR, moved[i]);
        struct weft_remote near = forge(s->remote, REMOTE_ADDR, moved[i]);
        struct attempt a = {.posted = i & 1,
                            .op = i & 2 ? WEFT_XFER_READ : WEFT_XFER_WRITE,
                            .len = LARGE,
                            .offset = moved[i] < 0 ? 0 : PARTY_LEN - LARGE};
        a.remote = far;
        must_end(s, false, a, WEFT_EBOUNDS);
        a.remote = near;
        must_end(s, true, a, WEFT_EBOUNDS);
    }
    struct weft_remote large = forge(l.remote, REMOTE_LEN, 1ll << 40);
    for (size_t i = 0; i < ARRAY_LEN(beyond) - 1; i++)
        all_must_end(s, false, &large, beyond[i], WEFT_EBOUNDS);
    l.at = l.base; /* what lies around */
    compare(s, l, 0, l.len, 0);
    all_goes_on(s);
    give_back(s, &l);
}

/* --- nothing ----------------------------------------------------------------------------------- */

static void one_notif_there(struct member *member, void *arg)
{
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(member->endpoint, T, &notif));
    CHECK(notif.len == *(size_t *)arg, "a notification of %zu bytes came", notif.len);
    weft_notif_free(&notif);
}

static void one_notif(struct scene *s, size_t len)
{
    party_call(&s->target, one_notif_there, &len, sizeof len);
}

static void empty_recv_there(struct member *member, void *arg)
{
    (void)arg;
    int64_t rc = weft_recv(member->conn, NULL, 0, T);
    CHECK(rc == 0, "an empty message: %" PRId64, rc);
}

/* Empty pieces among others, and nothing but empty ones; the target is not asked about those. */
static void empty_pieces(struct scene *s, const struct lent *l, struct weft_remote stale)
{
    struct weft_local local[3] = {{.addr = s->mem.at}, {.addr = s->mem.at, .len = 100}, {0}};
    struct weft_remote remote[3] = {stale, l->remote, stale};
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = 3,
                          .remote = remote,
                          .nremote = 3,
                          .notify = "12345",
                          .notify_len = 5};
    test_fill(s->mem.at, 100, 3, 0);
    assert_int_equal(weft_transfer(s->conn, &x, T, NULL), 100);
    one_notif(s, 5);
    compare(s, *l, 0, 100, 3);
    compare(s, *l, 100, PARTY_LEN - 100, 0);
    local[1].len = 0;
    x.notify_len = 4;
    assert_int_equal(weft_transfer(s->conn, &x, T, NULL), 0);
    one_notif(s, 4);
    x.nlocal = x.nremote = 0;
    x.notify_len = 3;
    assert_int_equal(weft_transfer(s->conn, &x, T, NULL), 0);
    one_notif(s, 3);
}

static void zero_lengths(void **state)
{
    struct scene *s = *state;
    struct lent l = lend_target(s, PARTY_LEN, PARTY_LEN), old = lend_target(s, 4096, 4096);
    give_back(s, &old);
    for (int i = 0; i < 8; i++) {
        bool there = i & 4;
        struct attempt a = {.posted = i & 1, .op = i & 2 ? WEFT_XFER_READ : WEFT_XFER_WRITE};
        a.remote = there ? s->remote : l.remote;
        must_end(s, there, a, 0);
        a.offset = PARTY_LEN;
        must_end(s, there, a, 0);
        a.offset = PARTY_LEN + 1;
        must_end(s, there, a, WEFT_EBOUNDS);
        a.remote = (struct weft_remote){{0}};
        must_end(s, there, a, -EINVAL);
    }
    struct attempt a = {.op = WEFT_XFER_WRITE, .remote = old.remote};
    must_end(s, false, a, 0);
    a.len = 1;
    must_end(s, false, a, WEFT_EKEY);
    empty_pieces(s, &l, old.remote);
    party_start(&s->target, empty_recv_there, NULL, 0);
    assert_int_equal(weft_send(s->conn, NULL, 0, T), 0);
    party_finish(&s->target, NULL, 0);
    WEFT_OK(weft_notify(s->conn, "", 0, T));
    one_notif(s, 0);
    all_goes_on(s);
    give_back(s, &l);
}

/* --- more than 4 GiB --------------------------------------------------------------------------- */

#define HUGE_LEN (4 * GIB + (1 << 20))
#define BOUNDARY (4 * GIB - 1000) /* ranges from here on cross it */

static void offsets_beyond_4_gib(void **state)
{
    struct scene *s = *state;
    struct lent l = lend_target(s, HUGE_LEN, HUGE_LEN);
    struct attempt a = {.len = LARGE, .remote = l.remote, .offset = BOUNDARY};
    uint64_t word;
    for (int posted = 0; posted < 2; posted++) {
        a.posted = posted;
        test_fill(s->mem.at, LARGE, 4, 0);
        a.op = WEFT_XFER_WRITE;
        must_end(s, false, a, LARGE);
        compare(s, l, BOUNDARY, LARGE, 4);
        test_zero(s->mem.at, LARGE);
        a.op = WEFT_XFER_READ;
        must_end(s, false, a, LARGE);
        assert_true(test_differs(s->mem.at, LARGE, 4, 0) < 0);
    }
    WEFT_OK(weft_add(s->conn, &l.remote, HUGE_LEN - 8, 77, NULL, T));
    assert_int_equal(weft_read(s->conn, &word, 8, &l.remote, HUGE_LEN - 8, T), 8);
    assert_int_equal(word, 77);
    a.offset = HUGE_LEN - LARGE + 1;
    must_end(s, false, a, WEFT_EBOUNDS);
    compare(s, l, 0, 1 << 20, 0); /* where a number of 32 bits would have meant */
    all_goes_on(s);
    give_back(s, &l);
}

static void short_recv_there(struct member *member, void *arg)
{
    struct weft_local local = {.addr = member->mem.at, .len = 64};
    struct weft_op_status status;
    int64_t rc = weft_transfer(
        member->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1), T,
        &status);
    CHECK(rc == WEFT_ETRUNC, "a message of more than 4 GiB into 64 bytes: %" PRId64, rc);
    *(uint64_t *)arg = status.bytes;
}

/* The target has but a part of it; the message has but a short buffer. */
static void lengths_beyond_4_gib(void **state)
{
    struct scene *s = *state;
    uint64_t bytes = 0;
    struct lent l = lend_target(s, PARTY_LEN, PARTY_LEN);
    unsigned char *from = mmap(NULL, HUGE_LEN, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(from != MAP_FAILED, "mmap: %m");
    test_fill(from, PARTY_LEN, 6, 0); /* none of it may arrive */
    struct weft_remote large = forge(l.remote, REMOTE_LEN, 1ll << 40);
    for (size_t len = 4 * GIB; len <= 4 * GIB + 8; len += 8) {
        struct weft_local local = {.addr = from, .len = len};
        WEFT_FAILS(WEFT_EBOUNDS,
                   weft_post(s->conn,
                             WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                       .nlocal = 1, .remote = &l.remote, .nremote = 1),
                             NULL)); /* this side knows */
        assert_int_equal(weft_write(s->conn, from, len, &l.remote, 0, T), WEFT_EBOUNDS);
        assert_int_equal(weft_write(s->conn, from, len, &large, 0, T), WEFT_EBOUNDS);
        assert_int_equal(weft_read(s->conn, from, len, &large, 0, T), WEFT_EBOUNDS);
    }
    compare(s, l, 0, PARTY_LEN, 0);
    party_start(&s->target, short_recv_there, &bytes, sizeof bytes);
    int64_t rc = weft_send(s->conn, from, 4 * GIB + 8, T);
    party_finish(&s->target, &bytes, sizeof bytes);
    CHECK(rc == WEFT_ETRUNC, "its sender: %" PRId64, rc);
    assert_int_equal(bytes, 4 * GIB + 8);
    munmap(from, HUGE_LEN);
    all_goes_on(s);
    give_back(s, &l);
}

/* --- 10 000 pieces ----------------------------------------------------------------------------- */

#define PIECES 10000
#define STEP 100

struct list {
    struct weft_local local[PIECES];
    struct weft_remote remote[PIECES];
    uint64_t offset[PIECES], total;
    struct weft_xfer x;
};

static struct list *list_new(struct scene *s, const struct lent *l)
{
    struct list *list = calloc(1, sizeof *list);
    CHECK(list, "no memory for a list");
    for (size_t i = 0; i < PIECES; i++) {
        size_t len = 1 + i % STEP;
        list->local[i] = (struct weft_local){s->mem.at + i * STEP, len, s->handle};
        list->remote[i] = l->remote;
        list->offset[i] = i * STEP;
        list->total += len;
    }
    list->x = (struct weft_xfer){.struct_size = sizeof list->x,
                                 .op = WEFT_XFER_WRITE,
                                 .local = list->local,
                                 .nlocal = PIECES,
                                 .remote = list->remote,
                                 .nremote = PIECES,
                                 .remote_offset = list->offset,
                                 .notify = "",
                                 .notify_len = 0};
    return list;
}

/* It fails, and says which piece it was. */
static void fails_at(struct scene *s, const struct list *list, const char *what, size_t i,
                     int want)
{
    char name[32];
    struct weft_op_status status = {.status = 0};
    weft_op_t op;
    snprintf(name, sizeof name, "%s%zu", what, i);
    int rc = weft_post(s->conn, &list->x, &op);
    if (rc == 0)
        rc = weft_op_wait(op, T, &status);
    else
        snprintf(status.text, sizeof status.text, "%s", weft_last_error());
    CHECK(rc == want, "%s: %s (%s), not %s", name, weft_err_name(rc), status.text,
          weft_err_name(want));
    CHECK(strstr(status.text, name), "'%s' does not name %s", status.text, name);
    CHECK(status.bytes < list->total, "all bytes were moved, it says");
}

static void one_bad_piece(struct scene *s, struct list *list, size_t i, struct weft_remote stale)
{
    struct weft_remote remote = list->remote[i];
    struct weft_local local = list->local[i];
    list->remote[i] = (struct weft_remote){{0}};
    fails_at(s, list, "remote[", i, -EINVAL);
    list->remote[i] = remote;
    list->offset[i] += PARTY_LEN;
    fails_at(s, list, "remote[", i, WEFT_EBOUNDS);
    list->offset[i] -= PARTY_LEN;
    list->local[i].addr = s->mem.at + PARTY_LEN;
    fails_at(s, list, "local[", i, WEFT_EBOUNDS);
    list->local[i].mem = 12345;
    fails_at(s, list, "local[", i, WEFT_EHANDLE);
    list->local[i].addr = NULL;
    fails_at(s, list, "local[", i, -EINVAL);
    list->local[i] = local;
    list->remote[i] = stale; /* only the target knows */
    fails_at(s, list, "piece ", i, WEFT_EKEY);
    list->remote[i] = remote;
}

static void lists_with_a_bad_piece(void **state)
{
    static const size_t bad[] = {0, PIECES / 2, PIECES - 1};
    struct scene *s = *state;
    struct lent l = lend_target(s, PARTY_LEN, PARTY_LEN),
                old = lend_target(s, PARTY_LEN, PARTY_LEN);
    struct list *list = list_new(s, &l);
    give_back(s, &old);
    test_zero(s->mem.at, PARTY_LEN); /* so that each byte of the target is old and new */
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        for (int read = 0; read < 2; read++) {
            list->x.op = read ? WEFT_XFER_READ : WEFT_XFER_WRITE;
            one_bad_piece(s, list, bad[i], old.remote);
        }
    compare(s, l, 0, PARTY_LEN, 0);
    test_fill(s->mem.at, PARTY_LEN, 5, 0);
    list->x.op = WEFT_XFER_WRITE;
    list->x.notify = "x";
    list->x.notify_len = 1;
    assert_int_equal(weft_transfer(s->conn, &list->x, T, NULL), list->total);
    one_notif(s, 1); /* and none of those that failed */
    list->x.op = WEFT_XFER_READ;
    test_zero(s->mem.at, PARTY_LEN);
    assert_int_equal(weft_transfer(s->conn, &list->x, T, NULL), list->total);
    one_notif(s, 1);
    for (size_t i = 0; i < PIECES; i++)
        CHECK(test_differs(list->local[i].addr, list->local[i].len, 5, i * STEP) < 0,
              "piece %zu is wrong", i);
    all_goes_on(s);
    give_back(s, &l);
    free(list);
}

/* --- the scene --------------------------------------------------------------------------------- */

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct weft_endpoint_opts opts = party_opts();
    test_begin();
    party_fork(&s->target);
    party_open(&s->target);
    WEFT_OK(weft_endpoint_open(&opts, &s->endpoint));
    test_mem_open(&s->mem, PARTY_LEN, 0);
    WEFT_OK(weft_mem_reg(s->endpoint, s->mem.at, PARTY_LEN, NULL, &s->handle));
    WEFT_OK(weft_mem_advertise(s->handle, s->mem.at, PARTY_LEN, &s->remote));
    s->witness.party = s->target;
    witness_start(&s->witness, s->endpoint);
    s->conn = party_connect(s->endpoint, &s->target);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;
    if (test_failed())
        _exit(1);              /* a witness may be in the middle of anything */
    witness_stop(&s->witness); /* and the target's process with it */
    WEFT_OK(weft_endpoint_close(s->endpoint));
    test_mem_close(&s->mem);
    free(s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stale_keys),           cmocka_unit_test(out_of_bounds),
        cmocka_unit_test(zero_lengths),         cmocka_unit_test(offsets_beyond_4_gib),
        cmocka_unit_test(lengths_beyond_4_gib), cmocka_unit_test(lists_with_a_bad_piece),
    };
    if (party_must_skip())
        return 77;
    weft_config_set("WEFT_LOG", "error");
    return cmocka_run_group_tests_name("refused", tests, setup, teardown);
}
