/* SPDX-License-Identifier: Apache-2.0 */
/* The dice that decide what a schedule is like, and the settings of its processes. */
#include "sim.h"

#include <stdio.h>

#define ONE_OF(...)                                                                               \
    ((const uint32_t[]){                                                                          \
        __VA_ARGS__}[sim_pick(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))])

void sim_plan_make(void)
{
    struct sim_plan *p = &sim.plan;
    p->calm = sim_pick(2);
    p->nhosts = 1 + (int)sim_pick(SIM_MAX_HOSTS);
    p->nprocs = 2 + (int)sim_pick(3);
    p->yield_every = ONE_OF(4, 20, 100);
    p->latency = ONE_OF(10, 50, 1000) * SIM_US;
    p->jitter = ONE_OF(0, 20, 500) * SIM_US;
    p->pipe_most = ONE_OF(1, 8192, 65536, 1 << 20);
    p->short_every = ONE_OF(0, 2, 10);
    p->actions = 5 + sim_pick(30);
    p->size_most = ONE_OF(300, 3000, 20000, 60000);
    p->frail = sim_once_in(4);
    p->chaos_events = p->calm && !p->frail ? 0 : 1 + sim_pick(12);
    p->no_memory_every = p->calm || sim_pick(4) ? 0 : ONE_OF(300, 3000);
}

static void env_int(struct sim_proc *proc, const char *name, uint32_t value)
{
    sim_proc_env(proc, name, "%u", value);
}

static void env_fault(struct sim_proc *proc)
{
    static const char *const hides[] = {"", ",hide=add64", ",hide=add64+write_imm+fence"};
    char cut[32] = "";
    if (sim_pick(2))
        return;
    /* one after the other: the order of arguments is the compiler's */
    uint32_t after = 1 + sim_pick(60), link = 1 + sim_pick(4), seed = sim_pick(1000000);
    uint32_t reorder = ONE_OF(0, 2, 16), delay = ONE_OF(0, 20, 2000), partial = ONE_OF(0, 30);
    const char *hide = hides[sim_pick(3)];
    if (!sim.plan.calm && sim_once_in(2))
        snprintf(cut, sizeof cut, ",cut=%u:%u", after, link);
    sim_proc_env(proc, "WEFT_FAULT", "seed=%u,reorder=%u,delay=%u,partial=%u%s%s%s", seed, reorder,
                 delay, partial, hide, cut, sim_once_in(8) ? ",nofd" : "");
}

void sim_env_make(struct sim_proc *proc)
{
    static const char *const transports[] = {"tcp", "local,tcp", "auto"};
    if (sim.plan.nhosts == 1 && sim_once_in(3))
        sim_proc_env(proc, "WEFT_LISTEN", "127.0.0.1");
    else
        sim_proc_env(proc, "WEFT_LISTEN", sim_once_in(4) ? "[fd00::%d]" : "10.0.0.%d",
                     proc->host + 1);
    sim_proc_env(proc, "WEFT_TRANSPORT", "%s", sim.plan.frail ? "tcp" : transports[sim_pick(3)]);
    sim_proc_env(proc, "WEFT_EFA_LIBRARY", "%s", "none"); /* its sockets are not simulated */
    env_int(proc, "WEFT_LANES", sim.plan.frail ? ONE_OF(2, 3) : ONE_OF(1, 1, 2, 3));
    env_int(proc, "WEFT_TCP_SOCKETS", ONE_OF(1, 2, 3, 4));
    env_int(proc, "WEFT_TCP_ZEROCOPY", ONE_OF(0, 16385, 30000));
    env_int(proc, "WEFT_TCP_CHUNK", ONE_OF(4096, 20000, 1 << 20));
    env_int(proc, "WEFT_CHUNK", ONE_OF(4096, 30000, 1 << 20));
    env_int(proc, "WEFT_AHEAD", ONE_OF(16384, 100000, 64 << 20));
    env_int(proc, "WEFT_EAGER", ONE_OF(0, 100, 8192));
    env_int(proc, "WEFT_EAGER_WINDOW", ONE_OF(65536, 262144));
    env_int(proc, "WEFT_SPIN", ONE_OF(0, 2, 10));
    env_int(proc, "WEFT_LOCAL_RING", ONE_OF(16384, 65536));
    env_int(proc, "WEFT_LOCAL_CMA", sim_pick(2));
    env_int(proc, "WEFT_TCP_TIMEOUT", ONE_OF(1000, 5000));
    env_int(proc, "WEFT_CANCEL_GRACE", ONE_OF(0, 20, 1000));
    if (!sim.plan.calm) { /* who waits for room in a queue may be waited for by who is to read it */
        env_int(proc, "WEFT_BACKLOG", ONE_OF(1, 128));
        env_int(proc, "WEFT_NOTIFY_QUEUE", ONE_OF(65536, 1 << 20));
    }
    env_fault(proc);
}
