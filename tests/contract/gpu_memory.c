/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promises of weft/gpu.h about memory, on the GPU backend that WEFT_TEST_GPU names: every
 * device, alloc, free, query, copy, host_map, and the errors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weft/gpu.h"

#define ALIGN 256           /* what weft/gpu.h promises */
#define LEN (3 * 4096 + 17) /* more than a page, and odd */
#define THREADS 4
#define ROUNDS 200

static const char *name;
static const struct weft_gpu_ops *ops;
static struct weft_gpu *gpu;

static int setup(void **state)
{
    (void)state;
    return ops->open(0, &gpu);
}

static int teardown(void **state)
{
    (void)state;
    ops->close(gpu);
    return 0;
}

static void *alloc_ok(uint64_t len)
{
    void *addr = NULL;
    assert_int_equal(ops->alloc(gpu, len, &addr), 0);
    assert_non_null(addr);
    return addr;
}

static void fill(unsigned char *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (unsigned char)(i * 7 + seed);
}

static void open_rejects_what_probe_does_not_count(void **state)
{
    (void)state;
    struct weft_gpu *other = (struct weft_gpu *)state;
    assert_true(ops->open(ops->probe(), &other) < 0);
    assert_true(strlen(weft_last_error()) > 0);
    assert_true(ops->open(-1, &other) < 0);
    assert_ptr_equal(other, state); /* out parameters are set on success only */
}

static void context_names_its_device(void **state)
{
    (void)state;
    assert_int_equal(gpu->ordinal, 0);
    assert_string_equal(gpu->backend->name, name);
    assert_int_equal(gpu->backend->abi, WEFT_ABI);
}

static void devices_say_what_they_are(void **state)
{
    (void)state;
    int n = ops->probe();
    for (int i = 0; i < n; i++) {
        struct weft_gpu_device device = {.wave = 77};
        assert_int_equal(ops->describe(i, &device), 0);
        assert_true(*device.name);
        assert_true(device.wave == 0 || device.wave == 32 || device.wave == 64);
        assert_true(!*device.pci || strlen(device.pci) == strlen("0000:3b:00.0"));
        for (int j = 0; j < n; j++) {
            int link = ops->link(i, j);
            assert_in_range(link, WEFT_GPU_LINK_NONE, WEFT_GPU_LINK_SELF);
            assert_int_equal(link == WEFT_GPU_LINK_SELF, i == j);
        }
    }
}

static void alloc_is_aligned_and_distinct(void **state)
{
    (void)state;
    char *a = alloc_ok(1), *b = alloc_ok(LEN);
    assert_int_equal((uintptr_t)a % ALIGN, 0);
    assert_int_equal((uintptr_t)b % ALIGN, 0);
    assert_true(a + 1 <= b || b + LEN <= a);
    ops->free(gpu, a);
    ops->free(gpu, b);
}

static void alloc_rejects_what_cannot_be(void **state)
{
    (void)state;
    void *addr = state;
    assert_true(ops->alloc(gpu, 0, &addr) < 0);
    assert_int_equal(ops->alloc(gpu, UINT64_MAX / 2, &addr), -ENOMEM);
    assert_true(strlen(weft_last_error()) > 0);
    assert_ptr_equal(addr, state);
}

static void free_takes_null(void **state)
{
    (void)state;
    ops->free(gpu, NULL);
}

static void query_knows_every_byte_of_an_allocation(void **state)
{
    (void)state;
    char *addr = alloc_ok(LEN);
    static const size_t offsets[] = {0, 1, LEN / 2, LEN - 1};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        struct weft_gpu_range range = {0};
        assert_int_equal(ops->query(addr + offsets[i], &range), 1);
        assert_ptr_equal(range.base, addr);
        assert_true(range.len >= LEN);
        assert_int_equal(range.ordinal, 0);
        assert_true(range.kind == WEFT_MEM_HOST || range.kind == WEFT_MEM_DMABUF ||
                    range.kind == WEFT_MEM_PEER);
    }
    ops->free(gpu, addr);
}

static void query_does_not_know_other_memory(void **state)
{
    (void)state;
    char *device = alloc_ok(LEN), *plain = malloc(LEN);
    int on_stack;
    struct weft_gpu_range range;
    assert_int_equal(ops->query(plain, &range), 0);
    assert_int_equal(ops->query(&on_stack, &range), 0);
    assert_int_equal(ops->query(NULL, &range), 0);
    free(plain);
    ops->free(gpu, device);
    assert_int_equal(ops->query(device, &range), 0);
}

static void copy_moves_the_bytes_both_ways(void **state)
{
    (void)state;
    unsigned char *out = malloc(LEN), *back = malloc(LEN + 1);
    char *a = alloc_ok(LEN), *b = alloc_ok(LEN);
    fill(out, LEN, 1);
    memset(back, 0, LEN);
    back[LEN] = 0x5a;
    assert_int_equal(ops->copy(gpu, a, out, LEN, NULL), 0);
    assert_int_equal(ops->copy(gpu, b, a, LEN, NULL), 0);
    assert_int_equal(ops->copy(gpu, back, b, LEN, NULL), 0);
    assert_memory_equal(out, back, LEN);
    assert_int_equal(back[LEN], 0x5a);
    ops->free(gpu, a);
    ops->free(gpu, b);
    free(out);
    free(back);
}

static void copy_moves_part_of_an_allocation(void **state)
{
    (void)state;
    unsigned char want[64], got[64];
    char *a = alloc_ok(sizeof want);
    fill(want, sizeof want, 3);
    assert_int_equal(ops->copy(gpu, a, want, sizeof want, NULL), 0);
    memset(want + 5, 0xee, 7);
    assert_int_equal(ops->copy(gpu, a + 5, want + 5, 7, NULL), 0);
    assert_int_equal(ops->copy(gpu, a, want, 0, NULL), 0);
    assert_int_equal(ops->copy(gpu, got, a, sizeof got, NULL), 0);
    assert_memory_equal(want, got, sizeof got);
    ops->free(gpu, a);
}

/* Until copy_done says so; the code that it ends with. */
static int finish(struct weft_gpu_job *job)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (job) {
        int rc = ops->copy_done(gpu, job);
        if (rc)
            return rc;
        clock_gettime(CLOCK_MONOTONIC, &now);
        assert_true(now.tv_sec - begin.tv_sec < 60);
    }
    return 1;
}

static void copies_that_are_not_waited_for(void **state)
{
    (void)state;
    enum { N = 40, STEP = 100 };
    unsigned char *out = malloc(N * STEP), *back = malloc(N * STEP);
    char *a = alloc_ok(N * STEP);
    struct weft_gpu_copy to[N], from[N];
    struct weft_gpu_job *job = NULL;
    fill(out, N * STEP, 5);
    memset(back, 0, N * STEP);
    for (int i = 0; i < N; i++) { /* pieces of 0 to 39 bytes, which land in reverse order */
        to[i] = (struct weft_gpu_copy){a + (N - 1 - i) * STEP, out + i * STEP, (uint64_t)i};
        from[i] = (struct weft_gpu_copy){back + i * STEP, a + (N - 1 - i) * STEP, (uint64_t)i};
    }
    assert_int_equal(ops->copy_start(gpu, to, N, 0, &job), 0);
    memset(to, 0xff, sizeof to); /* it is the caller's */
    assert_int_equal(finish(job), 1);
    assert_int_equal(ops->copy_start(gpu, from, N, 0, &job), 0);
    assert_int_equal(finish(job), 1);
    for (int i = 0; i < N; i++) {
        assert_memory_equal(back + i * STEP, out + i * STEP, i);
        for (int j = i; j < STEP; j++)
            assert_int_equal(back[i * STEP + j], 0);
    }
    ops->free(gpu, a);
    free(out);
    free(back);
}

static void many_copies_under_way(void **state)
{
    (void)state;
    enum { N = 50, LONG = 70000 };
    unsigned char *out = malloc(N * LONG), *back = malloc(N * LONG);
    char *a = alloc_ok(N * LONG);
    struct weft_gpu_job *jobs[N];
    fill(out, N * LONG, 6);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < N; i++) {
            struct weft_gpu_copy one = {a + i * LONG, out + i * LONG, LONG};
            if (turn)
                one = (struct weft_gpu_copy){back + i * LONG, a + i * LONG, LONG};
            assert_int_equal(ops->copy_start(gpu, &one, 1, 0, &jobs[i]), 0);
        }
        for (int i = N - 1; i >= 0; i--)
            assert_int_equal(finish(jobs[i]), 1);
    }
    assert_memory_equal(out, back, N * LONG);
    ops->free(gpu, a);
    free(out);
    free(back);
}

static void host_map_gives_the_device_an_address(void **state)
{
    (void)state;
    unsigned char *host = aligned_alloc(4096, 4096), got[16];
    void *dev = NULL;
    fill(host, 4096, 9);
    assert_int_equal(ops->host_map(gpu, host, 4096, &dev), 0);
    assert_non_null(dev);
    assert_int_equal(ops->copy(gpu, got, (char *)dev + 100, sizeof got, NULL), 0);
    assert_memory_equal(got, host + 100, sizeof got);
    ops->host_unmap(gpu, host);
    assert_true(ops->host_map(gpu, NULL, 4096, &dev) < 0);
    assert_true(ops->host_map(gpu, host, 0, &dev) < 0);
    free(host);
}

/* Returns NULL, or the round's step that failed, as a string: cmocka asserts in one thread only. */
static void *churn(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        char *addr;
        struct weft_gpu_range range;
        if (ops->alloc(gpu, (uint64_t)i + 1, (void **)&addr))
            return "alloc";
        if (ops->query(addr + i, &range) != 1 || range.base != addr)
            return "query";
        if (ops->copy(gpu, addr, &i, i < 4 ? 1 : 4, NULL))
            return "copy";
        ops->free(gpu, addr);
    }
    return NULL;
}

static void many_threads_share_a_context(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    name = getenv("WEFT_TEST_GPU") ? getenv("WEFT_TEST_GPU") : "host";
    const struct weft_gpu_backend *backend = weft_gpu_find(name);
    if (!backend) {
        fprintf(stderr, "WEFT_TEST_GPU: %s\n", weft_last_error());
        return 1;
    }
    ops = backend->ops;
    if (ops->probe() <= 0) {
        fprintf(stderr, "skipped: %s\n", weft_last_error());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        TEST(open_rejects_what_probe_does_not_count),
        TEST(context_names_its_device),
        TEST(devices_say_what_they_are),
        TEST(alloc_is_aligned_and_distinct),
        TEST(alloc_rejects_what_cannot_be),
        TEST(free_takes_null),
        TEST(query_knows_every_byte_of_an_allocation),
        TEST(query_does_not_know_other_memory),
        TEST(copy_moves_the_bytes_both_ways),
        TEST(copy_moves_part_of_an_allocation),
        TEST(copies_that_are_not_waited_for),
        TEST(many_copies_under_way),
        TEST(host_map_gives_the_device_an_address),
        TEST(many_threads_share_a_context),
    };
    return cmocka_run_group_tests_name(backend->name, tests, NULL, NULL);
}
