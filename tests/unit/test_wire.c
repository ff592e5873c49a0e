/* SPDX-License-Identifier: Apache-2.0 */
/* core/wire.c: byte order, and that no read or write leaves its buffer. */
#include "helpers.h"

#include <string.h>

#include "util.h"

static void numbers_are_little_endian(void **state)
{
    (void)state;
    uint8_t buf[15];
    struct weft__writer w = {buf, buf + sizeof buf, false};
    weft__put_u8(&w, 0x01);
    weft__put_u16(&w, 0x0302);
    weft__put_u32(&w, 0x07060504);
    weft__put_u64(&w, 0x0f0e0d0c0b0a0908u);
    assert_false(w.bad);
    for (int i = 0; i < 15; i++)
        assert_int_equal(buf[i], i + 1);
    struct weft__reader r = {buf, buf + sizeof buf, false};
    assert_int_equal(weft__get_u8(&r), 0x01);
    assert_int_equal(weft__get_u16(&r), 0x0302);
    assert_int_equal(weft__get_u32(&r), 0x07060504);
    assert_true(weft__get_u64(&r) == 0x0f0e0d0c0b0a0908u);
    assert_false(r.bad);
    assert_ptr_equal(r.at, r.end);
}

static void a_full_buffer_latches(void **state)
{
    (void)state;
    uint8_t buf[4] = {0};
    struct weft__writer w = {buf, buf + 3, false};
    weft__put_u32(&w, 0xffffffff);
    assert_true(w.bad);
    weft__put_u8(&w, 0xff); /* would fit, but the record is broken */
    assert_int_equal(buf[0] | buf[1] | buf[2] | buf[3], 0);
}

static void a_short_buffer_latches_and_reads_zero(void **state)
{
    (void)state;
    const uint8_t buf[3] = {0xff, 0xff, 0xff};
    struct weft__reader r = {buf, buf + sizeof buf, false};
    assert_int_equal(weft__get_u32(&r), 0);
    assert_true(r.bad);
    assert_int_equal(weft__get_u8(&r), 0);
    assert_null(weft__get_span(&r, 0));
}

static void texts_are_bounded_and_hold_no_zero(void **state)
{
    (void)state;
    uint8_t buf[16];
    char text[8];
    struct weft__writer w = {buf, buf + sizeof buf, false};
    weft__put_text(&w, "seven77");
    struct weft__reader r = {buf, w.at, false};
    weft__get_text(&r, text, sizeof text);
    assert_string_equal(text, "seven77");
    r = (struct weft__reader){buf, w.at, false};
    weft__get_text(&r, text, sizeof text - 1);
    assert_true(r.bad);
    assert_string_equal(text, "");
    buf[4] = 0;
    r = (struct weft__reader){buf, w.at, false};
    weft__get_text(&r, text, sizeof text);
    assert_true(r.bad);
    memset(buf, 0xff, sizeof buf); /* a length of 65535 */
    r = (struct weft__reader){buf, buf + sizeof buf, false};
    weft__get_text(&r, text, sizeof text);
    assert_true(r.bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(a_full_buffer_latches),
        cmocka_unit_test(a_short_buffer_latches_and_reads_zero),
        cmocka_unit_test(texts_are_bounded_and_hold_no_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
