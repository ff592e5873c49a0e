/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints that are told of no GPU backend: they know memory of those that the program uses, and start none. */
#include "contract/duo.h"

#include <dlfcn.h>

#include "weft/gpu.h"

#define T TEST_DEADLINE_MS
#define LEN 100000

static const char *library(void)
{
    return getenv("WEFT_CUDA_LIBRARY");
}

static bool loaded(void)
{
    void *driver = dlopen(library(), RTLD_LAZY | RTLD_NOLOAD);
    if (driver)
        dlclose(driver);
    return driver;
}

static weft_endpoint_t endpoint(void)
{
    weft_endpoint_t ep;
    WEFT_OK(weft_endpoint_open(
        WEFT_OPTS(weft_endpoint_opts, .transport = "tcp", .progress_threads = 1), &ep));
    return ep;
}

static void move(weft_endpoint_t a, weft_endpoint_t b, struct test_mem *near, struct test_mem *far)
{
    weft_conn_t conn, other;
    weft_mem_t mem, local;
    struct weft_remote remote;
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_mem_reg(b, far->at, LEN, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, far->at, LEN, &remote));
    WEFT_OK(weft_mem_reg(a, near->at, LEN, NULL, &local));
    test_fill(near->at, LEN, 1, 0);
    assert_int_equal(weft_write(conn, near->at, LEN, &remote, 0, T), LEN);
    assert_true(test_differs(far->at, LEN, 1, 0) < 0);
}

static void move_on_the_host(void)
{
    weft_endpoint_t a = endpoint(), b = endpoint();
    struct test_mem near, far;
    test_mem_open(&near, LEN, 0);
    test_mem_open(&far, LEN, 0);
    move(a, b, &near, &far);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    test_mem_close(&near);
    test_mem_close(&far);
}

static void stream_is_refused(weft_conn_t conn)
{
    char bytes[8] = {0};
    weft_op_t op;
    WEFT_FAILS(WEFT_EUNSUPPORTED,
               weft_post(conn,
                         WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .nlocal = 1,
                                   .local = &(struct weft_local){bytes, sizeof bytes, 0},
                                   .stream = WEFT_STREAM_DEFAULT),
                         &op));
    CHECK(strstr(weft_last_error(), "stream"), "'%s'", weft_last_error());
}

/* Over a conn: memory of a GPU that is registered nowhere, the host's, a remote of that. */
typedef void use_fn(weft_conn_t conn, weft_conn_t other, char *gpu, char *host,
                    const struct weft_remote *remote);

static void written(weft_conn_t conn, weft_conn_t other, char *gpu, char *host,
                    const struct weft_remote *remote)
{
    (void)other;
    test_fill(gpu, LEN, 1, 0);
    assert_int_equal(weft_write(conn, gpu, LEN, remote, 0, T), LEN);
    assert_true(test_differs(host, LEN, 1, 0) < 0);
}

static void read_into(weft_conn_t conn, weft_conn_t other, char *gpu, char *host,
                      const struct weft_remote *remote)
{
    (void)other;
    test_fill(host, LEN, 2, 0);
    assert_int_equal(weft_read(conn, gpu, LEN, remote, 0, T), LEN);
    assert_true(test_differs(gpu, LEN, 2, 0) < 0);
}

/* It is done when it was received. */
static void send_later(weft_conn_t conn, char *bytes)
{
    WEFT_OK(weft_post(conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .nlocal = 1,
                                .local = &(struct weft_local){bytes, 64, 0}),
                      NULL));
}

static void sent(weft_conn_t conn, weft_conn_t other, char *gpu, char *host,
                 const struct weft_remote *remote)
{
    (void)remote;
    test_fill(gpu, 64, 3, 0);
    send_later(conn, gpu);
    assert_int_equal(weft_recv(other, host, 64, T), 64);
    assert_true(test_differs(host, 64, 3, 0) < 0);
}

static void received(weft_conn_t conn, weft_conn_t other, char *gpu, char *host,
                     const struct weft_remote *remote)
{
    (void)remote;
    test_fill(host, 64, 4, 0);
    send_later(other, host);
    assert_int_equal(weft_recv(conn, gpu, 64, T), 64);
    assert_true(test_differs(gpu, 64, 4, 0) < 0);
}

static void refused(weft_conn_t conn, weft_conn_t other, char *gpu, char *host,
                    const struct weft_remote *remote)
{
    (void)other, (void)host, (void)remote;
    WEFT_FAILS(WEFT_EUNSUPPORTED, weft_notify(conn, gpu, 8, T));
}

/* Endpoints that were opened before the process has loaded the driver. */
static void before_the_driver(int fd, void *arg)
{
    weft_endpoint_t a = endpoint(), b = endpoint();
    struct test_mem gpu, host;
    weft_conn_t conn, other;
    weft_mem_t mem;
    struct weft_remote remote;
    (void)fd;
    assert_false(loaded());
    duo_join(a, b, &conn, &other);
    test_mem_open(&host, LEN, 0);
    WEFT_OK(weft_mem_reg(b, host.at, LEN, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, host.at, LEN, &remote));
    stream_is_refused(conn);
    test_mem_open_on(&gpu, LEN, 0, 0); /* starts the driver */
    assert_true(loaded());
    (*(use_fn **)arg)(conn, other, (char *)gpu.at, (char *)host.at, &remote);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    test_mem_close(&gpu);
    test_mem_close(&host);
}

/* First: what is loaded stays. */
static void a_program_without_gpus_loads_nothing(void **state)
{
    (void)state;
    move_on_the_host();
    assert_false(loaded());
}

static void a_program_that_begins_to_use_them(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint(), b = endpoint();
    struct test_mem near, far;
    test_mem_open_on(&near, LEN, 0, 0); /* starts the driver */
    test_mem_open_on(&far, LEN, 0, 0);
    assert_true(loaded());
    move(a, b, &near, &far);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    a = endpoint(); /* and one that is opened afterwards */
    b = endpoint();
    move(a, b, &near, &far);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    test_mem_close(&near);
    test_mem_close(&far);
}

static void what_was_not_registered(void **state)
{
    (void)state;
    use_fn *all[] = {written, read_into, sent, received, refused};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        int fd;
        test_join(test_fork(before_the_driver, &all[i], &fd), 0);
        close(fd);
    }
}

/* A backend that was named has to be there. */
static void named(int fd, void *arg)
{
    weft_endpoint_t ep;
    (void)fd, (void)arg;
    weft_config_set("WEFT_CUDA_LIBRARY", "there-is-none.so");
    WEFT_FAILS(WEFT_ENODEV, weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .gpu = "cuda"), &ep));
    CHECK(strstr(weft_last_error(), "cuda was named"), "'%s'", weft_last_error());
    CHECK(strstr(weft_last_error(), "there-is-none.so"), "'%s'", weft_last_error());
    WEFT_FAILS(WEFT_ENODEV,
               weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .gpu = "nonsense"), &ep));
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .gpu = "host"), &ep));
    WEFT_OK(weft_endpoint_close(ep));
}

static void a_backend_that_was_named_and_is_not_there(void **state)
{
    (void)state;
    int fd;
    test_join(test_fork(named, NULL, &fd), 0);
    close(fd);
}

/* It cannot use the driver, but it is not hindered. */
static void child(int fd, void *arg)
{
    (void)fd, (void)arg;
    move_on_the_host();
}

static void a_child_of_a_program_that_uses_them(void **state)
{
    (void)state;
    int fd;
    assert_true(loaded());
    test_join(test_fork(child, NULL, &fd), 0);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_without_gpus_loads_nothing),
        cmocka_unit_test(what_was_not_registered),
        cmocka_unit_test(a_backend_that_was_named_and_is_not_there),
        cmocka_unit_test(a_program_that_begins_to_use_them),
        cmocka_unit_test(a_child_of_a_program_that_uses_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
