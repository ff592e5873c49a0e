/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test stands on: cmocka with all its headers, failing from anywhere (a test, a
 * thread, a child process), deadlines, byte patterns, memory with guards, settings of the run.
 *
 * The run is chosen by the environment: WEFT_TEST_TRANSPORT (default local), WEFT_TEST_GPU
 * (default host), WEFT_TEST_MEMORY (below, default host), WEFT_TEST_FAULT (a spec for the fault
 * decorator, default none), and WEFT_TEST_NO_SKIP (1: what would be skipped fails).
 */
#ifndef WEFT_TEST_HELPERS_H
#define WEFT_TEST_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "weft.h"
#include "weft/transport.h"

#define ARRAY_LEN(a) (sizeof(a) / sizeof *(a))

/* A wait that would hang fails after this many milliseconds: WEFT_TEST_DEADLINE. The default is far above
 * what the slowest run (under a sanitizer, beside four busy programs on two cores) needs. */
#define TEST_DEADLINE_MS test_deadline_ms()
int test_deadline_ms(void);

/* --- failing ------------------------------------------------------------------------------- */

/* In a test's own thread: the test fails. In a thread of its own or a child process: says so, and
 * ends the process with status 1. */
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...) WEFT_PRINTF(3, 4);
#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(cond, ...)                                                                          \
    do {                                                                                          \
        if (!(cond))                                                                              \
            FAIL(__VA_ARGS__);                                                                    \
    } while (0)

/* The value of a call that must not fail. */
#define WEFT_OK(call)                                                                             \
    ({                                                                                            \
        __auto_type rc_ = (call);                                                                 \
        CHECK(rc_ >= 0, "%s: %s: %s", #call, weft_err_name((int)rc_), weft_last_error());         \
        rc_;                                                                                      \
    })
/* A call that must fail with this code, and say why. */
#define WEFT_FAILS(code, call)                                                                    \
    do {                                                                                          \
        int64_t rc_ = (call);                                                                     \
        CHECK(rc_ == (code), "%s gave %" PRId64 " (%s), not %s", #call, rc_,                      \
              rc_ < 0 ? weft_err_name((int)rc_) : "success", weft_err_name(code));                \
        CHECK(*weft_last_error(), "%s failed without a sentence", #call);                         \
    } while (0)

/* A test begins; has it failed since? Then its teardown must not wait for anything. */
void test_begin(void);
bool test_failed(void);

/* The run lacks something that the test needs: skip it, or fail where nothing may be skipped. */
void test_need(bool there, const char *what);

/* --- the run ------------------------------------------------------------------------------- */

/* An environment variable, or the preset if it is unset or empty. */
/* libfabric's shm leaves files of 4 MiB behind when a process is killed, as tests do: those of processes that are no
 * more are removed. */
void test_sweep_shm(void);
const char *test_env(const char *name, const char *preset);
const char *test_transport(void);
const char *test_gpu(void);
const char *test_fault(void);

/* --- time ---------------------------------------------------------------------------------- */

uint64_t test_deadline(void);
void test_sleep_ms(int ms);
/* Do `step` until cond holds. */
#define TEST_UNTIL(cond, step, ...)                                                               \
    do {                                                                                          \
        uint64_t until_ = test_deadline();                                                        \
        while (!(cond)) {                                                                         \
            CHECK(weft_now() < until_, "deadline: waited for " __VA_ARGS__);                      \
            step;                                                                                 \
        }                                                                                         \
    } while (0)

/* --- bytes --------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__)
#define TEST_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_THREAD_SANITIZER
#endif
#endif

/* What touches memory that peers touch does so behind the thread sanitizer's back: the order
 * between a transport's thread at one end and the test at the other comes from a socket or a ring
 * in shared memory, which it cannot see. The library's own accesses stay under its eyes, but for
 * what the kernel copies between two processes (helpers.c). */
#define TEST_UNSEEN __attribute__((no_sanitize("thread"), noinline))

/* These go to memory of GPUs, too, if test_mem_open_on has made it.
 * Byte i of a pattern depends on seed and i alone. Bytes [offset, offset+len) of it: */
void test_fill(void *at, size_t len, uint64_t seed, uint64_t offset);
/* Where the memory first differs from it, or -1. */
int64_t test_differs(const void *at, size_t len, uint64_t seed, uint64_t offset);
void test_zero(void *at, size_t len);
/* Index of the first byte that is not 0, or -1. */
int64_t test_nonzero(const void *at, size_t len);
uint64_t test_get_word(const void *at);
void test_set_word(void *at, uint64_t value);
/* Pseudo-random numbers that are the same in each run. */
uint64_t test_random(uint64_t *state);

/* Memory with guard bytes on both sides, `misalign` bytes off a page. Starts as zeros. */
#define TEST_GUARD 512
struct test_mem {
    unsigned char *base, *at;
    size_t len, size;
    int gpu; /* 1 + its number; 0: the host's */
};
void test_mem_open(struct test_mem *mem, size_t len, size_t misalign);
/* Of this GPU of the run; -1: the host's. */
void test_mem_open_on(struct test_mem *mem, size_t len, size_t misalign, int gpu);
/* Where WEFT_TEST_MEMORY wants the memory of side 0 (A) or 1 (B): a GPU, or -1. It is "host" or "gpu0",
 * or two of these with a comma between them. */
int test_memory(int side);
/* WEFT_TEST_SEGMENT: bytes of a segment, if memory of GPUs is to be made of them (driver.h); else 0. */
size_t test_segment(void);
void test_mem_check_guards(const struct test_mem *mem);
void test_mem_close(struct test_mem *mem);

/* --- processes ----------------------------------------------------------------------------- */

/* Fork a child that runs fn(socket, arg) and exits with 0; *fd is the other end of its socket. */
typedef void test_child_fn(int fd, void *arg);
pid_t test_fork(test_child_fn *fn, void *arg, int *fd);
/* A process that does what it is told: it runs functions of this program, named by their place in
 * it, on its own `self`. A fixture casts its own function type to and from test_any_fn, and `run`
 * does the call. */
typedef void test_any_fn(void);
uint64_t test_fn_pack(test_any_fn *fn);
test_any_fn *test_fn_unpack(uint64_t packed);
typedef void test_run_fn(void *self, test_any_fn *fn, void *arg);
#define TEST_MAX_ARG 16384 /* bytes of an argument */
/* In the child, until told to end. `idle` (may be NULL) is done again and again in between. */
void test_serve(int fd, void *self, test_run_fn *run, void (*idle)(void *self));
/* In the parent: run fn there; its argument goes there and comes back. */
void test_call(int fd, test_any_fn *fn, void *arg, size_t size, void (*idle)(void *), void *self);
/* The same in two steps: it does so meanwhile. */
void test_call_begin(int fd, test_any_fn *fn, const void *arg, size_t size);
void test_call_finish(int fd, void *arg, size_t size, void (*idle)(void *), void *self);
void test_call_end(int fd);
/* Wait for a child: it must exit with 0, or have been killed by `signal`. */
void test_join(pid_t pid, int signal);
void test_check_status(int status, int signal);
/* All of len bytes, or fail. False: the other end is closed. */
bool test_recv(int fd, void *data, size_t len);
void test_send(int fd, const void *data, size_t len);
int test_count_fds(void);
/* Bytes that this process has from its allocator. */
size_t test_allocated(void);

#endif
