/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of a measurement, from the first connection to the last size. */
#ifndef WEFT_TOOLS_PERF_SESSION_H
#define WEFT_TOOLS_PERF_SESSION_H

#include "perf_args.h"
#include "weft.h"

struct perf_result {
    uint64_t bytes; /* of a piece */
    uint32_t iovs, depth; /* depth: operations of a thread that may be under way */
    uint64_t iters;
    double gbps, mops, p50_us, p99_us;
    double behind_gbps;  /* of the operations that these were behind; 0: of none */
    double cpu_s_per_gb; /* of both sides; negative when no bytes were moved */
    int verified;        /* 1, 0, or -1: was not checked */
    bool mapped;         /* the initiator has copied to or from memory of the peer's GPU itself */
};

/* What conns cost that do nothing. */
struct perf_idle_result {
    uint32_t conns, seconds;
    double connect_s;     /* until all were up */
    double kib, peer_kib; /* resident memory for each conn */
    double cpu_ms,
        cpu_without_ms; /* of both processes, with the conns and before there were any */
};

/* Called once, before the first size, with --idle. */
typedef void perf_idle_fn(const struct perf_idle_result *result, void *user);
/* Called for each size, in order. */
typedef void perf_report_fn(const struct perf_result *result, void *user);
/* Called once, when the path is known. mem: "host", "gpu", or "host-gpu": initiator, target. away: the target says --away. */
typedef void perf_begin_fn(const struct weft_conn_info *path, const char *mem, bool away, void *user);

struct perf_sink {
    perf_begin_fn *begin;
    perf_idle_fn *idle;
    perf_report_fn *report;
    void *user;
};

/* Be the initiator: connect to metadata, or (metadata NULL) to args->address. Returns 0, or -1
 * after perf_fail. */
int perf_initiator(const struct perf_args *args, const void *metadata, size_t len,
                   const struct perf_sink *sink);

/* Be the target of one initiator. metadata_fd: where the endpoint's metadata is written once it
 * listens, or -1: say on standard error where it listens. Returns 1; 0: not every byte was right;
 * or -1 after perf_fail. */
int perf_target(const struct perf_args *args, int metadata_fd);

#endif
