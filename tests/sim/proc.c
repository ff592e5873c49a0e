/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated processes: who they are, what they find in their environment, and their end. */
#include "wrap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_PID 1000
#define FD_LIMIT 1000000
#define RETRY_KILL (5 * SIM_US)

struct sim_proc *sim_proc_new(int host)
{
    SIM_CHECK(sim.nprocs < SIM_MAX_PROCS, "the simulation has too many processes");
    struct sim_proc *proc = &sim.procs[sim.nprocs];
    *proc = (struct sim_proc){.id = sim.nprocs,
                              .pid = FIRST_PID + sim.nprocs,
                              .host = host,
                              .started = true,
                              .fd_limit = FD_LIMIT};
    sim.nprocs++;
    return proc;
}

struct sim_proc *sim_proc_of_pid(int pid)
{
    int id = pid - FIRST_PID;
    return id >= 0 && id < sim.nprocs && !sim.procs[id].dead ? &sim.procs[id] : NULL;
}

void sim_proc_env(struct sim_proc *proc, const char *name, const char *fmt, ...)
{
    SIM_CHECK(proc->nenv < SIM_MAX_ENV, "the simulation has too many settings");
    va_list args;
    va_start(args, fmt);
    snprintf(proc->env[proc->nenv].name, sizeof proc->env->name, "%s", name);
    vsnprintf(proc->env[proc->nenv].value, sizeof proc->env->value, fmt, args);
    va_end(args);
    if (sim.verbose)
        printf("process %d on host %d: %s=%s\n", proc->id, proc->host, proc->env[proc->nenv].name,
               proc->env[proc->nenv].value);
    proc->nenv++;
}

/* --- death --------------------------------------------------------------------------------- */

static void die(struct sim_proc *proc, bool silent)
{
    sim_trace("killed", proc->id, silent, 0);
    sim_kill_fibers(proc);
    proc->dead = true;
    if (silent)
        sim_streams_vanish(proc);
    sim_close_all(proc);
}

static void die_loudly(void *arg)
{
    struct sim_proc *proc = arg;
    if (proc->dead)
        return;
    if (sim_holds_shared(proc))
        sim_at(sim.now + RETRY_KILL, die_loudly, proc);
    else
        die(proc, false);
}

static void die_silently(void *arg)
{
    struct sim_proc *proc = arg;
    if (proc->dead)
        return;
    if (sim_holds_shared(proc))
        sim_at(sim.now + RETRY_KILL, die_silently, proc);
    else
        die(proc, true);
}

void sim_kill(struct sim_proc *proc, bool silent)
{
    if (proc->dead || proc->dying)
        return;
    proc->dying = true;
    proc->stopped_until = 0;
    sim_at(sim.now, silent ? die_silently : die_loudly, proc);
}

/* --- what the library asks for ------------------------------------------------------------- */

pid_t __wrap_getpid(void)
{
    return sim_self() ? sim_self()->pid : FIRST_PID - 1;
}

void __wrap_weft__env_read(weft__env_slot *slot, const char *name)
{
    (void)slot;
    (void)name;
}

const char *__wrap_weft__env(const weft__env_slot *slot, const char *name)
{
    (void)slot;
    struct sim_proc *proc = sim_self();
    for (int i = 0; proc && i < proc->nenv; i++)
        if (!strcmp(proc->env[i].name, name))
            return proc->env[i].value;
    return NULL;
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)buf)[i] = (uint8_t)sim_random();
    return (ssize_t)len;
}

int __wrap_gethostname(char *name, size_t len)
{
    snprintf(name, len, "host%d", sim_host_of_self());
    return 0;
}

/* Only /proc/self/ns/net is looked at: each host has its own. */
int __wrap_stat(const char *path, struct stat *st)
{
    (void)path;
    memset(st, 0, sizeof *st);
    st->st_ino = (ino_t)(4026530000 + sim_host_of_self());
    return 0;
}
