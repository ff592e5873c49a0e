/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel of the program's own touches what it may not: NVIDIA's driver does nothing more for that process then. Operations with memory of its
 * GPUs end with an error, those with memory of the host go on, the peer's do not hang, and all can be closed.
 */
#include "driver.h"
#include "duo.h"

#include <errno.h>

#include "gpu/cuda/cuda_api.h"

#define LEN ((size_t)8 << 20)
#define OPS 6
#define WORD "still there"
#define DEVICE_ORDINAL 9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */

static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                             ".visible .entry fault()\n{\n"
                             ".reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n"
                             "mov.u64 %rd1, 16;\nmov.u32 %r1, 1;\nst.global.u32 [%rd1], %r1;\nret;\n}\n";

/* The double of the driver has no such kernel, but the same end. */
static bool fake_fault(void)
{
    int (*init)(unsigned) = test_driver("cuInit");
    if (!getenv("FAKE_CUDA"))
        return false;
    setenv("FAKE_CUDA", "devices=2,lost=1", 1);
    WEFT_OK(init(0));
    return true;
}

/* On the device of the host's first area. It is not waited for: the driver hears of it some time later, what is under way then or comes
 * next finds it. */
static void fault(struct host *host, void *arg)
{
    int (*attribute)(void *, int, uint64_t) = test_driver("cuPointerGetAttribute");
    int (*retain)(cuda_ctx_t *, int) = test_driver("cuDevicePrimaryCtxRetain");
    int (*push)(cuda_ctx_t) = test_driver("cuCtxPushCurrent_v2");
    int (*pop)(cuda_ctx_t *) = test_driver("cuCtxPopCurrent_v2");
    int (*load)(void **, const void *) = test_driver("cuModuleLoadData");
    int (*find)(void **, void *, const char *) = test_driver("cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = test_driver("cuLaunchKernel");
    int device = 0;
    cuda_ctx_t ctx;
    void *module, *function;
    (void)arg;
    if (fake_fault())
        return;
    assert_true(attribute && retain && push && pop && load && find && launch);
    assert_int_equal(attribute(&device, DEVICE_ORDINAL, (uintptr_t)host->areas[0].mem.at), 0);
    assert_int_equal(retain(&ctx, device), 0);
    assert_int_equal(push(ctx), 0);
    assert_int_equal(load(&module, kernel), 0);
    assert_int_equal(find(&function, module, "fault"), 0);
    assert_int_equal(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0);
    pop(&ctx);
}

struct outcome {
    weft_op_t op;
    int status;
};

static void wait_any(struct host *host, void *arg)
{
    struct outcome *o = arg;
    struct weft_op_status status;
    (void)host;
    weft_op_wait(o->op, TEST_DEADLINE_MS, &status);
    CHECK(status.status != WEFT_EAGAIN, "an operation hangs");
    CHECK(status.status == 0 || *status.text, "no word");
    o->status = status.status;
}

/* How an operation between the areas ends. */
static int end_of(struct duo *d, enum who who, enum weft_xfer_op kind, struct area near,
                  struct area far)
{
    struct weft_local local = area_local(near, 0, LEN);
    struct outcome o = {.op = duo_post(d, who, 0,
                                       WEFT_OPTS(weft_xfer, .op = kind, .local = &local, .nlocal = 1,
                                                 .remote = &far.remote, .nremote = 1))};
    duo_call(d, who, wait_any, &o, sizeof o);
    return o.status;
}

static void tell(struct host *host, void *arg)
{
    (void)arg;
    WEFT_OK(weft_notify(host->conns[0], WORD, sizeof WORD, TEST_DEADLINE_MS));
}

static void hear(struct host *host, void *arg)
{
    struct weft_notif notif;
    (void)arg;
    WEFT_OK(weft_endpoint_notif(host->endpoint, TEST_DEADLINE_MS, &notif));
    assert_int_equal(notif.len, sizeof WORD);
    assert_string_equal((const char *)notif.data, WORD);
    weft_notif_free(&notif);
}

static void close_all(struct host *host, void *arg)
{
    (void)arg;
    weft_endpoint_close(host->endpoint);
}

static void its_operations_end_and_the_host_goes_on(void **state)
{
    struct duo *d = *state;
    struct area a = duo_area(d, A, LEN, 0, 0), b = duo_area(d, B, LEN, 0, 0);
    duo_fill(d, a, 1);
    assert_int_equal(end_of(d, A, WEFT_XFER_WRITE, a, b), 0);
    assert_int_equal(end_of(d, B, WEFT_XFER_WRITE, b, a), 0);
    duo_call(d, B, fault, NULL, 0);
    TEST_UNTIL(end_of(d, B, WEFT_XFER_WRITE, b, a) == -EIO, (void)0, "the fault");
    for (int i = 0; i < OPS; i++) {
        enum weft_xfer_op kind = i & 1 ? WEFT_XFER_READ : WEFT_XFER_WRITE;
        assert_int_equal(end_of(d, B, kind, b, a), -EIO);
        end_of(d, A, kind, a, b); /* by mappings of A's, it may go well */
    }
    for (int i = 0; i < 2; i++) {
        duo_call(d, i ? B : A, tell, NULL, 0);
        duo_call(d, i ? A : B, hear, NULL, 0);
    }
    duo_call(d, B, close_all, NULL, 0);
    test_peer_kill(&d->peer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {KILLED(its_operations_end_and_the_host_goes_on)};
    if (strcmp(test_gpu(), "cuda") != 0 || !test_driver("cuLaunchKernel")) {
        fprintf(stderr, "skipped: no driver of NVIDIA's\n");
        return 77;
    }
    return DUO_MAIN("gpu_fault", tests);
}
