/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promises of weft/gpu.h about memory of other processes, on the GPU backend that WEFT_TEST_GPU names: a child process, which
 * was made before any GPU was asked for, opens what this one exports, reads it, and writes to it.
 */
#include "../helpers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft/gpu.h"

#define LEN 100000
#define AT 4321 /* where in the allocation */

static const struct weft_gpu_ops *ops;
static int to_child[2], to_parent[2];
static pid_t child;

static void tell(int fd, const void *bytes, size_t len)
{
    CHECK(write(fd, bytes, len) == (ssize_t)len, "the other process is gone");
}

static void hear(int fd, void *bytes, size_t len)
{
    CHECK(read(fd, bytes, len) == (ssize_t)len, "the other process is gone");
}

/* Twice: what was closed can be opened again. */
static int run_child(void)
{
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct weft_gpu *gpu;
    char done = 1;
    if (read(to_child[0], handle, sizeof handle) != sizeof handle)
        return 0; /* there is nothing to open */
    char *bytes = malloc(LEN);
    WEFT_OK(ops->open(0, &gpu));
    for (int i = 0; i < 2; i++) {
        void *addr;
        struct weft_gpu_range range;
        WEFT_OK(ops->ipc_open(gpu, handle, &addr));
        assert_int_equal(ops->query(addr, &range), 1);
        WEFT_OK(ops->copy(gpu, bytes, addr, LEN - AT, NULL));
        CHECK(test_differs(bytes, LEN - AT, (uint64_t)i, AT) < 0, "what was read is wrong");
        test_fill(bytes, LEN - AT, (uint64_t)i + 1, AT);
        WEFT_OK(ops->copy(gpu, addr, bytes, LEN - AT, NULL));
        ops->ipc_close(gpu, addr);
    }
    free(bytes);
    ops->close(gpu);
    tell(to_parent[1], &done, 1);
    return 0;
}

static void another_process_reads_and_writes(void **state)
{
    (void)state;
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct weft_gpu *gpu;
    void *addr;
    char *bytes = malloc(LEN), done = 0;
    int status = -1;
    WEFT_OK(ops->open(0, &gpu));
    WEFT_OK(ops->alloc(gpu, LEN, &addr));
    test_fill(bytes, LEN, 0, 0);
    WEFT_OK(ops->copy(gpu, addr, bytes, LEN, NULL));
    int rc = ops->ipc_export(gpu, (char *)addr + AT, handle);
    if (!strcmp(test_gpu(), "host")) { /* it says so, and the child has nothing to do */
        assert_int_equal(rc, WEFT_EUNSUPPORTED);
        assert_true(strlen(weft_last_error()) > 0);
    } else {
        WEFT_OK(rc);
        tell(to_child[1], handle, sizeof handle);
        hear(to_parent[0], &done, 1);
        WEFT_OK(ops->copy(gpu, bytes, addr, LEN, NULL));
        CHECK(test_differs(bytes, AT, 0, 0) < 0, "what was not written is not as it was");
        CHECK(test_differs(bytes + AT, LEN - AT, 2, AT) < 0, "what was written is wrong");
    }
    close(to_child[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ops->free(gpu, addr);
    ops->close(gpu);
    free(bytes);
}

static void garbage_is_refused(void **state)
{
    (void)state;
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct weft_gpu *gpu;
    void *addr = state;
    int on_stack;
    WEFT_OK(ops->open(0, &gpu));
    memset(handle, 0x77, sizeof handle);
    assert_true(ops->ipc_open(gpu, handle, &addr) < 0);
    assert_true(strlen(weft_last_error()) > 0);
    assert_ptr_equal(addr, state);
    assert_true(ops->ipc_export(gpu, &on_stack, handle) < 0);
    ops->close(gpu);
}

int main(void)
{
    const struct weft_gpu_backend *backend = weft_gpu_find(test_gpu());
    if (!backend) {
        fprintf(stderr, "%s\n", weft_last_error());
        return 1;
    }
    ops = backend->ops;
    if (pipe(to_child) || pipe(to_parent) || (child = fork()) < 0)
        return 1;
    if (child == 0) {
        close(to_child[1]);
        return run_child();
    }
    close(to_child[0]);
    close(to_parent[1]);
    if (ops->probe() <= 0) {
        fprintf(stderr, "skipped: %s\n", weft_last_error());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_process_reads_and_writes),
        cmocka_unit_test(garbage_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
