/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts: settings of each type, levels of WEFT_LOG, lists of transports, addresses, the spec of the
 * fault transport. The first byte says which, the rest is the text.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "registry.h"
#include "util.h"
#include "transports/fault/fault.h"

/* What a text of digits, with K to T behind them, stands for. */
static int64_t number_of(const char *text)
{
    char *end;
    int64_t value = strtoll(text, &end, 0);
    for (const char *unit = *end ? "KMGT" : ""; *unit; unit++) {
        value *= 1024;
        if (*unit == *end)
            break;
    }
    return value;
}

/* What was accepted is in force, and read as the number that it says. */
static void fuzz_setting(int i, const char *text)
{
    struct weft_config_item item;
    FUZZ_OK(weft_config_get(i, &item));
    const char *name = item.name;
    bool number = strcmp(item.type, "string") != 0;
    if (weft_config_set(name, text) == 0) {
        FUZZ_CHECK(strcmp(weft_config_str(name), text) == 0);
        FUZZ_OK(weft__config_check());
        if (number)
            FUZZ_CHECK(weft_config_int(name) == number_of(text));
    } else {
        FUZZ_CHECK(*weft_last_error());
    }
    FUZZ_OK(weft_config_set(name, NULL));
}

static void fuzz_log(const char *text)
{
    static const char *const subsystems[] = {"tcp", "", "a:b"};
    if (weft__log_spec_valid(text) != (weft_config_set("WEFT_LOG", text) == 0))
        fuzz_fail("a spec is valid when it can be set", __FILE__, __LINE__);
    for (size_t i = 0; i < WEFT__ARRAY_LEN(subsystems); i++)
        weft_log_on(WEFT_LOG_DEBUG, subsystems[i]);
    FUZZ_OK(weft_config_set("WEFT_LOG", NULL));
}

/* An address that was read is written in a way that is read as the same. */
static void fuzz_address(const char *text)
{
    struct weft__address a, again, list[4];
    char out[128];
    if (weft__address_parse(text, &a))
        return;
    weft__address_format(&a, out, sizeof out);
    FUZZ_OK(weft__address_parse(out, &again));
    FUZZ_CHECK(again.len == a.len && !memcmp(&again.sa, &a.sa, a.len));
    int n = weft__address_list(&a, list, (int)WEFT__ARRAY_LEN(list));
    FUZZ_CHECK(n >= 0 && n <= (int)WEFT__ARRAY_LEN(list));
}

static void fuzz_transports(const char *text)
{
    const struct weft_transport *list[2];
    int n = weft__transport_select(text, list, (int)WEFT__ARRAY_LEN(list));
    FUZZ_CHECK(n <= (int)WEFT__ARRAY_LEN(list));
}

static void fuzz_fault(const char *text)
{
    struct fault_plan plan;
    if (fault_plan_parse(&plan, text, "a"))
        return;
    FUZZ_CHECK(plan.reorder <= FAULT_REORDER_MAX && plan.partial <= 90 && plan.fail_code <= 0);
    fault_plan_next(&plan, 5, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, data + size};
    uint8_t which = fuzz_u8(&in);
    char *text = fuzz_text(&in);
    struct weft_config_item item;
    int settings = 0;
    while (weft_config_get(settings, &item) == 0)
        settings++;
    switch (which % 5) {
    case 0:
        fuzz_setting(which / 5 % settings, text);
        break;
    case 1:
        fuzz_log(text);
        break;
    case 2:
        fuzz_address(text);
        break;
    case 3:
        fuzz_transports(text);
        break;
    default:
        fuzz_fault(text);
    }
    free(text);
    return 0;
}
