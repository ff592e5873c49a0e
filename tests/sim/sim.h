/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulation: processes of Weft on hosts of a network, all in one thread, all from one seed.
 *
 * The library is linked with its system calls replaced (--wrap, tests/sim/CMakeLists.txt). Each
 * thread of a simulated process is a fiber; it gives way inside a call: always where the call
 * blocks, else when the dice say so. Time is virtual: it moves a little with each call, and jumps
 * to the next event when no fiber can go on. All that is random comes from one generator, so a
 * seed replays exactly; a hash over all that happened proves it.
 *
 * sched.c fibers, clock, events; lock.c threads, locks, sleep; heap.c memory; proc.c processes;
 * file.c descriptors; net.c, socket.c TCP; lend.c pages that it is lent; unix.c what `local` uses; chaos.c faults; plan.c the dice of a
 * schedule; program.c, act.c what processes do; ledger.c what has to be true; main.c runs it.
 */
#ifndef WEFT_SIM_H
#define WEFT_SIM_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define SIM_US 1000u
#define SIM_MS 1000000u
#define SIM_S 1000000000u
#define SIM_NEVER UINT64_MAX
#define SIM_LATER 0x5a /* what a program writes into pages that it has taken back, to their bits */

#define SIM_MAX_HOSTS 3
#define SIM_MAX_PROCS 12 /* of one schedule, restarted ones included */
#define SIM_MAX_ENV 20

struct sim_fiber;
struct sim_file;

/* A process: one endpoint and its program. */
struct sim_proc {
    int id, pid, host;
    bool started, dead;     /* dead: killed, or its program has ended */
    bool dying;             /* to be killed once no fiber holds a lock of all processes */
    uint64_t stopped_until; /* no fiber of it runs before */
    int nfds, fd_limit;
    int nlisteners; /* for TCP, ever */
    int64_t live;   /* allocations of it that are not freed */
    struct {
        char name[32], value[96];
    } env[SIM_MAX_ENV];
    int nenv;
};

/* What one schedule is like. */
struct sim_plan {
    bool calm;            /* no conn is lost and no one gives up: all must end well, in time */
    bool frail;           /* each conn has several links, and connections of the first are reset */
    int nhosts, nprocs;   /* processes at the beginning */
    uint32_t yield_every; /* a call gives way once in so many */
    uint64_t latency;     /* ns, one way, at least */
    uint64_t jitter;      /* ns */
    uint32_t pipe_most;   /* largest buffer of a socket, bytes */
    uint32_t short_every; /* a send or receive moves a part only, once in so many */
    uint32_t actions;     /* of a program */
    uint32_t size_most;   /* of a transfer, bytes */
    uint32_t chaos_events;
    uint32_t no_memory_every; /* an allocation fails once in so many; 0: never */
};

struct sim_state {
    uint64_t seed, random, now, hash, steps;
    uint64_t version; /* of all that a blocked fiber may wait for */
    bool verbose;
    struct sim_fiber *current;
    struct sim_plan plan;
    struct sim_proc procs[SIM_MAX_PROCS];
    int nprocs;
    uint32_t must; /* fibers in a call that has to end well, and soon */
    bool nagging;  /* no_memory_every is in force */
    bool leaving;  /* calm: all have seen the end of what they did, and close */
    /* for the summary */
    uint64_t ops, ops_ok, conns, faults;
};
extern struct sim_state sim;

/* --- main.c -------------------------------------------------------------------------------- */

/* The schedule has failed: say why, and end it. */
_Noreturn void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define SIM_CHECK(cond, ...)                                                                      \
    do {                                                                                          \
        if (!(cond))                                                                              \
            sim_fail(__VA_ARGS__);                                                                \
    } while (0)

/* --- sched.c ------------------------------------------------------------------------------- */

uint64_t sim_random(void);
uint32_t sim_pick(uint32_t n); /* below n, which is not 0 */
bool sim_once_in(uint32_t n);  /* never if n is 0 */
/* What happened: into the hash, and to standard output if it is wanted. No addresses! */
void sim_trace(const char *what, int64_t a, int64_t b, int64_t c);

typedef void *sim_fiber_fn(void *arg);
typedef bool sim_ready_fn(void *arg);
typedef void sim_event_fn(void *arg);

struct sim_fiber *sim_fiber_start(struct sim_proc *proc, sim_fiber_fn *fn, void *arg);
bool sim_fiber_done(const struct sim_fiber *fiber);
int sim_fiber_id(const struct sim_fiber *fiber);
struct sim_proc *sim_self(void); /* NULL: not in a fiber of a process */
/* A lock that all processes share is taken (1) or let go of (-1). */
void sim_fiber_hold(int by);
/* Time passes, and another fiber may have its turn. */
void sim_step(void);
void sim_yield(void);
/* Until ready (may be NULL), or until then. Returns whether ready. why: for people. */
bool sim_block(const char *why, sim_ready_fn *ready, void *arg, uint64_t until);
void sim_changed(void);
void sim_at(uint64_t when, sim_event_fn *fn, void *arg);
/* Run until all fibers are done. */
void sim_run(void);
/* Where they are, to standard output. */
void sim_fibers_dump(void);
void sim_kill_fibers(const struct sim_proc *proc);
/* Does a fiber of it hold a lock that other processes need? */
bool sim_holds_shared(const struct sim_proc *proc);

/* --- proc.c -------------------------------------------------------------------------------- */

struct sim_proc *sim_proc_new(int host);
void sim_proc_env(struct sim_proc *proc, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
struct sim_proc *sim_proc_of_pid(int pid);
/* kill -9, now or as soon as it holds no lock of all. silent: its host lost power. */
void sim_kill(struct sim_proc *proc, bool silent);

/* --- heap.c -------------------------------------------------------------------------------- */

void sim_heap_report(const struct sim_proc *proc);
/* Memory of the simulation itself: zeros, never freed. */
void *sim_alloc(size_t len);

/* --- file.c -------------------------------------------------------------------------------- */

enum sim_kind {
    SIM_STREAM,
    SIM_LISTENER, /* of streams, or of packets */
    SIM_PACKET,
    SIM_EPOLL,
    SIM_COUNTER, /* eventfd */
    SIM_TIMER,
    SIM_MEMORY, /* memfd */
    SIM_PIPE,   /* both its ends */
    SIM_TEXT    /* of /proc, /dev/null */
};

struct sim_file {
    enum sim_kind kind;
    int refs;
    void *object;
    uint64_t count; /* COUNTER: value; TIMER: due, 0: not set; TEXT: read so far */
    const char *text;
    struct sim_watch *watches; /* EPOLL */
};

struct sim_file *sim_file_new(enum sim_kind kind, void *object);
/* A descriptor of the running process. -1 and EMFILE. */
int sim_fd_new(struct sim_file *file);
/* The file of a descriptor, which has to be open, and of this kind unless kind is -1. */
struct sim_file *sim_fd(int fd, int kind);
bool sim_is_fd(int fd);
/* EPOLL* bits that hold now. */
uint32_t sim_file_events(const struct sim_file *file);
void sim_close_all(struct sim_proc *proc);
void sim_file_put(struct sim_file *file);

/* --- net.c --------------------------------------------------------------------------------- */

uint32_t sim_stream_events(const void *stream);
/* Changes when epoll has to tell of these events (again). */
uint64_t sim_stream_edges(const void *stream);
uint32_t sim_listener_events(const void *listener);
void sim_stream_close(void *stream);
void sim_listener_close(void *listener);
int sim_socket_of(int domain, int type);
/* Faults. A pair of hosts that hears nothing of each other; a host without power. */
void sim_cut(int a, int b, bool cut);
/* Since when; SIM_NEVER: it is not. */
uint64_t sim_cut_since(int a, int b);
bool sim_is_cut(int a, int b);
void sim_power(int host, bool on);
/* Reset one open connection, if there is any. */
void sim_reset_one(void);
void sim_reset_link(void);
/* All connections of a process vanish without a word. */
void sim_streams_vanish(const struct sim_proc *proc);
int sim_host_of_self(void);
void sim_refuse(uint32_t every);

/* --- unix.c -------------------------------------------------------------------------------- */

uint32_t sim_packet_events(const void *socket);
void sim_packet_close(void *socket);
void sim_memory_put(void *memory);

/* --- chaos.c, plan.c ----------------------------------------------------------------------- */

void *sim_chaos(void *arg);
void sim_plan_make(void);
void sim_env_make(struct sim_proc *proc);

/* --- program.c ----------------------------------------------------------------------------- */

/* What a process runs; arg is its sim_proc. */
void *sim_program(void *arg);
void sim_programs_begin(void);
/* After all has ended. */
void sim_programs_check(void);
/* What they wait for, to standard output. */
void sim_programs_dump(void);

#endif
