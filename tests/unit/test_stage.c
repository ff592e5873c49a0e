/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a nic does not reach, when something fails, ends, or means no good: staged over tcp, mapped over local, with the
 * double of a GPU's driver, whose copies end when they are asked for often enough.
 */
#include "bare_peer.h"
#include "gpu_pair.h"

#include <pthread.h>

#include "conn.h"
#include "endpoint.h"
#include "mem.h"
#include "stage.h"
#include "transports/tcp/tcp.h"
#include "util.h"

#define T TEST_DEADLINE_MS
#define LEN GPU_PAIR_LEN

int fake_cuda_launches(void);
int fake_cuda_mixed(void);
int fake_cuda_pinned(void);

/* --- what goes where -------------------------------------------------------------------------- */

/* One side has no GPU, and no driver. */
static void to_and_from_a_side_without_gpus(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "", -1, 0);
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* Copies of 64 KiB and more: of how many core said what is not so, how many there were, and of those with more than one piece. */
static _Atomic(int) told_wrong, told, told_of_many;
static weft_gpu_copy_start_fn *copy_start;

static bool is_hosts(const struct weft_gpu *gpu, const void *addr)
{
    struct weft_gpu_range range;
    return gpu->backend->ops->query(addr, &range) != 1 || range.kind != WEFT_MEM_PEER;
}

static int watched_start(struct weft_gpu *gpu, const struct weft_gpu_copy *list, int n, uint32_t flags, struct weft_gpu_job **job)
{
    uint64_t bytes = 0;
    int from = 0, to = 0;
    for (int i = 0; i < n; i++) {
        bytes += list[i].len;
        from += is_hosts(gpu, list[i].src);
        to += is_hosts(gpu, list[i].dst);
    }
    uint32_t right = (from == n ? WEFT_GPU_FROM_HOST : 0u) | (to == n ? WEFT_GPU_TO_HOST : 0u);
    if (bytes >= (64 << 10)) {
        told++;
        told_of_many += n > 1;
        told_wrong += (flags & (WEFT_GPU_FROM_HOST | WEFT_GPU_TO_HOST)) != right;
    }
    return copy_start(gpu, list, n, flags, job);
}

/* What this endpoint begins from now on. */
static void watch_copies(weft_endpoint_t handle)
{
    static struct weft_gpu_backend backend;
    static struct weft_gpu_ops ops;
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    const struct weft_gpu_backend *own = atomic_load(&ep->gpu);
    if (own->ops != &ops) { /* of two the first */
        copy_start = own->ops->copy_start;
        ops = *own->ops;
        ops.copy_start = watched_start;
        backend = *own;
        backend.ops = &ops;
    }
    atomic_store(&ep->gpu, &backend);
    weft__handle_put(handle);
}

/* So that a device copies both ways at once: to the host, and from it, and from a device to another; by one endpoint. */
static void each_way_on_streams_of_its_own(void **state)
{
    (void)state;
    enum { KINDS = 3, PIECES = 2, EACH = 150000, ALL = PIECES * EACH, TURNS = 4 };
    struct gpu_pair t;
    gpu_pair_open(&t, "devices=2", 0, 0);
    watch_copies(t.a);
    watch_copies(t.b);
    told = told_wrong = told_of_many = 0;
    struct test_mem near[KINDS], far[KINDS];
    struct weft_local local[KINDS][PIECES];
    struct weft_remote remote[KINDS][PIECES];
    for (int i = 0; i < KINDS; i++) {
        test_mem_open_on(&near[i], ALL, 0, i - 1);
        test_mem_open_on(&far[i], ALL, 0, i - 1);
        weft_mem_t mem = gpu_pair_reg(t.a, near[i].at, ALL), there = gpu_pair_reg(t.b, far[i].at, ALL);
        for (int k = 0; k < PIECES; k++) {
            local[i][k] = (struct weft_local){near[i].at + k * EACH, EACH, mem};
            WEFT_OK(weft_mem_advertise(there, far[i].at + k * EACH, EACH, &remote[i][k]));
        }
    }
    int before = fake_cuda_mixed(); /* what the test itself copies is before, and behind */
    for (size_t i = 0; i < TURNS * KINDS * KINDS; i++) {
        const size_t pieces = 1 + i % PIECES;
        struct weft_xfer x = {.struct_size = sizeof x,
                              .local = local[i % KINDS],
                              .nlocal = pieces,
                              .remote = remote[i / KINDS % KINDS],
                              .nremote = pieces};
        for (int n = 0; n < 3; n++) { /* streams take turns: an odd number, so that each comes to another one */
            x.op = n ? WEFT_XFER_WRITE : WEFT_XFER_READ;
            assert_int_equal(weft_transfer(t.conn, &x, T, NULL), pieces * EACH);
        }
    }
    assert_int_equal(fake_cuda_mixed(), before);
    assert_true(told_of_many > TURNS * KINDS && told > told_of_many);
    assert_int_equal(told_wrong, 0);
    gpu_pair_close(&t);
    for (int i = 0; i < KINDS; i++) {
        test_mem_close(&near[i]);
        test_mem_close(&far[i]);
    }
}

/* Pieces of two GPUs and of the host, at both ends, in any order. */
static void all_kinds_in_one_operation(void **state)
{
    (void)state;
    enum { N = 300, KINDS = 3, STEP = 20000 };
    struct gpu_pair t;
    gpu_pair_open(&t, "devices=2", 0, 0);
    struct test_mem near[KINDS], far[KINDS];
    struct weft_remote remotes[KINDS], remote[N];
    struct weft_local local[N];
    for (int i = 0; i < KINDS; i++) {
        test_mem_open_on(&near[i], N * STEP, 0, i - 1);
        test_mem_open_on(&far[i], N * STEP, 0, i - 1);
        gpu_pair_reg(t.a, near[i].at, N * STEP);
        WEFT_OK(
            weft_mem_advertise(gpu_pair_reg(t.b, far[i].at, N * STEP), far[i].at, N * STEP, &remotes[i]));
        test_fill(near[i].at, N * STEP, (uint64_t)i, 0);
    }
    for (size_t i = 0; i < N; i++) {
        size_t len = i * i * 997 % STEP;
        local[i] = (struct weft_local){near[i % KINDS].at + i * STEP, len, 0};
        WEFT_OK(weft_remote_slice(&remotes[i / 5 % KINDS], i * STEP, len, &remote[i]));
    }
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = N,
                          .remote = remote,
                          .nremote = N};
    assert_true(weft_transfer(t.conn, &x, T, NULL) > 0);
    for (size_t i = 0; i < N; i++) {
        const unsigned char *at = far[i / 5 % KINDS].at + i * STEP;
        assert_true(test_differs(at, local[i].len, i % KINDS, i * STEP) < 0);
        assert_true(test_nonzero(at + local[i].len, STEP - local[i].len) < 0);
        test_zero(local[i].addr, local[i].len);
    }
    x.op = WEFT_XFER_READ;
    assert_true(weft_transfer(t.conn, &x, T, NULL) > 0);
    for (size_t i = 0; i < KINDS; i++)
        assert_true(test_differs(near[i].at, N * STEP, i, 0) < 0);
    gpu_pair_close(&t);
    for (int i = 0; i < KINDS; i++) {
        test_mem_close(&near[i]);
        test_mem_close(&far[i]);
    }
}

/* Many to one GPU, which a kernel of it copies, and to two in turns, of which a kernel reaches one. */
static void short_pieces_to_two_gpus(void **state)
{
    (void)state;
    enum { N = 90, STEP = 1000 };
    struct gpu_pair t;
    gpu_pair_open(&t, "devices=2", 0, 0);
    struct test_mem other;
    struct weft_remote remotes[2] = {t.remote}, remote[N];
    struct weft_local local[N];
    test_mem_open_on(&other, LEN, 0, 1);
    WEFT_OK(weft_mem_advertise(gpu_pair_reg(t.b, other.at, LEN), other.at, LEN, &remotes[1]));
    for (size_t i = 0; i < N; i++) {
        local[i] = (struct weft_local){t.near.at + i * STEP, STEP, t.near_mem};
        WEFT_OK(weft_remote_slice(&remotes[i < N / 2 ? 0 : i % 2], i * STEP, STEP, &remote[i]));
    }
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = N,
                          .remote = remote,
                          .nremote = N};
    int before = fake_cuda_launches();
    assert_int_equal(weft_transfer(t.conn, &x, T, NULL), N * STEP);
    assert_true(fake_cuda_launches() > before);
    for (size_t i = 0; i < N; i++)
        assert_true(test_differs((i < N / 2 || i % 2 == 0 ? t.far.at : other.at) + i * STEP, STEP,
                                 1, i * STEP) < 0);
    test_zero(t.near.at, N * STEP);
    x.op = WEFT_XFER_READ;
    assert_int_equal(weft_transfer(t.conn, &x, T, NULL), N * STEP);
    assert_true(test_differs(t.near.at, LEN, 1, 0) < 0);
    gpu_pair_close(&t);
    test_mem_close(&other);
}

/* A registration that is longer than what was allocated is refused. */
static void beyond_what_was_allocated(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "devices=1", 0, 0);
    size_t end = (size_t)(t.far.base + t.far.size - t.far.at);
    weft_mem_t mem = 99;
    WEFT_FAILS(-EFAULT, weft_mem_reg(t.b, t.far.at, end + 1, NULL, &mem));
    CHECK(strstr(weft_last_error(), "not all memory of GPU 0"), "'%s'", weft_last_error());
    WEFT_FAILS(-EFAULT, weft_mem_reg(t.b, t.far.base + t.far.size - 1, 2, NULL, &mem));
    assert_int_equal(mem, 99);
    WEFT_OK(weft_mem_dereg(gpu_pair_reg(t.b, t.far.at, end)));
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* As if its owner had freed the end of what it registered: what lies there is refused, and nothing else is lost. */
static void what_was_freed(void **state)
{
    (void)state;
    enum { N = 90, STEP = 1000 };
    struct gpu_pair t;
    gpu_pair_open(&t, "devices=1", 0, 0);
    struct weft_local local[N];
    struct weft_remote longer, remote[N];
    weft_mem_t handle = gpu_pair_reg(t.b, t.far.at, LEN + 1);
    struct weft__mem *mem = weft__handle_get(handle, WEFT__MEM);
    mem->len = mem->reg->len = LEN + (1 << 20);
    mem->reg->reached = false;
    weft__handle_put(handle);
    uint64_t end = (uint64_t)(t.far.base + t.far.size - t.far.at);
    WEFT_OK(weft_mem_advertise(handle, t.far.at, LEN + (1 << 20), &longer));
    for (size_t i = 0; i < N; i++) {
        local[i] = (struct weft_local){t.near.at + i * STEP, STEP, t.near_mem};
        WEFT_OK(weft_remote_slice(&longer, end - STEP / 2, STEP, &remote[i]));
    }
    struct weft_xfer x = {.struct_size = sizeof x,
                          .op = WEFT_XFER_WRITE,
                          .local = local,
                          .nlocal = N,
                          .remote = remote,
                          .nremote = N};
    assert_true(weft_transfer(t.conn, &x, T, NULL) < 0);
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* What core reads and writes with a processor of its own. */
static void what_has_to_be_the_hosts(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "", 0, 0);
    WEFT_FAILS(WEFT_EUNSUPPORTED, weft_notify(t.conn, t.near.at, 64, T));
    CHECK(strstr(weft_last_error(), "a notification"), "'%s'", weft_last_error());
    WEFT_FAILS(WEFT_EUNSUPPORTED,
               weft_add(t.conn, &t.remote, 5, 1, (uint64_t *)(void *)(t.near.at + 7), T));
    CHECK(strstr(weft_last_error(), "result of an ADD"), "'%s'", weft_last_error());
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* --- what can fail ---------------------------------------------------------------------------- */

static void no_memory_to_pin(void **state)
{
    (void)state;
    for (int near = -1; near <= 0; near++) { /* at the peer; here */
        struct gpu_pair t;
        gpu_pair_open(&t, "pins=0", near, near < 0 ? 0 : -1);
        for (int i = 0; i < 3; i++) {
            struct weft_op_status status = gpu_pair_end(
                gpu_pair_post(&t, i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE));
            assert_int_equal(status.status, -ENOMEM);
            CHECK(*status.text, "no word");
        }
        fake_driver("");
        gpu_pair_work(&t); /* the conn is as good as before */
        gpu_pair_close(&t);
    }
}

static void a_device_that_is_lost(void **state)
{
    (void)state;
    for (int near = -1; near <= 0; near++) {
        struct gpu_pair t;
        gpu_pair_open(&t, "", near, near < 0 ? 0 : -1);
        gpu_pair_work(&t);
        fake_driver("lost=1");
        for (int i = 0; i < 3; i++) {
            struct weft_op_status status = gpu_pair_end(
                gpu_pair_post(&t, i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE));
            assert_int_equal(status.status, -EIO);
            CHECK(*status.text, "no word");
        }
        fake_driver("");
        gpu_pair_work(&t);
        gpu_pair_close(&t);
    }
}

/* A short message is here when its bytes are to go to the GPU: if they do not, the receive has not ended well. */
static void a_message_to_a_device_that_is_lost(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "", -1, 0);
    struct weft_local local = {t.far.at, 1000, t.far_mem};
    weft_op_t op;
    WEFT_OK(weft_post(t.other, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1), &op));
    fake_driver("lost=1");
    assert_int_equal(weft_send(t.conn, t.near.at, 1000, T), 1000);
    struct weft_op_status status = gpu_pair_end(op);
    assert_int_equal(status.status, -EIO);
    CHECK(*status.text, "no word");
    fake_driver("");
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* --- what ends -------------------------------------------------------------------------------- */

/* Its end comes although copies are slow; when it is there, the memory is the caller's, and that of the peer its owner's. */
static void canceled(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "delay=200", 0, 0);
    for (int i = 0; i < 40; i++) {
        weft_op_t op = gpu_pair_post(&t, i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE);
        test_sleep_ms(i / 2 % 4);
        WEFT_OK(weft_op_cancel(op));
        int rc = gpu_pair_end(op).status;
        CHECK(rc == 0 || rc == WEFT_ECANCELED, "it ended with %s", weft_err_name(rc));
        test_fill(t.near.at, LEN, 77, 0);
        test_sleep_ms(1);
        assert_true(test_differs(t.near.at, LEN, 77, 0) < 0);
    }
    fake_driver("delay=20"); /* so that the peer copies, too */
    for (int i = 0; i < 60; i++) {
        test_fill(t.near.at, LEN, 76, 0);
        weft_op_t op = gpu_pair_post(&t, WEFT_XFER_WRITE);
        test_sleep_ms(i % 8);
        WEFT_OK(weft_op_cancel(op));
        gpu_pair_end(op);
        test_fill(t.far.at, LEN, 78, 0);
        test_sleep_ms(5);
        int64_t at = test_differs(t.far.at, LEN, 78, 0);
        CHECK(at < 0, "run %d: byte %" PRId64 " has come after the end", i, at);
    }
    fake_driver("");
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* The same with the peer's, whoever copies. */
static void deregistered(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "delay=100", 0, 0);
    for (int i = 0; i < 20; i++) {
        weft_op_t op = gpu_pair_post(&t, WEFT_XFER_WRITE);
        WEFT_FAILS(-EBUSY, weft_mem_dereg(t.near_mem));
        test_sleep_ms(i % 5);
        WEFT_OK(weft_mem_dereg(t.far_mem));
        test_fill(t.far.at, LEN, 77, 0);
        int rc = gpu_pair_end(op).status;
        CHECK(rc == 0 || rc == WEFT_EKEY, "it ended with %s", weft_err_name(rc));
        assert_true(test_differs(t.far.at, LEN, 77, 0) < 0);
        t.far_mem = gpu_pair_reg(t.b, t.far.at, LEN);
        WEFT_OK(weft_mem_advertise(t.far_mem, t.far.at, LEN, &t.remote));
    }
    fake_driver("");
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

/* Either end closes in the midst of it. */
static void closed(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "delay=100", 0, 0);
    for (int i = 0; i < 60; i++) {
        if (i == 20) /* so that the peer copies, too */
            fake_driver("delay=20");
        weft_op_t op = gpu_pair_post(&t, i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE);
        test_sleep_ms(i < 20 ? i / 2 % 4 : i / 2 % 9);
        WEFT_OK(weft_conn_close(i & 4 ? t.conn : t.other));
        int rc = gpu_pair_end(op).status;
        CHECK(rc <= 0, "it ended with %d", rc);
        test_fill(t.near.at, LEN, 77, 0);
        WEFT_OK(weft_conn_close(i & 4 ? t.other : t.conn));
        test_fill(t.far.at, LEN, 78, 0);
        test_sleep_ms(1);
        assert_true(test_differs(t.near.at, LEN, 77, 0) < 0);
        assert_true(test_differs(t.far.at, LEN, 78, 0) < 0);
        duo_join(t.a, t.b, &t.conn, &t.other);
    }
    fake_driver("");
    gpu_pair_work(&t);
    gpu_pair_close(&t);
}

static void endpoints_closed(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct gpu_pair t;
        gpu_pair_open(&t, "delay=100", 0, 0);
        weft_op_t op = gpu_pair_post(&t, i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE);
        test_sleep_ms(i / 2 % 3);
        if (i & 4) { /* that of the operation last */
            WEFT_OK(weft_endpoint_close(t.b));
            gpu_pair_end(op);
            WEFT_OK(weft_endpoint_close(t.a));
        } else {
            WEFT_OK(weft_endpoint_close(t.a));
            WEFT_OK(weft_endpoint_close(t.b));
        }
        test_mem_close(&t.near);
        test_mem_close(&t.far);
        assert_int_equal(fake_cuda_pinned(), 0);
    }
}

/* --- additions -------------------------------------------------------------------------------- */

struct adder {
    struct gpu_pair *t;
    weft_conn_t conn;
};

static void *add_many(void *arg)
{
    const struct adder *adder = arg;
    for (int i = 0; i < 200; i++)
        assert_int_equal(weft_add(adder->conn, &adder->t->remote, 5, 3, NULL, T), 0);
    return NULL;
}

/* None is lost, whoever adds. */
static void additions_from_all_sides(void **state)
{
    (void)state;
    enum { N = 4 };
    struct gpu_pair t;
    struct adder adders[N];
    pthread_t threads[N];
    gpu_pair_open(&t, "delay=1", 0, 0);
    for (int i = 0; i < N; i++) {
        adders[i] = (struct adder){&t, t.conn};
        weft_conn_t other;
        if (i)
            duo_join(t.a, t.b, &adders[i].conn, &other);
        pthread_create(&threads[i], NULL, add_many, &adders[i]);
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(test_get_word(t.far.at + 5), N * 200 * 3);
    WEFT_FAILS(WEFT_EBOUNDS, weft_add(t.conn, &t.remote, LEN - 7, 1, NULL, T));
    fake_driver("lost=1");
    WEFT_FAILS(-EIO, weft_add(t.conn, &t.remote, 5, 3, NULL, T));
    fake_driver("");
    assert_int_equal(weft_add(t.conn, &t.remote, 5, 0, NULL, T), 0);
    gpu_pair_close(&t);
}

/* --- peers that mean no good ------------------------------------------------------------------ */

struct liar {
    struct gpu_pair t;
    struct bare_peer peer;
    weft_conn_t conn; /* B's to it */
    uint64_t key;     /* of far */
};

static int liar_setup(void **state)
{
    struct liar *l = calloc(1, sizeof *l);
    struct weft__remote remote;
    test_begin();
    WEFT_OK(weft_config_set("WEFT_LANES", "1")); /* areas of as few slots */
    gpu_pair_open(&l->t, "delay=20", 0, 0);
    WEFT_OK(weft_config_set("WEFT_LANES", NULL));
    bare_connect(&l->peer, weft_endpoint_port(l->t.b), 1);
    WEFT_OK(weft_endpoint_accept(l->t.b, T, &l->conn));
    WEFT_OK(weft__remote_decode(&l->t.remote, &remote));
    l->key = remote.key;
    test_fill(l->t.far.at, LEN, 5, 0);
    *state = l;
    return 0;
}

static int liar_teardown(void **state)
{
    struct liar *l = *state;
    if (test_failed())
        return 0;
    bare_close(&l->peer);
    fake_driver("");
    gpu_pair_work(&l->t); /* others go on */
    gpu_pair_close(&l->t);
    free(l);
    return 0;
}

static void goes_down(const struct liar *l)
{
    struct weft_conn_info info;
    TEST_UNTIL((WEFT_OK(weft_conn_info(l->conn, &info)), info.state == WEFT_CONN_DOWN),
               test_sleep_ms(1), "the conn to go down");
    assert_int_equal(info.status, WEFT_EPROTO);
    CHECK(strstr(info.why, "a message of the peer"), "it went down: %s", info.why);
}

static bool has_area(const struct liar *l)
{
    struct weft__conn *conn = weft__handle_get(l->conn, WEFT__CONN);
    pthread_mutex_lock(&conn->ep->lock);
    bool has = conn->stage.landing;
    pthread_mutex_unlock(&conn->ep->lock);
    weft__handle_put(l->conn);
    return has;
}

static void say(struct liar *l, enum weft__msg_type type, const void *body, size_t len)
{
    assert_true(bare_message(&l->peer, 0, (struct weft__msg_head){.type = type}, body, len));
}

static void get_area(struct liar *l)
{
    say(l, WEFT__MSG_STAGE_OPEN, NULL, 0);
    TEST_UNTIL(has_area(l), test_sleep_ms(1), "an area");
}

/* A COPY to far: n pieces of len bytes, each step behind the one before. */
struct copy {
    unsigned write, slot, n;
    uint64_t offset, step, len, key;
    size_t cut; /* bytes that are left out at the end, or too many */
};

static void say_copy(struct liar *l, struct copy c)
{
    uint8_t body[8 + 24 * (WEFT__LOT_PIECES + 2)] = {0};
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u32(&w, 9);
    weft__put_u8(&w, (uint8_t)c.write);
    weft__put_u8(&w, (uint8_t)c.slot);
    weft__put_u16(&w, (uint16_t)c.n);
    for (size_t i = 0; i < c.n; i++) {
        weft__put_u64(&w, (uintptr_t)l->t.far.at + c.offset + i * c.step);
        weft__put_u64(&w, c.key);
        weft__put_u64(&w, c.len);
    }
    say(l, WEFT__MSG_STAGE_COPY, body, (size_t)(w.at - body) - c.cut);
}

static void unchanged(struct liar *l)
{
    goes_down(l);
    assert_true(test_differs(l->t.far.at, LEN, 5, 0) < 0);
}

/* As it is when nothing is set. */
#define SLOTS 18
#define SLOT ((size_t)512 << 10)
#define AREA (SLOTS * SLOT)

static void copies_that_make_no_sense(void **state)
{
    static const struct copy bad[] = {
        {.write = 4, .n = 1, .len = 8},
        {.write = 255, .n = 1, .len = 8},
        {.write = 1, .n = 1, .len = 8, .slot = SLOTS},
        {.write = 1, .n = 1, .len = 8, .slot = 255},
        {.write = 1, .n = 0, .len = 8},
        {.write = 1, .n = WEFT__LOT_PIECES + 1, .len = 8},
        {.write = 1, .n = 1, .len = 0},
        {.write = 1, .n = 1, .len = AREA + 1},
        {.write = 1, .n = 1, .len = SLOT + 1, .slot = SLOTS - 1},
        {.write = 1, .n = 2, .len = AREA / 2 + 1, .step = 1000},
        {.write = 1, .n = 2, .len = UINT64_MAX},
        {.write = 1, .n = 1, .len = 8, .cut = 1},
        {.write = 1, .n = 2, .len = 8, .cut = 24},
        {.write = 1, .n = 1, .len = 8, .cut = 31},
        {.write = 1, .n = 1, .len = 8, .cut = (size_t)-1},
    };
    struct liar *l = *state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct copy copy = bad[i];
        copy.key = l->key;
        get_area(l);
        say_copy(l, copy);
        unchanged(l);
        bare_close(&l->peer);
        bare_connect(&l->peer, weft_endpoint_port(l->t.b), 1);
        WEFT_OK(weft_endpoint_accept(l->t.b, T, &l->conn));
    }
}

static void a_copy_without_an_area(void **state)
{
    struct liar *l = *state;
    say_copy(l, (struct copy){.write = 1, .n = 1, .len = 8, .key = l->key});
    unchanged(l);
}

static void two_areas(void **state)
{
    struct liar *l = *state;
    get_area(l);
    say(l, WEFT__MSG_STAGE_OPEN, NULL, 0);
    goes_down(l);
}

static void an_area_with_a_body(void **state)
{
    struct liar *l = *state;
    say(l, WEFT__MSG_STAGE_OPEN, "x", 1);
    goes_down(l);
}

static void a_slot_that_is_in_use(void **state)
{
    /* a copy takes as many slots as its bytes need; {first, bytes} of two */
    static const size_t pairs[][4] = {
        {3, 8, 3, 8}, {2, SLOT + 1, 3, 8}, {3, 8, 2, SLOT + 1}, {0, LEN, 1, 8}};
    struct liar *l = *state;
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        fake_driver("delay=1000000");
        get_area(l);
        for (size_t j = 0; j < 4; j += 2)
            say_copy(l, (struct copy){.n = 1,
                                      .len = pairs[i][j + 1],
                                      .slot = (unsigned)pairs[i][j],
                                      .key = l->key});
        goes_down(l);
        fake_driver("");
        bare_close(&l->peer);
        bare_connect(&l->peer, weft_endpoint_port(l->t.b), 1);
        WEFT_OK(weft_endpoint_accept(l->t.b, T, &l->conn));
    }
}

/* That the peer has copied now (landing), or that are this end's own. */
static int slots_in_use(weft_conn_t handle, bool landing)
{
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    pthread_mutex_lock(&conn->ep->lock);
    int n = __builtin_popcountll(landing ? conn->stage.landing_used : conn->stage.near_used);
    pthread_mutex_unlock(&conn->ep->lock);
    weft__handle_put(handle);
    return n;
}

/* Slots that lie side by side. */
static void slots_beside_those_in_use(void **state)
{
    struct liar *l = *state;
    fake_driver("delay=1000000");
    get_area(l);
    say_copy(l, (struct copy){.n = 1, .len = SLOT, .slot = 3, .key = l->key});
    say_copy(l, (struct copy){.n = 1, .len = SLOT, .slot = 2, .key = l->key});
    say_copy(l, (struct copy){.n = 1, .len = 8, .slot = 4, .key = l->key});
    TEST_UNTIL(slots_in_use(l->conn, true) == 3, test_sleep_ms(1), "three copies");
    fake_driver("");
}

static void answers_that_nobody_waits_for(void **state)
{
    struct liar *l = *state;
    uint8_t body[12 + sizeof(struct weft_remote)] = {0};
    say(l, WEFT__MSG_STAGE_COPIED, body, 8);
    goes_down(l);
    bare_close(&l->peer);
    bare_connect(&l->peer, weft_endpoint_port(l->t.b), 1);
    WEFT_OK(weft_endpoint_accept(l->t.b, T, &l->conn));
    say(l, WEFT__MSG_STAGE_AREA, body, sizeof body);
    goes_down(l);
}

/* An answer to who asks for an area: of so many slots of so many bytes, len in all. */
struct offer {
    uint32_t status, bytes, slots, owner, access, magic; /* owner, magic: what they differ by from right ones */
    uint64_t len;
    size_t cut;
};

static struct weft_remote lie_of(const struct liar *l, uint32_t flags, const struct offer *offer)
{
    struct weft_remote remote = {{0}};
    struct weft__writer w = {remote.bytes, remote.bytes + sizeof remote.bytes, false};
    weft__put_u8(&w, WEFT__REMOTE_VERSION);
    weft__put_u8(&w, (uint8_t)flags);
    weft__put_u16(&w, (uint16_t)(WEFT__REMOTE_MAGIC + offer->magic));
    weft__put_u32(&w, weft__owner_id(l->peer.uuid) + offer->owner);
    weft__put_u64(&w, 1 << 20);
    weft__put_u64(&w, offer->len);
    weft__put_u64(&w, 77);
    return remote;
}

static void say_area(struct liar *l, const struct offer *offer)
{
    struct weft_remote remote = lie_of(l, offer->access, offer);
    uint8_t body[12 + sizeof remote + 1] = {0};
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u32(&w, offer->status);
    weft__put_u32(&w, offer->bytes);
    weft__put_u32(&w, offer->slots);
    weft__put(&w, remote.bytes, sizeof remote.bytes);
    say(l, WEFT__MSG_STAGE_AREA, body, (size_t)(w.at - body) - offer->cut);
}

static enum weft__far_state far_state(const struct liar *l)
{
    struct weft__conn *conn = weft__handle_get(l->conn, WEFT__CONN);
    pthread_mutex_lock(&conn->ep->lock);
    enum weft__far_state state = conn->stage.far_state;
    pthread_mutex_unlock(&conn->ep->lock);
    weft__handle_put(l->conn);
    return state;
}

/* A write that asks for an area of the peer. */
static weft_op_t ask(struct liar *l)
{
    struct weft_remote remote = lie_of(l, WEFT_WRITE | WEFT__STAGED, &(struct offer){.len = LEN});
    struct weft_local local = {l->t.far.at, LEN, l->t.far_mem};
    weft_op_t op;
    WEFT_OK(weft_post(l->conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &remote, .nremote = 1),
                      &op));
    TEST_UNTIL(far_state(l) == WEFT__FAR_ASKED, test_sleep_ms(1), "the question for an area");
    return op;
}

static void areas_that_make_no_sense(void **state)
{
    enum { RW = WEFT_READ | WEFT_WRITE, N = WEFT__STAGE_LEAST, MANY = WEFT__MAX_SLOTS + 1 };
    static const struct offer bad[] = {
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW, .status = 1},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW, .owner = 1},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW, .magic = 1},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = WEFT_READ},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = WEFT_WRITE},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW | WEFT_ATOMIC},
        {.bytes = 4096, .slots = N, .len = 4096 * N - 1, .access = RW},
        {.bytes = 4096, .slots = N, .len = 4096 * N + 1, .access = RW},
        {.bytes = 4096, .slots = N - 1, .len = 4096 * (N - 1), .access = RW},
        {.bytes = 4096, .slots = MANY, .len = 4096 * MANY, .access = RW},
        {.bytes = 1u << 31, .slots = 32, .len = 0, .access = RW}, /* 2^36, which is 0 in 32 bits */
        {.bytes = 0, .slots = N, .len = 0, .access = RW},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW, .cut = 1},
        {.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW, .cut = (size_t)-1},
    };
    struct liar *l = *state;
    weft_op_t op = ask(l);
    say_area(l, &(struct offer){.bytes = 4096, .slots = N, .len = 4096 * N, .access = RW});
    TEST_UNTIL(far_state(l) == WEFT__FAR_THERE, test_sleep_ms(1), "the area to be taken");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        bare_close(&l->peer);
        assert_true(gpu_pair_end(op).status < 0);
        bare_connect(&l->peer, weft_endpoint_port(l->t.b), 1);
        WEFT_OK(weft_endpoint_accept(l->t.b, T, &l->conn));
        op = ask(l);
        say_area(l, &bad[i]);
        goes_down(l);
    }
    assert_true(gpu_pair_end(op).status < 0);
}

/* Refused with an answer: the peer may not know better. */
static void keys_and_bounds_are_checked(void **state)
{
    struct liar *l = *state;
    struct weft_conn_info info;
    weft_mem_t mem;
    struct weft__remote r;
    struct weft_remote remote;
    get_area(l);
    say_copy(l, (struct copy){.write = 1, .n = 1, .len = 8, .key = l->key ^ 1});
    say_copy(l, (struct copy){.write = 1, .n = 1, .len = 8, .key = l->key, .offset = LEN - 7});
    say_copy(l,
             (struct copy){.write = 1, .n = 1, .len = 8, .key = l->key, .offset = (uint64_t)-1});
    say_copy(l, (struct copy){.write = 1, .n = 3, .len = 8, .step = LEN / 2, .key = l->key});
    WEFT_OK(weft_mem_dereg(l->t.far_mem));
    say_copy(l, (struct copy){.write = 1, .n = 1, .len = 8, .key = l->key});
    WEFT_OK(weft_mem_reg(l->t.b, l->t.far.at, LEN, WEFT_OPTS(weft_mem_opts, .access = WEFT_READ),
                         &mem));
    WEFT_OK(weft_mem_advertise(mem, l->t.far.at, LEN, &remote));
    WEFT_OK(weft__remote_decode(&remote, &r));
    say_copy(l, (struct copy){.write = 1, .n = 1, .len = 8, .key = r.key});
    test_sleep_ms(30);
    assert_true(test_differs(l->t.far.at, LEN, 5, 0) < 0);
    WEFT_OK(weft_conn_info(l->conn, &info));
    assert_int_equal(info.state, WEFT_CONN_UP);
    WEFT_OK(weft_mem_dereg(mem));
    l->t.far_mem = gpu_pair_reg(l->t.b, l->t.far.at, LEN);
    WEFT_OK(weft_mem_advertise(l->t.far_mem, l->t.far.at, LEN, &l->t.remote));
    WEFT_OK(weft__remote_decode(&l->t.remote, &r));
    say_copy(l, (struct copy){.write = 1, .n = 1, .len = 8, .key = r.key}); /* and one that may */
    TEST_UNTIL(test_nonzero(l->t.far.at, 8) < 0, test_sleep_ms(1), "a copy");
    assert_true(test_differs(l->t.far.at + 8, LEN - 8, 5, 8) < 0);
}

/* --- beside what is long ------------------------------------------------------------------------ */

/* The poll in which a nic last had something short, for which it cuts what is long into turns. */
static uint64_t short_poll(weft_conn_t handle)
{
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    struct weft__lane *lane = conn->links[0]->lane;
    pthread_mutex_lock(&lane->lock);
    uint64_t poll = ((struct tcp_nic *)lane->nic)->short_poll;
    pthread_mutex_unlock(&lane->lock);
    weft__handle_put(handle);
    return poll;
}

static bool is_bulk(weft_conn_t handle)
{
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    struct weft__lane *lane = conn->links[0]->lane;
    pthread_mutex_lock(&lane->lock);
    bool bulk = lane->nic->bulk;
    pthread_mutex_unlock(&lane->lock);
    weft__handle_put(handle);
    return bulk;
}

static void steps_of_what_is_long_are_patient(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "", 0, 0);
    gpu_pair_work(&t); /* areas are there */
    uint64_t near = short_poll(t.conn), far = short_poll(t.other);
    gpu_pair_work(&t);
    /* whose last lot is short */
    assert_int_equal(weft_write(t.conn, t.near.at, (1 << 20) + 20000, &t.remote, 0, T),
                     (1 << 20) + 20000);
    assert_int_equal(short_poll(t.conn), near);
    assert_int_equal(short_poll(t.other), far);
    assert_true(is_bulk(t.conn) && is_bulk(t.other));
    /* of what is long for tcp, but no lot that takes long */
    assert_int_equal(weft_write(t.conn, t.near.at, 20000, &t.remote, 0, T), 20000);
    assert_true(short_poll(t.conn) > near && short_poll(t.other) > far);
    assert_true(!is_bulk(t.conn) && !is_bulk(t.other));
    gpu_pair_close(&t);
}

static uint64_t posted(weft_conn_t conn)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(conn, &stats));
    return stats.cmds_posted;
}

/* Of 512 KiB slots: 2, 2, 1 and 1 for 3 MiB, 1 for what is no more. Each is a command, and a message that asks for a copy. */
static void long_ones_have_long_pieces(void **state)
{
    (void)state;
    struct gpu_pair t;
    gpu_pair_open(&t, "", 0, 0);
    gpu_pair_work(&t);
    uint64_t before = posted(t.conn);
    assert_int_equal(weft_write(t.conn, t.near.at, LEN, &t.remote, 0, T), LEN);
    assert_int_equal(posted(t.conn), before + 8);
    assert_int_equal(weft_read(t.conn, t.near.at, LEN, &t.remote, 0, T), LEN);
    assert_int_equal(posted(t.conn), before + 16);
    assert_int_equal(weft_write(t.conn, t.near.at, SLOT, &t.remote, 0, T), SLOT);
    assert_int_equal(posted(t.conn), before + 18);
    gpu_pair_close(&t);
}

/* The pieces of both ends differ, and the shorter ones count. */
static void areas_that_differ(void **state)
{
    (void)state;
    static const char *const chunks[] = {"4K", "12K", "100K", "2M"};
    for (size_t i = 0; i < 16; i++) {
        struct gpu_pair t;
        gpu_pair_open_chunks(&t, "", 0, 0, chunks[i / 4], chunks[i % 4]);
        gpu_pair_work(&t);
        gpu_pair_close(&t);
    }
}

/* In pieces of 8 KiB, so many at a time; copies take so many beats of the driver. */
static weft_op_t begin_long(struct gpu_pair *t, const char *lanes, const char *slots, const char *settings)
{
    WEFT_OK(weft_config_set("WEFT_STAGE_SLOTS", slots)); /* for each nic */
    WEFT_OK(weft_config_set("WEFT_LANES", lanes));
    gpu_pair_open_chunks(t, "", 0, 0, "8K", "8K");
    WEFT_OK(weft_config_set("WEFT_LANES", NULL));
    WEFT_OK(weft_config_set("WEFT_STAGE_SLOTS", NULL));
    assert_int_equal(weft_write(t->conn, t->near.at, 8, &t->remote, 0, T),
                     8); /* there are areas */
    fake_driver(settings);
    return gpu_pair_post(t, WEFT_XFER_WRITE);
}

static void short_ones_overtake(void **state)
{
    (void)state;
    struct gpu_pair t;
    weft_op_t op = begin_long(&t, NULL, "2", "delay=20");
    for (int64_t len = 8; len <= 16384; len *= 2) { /* of one slot, and of several */
        assert_int_equal(weft_write(t.conn, t.near.at, (size_t)len, &t.remote, 0, T), len);
        assert_int_equal(weft_read(t.conn, t.near.at, (size_t)len, &t.remote, 0, T), len);
    }
    assert_int_equal(weft_op_poll(op, NULL), 0);
    fake_driver("");
    assert_int_equal(gpu_pair_end(op).status, 0);
    assert_true(test_differs(t.far.at, LEN, 1, 0) < 0);
    gpu_pair_close(&t);
}

static void has_links(const char *transport, const char *gpu, int threads, int links)
{
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = transport, .gpu = gpu, .progress_threads = threads};
    struct weft_conn_info info;
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    WEFT_OK(weft_endpoint_open(&opts, &a));
    WEFT_OK(weft_endpoint_open(&opts, &b));
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_conn_info(conn, &info));
    CHECK(info.links == links, "%s, %s, %d threads: %d links, not %d", transport, gpu, threads, (int)info.links, links);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void a_thread_has_two_nics_beside_gpus(void **state)
{
    (void)state;
    fake_driver("");
    has_links("tcp", test_gpu(), 1, 2);
    has_links("tcp", test_gpu(), 2, 4);
    has_links("tcp", test_gpu(), 5, 8);
    has_links("tcp", "auto", 1, 2); /* its library is loaded */
    has_links("tcp", "host", 2, 2);
    has_links("local", test_gpu(), 2, 2); /* its GPUs copy by themselves */
    WEFT_OK(weft_config_set("WEFT_LANES", "3"));
    has_links("tcp", test_gpu(), 1, 3);
    WEFT_OK(weft_config_set("WEFT_LANES", NULL));
}

static void some_slots_are_for_short_ones(void **state)
{
    (void)state;
    static const struct {
        const char *lanes, *slots;
        int by_long, all; /* of an area, 64 at most */
    } cases[] = {{"1", "2", 8, 10}, {"1", "4", 16, 18}, {"1", "16", 60, 64}, {"3", "2", 24, 26}, {NULL, "2", 16, 18}};
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        struct gpu_pair t;
        weft_op_t ops[7] = {begin_long(&t, cases[c].lanes, cases[c].slots, "delay=1000000")};
        assert_int_equal(slots_in_use(t.conn, false), cases[c].by_long);
        for (int i = 1; i < 7; i++) {
            struct weft_local local = {t.near.at, 8, t.near_mem};
            int used = cases[c].by_long + i;
            WEFT_OK(weft_post(t.conn,
                              WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                        .nlocal = 1, .remote = &t.remote, .nremote = 1),
                              &ops[i]));
            assert_int_equal(slots_in_use(t.conn, false),
                             used < cases[c].all ? used : cases[c].all);
        }
        fake_driver("");
        for (int i = 0; i < 7; i++)
            assert_int_equal(gpu_pair_end(ops[i]).status, 0);
        gpu_pair_close(&t);
    }
}

#define LIAR(test) cmocka_unit_test_setup_teardown(test, liar_setup, liar_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_and_from_a_side_without_gpus),
        cmocka_unit_test(each_way_on_streams_of_its_own),
        cmocka_unit_test(all_kinds_in_one_operation),
        cmocka_unit_test(short_pieces_to_two_gpus),
        cmocka_unit_test(beyond_what_was_allocated),
        cmocka_unit_test(what_was_freed),
        cmocka_unit_test(what_has_to_be_the_hosts),
        cmocka_unit_test(no_memory_to_pin),
        cmocka_unit_test(a_device_that_is_lost),
        cmocka_unit_test(a_message_to_a_device_that_is_lost),
        cmocka_unit_test(canceled),
        cmocka_unit_test(deregistered),
        cmocka_unit_test(closed),
        cmocka_unit_test(endpoints_closed),
        cmocka_unit_test(additions_from_all_sides),
    };
    const struct CMUnitTest of_tcp[] = {
        cmocka_unit_test(long_ones_have_long_pieces),
        cmocka_unit_test(areas_that_differ),
        cmocka_unit_test(short_ones_overtake),
        cmocka_unit_test(some_slots_are_for_short_ones),
        cmocka_unit_test(a_thread_has_two_nics_beside_gpus),
        cmocka_unit_test(steps_of_what_is_long_are_patient),
        LIAR(copies_that_make_no_sense),
        LIAR(a_copy_without_an_area),
        LIAR(two_areas),
        LIAR(an_area_with_a_body),
        LIAR(a_slot_that_is_in_use),
        LIAR(slots_beside_those_in_use),
        LIAR(areas_that_make_no_sense),
        LIAR(answers_that_nobody_waits_for),
        LIAR(keys_and_bounds_are_checked),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!strcmp(test_env("WEFT_TEST_TRANSPORT", "tcp"), "tcp"))
        failed += cmocka_run_group_tests(of_tcp, NULL, NULL);
    return failed;
}
