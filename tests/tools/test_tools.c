/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the tools that decide what they say: sizes, percentiles, contents, messages. */
#include "helpers.h"

#include <sys/mman.h>

#include "common.h"
#include "pages.h"
#include "perf_args.h"
#include "perf_mem.h"
#include "perf_msg.h"
#include "perf_stats.h"

static void sizes_are_read(void **state)
{
    (void)state;
    uint64_t list[8];
    assert_int_equal(size_list_parse("8,4K,1M..4M", list, 8), 5);
    assert_int_equal(list[0], 8);
    assert_int_equal(list[1], 4096);
    assert_int_equal(list[2], 1 << 20);
    assert_int_equal(list[4], 4 << 20);
    assert_int_equal(size_list_parse("3..20", list, 8), 3); /* 3 6 12 */
    assert_int_equal(list[2], 12);
    assert_int_equal(size_list_parse("0", list, 8), 1);
    assert_int_equal(list[0], 0);
    static const char *const wrong[] = {
        "",   ",",    "8,",    "K",         "1KB",
        "-1", "8..",  "0..8",  "9..8",      "1..1..1",
        "1 ", "0x10", "8..4T", "16777217T", "1..18446744073709551615"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        CHECK(size_list_parse(wrong[i], list, 8) == -1, "'%s' was taken", wrong[i]);
}

static void sizes_are_written(void **state)
{
    (void)state;
    char text[SIZE_TEXT_MAX];
    assert_string_equal(size_format(0, text), "0");
    assert_string_equal(size_format(1023, text), "1023");
    assert_string_equal(size_format(4096, text), "4K");
    assert_string_equal(size_format(3 << 20, text), "3M");
    assert_string_equal(size_format((uint64_t)5 << 40, text), "5T");
    assert_string_equal(size_format((uint64_t)1 << 60, text), "1048576T");
}

static void addresses_get_a_port(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"node1", "node1:11177"},         {"node1:7", "node1:7"}, {"::1", "[::1]:11177"},
        {"[::1]", "[::1]:11177"},         {"[::1]:7", "[::1]:7"}, {":7", ":7"},
        {"127.0.0.1", "127.0.0.1:11177"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char test[] = "write", option[] = "--connect", address[32];
        char *argv[] = {test, test, option, address, NULL};
        struct perf_args args;
        snprintf(address, sizeof address, "%s", cases[i][0]);
        optind = 0; /* getopt begins anew */
        assert_int_equal(perf_args_parse(4, argv, &args), 0);
        assert_string_equal(args.address, cases[i][1]);
    }
}

/* Within the 1/128 that the manual page promises. */
static void near(double got, double want)
{
    CHECK(got >= want * (1 - 1.0 / 128) && got <= want * (1 + 1.0 / 128), "%g, not %g", got, want);
}

static void percentiles_are_right(void **state)
{
    (void)state;
    struct perf_hist *hist = calloc(2, sizeof *hist);
    assert_true(perf_hist_percentile(hist, 50) == 0);
    for (uint64_t i = 1; i <= 1000; i++)
        perf_hist_add(hist, i * 1000);
    near(perf_hist_percentile(hist, 50), 500e3);
    near(perf_hist_percentile(hist, 99), 990e3);
    near(perf_hist_percentile(hist, 100), 1000e3);
    for (uint64_t i = 0; i < 2000; i++)
        perf_hist_add(hist + 1, 77);
    perf_hist_merge(hist, hist + 1);
    assert_true(perf_hist_percentile(hist, 50) == 77);
    perf_hist_clear(hist);
    perf_hist_add(hist, UINT64_MAX); /* longer than any deadline: kept, in the last bucket */
    assert_true(perf_hist_percentile(hist, 50) > 1e12);
    free(hist);
}

static void layouts_stay_in_the_window(void **state)
{
    (void)state;
    struct perf_layout l;
    assert_int_equal(perf_layout_make(64 << 20, 1, 64, false, &l), 0);
    assert_int_equal(l.slots, 4);
    assert_int_equal(perf_layout_size(&l), PERF_WINDOW);
    assert_int_equal(perf_layout_make((uint64_t)1 << 30, 1, 64, false, &l), 0);
    assert_int_equal(l.slots, 1);
    assert_int_equal(perf_layout_make(8, 128, 64, false, &l), 0);
    assert_int_equal(l.slots, 64);
    assert_true(l.stride >= 8 + PERF_ALIGN); /* pieces of a vector do not touch */
    assert_int_equal(perf_layout_make(0, 1, 64, false, &l), 0);
    assert_true(perf_layout_size(&l) > 0);
    assert_int_equal(perf_layout_make(UINT64_MAX, 1, 1, false, &l), -1);
    assert_int_equal(perf_layout_make((uint64_t)1 << 50, 65536, 1, false, &l), -1);
}

/* All slots are one place, which is all that is filled, looked at and needed. */
static void slots_may_share_a_place(void **state)
{
    (void)state;
    struct perf_layout l;
    assert_int_equal(perf_layout_make(64 << 20, 2, 64, true, &l), 0);
    assert_int_equal(l.slots, 64); /* their memory is no limit */
    assert_int_equal(perf_layout_size(&l), 2 * l.stride);
    assert_int_equal(perf_layout_make(5000, 3, 7, true, &l), 0);
    for (uint32_t slot = 0; slot < 7; slot++)
        assert_int_equal(perf_layout_offset(&l, slot, 2), 2 * l.stride);
    struct perf_region r = {.addr = calloc(1, perf_layout_size(&l)), .len = perf_layout_size(&l)};
    assert_int_equal(perf_region_fill(&r, &l, 5, PERF_DATA), 0);
    assert_int_equal(perf_region_check(&r, &l, 5, 7), 1);
    r.addr[perf_layout_offset(&l, 6, 2) + l.bytes - 1] ^= 1;
    assert_int_equal(perf_region_check(&r, &l, 5, 7), 0);
    free(r.addr);
}

/* Whichever byte is wrong, the check says so. */
static void wrong_bytes_are_seen(void **state)
{
    (void)state;
    struct perf_layout l;
    perf_layout_make(40000, 3, 2, false, &l);
    struct perf_region r = {.addr = calloc(1, perf_layout_size(&l)), .len = perf_layout_size(&l)};
    assert_int_equal(perf_region_fill(&r, &l, 5, PERF_DATA), 0);
    assert_int_equal(perf_region_check(&r, &l, 5, 2), 1);
    assert_int_equal(perf_region_check(&r, &l, 6, 2), 0); /* contents of another run */
    for (uint32_t slot = 0; slot < 2; slot++) {
        for (uint64_t at = 0; at < l.bytes; at += 4999) {
            uint8_t *byte = r.addr + perf_layout_offset(&l, slot, 2) + at;
            *byte ^= 1;
            assert_int_equal(perf_region_check(&r, &l, 5, 2), 0);
            *byte ^= 1;
        }
    }
    uint8_t *last = r.addr + perf_layout_offset(&l, 1, 2) + l.bytes - 1;
    *last ^= 128;
    assert_int_equal(perf_region_check(&r, &l, 5, 2), 0);
    assert_int_equal(perf_region_check(&r, &l, 5, 1), 1); /* the second slot was not used */
    free(r.addr);
}

/* A transfer that left even one byte of what was there before is seen. */
static void blank_differs_everywhere(void **state)
{
    (void)state;
    struct perf_layout l;
    perf_layout_make(20000, 1, 1, false, &l);
    struct perf_region data = {.addr = malloc(l.stride)}, blank = {.addr = malloc(l.stride)};
    perf_region_fill(&data, &l, 9, PERF_DATA);
    perf_region_fill(&blank, &l, 9, PERF_BLANK);
    for (uint64_t i = 0; i < l.bytes; i++)
        assert_int_not_equal(data.addr[i], blank.addr[i]);
    assert_true(perf_bytes_check(data.addr, l.bytes, 9, 0));
    assert_false(perf_bytes_check(data.addr, l.bytes, 9, 1)); /* of another slot */
    free(data.addr);
    free(blank.addr);
}

/* The VmFlags that smaps has for the mapping at addr. */
static void flags_of(const void *addr, char *flags, size_t size)
{
    FILE *smaps = fopen("/proc/self/smaps", "re");
    assert_non_null(smaps);
    char line[512];
    unsigned long long from, to, at = (uintptr_t)addr;
    bool here = false;
    flags[0] = 0;
    while (!flags[0] && fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            here = at >= from && at < to;
        else if (here && !strncmp(line, "VmFlags:", 8))
            snprintf(flags, size, "%s", line);
    }
    fclose(smaps);
}

static void pages_are_there_and_of_the_kind_asked_for(void **state)
{
    (void)state;
    const uint64_t len = (8u << 20) + 100;
    for (int huge = 0; huge < 2; huge++) {
        uint8_t *addr = pages_new(len, huge);
        assert_non_null(addr);
        unsigned char there[2049];
        assert_int_equal(mincore(addr, len, there), 0);
        for (int i = 0; i < 2049; i++)
            assert_true(there[i] & 1);
        for (uint64_t i = 0; i < len; i++)
            assert_int_equal(addr[i], 0);
        char flags[512];
        flags_of(addr, flags, sizeof flags);
        if (access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0)
            assert_non_null(strstr(flags, huge ? " hg" : " nh"));
        assert_int_equal(munmap(addr, len), 0);
    }
    assert_null(pages_new(UINT64_MAX / 2, true));
}

static void messages_of_strangers_are_refused(void **state)
{
    (void)state;
    struct perf_msg out = {.type = PERF_MSG_RUN, .bytes = 1, .iters = 2, .seed = 3, .conns = 4,
                           .behind = 6, .blob_len = 5},
                    in;
    uint8_t wire[PERF_MSG_MAX];
    size_t len = perf_msg_encode(&out, wire);
    assert_int_equal(perf_msg_decode(wire, len, &in), 0);
    assert_memory_equal(&in, &out, sizeof in);
    for (size_t i = 0; i < PERF_MSG_WIRE; i++)
        assert_int_equal(perf_msg_decode(wire, i, &in), -1); /* too short */
    for (size_t i = 0; i < 8; i++) {
        wire[i] ^= 0x80; /* magic, type, version */
        assert_int_equal(perf_msg_decode(wire, len, &in), -1);
        wire[i] ^= 0x80;
    }
    out.type = 0;
    assert_int_equal(perf_msg_decode(wire, perf_msg_encode(&out, wire), &in), -1);
    out.type = PERF_MSG_TYPES;
    assert_int_equal(perf_msg_decode(wire, perf_msg_encode(&out, wire), &in), -1);
    out.type = PERF_MSG_RUN;
    out.flags = ~0u;
    assert_int_equal(perf_msg_decode(wire, perf_msg_encode(&out, wire), &in), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(sizes_are_written),
        cmocka_unit_test(addresses_get_a_port),
        cmocka_unit_test(percentiles_are_right),
        cmocka_unit_test(layouts_stay_in_the_window),
        cmocka_unit_test(slots_may_share_a_place),
        cmocka_unit_test(wrong_bytes_are_seen),
        cmocka_unit_test(blank_differs_everywhere),
        cmocka_unit_test(pages_are_there_and_of_the_kind_asked_for),
        cmocka_unit_test(messages_of_strangers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
