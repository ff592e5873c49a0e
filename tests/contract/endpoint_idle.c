/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint that has nothing to do sleeps: its processor time stays under one percent. */
#include "duo.h"

#include <sys/resource.h>

#include "registry.h"

#define T TEST_DEADLINE_MS
#define IDLE_MS 2000

static uint64_t cpu_ns(void)
{
    struct rusage r;
    CHECK(!getrusage(RUSAGE_SELF, &r), "getrusage: %m");
    return (uint64_t)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000000ull +
           (uint64_t)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1000ull;
}

/* One in a hundred; where a nic has no descriptor, and each endpoint polls it every millisecond, what that takes
 * on a slow machine. */
static uint64_t allowed_ns(void)
{
    const struct weft_transport *t = weft__transport_find(test_transport());
    struct weft_device_info list[16];
    struct weft_nic *nic;
    int n = t->ops->probe(list, ARRAY_LEN(list)), usable = 0;
    while (usable < n && usable < (int)ARRAY_LEN(list) - 1 && !list[usable].usable)
        usable++;
    struct weft_nic_opts opts = {.device = list[usable].name};
    WEFT_OK(weft__nic_open(t, test_fault(), &opts, &nic));
    bool blind = nic->transport->ops->wait_fd(nic) == WEFT_EUNSUPPORTED;
    nic->transport->ops->close(nic);
    return IDLE_MS * (blind ? 200000ull : 10000ull);
}

static void expect_sleep(void)
{
    test_sleep_ms(50); /* what was under way ends */
    uint64_t before = cpu_ns();
    test_sleep_ms(IDLE_MS);
    uint64_t used = cpu_ns() - before;
    CHECK(used < allowed_ns(), "an idle process used %" PRIu64 " us in %d ms", used / 1000, IDLE_MS);
}

static void alone(void **state)
{
    (void)state;
    weft_endpoint_t endpoint = duo_endpoint();
    expect_sleep();
    WEFT_OK(weft_endpoint_close(endpoint));
}

/* Both ends, after traffic of all kinds. */
static void with_a_conn_after_traffic(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 1 << 20, 0, 0), far = duo_area(d, B, 1 << 20, 0, 0);
    assert_int_equal(weft_write(d->conn, near.addr, 1 << 20, &far.remote, 0, T), 1 << 20);
    assert_int_equal(weft_add(d->conn, &far.remote, 0, 1, NULL, T), 0);
    WEFT_OK(weft_notify(d->conn, "x", 1, T));
    expect_sleep();
    assert_int_equal(weft_read(d->conn, near.addr, 1 << 20, &far.remote, 0, T), 1 << 20);
}

/* A receive is posted and a thread would wait for it: that is no reason to spin either. */
static void with_an_operation_that_waits(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0);
    weft_op_t op = duo_recv(d, A, 0, near, 0, 64);
    uint64_t before = cpu_ns();
    assert_int_equal(weft_op_wait(op, IDLE_MS, NULL), WEFT_ETIMEOUT);
    uint64_t used = cpu_ns() - before;
    CHECK(used < allowed_ns(), "a waiting process used %" PRIu64 " us in %d ms", used / 1000,
          IDLE_MS);
    WEFT_OK(weft_op_cancel(op));
    assert_int_equal(weft_op_wait(op, T, NULL), WEFT_ECANCELED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        IN_ONE(with_a_conn_after_traffic),
        IN_ONE(with_an_operation_that_waits),
    };
    return DUO_MAIN("endpoint_idle", tests);
}
