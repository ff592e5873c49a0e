/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that wait for a stream of a GPU: over tcp and the double of a GPU's driver, in whose streams nothing happens
 * until somebody asks for an event of them, and does so often enough.
 */
#include "contract/duo.h"

#include "gpu/cuda/cuda_api.h"

#define T TEST_DEADLINE_MS
#define PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD, hipStreamPerThread: of who calls */
#define LEN ((size_t)100000)

#define DECLARE(member, symbol, parameters) int symbol parameters;
CUDA_FUNCTIONS(DECLARE)
#undef DECLARE

static void driver(const char *settings)
{
    setenv("FAKE_CUDA", settings, 1);
    assert_int_equal(cuInit(0), 0);
}

struct two {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    struct test_mem near, far, fresh; /* of a GPU; of the host; what is copied to near */
    weft_mem_t near_mem, far_mem;
    struct weft_remote remote; /* far */
    cuda_ctx_t ctx;
    cuda_stream_t stream;
};

static weft_endpoint_t endpoint(const char *gpu)
{
    weft_endpoint_t ep;
    WEFT_OK(weft_endpoint_open(
        WEFT_OPTS(weft_endpoint_opts, .transport = "tcp", .gpu = gpu, .progress_threads = 1),
        &ep));
    return ep;
}

static int setup(void **state)
{
    struct two *t = calloc(1, sizeof *t);
    test_begin();
    driver("delay=100");
    t->a = endpoint(test_gpu());
    t->b = endpoint(test_gpu());
    duo_join(t->a, t->b, &t->conn, &t->other);
    test_mem_open_on(&t->near, LEN, 0, 0);
    test_mem_open(&t->far, LEN, 0);
    test_mem_open(&t->fresh, LEN, 0);
    test_fill(t->fresh.at, LEN, 1, 0);
    WEFT_OK(weft_mem_reg(t->a, t->near.at, LEN, NULL, &t->near_mem));
    WEFT_OK(weft_mem_reg(t->b, t->far.at, LEN, NULL, &t->far_mem));
    WEFT_OK(weft_mem_advertise(t->far_mem, t->far.at, LEN, &t->remote));
    assert_int_equal(cuDevicePrimaryCtxRetain(&t->ctx, 0), 0);
    assert_int_equal(cuCtxPushCurrent_v2(t->ctx), 0);
    assert_int_equal(cuStreamCreate(&t->stream, 0), 0);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct two *t = *state;
    if (test_failed())
        return 0;
    if (t->a)
        WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
    test_mem_close(&t->near);
    test_mem_close(&t->far);
    test_mem_close(&t->fresh);
    cuStreamDestroy_v2(t->stream);
    cuCtxPopCurrent_v2(&t->ctx);
    cuDevicePrimaryCtxRelease_v2(0);
    free(t);
    return 0;
}

/* As a kernel would: fresh bytes to near, when the stream gets there. */
static void produce(struct two *t, void *stream)
{
    assert_int_equal(cuMemcpyAsync((uintptr_t)t->near.at, (uintptr_t)t->fresh.at, LEN, stream), 0);
}

static struct weft_xfer xfer(enum weft_xfer_op op, struct weft_local *local, void *stream)
{
    return (struct weft_xfer){.struct_size = sizeof(struct weft_xfer),
                              .op = op,
                              .local = local,
                              .nlocal = 1,
                              .stream = stream};
}

static weft_op_t post(struct two *t, weft_conn_t conn, enum weft_xfer_op kind, void *addr,
                      size_t len, void *stream)
{
    struct weft_local local = {addr, len, 0};
    struct weft_xfer x = xfer(kind, &local, stream);
    weft_op_t op;
    if (kind == WEFT_XFER_WRITE || kind == WEFT_XFER_READ) {
        x.remote = &t->remote;
        x.nremote = 1;
    }
    WEFT_OK(weft_post(conn, &x, &op));
    return op;
}

static int end_of(weft_op_t op)
{
    struct weft_op_status status = {.status = WEFT_EAGAIN};
    weft_op_wait(op, T, &status);
    CHECK(status.status != WEFT_EAGAIN, "deadline: waited for an operation");
    return status.status;
}

/* --- it waits --------------------------------------------------------------------------------- */

static void what_is_written_is_what_the_stream_made(void **state)
{
    struct two *t = *state;
    void *const streams[] = {NULL, t->stream, WEFT_STREAM_DEFAULT, PER_THREAD};
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        test_fill(t->near.at, LEN, 9, 0);
        produce(t, i > 1 ? streams[i] : t->stream);
        weft_op_t op = post(t, t->conn, WEFT_XFER_WRITE, t->near.at, LEN, streams[i]);
        assert_int_equal(end_of(op), 0);
        /* who names no stream gets what is there */
        assert_true(test_differs(t->far.at, LEN, i ? 1 : 9, 0) < 0);
        cuStreamSynchronize(t->stream);
    }
}

/* The same from memory of the host, and the other way: what was there before is used first. */
static void host_memory_too(void **state)
{
    struct two *t = *state;
    test_fill(t->far.at, LEN, 3, 0);
    test_fill(t->near.at, LEN, 2, 0);
    struct test_mem pinned;
    test_mem_open(&pinned, LEN, 0);
    assert_int_equal(cuMemcpyAsync((uintptr_t)pinned.at, (uintptr_t)t->near.at, LEN, t->stream),
                     0);
    weft_op_t write = post(t, t->conn, WEFT_XFER_WRITE, pinned.at, LEN, t->stream);
    assert_int_equal(end_of(write), 0);
    assert_true(test_differs(t->far.at, LEN, 2, 0) < 0);
    assert_int_equal(cuMemcpyAsync((uintptr_t)t->fresh.at, (uintptr_t)t->near.at, LEN, t->stream),
                     0);
    test_fill(t->far.at, LEN, 4, 0);
    weft_op_t read = post(t, t->conn, WEFT_XFER_READ, t->near.at, LEN, t->stream);
    assert_int_equal(end_of(read), 0);
    assert_true(test_differs(t->fresh.at, LEN, 2, 0) < 0);
    assert_true(test_differs(t->near.at, LEN, 4, 0) < 0);
    test_mem_close(&pinned);
}

static void other_operations_do_not_wait(void **state)
{
    struct two *t = *state;
    char byte = 'x';
    driver("delay=1000000000");
    weft_op_t held = post(t, t->conn, WEFT_XFER_WRITE, t->near.at, LEN, t->stream);
    for (int i = 0; i < 10; i++)
        assert_int_equal(weft_write(t->conn, &byte, 1, &t->remote, 0, T), 1);
    WEFT_OK(weft_notify(t->conn, "", 0, T));
    assert_int_equal(weft_op_poll(held, NULL), 0);
    driver("delay=2");
    assert_int_equal(end_of(held), 0);
}

/* --- messages --------------------------------------------------------------------------------- */

static void messages_stay_in_order(void **state)
{
    struct two *t = *state;
    enum { N = 30 };
    weft_op_t sends[N], recvs[N];
    for (int i = 0; i < N; i++) { /* every third waits; long and short ones */
        size_t len = i % 2 ? 20 : 20000;
        sends[i] = post(t, t->conn, WEFT_XFER_SEND, t->near.at + i * 1000, len + (size_t)i,
                        i % 3 ? NULL : t->stream);
        recvs[i] = post(t, t->other, WEFT_XFER_RECV, t->far.at + i * 1000, LEN - (size_t)i * 1000,
                        i % 4 ? NULL : t->stream);
    }
    for (int i = 0; i < N; i++) {
        struct weft_op_status status;
        assert_int_equal(weft_op_wait(recvs[i], T, &status), 0);
        assert_int_equal(status.bytes, (i % 2 ? 20 : 20000) + i);
        assert_int_equal(end_of(sends[i]), 0);
    }
}

/* Of the host's memory, and nobody asks for it: copied at once, and still behind the one that waits. */
static void an_injected_one_stays_behind(void **state)
{
    struct two *t = *state;
    struct weft_op_status status;
    char bytes[] = "injected", room[64] = "";
    struct weft_local local = {bytes, sizeof bytes, 0};
    driver("delay=1000000000");
    weft_op_t first = post(t, t->conn, WEFT_XFER_SEND, t->near.at, 10, t->stream);
    WEFT_OK(weft_post(t->conn, &(struct weft_xfer){.struct_size = sizeof(struct weft_xfer), .op = WEFT_XFER_SEND, .local = &local,
                                                   .nlocal = 1}, NULL));
    memset(bytes, 0xee, sizeof bytes);
    weft_op_t recvs[] = {post(t, t->other, WEFT_XFER_RECV, t->far.at, LEN, NULL),
                         post(t, t->other, WEFT_XFER_RECV, room, sizeof room, NULL)};
    WEFT_FAILS(WEFT_ETIMEOUT, weft_op_wait(recvs[1], 20, NULL));
    driver("delay=2");
    assert_int_equal(weft_op_wait(recvs[0], T, &status), 0);
    assert_int_equal(status.bytes, 10);
    assert_int_equal(end_of(recvs[1]), 0);
    assert_string_equal(room, "injected");
    assert_int_equal(end_of(first), 0);
}

static void what_is_behind_a_canceled_one_goes_on(void **state)
{
    struct two *t = *state;
    driver("delay=1000000000");
    weft_op_t first = post(t, t->conn, WEFT_XFER_SEND, t->near.at, 10, t->stream);
    weft_op_t second = post(t, t->conn, WEFT_XFER_SEND, t->near.at, 20, NULL);
    weft_op_t recv = post(t, t->other, WEFT_XFER_RECV, t->far.at, LEN, NULL);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_op_wait(second, 20, NULL));
    WEFT_OK(weft_op_cancel(first));
    assert_int_equal(end_of(first), WEFT_ECANCELED);
    driver("delay=2"); /* copies of the message have to end */
    assert_int_equal(end_of(second), 0);
    struct weft_op_status status;
    assert_int_equal(weft_op_wait(recv, T, &status), 0);
    assert_int_equal(status.bytes, 20);
    recv = post(t, t->other, WEFT_XFER_RECV, t->far.at, LEN, t->stream);
    WEFT_OK(weft_op_cancel(recv));
    assert_int_equal(end_of(recv), WEFT_ECANCELED);
}

/* --- ends ------------------------------------------------------------------------------------- */

static void a_stream_that_does_not_end(void **state)
{
    struct two *t = *state;
    char byte;
    driver("delay=4000000000");
    weft_op_t ops[4];
    for (int i = 0; i < 4; i++)
        ops[i] = post(t, t->conn, i & 1 ? WEFT_XFER_SEND : WEFT_XFER_WRITE, t->near.at, LEN,
                      t->stream);
    struct weft_local local = {t->near.at, LEN, t->near_mem};
    struct weft_xfer x = xfer(WEFT_XFER_SEND, &local, t->stream);
    assert_int_equal(weft_transfer(t->conn, &x, 50, NULL), WEFT_ETIMEOUT);
    WEFT_OK(weft_op_cancel(ops[0]));
    assert_int_equal(end_of(ops[0]), WEFT_ECANCELED);
    assert_int_equal(weft_write(t->conn, &byte, 1, &t->remote, 0, T), 1);
    uint64_t begin = weft_now();
    WEFT_OK(weft_endpoint_close(t->a));
    t->a = 0;
    for (int i = 1; i < 4; i++)
        WEFT_FAILS(WEFT_EHANDLE, weft_op_poll(ops[i], NULL));
    CHECK(weft_now() - begin < 15 * UINT64_C(1000000000), "closing took too long");
    driver("");
}

static void a_device_that_is_lost(void **state)
{
    struct two *t = *state;
    char byte = 'x';
    produce(t, t->stream);
    driver("lost=1,delay=100");
    assert_int_equal(end_of(post(t, t->conn, WEFT_XFER_WRITE, &byte, 1, t->stream)), -EIO);
    assert_int_equal(weft_write(t->conn, &byte, 1, &t->remote, 0, T), 1);
    driver("");
}

static void streams_that_cannot_be(void **state)
{
    struct two *t = *state;
    char byte = 'x';
    struct weft_local local = {&byte, 1, 0}, many[200];
    struct weft_xfer x = xfer(WEFT_XFER_SEND, &local, t->stream);
    weft_endpoint_t plain = endpoint("host"), other = endpoint("host");
    weft_conn_t conn, end;
    duo_join(plain, other, &conn, &end);
    WEFT_FAILS(WEFT_EUNSUPPORTED, weft_post(conn, &x, NULL));
    WEFT_OK(weft_endpoint_close(plain));
    WEFT_OK(weft_endpoint_close(other));
    cuCtxPopCurrent_v2(&t->ctx);
    x.stream =
        WEFT_STREAM_DEFAULT; /* of none: the thread has no context. With HIP a thread always has a device. */
    if (strcmp(test_gpu(), "hip") != 0)
        WEFT_FAILS(-EINVAL, weft_post(t->conn, &x, NULL));
    assert_int_equal(cuCtxPushCurrent_v2(t->ctx), 0);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = (struct weft_local){t->near.at + i, 1, 0};
    x = xfer(WEFT_XFER_SEND, many, t->stream);
    x.nlocal = ARRAY_LEN(many);
    WEFT_FAILS(WEFT_ELIMIT, weft_post(t->conn, &x, NULL));
    x = xfer(WEFT_XFER_WRITE, &local, t->stream); /* no remote: the mark is given back */
    x.remote = &t->remote;
    x.nremote = 1;
    x.remote_offset = &(uint64_t){LEN};
    WEFT_FAILS(WEFT_EBOUNDS, weft_post(t->conn, &x, NULL));
    assert_int_equal(weft_write(t->conn, &byte, 1, &t->remote, 0, T), 1);
}

#define STREAM(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STREAM(what_is_written_is_what_the_stream_made),
        STREAM(host_memory_too),
        STREAM(other_operations_do_not_wait),
        STREAM(messages_stay_in_order),
        STREAM(an_injected_one_stays_behind),
        STREAM(what_is_behind_a_canceled_one_goes_on),
        STREAM(a_stream_that_does_not_end),
        STREAM(a_device_that_is_lost),
        STREAM(streams_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
