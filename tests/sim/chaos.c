/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in a storm, and when: a fiber of no process. */
#include "ledger.h"

#define PAUSE_MOST (40 * SIM_MS) /* between two events */
#define FRAIL_MOST (4 * SIM_MS)  /* the same where links are lost: while there is work on them */
#define CUT_MOST (4000 * SIM_MS) /* after which a cut heals, if it does */
#define STOP_MOST (1500 * SIM_MS)

struct heal {
    int a, b;
};

static void heal(void *arg)
{
    const struct heal *h = arg;
    sim_cut(h->a, h->b, false);
}

static void power_on(void *arg)
{
    const struct heal *h = arg;
    sim_power(h->a, true);
}

static struct heal *later(int a, int b)
{
    struct heal *h = sim_alloc(sizeof *h);
    *h = (struct heal){a, b};
    return h;
}

static void cut_some(void)
{
    int a = (int)sim_pick((uint32_t)sim.plan.nhosts), b = (int)sim_pick((uint32_t)sim.plan.nhosts);
    if (a == b)
        return;
    sim_cut(a, b, true);
    if (!sim_once_in(3))
        sim_at(sim.now + sim_random() % CUT_MOST, heal, later(a, b));
}

static void restart(int host)
{
    if (sim.nprocs == SIM_MAX_PROCS)
        return;
    struct sim_proc *proc = sim_proc_new(host);
    sim_env_make(proc);
    sim_fiber_start(proc, sim_program, proc);
}

static struct sim_proc *some_proc(void)
{
    struct sim_proc *proc = &sim.procs[sim_pick((uint32_t)sim.nprocs)];
    return proc->dead || proc->dying ? NULL : proc;
}

static void kill_some(void)
{
    struct sim_proc *proc = some_proc();
    if (!proc)
        return;
    sim_kill(proc, false);
    if (sim_once_in(2))
        restart(proc->host);
}

static void power_off(void)
{
    int host = (int)sim_pick((uint32_t)sim.plan.nhosts);
    sim_power(host, false);
    for (int i = 0; i < sim.nprocs; i++)
        if (sim.procs[i].host == host)
            sim_kill(&sim.procs[i], true);
    sim_at(sim.now + sim_random() % CUT_MOST, power_on, later(host, host));
}

static void stop_some(void)
{
    struct sim_proc *proc = some_proc();
    if (!proc)
        return;
    uint64_t ns = sim_random() % STOP_MOST;
    sim_trace("stopped", proc->id, (int64_t)ns, 0);
    proc->stopped_until = sim.now + ns;
    for (int i = 0; i < sim.nprocs; i++)
        actors[i].stalled += ns; /* it may hold a lock that the simulation shares among all */
}

static void few_fds(void)
{
    struct sim_proc *proc = some_proc();
    /* one that cannot even open its endpoint says so, and has nothing to show */
    if (proc && actors[proc->id].open)
        proc->fd_limit = sim_once_in(2) ? proc->nfds + (int)sim_pick(6) : 1000000;
}

void *sim_chaos(void *arg)
{
    (void)arg;
    for (uint32_t n = sim.plan.chaos_events; n > 0; n--) {
        uint64_t most = sim.plan.frail ? FRAIL_MOST : PAUSE_MOST;
        sim_block("sleep", NULL, NULL, sim.now + sim_random() % most);
        uint32_t dice = sim_pick(100);
        sim.faults++;
        if (sim.plan.calm || (sim.plan.frail && sim_once_in(2)))
            sim_reset_link();
        else if (dice < 30)
            sim_reset_one();
        else if (dice < 50)
            cut_some();
        else if (dice < 65)
            kill_some();
        else if (dice < 70)
            power_off();
        else if (dice < 80)
            stop_some();
        else if (dice < 90)
            few_fds();
        else
            sim_refuse(sim_once_in(2) ? 2 : 0);
    }
    sim_refuse(0);
    return NULL;
}
