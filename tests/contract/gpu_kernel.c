/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promises of weft/gpu.h about Weft's kernels, on the GPU backend that WEFT_TEST_GPU names: launch, and weft_copy at any
 * alignment and length, by itself and where copy_start uses it. Without kernels (WEFT_TEST_NO_SKIP unset) it is skipped.
 */
#include "../helpers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/kernels/copy.h"
#include "weft/gpu.h"

#define LEN ((size_t)1 << 20)
#define GAP 40 /* between ranges: nothing is written there */

static const struct weft_gpu_ops *ops;
static struct weft_gpu *gpu;

struct sides {
    uint8_t *from, *to;              /* of the device, LEN */
    uint8_t *bytes, *want, *back;    /* of the host */
    struct weft_gpu_copy list[2048]; /* as addresses of the device */
    int n;
};

static int setup(void **state)
{
    struct sides *s = calloc(1, sizeof *s);
    test_begin();
    WEFT_OK(ops->open(0, &gpu));
    WEFT_OK(ops->alloc(gpu, LEN, (void **)&s->from));
    WEFT_OK(ops->alloc(gpu, LEN, (void **)&s->to));
    s->bytes = malloc(LEN);
    s->want = malloc(LEN);
    s->back = malloc(LEN);
    test_fill(s->bytes, LEN, 1, 0);
    memset(s->want, 0x5a, LEN);
    WEFT_OK(ops->copy(gpu, s->from, s->bytes, LEN, NULL));
    WEFT_OK(ops->copy(gpu, s->to, s->want, LEN, NULL));
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct sides *s = *state;
    ops->free(gpu, s->from);
    ops->free(gpu, s->to);
    ops->close(gpu);
    free(s->bytes);
    free(s->want);
    free(s->back);
    free(s);
    return 0;
}

/* One more range, `len` bytes from and to so many bytes behind a word's start. */
static void add(struct sides *s, size_t *at, size_t from, size_t to, size_t len)
{
    size_t start = (*at + 15) / 16 * 16;
    assert_true(start + 32 + len + GAP <= LEN && s->n < (int)ARRAY_LEN(s->list));
    s->list[s->n++] = (struct weft_gpu_copy){s->to + start + to, s->from + start + from, len};
    memcpy(s->want + start + to, s->bytes + start + from, len);
    *at = start + 32 + len + GAP;
}

static void check(const struct sides *s)
{
    WEFT_OK(ops->copy(gpu, s->back, s->to, LEN, NULL));
    for (size_t i = 0; i < LEN; i++)
        if (s->back[i] != s->want[i])
            fail_msg("byte %zu is %02x, not %02x", i, s->back[i], s->want[i]);
}

static int launch(const struct weft_copy_args *args, uint32_t blocks, uint32_t threads)
{
    return ops->launch(gpu, &(struct weft_gpu_launch){.kernel = WEFT_COPY_KERNEL,
                                                      .args = args,
                                                      .args_len = sizeof *args,
                                                      .blocks = blocks,
                                                      .threads = threads});
}

static void launch_all(const struct sides *s, uint32_t blocks, uint32_t threads)
{
    for (int i = 0; i < s->n;) {
        struct weft_copy_args args = {.n = 0};
        for (; i < s->n && args.n < WEFT_COPY_MOST; i++, args.n++) {
            args.range[args.n].dst = (uintptr_t)s->list[i].dst;
            args.range[args.n].src = (uintptr_t)s->list[i].src;
            args.range[args.n].len = s->list[i].len;
            args.chunk[args.n] = args.chunks;
            args.chunks += (uint32_t)((s->list[i].len + WEFT_COPY_CHUNK - 1) / WEFT_COPY_CHUNK);
        }
        WEFT_OK(launch(&args, blocks, threads));
    }
}

static void every_alignment(void **state)
{
    struct sides *s = *state;
    size_t at = 0;
    for (size_t from = 0; from < 16; from++)
        for (size_t to = 0; to < 16; to++)
            add(s, &at, from, to, 1 + (from * 37 + to * 11) % 200);
    launch_all(s, 3, 64);
    check(s);
}

static void every_length(void **state)
{
    static const size_t lens[] = {1,    2,    3,    4,    15,   16,   17,    31,       32,
                                  33,   511,  512,  513,  4095, 4096, 4097,  4111,     4112,
                                  8191, 8192, 8193, 5000, 9999, 1000, 12345, 65536 + 7};
    static const size_t aligns[][2] = {{0, 0}, {5, 5}, {0, 4}, {3, 7}, {1, 0}};
    struct sides *s = *state;
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(lens); i++)
        for (size_t k = 0; k < ARRAY_LEN(aligns) && at + lens[i] + 200 < LEN; k++)
            add(s, &at, aligns[k][0], aligns[k][1], lens[i]);
    launch_all(s, 16, WEFT_COPY_THREADS);
    check(s);
}

/* Fewer waves than chunks, and more. */
static void every_shape(void **state)
{
    static const uint32_t shapes[][2] = {{1, 64}, {7, 128}, {200, WEFT_COPY_THREADS}};
    struct sides *s = *state;
    size_t at = 0;
    for (int i = 0; i < 10; i++)
        add(s, &at, 0, (size_t)i, 33333);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        memset(s->back, 0x5a, LEN);
        WEFT_OK(ops->copy(gpu, s->to, s->back, LEN, NULL));
        launch_all(s, shapes[i][0], shapes[i][1]);
        check(s);
    }
}

/* More than one launch has room for, some of them empty; from and to the host's memory too. */
static void copies_of_what_the_device_reaches(void **state)
{
    struct sides *s = *state;
    struct weft_gpu_job *job = NULL;
    size_t at = 0;
    void *dev;
    for (size_t i = 0; i < 700; i++)
        add(s, &at, i % 16, i % 5, i % 7 ? 1 + i : 0);
    WEFT_OK(ops->copy_start(gpu, s->list, s->n, WEFT_GPU_REACHED, &job));
    while (job && ops->copy_done(gpu, job) == 0)
        ;
    check(s);
    int rc = ops->host_map(gpu, s->back, LEN, &dev);
    WEFT_OK(rc);
    if (dev == s->back) {
        memset(s->back, 0, LEN);
        for (int i = 0; i < s->n; i++) /* to.. -> back.. */
            s->list[i] = (struct weft_gpu_copy){s->back + ((uint8_t *)s->list[i].dst - s->to),
                                                s->list[i].dst, s->list[i].len};
        WEFT_OK(ops->copy_start(gpu, s->list, s->n, WEFT_GPU_REACHED, &job));
        while (job && ops->copy_done(gpu, job) == 0)
            ;
        for (int i = 0; i < s->n; i++)
            assert_memory_equal(s->list[i].dst, s->want + ((uint8_t *)s->list[i].dst - s->back),
                                s->list[i].len);
    }
    if (rc == 0)
        ops->host_unmap(gpu, s->back);
}

/* Without a stream it is done on return: a processor looks, and asks the backend nothing. */
static void launch_waits(void **state)
{
    struct sides *s = *state;
    void *dev;
    int rc = ops->host_map(gpu, s->back, LEN, &dev);
    WEFT_OK(rc);
    struct weft_copy_args args = {.n = 1,
                                  .chunks = LEN / WEFT_COPY_CHUNK,
                                  .range = {{(uintptr_t)dev, (uintptr_t)s->from, LEN}}};
    memset(s->back, 0, LEN);
    WEFT_OK(launch(&args, 4, 256));
    assert_memory_equal(s->back, s->bytes, LEN);
    if (rc == 0)
        ops->host_unmap(gpu, s->back);
}

static void launches_that_cannot_be(void **state)
{
    struct sides *s = *state;
    struct weft_copy_args args = {.n = 0};
    WEFT_FAILS(WEFT_EUNSUPPORTED,
               ops->launch(gpu, &(struct weft_gpu_launch){
                                    .kernel = "no such kernel", .blocks = 1, .threads = 32}));
    CHECK(strstr(weft_last_error(), "no such kernel"), "'%s'", weft_last_error());
    WEFT_FAILS(-EINVAL, ops->launch(gpu, &(struct weft_gpu_launch){.kernel = WEFT_COPY_KERNEL,
                                                                   .args = &args,
                                                                   .args_len = sizeof args - 1,
                                                                   .blocks = 1,
                                                                   .threads = 32}));
    WEFT_OK(launch(&args, 1, 64)); /* of nothing */
    check(s);
}

/* 1: skip. */
static int has_none(void)
{
    struct weft_copy_args args = {.n = 0};
    WEFT_OK(ops->open(0, &gpu));
    int rc = launch(&args, 1, 64);
    ops->close(gpu);
    if (rc == WEFT_EUNSUPPORTED)
        fprintf(stderr, "skipped: %s\n", weft_last_error());
    return rc == WEFT_EUNSUPPORTED;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct weft_gpu_backend *backend = weft_gpu_find(test_gpu());
    const struct CMUnitTest tests[] = {
        TEST(every_alignment), TEST(every_length),
        TEST(every_shape),     TEST(copies_of_what_the_device_reaches),
        TEST(launch_waits),    TEST(launches_that_cannot_be),
    };
    if (!backend || backend->ops->probe() <= 0) {
        fprintf(stderr, "%s: %s\n", backend ? "skipped" : "WEFT_TEST_GPU", weft_last_error());
        return backend ? 77 : 1;
    }
    ops = backend->ops;
    if (has_none())
        return 77;
    return cmocka_run_group_tests_name(backend->name, tests, NULL, NULL);
}
