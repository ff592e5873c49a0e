/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of weft_perf. */
#ifndef WEFT_TOOLS_PERF_ARGS_H
#define WEFT_TOOLS_PERF_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "perf_mem.h"

/* Where --listen listens and --connect connects when no port is given. No service is known to use
 * it. */
#define PERF_PORT 11177

#define PERF_MAX_SIZES 256
#define PERF_MAX_THREADS 64 /* a line each in the address exchange; more than any host's nics */
#define PERF_MAX_DEPTH 65536
#define PERF_MAX_IOVS 65536
#define PERF_MAX_CONNS 65536
#define PERF_MAX_IDLE_S 3600
#define PERF_MAX_GPU 63
#define PERF_DEFAULT_DEPTH 64
#define PERF_DEFAULT_TIMEOUT_S 300

enum perf_test { PERF_WRITE, PERF_READ, PERF_SEND, PERF_NOTIFY, PERF_ADD, PERF_RW, PERF_TESTS };
enum perf_role { PERF_NO_ROLE, PERF_LOCAL, PERF_LISTEN, PERF_CONNECT };

struct perf_args {
    enum perf_test test;
    enum perf_role role;
    char address[256]; /* to listen at or connect to, with port */
    const char *transport;
    struct perf_place mem,
        target_mem; /* of this side; with --local, of the initiator and the target */
    const char *secret_file;
    const char *json; /* file, "-", or NULL */
    uint64_t sizes[PERF_MAX_SIZES];
    int nsizes;
    uint64_t behind; /* bytes; 0: nothing is */
    uint64_t iters;  /* 0: about a second of each size */
    uint32_t depth, iovs, threads;
    uint32_t conns;       /* of each thread */
    uint32_t idle_s;      /* how long they are idle before the first size */
    int progress_threads; /* 0: the threads of the tool make progress */
    int timeout_s;        /* for one size */
    bool bidir, verify;
    bool same; /* memory of all operations */
    bool inject; /* messages without a handle */
    bool away; /* the target sleeps meanwhile, and has only its progress threads */
    bool mem_said, gpu_said, both; /* of the options: --mem, --gpu, with a value for the target */
};

const char *perf_test_name(enum perf_test test);

/* Returns 0; or, when the program is to end, 1 + its exit status. */
int perf_args_parse(int argc, char **argv, struct perf_args *args);

#endif
