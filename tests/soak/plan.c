/* SPDX-License-Identifier: Apache-2.0 */
/* What a round is like, drawn from its seed. */
#include "soak.h"

static uint64_t pick(uint64_t *random, uint64_t n)
{
    return test_random(random) % n;
}

static uint64_t round_random(uint64_t seed, uint32_t round, uint64_t purpose)
{
    uint64_t random = seed + (uint64_t)round * 1000003 + purpose * 7919;
    return test_random(&random);
}

static void add_item(char *spec, size_t cap, const char *name, uint64_t value)
{
    size_t len = strlen(spec);
    snprintf(spec + len, cap - len, "%s%s=%" PRIu64, len ? "," : "", name, value);
}

/* A spec of transports/fault. What kills links is in one of four rounds. */
static void draw_fault(struct plan *plan, char *spec, size_t cap, uint64_t *random)
{
    static const char *const hidden[] = {"add64", "write_imm", "fence", "add64+write_imm+fence"};
    *spec = 0;
    add_item(spec, cap, "seed", pick(random, 1000000));
    if (pick(random, 4))
        add_item(spec, cap, "reorder", 1 + pick(random, 32));
    if (pick(random, 2))
        add_item(spec, cap, "delay", 1 + pick(random, 1000));
    if (pick(random, 2))
        add_item(spec, cap, "partial", 1 + pick(random, 60));
    if (pick(random, 3) == 0)
        snprintf(spec + strlen(spec), cap - strlen(spec), ",hide=%s", hidden[pick(random, 4)]);
    if (pick(random, 8) == 0)
        snprintf(spec + strlen(spec), cap - strlen(spec), ",nofd");
    if (pick(random, 4) == 0)
        add_item(spec, cap, "connectfail", 1 + pick(random, 3));
    if (!plan->dies)
        return;
    add_item(spec, cap, "cut", 50 + pick(random, 2000));
    if (pick(random, 2))
        add_item(spec, cap, "cutnic", 1);
    if (plan->fails)
        add_item(spec, cap, "fail", 1 + pick(random, 2000));
}

struct plan plan_draw(uint64_t seed, uint32_t round, const char *transport)
{
    static const char *const transports[] = {"local", "tcp", "auto"};
    static const int threads[] = {WEFT_PROGRESS_CALLER, 1, 1, 2, 3};
    uint64_t random = round_random(seed, round, 1);
    struct plan plan = {.dies = pick(&random, 4) == 0,
                        .closes = pick(&random, 2),
                        .regs = pick(&random, 2),
                        .step_us = (int)pick(&random, 2) * 2000};
    plan.fails = plan.dies && pick(&random, 2);
    snprintf(plan.transport, sizeof plan.transport, "%s",
             transport ? transport : transports[pick(&random, ARRAY_LEN(transports))]);
    for (int i = 0; i < SIDES; i++) {
        draw_fault(&plan, plan.side[i].fault, sizeof plan.side[i].fault, &random);
        plan.side[i].progress_threads = threads[pick(&random, ARRAY_LEN(threads))];
        plan.side[i].depth = 1 + (int)pick(&random, PARTS);
    }
    return plan;
}

static void choose(uint64_t *random, const char *name, const char *const *values, size_t n)
{
    WEFT_OK(weft_config_set(name, values[pick(random, n)]));
}
#define CHOOSE(random, name, ...)                                                                 \
    choose(random, name, (const char *const[]){__VA_ARGS__},                                      \
           ARRAY_LEN(((const char *const[]){__VA_ARGS__})))

void plan_apply(uint64_t seed, uint32_t round, int me)
{
    uint64_t random = round_random(seed, round, 2 + (uint64_t)me);
    CHOOSE(&random, "WEFT_LANES", "0", "1", "1", "2", "3"); /* 0: as many as threads */
    CHOOSE(&random, "WEFT_SPIN", "0", "50", "50");
    CHOOSE(&random, "WEFT_CHUNK", "4K", "16K", "1M");
    CHOOSE(&random, "WEFT_AHEAD", "16K", "256K", "64M");
    CHOOSE(&random, "WEFT_EAGER", "0", "1K", "8K", "32K");
    CHOOSE(&random, "WEFT_EAGER_WINDOW", "64K", "256K");
    CHOOSE(&random, "WEFT_NOTIFY_QUEUE", "128K", "256M");
    CHOOSE(&random, "WEFT_TCP_SOCKETS", "1", "2", "3", "4");
    CHOOSE(&random, "WEFT_TCP_CHUNK", "4K", "32K", "1M");
    CHOOSE(&random, "WEFT_LOCAL_RING", "16K", "64K", "256K");
    CHOOSE(&random, "WEFT_LOCAL_CMA", "0", "1", "1");
    /* so long that a conn is never cut for a slow machine, only for a hang */
    WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", "30000"));
}

void plan_print(const struct ledger *ledger, const char *transport)
{
    struct plan plan = plan_draw(ledger->seed, ledger->round, transport);
    if (!ledger->round)
        return;
    printf("round %u: %s%s%s%s; A %s, %d threads; B %s, %d threads\n", ledger->round,
           plan.transport, plan.dies ? ", links die" : "", plan.closes ? ", conns are closed" : "",
           plan.regs ? ", memory is registered anew" : "", plan.side[0].fault,
           plan.side[0].progress_threads, plan.side[1].fault, plan.side[1].progress_threads);
    fflush(stdout);
}
