/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim: runs schedules, each in a process of its own, so that each begins from the same state and
 * one that crashes is told from its seed.
 */
#include "sim.h"
#include "../number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft.h"
#include "weft/transport.h"

#define BEGIN_NS (1000 * (uint64_t)SIM_S)
#define CPU_SECONDS 60 /* a schedule takes some milliseconds */

/* What the process of a schedule leaves. */
struct outcome {
    bool ended, failed;
    uint64_t hash, steps, ns, ops, ops_ok, conns, faults;
    char text[512];
};
static struct outcome *outcome;

static void record(void)
{
    outcome->hash = sim.hash;
    outcome->steps = sim.steps;
    outcome->ns = sim.now - BEGIN_NS;
    outcome->ops = sim.ops;
    outcome->ops_ok = sim.ops_ok;
    outcome->conns = sim.conns;
    outcome->faults = sim.faults;
}

void sim_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = snprintf(outcome->text, sizeof outcome->text,
                     "after %.3f ms, process %d: ", (double)(sim.now - BEGIN_NS) / 1e6,
                     sim_self() ? sim_self()->id : -1);
    vsnprintf(outcome->text + n, sizeof outcome->text - (size_t)n, fmt, args);
    va_end(args);
    record();
    outcome->failed = true;
    if (sim.verbose)
        sim_fibers_dump(), sim_programs_dump();
    fflush(stdout);
    _exit(1);
}

static void log_line(enum weft_log_level level, const char *subsystem, const char *line,
                     void *user)
{
    (void)level;
    (void)user;
    if (sim.verbose)
        printf("%12.3f us  p%d  [%s] %s\n", (double)sim.now / 1e3,
               sim_self() ? sim_self()->id : -1, subsystem, line);
}

/* --- one schedule -------------------------------------------------------------------------- */

static void schedule(uint64_t seed, bool verbose)
{
    sim = (struct sim_state){
        .seed = seed, .random = seed, .now = BEGIN_NS, .verbose = verbose, .hash = seed};
    sim_plan_make();
    weft_log_set(log_line, NULL);
    weft_config_set("WEFT_LOG", "debug"); /* always: what is logged is a part of what happens */
    sim_programs_begin();
    for (int i = 0; i < sim.plan.nprocs; i++) {
        struct sim_proc *proc = sim_proc_new((int)sim_pick((uint32_t)sim.plan.nhosts));
        sim_env_make(proc);
        sim_fiber_start(proc, sim_program, proc);
    }
    if (sim.plan.chaos_events)
        sim_fiber_start(NULL, sim_chaos, NULL);
    sim_run();
    sim_programs_check();
    record();
    outcome->ended = true;
    fflush(stdout);
    _exit(0);
}

/* Returns whether all was well. */
static bool run_one(uint64_t seed, bool verbose)
{
    memset(outcome, 0, sizeof *outcome);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct itimerval limit = {.it_value.tv_sec = CPU_SECONDS};
        setitimer(ITIMER_PROF, &limit, NULL);
        schedule(seed, verbose);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("sim: cannot run a schedule");
        exit(2);
    }
    if (!outcome->ended && !outcome->failed)
        snprintf(outcome->text, sizeof outcome->text, "the process ended with %s %d",
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return outcome->ended;
}

static void print_one(uint64_t seed, bool good)
{
    printf("seed %" PRIu64 ": %s, hash %016" PRIx64 ", %" PRIu64 " conns, %" PRIu64
           " operations (%" PRIu64 " well), %" PRIu64 " faults, %" PRIu64 " steps, %.3f ms\n",
           seed, good ? "ok" : "FAILED", outcome->hash, outcome->conns, outcome->ops,
           outcome->ops_ok, outcome->faults, outcome->steps, (double)outcome->ns / 1e6);
    if (!good)
        printf("    %s\n", outcome->text);
}

/* --- many ---------------------------------------------------------------------------------- */

static double wall(void)
{
    struct timeval tv;
    gettimeofday(&tv, NULL);
    return (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
}

static int run_many(uint64_t start, uint64_t count, bool first, const char *program)
{
    struct outcome sum = {0};
    uint64_t failures = 0;
    double begun = wall(), told = begun;
    for (uint64_t i = 0; i < count; i++) {
        if (!run_one(start + i, false)) {
            failures++;
            print_one(start + i, false);
            printf("    replay: %s --seed %" PRIu64 " --verbose\n", program, start + i);
            if (first)
                return 1;
        }
        sum.ops += outcome->ops;
        sum.ops_ok += outcome->ops_ok;
        sum.conns += outcome->conns;
        sum.faults += outcome->faults;
        sum.hash = (sum.hash ^ outcome->hash) * 0x9fb21c651e98df25u;
        if (wall() - told < 10 && i + 1 < count)
            continue;
        told = wall();
        printf("seeds %" PRIu64 " to %" PRIu64 ": %" PRIu64 " failed; %" PRIu64 " conns, %" PRIu64
               " operations (%" PRIu64 " well), %" PRIu64 " faults; %.1f s, hash %016" PRIx64 "\n",
               start, start + i, failures, sum.conns, sum.ops, sum.ops_ok, sum.faults,
               told - begun, sum.hash);
    }
    return failures ? 1 : 0;
}

/* The same seed twice has to be the same to the last step; another one has to differ. */
static int check_replay(uint64_t start, uint64_t count)
{
    uint64_t last = 0;
    for (uint64_t i = 0; i < count; i++) {
        run_one(start + i, false);
        struct outcome first = *outcome;
        run_one(start + i, false);
        if (first.hash != outcome->hash || first.steps != outcome->steps || first.hash == last) {
            printf("seed %" PRIu64 ": hash %016" PRIx64 ", then %016" PRIx64 "\n", start + i,
                   first.hash, outcome->hash);
            return 1;
        }
        last = first.hash;
    }
    printf("%" PRIu64 " seeds replay exactly\n", count);
    return 0;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: sim --seed N [--verbose]\n"
            "       sim --schedules N [--start S] [--first]   first: up to one that fails\n"
            "       sim --replays N [--start S]     each twice, with the same result\n");
    return 2;
}

int main(int argc, char **argv)
{
    uint64_t seed = 0, count = 0, start = 1, replays = 0;
    bool one = false, verbose = false, first = false;
    for (int i = 1; i < argc; i++) {
        uint64_t number = 0;
        if (!strcmp(argv[i], "--verbose"))
            verbose = true;
        else if (!strcmp(argv[i], "--first"))
            first = true;
        else if (!test_number(argv[i + 1], &number)) /* argv ends with NULL */
            return usage();
        else if (!strcmp(argv[i], "--seed"))
            one = true, seed = number, i++;
        else if (!strcmp(argv[i], "--schedules"))
            count = number, i++;
        else if (!strcmp(argv[i], "--replays"))
            replays = number, i++;
        else if (!strcmp(argv[i], "--start"))
            start = number, i++;
        else
            return usage();
    }
    outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    if (outcome == MAP_FAILED || (!one && !count && !replays))
        return usage();
    struct weft_transport_info info; /* the tables of the build are made once, outside of fibers */
    weft_transport_info(0, &info);
    if (replays)
        return check_replay(start, replays);
    if (!one)
        return run_many(start, count, first, argv[0]);
    bool good = run_one(seed, verbose);
    print_one(seed, good);
    return good ? 0 : 1;
}
