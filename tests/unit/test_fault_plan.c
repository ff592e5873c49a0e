/* SPDX-License-Identifier: Apache-2.0 */
/* The language of WEFT_FAULT, and that decisions repeat. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transports/fault/fault.h"

static void every_item(void **state)
{
    (void)state;
    struct fault_plan plan;
    assert_int_equal(fault_plan_parse(&plan, "seed=42,reorder=8,delay=100,partial=30,fail=5:-7,"
                                             "refuse=6:-8,cut=10:2,cutnic=3,"
                                             "hide=add64+write_imm,depth=4,maxmsg=4096,"
                                             "connectfail=3,nofd", "a"),
                     0);
    assert_int_equal(plan.random, 42);
    assert_int_equal(plan.reorder, 8);
    assert_int_equal(plan.delay_us, 100);
    assert_int_equal(plan.partial, 30);
    assert_int_equal(plan.fail, 5);
    assert_int_equal(plan.fail_code, -7);
    assert_int_equal(plan.refuse, 6);
    assert_int_equal(plan.refuse_code, -8);
    assert_int_equal(plan.cut, 10);
    assert_int_equal(plan.cut_link, 2);
    assert_int_equal(plan.cut_nic, 3);
    assert_int_equal(plan.hide, WEFT_OP_BIT(WEFT_OP_ADD64) | WEFT_OP_BIT(WEFT_OP_WRITE_IMM));
    assert_int_equal(plan.depth, 4);
    assert_int_equal(plan.max_msg, 4096);
    assert_int_equal(plan.connectfail, 3);
    assert_true(plan.nofd);
}

static void short_forms(void **state)
{
    (void)state;
    struct fault_plan plan;
    assert_int_equal(fault_plan_parse(&plan, "", "a"), 0);
    assert_int_equal(plan.reorder | plan.delay_us | plan.partial | plan.hide, 0);
    assert_int_equal(fault_plan_parse(&plan, "fail=1,cut=2,refuse=3", "a"), 0);
    assert_int_equal(plan.fail_code, -EIO);
    assert_int_equal(plan.refuse_code, -EINVAL);
    assert_int_equal(plan.cut_link, 0);
}

static void items_for_one_device(void **state)
{
    (void)state;
    static const char spec[] = "seed=9,on=b,cut=4,on=a,cut=5,depth=6,on=b,depth=7";
    struct fault_plan plan;
    assert_int_equal(fault_plan_parse(&plan, spec, "a"), 0);
    assert_int_equal(plan.random, 9);
    assert_int_equal(plan.cut, 5);
    assert_int_equal(plan.depth, 6);
    assert_int_equal(fault_plan_parse(&plan, spec, "b"), 0);
    assert_int_equal(plan.random, 9);
    assert_int_equal(plan.cut, 4);
    assert_int_equal(plan.depth, 7);
    assert_int_equal(fault_plan_parse(&plan, spec, "c"), 0);
    assert_int_equal(plan.random, 9);
    assert_int_equal(plan.cut | plan.depth, 0);
    assert_int_equal(fault_plan_parse(&plan, "on=b,cut=0", "a"), WEFT_ECONFIG);
}

/* Each is refused with a sentence that names it. */
static void wrong_items(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "seed=",
        "seed=x",
        "seed=-1",
        "seed=1x",
        "reorder",
        "reorder=257",
        "reorder=-1",
        "delay=1e3",
        "partial=91",
        "partial=5%",
        "fail=0",
        "fail=1:",
        "fail=1:5",
        "fail=1:-5x",
        "refuse=0",
        "refuse=1:5",
        "cut=0",
        "cut=1:0",
        "cut=1:2:3",
        "cutnic=0",
        "hide=",
        "hide=recv",
        "hide=write+",
        "hide=+write",
        "hide=Write",
        "hide=writes",
        "hide=link_down",
        "depth=0",
        "maxmsg=0",
        "connectfail=-1",
        "nofd=1",
        "nofd ",
        "order=1",
        "on=",
        " seed=1",
        "seed=99999999999999999999",
    };
    struct fault_plan plan;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char spec[64];
        assert_int_equal(fault_plan_parse(&plan, wrong[i], "a"), WEFT_ECONFIG);
        assert_non_null(strstr(weft_last_error(), wrong[i]));
        strcpy(spec, "seed=1,");
        assert_int_equal(fault_plan_parse(&plan, strcat(spec, wrong[i]), "a"), WEFT_ECONFIG);
        assert_non_null(strstr(weft_last_error(), wrong[i]));
    }
    assert_int_equal(fault_plan_parse(&plan, ",", "a"), WEFT_ECONFIG);
    assert_int_equal(fault_plan_parse(&plan, "seed=1,", "a"), WEFT_ECONFIG);
    char spec[4096];
    memset(spec, 'x', sizeof spec);
    spec[sizeof spec - 1] = 0;
    assert_int_equal(fault_plan_parse(&plan, spec, "a"), WEFT_ECONFIG);
}

static void decisions_repeat(void **state)
{
    (void)state;
    struct fault_plan a, b, other;
    fault_plan_parse(&a, "seed=7,partial=50,reorder=4", "a");
    fault_plan_parse(&b, "seed=7,partial=50,reorder=4", "a");
    fault_plan_parse(&other, "seed=8,partial=50,reorder=4", "a");
    int differ = 0;
    for (int i = 0; i < 1000; i++) {
        uint32_t pick = fault_plan_pick(&a, 10);
        assert_true(pick < 10);
        assert_int_equal(pick, fault_plan_pick(&b, 10));
        differ += pick != fault_plan_pick(&other, 10);
    }
    assert_true(differ > 500);
}

/* What was overtaken by a window's worth goes next. */
static void window_is_kept(void **state)
{
    (void)state;
    struct fault_plan plan;
    fault_plan_parse(&plan, "reorder=4", "a");
    for (int i = 0; i < 100; i++) {
        assert_int_equal(fault_plan_next(&plan, 4, 4), 0);
        assert_true(fault_plan_next(&plan, 4, 3) < 4);
        assert_int_equal(fault_plan_next(&plan, 1, 0), 0);
        assert_int_equal(fault_plan_next(&plan, 0, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item),     cmocka_unit_test(short_forms),
        cmocka_unit_test(items_for_one_device), cmocka_unit_test(wrong_items),    cmocka_unit_test(decisions_repeat),
        cmocka_unit_test(window_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
