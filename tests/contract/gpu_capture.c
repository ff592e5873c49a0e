/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU backend that WEFT_TEST_GPU names, while the program captures a stream into a graph, as torch does with its default mode, in
 * which a thread that asks whether something is done, or makes memory, breaks the capture. NVIDIA's driver, or its double, captures.
 */
#include "../driver.h"
#include "../helpers.h"

#include <pthread.h>

#include "gpu/cuda/cuda_api.h"
#include "weft/gpu.h"

#define N 8 /* enough for a kernel */
#define EACH ((size_t)70000)
#define LEN (N * EACH)
#define FOR_ALL 0 /* CU_STREAM_CAPTURE_MODE_GLOBAL */

static const struct weft_gpu_ops *ops;

static struct {
    int (*retain)(cuda_ctx_t *, int), (*release)(int), (*push)(cuda_ctx_t), (*pop)(cuda_ctx_t *);
    int (*create)(cuda_stream_t *, unsigned), (*destroy)(cuda_stream_t);
    int (*begin)(cuda_stream_t, int), (*end)(cuda_stream_t, void **), (*drop)(void *);
    int (*query)(cuda_stream_t);
} driver;

static bool find_driver(void)
{
    const struct {
        const char *symbol;
        void *slot;
    } all[] = {{"cuDevicePrimaryCtxRetain", &driver.retain},
               {"cuDevicePrimaryCtxRelease_v2", &driver.release},
               {"cuCtxPushCurrent_v2", &driver.push},
               {"cuCtxPopCurrent_v2", &driver.pop},
               {"cuStreamCreate", &driver.create},
               {"cuStreamDestroy_v2", &driver.destroy},
               {"cuStreamBeginCapture_v2", &driver.begin},
               {"cuStreamEndCapture", &driver.end},
               {"cuGraphDestroy", &driver.drop},
               {"cuStreamQuery", &driver.query}};
    bool found = true;
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        void *at = test_driver(all[i].symbol);
        memcpy(all[i].slot, &at, sizeof at);
        found &= at != NULL;
    }
    return found;
}

static void finish(struct weft_gpu *gpu, struct weft_gpu_job *job)
{
    int rc;
    TEST_UNTIL((rc = ops->copy_done(gpu, job)) != 0, , "a copy");
    WEFT_OK(rc);
}

/* What endpoints ask a backend for, but for another process's memory. `stream` is one of the program's that is not captured. */
static void *use(void *stream)
{
    struct weft_gpu *gpu;
    struct weft_gpu_job *job;
    struct weft_gpu_copy list[N];
    struct weft_gpu_range range;
    uint8_t *from, *to, *out = malloc(LEN), *back = aligned_alloc(4096, (LEN + 4095) / 4096 * 4096);
    void *dev;
    test_fill(out, LEN, 3, 0);
    struct weft_gpu_device device;
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    int fd = -1, ordinal = -1;
    WEFT_OK(ops->probe());
    WEFT_OK(ops->describe(0, &device));
    WEFT_OK(ops->link(0, 0));
    WEFT_OK(ops->open(0, &gpu));
    WEFT_OK(ops->stream_gpu(stream, &ordinal));
    CHECK(ordinal == 0, "the stream is of device %d", ordinal);
    WEFT_OK(ops->alloc(gpu, LEN, (void **)&from));
    WEFT_OK(ops->alloc(gpu, LEN, (void **)&to));
    WEFT_OK(ops->query(from, &range));
    WEFT_OK(ops->ipc_export(gpu, from, LEN, handle, &fd));
    WEFT_OK(ops->copy(gpu, from, out, LEN, NULL));
    for (size_t i = 0; i < N; i++)
        list[i] = (struct weft_gpu_copy){to + i * EACH, from + i * EACH, EACH};
    for (int i = 0; i < 20; i++) {
        WEFT_OK(ops->copy_start(gpu, list, i % 2 ? N : 1, i % 4 < 2 ? WEFT_GPU_REACHED : 0, &job));
        finish(gpu, job);
    }
    WEFT_OK(ops->mark(gpu, stream, &job));
    finish(gpu, job);
    WEFT_OK(ops->host_map(gpu, back, (LEN + 4095) / 4096 * 4096, &dev));
    WEFT_OK(ops->copy(gpu, back, to, LEN, NULL));
    CHECK(memcmp(back, out, LEN) == 0, "not what was copied");
    ops->host_unmap(gpu, back);
    ops->free(gpu, from);
    ops->free(gpu, to);
    ops->close(gpu);
    free(out);
    free(back);
    return NULL;
}

static void captures_go_on(void **state)
{
    (void)state;
    cuda_ctx_t ctx;
    cuda_stream_t captured, other;
    void *graph = NULL;
    assert_int_equal(driver.retain(&ctx, 0), 0);
    assert_int_equal(driver.push(ctx), 0);
    assert_int_equal(driver.create(&captured, CUDA_STREAM_ALONE), 0);
    assert_int_equal(driver.create(&other, CUDA_STREAM_ALONE), 0);
    for (int own = 0; own < 2; own++) { /* by another thread than the one that captures, and by that one */
        pthread_t thread;
        assert_int_equal(driver.begin(captured, FOR_ALL), 0);
        if (own) {
            use(other);
        } else {
            assert_int_equal(pthread_create(&thread, NULL, use, other), 0);
            assert_int_equal(pthread_join(thread, NULL), 0);
        }
        assert_int_equal(driver.end(captured, &graph), 0);
        if (graph)
            assert_int_equal(driver.drop(graph), 0);
    }
    /* the thread is told of captures as before */
    assert_int_equal(driver.begin(captured, FOR_ALL), 0);
    assert_int_not_equal(driver.query(other), 0);
    assert_int_not_equal(driver.end(captured, &graph), 0);
    assert_int_equal(driver.destroy(other), 0);
    assert_int_equal(driver.destroy(captured), 0);
    assert_int_equal(driver.pop(&ctx), 0);
    assert_int_equal(driver.release(0), 0);
}

int main(void)
{
    const struct weft_gpu_backend *backend = weft_gpu_find(test_gpu());
    const struct CMUnitTest tests[] = {cmocka_unit_test(captures_go_on)};
    if (!backend || backend->ops->probe() <= 0 || !find_driver()) {
        fprintf(stderr, "%s: %s\n", backend ? "skipped" : "WEFT_TEST_GPU", weft_last_error());
        return backend ? 77 : 1;
    }
    ops = backend->ops;
    test_begin();
    return cmocka_run_group_tests_name(backend->name, tests, NULL, NULL);
}
