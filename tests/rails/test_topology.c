/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices an endpoint takes first, on a machine that hwloc reads from two_sockets.xml: two sockets,
 * on each a GPU (02:00.0, 82:00.0) with a nic below the same PCIe switch (03, 83) and one more below
 * the same root (04, 84). Processor 0 is at NUMA node 0, as are the devices of that socket; 2 is at
 * node 2 of the same socket, 1 at node 1, which is the other socket.
 */
#include "contract/duo.h"

#include <dlfcn.h>
#include <sched.h>

#include "endpoint.h"
#include "rails.h"
#include "topology.h"

/* The linker turns the library's dlopen into ours. */
static bool hidden;
void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags)
{
    return __real_dlopen(hidden ? "there-is-no-such-library.so" : name, flags);
}

static char log_lines[8192];

static void keep_line(enum weft_log_level level, const char *subsystem, const char *line,
                      void *user)
{
    (void)level, (void)subsystem, (void)user;
    strncat(log_lines, line, sizeof log_lines - strlen(log_lines) - 1);
    strncat(log_lines, "\n", sizeof log_lines - strlen(log_lines) - 1);
}

static cpu_set_t allowed;

static int setup(void **state)
{
    (void)state;
    static const char *const pci[] = {"0000:84:00.0", "0000:83:00.0", "0000:04:00.0",
                                      "0000:03:00.0"};
    rails_reset(4);
    for (int i = 0; i < 4; i++)
        rails.device[i].pci = pci[i];
    log_lines[0] = 0;
    weft_log_set(keep_line, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weft_config_set("WEFT_NEAR", NULL);
    weft_config_set("WEFT_RAILS", NULL);
    weft_config_set("WEFT_RAILS_FAR", NULL);
    weft_log_set(NULL, NULL);
    sched_setaffinity(0, sizeof allowed, &allowed);
    return 0;
}

/* The devices that an endpoint opens. */
static void opens(const char *near, const char *want)
{
    char got[256] = "";
    weft_endpoint_t endpoint;
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "rails", .near = near),
                               &endpoint));
    struct weft__endpoint *ep = weft__handle_get(endpoint, WEFT__ENDPOINT);
    for (int i = 0; i < ep->nlanes; i++) {
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%s", used ? " " : "", ep->lanes[i]->device);
    }
    weft__handle_put(endpoint);
    WEFT_OK(weft_endpoint_close(endpoint));
    CHECK(!strcmp(got, want), "near '%s': %s, not %s", near ? near : "", got, want);
}

/* All devices in their order, with distance and place among the rails. */
static void lists(const char *near, const char *want)
{
    char got[256] = "";
    struct weft_device_info d;
    WEFT_OK(weft_config_set("WEFT_NEAR", near));
    for (int j = 0; weft_device_info("rails", j, &d) == 0; j++) {
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%s:%d:%d", j ? " " : "", d.name, d.distance,
                 d.rail);
        CHECK(d.rail || *d.reason, "%s is not used, and nothing says why", d.name);
    }
    WEFT_OK(weft_config_set("WEFT_NEAR", NULL));
    CHECK(!strcmp(got, want), "near '%s': %s, not %s", near, got, want);
}

static void without_hwloc_the_order_is_the_transports(void **state)
{
    (void)state;
    struct weft_topology_info info;
    hidden = true;
    lists("0000:02:00.0", "r0:-1:1 r1:-1:2 r2:-1:3 r3:-1:4");
    opens("0000:02:00.0", "r0 r1 r2 r3");
    assert_non_null(strstr(log_lines, "distances are unknown: libhwloc"));
    WEFT_OK(weft_topology_info(&info));
    assert_false(info.known);
    assert_non_null(strstr(info.reason, "libhwloc15"));
    hidden = false; /* installed meanwhile */
}

static void near_a_gpu(void **state)
{
    (void)state;
    lists("0000:02:00.0", "r3:0:1 r2:1:0 r0:4:0 r1:4:0");
    lists("82:00.0", "r1:0:1 r0:1:0 r2:4:0 r3:4:0");
    opens("0000:02:00.0", "r3");
    opens("82:00.0", "r1");
    rails.device[3].unusable = true; /* then the next nearest is the nearest */
    lists("0000:02:00.0", "r2:1:1 r0:4:0 r1:4:0 r3:0:0");
    rails.device[3].unusable = false;
    rails.device[3].open = -EIO;
    opens("0000:02:00.0", "r2");
}

static void near_memory(void **state)
{
    (void)state;
    lists("numa:0", "r2:2:1 r3:2:2 r0:4:0 r1:4:0");
    lists("numa:1", "r0:2:1 r1:2:2 r2:4:0 r3:4:0");
    lists("numa:2", "r2:3:1 r3:3:2 r0:4:0 r1:4:0");
    opens("numa:1", "r0 r1");
}

static void farther_ones_if_they_are_asked_for(void **state)
{
    (void)state;
    struct weft_device_info d;
    WEFT_OK(weft_config_set("WEFT_NEAR", "numa:0"));
    WEFT_OK(weft_device_info("rails", 2, &d));
    CHECK(strstr(d.reason, "it is at another socket, and r2 at the same NUMA node"), "'%s'",
          d.reason);
    WEFT_OK(weft_config_set("WEFT_NEAR", NULL));
    WEFT_OK(weft_config_set("WEFT_RAILS_FAR", "1"));
    lists("0000:02:00.0", "r3:0:1 r2:1:2 r0:4:3 r1:4:4");
    opens("0000:02:00.0", "r3 r2 r0 r1");
    WEFT_OK(weft_config_set("WEFT_RAILS", "3"));
    lists("0000:02:00.0", "r3:0:1 r2:1:2 r0:4:3 r1:4:0");
    opens("0000:02:00.0", "r3 r2 r0");
}

static bool bind_to(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

/* One that may run anywhere is near to all. */
static void near_to_where_a_thread_may_run(void **state)
{
    (void)state;
    struct weft_topology_info info;
    if (!bind_to(1) || !bind_to(0)) {
        print_message("skipped: no processors 0 and 1\n");
        skip();
    }
    opens(NULL, "r2 r3");
    WEFT_OK(weft_topology_info(&info));
    assert_true(info.known);
    assert_string_equal(info.near, "where this thread may run: NUMA node 0");
    assert_true(bind_to(1));
    opens("", "r0 r1");
    lists("", "r0:2:1 r1:2:2 r2:4:0 r3:4:0");
    CPU_SET(0, &allowed);
    assert_int_equal(sched_setaffinity(0, sizeof allowed, &allowed), 0);
    opens(NULL, "r0 r1 r2 r3");
}

static void what_is_not_known_is_farthest(void **state)
{
    (void)state;
    rails.device[1].pci = "";
    rails.device[0]
        .pci = "0000:55:00.0"; /* hwloc does not know it, but the transport knows a node */
    rails.device[0].numa = 2;
    rails.device[1].numa = rails.device[2].numa = rails.device[3].numa = -1;
    lists("numa:1", "r0:4:1 r2:4:2 r3:4:3 r1:-1:0");
    lists("numa:0", "r2:2:1 r3:2:2 r0:3:0 r1:-1:0");
    for (int i = 0; i < 4; i++)
        rails.device[i].pci = "";
    rails.device[0].numa = -1;
    lists("numa:0", "r0:-1:1 r1:-1:2 r2:-1:3 r3:-1:4");
    lists("numa:7", "r0:-1:1 r1:-1:2 r2:-1:3 r3:-1:4");
    opens("numa:7", "r0 r1 r2 r3");
    assert_non_null(strstr(log_lines, "hwloc does not know where numa:7 is"));
}

static void what_is_no_place_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "x",          "numa",     "numa:",    "numa:-1",  "numa:1x", "numa: 1", "numa:123456",
        "0000:02:00", "02:00.0 ", "02:00.0x", " 02:00.0", "02:0x.0", "gpu0"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        weft_endpoint_t endpoint;
        WEFT_FAILS(-EINVAL,
                   weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .near = wrong[i]), &endpoint));
        assert_non_null(strstr(weft_last_error(), wrong[i]));
    }
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(without_hwloc_the_order_is_the_transports), /* first: what is open stays so */
        CASE(near_a_gpu),
        CASE(near_memory),
        CASE(farther_ones_if_they_are_asked_for),
        CASE(near_to_where_a_thread_may_run),
        CASE(what_is_not_known_is_farthest),
        CASE(what_is_no_place_is_refused),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: test_topology FILE.xml\n");
        return 2;
    }
    setenv("HWLOC_XMLFILE", argv[1], 1);
    sched_getaffinity(0, sizeof allowed, &allowed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
