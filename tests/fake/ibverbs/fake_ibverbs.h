/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test can ask of the fake libibverbs beside the calls of infiniband/verbs.h: see README.md.
 * Link the library and open the same file with dlopen (or find these functions with dlsym): both
 * reach the same devices. Every function may be called from any thread at any time.
 */
#ifndef WEFT_FAKE_IBVERBS_H
#define WEFT_FAKE_IBVERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/* --- devices ------------------------------------------------------------------------------ */

/* The devices from now on, in the language of FAKE_VERBS ("devices=2,inline=0"); what it does not
 * name is as by default, whatever the environment says. EBUSY while a context is open, EINVAL for
 * a text that does not parse (then nothing has changed). */
int fake_verbs_configure(const char *spec);
/* As FAKE_VERBS has it, all ports up; nothing held, nothing planned, no faults, counters at 0.
 * EBUSY while a context is open; the rest has been done then. */
int fake_verbs_reset(void);
/* Put a GID into a table: an IPv6 address ("::ffff:10.0.0.1", "::" for an empty place). Returns 0
 * or an errno. No event is raised. */
int fake_verbs_set_gid(const char *device, int port, int index, const char *address,
                       enum ibv_gid_type type);

/* --- what went wrong in the caller --------------------------------------------------------- */

/* Misuse that was noticed since the last forgive, one sentence a line. Returns how many. */
int fake_verbs_faults(char *text, size_t len);
void fake_verbs_forgive(void);
/* Objects that are alive: contexts, domains, registrations, channels and queues. */
int fake_verbs_objects(void);

/* What ibv_modify_qp has made of a queue pair. */
int fake_verbs_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr);

struct fake_verbs_stats {
    uint64_t posts, sends;       /* calls of post_send, work requests in them */
    uint64_t recv_posts, recvs;  /* the same of post_recv and post_srq_recv */
    uint64_t signaled, inlined;  /* of the sends */
    uint64_t polls, completions; /* calls of poll_cq, what they returned */
    uint64_t arms, events;       /* calls of req_notify_cq, completion events raised */
    uint64_t registrations, relaxed, dmabufs;
    uint64_t op[16]; /* sends by enum ibv_wr_opcode */
};
void fake_verbs_stats(struct fake_verbs_stats *stats);

/* --- when things happen -------------------------------------------------------------------- */

/* From now on work requests wait in their send queues. */
void fake_verbs_hold(void);
/* Let n of those that wait happen, one of each queue in turn; holding goes on. Negative: all, and
 * holding ends. Returns how many happened. */
int fake_verbs_release(int n);
/* From now on (or no longer) work requests happen at the peer, and nobody is told: those of a
 * queue pair that fails are then flushed, though they happened. */
void fake_verbs_hold_acks(bool hold);
/* How many work requests wait, held or because their peer is out of reach or has no receive. */
int fake_verbs_waiting(void);

/* --- faults on demand ---------------------------------------------------------------------- */

/* The nth (1 is the next) call of post_send fails at its kth (1 is the first) request: those
 * before it are accepted. A call with fewer requests does not count. */
void fake_verbs_fail_post(int nth, int k, int error);

#define FAKE_VERBS_ANY (-1)
/* The nth send work request (of this enum ibv_wr_opcode, or any) that comes to its turn ends with
 * this status. delivered: it has happened at the peer, only the answer was lost. */
void fake_verbs_fail_send(int opcode, int nth, enum ibv_wc_status status, bool delivered);

/* The nth call of this function ("ibv_reg_mr") fails with this errno; every_one: and all later
 * ones. An error of 0 takes the order back. */
void fake_verbs_fail_call(const char *name, int nth, int error, bool every_one);

/* Take a port down or up, with the event. While it is down nothing passes. */
int fake_verbs_port(const char *device, int port, bool up);
/* Raise an event at every context of the device. which: the port, or for the events of a queue
 * pair its number. IBV_EVENT_DEVICE_FATAL and IBV_EVENT_QP_FATAL also do what they say. */
int fake_verbs_event(const char *device, enum ibv_event_type type, uint32_t which);

#endif
