/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers, the virtual clock, events, and the generator that decides all. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN
#endif
#endif
#ifdef SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define MAX_FIBERS 64
#define STACK (512 * 1024) /* the library needs some 60 KiB; sanitizers several times that */
#define MAX_EVENTS 65536
#define STEP_NS 300             /* a call takes up to so long */
#define MOST_STEPS 3000000u     /* a hundred times what a schedule needs: it runs in circles */
#define CALM_IDLE (30 * SIM_MS) /* calm programs, networks and faults rest for less than this */

struct sim_fiber {
    struct sim_proc *proc;
    int id;
    ucontext_t context;
    char *stack;
    sim_fiber_fn *fn;
    void *arg;
    bool done, blocked, is_ready;
    const char *why; /* blocked */
    sim_ready_fn *ready;
    void *ready_arg;
    uint64_t until, seen;
    int saved_errno, shared; /* locks of all processes that it holds */
    void *fake_stack;
};

struct event {
    uint64_t when, order;
    sim_event_fn *fn;
    void *arg;
};

struct sim_state sim;
static struct sim_fiber fibers[MAX_FIBERS];
static int nfibers;
static struct event heap[MAX_EVENTS];
static int nheap;
static uint64_t norder;
static ucontext_t outside;

/* --- the dice ------------------------------------------------------------------------------ */

/* splitmix64 */
uint64_t sim_random(void)
{
    uint64_t z = sim.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t sim_pick(uint32_t n)
{
    return (uint32_t)((sim_random() >> 32) * n >> 32);
}

bool sim_once_in(uint32_t n)
{
    return n && sim_pick(n) == 0;
}

static void mix(uint64_t v)
{
    sim.hash = (sim.hash ^ v) * 0x9fb21c651e98df25u;
    sim.hash ^= sim.hash >> 32;
}

void sim_trace(const char *what, int64_t a, int64_t b, int64_t c)
{
    uint64_t name = 0;
    for (const char *p = what; *p; p++)
        name = name * 31 + (unsigned char)*p;
    mix(name ^ sim.now);
    mix((uint64_t)a);
    mix((uint64_t)b);
    mix((uint64_t)c);
    if (sim.verbose)
        printf("%12.3f us  p%d.%d  %-14s %" PRId64 " %" PRId64 " %" PRId64 "\n",
               (double)sim.now / 1e3, sim_self() ? sim_self()->id : -1,
               sim.current ? sim.current->id : -1, what, a, b, c);
}

/* --- events: a heap by time, then by order ------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->when != b->when ? a->when < b->when : a->order < b->order;
}

void sim_at(uint64_t when, sim_event_fn *fn, void *arg)
{
    SIM_CHECK(nheap < MAX_EVENTS, "the simulation has too many events");
    int i = nheap++;
    struct event event = {when, norder++, fn, arg};
    for (; i > 0 && before(&event, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = event;
}

static struct event event_pop(void)
{
    struct event top = heap[0], last = heap[--nheap];
    int i = 0;
    for (int child; (child = 2 * i + 1) < nheap; i = child) {
        child += child + 1 < nheap && before(&heap[child + 1], &heap[child]);
        if (before(&last, &heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

static void run_events(void)
{
    while (nheap && heap[0].when <= sim.now) {
        struct event event = event_pop();
        event.fn(event.arg);
    }
}

void sim_changed(void)
{
    sim.version++;
}

/* --- switching ----------------------------------------------------------------------------- */

/* What a fiber, or the outside, does when it goes on after a switch. */
static void arrive(void *fake_stack)
{
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#else
    (void)fake_stack;
#endif
}

static void leave(struct sim_fiber *from, const struct sim_fiber *to)
{
#ifdef SIM_ASAN
    /* the outside's stack is not ours to name: the last switch does not come back */
    __sanitizer_start_switch_fiber(from && !from->done ? &from->fake_stack : NULL,
                                   to ? to->stack : NULL, to ? STACK : 0);
#else
    (void)from;
    (void)to;
#endif
}

static void fiber_main(void);

static void switch_to(struct sim_fiber *to)
{
    struct sim_fiber *from = sim.current;
    if (from == to)
        return;
    if (from)
        from->saved_errno = errno;
    sim.current = to;
    leave(from, to);
    swapcontext(from ? &from->context : &outside, to ? &to->context : &outside);
    arrive(from ? from->fake_stack : NULL);
    if (sim.current)
        errno = sim.current->saved_errno;
}

struct sim_proc *sim_self(void)
{
    return sim.current ? sim.current->proc : NULL;
}

/* --- choosing ------------------------------------------------------------------------------ */

static bool eligible(struct sim_fiber *f)
{
    if (f->done || (f->proc && f->proc->stopped_until > sim.now))
        return false;
    if (!f->blocked || f->is_ready || f->until <= sim.now)
        return true;
    if (f->ready && f->seen != sim.version) {
        f->seen = sim.version;
        f->is_ready = f->ready(f->ready_arg);
    }
    return f->is_ready;
}

/* No fiber can go on: to the next moment at which something happens. */
static void advance(void)
{
    uint64_t next = nheap ? heap[0].when : SIM_NEVER;
    for (int i = 0; i < nfibers; i++) {
        const struct sim_fiber *f = &fibers[i];
        if (f->done)
            continue;
        uint64_t at = f->blocked && !f->is_ready ? f->until : sim.now;
        if (f->proc && f->proc->stopped_until > at)
            at = f->proc->stopped_until;
        if (at < next)
            next = at;
    }
    SIM_CHECK(next != SIM_NEVER, "deadlock: no fiber can go on, and nothing will happen");
    SIM_CHECK(!sim.plan.calm || !sim.must || next < sim.now + CALM_IDLE,
              "asleep with work left: %u calls wait, and nothing happens for %" PRIu64 " us",
              sim.must, (next - sim.now) / SIM_US);
    sim.now = next > sim.now ? next : sim.now;
}

/* NULL: all are done. */
static struct sim_fiber *choose(void)
{
    for (;;) {
        run_events();
        struct sim_fiber *list[MAX_FIBERS];
        uint32_t n = 0;
        bool any = false;
        for (int i = 0; i < nfibers; i++) {
            any |= !fibers[i].done;
            if (eligible(&fibers[i]))
                list[n++] = &fibers[i];
        }
        if (n)
            return list[sim_pick(n)];
        if (!any)
            return NULL;
        advance();
    }
}

void sim_yield(void)
{
    SIM_CHECK(++sim.steps < MOST_STEPS, "runs in circles: %u steps", MOST_STEPS);
    struct sim_fiber *next = choose();
    if (next != sim.current && next)
        mix((uint64_t)next->id);
    switch_to(next);
}

void sim_step(void)
{
    sim.now += 1 + sim_pick(STEP_NS);
    if (sim.current && sim_once_in(sim.plan.yield_every))
        sim_yield();
}

bool sim_block(const char *why, sim_ready_fn *ready, void *arg, uint64_t until)
{
    struct sim_fiber *f = sim.current;
    f->why = why;
    f->blocked = true;
    f->is_ready = false;
    f->ready = ready;
    f->ready_arg = arg;
    f->until = until;
    f->seen = UINT64_MAX;
    sim_yield();
    f->blocked = false;
    return f->is_ready;
}

/* --- fibers -------------------------------------------------------------------------------- */

static void fiber_main(void)
{
    arrive(NULL);
    struct sim_fiber *f = sim.current;
    f->fn(f->arg);
    f->done = true;
    sim_changed();
    sim_yield(); /* does not come back */
}

struct sim_fiber *sim_fiber_start(struct sim_proc *proc, sim_fiber_fn *fn, void *arg)
{
    SIM_CHECK(nfibers < MAX_FIBERS, "the simulation has too many fibers");
    struct sim_fiber *f = &fibers[nfibers];
    *f = (struct sim_fiber){.proc = proc, .id = nfibers++, .fn = fn, .arg = arg};
    f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SIM_CHECK(f->stack != MAP_FAILED, "no memory for a stack");
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, fiber_main, 0);
    sim_changed();
    return f;
}

bool sim_fiber_done(const struct sim_fiber *fiber)
{
    return fiber->done;
}

int sim_fiber_id(const struct sim_fiber *fiber)
{
    return fiber->id;
}

void sim_fiber_hold(int by)
{
    if (sim.current)
        sim.current->shared += by;
}

bool sim_holds_shared(const struct sim_proc *proc)
{
    for (int i = 0; i < nfibers; i++)
        if (fibers[i].proc == proc && !fibers[i].done && fibers[i].shared)
            return true;
    return false;
}

void sim_kill_fibers(const struct sim_proc *proc)
{
    for (int i = 0; i < nfibers; i++)
        if (fibers[i].proc == proc)
            fibers[i].done = true;
    sim_changed();
}

void sim_fibers_dump(void)
{
    for (int i = 0; i < nfibers; i++) {
        const struct sim_fiber *f = &fibers[i];
        if (!f->done)
            printf("fiber %d of process %d: %s%s until %.3f us\n", i, f->proc ? f->proc->id : -1,
                   f->blocked ? "in " : "runs", f->blocked ? f->why : "", (double)f->until / 1e3);
    }
}

void sim_run(void)
{
    sim_yield();
}
