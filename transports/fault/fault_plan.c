/* SPDX-License-Identifier: Apache-2.0 */
/* What the spec says, and the random decisions: the same for the same seed and the same calls. */
#include "fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_MAX 512
#define ON "on=" /* and the device for which the items that follow are */
#define DELAY_MAX_US 10000000
/* A post that is refused more often than not would make tests slow, always: endless. */
#define PARTIAL_MAX 90

/* --- the language --------------------------------------------------------------------------- */

/* A number of this range at *text; moves *text past it. */
static bool take_number(const char **text, int64_t least, int64_t most, int64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoll(*text, &end, 10);
    if (end == *text || errno || *value < least || *value > most)
        return false;
    *text = end;
    return true;
}

static bool take_only(const char *text, int64_t least, int64_t most, int64_t *value)
{
    return take_number(&text, least, most, value) && !*text;
}

static bool take_u32(const char *text, int64_t least, int64_t most, uint32_t *out)
{
    int64_t value;
    bool ok = take_only(text, least, most, &value);
    if (ok)
        *out = (uint32_t)value;
    return ok;
}

static bool parse_seed(struct fault_plan *plan, const char *text)
{
    int64_t value;
    bool ok = take_only(text, 0, INT64_MAX, &value);
    plan->random = (uint64_t)value;
    return ok;
}

static bool parse_reorder(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 0, FAULT_REORDER_MAX, &plan->reorder);
}

static bool parse_delay(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 0, DELAY_MAX_US, &plan->delay_us);
}

static bool parse_partial(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 0, PARTIAL_MAX, &plan->partial);
}

/* N or N:SECOND */
static bool parse_two(const char *text, uint64_t *first, int64_t least, int64_t most,
                      int64_t *second)
{
    int64_t value;
    if (!take_number(&text, 1, INT64_MAX, &value))
        return false;
    *first = (uint64_t)value;
    return !*text || (*text == ':' && take_only(text + 1, least, most, second));
}

/* N or N:CODE */
static bool parse_code(const char *text, uint64_t *number, int *code)
{
    int64_t value = *code;
    bool ok = parse_two(text, number, INT32_MIN, -1, &value);
    *code = (int)value;
    return ok;
}

static bool parse_fail(struct fault_plan *plan, const char *text)
{
    plan->fail_code = -EIO;
    return parse_code(text, &plan->fail, &plan->fail_code);
}

static bool parse_refuse(struct fault_plan *plan, const char *text)
{
    plan->refuse_code = -EINVAL;
    return parse_code(text, &plan->refuse, &plan->refuse_code);
}

static bool parse_cut(struct fault_plan *plan, const char *text)
{
    int64_t number = 0;
    bool ok = parse_two(text, &plan->cut, 1, INT32_MAX, &number);
    plan->cut_link = (uint32_t)number;
    return ok;
}

static bool parse_cutnic(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 1, INT32_MAX, &plan->cut_nic);
}

static bool hide_one(struct fault_plan *plan, const char *name, size_t len)
{
    for (int op = 0; op < WEFT_OP_LINK_DOWN; op++) {
        const char *known = weft_op_name((enum weft_op)op);
        if (op == WEFT_OP_RECV || strlen(known) != len || memcmp(known, name, len))
            continue;
        plan->hide |= WEFT_OP_BIT(op);
        return true;
    }
    return false;
}

static bool parse_hide(struct fault_plan *plan, const char *text)
{
    for (;;) {
        size_t len = strcspn(text, "+");
        if (!hide_one(plan, text, len))
            return false;
        if (!text[len])
            return true;
        text += len + 1;
    }
}

static bool parse_depth(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 1, INT32_MAX, &plan->depth);
}

static bool parse_maxmsg(struct fault_plan *plan, const char *text)
{
    int64_t value = 0;
    bool ok = take_only(text, 1, INT64_MAX, &value);
    plan->max_msg = (uint64_t)value;
    return ok;
}

static bool parse_late(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 0, INT32_MAX, &plan->late);
}

static bool parse_connectfail(struct fault_plan *plan, const char *text)
{
    return take_u32(text, 0, INT32_MAX, &plan->connectfail);
}

static bool parse_nofd(struct fault_plan *plan, const char *text)
{
    plan->nofd = true;
    return !*text;
}

static const struct item {
    const char *name; /* with the "=" of those that have a value */
    bool (*parse)(struct fault_plan *plan, const char *text);
    const char *grammar;
} items[] = {
    {"seed=", parse_seed, "seed=N"},
    {"reorder=", parse_reorder, "reorder=K, K up to 256"},
    {"delay=", parse_delay, "delay=US, up to 10000000 microseconds"},
    {"partial=", parse_partial, "partial=P, P up to 90 percent"},
    {"fail=", parse_fail, "fail=N or fail=N:CODE, CODE a negative number"},
    {"refuse=", parse_refuse, "refuse=N or refuse=N:CODE, CODE a negative number"},
    {"cut=", parse_cut, "cut=N or cut=N:K, from 1"},
    {"cutnic=", parse_cutnic, "cutnic=L, from 1"},
    {"hide=", parse_hide,
     "hide=OP or hide=OP+OP, OP one of send write write_imm read add64 fence"},
    {"depth=", parse_depth, "depth=N, from 1"},
    {"maxmsg=", parse_maxmsg, "maxmsg=BYTES, from 1"},
    {"connectfail=", parse_connectfail, "connectfail=N"},
    {"late=", parse_late, "late=N"},
    {"nofd", parse_nofd, "nofd"},
};
#define NITEMS (sizeof items / sizeof *items)

static int parse_item(struct fault_plan *plan, const char *text)
{
    for (size_t i = 0; i < NITEMS; i++) {
        size_t len = strlen(items[i].name);
        if (strncmp(text, items[i].name, len))
            continue;
        if (items[i].parse(plan, text + len))
            return 0;
        return weft_fail(WEFT_ECONFIG, "fault: '%s' is wrong: %s", text, items[i].grammar);
    }
    return weft_fail(WEFT_ECONFIG, "fault: '%s' is unknown (transports/fault/README.md)", text);
}

int fault_plan_parse(struct fault_plan *plan, const char *spec, const char *device)
{
    char text[SPEC_MAX];
    struct fault_plan other = {0}, *to = plan; /* other: what is meant for another device */
    *plan = other;
    if (strlen(spec) >= sizeof text)
        return weft_fail(WEFT_ECONFIG, "fault: a spec of more than %d characters", SPEC_MAX - 1);
    snprintf(text, sizeof text, "%s", spec);
    for (char *at = *text ? text : NULL; at;) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma = 0;
        bool on = !strncmp(at, ON, strlen(ON)) && at[strlen(ON)];
        if (on)
            to = strcmp(at + strlen(ON), device) ? &other : plan;
        int rc = on ? 0 : parse_item(to, at);
        if (rc)
            return rc;
        at = comma ? comma + 1 : NULL;
    }
    return 0;
}

/* --- decisions ------------------------------------------------------------------------------ */

/* splitmix64: every state is good, so is every seed. */
static uint64_t next_random(struct fault_plan *plan)
{
    uint64_t z = plan->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t fault_plan_pick(struct fault_plan *plan, uint32_t n)
{
    return (uint32_t)((next_random(plan) >> 32) * n >> 32);
}

bool fault_plan_chance(struct fault_plan *plan, uint32_t percent)
{
    return percent && fault_plan_pick(plan, 100) < percent;
}

uint32_t fault_plan_next(struct fault_plan *plan, uint32_t n, uint32_t overtaken)
{
    /* overtaken by a whole window: no further, or a thing could stay for ever */
    if (n <= 1 || overtaken >= plan->reorder)
        return 0;
    return fault_plan_pick(plan, n);
}
