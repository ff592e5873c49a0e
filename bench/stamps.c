/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the processor cycles of a round trip over sockets go: in the kernel, and between two of its calls.
 *
 *     LD_PRELOAD=$PWD/build/release/bench/libweft_stamps.so build/release/tools/weft_perf send --local --transport tcp --sizes 64 --depth 1
 *     LD_PRELOAD=$PWD/build/release/bench/libweft_stamps.so build/release/bench/bare_tcp pingpong -s 64
 *
 * It stands before recv, recvfrom and send, of which each thread is looked at by itself, and writes a
 * table to standard error as a process ends that has sent 1000 times or more: the tenth, half and
 * nine tenths of each. Cycles are those of the time-stamp counter, which are not the processor's own
 * where that changes its clock.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#define SLOTS 4096
#define STEP 8 /* cycles of a slot */
#define LEAST 1000

enum what { RECEIVED, NOTHING, SENT, TURN, AGAIN, AFTER, EMPTY, KINDS };

static const struct {
    const char *name;
    unsigned step;
} kinds[KINDS] = {
    [RECEIVED] = {"recv that has data", STEP},
    [NOTHING] = {"recv that finds none", STEP},
    [SENT] = {"send", STEP},
    [TURN] = {"from data to the call of send", STEP},
    [AGAIN] = {"from none to the next call of recv", STEP},
    [AFTER] = {"from send to the call of recv", STEP},
    [EMPTY] = {"calls of recv that find none, between data", 1},
};

static _Atomic(uint32_t) slots[KINDS][SLOTS];

static _Thread_local struct {
    uint64_t at; /* the end of the call before */
    enum what was;
    uint32_t empty;
} last = {.was = KINDS};

static void count(enum what kind, uint64_t n)
{
    n /= kinds[kind].step;
    atomic_fetch_add_explicit(&slots[kind][n < SLOTS ? n : SLOTS - 1], 1, memory_order_relaxed);
}

static ssize_t stamped_recv(int fd, void *buf, size_t len, int flags, struct sockaddr *from,
                            socklen_t *from_len)
{
    uint64_t begin = __rdtsc();
    ssize_t n = syscall(SYS_recvfrom, fd, buf, len, flags, from, from_len);
    uint64_t end = __rdtsc();
    if (last.was == SENT)
        count(AFTER, begin - last.at);
    else if (last.was == NOTHING)
        count(AGAIN, begin - last.at);
    last.was = n > 0 ? RECEIVED : NOTHING;
    count(last.was, end - begin);
    if (n > 0) {
        count(EMPTY, last.empty);
        last.empty = 0;
    } else {
        last.empty++;
    }
    last.at = __rdtsc(); /* what is done here is nobody's */
    return n;
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
    return stamped_recv(fd, buf, len, flags, NULL, NULL);
}

ssize_t recvfrom(int fd, void *restrict buf, size_t len, int flags, struct sockaddr *restrict from,
                 socklen_t *restrict from_len)
{
    return stamped_recv(fd, buf, len, flags, from, from_len);
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
    uint64_t begin = __rdtsc();
    if (last.was == RECEIVED)
        count(TURN, begin - last.at);
    ssize_t n = syscall(SYS_sendto, fd, buf, len, flags, NULL, 0);
    count(SENT, __rdtsc() - begin);
    last.was = SENT;
    last.at = __rdtsc();
    return n;
}

static uint64_t total(enum what kind)
{
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++)
        sum += slots[kind][i];
    return sum;
}

/* Below which this share of them is. */
static unsigned share_of(enum what kind, double share)
{
    uint64_t upto = (uint64_t)(share * (double)total(kind)), sum = 0;
    unsigned i = 0;
    while (i < SLOTS - 1 && (sum += slots[kind][i]) <= upto)
        i++;
    return i * kinds[kind].step;
}

__attribute__((destructor)) static void report(void)
{
    if (total(SENT) < LEAST)
        return;
    dprintf(STDERR_FILENO, "| process %d, cycles | times | 10 %% | 50 %% | 90 %% |\n|---|---|---|---|---|\n",
            (int)getpid());
    for (enum what kind = 0; kind < KINDS; kind++)
        dprintf(STDERR_FILENO, "| %s | %llu | %u | %u | %u |\n", kinds[kind].name,
                (unsigned long long)total(kind), share_of(kind, 0.1), share_of(kind, 0.5),
                share_of(kind, 0.9));
}
