/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences that are longer than their buffers (core/text.c): cut between words, and seen to be. */
#include "../helpers.h"

#include <errno.h>
#include <wchar.h>

#include "core/util.h"

/* One sentence in a buffer of so many bytes. */
static void what_does_not_fit_is_left_out_in_words(void **state)
{
    (void)state;
    static const struct {
        size_t size;
        const char *text, *kept;
    } cases[] = {
        {20, "the peer is gone", "the peer is gone"},
        {17, "the peer is gone", "the peer is gone"}, /* to the last byte */
        {16, "the peer is gone", "the peer is ..."},
        {15, "the peer is gone", "the peer ..."},
        {13, "the peer is gone", "the peer ..."},
        {12, "the peer is gone", "the ..."},
        {8, "the peer is gone", "the ..."},
        {9, "/a/long/path", "/a/l ..."}, /* no word that fits */
        {6, "the peer is gone", "t ..."},
        {5, "the peer is gone", "the "}, /* no room to say so */
        {1, "the peer is gone", ""},
        {1, "", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[32];
        memset(text, 'x', sizeof text);
        size_t len = weft__text_add(text, cases[i].size, 0, "%s", cases[i].text);
        assert_string_equal(text, cases[i].kept);
        assert_int_equal(len, strlen(cases[i].kept));
        for (size_t k = cases[i].size; k < sizeof text; k++) /* and nothing behind it */
            assert_int_equal(text[k], 'x');
    }
}

static void sentences_are_appended(void **state)
{
    (void)state;
    char text[24];
    size_t len = weft__text_add(text, sizeof text, 0, "%s: %d", "verbs", 7);
    assert_int_equal(len, 8);
    assert_int_equal(weft__text_add(text, sizeof text, len, "and %lc", (wint_t)0x7fffffff), 8); /* no character */
    assert_string_equal(text, "verbs: 7");
    len = weft__text_add(text, sizeof text, len, "; %s", "tcp: no");
    assert_string_equal(text, "verbs: 7; tcp: no");
    len = weft__text_add(text, sizeof text, len, "; %s", "the peer");
    assert_string_equal(text, "verbs: 7; tcp: no; ...");
    for (int i = 0; i < 2; i++) { /* there is no room for more */
        assert_int_equal(len, strlen(text));
        len = weft__text_add(text, sizeof text, len, " %s", "a");
        assert_string_equal(text, "verbs: 7; tcp: no; ...");
    }
}

/* One that was cut elsewhere hides none that comes after it. */
static void dots_end_nothing(void **state)
{
    (void)state;
    char text[40];
    size_t len = weft__text_add(text, sizeof text, 0, "%s", "tcp: the peer ...");
    len = weft__text_add(text, sizeof text, len, "; %s", "verbs: no");
    assert_string_equal(text, "tcp: the peer ...; verbs: no");
    assert_int_equal(len, strlen(text));
}

/* Of a path that is longer than the buffer its beginning is there, in whole characters. */
static void long_words_are_cut(void **state)
{
    (void)state;
    char text[80], path[300] = "/";
    for (size_t len = 1; len < sizeof path - 3; len += 2)
        memcpy(path + len, "\xc3\xa4", 3);
    for (size_t size = 60; size <= sizeof text; size++) {
        size_t len = weft__text_add(text, size, 0, "cannot open %s: no", path);
        assert_int_equal(len, strlen(text));
        assert_in_range(len, size - 2, size - 1);
        assert_memory_equal(text, "cannot open /\xc3\xa4", 15);
        assert_string_equal(text + len - 6, "\xc3\xa4 ...");
    }
}

/* Also where it is about itself. */
static void the_last_error_is_cut_in_words(void **state)
{
    (void)state;
    char words[600] = "";
    for (size_t len = 0; len < sizeof words - 6; len += 5)
        memcpy(words + len, "word ", 6);
    assert_int_equal(weft_fail(-EINVAL, "%s", words), -EINVAL);
    size_t len = strlen(weft_last_error());
    assert_string_equal(weft_last_error() + len - 8, "word ...");
    weft_fail(-EINVAL, "%s", weft_last_error());
    assert_int_equal(strlen(weft_last_error()), len);
    weft_fail(-EINVAL, "more: %s", weft_last_error());
    assert_memory_equal(weft_last_error(), "more: word", 10);
    assert_string_equal(strrchr(weft_last_error(), 'w'), "word ...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_left_out_in_words),
        cmocka_unit_test(sentences_are_appended),
        cmocka_unit_test(dots_end_nothing),
        cmocka_unit_test(long_words_are_cut),
        cmocka_unit_test(the_last_error_is_cut_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
