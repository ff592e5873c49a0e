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
        cmocka_unit_test(a_program_that_begins_to_use_them),
        cmocka_unit_test(a_child_of_a_program_that_uses_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
