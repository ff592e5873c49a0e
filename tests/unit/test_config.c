/* SPDX-License-Identifier: Apache-2.0 */
/* core/config.c: values, sources, ranges, lists; options structs of other versions. core/library.c. */
#include "helpers.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"
#include "weft/transport.h"

static struct weft_config_item item(const char *name)
{
    struct weft_config_item it;
    for (int i = 0; weft_config_get(i, &it) == 0; i++)
        if (!strcmp(it.name, name))
            return it;
    fail_msg("no setting %s", name);
    return it;
}

static void a_value_has_a_source(void **state)
{
    (void)state;
    unsetenv("WEFT_SPIN");
    assert_int_equal(item("WEFT_SPIN").source, WEFT_FROM_DEFAULT);
    setenv("WEFT_SPIN", "7", 1);
    assert_int_equal(item("WEFT_SPIN").source, WEFT_FROM_ENVIRONMENT);
    assert_int_equal(weft_config_int("WEFT_SPIN"), 7);
    assert_int_equal(weft_config_set("WEFT_SPIN", "9"), 0);
    assert_int_equal(item("WEFT_SPIN").source, WEFT_FROM_CALLER);
    assert_int_equal(weft_config_int("WEFT_SPIN"), 9);
    assert_string_equal(item("WEFT_SPIN").value, "9");
    assert_int_equal(weft_config_set("WEFT_SPIN", NULL), 0);
    assert_int_equal(weft_config_int("WEFT_SPIN"), 7);
    unsetenv("WEFT_SPIN");
}

static void sizes_have_units(void **state)
{
    (void)state;
    const struct {
        const char *text;
        int64_t value;
    } good[] = {{"65536", 65536}, {"64K", 65536}, {"1M", 1 << 20}, {"0x10000", 65536}};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(good); i++) {
        assert_int_equal(weft_config_set("WEFT_CHUNK", good[i].text), 0);
        assert_int_equal(weft_config_int("WEFT_CHUNK"), good[i].value);
    }
    const char *bad[] = {"", "x", "64k", "64KB", "-1", "1", "99999999999999999999", "8E", "1 M"};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(bad); i++) {
        assert_int_equal(weft_config_set("WEFT_CHUNK", bad[i]), -EINVAL);
        assert_non_null(strstr(weft_last_error(), "WEFT_CHUNK"));
        assert_int_equal(weft_config_int("WEFT_CHUNK"), 65536);
    }
    weft_config_set("WEFT_CHUNK", NULL);
}

static void powers_of_two_are_nothing_else(void **state)
{
    (void)state;
    const char *good[] = {"256", "512", "0x400", "4096"};
    const char *bad[] = {"", "0", "-256", "128", "255", "257", "1500", "4095", "8192", "1K"};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(good); i++) {
        assert_int_equal(weft_config_set("WEFT_VERBS_MTU", good[i]), 0);
        assert_int_equal(weft_config_int("WEFT_VERBS_MTU"), strtol(good[i], NULL, 0));
    }
    for (size_t i = 0; i < WEFT__ARRAY_LEN(bad); i++)
        assert_int_equal(weft_config_set("WEFT_VERBS_MTU", bad[i]), -EINVAL);
    assert_string_equal(weft_last_error(),
                        "setting WEFT_VERBS_MTU: '1K' is no power of 2 from 256 to 4096");
    weft_config_set("WEFT_VERBS_MTU", NULL);
    static const char *const waves[] = {"31", "33", "48", "63", "128"};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(waves); i++)
        assert_int_equal(weft_config_set("WEFT_HOST_WAVE", waves[i]), -EINVAL);
    assert_int_equal(weft_config_set("WEFT_HOST_WAVE", "64"), 0);
    weft_config_set("WEFT_HOST_WAVE", NULL);
}

static void log_levels_are_checked(void **state)
{
    (void)state;
    const char *good[] = {"", "warn", "debug", "error,tcp:debug", "tcp:info,conn:warn"};
    const char *bad[] = {"debgu", "-1", "tcp:loud", "warn,tcp", "tcp:"};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(good); i++)
        assert_int_equal(weft_config_set("WEFT_LOG", good[i]), 0);
    for (size_t i = 0; i < WEFT__ARRAY_LEN(bad); i++) {
        assert_int_equal(weft_config_set("WEFT_LOG", bad[i]), -EINVAL);
        assert_non_null(strstr(weft_last_error(), "WEFT_LOG"));
    }
    weft_config_set("WEFT_LOG", NULL);
}

static void unknown_settings_are_named(void **state)
{
    (void)state;
    assert_int_equal(weft_config_set("WEFT_NONSENSE", "1"), WEFT_ECONFIG);
    assert_non_null(strstr(weft_last_error(), "WEFT_NONSENSE"));
}

/* What was asked for stays where it is, whatever becomes of the setting and of the environment. */
static void texts_stay(void **state)
{
    (void)state;
    weft_endpoint_t endpoint;
    assert_int_equal(weft_config_set("WEFT_NEAR", "numa:0"), 0);
    const char *first = weft_config_str("WEFT_NEAR");
    assert_int_equal(weft_config_set("WEFT_NEAR", "numa:1"), 0);
    assert_string_equal(first, "numa:0");
    assert_int_equal(weft_config_set("WEFT_NEAR", "numa:0"), 0);
    assert_ptr_equal(weft_config_str("WEFT_NEAR"), first); /* and is not kept twice */
    assert_int_equal(weft_config_set("WEFT_NEAR", NULL), 0);
    setenv("WEFT_SPIN", "11", 1);
    assert_int_equal(weft_config_int("WEFT_SPIN"), 50); /* nobody has opened anything since */
    assert_int_equal(weft_endpoint_open(NULL, &endpoint), 0);
    assert_int_equal(weft_config_int("WEFT_SPIN"), 11);
    const char *spin = weft_config_str("WEFT_SPIN");
    unsetenv("WEFT_SPIN");
    assert_string_equal(spin, "11");
    assert_string_equal(weft_config_str("WEFT_SPIN"), "11");
    assert_int_equal(weft_endpoint_close(endpoint), 0);
    assert_int_equal(item("WEFT_SPIN").source, WEFT_FROM_DEFAULT);
}

static void a_bad_environment_stops_open(void **state)
{
    (void)state;
    weft_endpoint_t endpoint = 0;
    setenv("WEFT_EAGER", "lots", 1);
    assert_int_equal(weft_endpoint_open(NULL, &endpoint), WEFT_ECONFIG);
    assert_non_null(strstr(weft_last_error(), "WEFT_EAGER"));
    assert_true(endpoint == 0);
    unsetenv("WEFT_EAGER");
}

static void every_setting_has_help_and_a_valid_default(void **state)
{
    (void)state;
    struct weft_config_item it;
    int n = 0;
    for (; weft_config_get(n, &it) == 0; n++) {
        assert_true(!strncmp(it.name, "WEFT_", 5));
        assert_true(strlen(it.help) > 10);
        assert_int_equal(weft_config_set(it.name, it.preset), 0);
        assert_int_equal(weft_config_set(it.name, NULL), 0);
    }
    assert_true(n > 10);
    assert_int_equal(weft_config_get(-1, &it), -ENOENT);
    assert_int_equal(weft_config_get(0, NULL), -EINVAL);
}

/* A caller built against a smaller or a larger struct. */
static void options_of_other_versions(void **state)
{
    (void)state;
    struct weft_mem_opts ours = {0};
    struct {
        struct weft_mem_opts known;
        uint64_t later;
    } newer = {{sizeof newer, WEFT_READ}, 0};
    assert_int_equal(weft__opts_copy(&ours, sizeof ours, &newer, "weft_mem_opts"), 0);
    assert_int_equal(ours.access, WEFT_READ);
    newer.later = 1;
    assert_int_equal(weft__opts_copy(&ours, sizeof ours, &newer, "weft_mem_opts"), -EINVAL);
    size_t older = sizeof older;
    ours = (struct weft_mem_opts){0};
    assert_int_equal(weft__opts_copy(&ours, sizeof ours, &older, "weft_mem_opts"), 0);
    assert_int_equal(ours.access, 0);
    older = 0;
    assert_int_equal(weft__opts_copy(&ours, sizeof ours, &older, "weft_mem_opts"), -EINVAL);
}

static void errors_have_names_texts_and_scopes(void **state)
{
    (void)state;
#define CHECK_ENTRY(name, value, scope, text)                                                     \
    assert_string_equal(weft_err_name(name), #name);                                              \
    assert_string_equal(weft_strerror(name), text);                                               \
    assert_int_equal(weft_err_scope(name), WEFT_SCOPE_##scope);
    WEFT_ERR_MAP(CHECK_ENTRY)
#undef CHECK_ENTRY
    assert_string_equal(weft_err_name(-EINVAL), "errno");
    assert_string_equal(weft_strerror(-EINVAL), strerror(EINVAL));
    static const int none[] = {INT_MIN, INT_MIN + 1, -100000}; /* as any number that comes in is handled */
    for (size_t i = 0; i < ARRAY_LEN(none); i++) {
        assert_true(*weft_strerror(none[i]));
        assert_string_equal(weft_err_name(none[i]), "errno");
    }
    assert_int_equal(weft_err_scope(0), WEFT_SCOPE_NONE);
}

/* A device "d0", which is also "d0:1". */
static void lists_choose_devices(void **state)
{
    (void)state;
    const char *names[] = {"d0", "d0:1"};
    const struct {
        const char *list;
        int chosen;
        const char *unmet[3];
    } lists[] = {{"", 1, {NULL}},
                 {"d0", 1, {NULL}},
                 {"d0:1", 1, {NULL}},
                 {"d1", 0, {"d1"}},
                 {"d", 0, {"d"}},
                 {"d00", 0, {"d00"}},
                 {"d1,d0", 1, {"d1"}},
                 {"^d0", 0, {NULL}},
                 {"^d0:1", 0, {NULL}},
                 {"^d1", 1, {"^d1"}},
                 {",", 1, {NULL}},
                 {"d1,,d0,", 1, {"d1"}},
                 {"^", 1, {"^"}},
                 {"d0,^d0:1", 0, {NULL}},
                 {"^d0,d0", 0, {NULL}},
                 {"^d1,d2", 0, {"^d1", "d2"}}};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(lists); i++) {
        assert_int_equal(weft_config_set("WEFT_VERBS_DEVICES", lists[i].list), 0);
        uint64_t met = 0;
        struct weft_device_info unmet[3];
        int n = 0;
        assert_int_equal(weft_config_selects("WEFT_VERBS_DEVICES", names, 2, &met), lists[i].chosen);
        while (lists[i].unmet[n])
            n++;
        assert_int_equal(weft_config_unmet("WEFT_VERBS_DEVICES", met, "a hint", unmet, 3, 0), n);
        for (int k = 0; k < n; k++) {
            assert_string_equal(unmet[k].name, lists[i].unmet[k]);
            assert_int_equal(unmet[k].usable, 0);
            assert_int_equal(unmet[k].missing, 1);
            assert_non_null(strstr(unmet[k].reason, "a hint"));
        }
        assert_int_equal(weft_config_unmet("WEFT_VERBS_DEVICES", met, "", unmet, 0, 5), 5 + n);
    }
    weft_config_set("WEFT_VERBS_DEVICES", NULL);
}

/* --- a vendor's library ------------------------------------------------------------------- */

static int fills;
static void *found;

static int fill(void *opened);
static struct weft_library library = WEFT_LIBRARY(.whose = "test", .setting = "WEFT_EFA_LIBRARY",
                                                  .package = "package p", .fill = fill);

static int fill(void *opened)
{
    fills++;
    return weft_library_find(&library, opened, "cos", &found);
}

static void a_library_is_opened_once(void **state)
{
    (void)state;
    const char *missing = "/nowhere/lib.so", *wrong = "libdl.so.2", *right = "libm.so.6";
    weft_config_set("WEFT_EFA_LIBRARY", missing);
    assert_int_equal(weft_library_open(&library), WEFT_ENODEV);
    assert_non_null(strstr(weft_last_error(), "package p"));
    weft_config_set("WEFT_EFA_LIBRARY", wrong); /* it opens, but lacks the function */
    assert_int_equal(weft_library_open(&library), WEFT_ENODEV);
    assert_non_null(strstr(weft_last_error(), "lacks cos"));
    weft_config_set("WEFT_EFA_LIBRARY", right);
    assert_int_equal(weft_library_open(&library), 0);
    assert_int_equal(weft_library_open(&library), 0);
    assert_int_equal(fills, 2);
    assert_non_null(found);
    weft_config_set("WEFT_EFA_LIBRARY", wrong);
    assert_int_equal(weft_library_open(&library), WEFT_ENODEV);
    assert_non_null(strstr(weft_last_error(), "in use already"));
    weft_config_set("WEFT_EFA_LIBRARY", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_choose_devices),
        cmocka_unit_test(a_library_is_opened_once),
        cmocka_unit_test(a_value_has_a_source),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(powers_of_two_are_nothing_else),
        cmocka_unit_test(log_levels_are_checked),
        cmocka_unit_test(unknown_settings_are_named),
        cmocka_unit_test(texts_stay),
        cmocka_unit_test(a_bad_environment_stops_open),
        cmocka_unit_test(every_setting_has_help_and_a_valid_default),
        cmocka_unit_test(options_of_other_versions),
        cmocka_unit_test(errors_have_names_texts_and_scopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
