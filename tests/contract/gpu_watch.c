/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process dies during transfers from and to memory of GPUs: the other one gets back all that it had of the devices, and
 * so does whoever comes next. What is free on them is asked of the driver, on NVIDIA's GPUs only.
 */
#include "driver.h"
#include "duo.h"

#include "gpu/cuda/cuda_api.h"

#define LEN ((size_t)64 << 20)
#define SLACK                                                                                     \
    ((uint64_t)16 << 20) /* less than any of the areas; drivers keep some for themselves */

typedef int info_fn(size_t *free, size_t *total);

static uint64_t before;

/* Of all devices together. */
static uint64_t free_bytes(void)
{
    int (*init)(unsigned) = test_driver("cuInit");
    int (*count)(int *) = test_driver("cuDeviceGetCount");
    int (*retain)(cuda_ctx_t *, int) = test_driver("cuDevicePrimaryCtxRetain");
    int (*release)(int) = test_driver("cuDevicePrimaryCtxRelease_v2");
    int (*push)(cuda_ctx_t) = test_driver("cuCtxPushCurrent_v2");
    int (*pop)(cuda_ctx_t *) = test_driver("cuCtxPopCurrent_v2");
    info_fn *info = test_driver("cuMemGetInfo_v2");
    uint64_t sum = 0;
    int n = 0;
    assert_true(init && count && retain && release && push && pop && info);
    assert_int_equal(init(0), 0);
    assert_int_equal(count(&n), 0);
    for (int device = 0; device < n; device++) {
        size_t bytes, total;
        cuda_ctx_t ctx;
        assert_int_equal(retain(&ctx, device), 0);
        assert_int_equal(push(ctx), 0);
        assert_int_equal(info(&bytes, &total), 0);
        pop(&ctx);
        release(device);
        sum += bytes;
    }
    return sum;
}

/* One side moves from or to the other one's memory, and B dies. */
static void killed_during(struct duo *d, enum who who, enum weft_xfer_op kind)
{
    struct area near = duo_area(d, who, LEN, 0, 0), far = duo_area(d, 1 - who, LEN, 0, 0);
    struct weft_local local = area_local(near, 0, LEN);
    for (int i = 0; i < 40; i++)
        duo_post(d, who, 0,
                 WEFT_OPTS(weft_xfer, .op = kind, .local = &local, .nlocal = 1,
                           .remote = &far.remote, .nremote = 1));
    test_sleep_ms(3);
    test_peer_kill(&d->peer);
    struct weft_conn_info info = {.state = WEFT_CONN_UP};
    for (uint64_t end = test_deadline(); info.state != WEFT_CONN_DOWN; test_sleep_ms(1)) {
        CHECK(weft_now() < end, "the death of the peer was never noticed");
        WEFT_OK(weft_conn_info(d->conn, &info));
    }
}

static void it_writes(void **state)
{
    killed_during(*state, B, WEFT_XFER_WRITE);
}

static void it_reads(void **state)
{
    killed_during(*state, B, WEFT_XFER_READ);
}

static void it_is_written_to(void **state)
{
    killed_during(*state, A, WEFT_XFER_WRITE);
}

static void it_is_read(void **state)
{
    killed_during(*state, A, WEFT_XFER_READ);
}

/* After the first time: contexts and what they keep are there. */
static void what_is_free_then(void **state)
{
    (void)state;
    before = free_bytes();
}

static void nothing_is_missing(void **state)
{
    (void)state;
    uint64_t now = 0;
    for (uint64_t end = test_deadline(); now + SLACK < before; now = free_bytes()) {
        CHECK(weft_now() < end, "%.1f MiB of device memory are missing",
              (double)(before - now) / (1 << 20));
        test_sleep_ms(50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KILLED(it_writes),        cmocka_unit_test(what_is_free_then),
        KILLED(it_writes),        cmocka_unit_test(nothing_is_missing),
        KILLED(it_reads),         cmocka_unit_test(nothing_is_missing),
        KILLED(it_is_written_to), cmocka_unit_test(nothing_is_missing),
        KILLED(it_is_read),       cmocka_unit_test(nothing_is_missing),
    };
    if (strcmp(test_gpu(), "cuda") != 0 || !test_driver("cuMemGetInfo_v2")) {
        fprintf(stderr, "skipped: no driver of NVIDIA's to ask\n");
        return 77;
    }
    return DUO_MAIN("gpu_watch", tests);
}
