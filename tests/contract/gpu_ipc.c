/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promises of weft/gpu.h about memory of other processes, on the GPU backend that WEFT_TEST_GPU names: a child process, which
 * was made before any GPU was asked for, opens what this one exports, reads it, and writes to it.
 */
#include "../driver.h"
#include "../helpers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft/gpu.h"

#define LEN 5000000
#define BAGS 2
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

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static void pass(int to, int fd)
{
    char byte = 0;
    union control control = {.head = {.cmsg_len = CMSG_LEN(sizeof fd),
                                      .cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS}};
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = fd < 0 ? NULL : &control,
                         .msg_controllen = fd < 0 ? 0 : sizeof control};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    CHECK(sendmsg(to, &msg, 0) == 1, "the other process is gone");
}

/* -1: there was none. */
static int take(int from)
{
    char byte;
    union control control;
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    int fd = -1;
    CHECK(recvmsg(from, &msg, 0) == 1, "the other process is gone");
    if (msg.msg_controllen)
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    return fd;
}

/* What a handle of segments has behind the library's own. */
struct tail {
    uint64_t offset;
    uint8_t id[16];
    uint64_t bytes;
};

/* What is open is known by its id; another length or place than before is not believed. */
static void handle_lies(struct weft_gpu *gpu, const uint8_t *honest)
{
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct tail tail;
    void *none = gpu;
    for (int i = 0; i < 3; i++) {
        memcpy(&tail, honest + 64, sizeof tail);
        tail.bytes = i == 0 ? UINT64_MAX & ~0x1fffffull : i == 1 ? tail.bytes * 2 : tail.bytes;
        tail.offset = i == 0 ? tail.bytes - 4096 : i == 2 ? tail.bytes - 50 : tail.offset;
        memcpy(handle, honest, sizeof handle);
        memcpy(handle + 64, &tail, sizeof tail);
        WEFT_FAILS(WEFT_EPROTO, ops->ipc_open(gpu, handle, -1, 100, &none));
        assert_ptr_equal(none, gpu);
    }
}

/* Bags of the same memory that are not the handle's, or hold more than it says. */
static void bags_lie(struct weft_gpu *gpu, const uint8_t *honest)
{
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct tail tail;
    void *none = gpu;
    for (int i = 0; i < BAGS; i++) {
        int fd = take(to_child[0]);
        if (fd < 0)
            continue;
        memcpy(handle, honest, sizeof handle);
        if (i == 1) {
            hear(to_child[0], handle, sizeof handle);
            memcpy(&tail, handle + 64, sizeof tail);
            tail.bytes = 0x200000; /* whole segments, and others behind them */
            memcpy(handle + 64, &tail, sizeof tail);
        }
        WEFT_FAILS(WEFT_EPROTO, ops->ipc_open(gpu, handle, fd, 100, &none));
        assert_ptr_equal(none, gpu);
        close(fd);
    }
}

/* Another GPU of the process, if there is one, may do so as well; what the first one has open stays. */
static void opened_by_another(const uint8_t *handle, char *bytes)
{
    struct weft_gpu *gpu;
    void *addr;
    if (ops->probe() < 2)
        return;
    WEFT_OK(ops->open(1, &gpu));
    WEFT_OK(ops->ipc_open(gpu, handle, -1, LEN - AT, &addr));
    WEFT_OK(ops->copy(gpu, bytes, addr, LEN - AT, NULL));
    CHECK(test_differs(bytes, LEN - AT, 2, AT) < 0, "what the other GPU has read is wrong");
    ops->ipc_close(gpu, addr);
    ops->close(gpu);
}

/* Twice: what was closed can be opened again, if no descriptor belongs to it; what is open, in any case. */
static int run_child(void)
{
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct weft_gpu *gpu;
    char done = 1;
    if (read(to_child[0], handle, sizeof handle) != sizeof handle)
        return 0; /* there is nothing to open */
    int fd = take(to_child[0]);
    char *bytes = malloc(LEN);
    void *first = NULL;
    WEFT_OK(ops->open(0, &gpu));
    bags_lie(gpu, handle);
    int before = test_count_fds();
    void *none = &fd;
    WEFT_FAILS(WEFT_EPROTO,
               ops->ipc_open(gpu, handle, -1, (uint64_t)LEN * 9, &none)); /* so long it is not */
    if (fd >= 0)
        WEFT_FAILS(WEFT_EUNSUPPORTED, ops->ipc_open(gpu, handle, -1, LEN - AT, &none));
    assert_ptr_equal(none, &fd);
    for (int i = 0; i < 2; i++) {
        void *addr;
        struct weft_gpu_range range;
        WEFT_OK(ops->ipc_open(gpu, handle, i ? -1 : fd, LEN - AT, &addr));
        assert_int_equal(ops->query(addr, &range), 1);
        WEFT_OK(ops->copy(gpu, bytes, addr, LEN - AT, NULL));
        CHECK(test_differs(bytes, LEN - AT, (uint64_t)i, AT) < 0, "what was read is wrong");
        test_fill(bytes, LEN - AT, (uint64_t)i + 1, AT);
        WEFT_OK(ops->copy(gpu, addr, bytes, LEN - AT, NULL));
        if (fd >= 0 && i == 0)
            first = addr;
        else
            ops->ipc_close(gpu, addr);
    }
    if (fd >= 0) {
        void *addr = NULL;
        handle_lies(gpu, handle);
        opened_by_another(handle, bytes);
        WEFT_OK(ops->copy(gpu, bytes, first, LEN - AT, NULL)); /* it is open still */
        CHECK(test_differs(bytes, LEN - AT, 2, AT) < 0, "what was written is wrong");
        ops->ipc_close(gpu, first);
        CHECK(ops->ipc_open(gpu, handle, fd, LEN - AT, &addr) < 0, "a bag is emptied once");
        assert_int_equal(test_count_fds(), before);
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
    int fd = -1;
    WEFT_OK(ops->open(0, &gpu));
    if (test_segment())
        addr = test_segments_alloc(0, LEN, test_segment());
    else
        WEFT_OK(ops->alloc(gpu, LEN, &addr));
    test_fill(bytes, LEN, 0, 0);
    WEFT_OK(ops->copy(gpu, addr, bytes, LEN, NULL));
    int rc = ops->ipc_export(gpu, (char *)addr + AT, LEN - AT, handle, &fd);
    if (!strcmp(test_gpu(), "host")) { /* it says so, and the child has nothing to do */
        assert_int_equal(rc, WEFT_EUNSUPPORTED);
        assert_true(strlen(weft_last_error()) > 0);
    } else {
        WEFT_OK(rc);
        assert_int_equal(fd >= 0, test_segment() > 0);
        tell(to_child[1], handle, sizeof handle);
        pass(to_child[1], fd);
        close(fd);
        for (int i = 0; i < BAGS; i++) { /* which bags_lie takes */
            WEFT_OK(ops->ipc_export(gpu, (char *)addr + AT, LEN - AT, handle, &fd));
            pass(to_child[1], fd);
            if (fd >= 0 && i == 1)
                tell(to_child[1], handle, sizeof handle);
            close(fd);
        }
        hear(to_parent[0], &done, 1);
        WEFT_OK(ops->copy(gpu, bytes, addr, LEN, NULL));
        CHECK(test_differs(bytes, AT, 0, 0) < 0, "what was not written is not as it was");
        CHECK(test_differs(bytes + AT, LEN - AT, 2, AT) < 0, "what was written is wrong");
    }
    close(to_child[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    if (test_segment())
        test_segments_free(addr);
    else
        ops->free(gpu, addr);
    ops->close(gpu);
    free(bytes);
}

/* A packet like those of a bag: the first bytes of it, and descriptors of standard error. */
static void put(int to, size_t len, int fds)
{
    uint8_t bytes[16 + 8] = {0};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    int list[3] = {2, 2, 2};
    struct iovec iov = {bytes, len};
    size_t n = (size_t)fds * sizeof(int);
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = fds ? &control : NULL,
                         .msg_controllen = fds ? CMSG_SPACE(n) : 0};
    control.head.cmsg_len = CMSG_LEN(n);
    memcpy(CMSG_DATA(&control.head), list, n);
    bytes[16 + 2] = 0x20; /* its length: 2 MiB */
    assert_int_equal(sendmsg(to, &msg, 0), len);
}

static void garbage_is_refused(void **state)
{
    (void)state;
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    struct weft_gpu *gpu;
    void *addr = state;
    int on_stack, fd = -1, ends[2];
    const struct tail tails[] = {
        {0, {0}, 0},                        /* the library's */
        {0, {0}, 0x200000},                 /* segments */
        {0x200000 - 99, {0}, 0x200000},     /* of which it is behind the end */
        {UINT64_MAX - 50, {0}, 0x200000},   /* or around it */
        {0, {0}, UINT64_MAX & ~0x1fffffull} /* or there are too many */
    };
    WEFT_OK(ops->open(0, &gpu));
    int fds = test_count_fds();
    for (size_t i = 0; i < ARRAY_LEN(tails); i++)
        for (int with = 0; with < 7; with++) {
            assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
            if (with == 3)
                put(ends[1], 16 + 8, 1); /* as it should be, but for what it is a descriptor of */
            else if (with == 4)
                put(ends[1], 16 + 8, 3);
            else if (with == 5)
                put(ends[1], 16 + 8, 0);
            else if (with == 6)
                put(ends[1], 0, 3);
            memset(handle, 0x77, sizeof handle);
            memcpy(handle + 64, &tails[i], sizeof tails[i]);
            assert_true(ops->ipc_open(gpu, handle,
                                      with == 0   ? -1
                                      : with == 1 ? 2
                                                  : ends[0],
                                      100, &addr) < 0);
            assert_true(strlen(weft_last_error()) > 0);
            assert_ptr_equal(addr, state);
            close(ends[0]);
            close(ends[1]);
            assert_int_equal(test_count_fds(), fds);
        }
    assert_true(ops->ipc_export(gpu, &on_stack, 1, handle, &fd) < 0);
    assert_int_equal(fd, -1);
    assert_int_equal(test_count_fds(), fds);
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
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, to_child) || pipe(to_parent) || (child = fork()) < 0)
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
