/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_pair.h. */
#include "gpu_pair.h"

int cuInit(unsigned flags);
int fake_cuda_pinned(void);

/* The driver reads its settings whenever it is started. */
void fake_driver(const char *settings)
{
    setenv("FAKE_CUDA", settings, 1);
    assert_int_equal(cuInit(0), 0);
}

weft_endpoint_t gpu_pair_endpoint(const char *gpu)
{
    weft_endpoint_t ep;
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts,
                                         .transport = test_env("WEFT_TEST_TRANSPORT", "tcp"),
                                         .gpu = gpu, .progress_threads = 1),
                               &ep));
    return ep;
}

weft_mem_t gpu_pair_reg(weft_endpoint_t ep, void *addr, size_t len)
{
    weft_mem_t mem;
    WEFT_OK(weft_mem_reg(ep, addr, len, NULL, &mem));
    return mem;
}

void gpu_pair_open_chunks(struct gpu_pair *t, const char *settings, int near, int far, const char *near_chunk, const char *far_chunk)
{
    *t = (struct gpu_pair){0};
    fake_driver(settings);
    WEFT_OK(weft_config_set("WEFT_STAGE_CHUNK", near_chunk));
    t->a = gpu_pair_endpoint(near < 0 ? "host" : test_gpu());
    WEFT_OK(weft_config_set("WEFT_STAGE_CHUNK", far_chunk));
    t->b = gpu_pair_endpoint(test_gpu());
    WEFT_OK(weft_config_set("WEFT_STAGE_CHUNK", NULL));
    duo_join(t->a, t->b, &t->conn, &t->other);
    test_mem_open_on(&t->near, GPU_PAIR_LEN, 1, near);
    test_mem_open_on(&t->far, GPU_PAIR_LEN, 3, far);
    t->near_mem = gpu_pair_reg(t->a, t->near.at, GPU_PAIR_LEN);
    t->far_mem = gpu_pair_reg(t->b, t->far.at, GPU_PAIR_LEN);
    WEFT_OK(weft_mem_advertise(t->far_mem, t->far.at, GPU_PAIR_LEN, &t->remote));
    test_fill(t->near.at, GPU_PAIR_LEN, 1, 0);
}

void gpu_pair_open(struct gpu_pair *t, const char *settings, int near, int far)
{
    gpu_pair_open_chunks(t, settings, near, far, NULL, NULL);
}

void gpu_pair_close(struct gpu_pair *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
    test_mem_close(&t->near);
    test_mem_close(&t->far);
    assert_int_equal(fake_cuda_pinned(), 0);
}

void gpu_pair_work(struct gpu_pair *t)
{
    test_fill(t->near.at, GPU_PAIR_LEN, 1, 0);
    assert_int_equal(weft_write(t->conn, t->near.at, GPU_PAIR_LEN, &t->remote, 0, TEST_DEADLINE_MS), GPU_PAIR_LEN);
    assert_true(test_differs(t->far.at, GPU_PAIR_LEN, 1, 0) < 0);
    test_zero(t->near.at, GPU_PAIR_LEN);
    assert_int_equal(weft_read(t->conn, t->near.at, GPU_PAIR_LEN, &t->remote, 0, TEST_DEADLINE_MS), GPU_PAIR_LEN);
    assert_true(test_differs(t->near.at, GPU_PAIR_LEN, 1, 0) < 0);
}

struct weft_op_status gpu_pair_end(weft_op_t op)
{
    struct weft_op_status status = {.status = WEFT_EAGAIN};
    int rc = weft_op_wait(op, TEST_DEADLINE_MS, &status);
    CHECK(status.status != WEFT_EAGAIN, "deadline: waited for an operation");
    assert_int_equal(rc, status.status);
    return status;
}

weft_op_t gpu_pair_post(struct gpu_pair *t, enum weft_xfer_op kind)
{
    struct weft_local local = {t->near.at, GPU_PAIR_LEN, t->near_mem};
    weft_op_t op;
    WEFT_OK(weft_post(t->conn,
                      WEFT_OPTS(weft_xfer, .op = kind, .local = &local, .nlocal = 1,
                                .remote = &t->remote, .nremote = 1),
                      &op));
    return op;
}

