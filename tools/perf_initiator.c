/* SPDX-License-Identifier: Apache-2.0 */
/* The side that connects and decides what is measured. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "perf_fail.h"
#include "perf_idle.h"
#include "perf_session.h"
#include "perf_team.h"

#define CONNECT_MS 10000
/* The target allocates memory before it answers. */
#define WELCOME_MS 60000
/* Without --iters: passes grow until one takes this long, which is not the first: memory may have been pinned and mapped in
 * it. Then as many as fill the goal. */
#define PROBE_NS 30000000.0
#define GOAL_NS 1e9
#define PROBE_ITERS 16
#define MIN_ITERS 32
#define MAX_ITERS ((uint64_t)1 << 31)
/* The progress line: for runs longer than this, and how often. */
#define TELL_AFTER_NS 1500000000u
#define TELL_EVERY_NS 250000000u

struct initiator {
    struct perf_team team;
    const struct perf_args *args;
    uint64_t footprint; /* of the largest size */
    struct perf_idle_result idle;
    struct {
        uint8_t bytes[PERF_MSG_BLOB];
        uint32_t len;
    } address[PERF_MAX_THREADS]; /* of the target's endpoints */
};

/* --- connect ------------------------------------------------------------------------------- */

static int wait_up(weft_conn_t conn)
{
    uint64_t deadline = now_ns() + CONNECT_MS * 1000000ull;
    int rc;
    while ((rc = weft_conn_wait(conn, PERF_SLICE_MS)) == WEFT_ETIMEOUT) {
        if (perf_stopped())
            return perf_fail_stopped();
        if (now_ns() > deadline)
            break;
    }
    return rc < 0 ? perf_fail("cannot connect: %s", weft_last_error()) : 0;
}

static int connect_one(const struct perf_worker *w, const void *metadata, size_t len,
                       weft_conn_t *conn)
{
    struct weft_connect_opts *opts = WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS,
                                               .nonblocking = 1);
    int rc = metadata ? weft_endpoint_connect(w->endpoint, metadata, len, opts, conn)
                      : weft_endpoint_connect_to(w->endpoint, w->args->address, opts, conn);
    if (rc < 0)
        return perf_fail("cannot connect: %s", weft_last_error());
    return wait_up(*conn);
}

static int connect_all(struct perf_worker *w, const void *metadata, size_t len)
{
    if (perf_worker_conns(w, w->args->conns))
        return -1;
    for (uint32_t i = 0; i < w->nconns; i++)
        if (connect_one(w, metadata, len, &w->conns[i]))
            return -1;
    return 0;
}

/* The measured conns; with --idle also an idle interval before and after. */
static int connect_measured(struct initiator *in, struct perf_worker *w, const void *metadata,
                            size_t len)
{
    struct perf_idle before, after;
    uint32_t seconds = in->args->idle_s;
    if (seconds && perf_idle_lead(&w->channel, seconds, &before))
        return -1;
    uint64_t start = now_ns();
    if (connect_all(w, metadata, len))
        return -1;
    uint64_t took = now_ns() - start;
    if (!seconds)
        return 0;
    if (perf_idle_lead(&w->channel, seconds, &after))
        return -1;
    double conns = w->nconns;
    in->idle = (struct perf_idle_result){
        .conns = w->nconns,
        .seconds = seconds,
        .connect_s = (double)took / 1e9,
        .kib = (double)(int64_t)(after.memory - before.memory) / 1024 / conns,
        .peer_kib = (double)(int64_t)(after.peer_memory - before.peer_memory) / 1024 / conns,
        .cpu_ms = after.cpu_ms,
        .cpu_without_ms = before.cpu_ms,
    };
    return 0;
}

static bool is_pingpong(const struct perf_args *args)
{
    return args->test == PERF_SEND && args->depth == 1;
}

static int make_layout(const struct perf_args *args, uint64_t bytes, struct perf_layout *layout)
{
    /* a ping-pong has the next message ready while the last one's end is being reported */
    uint32_t depth = is_pingpong(args) ? 2 : args->depth;
    if (perf_layout_make(bytes, args->iovs, depth, args->same, layout))
        return perf_fail("%" PRIu32 " pieces of %" PRIu64 " bytes are too much", args->iovs,
                         bytes);
    if (args->test == PERF_RW) /* as many of each kind */
        layout->slots -= layout->slots % 2;
    if (layout->slots == 0)
        return perf_fail("rw needs room for two operations: %" PRIu32 " pieces of %" PRIu64
                         " bytes are too much",
                         args->iovs, bytes);
    return 0;
}

/* What a run of this session has in common with all others. */
static struct perf_run run_template(const struct perf_args *args)
{
    return (struct perf_run){.test = args->test,
                             .bidir = args->bidir,
                             .pingpong = is_pingpong(args),
                             .inject = args->inject,
                             .timeout_s = args->timeout_s};
}

static int say_hello(struct perf_worker *w, uint64_t footprint, struct perf_msg *welcome)
{
    const struct perf_args *args = w->args;
    struct perf_msg hello = {.type = PERF_MSG_HELLO,
                             .test = args->test,
                             .flags = (args->bidir ? PERF_FLAG_BIDIR : 0) |
                                      (is_pingpong(args) ? PERF_FLAG_PINGPONG : 0) |
                                      (args->idle_s ? PERF_FLAG_IDLE : 0),
                             .threads = args->threads,
                             .conns = args->conns,
                             .timeout_s = (uint32_t)args->timeout_s,
                             .footprint = footprint,
                             .behind = args->behind};
    if (perf_channel_send(&w->channel, &hello))
        return -1;
    return perf_channel_expect(&w->channel, PERF_MSG_WELCOME, WELCOME_MS, welcome);
}

/* The endpoints of the target's other threads. */
static int learn_addresses(struct initiator *in)
{
    struct perf_msg msg;
    for (uint32_t i = 1; i < in->args->threads; i++) {
        if (perf_channel_expect(&in->team.workers[0].channel, PERF_MSG_ADDRESS, CONNECT_MS, &msg))
            return -1;
        in->address[i].len = msg.blob_len;
        memcpy(in->address[i].bytes, msg.blob, msg.blob_len);
    }
    return 0;
}

static int join(struct initiator *in, struct perf_worker *w, const void *metadata, size_t len,
                struct perf_msg *welcome)
{
    struct perf_run run = run_template(in->args);
    weft_conn_t control;
    if (perf_worker_open(w, NULL) ||
        perf_worker_memory(w, &run, in->footprint, in->args->behind) ||
        connect_one(w, metadata, len, &control) ||
        perf_channel_open(&w->channel, w->endpoint, control) ||
        say_hello(w, in->footprint, welcome))
        return -1;
    if (w->index == 0 && learn_addresses(in))
        return -1;
    return connect_measured(in, w, metadata, len);
}

/* --- one pass over one size ----------------------------------------------------------------- */

static int open_run(struct perf_worker *w, const struct perf_run *run)
{
    struct perf_msg msg = {.type = PERF_MSG_RUN,
                           .flags = (run->verify ? PERF_FLAG_VERIFY : 0) |
                                    (run->layout.same ? PERF_FLAG_SAME : 0) |
                                    (run->inject ? PERF_FLAG_INJECT : 0),
                           .iovs = run->layout.iovs,
                           .slots = run->layout.slots,
                           .bytes = run->layout.bytes,
                           .iters = run->iters,
                           .seed = run->seed};
    struct perf_msg ready;
    if (perf_run_prepare(w, run) || perf_worker_describe(w, &msg) ||
        perf_channel_send(&w->channel, &msg) ||
        perf_channel_expect(&w->channel, PERF_MSG_READY, run->timeout_s * 1000, &ready))
        return -1;
    return perf_run_aim(w, &ready);
}

static int close_run(struct perf_worker *w)
{
    struct perf_msg result;
    if (perf_channel_send(&w->channel, &(struct perf_msg){.type = PERF_MSG_END}) ||
        perf_channel_expect(&w->channel, PERF_MSG_RESULT, w->run.timeout_s * 1000, &result))
        return -1;
    int right = perf_run_check(w);
    if (right < 0)
        return -1;
    w->right = right && result.flags & PERF_FLAG_RIGHT;
    w->peer_cpu_ns = result.cpu_ns;
    perf_run_finish(w);
    return 0;
}

static uint64_t bytes_mapped(const struct perf_worker *w)
{
    struct weft_conn_stats stats;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < w->nconns; i++)
        sum += weft_conn_stats(w->conns[i], &stats) == 0 ? stats.bytes_mapped : 0;
    return sum;
}

/* Runs team->plan, in step with the other threads. */
static int pass(struct perf_worker *w)
{
    const struct perf_run run = w->team->plan;
    if (open_run(w, &run) || perf_team_meet(w->team))
        return -1;
    uint64_t cpu = cpu_ns(), mapped = bytes_mapped(w);
    if (perf_channel_send(&w->channel, &(struct perf_msg){.type = PERF_MSG_GO}) ||
        perf_run_drive(w))
        return -1;
    if (run.bidir)
        w->ended_ns = now_ns(); /* the target's operations are delivered as well */
    if (perf_team_meet(w->team))
        return -1;
    w->cpu_ns = cpu_ns() - cpu;
    w->mapped = bytes_mapped(w) - mapped;
    return close_run(w) || perf_team_meet(w->team) ? -1 : 0;
}

/* The leader's: all threads run it. Returns the time from the first post to the last delivery in
 * *wall_ns. */
static int lead_pass(struct initiator *in, const struct perf_run *run, double *wall_ns)
{
    in->team.plan = *run;
    in->team.plan.seed = now_ns(); /* fresh contents */
    if (perf_team_meet(&in->team) || pass(&in->team.workers[0]))
        return -1;
    uint64_t start = UINT64_MAX, end = 0;
    for (int i = 0; i < in->team.n; i++) {
        const struct perf_worker *w = &in->team.workers[i];
        start = w->started_ns < start ? w->started_ns : start;
        end = w->ended_ns > end ? w->ended_ns : end;
    }
    *wall_ns = (double)(end - start);
    return 0;
}

static void *follow(void *arg)
{
    struct perf_worker *w = arg;
    struct initiator *in = (struct initiator *)w->team; /* its first member */
    struct perf_msg welcome;
    int i = w->index;
    if (join(in, w, in->address[i].bytes, in->address[i].len, &welcome) || perf_team_meet(w->team))
        return NULL;
    while (perf_team_meet(w->team) == 0 && !w->team->over)
        if (pass(w))
            return NULL;
    if (!perf_stopped())
        perf_channel_bye(&w->channel);
    return NULL;
}

/* --- sizes --------------------------------------------------------------------------------- */

/* Warm up, and find how many operations take about a second. */
static int choose_iters(struct initiator *in, struct perf_run *run)
{
    double wall_ns;
    uint32_t slots = run->layout.slots;
    uint64_t given = in->args->iters;
    run->verify = false;
    run->iters = given ? (given < slots ? given : slots) : PROBE_ITERS;
    for (bool first = true;; first = false) {
        if (lead_pass(in, run, &wall_ns))
            return -1;
        bool enough = wall_ns >= PROBE_NS || run->iters >= MAX_ITERS / 10;
        if (given || (enough && !first))
            break;
        if (!enough)
            run->iters *= wall_ns < PROBE_NS / 10 ? 10 : 3;
    }
    double goal = given ? (double)given : (double)run->iters * GOAL_NS / wall_ns;
    run->iters = goal > (double)MAX_ITERS ? MAX_ITERS : (uint64_t)goal;
    if (!given && run->iters < MIN_ITERS)
        run->iters = MIN_ITERS;
    if (!given && run->iters < slots)
        run->iters = slots;
    return 0;
}

static double behind_gbps(const struct perf_behind *b)
{
    double ns = (double)(b->ended_ns - b->started_ns);
    return ns > 0 ? (double)b->done * (double)b->layout.bytes / ns : 0;
}

static struct perf_result summarize(struct initiator *in, const struct perf_run *run,
                                    double wall_ns)
{
    struct perf_worker *leader = &in->team.workers[0];
    int right = 1;
    for (int i = 0; i < in->team.n; i++) {
        right &= in->team.workers[i].right;
        if (i)
            perf_hist_merge(&leader->hist, &in->team.workers[i].hist);
    }
    int ways = run->bidir || run->pingpong ? 2 : 1;
    double ops = (double)run->iters * in->team.n * ways;
    double bytes = ops * (double)run->layout.bytes * run->layout.iovs;
    double cpu_s = (double)(leader->cpu_ns + leader->peer_cpu_ns) / 1e9;
    return (struct perf_result){
        .bytes = run->layout.bytes,
        .iovs = run->layout.iovs,
        .depth = run->pingpong ? 1 : run->layout.slots,
        .iters = run->iters,
        .gbps = bytes / wall_ns,
        .mops = ops / wall_ns * 1e3,
        .p50_us = perf_hist_percentile(&leader->hist, 50) / 1e3,
        .p99_us = perf_hist_percentile(&leader->hist, 99) / 1e3,
        .cpu_s_per_gb = bytes > 0 ? cpu_s / (bytes / 1e9) : -1,
        .behind_gbps = behind_gbps(&leader->behind),
        .verified = run->verify ? right : -1,
        .mapped = leader->mapped > 0,
    };
}

static void tell(const struct perf_worker *w, uint64_t now)
{
    static uint64_t last;
    if (!w->started_ns || now - w->started_ns < TELL_AFTER_NS || now - last < TELL_EVERY_NS)
        return;
    last = now;
    uint64_t done = w->run.pingpong ? w->arrived : w->mine.done;
    double bytes = (double)done * (double)w->run.layout.bytes * w->run.layout.iovs;
    char size[SIZE_TEXT_MAX];
    fprintf(stderr, "\r%s %s: %3.0f %%, %.3f GB/s\033[K", perf_test_name(w->run.test),
            size_format(w->run.layout.bytes, size), 100.0 * (double)done / (double)w->run.iters,
            bytes / (double)(now - w->started_ns));
}

static int measure(struct initiator *in, uint64_t bytes, const struct perf_sink *sink)
{
    bool terminal = isatty(STDERR_FILENO);
    struct perf_run run = run_template(in->args);
    double wall_ns;
    if (make_layout(in->args, bytes, &run.layout) || choose_iters(in, &run))
        return -1;
    run.verify = in->args->verify;
    in->team.workers[0].tell = terminal ? tell : NULL;
    int rc = lead_pass(in, &run, &wall_ns);
    in->team.workers[0].tell = NULL;
    if (terminal)
        fputs("\r\033[K", stderr);
    if (rc)
        return -1;
    struct perf_result result = summarize(in, &run, wall_ns);
    sink->report(&result, sink->user);
    return 0;
}

/* --- the session --------------------------------------------------------------------------- */

static int begin(struct initiator *in, const struct perf_msg *welcome,
                 const struct perf_sink *sink)
{
    struct weft_conn_info info;
    if (weft_conn_info(in->team.workers[0].conns[0], &info) < 0)
        return perf_fail("cannot tell the path: %s", weft_last_error());
    if (in->args->idle_s)
        sink->idle(&in->idle, sink->user);
    bool ours = in->args->mem.gpu, theirs = welcome->flags & PERF_FLAG_GPU_MEM;
    sink->begin(&info, ours ? (theirs ? "gpu" : "gpu-host") : (theirs ? "host-gpu" : "host"),
                welcome->flags & PERF_FLAG_AWAY, sink->user);
    return 0;
}

static int run_session(struct initiator *in, const void *metadata, size_t len,
                       const struct perf_sink *sink)
{
    struct perf_msg welcome;
    struct perf_layout layout;
    for (int i = 0; i < in->args->nsizes; i++) {
        if (make_layout(in->args, in->args->sizes[i], &layout))
            return -1;
        uint64_t size = perf_layout_size(&layout);
        in->footprint = size > in->footprint ? size : in->footprint;
    }
    if (join(in, &in->team.workers[0], metadata, len, &welcome))
        return -1;
    in->team.n = (int)in->args->threads;
    if (perf_team_start(&in->team, follow) || perf_team_meet(&in->team) ||
        begin(in, &welcome, sink))
        return -1;
    for (int i = 0; i < in->args->nsizes; i++)
        if (measure(in, in->args->sizes[i], sink))
            return -1;
    in->team.over = true;
    if (perf_team_meet(&in->team))
        return -1;
    perf_channel_bye(&in->team.workers[0].channel);
    return 0;
}

int perf_initiator(const struct perf_args *args, const void *metadata, size_t len,
                   const struct perf_sink *sink)
{
    struct initiator *in = calloc(1, sizeof *in);
    if (!in)
        return perf_fail("no memory");
    in->args = args;
    int rc = perf_team_open(&in->team, args, true);
    if (rc == 0)
        rc = run_session(in, metadata, len, sink);
    if (rc)
        perf_channel_error(&in->team.workers[0].channel, perf_failure());
    perf_team_close(&in->team);
    free(in);
    return rc;
}
