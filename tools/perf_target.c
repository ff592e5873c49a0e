/* SPDX-License-Identifier: Apache-2.0 */
/* The side that is connected to. It does what the initiator says, within its own limits. */
#include <errno.h>
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

/* Once one conn of an initiator is up, its next message or conn follows at once. */
#define FOLLOW_MS 10000
#define MAX_TIMEOUT_S 86400
/* An initiator that is slow to fill and check its memory may take this much longer. */
#define BETWEEN_RUNS_S 30

struct target {
    struct perf_team team;
    const struct perf_args *args;
    struct perf_msg hello;
};

/* --- an initiator connects ------------------------------------------------------------------ */

static int check_there(weft_conn_t control)
{
    struct weft_conn_info info;
    if (weft_conn_info(control, &info) < 0)
        return perf_fail("lost the initiator: %s", weft_last_error());
    return info.state == WEFT_CONN_DOWN ? perf_fail("lost the initiator: %s", info.why) : 0;
}

/* timeout_ms < 0: until there is one. control: that of the initiator whose conn it is to be, and which may end meanwhile; or 0. */
static int accept_one(struct perf_worker *w, int timeout_ms, weft_conn_t control, weft_conn_t *conn)
{
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ms * 1000000;
    int rc;
    while ((rc = weft_endpoint_accept(w->endpoint, PERF_SLICE_MS, conn)) == WEFT_ETIMEOUT) {
        if (perf_stopped())
            return perf_fail_stopped();
        if (control && check_there(control))
            return -1;
        if (now_ns() > deadline)
            break;
    }
    if (rc == WEFT_ETIMEOUT)
        return perf_fail("nobody connects within %d ms", timeout_ms);
    return rc < 0 ? perf_fail("nobody connects: %s", weft_last_error()) : 0;
}

static int check_idle(const struct perf_msg *msg)
{
    if (msg->timeout_s < 1 || msg->timeout_s > PERF_MAX_IDLE_S)
        return perf_fail("the other side asks for an idle time of %" PRIu32 " s", msg->timeout_s);
    return 0;
}

/* A further conn of the initiator. Others that connect meanwhile are sent away. */
static int accept_next(struct perf_worker *w, weft_conn_t *conn)
{
    struct weft_conn_info control, info;
    uint64_t deadline = now_ns() + FOLLOW_MS * 1000000ull;
    if (weft_conn_info(w->channel.conn, &control) < 0)
        return perf_fail("lost the initiator: %s", weft_last_error());
    while (now_ns() < deadline) {
        if (accept_one(w, FOLLOW_MS, w->channel.conn, conn))
            return -1;
        if (weft_conn_info(*conn, &info) == 0 &&
            !memcmp(info.peer_uuid, control.peer_uuid, sizeof info.peer_uuid))
            return 0;
        (void)weft_conn_close(*conn);
    }
    return perf_fail("the initiator's connections do not come");
}

static int accept_measured(struct perf_worker *w, const struct perf_msg *hello)
{
    struct perf_msg idle;
    if (hello->flags & PERF_FLAG_IDLE &&
        (perf_channel_expect(&w->channel, PERF_MSG_IDLE, FOLLOW_MS, &idle) || check_idle(&idle) ||
         perf_idle_serve(&w->channel, &idle)))
        return -1;
    if (perf_worker_conns(w, hello->conns))
        return -1;
    for (uint32_t i = 0; i < w->nconns; i++)
        if (accept_next(w, &w->conns[i]))
            return -1;
    return 0;
}

static int check_hello(const struct target *t, const struct perf_msg *hello)
{
    uint32_t allowed = PERF_FLAG_BIDIR | PERF_FLAG_PINGPONG | PERF_FLAG_IDLE;
    if (hello->test >= PERF_TESTS || hello->flags & ~allowed || hello->threads < 1 ||
        hello->threads > PERF_MAX_THREADS || hello->conns < 1 || hello->conns > PERF_MAX_CONNS ||
        hello->timeout_s < 1 || hello->timeout_s > MAX_TIMEOUT_S || hello->footprint < 1)
        return perf_fail("the other side asks for something impossible");
    if (hello->test != t->args->test)
        return perf_fail("one side measures %s, the other %s", perf_test_name(t->args->test),
                         perf_test_name((enum perf_test)hello->test));
    if (t->args->mem.gpu && hello->test == PERF_NOTIFY)
        return perf_fail("--mem gpu does not apply to notify");
    if (t->args->away && hello->flags & PERF_FLAG_BIDIR)
        return perf_fail("--away does not apply to --bidir");
    if (hello->behind && hello->test != PERF_WRITE && hello->test != PERF_READ)
        return perf_fail("the other side asks for something impossible");
    return 0;
}

static struct perf_run run_template(const struct perf_msg *hello)
{
    return (struct perf_run){.test = (enum perf_test)hello->test,
                             .bidir = hello->flags & PERF_FLAG_BIDIR,
                             .pingpong = hello->flags & PERF_FLAG_PINGPONG,
                             .timeout_s = (int)hello->timeout_s};
}

static int hear_hello(struct target *t, struct perf_worker *w, struct perf_msg *hello)
{
    if (perf_channel_expect(&w->channel, PERF_MSG_HELLO, FOLLOW_MS, hello) ||
        check_hello(t, hello))
        return -1;
    struct perf_run run = run_template(hello);
    return perf_worker_memory(w, &run, hello->footprint, hello->behind);
}

static int say_welcome(struct perf_worker *w)
{
    uint32_t flags = (w->args->mem.gpu ? PERF_FLAG_GPU_MEM : 0) | (w->args->away ? PERF_FLAG_AWAY : 0);
    return perf_channel_send(&w->channel,
                             &(struct perf_msg){.type = PERF_MSG_WELCOME, .flags = flags});
}

/* --- runs ----------------------------------------------------------------------------------- */

static int read_run(const struct perf_worker *w, const struct perf_msg *msg, struct perf_run *run)
{
    run->iters = msg->iters;
    run->seed = msg->seed;
    run->verify = msg->flags & PERF_FLAG_VERIFY;
    bool same = msg->flags & PERF_FLAG_SAME;
    if (msg->iters < 1 || msg->iovs < 1 || msg->iovs > PERF_MAX_IOVS || msg->slots < 1 ||
        msg->slots > PERF_MAX_DEPTH ||
        perf_layout_make(msg->bytes, msg->iovs, msg->slots, same, &run->layout) ||
        run->layout.slots != msg->slots || perf_layout_size(&run->layout) > w->footprint)
        return perf_fail("the other side asks for an impossible run");
    run->inject = msg->flags & PERF_FLAG_INJECT;
    if (run->inject && (!run->pingpong || w->args->mem.gpu))
        return perf_fail("the other side injects messages, which is for ping-pongs of host memory");
    if (same && run->test != PERF_WRITE && run->test != PERF_READ)
        return perf_fail("the other side asks for the same memory in a test that needs more");
    if (run->test == PERF_ADD && (msg->bytes != sizeof(uint64_t) || msg->iovs != 1))
        return perf_fail("the other side asks for additions of %" PRIu64 " bytes", msg->bytes);
    return 0;
}

static int serve_run(struct perf_worker *w, const struct perf_msg *msg, struct perf_run *run)
{
    struct perf_msg ready = {.type = PERF_MSG_READY}, go;
    struct perf_msg result = {.type = PERF_MSG_RESULT};
    if (read_run(w, msg, run) || perf_run_prepare(w, run) || perf_run_aim(w, msg) ||
        perf_worker_describe(w, &ready) || perf_channel_send(&w->channel, &ready) ||
        perf_channel_expect(&w->channel, PERF_MSG_GO, run->timeout_s * 1000, &go))
        return -1;
    uint64_t cpu = cpu_ns();
    if (perf_run_drive(w))
        return -1;
    result.cpu_ns = cpu_ns() - cpu;
    int right = perf_run_check(w);
    if (right < 0)
        return -1;
    result.flags = right ? PERF_FLAG_RIGHT : 0;
    w->right &= right;
    perf_run_finish(w);
    return perf_channel_send(&w->channel, &result);
}

static int serve(struct perf_worker *w, const struct perf_msg *hello)
{
    struct perf_run run = run_template(hello);
    struct perf_msg msg;
    int wait_ms = (run.timeout_s + BETWEEN_RUNS_S) * 1000;
    w->right = 1;
    for (;;) {
        if (perf_channel_wait(&w->channel, wait_ms, &msg))
            return -1;
        if (msg.type == PERF_MSG_BYE)
            return 0;
        if (msg.type != PERF_MSG_RUN && msg.type != PERF_MSG_IDLE)
            return perf_fail("the other side says '%s' between two runs", perf_msg_name(msg.type));
        if (msg.type == PERF_MSG_RUN ? serve_run(w, &msg, &run)
                                     : check_idle(&msg) || perf_idle_serve(&w->channel, &msg))
            return -1;
    }
}

/* A further thread: its endpoint is open, and its initiator has the address. */
static void *follow(void *arg)
{
    struct perf_worker *w = arg;
    struct target *t = (struct target *)w->team; /* its first member */
    struct perf_msg hello;
    weft_conn_t control;
    if (accept_one(w, FOLLOW_MS, 0, &control) == 0 &&
        perf_channel_open(&w->channel, w->endpoint, control) == 0 &&
        hear_hello(t, w, &hello) == 0 && say_welcome(w) == 0 && accept_measured(w, &hello) == 0)
        (void)serve(w, &hello); /* a failure is remembered by perf_fail */
    return NULL;
}

/* --- the session ---------------------------------------------------------------------------- */

/* "HOST:PORT" -> "HOST:0" */
static void any_port(const char *address, char *text, size_t cap)
{
    const char *colon = strrchr(address, ':');
    snprintf(text, cap, "%.*s:0", (int)(colon - address), address);
}

static int open_followers(struct target *t)
{
    char listen[sizeof t->args->address];
    any_port(t->args->address, listen, sizeof listen);
    t->team.n = (int)t->hello.threads;
    for (int i = 1; i < t->team.n; i++)
        if (perf_worker_open(&t->team.workers[i], listen))
            return -1;
    return perf_team_start(&t->team, follow);
}

static int say_addresses(struct target *t)
{
    for (int i = 1; i < t->team.n; i++) {
        struct perf_msg msg = {.type = PERF_MSG_ADDRESS};
        int len = weft_endpoint_metadata(t->team.workers[i].endpoint, msg.blob, sizeof msg.blob);
        if (len < 0)
            return perf_fail("no metadata: %s", weft_last_error());
        msg.blob_len = (uint32_t)len;
        if (perf_channel_send(&t->team.workers[0].channel, &msg))
            return -1;
    }
    return 0;
}

/* Say where this side listens. */
static int announce(const struct target *t, int metadata_fd)
{
    uint8_t metadata[WEFT_METADATA_MAX];
    weft_endpoint_t endpoint = t->team.workers[0].endpoint;
    int len = weft_endpoint_metadata(endpoint, metadata, sizeof metadata);
    if (len < 0)
        return perf_fail("no metadata: %s", weft_last_error());
    if (metadata_fd >= 0) {
        if (write(metadata_fd, metadata, (size_t)len) != len)
            return perf_fail("cannot tell the initiator where to connect: %s", strerror(errno));
        return close(metadata_fd) ? perf_fail("cannot close a pipe: %s", strerror(errno)) : 0;
    }
    struct weft_metadata_info info;
    if (weft_metadata_parse(metadata, (size_t)len, &info) < 0)
        return perf_fail("no metadata: %s", weft_last_error());
    message("%s: listening on port %d (%s)", perf_test_name(t->args->test),
            weft_endpoint_port(endpoint), info.host);
    return 0;
}

static int run_session(struct target *t, int metadata_fd)
{
    struct perf_worker *leader = &t->team.workers[0];
    weft_conn_t control;
    /* a target that was started by hand waits until somebody comes or it is interrupted */
    int patience_ms = metadata_fd >= 0 ? FOLLOW_MS : -1;
    if (perf_worker_open(leader, t->args->address) || announce(t, metadata_fd) ||
        accept_one(leader, patience_ms, 0, &control) ||
        perf_channel_open(&leader->channel, leader->endpoint, control) ||
        hear_hello(t, leader, &t->hello) || open_followers(t) || say_welcome(leader) ||
        say_addresses(t) || accept_measured(leader, &t->hello))
        return -1;
    return serve(leader, &t->hello);
}

int perf_target(const struct perf_args *args, int metadata_fd)
{
    struct target *t = calloc(1, sizeof *t);
    if (!t)
        return perf_fail("no memory");
    t->args = args;
    int rc = perf_team_open(&t->team, args, false);
    if (rc == 0)
        rc = run_session(t, metadata_fd);
    if (rc)
        perf_channel_error(&t->team.workers[0].channel, perf_failure());
    int right = 1;
    for (int i = 1; i <= t->team.started; i++)
        pthread_join(t->team.threads[i], NULL);
    t->team.started = 0;
    for (int i = 0; rc == 0 && i < t->team.n; i++)
        right &= t->team.workers[i].right;
    perf_team_close(&t->team);
    free(t);
    return rc || perf_stopped() ? -1 : right;
}
