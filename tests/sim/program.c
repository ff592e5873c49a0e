/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a simulated process: opens an endpoint, does things at random, sees all of it to its
 * end, closes. In a calm schedule all stay until all are done, and nothing may be missing.
 */
#include "ledger.h"
#include "weft/transport.h"

#include <stdio.h>
#include <string.h>

#define LONG_MS 10000 /* a calm server sleeps; what it has to do wakes it */
#define CLOSE_MOST_MS 1000
#define PATIENCE_MS 20000
#define SILENT_TIMES 4 /* WEFT_TCP_TIMEOUT: it counts whole seconds, and from the first probe */

static int unfinished; /* calm: fibers of programs that have something to do */

/* --- opening ------------------------------------------------------------------------------- */

static void reg_memory(struct actor *actor)
{
    actor->source_len = 1 + sim_pick(sim.plan.size_most);
    actor->source = sim_alloc(actor->source_len);
    ledger_fill(actor->source, actor->source_len, sim_random());
    int rc = weft_mem_reg(actor->endpoint, actor->source, actor->source_len,
                          WEFT_OPTS(weft_mem_opts, .access = WEFT_READ), &actor->source_mem);
    if (rc == 0)
        rc = weft_mem_advertise(actor->source_mem, actor->source, actor->source_len,
                                &actor->source_remote);
    for (int i = 0; rc == 0 && i < AREAS; i++) {
        struct area *area = &actor->areas[i];
        area_make(actor, area, 1 + sim_pick(sim.plan.size_most));
        rc = weft_mem_reg(actor->endpoint, area->base, area->len,
                          WEFT_OPTS(weft_mem_opts, .access = WEFT_WRITE | WEFT_ATOMIC),
                          &area->mem);
        if (rc == 0)
            rc = weft_mem_advertise(area->mem, area->base, area->len, &area->remote);
        area->open = rc == 0;
    }
    SIM_CHECK(rc == 0, "cannot register memory: %s", weft_last_error());
}

static void actor_open(struct actor *actor)
{
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts};
    struct weft_metadata_info info;
    uint32_t threads = sim_pick(4);
    opts.progress_threads = threads == 0 ? WEFT_PROGRESS_CALLER : threads == 3 ? 2 : 1;
    opts.passive_accept = (int)sim_pick(2);
    actor->passive = opts.passive_accept;
    actor->threads = threads != 0;
    actor->grace_ms = (int)weft_config_int("WEFT_CANCEL_GRACE");
    actor->tcp_timeout_ms = (int)weft_config_int("WEFT_TCP_TIMEOUT");
    int rc = weft_endpoint_open(&opts, &actor->endpoint);
    SIM_CHECK(rc == 0, "cannot open an endpoint: %s", weft_last_error());
    actor->open = true;
    reg_memory(actor);
    uint8_t metadata[WEFT_METADATA_MAX];
    int len = weft_endpoint_metadata(actor->endpoint, metadata, sizeof metadata);
    SIM_CHECK(len > 0 && weft_metadata_parse(metadata, (size_t)len, &info) == 0, "bad metadata");
    memcpy(actor->metadata, metadata, (size_t)len);
    memcpy(actor->uuid, info.uuid, sizeof actor->uuid);
    actor->metadata_len = len; /* from now on peers find it */
}

/* --- seeing it through --------------------------------------------------------------------- */

static struct op *to_wait_for(struct actor *actor)
{
    for (int i = 0; i < MAX_OPS; i++) {
        struct op *op = &actor->ops[i];
        if (op->used && op->handle && !op->busy && op->kind != WEFT_XFER_RECV)
            return op;
    }
    return NULL;
}

/* Calm: everything but receives ends. Receives are served meanwhile. */
static void finish_calmly(struct actor *actor)
{
    struct op *op;
    act_serve(actor);
    while ((op = to_wait_for(actor))) {
        bool message = op->kind == WEFT_XFER_SEND;
        weft_op_t handle = op->handle;
        act_wait(op, message ? 0 : WEFT_FOREVER);
        bool received = act_serve(actor);
        act_drain(actor);
        if (!received && op->used && op->handle == handle) {
            sim.must++;
            weft_endpoint_progress(actor->endpoint, LONG_MS);
            sim.must--;
        }
    }
    unfinished--;
    while (unfinished > 0) {
        bool received = act_serve(actor); /* others are to be posted, before it sleeps */
        act_drain(actor);
        if (!received && unfinished > 0)
            weft_endpoint_progress(actor->endpoint, LONG_MS);
    }
    sim.leaving = true;
}

/* A host that is gone: what was asked of it ends all the same, some time after WEFT_TCP_TIMEOUT. */
static void outlast(struct actor *actor)
{
    struct op *op = op_of(actor, false);
    bool data = op && (op->kind == WEFT_XFER_WRITE || op->kind == WEFT_XFER_READ);
    if (!data || op->busy || !op->end->peer)
        return;
    int here = actor->proc->host, there = op->end->peer->proc->host;
    uint64_t cut = sim_cut_since(here, there), stalled = actor->stalled;
    if (cut != SIM_NEVER && !act_wait(op, SILENT_TIMES * actor->tcp_timeout_ms))
        SIM_CHECK(sim_cut_since(here, there) != cut || actor->stalled != stalled,
                  "an operation still waits for a host that has been gone for %d ms",
                  SILENT_TIMES * actor->tcp_timeout_ms);
}

/* Storm: wait a while, then cancel. What is left ends with its conn. */
static void finish_in_a_storm(struct actor *actor)
{
    for (uint32_t round = sim_pick(60); round > 0; round--) {
        struct op *op = op_of(actor, false);
        act_serve(actor);
        if (op && op->used && !op->busy)
            act_wait(op, (int)sim_pick(30));
    }
    if (sim_once_in(2))
        outlast(actor);
    for (int i = 0; i < MAX_OPS && sim_once_in(2); i++) {
        struct op *op = &actor->ops[i];
        if (!op->used || !op->handle || op->busy)
            continue;
        op->canceled = true;
        weft_op_cancel(op->handle);
    }
}

static void close_conns(struct actor *actor)
{
    for (int i = 0; i < end_count(); i++)
        if (end_at(i)->actor == actor)
            act_close_conn(end_at(i));
}

/* After their conns all have ended. */
static void read_ops(struct actor *actor)
{
    for (int i = 0; i < MAX_OPS; i++) {
        struct op *op = &actor->ops[i];
        if (op->used && op->handle && !op->busy)
            SIM_CHECK(act_wait(op, PATIENCE_MS), "an operation lives longer than its conn");
    }
}

static void actor_close(struct actor *actor)
{
    bool tidy = sim.plan.calm || sim_once_in(2);
    if (tidy)
        close_conns(actor);
    else
        actor->blind = true;
    if (tidy) {
        read_ops(actor);
        act_drain(actor);
    }
    weft_op_t left = 0;
    for (int i = 0; i < MAX_OPS; i++)
        if (actor->ops[i].used)
            left = actor->ops[i].handle;
    actor->open = false;
    int rc = weft_endpoint_close(actor->endpoint);
    SIM_CHECK(rc == 0, "weft_endpoint_close gave %s", weft_err_name(rc));
    SIM_CHECK(!left || weft_op_poll(left, NULL) == WEFT_EHANDLE,
              "an operation is left of a closed endpoint");
    for (int i = 0; i < end_count(); i++)
        SIM_CHECK(end_at(i)->actor != actor ||
                      weft_conn_wait(end_at(i)->handle, 0) == WEFT_EHANDLE,
                  "a conn is left of a closed endpoint");
    for (int i = 0; i < AREAS; i++) {
        actor->areas[i].open = false;
        area_freeze(&actor->areas[i]);
    }
}

static void nothing_left(const struct actor *actor)
{
    const struct sim_proc *proc = actor->proc;
    if (proc->live && sim.verbose)
        sim_heap_report(proc);
    SIM_CHECK(proc->live == 0, "%lld allocations are left of a closed endpoint",
              (long long)proc->live);
    SIM_CHECK(proc->nfds == 0, "%d descriptors are left of a closed endpoint", proc->nfds);
}

/* --- the program --------------------------------------------------------------------------- */

static void *second_thread(void *arg)
{
    struct actor *actor = arg;
    for (uint32_t n = sim.plan.actions; n > 0; n--)
        act(actor);
    actor->finished++;
    unfinished--;
    return NULL;
}

static bool second_done(void *arg)
{
    const struct actor *actor = arg;
    return actor->finished == actor->fibers - 1;
}

void sim_programs_begin(void)
{
    unfinished = sim.plan.nprocs;
}

void *sim_program(void *arg)
{
    struct sim_proc *proc = arg;
    struct actor *actor = &actors[proc->id];
    actor->proc = proc;
    actor->fibers = 1;
    actor_open(actor);
    if (sim_once_in(4)) {
        actor->fibers++;
        unfinished++;
        sim_fiber_start(proc, second_thread, actor);
    }
    for (uint32_t n = sim.plan.actions; n > 0; n--)
        act(actor);
    while (actor->finished < actor->fibers - 1)
        sim_block("wait for the second thread", second_done, actor, SIM_NEVER);
    actor->fibers = 1;
    if (sim.plan.calm)
        finish_calmly(actor);
    else
        finish_in_a_storm(actor);
    actor_close(actor);
    nothing_left(actor);
    proc->dead = true;
    return NULL;
}

void sim_programs_check(void)
{
    for (int i = 0; i < sim.nprocs; i++)
        if (!actors[i].proc)
            actors[i].proc = &sim.procs[i];
    ledger_check();
}
