/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences that are longer than their buffers (core/text.c): cut between words, and seen to be. */
#include "../helpers.h"

#include <errno.h>

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

static void what_was_cut_stays_as_it_is(void **state)
{
    (void)state;
    char text[24];
    size_t len = weft__text_add(text, sizeof text, 0, "%s: %d", "verbs", 7);
    assert_int_equal(len, 8);
    len = weft__text_add(text, sizeof text, len, "; %s", "tcp: no");
    assert_string_equal(text, "verbs: 7; tcp: no");
    len = weft__text_add(text, sizeof text, len, "; %s", "the peer");
    assert_string_equal(text, "verbs: 7; tcp: no; ...");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(len, strlen(text));
        len = weft__text_add(text, sizeof text, len, " %s", "a");
        assert_string_equal(text, "verbs: 7; tcp: no; ...");
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
        cmocka_unit_test(what_was_cut_stays_as_it_is),
        cmocka_unit_test(the_last_error_is_cut_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
