/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of an idle interval. */
#include "perf_idle.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common.h"
#include "perf_fail.h"

/* What a new conn leaves to be done ends within this. */
#define SETTLE_MS 1000
#define ANSWER_MS 20000

void perf_idle_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* what is missing is said where a conn fails */
}

/* Resident bytes of this process; 0 if /proc does not tell. */
static uint64_t memory_now(void)
{
    unsigned long size, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    int n = fscanf(file, "%lu %lu", &size, &resident);
    fclose(file);
    return n == 2 ? (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* One sleep in the endpoint; it may end early. */
static int doze(const struct perf_channel *channel)
{
    if (perf_stopped())
        return perf_fail_stopped();
    int rc = weft_endpoint_progress(channel->endpoint, PERF_SLICE_MS);
    return rc < 0 ? perf_fail("no progress: %s", weft_last_error()) : 0;
}

static int be_idle(const struct perf_channel *channel, uint64_t ms)
{
    uint64_t until = now_ns() + ms * 1000000;
    while (now_ns() < until)
        if (doze(channel))
            return -1;
    return 0;
}

int perf_idle_lead(struct perf_channel *channel, uint32_t seconds, struct perf_idle *idle)
{
    struct perf_msg msg = {.type = PERF_MSG_IDLE, .timeout_s = seconds};
    if (be_idle(channel, SETTLE_MS) || perf_channel_send(channel, &msg) ||
        perf_channel_expect(channel, PERF_MSG_READY, ANSWER_MS, &msg))
        return -1;
    uint64_t cpu = cpu_ns();
    if (be_idle(channel, (uint64_t)seconds * 1000))
        return -1;
    cpu = cpu_ns() - cpu;
    if (perf_channel_send(channel, &(struct perf_msg){.type = PERF_MSG_END}) ||
        perf_channel_expect(channel, PERF_MSG_RESULT, ANSWER_MS, &msg))
        return -1;
    *idle = (struct perf_idle){.cpu_ms = (double)(cpu + msg.cpu_ns) / 1e6,
                               .memory = memory_now(),
                               .peer_memory = msg.bytes};
    return 0;
}

int perf_idle_serve(struct perf_channel *channel, const struct perf_msg *msg)
{
    struct perf_msg end, result = {.type = PERF_MSG_RESULT};
    int wait_ms = (int)msg->timeout_s * 1000 + ANSWER_MS;
    if (perf_channel_send(channel, &(struct perf_msg){.type = PERF_MSG_READY}))
        return -1;
    uint64_t cpu = cpu_ns();
    if (perf_channel_expect(channel, PERF_MSG_END, wait_ms, &end))
        return -1;
    result.cpu_ns = cpu_ns() - cpu;
    result.bytes = memory_now();
    return perf_channel_send(channel, &result);
}
