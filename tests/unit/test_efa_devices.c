/* SPDX-License-Identifier: Apache-2.0 */
/* efa with several devices, as the double of libfabric has them, on the machine of two_sockets.xml: which are found and
 * taken, and that all of them carry. */
#include "contract/duo.h"

#include <stdlib.h>
#include <string.h>

#include "fake_fabric.h"

#define MIB ((size_t)1 << 20)
#define T TEST_DEADLINE_MS

static int reset(void **state)
{
    (void)state;
    static const char *const settings[] = {"WEFT_NEAR", "WEFT_RAILS", "WEFT_RAILS_FAR", "WEFT_EFA_DEVICES",
                                           "WEFT_CHUNK"};
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        weft_config_set(settings[i], NULL);
    return 0;
}

/* Of the provider's own devices: name, distance and place among the rails. */
static void lists(const char *want)
{
    char got[512] = "";
    struct weft_device_info d;
    for (int j = 0; weft_device_info("efa", j, &d) == 0; j++) {
        size_t used = strlen(got);
        if (!d.usable)
            continue;
        snprintf(got + used, sizeof got - used, "%s%s:%d:%d", used ? " " : "", d.name, d.distance,
                 d.rail);
        CHECK(strstr(d.summary, "efa"), "%s is '%s'", d.name, d.summary);
        assert_int_equal(d.bits_per_s, 100000000000u);
    }
    CHECK(!strcmp(got, want), "%s, not %s", got, want);
}

static void the_nearest_are_taken(void **state)
{
    (void)state;
    struct weft_device_info d;
    weft_config_set("WEFT_NEAR", "0000:02:00.0");
    lists("rdmap3s0-rdm:0:1 rdmap4s0-rdm:1:0 rdmap131s0-rdm:4:0 rdmap132s0-rdm:4:0");
    WEFT_OK(weft_device_info("efa", 0, &d));
    assert_string_equal(d.pci, "0000:03:00.0");
    weft_config_set("WEFT_NEAR", "0000:82:00.0");
    lists("rdmap131s0-rdm:0:1 rdmap132s0-rdm:1:0 rdmap3s0-rdm:4:0 rdmap4s0-rdm:4:0");
    weft_config_set("WEFT_NEAR", "numa:1");
    lists("rdmap131s0-rdm:2:1 rdmap132s0-rdm:2:2 rdmap3s0-rdm:4:0 rdmap4s0-rdm:4:0");
}

static void devices_can_be_chosen(void **state)
{
    (void)state;
    weft_config_set("WEFT_NEAR", "numa:0");
    weft_config_set("WEFT_EFA_DEVICES", "rdmap132s0-rdm,rdmap4s0-rdm");
    lists("rdmap4s0-rdm:2:1 rdmap132s0-rdm:4:0");
    weft_config_set("WEFT_EFA_DEVICES", "^rdmap3s0-rdm,^rdmap4s0-rdm");
    lists("rdmap131s0-rdm:4:1 rdmap132s0-rdm:4:2");
    struct weft_device_info d;
    weft_config_set("WEFT_EFA_DEVICES", "rdmap132s0-rdm,rdmap9s0-rdm");
    WEFT_OK(weft_device_info("efa", 1, &d));
    assert_string_equal(d.name, "rdmap9s0-rdm");
    assert_int_equal(d.usable, 0);
    CHECK(strstr(d.reason, "WEFT_EFA_DEVICES=rdmap132s0-rdm,rdmap9s0-rdm"), "%s", d.reason);
}

static void count_warning(enum weft_log_level level, const char *subsystem, const char *line, void *user)
{
    bool ours = level == WEFT_LOG_WARN && !strcmp(subsystem, "endpoint") && strstr(line, "nothing is called rdmap9s0-rdm");
    *(int *)user += ours;
}

/* Who misspells one of several has fewer rails, and hears of it: once from each endpoint. */
static void a_name_that_nothing_has_is_warned_of(void **state)
{
    (void)state;
    weft_endpoint_t endpoint;
    int warnings = 0;
    weft_config_set("WEFT_EFA_DEVICES", "rdmap132s0-rdm,rdmap9s0-rdm");
    weft_log_set(count_warning, &warnings);
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "efa"), &endpoint));
    weft_log_set(NULL, NULL);
    assert_int_equal(warnings, 1);
    WEFT_OK(weft_endpoint_close(endpoint));
}

static void all_of_them_carry(void **state)
{
    (void)state;
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    weft_mem_t mem;
    struct weft_remote remote;
    struct weft_conn_info info;
    struct weft_conn_stats stats;
    static const char *const names[] = {"rdmap3s0-rdm", "rdmap4s0-rdm", "rdmap131s0-rdm",
                                        "rdmap132s0-rdm"};
    char *from = malloc(8 * MIB), *to = calloc(8, MIB);
    weft_config_set("WEFT_RAILS_FAR", "1");
    weft_config_set("WEFT_CHUNK", "64K");
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "efa"), &a));
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "efa"), &b));
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_conn_info(conn, &info));
    assert_int_equal(info.links, 4);
    WEFT_OK(weft_mem_reg(b, to, 8 * MIB, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, to, 8 * MIB, &remote));
    test_fill(from, 8 * MIB, 1, 0);
    assert_int_equal(weft_write(conn, from, 8 * MIB, &remote, 0, T), 8 * MIB);
    CHECK(test_differs(to, 8 * MIB, 1, 0) < 0, "bytes that were written are wrong");
    test_zero(from, 8 * MIB);
    assert_int_equal(weft_read(conn, from, 8 * MIB, &remote, 0, T), 8 * MIB);
    CHECK(test_differs(from, 8 * MIB, 1, 0) < 0, "bytes that were read are wrong");
    WEFT_OK(weft_conn_stats(conn, &stats));
    assert_int_equal(stats.links_lost, 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        CHECK(fake_fabric_carried(names[i]) > 0, "%s carried nothing", names[i]);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    free(from);
    free(to);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        CASE(the_nearest_are_taken),
        CASE(devices_can_be_chosen),
        CASE(a_name_that_nothing_has_is_warned_of),
        CASE(all_of_them_carry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
