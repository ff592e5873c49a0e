/* SPDX-License-Identifier: Apache-2.0 */
/* What examples/weights accepts from a stranger: names, manifests and messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "examples/weights/weights.h"

static int ok(const char *name)
{
    return name_ok(name, strlen(name));
}

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a",  "a/b", "..a",         "a..",      "...", ".hidden",
                                       "-x", "a b", "n\303\244me", "a.part/b", "part"};
    static const char *const bad[] = {"",     "/",        "/a",    "a/",     "a//b", ".",
                                      "..",   "../a",     "a/..",  "a/../b", "./a",  "a/./b",
                                      "a\nb", "a\033[2J", "a\177", "a.part", ".part"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(ok(bad[i]));
    assert_false(name_ok("a\0b", 3));
    char longest[300];
    memset(longest, 'x', sizeof longest);
    assert_true(name_ok(longest, 250));
    assert_false(name_ok(longest, 251));
}

/* Three files, one of two pieces; the caller frees the manifest. */
static void build(struct manifest *m)
{
    static uint8_t sums[2 * SUM];
    static char a[] = "a", b[] = "b/c", c[] = "d";
    const struct source sources[] = {{.name = a, .size = 0},
                                     {.name = b, .size = PIECE + 1, .sums = sums},
                                     {.name = c, .size = PIECE, .sums = sums}};
    assert_int_equal(manifest_build(m, sources, 3), 0);
}

/* Parse a copy that ends where the memory ends, so that a sanitizer sees a step beyond it. */
static int parse(const uint8_t *blob, size_t len)
{
    struct manifest m;
    uint8_t *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, blob, len);
    int rc = manifest_parse(&m, copy, len);
    if (rc)
        free(copy);
    else
        manifest_free(&m);
    return rc;
}

static void round_trip(void **state)
{
    (void)state;
    struct manifest m;
    build(&m);
    assert_int_equal(m.nfiles, 3);
    assert_int_equal(m.bytes, 2 * PIECE + 1);
    assert_string_equal(m.files[1].name, "b/c");
    assert_int_equal(m.files[1].npieces, 2);
    assert_int_equal(piece_len(&m.files[1], 1), 1);
    assert_int_equal(m.files[2].npieces, 1);
    assert_int_equal(parse(m.blob, m.len), 0);
    manifest_free(&m);
}

static void cut_and_flipped(void **state)
{
    (void)state;
    struct manifest m;
    build(&m);
    for (size_t len = 0; len < m.len; len++)
        assert_int_not_equal(parse(m.blob, len), 0);
    for (size_t i = 0; i < m.len; i++)
        for (int bit = 0; bit < 8; bit++) {
            m.blob[i] ^= (uint8_t)(1 << bit);
            parse(m.blob, m.len); /* any answer will do, but no step out of bounds */
            m.blob[i] ^= (uint8_t)(1 << bit);
        }
    manifest_free(&m);
}

static void twice_or_unsorted(void **state)
{
    (void)state;
    static char a[] = "a", b[] = "b";
    const struct source twice[] = {{.name = a}, {.name = a}}, back[] = {{.name = b}, {.name = a}};
    struct manifest m;
    assert_int_not_equal(manifest_build(&m, twice, 2), 0);
    assert_int_not_equal(manifest_build(&m, back, 2), 0);
}

/* One bit of a piece changes its sum, wherever it is; so does one byte less. */
static void sums(void **state)
{
    (void)state;
    static uint8_t data[5000];
    uint8_t right[SUM], other[SUM];
    assert_int_equal(sum_memory(data, sizeof data, right), 0);
    for (size_t i = 0; i < sizeof data; i += 7) {
        data[i] ^= (uint8_t)(1 << i % 8);
        assert_int_equal(sum_memory(data, sizeof data, other), 0);
        assert_memory_not_equal(right, other, SUM);
        data[i] ^= (uint8_t)(1 << i % 8);
    }
    assert_int_equal(sum_memory(data, sizeof data - 1, other), 0);
    assert_memory_not_equal(right, other, SUM);
    assert_int_equal(sum_memory(data, sizeof data, other), 0);
    assert_memory_equal(right, other, SUM);
}

static void messages(void **state)
{
    (void)state;
    struct message m = {.type = MSG_OPEN, .id = 7, .file = 8, .piece = 9, .len = 10}, back;
    uint8_t bytes[MESSAGE_BYTES];
    message_encode(&m, bytes);
    assert_int_equal(message_decode(bytes, sizeof bytes, &back), 0);
    assert_true(back.type == MSG_OPEN && back.id == 7 && back.file == 8 && back.piece == 9 &&
                back.len == 10);
    assert_int_equal(message_decode(bytes, sizeof bytes - 1, &back), WEFT_EPROTO);
    bytes[4]++;
    assert_int_equal(message_decode(bytes, sizeof bytes, &back), WEFT_EVERSION);
    bytes[4]--;
    bytes[6] = 99;
    assert_int_equal(message_decode(bytes, sizeof bytes, &back), WEFT_EPROTO);
    bytes[6] = MSG_OPEN;
    bytes[0]++;
    assert_int_equal(message_decode(bytes, sizeof bytes, &back), WEFT_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(cut_and_flipped),
        cmocka_unit_test(twice_or_unsorted),
        cmocka_unit_test(sums),
        cmocka_unit_test(messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
