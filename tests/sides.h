/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where side B of a two-sided case lives: in a child of the test, or, if the run is spread over
 * two hosts (tests/cluster/run), in a child of side B's agent on the other host.
 *
 * Spread, the same program runs twice. With WEFT_TEST_SIDE=A it runs the cases that have a process
 * for each side; with B it is the agent, which forks a fresh child for each of them, signals and
 * joins it when A asks, and ends when A ends. The two meet as meet.h says. With WEFT_TEST_SIDE=count
 * it prints how many cases there are to run on two hosts; with WEFT_TEST_SIDE=one it runs the others,
 * which need but one process.
 */
#ifndef WEFT_TEST_SIDES_H
#define WEFT_TEST_SIDES_H

#include "helpers.h"
#include "util.h"

/* Side B's process. */
struct test_peer {
    pid_t pid; /* on its host; 0: there is none, side B is in this process */
    int fd;    /* for test_call */
};

/* It runs fn(socket, NULL), and exits with 0. */
void test_peer_start(test_child_fn *fn, struct test_peer *peer);
void test_peer_signal(const struct test_peer *peer, int signal);
/* Wait until it has ended: with status 0, or by this signal. */
void test_peer_join(struct test_peer *peer, int signal);
/* SIGKILL, and wait until it is gone. */
void test_peer_kill(struct test_peer *peer);
/* Of a test that failed: never waits, never fails again. */
void test_peer_drop(struct test_peer *peer);

/* Numeric address that nics listen on, or NULL for the default: both sides are on one host. */
const char *test_bind_host(void);
/* Numeric address of this process that the other side reaches. */
const char *test_here(void);
/* Where the other side was met, or NULL. */
const struct weft__address *test_met(void);

bool test_same_host(void);
/* For this side's endpoints: WEFT_TEST_TRANSPORT; spread, and if it is but all that was built, those that work here. */
const char *test_transports(void);
/* The first transport of side A's list that side B's has, too, and that joins the two. */
const char *test_common_transport(void);

/* What main returns. Cases with this setup have two processes: on two hosts only they run.
 * WEFT_TEST_CASE chooses among all, WEFT_TEST_CASE_NOT leaves out. */
int test_sides_main(const char *name, const struct CMUnitTest *cases, size_t n,
                    CMFixtureFunction two_processes);

#endif
