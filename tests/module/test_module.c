/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules of WEFT_MODULE_PATH: a good one works like a built-in transport, one that was built for
 * another interface is refused with both numbers, one whose name is taken is told, and neither keeps the library from working.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "weft.h"
#include "weft/transport.h"

#define TIMEOUT_MS 10000

static char log_lines[4096];

static void keep_line(enum weft_log_level level, const char *subsystem, const char *line,
                      void *user)
{
    (void)level;
    (void)subsystem;
    (void)user;
    strncat(log_lines, line, sizeof log_lines - strlen(log_lines) - 1);
    strncat(log_lines, "\n", sizeof log_lines - strlen(log_lines) - 1);
}

static int find(const char *name, struct weft_transport_info *info)
{
    for (int i = 0; weft_transport_info(i, info) == 0; i++)
        if (!strcmp(info->name, name))
            return 0;
    return -1;
}

static void a_module_is_listed_beside_what_is_built_in(void **state)
{
    (void)state;
    struct weft_transport_info info;
    assert_int_equal(find("twin", &info), 0);
    assert_int_equal(info.from_module, 1);
    assert_true(info.usable);
    assert_int_equal(find("local", &info), 0);
    assert_int_equal(info.from_module, 0);
}

static void another_interface_is_refused_with_both_numbers(void **state)
{
    (void)state;
    struct weft_transport_info info;
    char theirs[16], ours[16];
    assert_int_equal(find("stale", &info), -1);
    snprintf(theirs, sizeof theirs, "%d", WEFT_ABI + 41);
    snprintf(ours, sizeof ours, "%d", WEFT_ABI);
    const char *line = strstr(log_lines, "stale");
    assert_non_null(line);
    assert_non_null(strstr(line, theirs));
    assert_non_null(strstr(line, ours));
    assert_non_null(strstr(log_lines, "gpu backend stale_gpu")); /* what came with it stays */
}

static void a_name_that_is_taken_is_told(void **state)
{
    (void)state;
    struct weft_transport_info info;
    assert_int_equal(find("local", &info), 0);
    assert_int_equal(info.from_module, 0);
    assert_non_null(strstr(log_lines, "transport local: there is one of this name already"));
}

static void a_module_moves_bytes(void **state)
{
    (void)state;
    unsigned char metadata[WEFT_METADATA_MAX];
    char from[] = "by a module", to[sizeof from] = "";
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    weft_mem_t mem;
    struct weft_remote remote;
    struct weft_conn_info info;
    assert_int_equal(
        weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "twin"), &endpoint), 0);
    int len = weft_endpoint_metadata(endpoint, metadata, sizeof metadata);
    assert_true(len > 0);
    assert_int_equal(weft_endpoint_connect(endpoint, metadata, (size_t)len, NULL, &conn), 0);
    assert_int_equal(weft_mem_reg(endpoint, to, sizeof to, NULL, &mem), 0);
    assert_int_equal(weft_mem_advertise(mem, to, sizeof to, &remote), 0);
    assert_int_equal(weft_write(conn, from, sizeof from, &remote, 0, TIMEOUT_MS), sizeof from);
    assert_string_equal(to, from);
    assert_int_equal(weft_conn_info(conn, &info), 0);
    assert_string_equal(info.transport, "twin");
    assert_int_equal(weft_endpoint_close(endpoint), 0);
}

/* The nearest device has place for so many nics; those that stand in for it are more. */
static void devices_that_stand_in_for_a_busy_one_find_room(void **state)
{
    (void)state;
    static const char *const lanes[] = {"1", "4", "5", "8"};
    assert_int_equal(weft_config_set("WEFT_RAILS", "8"), 0);
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
        weft_endpoint_t endpoint;
        assert_int_equal(weft_config_set("WEFT_LANES", lanes[i]), 0);
        assert_int_equal(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "twin"), &endpoint), 0);
        assert_int_equal(weft_endpoint_close(endpoint), 0);
    }
    weft_config_set("WEFT_LANES", NULL);
    weft_config_set("WEFT_RAILS", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_is_listed_beside_what_is_built_in),
        cmocka_unit_test(another_interface_is_refused_with_both_numbers),
        cmocka_unit_test(a_name_that_is_taken_is_told),
        cmocka_unit_test(a_module_moves_bytes),
        cmocka_unit_test(devices_that_stand_in_for_a_busy_one_find_room),
    };
    weft_log_set(keep_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
