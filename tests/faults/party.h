/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of faults stand on: a process that things happen to (the victim), another whose
 * conn must not notice (the witness), and what this process holds before and after.
 *
 * All processes are forked before the first thread is started.
 */
#ifndef WEFT_TEST_PARTY_H
#define WEFT_TEST_PARTY_H

#include "helpers.h"

#include <pthread.h>
#include <stdatomic.h>

#define PARTY_LEN ((size_t)1 << 20) /* memory of a member that others may use */

/* A process with an endpoint that does what it is told. */
struct party {
    pid_t pid;
    int fd;
    char listen[64]; /* "": anywhere */
    char metadata[WEFT_METADATA_MAX];
    int metadata_len;
    struct weft_remote remote;
};

/* In that process. */
struct member {
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    struct test_mem mem;
    weft_mem_t handle;
};
typedef void member_fn(struct member *member, void *arg);

/* True, and the reason is printed, if this machine has no device of the transport under test. */
bool party_must_skip(void);
/* Forks. The endpoint is opened by party_open. */
void party_fork(struct party *p);
void party_open(struct party *p);
/* What party_open has that process do, with other options; fills in p. */
void party_open_here(struct member *member, struct party *p,
                     const struct weft_endpoint_opts *opts);
void party_call(struct party *p, member_fn *fn, void *arg, size_t size);
/* The same in two steps: it does so meanwhile. */
void party_start(struct party *p, member_fn *fn, const void *arg, size_t size);
void party_finish(struct party *p, void *arg, size_t size);
/* Orderly. */
void party_close(struct party *p);
void party_kill(struct party *p);

/* Options of the run's endpoints. */
struct weft_endpoint_opts party_opts(void);
/* Connect to it; it has taken the conn when this returns. */
weft_conn_t party_connect(weft_endpoint_t endpoint, struct party *p);

/* A thread that writes to a party, reads back and compares, again and again, on a conn of its own:
 * any error ends the test. */
struct witness {
    struct party party;
    weft_conn_t conn;
    pthread_t thread;
    _Atomic(bool) stop, pause;
    _Atomic(uint64_t) rounds;
};
void witness_start(struct witness *w, weft_endpoint_t endpoint);
/* It has gone on since: waits until it has. */
void witness_goes_on(struct witness *w);
void witness_stop(struct witness *w);

/* What the process holds. */
struct holding {
    int fds, threads;
    int segments; /* shared memory of local links */
    size_t allocated;
};
struct holding holding_now(void);
/* Waits until no more is held than before, but for slack bytes of memory. */
void holding_check(const struct holding *before, size_t slack);

/* Processor time of this process, ns. */
uint64_t party_cpu_ns(void);

#endif
