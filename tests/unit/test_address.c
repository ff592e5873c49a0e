/* SPDX-License-Identifier: Apache-2.0 */
/* core/address.c: HOST:PORT in all its forms. */
#include "helpers.h"

#include <errno.h>
#include <string.h>

#include "util.h"

static void forms_that_are_read(void **state)
{
    (void)state;
    const struct {
        const char *text, *shown;
    } good[] = {{"127.0.0.1:7000", "127.0.0.1:7000"},
                {"127.0.0.1", "127.0.0.1:0"},
                {"localhost:7000", "127.0.0.1:7000"}, /* also where it has an IPv6 address */
                {"[::1]:7000", "[::1]:7000"},
                {"[::1]", "[::1]:0"},
                {"::1", "[::1]:0"},
                {"127.0.0.1:", "127.0.0.1:0"}};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(good); i++) {
        struct weft__address a;
        char shown[96];
        assert_int_equal(weft__address_parse(good[i].text, &a), 0);
        weft__address_format(&a, shown, sizeof shown);
        assert_string_equal(shown, good[i].shown);
        assert_false(weft__address_is_any(&a));
    }
}

static void no_host_is_any_address(void **state)
{
    (void)state;
    struct weft__address a;
    assert_int_equal(weft__address_parse(":7000", &a), 0);
    assert_true(weft__address_is_any(&a));
    assert_int_equal(weft__address_port(&a), 7000);
    struct weft__address list[8];
    int n = weft__address_list(&a, list, 8);
    assert_true(n >= 1); /* the loopback at least */
    for (int i = 0; i < n; i++) {
        assert_int_equal(weft__address_port(&list[i]), 7000);
        assert_false(weft__address_is_any(&list[i]));
    }
}

/* Of a peer: whole, or nothing is looked up, which may take long and speaks of something else. */
static void a_peer_has_a_host_and_a_port(void **state)
{
    (void)state;
    const char *bad[] = {"no.such.host.invalid", "127.0.0.1", "127.0.0.1:0", "::1", "[::1]", ":7000", "0.0.0.0:7000",
                         "[::]:7000"};
    const char *good[] = {"127.0.0.1:7000", "localhost:7000", "[::1]:7000"};
    struct weft__address a;
    for (size_t i = 0; i < WEFT__ARRAY_LEN(bad); i++) {
        assert_int_equal(weft__address_parse_peer(bad[i], &a), -EINVAL);
        assert_non_null(strstr(weft_last_error(), "does not name a host and a port"));
    }
    for (size_t i = 0; i < WEFT__ARRAY_LEN(good); i++)
        assert_int_equal(weft__address_parse_peer(good[i], &a), 0);
}

static void forms_that_are_refused(void **state)
{
    (void)state;
    const char *bad[] = {"127.0.0.1:70000", "127.0.0.1:x",           "127.0.0.1:-1", "[::1",
                         "[::1]x",          "no.such.host.invalid:1", "127.0.0.1:+5", "", ":", "[]", "[]:"};
    char longest[400];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    struct weft__address a;
    for (size_t i = 0; i < WEFT__ARRAY_LEN(bad); i++)
        assert_int_equal(weft__address_parse(bad[i], &a), -EINVAL);
    assert_int_equal(weft__address_parse(longest, &a), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_that_are_read),
        cmocka_unit_test(no_host_is_any_address),
        cmocka_unit_test(a_peer_has_a_host_and_a_port),
        cmocka_unit_test(forms_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
