/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake libibverbs: its objects, and what its files share. One mutex guards all of it: every
 * exported function takes it, everything named fake__ is called under it unless it says otherwise.
 */
#ifndef WEFT_FAKE_H
#define WEFT_FAKE_H

/* What the two headers declare is exported, the rest of the library is hidden. */
#pragma GCC visibility push(default)
#include "fake_ibverbs.h"
#pragma GCC visibility pop

#include <pthread.h>

#define FAKE_DEVICES 8
#define FAKE_PORTS 4
#define FAKE_GIDS 8
#define FAKE_SGE 32       /* the most that max_sge can be */
#define FAKE_QPN_FIRST 17 /* 0 and 1 are special on real devices */
#define FAKE_QPN_LAST 0xffffff

/* --- fake_config.c: what devices are like -------------------------------------------------- */

struct fake_config {
    uint64_t devices, vendor, ports, link, pkeys, mtu, inlined, inline_quiet, atomics, srq, max_sge;
    uint64_t max_qp_wr, max_srq_wr, max_cqe, max_qp, max_mr, max_mr_size, mr_limit;
    uint64_t max_rd_atom, max_msg;
    uint64_t dmabuf, relaxed, gid_table, stale, mute, comm_est, strict, retry_polls, retry_ms;
    char gid[64];    /* kinds of entries, joined by + */
    char sysfs[160]; /* where the devices' folders are */
};
/* Fill in the defaults, then what spec names. 0 or EINVAL. */
int fake__config_parse(struct fake_config *config, const char *spec);
extern struct fake_config fake__config;

/* --- fake_device.c: devices and contexts ---------------------------------------------------- */

struct fake_gid {
    union ibv_gid gid;
    enum ibv_gid_type type;
};

struct fake_port {
    enum ibv_port_state state;
    uint16_t lid;
    struct fake_gid gids[FAKE_GIDS];
};

struct fake_device {
    struct ibv_device pub;
    struct fake_port ports[FAKE_PORTS + 1]; /* as in verbs, the first is 1 */
    uint32_t next_qpn;
    bool fatal;
};

/* A queue of events behind a descriptor that is readable while it is not empty. */
struct fake_event {
    struct ibv_async_event async; /* of a context */
    struct fake_cq *cq;           /* of a channel */
};
struct fake_events {
    int fd;
    struct fake_event *ring;
    size_t head, count, size;
};

enum fake_kind { FAKE_CONTEXT = 1, FAKE_PD, FAKE_MR, FAKE_CHANNEL, FAKE_CQ, FAKE_SRQ, FAKE_QP };
#define FAKE_KINDS (FAKE_QP + 1)

/* At the head of each object's own part. */
struct fake_object {
    uint32_t magic;
    enum fake_kind kind;
    struct fake_context *context;
};

struct fake_context {
    struct fake_object object;
    struct fake_device *device;
    struct fake_context *next;
    struct fake_events async;
    int live[FAKE_KINDS];
    struct verbs_context pub; /* what a caller has ends it */
};

extern struct fake_device fake__devices[FAKE_DEVICES];
extern struct fake_context *fake__contexts;
void fake__devices_make(void);
struct fake_device *fake__device(const char *name);
struct fake_context *fake__context(struct ibv_context *pub);
bool fake__port_exists(uint32_t port);

/* --- fake_object.c: life and death, faults -------------------------------------------------- */

extern pthread_mutex_t fake__mutex;
void fake__lock(void);
void fake__unlock(void);
void fake__fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void fake__object_make(struct fake_object *object, enum fake_kind kind,
                       struct fake_context *context);
/* Of a live object; else a fault that names the call. */
bool fake__object_ok(const struct fake_object *object, enum fake_kind kind, const char *call);
/* The object is dead, but its memory stays for a while, so that its use is noticed. */
void fake__object_retire(struct fake_object *object, void *memory);
void fake__object_lost(struct fake_object *object);
extern int fake__objects;
extern struct fake_verbs_stats fake__stats;

/* The object of a public one, or NULL with a fault. */
#define FAKE_OF(type, field, kind, public, call)                                                  \
    (fake__object_ok((public) ? &((struct type *)(void *)(public))->field : NULL, kind, call)     \
         ? (struct type *)(void *)(public)                                                        \
         : NULL)

/* --- fake_event.c --------------------------------------------------------------------------- */

/* 0 or an errno */
int fake__events_open(struct fake_events *events);
void fake__events_close(struct fake_events *events);
void fake__events_push(struct fake_events *events, const struct fake_event *event);
/* Take the events of an object that goes away. */
void fake__events_forget(struct fake_events *events, const void *element);
/* Wait as the descriptor's flags want it. Called without the mutex and returns with it. 0 or -1. */
int fake__events_wait(struct fake_events *events, struct fake_event *event);
void fake__async(struct fake_context *context, enum ibv_event_type type, void *element);
void fake__async_port(struct fake_context *context, enum ibv_event_type type, int port);

/* --- fake_mr.c ------------------------------------------------------------------------------ */

struct fake_pd {
    struct ibv_pd pub;
    struct fake_object object;
    int users;
};

struct fake_mr {
    struct ibv_mr pub;
    struct fake_object object;
    struct fake_pd *pd;
    uint8_t *at; /* the memory itself; iova is what it is called in work requests */
    uint64_t iova;
    unsigned int access;
    void *mapped; /* of a dma-buf */
    size_t mapped_len;
    struct fake_mr *next_lkey, *next_rkey;
};

/* Where a piece of registered memory is. NULL: key, domain, range or access is wrong. */
uint8_t *fake__mr_local(const struct fake_pd *pd, uint32_t lkey, uint64_t addr, uint64_t len,
                        unsigned int access);
uint8_t *fake__mr_remote(const struct fake_pd *pd, uint32_t rkey, uint64_t addr, uint64_t len,
                         unsigned int access);
void fake__mr_abandon(const struct fake_context *context);

/* --- fake_cq.c ------------------------------------------------------------------------------ */

struct fake_channel {
    struct ibv_comp_channel pub;
    struct fake_object object;
    struct fake_events events;
};

/* A completion, and whose send queue it makes room in. */
struct fake_wc {
    struct ibv_wc wc;
    struct fake_qp *qp;
    uint64_t freed; /* send slots up to this one */
    bool of_send;
};

enum fake_armed { FAKE_UNARMED, FAKE_ARMED, FAKE_ARMED_SOLICITED };

struct fake_cq {
    struct ibv_cq pub;
    struct fake_object object;
    struct fake_channel *channel;
    struct fake_wc *ring;
    size_t head, count;
    enum fake_armed armed;
    bool overrun;
    int users;
    uint32_t reported; /* completion events handed out */
    uint32_t async_reported;
};

void fake__cq_push(struct fake_cq *cq, const struct fake_wc *wc, bool solicited);
/* A queue pair goes away or is reset: so do its completions, on most devices. */
void fake__cq_purge(struct fake_cq *cq, struct fake_qp *qp);
int fake__poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int fake__req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* --- fake_queue.c: receives ----------------------------------------------------------------- */

struct fake_recv {
    uint64_t wr_id;
    int nsge;
    struct ibv_sge *sge; /* room for max_sge */
};

struct fake_rq {
    struct fake_recv *ring;
    struct ibv_sge *sges;
    uint32_t size, max_sge, head, count;
};

struct fake_srq {
    struct ibv_srq pub;
    struct fake_object object;
    struct fake_pd *pd;
    struct fake_rq rq;
    int users;
    uint32_t reported;
};

int fake__rq_open(struct fake_rq *rq, uint32_t size, uint32_t max_sge);
void fake__rq_close(struct fake_rq *rq);
int fake__rq_post(struct fake_rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                  const char *what);
struct fake_recv *fake__rq_first(struct fake_rq *rq);
void fake__rq_pop(struct fake_rq *rq);
int fake__post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* --- fake_qp.c, fake_state.c ---------------------------------------------------------------- */

struct fake_send {
    struct ibv_send_wr wr;
    struct ibv_sge *sge; /* room for cap.max_send_sge */
    uint8_t *inlined;    /* room for cap.max_inline_data: the payload, if it came along */
    uint64_t len;
    bool tried;            /* what follows is decided */
    bool fails, delivered; /* on demand */
    enum ibv_wc_status status;
};

/* Why the first request that has not happened has to wait. */
enum fake_wait { FAKE_READY, FAKE_NO_PATH, FAKE_NO_RECV };

struct fake_qp {
    struct ibv_qp pub;
    struct fake_object object;
    struct fake_pd *pd;
    struct fake_cq *send_cq, *recv_cq;
    struct fake_srq *srq;
    struct ibv_qp_cap cap;
    bool sig_all;
    enum ibv_qp_state state;
    struct ibv_qp_attr attr; /* all that modify has set */
    uint32_t send_psn, recv_psn;
    /* the send queue, of cap.max_send_wr slots: freed; completed; happened; posted */
    struct fake_send *sends;
    struct ibv_sge *sges;
    uint8_t *inlines;
    uint64_t freed, next, done, last;
    struct fake_rq rq;
    uint32_t reported;
    /* among those whose requests wait */
    struct fake_qp *prev_waiting, *next_waiting;
    bool waiting, established;
    enum fake_wait wait;
    uint64_t wait_until, wait_polls, pass;
    struct fake_qp *next_qp;
};

struct fake_qp *fake__qp_find(const struct fake_device *device, uint32_t qpn);
void fake__qp_abandon(const struct fake_context *context);
void fake__qp_each(const struct fake_device *device, void (*act)(struct fake_qp *qp));
/* To the error state: what is queued is flushed. */
void fake__qp_error(struct fake_qp *qp);
void fake__qp_clear(struct fake_qp *qp);
/* Is this change allowed, with these attributes? fake_state.c */
int fake__state_check(const struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask);

/* --- fake_post.c, fake_exec.c, fake_op.c ----------------------------------------------------- */

int fake__post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake__post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* Do what can be done of a send queue. */
void fake__run(struct fake_qp *qp);
/* Something has changed: look at all that wait. polled: the queue whose polls are counted. */
void fake__run_waiting(const struct fake_cq *polled);
int fake__run_some(int n);
void fake__unwait(struct fake_qp *qp);
void fake__complete_send(struct fake_qp *qp, enum ibv_wc_status status);
/* What has happened at the peer completes. */
void fake__acknowledge(struct fake_qp *qp);
void fake__complete_recv(struct fake_qp *qp, const struct fake_recv *recv,
                         const struct fake_send *send, enum ibv_wc_status status);
struct fake_send *fake__send_first(struct fake_qp *qp);
int fake__waiting_sends(void);
/* When the first of those that wait gives up; UINT64_MAX for never. */
uint64_t fake__next_deadline(void);
extern bool fake__holding, fake__holding_acks;
extern struct fake_qp *fake__waiting;

/* What became of a request at its peer. */
struct fake_outcome {
    enum fake_wait wait; /* FAKE_READY: it happened, or failed */
    enum ibv_wc_status status;
    bool peer_fails;           /* the peer's queue pair, too */
    enum ibv_event_type event; /* which the peer then hears; IBV_EVENT_COMM_EST for none */
};
/* peer: NULL if it is out of reach. */
struct fake_outcome fake__op(struct fake_qp *qp, struct fake_send *send, struct fake_qp *peer);
/* The queue pair at the other end; NULL if no packet gets there. fake_path.c */
struct fake_qp *fake__path(const struct fake_qp *qp);

/* --- fake_plan.c: faults on demand ---------------------------------------------------------- */

/* The errno with which this call has to fail, or 0. */
int fake__plan_call(const char *name);
/* The request, counted from 1, at which this post fails; 0 for none. */
int fake__plan_post(int requests, int *error);
bool fake__plan_send(int opcode, enum ibv_wc_status *status, bool *delivered);
void fake__plan_clear(void);

/* --- fake_clock.c: what happens after a while ------------------------------------------------ */

uint64_t fake__now(void);
/* There is a thread while there is a context. stop is called without the mutex. */
int fake__clock_start(void);
void fake__clock_stop(void);
/* A deadline was set. */
void fake__clock_wake(void);

#endif
