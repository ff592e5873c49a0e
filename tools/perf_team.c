/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run the same sizes at the same time, and what each of them owns. */
#include "perf_team.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"
#include "perf_fail.h"

int perf_team_open(struct perf_team *team, const struct perf_args *args, bool initiator)
{
    *team = (struct perf_team){.n = 1, .workers = calloc(PERF_MAX_THREADS, sizeof *team->workers)};
    if (!team->workers)
        return perf_fail("no memory for the threads");
    pthread_mutex_init(&team->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&team->met, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < PERF_MAX_THREADS; i++) {
        team->workers[i].args = args;
        team->workers[i].index = i;
        team->workers[i].initiator = initiator;
        team->workers[i].team = team;
    }
    return 0;
}

int perf_team_start(struct perf_team *team, void *(*body)(void *))
{
    for (int i = 1; i < team->n; i++) {
        if (pthread_create(&team->threads[i], NULL, body, &team->workers[i]))
            return perf_fail("cannot start thread %d", i);
        team->started++;
    }
    return 0;
}

int perf_team_meet(struct perf_team *team)
{
    pthread_mutex_lock(&team->lock);
    unsigned round = team->round;
    if (++team->waiting == team->n) {
        team->waiting = 0;
        team->round++;
        pthread_cond_broadcast(&team->met);
    }
    while (team->round == round && !perf_stopped()) {
        uint64_t wake = now_ns() + PERF_SLICE_MS * 1000000ull;
        struct timespec at = {.tv_sec = (time_t)(wake / 1000000000),
                              .tv_nsec = (long)(wake % 1000000000)};
        pthread_cond_timedwait(&team->met, &team->lock, &at);
    }
    pthread_mutex_unlock(&team->lock);
    return perf_stopped() ? perf_fail_stopped() : 0;
}

static void worker_close(struct perf_worker *w)
{
    if (w->endpoint)
        (void)weft_endpoint_close(w->endpoint); /* first: it may be using what follows */
    perf_run_finish(w);
    free(w->conns);
    perf_region_close(&w->out);
    perf_region_close(&w->in);
    perf_region_close(&w->behind.region);
}

void perf_team_close(struct perf_team *team)
{
    for (int i = 1; i <= team->started; i++)
        pthread_join(team->threads[i], NULL);
    for (int i = 0; team->workers && i < PERF_MAX_THREADS; i++)
        worker_close(&team->workers[i]);
    if (team->workers) {
        pthread_mutex_destroy(&team->lock);
        pthread_cond_destroy(&team->met);
    }
    free(team->workers);
    team->workers = NULL;
}

int perf_worker_open(struct perf_worker *w, const char *listen)
{
    const struct perf_args *args = w->args;
    int threads = args->progress_threads ? args->progress_threads : WEFT_PROGRESS_CALLER;
    const char *gpu;
    if (perf_place_backend(&args->mem, &gpu))
        return -1;
    int rc = weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = listen,
                                          .transport = args->transport, .gpu = gpu,
                                          .progress_threads = threads),
                                &w->endpoint);
    return rc < 0 ? perf_fail("cannot open an endpoint: %s", weft_last_error()) : 0;
}

int perf_worker_conns(struct perf_worker *w, uint32_t n)
{
    w->conns = calloc(n, sizeof *w->conns);
    w->nconns = n;
    return w->conns ? 0 : perf_fail("no memory for %" PRIu32 " conns", n);
}

int perf_worker_memory(struct perf_worker *w, const struct perf_run *run, uint64_t footprint,
                       uint64_t behind)
{
    const struct perf_args *args = w->args;
    w->run = *run;
    w->footprint = footprint;
    if (perf_active(w) && perf_region_open(&w->out, w->endpoint, footprint, &args->mem))
        return -1;
    if (perf_passive(w) && perf_region_open(&w->in, w->endpoint, footprint, &args->mem))
        return -1;
    return perf_behind_open(w, behind);
}

static int describe(const struct perf_region *region, struct perf_msg *msg)
{
    struct weft_remote remote;
    if (weft_mem_advertise(region->mem, region->addr, region->len, &remote) < 0)
        return perf_fail("cannot describe memory: %s", weft_last_error());
    memcpy(msg->blob + msg->blob_len, &remote, sizeof remote);
    msg->blob_len += (uint32_t)sizeof remote;
    return 0;
}

int perf_worker_describe(const struct perf_worker *w, struct perf_msg *msg)
{
    if (!w->in.addr)
        return 0;
    if (describe(&w->in, msg))
        return -1;
    return w->behind.region.addr ? describe(&w->behind.region, msg) : 0;
}
