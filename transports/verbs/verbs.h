/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs: reliable-connected queue pairs on any RDMA nic. Structs first, then the functions of each
 * file.
 *
 * A link has one *control* queue pair and a few *data* queue pairs. Control carries messages, from
 * slots of the nic, so it may outlive the link for the moment that its goodbye takes. Data carries
 * WRITE, WRITE_IMM, READ and ADD64 of the user's memory; it is destroyed when the link is closed.
 * A wrong key makes a reliable queue pair fail, at both ends; then control brings the data queue pair
 * back to life, and what was not executed is posted again (verbs_fault.c).
 *
 * Life of a short WRITE: post writes a *rec* into the ring of data queue pair 0 and a work request
 * that points to it by number; only the last request of a post asks for a completion. poll reads that
 * completion, which settles every rec up to it, and turns the recs into comps. What is longer than
 * VERBS_SHORT becomes an *op*, of which chunks (WEFT_VERBS_CHUNK) go out over the other data queue pairs
 * in turns.
 */
#ifndef WEFT_VERBS_H
#define WEFT_VERBS_H

#include <stdbool.h>

#include "verbs_lib.h"
#include "verbs_wire.h"
#include "weft/transport.h"

/* Most cmds of a link between post and completion, and the depth of a data queue pair. */
#define VERBS_DEPTH 256
/* Work requests of a control queue pair: twice what credits allow, for what needs none. */
#define VERBS_CONTROL_DEPTH 64
/* An eager message of core (WEFT_EAGER is 8 KiB by default) with its head. */
#define VERBS_MAX_SEND 8704
#define VERBS_MAX_INLINE 256
#define VERBS_MAX_IOV 64
#define VERBS_MAX_SGE 16
#define VERBS_MAX_MSG ((uint64_t)1 << 46) /* more than a process can map */
/* Receives of a link beyond its credits: two counts of messages and two of immediates may be on their
 * way, a goodbye, and one to spare. */
#define VERBS_SPARE_RECVS (6 + VERBS_EARLY)
/* Messages that count as taken before their receives are posted again, so that the answer to them tells:
 * the posting is for the poll after it. */
#define VERBS_EARLY 4
/* Immediates that a peer may send through a data queue pair before it hears that they were taken. */
#define VERBS_IMMS 32
/* What is longer goes over the other data queue pairs: it would keep a short one behind it waiting. */
#define VERBS_SHORT 65536
/* Chunks of long operations in one data queue pair: enough to keep a fast wire busy until the next
 * poll (4 MiB are 80 us at 400 Gbit/s), few enough that a long one does not hide others. */
#define VERBS_WINDOW 4
#define VERBS_BATCH 32 /* work requests handed to the device in one call, completions read */
#define VERBS_CHECKS 4 /* questions of a link that may be open at once */
#define VERBS_SLAB 32  /* slots that a pool adds at a time, at most */
#define VERBS_TABLES (2 * VERBS_DEPTH) /* of keys, that a link keeps; cmds use fewer at once */

struct verbs_nic;
struct verbs_link;
struct verbs_qp;
struct verbs_op;

/* --- slots of registered memory ------------------------------------------------------------------ */

struct verbs_slot {
    struct verbs_slot *next; /* free list; received messages: those that comps point to */
    struct verbs_pool *pool;
    struct verbs_link *link; /* received: who gets the credit; without a shared queue: in whose */
    void *data;
    uint32_t lkey;
    uint32_t index; /* in the pool */
    bool early;     /* received: counts as taken already */
};

struct verbs_slab {
    struct verbs_slab *next;
    struct ibv_mr *mr;
    void *data;
    struct verbs_slot slots[VERBS_SLAB];
};

struct verbs_pool {
    struct verbs_nic *nic;
    struct verbs_slab *slabs;
    struct verbs_slot **by_index;
    struct verbs_slot *free;
    uint32_t size;    /* bytes of a slot */
    uint32_t at_once; /* slots of a slab */
    uint32_t nslots;
};

/* --- memory ---------------------------------------------------------------------------------------- */

struct verbs_part {
    struct ibv_mr *mr;
    uint32_t lkey, rkey;
};

/* One registration of the user is one of the device, or several *parts* where the device does not take so
 * much at once. Parts end at multiples of 2^shift. The first one's rkey stands for all of it: the peer is
 * told the others when it first needs them (verbs_keys.c). */
struct verbs_mem {
    struct verbs_mem *prev, *next; /* nic->mems */
    uint32_t lkey, rkey;           /* of the first part */
    uint32_t nparts;
    uint8_t shift;
    bool stuck; /* the device does not let go of it */
    struct weft_mem_range range;
    struct verbs_part parts[];
};

/* The keys of memory of the peer that is in parts. */
struct verbs_table {
    struct verbs_table *next;
    uint64_t addr, len;
    uint32_t key;         /* that the user has */
    uint32_t nkeys, have; /* have: how many the peer has told so far */
    uint8_t shift;
    uint32_t keys[];
};

/* --- work ------------------------------------------------------------------------------------------ */

/* A cmd of several work requests, or of none: long ones, zero-length ones, fences. */
struct verbs_op {
    struct verbs_op *next, **at;         /* of the list that it is in; at NULL: of none */
    struct verbs_op *all_next, **all_at; /* link->ops */
    struct verbs_link *link;
    uint8_t op;      /* enum weft_op */
    uint8_t flags;   /* WEFT_CMD_* */
    bool imm_posted; /* WRITE_IMM: its immediate is on its way */
    bool lkey_known; /* `one` is all under this lkey, whatever its mem is */
    uint8_t again;   /* faults after which a request of it went again with other keys */
    uint16_t niov;
    uint32_t imm, rkey, lkey;
    uint32_t pending; /* work requests in a queue */
    int32_t status;
    const char *why; /* of a bad status; static storage */
    uint64_t remote_addr, len, ctx, value;
    uint64_t posted; /* bytes in work requests so far */
    struct weft_iov_local one;
    const struct weft_iov_local *iov;
    struct verbs_mem **loans; /* of pieces that the user has not registered, until it is freed */
    struct verbs_slot *slot;  /* as in a rec */
};

struct verbs_ops {
    struct verbs_op *head, **tail;
};

/* A work request in the ring of its queue pair, until a completion settles it. With what it takes to
 * post it again. */
struct verbs_rec {
    uint64_t ctx;
    uint64_t len;
    uint64_t remote_addr, value;
    uint64_t offset; /* of a chunk in its op */
    struct verbs_op *op;
    struct verbs_slot *slot; /* of the nic: copied payload, or where what is read lands */
    const struct weft_iov_local *iov;
    void *addr;
    uint32_t lkey, rkey, imm;
    int32_t status;  /* that it ends with */
    const char *why; /* of a bad status; static storage */
    uint8_t niov;
    bool remote;   /* a piece is memory that the processor cannot read, of a GPU: not to be sent inline */
    bool nothing;  /* only keeps its place in the queue: executed before a fault, or failed */
    bool ended;    /* it only kept its place when it failed, now again: its cmd has its status */
    bool tabled;   /* it went with a key of a table, not with rkey */
    uint8_t again; /* as in an op, if it is of none */
    uint8_t kind;  /* enum weft_op; control: enum verbs_kind; or VERBS_NOTHING */
};
#define VERBS_NOTHING 0xffu /* of no cmd */

enum verbs_qp_state {
    VERBS_QP_NEW,
    VERBS_QP_LIVE,
    VERBS_QP_DRAINING, /* failed: completions of what was posted are still to come */
    VERBS_QP_TOLD,     /* drained; the peer was told, and has not yet said the same */
    VERBS_QP_RESET,    /* live again, but the peer may not be yet */
    VERBS_QP_DEAD
};

struct verbs_qp {
    struct ibv_qp *qp;
    struct verbs_link *link;
    struct verbs_qp *harvest_next;
    uint8_t index;   /* 0: control, else 1 + number of the data queue pair */
    uint8_t state;   /* enum verbs_qp_state */
    bool harvesting; /* in nic->harvest */
    uint16_t place;  /* in nic->qps */
    uint8_t life; /* how often that place was used before: completions of another life are old */
    uint32_t psn, peer_qpn, peer_psn;
    /* sending: recs [tail, head), of which [tail, settled) have their completion */
    struct verbs_rec *recs;
    uint32_t mask, depth;
    uint32_t head, tail, settled;
    uint32_t flying;      /* requests of which the device may still tell */
    uint32_t quiet; /* in a row, the newest ones: that ask for no completion. Control queue pair. */
    uint64_t chunk_bytes; /* of long operations in it */
    bool
        loose; /* the last request asked for no completion: the device did not take those after it */
    uint32_t recvs; /* receives in its own queue */
    /* immediates, of data queue pair 0 only */
    uint32_t imms_in;  /* that have arrived, ever */
    uint32_t imms_out; /* posted, ever */
    uint32_t imms_told,
        imms_heard; /* how many of imms_in the peer knows, and of imms_out this end */
    /* a fault */
    uint8_t epoch;
    bool heard;
    bool claimed;       /* the peer's request was the cause */
    uint8_t unclaimed;  /* faults in a row for which no request was the cause, and the same one came first */
    uint32_t stuck_at;  /* that one */
    bool own_fault;     /* a request of this end was refused: those after it were not executed */
    bool suspected;     /* it was not refused, but not answered: the peer tells what it was */
    bool guessed;       /* none of either: the peer is asked about the first one */
    uint32_t failed;    /* that request */
    int32_t verdict;    /* on the peer's question */
    uint32_t peer_imms; /* of imms_out that the peer had at the fault */
    uint64_t deadline;
};

enum verbs_link_state {
    VERBS_LINK_NEW,
    VERBS_LINK_JOINING, /* the queue pairs are connected, the ends are not sure of each other */
    VERBS_LINK_UP,
    VERBS_LINK_DOWN,
    VERBS_LINK_CLOSED /* only the goodbye is on its way */
};

struct verbs_check {
    struct verbs_op *op;
    uint32_t id;
};

/* A message of the control queue pair that waits for a credit or for room. */
struct verbs_note {
    struct verbs_note *next;
    uint8_t kind;
    uint8_t len;
    uint8_t body[64];
};

struct verbs_link {
    struct weft_link base;
    struct verbs_link *prev, *next; /* nic->links or nic->closed */
    struct verbs_link *qpn_next;    /* nic->by_qpn */
    uint8_t state;                  /* enum verbs_link_state */
    uint8_t role;
    bool keyed, down_due, busy; /* busy: in nic->busy */
    struct verbs_link *busy_next;
    int status;
    char why[160]; /* sentence for LINK_DOWN */
    uint8_t key[WEFT_MAC];
    struct verbs_address peer;
    uint32_t kept;     /* of nic->cq_kept */
    uint64_t deadline; /* joining, closed: when to give up */
    uint64_t ask_at;   /* waits for the peer's program: when to see whether it is alive; 0: not */
    uint32_t ndata;
    struct verbs_qp control;
    struct verbs_qp *data;
    /* messages */
    uint32_t credits;       /* that this end may send */
    uint32_t taken;         /* of the peer, that it has not been told of */
    uint32_t early;         /* of its messages: taken, without a new receive as yet */
    uint32_t window;        /* credits that the peer has in all */
    uint32_t sent, acked;   /* messages that took a credit: posted, and taken by the peer, ever */
    uint64_t untold_since;  /* when `taken` began to grow; 0: it is 0 */
    struct verbs_ops sends; /* SENDs that the peer has not taken, in order */
    struct verbs_note *notes, **notes_tail;
    uint32_t nnotes;
    bool mute;                  /* there is no one to say goodbye to */
    bool bye_posted, finishing; /* closed: said; only the last receive is waited for */
    struct verbs_address own;
    /* cmds */
    uint32_t nposted;      /* whose comp is not handed out */
    uint32_t nlong;        /* long ops that are not done */
    struct verbs_ops bulk; /* long ops with chunks to post, in turns */
    struct verbs_ops
        imms;             /* long WRITE_IMMs whose data is there, without room for the immediate */
    struct verbs_op *ops; /* all */
    struct verbs_op *fence;
    struct verbs_check checks[VERBS_CHECKS];
    uint32_t check_id, next_qp;
    /* the peer's memory in parts */
    struct verbs_table *tables, *telling; /* last used first; telling: not all of it has come */
    uint32_t ntables, nkeys;
};

/* --- nic ------------------------------------------------------------------------------------------- */

/* One port of a device, as probe lists it. */
struct verbs_device {
    struct ibv_device *device;
    struct weft_device_info info;
    uint8_t port;
};

struct verbs_nic {
    struct weft_nic base;
    const struct verbs_lib *lib;
    char name[32];
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq; /* NULL: the device has none */
    int epoll_fd, timer_fd;
    /* the port */
    uint8_t port, layer;
    uint8_t mtu;
    uint16_t lid;
    int gid_index;
    union ibv_gid gid;
    /* limits */
    uint32_t max_sge, max_inline, depth, control_depth;
    uint8_t reads_in, reads_out;
    uint64_t max_msg, short_max; /* short: of what is one work request */
    uint64_t plain_max; /* the same; 0 as long as any memory, of either end, is in parts */
    /* settings */
    uint32_t ndata, credits, imms;
    uint64_t chunk, flap_ns;
    uint8_t timeout, retries, traffic_class, service_level;
    uint16_t pkey_index;
    int relaxed;
    /* completions that the queue has room for, and how many it had when it was empty */
    int64_t cq_room, cq_size;
    int64_t cq_kept; /* of it, for receives of links that are not connected yet */
    struct ibv_wc *stash; /* read while a queue pair was destroyed: goes before the queue's */
    uint32_t stash_first, stash_n, stash_cap;
    uint32_t unacked; /* events of the completion channel */
    /* memory */
    struct verbs_mem *mems;
    uint64_t mr_max;  /* what the device registers at once, as far as is known */
    uint32_t nparted; /* memory in parts: own, and of peers */
    struct verbs_pool sends, smalls, recvs;
    struct verbs_slot *lent; /* received messages that comps of the last poll point to */
    uint32_t srq_posted;     /* receives in the shared queue */
    uint32_t srq_want;       /* what all links together would like to have there */
    uint32_t srq_most;
    /* queue pairs and links */
    struct verbs_qp **qps;
    uint8_t *lives; /* of each place in qps: how often it was used */
    uint32_t nqps;
    struct verbs_link **by_qpn; /* hash table of control queue pairs */
    struct verbs_link *links, *closed;
    struct verbs_link *busy, **busy_tail;     /* have something to post */
    struct verbs_qp *harvest, **harvest_tail; /* have settled recs */
    struct verbs_op *free_ops;
    struct verbs_ops done; /* ops to hand out */
    struct verbs_note *free_notes;
    uint32_t nlong, ndown, nwaiting; /* nwaiting: links and queue pairs with a deadline */
    uint64_t polls;
    uint64_t port_lost;                /* since when the port is down, 0: it is up */
    int lost;                          /* the device is gone: why */
    bool armed;                        /* wait_fd was called since the last poll */
    bool notify;                       /* the next completion causes an event */
    uint8_t scratch[VERBS_MAX_INLINE]; /* payload that goes into a request */
    struct ibv_send_wr wrs[VERBS_BATCH];
    struct ibv_sge sges[VERBS_BATCH][VERBS_MAX_SGE];
};

/* One call of poll. */
struct verbs_poll {
    struct verbs_nic *nic;
    struct weft_comp *comps;
    int n, max;
};

static inline struct verbs_nic *verbs_nic_of(const struct verbs_link *link)
{
    return (struct verbs_nic *)link->base.nic;
}

/* What a completion is of: what it is, the queue pair, and a number there. */
enum verbs_tag { VERBS_TAG_SEND, VERBS_TAG_IMM, VERBS_TAG_MESSAGE };

static inline uint64_t verbs_wr_id(enum verbs_tag tag, const struct verbs_qp *qp, uint32_t number)
{
    uint64_t who = qp ? (uint64_t)qp->place << 40 | (uint64_t)qp->life << 32 : 0;
    return (uint64_t)tag << 56 | who | number;
}

static inline uint32_t verbs_qp_room(const struct verbs_qp *qp)
{
    return qp->depth - (qp->head - qp->tail);
}

/* From here to the end of the part, if parts end at multiples of 2^shift. */
static inline uint64_t verbs_part_left(uint8_t shift, uint64_t addr)
{
    return (((addr >> shift) + 1) << shift) - addr;
}

/* In how many parts so much memory is; at least one byte. */
static inline uint64_t verbs_part_count(uint8_t shift, uint64_t addr, uint64_t len)
{
    return ((addr + len - 1) >> shift) - (addr >> shift) + 1;
}

/* One more (1) or less (-1) that is in parts. */
static inline void verbs_count_parted(struct verbs_nic *nic, int n)
{
    nic->nparted += (uint32_t)n;
    nic->plain_max = nic->nparted > 0 ? 0 : nic->short_max;
}

/* --- verbs_device.c: which devices there are ------------------------------------------------------- */

weft_probe_fn verbs_probe;
/* The port behind a name of probe, opened: fills context, port, layer, mtu, lid and gid of the nic.
 * context is the caller's to close. */
int verbs_device_open(struct verbs_nic *nic, const char *name);

/* --- verbs_pool.c: slots --------------------------------------------------------------------------- */

void verbs_pool_init(struct verbs_pool *pool, struct verbs_nic *nic, uint32_t size);
void verbs_pool_fini(struct verbs_pool *pool);
/* NULL: there is none free, and no memory for more. */
struct verbs_slot *verbs_slot_get(struct verbs_pool *pool);
void verbs_slot_put(struct verbs_slot *slot);

/* --- verbs_mem.c ----------------------------------------------------------------------------------- */

weft_mem_reg_fn verbs_mem_reg;
weft_mem_dereg_fn verbs_mem_dereg;
/* Register memory that the user has not, for as long as an operation takes. NULL: errno says why. */
struct verbs_mem *verbs_mem_lend(struct verbs_nic *nic, void *addr, uint64_t len);
void verbs_mem_take_back(const struct verbs_nic *nic, struct verbs_mem *mem);
/* The local key for an address; *len is cut to what is under it. */
uint32_t verbs_mem_lkey(const struct verbs_mem *mem, uint64_t addr, uint64_t *len);
/* What kinds of memory the device can register. */
uint32_t verbs_mem_kinds(const struct verbs_nic *nic);
/* May a peer do this? 0, WEFT_EKEY, WEFT_EBOUNDS or WEFT_EACCESS. *beyond, if wanted: it may, but the key in
 * the question is not that of all parts of this memory which it touches; else NULL. */
int verbs_mem_judge(const struct verbs_nic *nic, const struct verbs_question *question,
                    const struct verbs_mem **beyond);

/* --- verbs_keys.c: keys of memory in parts --------------------------------------------------------- */

/* Tell the peer the keys of all parts. */
void verbs_keys_tell(struct verbs_link *link, const struct verbs_mem *mem);
void verbs_keys_heard(struct verbs_link *link, const struct verbs_keys_msg *msg);
/* The key for an address of the peer's memory; *len is cut to what is under it. */
uint32_t verbs_keys_find(struct verbs_link *link, uint32_t key, uint64_t addr, uint64_t *len);
/* Is there a table for all of this, and does it lie in several parts? */
bool verbs_keys_span(struct verbs_link *link, uint32_t key, uint64_t addr, uint64_t len);
/* The memory is not there any more, it seems. */
void verbs_keys_drop(struct verbs_link *link, uint32_t key);
void verbs_keys_drop_all(struct verbs_link *link);

/* --- verbs_qp.c: a queue pair and its states -------------------------------------------------------- */

int verbs_qp_open(struct verbs_qp *qp, struct verbs_link *link, uint8_t index);
/* From the beginning to ready: packets of the peer's queue pair are taken, and requests sent. */
int verbs_qp_connect(struct verbs_qp *qp);
/* To the beginning and to ready again, with the psns that are in it. */
int verbs_qp_restart(struct verbs_qp *qp);
/* What is in it fails. */
void verbs_qp_fail(struct verbs_qp *qp);
/* No memory of its requests is touched after this, and no completion names it. */
void verbs_qp_close(struct verbs_qp *qp);
/* Receives of zero length for immediates, as many as it may have. */
int verbs_qp_post_imms(struct verbs_qp *qp);
/* Immediates go through the first data queue pair only. */
static inline bool verbs_qp_has_imms(const struct verbs_qp *qp)
{
    return qp->index == 1;
}
/* Ask a device what it grants: inline bytes and depth. */
int verbs_qp_probe(struct verbs_nic *nic);
/* All completions that there are go to the stash. */
void verbs_stash(struct verbs_nic *nic);

/* --- verbs_link.c: a link's life -------------------------------------------------------------------- */

weft_link_open_fn verbs_link_open;
weft_link_address_fn verbs_link_address;
weft_link_connect_fn verbs_link_connect;
weft_link_close_fn verbs_link_close;
/* The link is lost, LINK_DOWN follows. */
void verbs_link_fail(struct verbs_link *link, int status, const char *fmt, ...)
    WEFT_PRINTF(3, 4) WEFT_COLD;
/* The link of a control queue pair, or NULL. */
struct verbs_link *verbs_link_find(const struct verbs_nic *nic, uint32_t qpn);
/* The proof of the link's key that the end in this role gives, and whether this is one: 0, or a code. */
int verbs_link_proof(const struct verbs_link *link, enum weft_role of, uint8_t mac[WEFT_MAC]);
int verbs_link_check(const struct verbs_link *link, enum weft_role of,
                     const uint8_t mac[WEFT_MAC]);
/* Something waits for the peer's program, of whose death no completion tells if nothing is sent. */
void verbs_link_ask(struct verbs_link *link);
/* The ends are sure of each other. */
void verbs_link_up(struct verbs_link *link);
/* All its receives are posted, or will not be: the room that was kept for them is free. */
void verbs_link_posted(struct verbs_link *link);
/* Look at the deadlines of links that are joining or closed. */
void verbs_link_tick(struct verbs_nic *nic, uint64_t now);
/* A closed link has said its goodbye, or cannot: end it as soon as nothing is lost by that. */
void verbs_link_finish(struct verbs_link *link);
/* A closed link ends now. */
void verbs_link_free(struct verbs_link *link);
#define VERBS_BUCKETS 1024 /* of the hash table by queue pair number */

/* --- verbs_control.c: messages ----------------------------------------------------------------------- */

/* Post a SEND of the user. 1; 0: no credit or no room; or a code. */
int verbs_control_send(struct verbs_link *link, const struct weft_cmd *cmd);
/* Send one of the transport's own, at once or when there is room. */
void verbs_control_note(struct verbs_link *link, enum verbs_kind kind, const void *body,
                        uint8_t len);
/* What waits to be sent, and counts that the peer should know by now; or all of them. */
void verbs_control_flush(struct verbs_link *link, bool all_counts);
/* A message has arrived. True: it is the user's, and the slot is the caller's. */
bool verbs_control_arrived(struct verbs_link *link, const struct ibv_wc *wc,
                           const struct verbs_slot *slot);
/* Say goodbye: the last message of a link. */
void verbs_control_bye(struct verbs_link *link);

/* --- verbs_recv.c: receives of messages ----------------------------------------------------------------- */

/* As many as the links want and there is room for, in the shared queue or in the link's own. */
int verbs_recvs_fill(struct verbs_link *link);
/* What was received is done with: the slot goes back to a queue. credit: the peer took one for it. */
void verbs_recv_again(struct verbs_nic *nic, struct verbs_slot *slot, bool credit);
/* A message goes to core, which has it until the next poll. */
void verbs_recv_lend(struct verbs_nic *nic, struct verbs_slot *slot);
/* No comp points to what was received any more. */
void verbs_recvs_take_back(struct verbs_nic *nic);
/* A link is closed: what it had goes back to the pool. */
void verbs_recvs_drop(struct verbs_link *link);

/* --- verbs_fault.c: a data queue pair fails and comes back -------------------------------------------- */

/* A completion with a bad status, of the request with this number. */
void verbs_fault_comp(struct verbs_qp *qp, uint32_t index, enum ibv_wc_status status);
/* What the peer said. */
void verbs_fault_heard(struct verbs_link *link, const struct verbs_fault_msg *msg);
void verbs_fault_ready(struct verbs_link *link, const struct verbs_ready_msg *msg);
/* A receive of a queue pair that has failed has come back. */
void verbs_fault_step(struct verbs_qp *qp);
void verbs_fault_tick(struct verbs_link *link, uint64_t now);
/* The code, and what to look at, for the status of a completion. */
int verbs_status(enum ibv_wc_status status, const char **hint);

/* --- verbs_post.c: from cmds to work requests ---------------------------------------------------------- */

weft_post_fn verbs_post;
/* Make a work request of the rec at a place of the ring. */
void verbs_fill(struct verbs_qp *qp, uint32_t index, struct ibv_send_wr *wr, struct ibv_sge *sges);
/* Hand over n of nic->wrs, which are of the newest n recs. Recs that the device does not take are
 * withdrawn. Returns how many it took; *err: the errno why not all. quiet: a completion is not asked for. */
int verbs_hand_over(struct verbs_qp *qp, int n, bool quiet, int *err);
/* A rec that only asks for a completion, so that those before it get theirs. */
void verbs_post_nothing(struct verbs_qp *qp);
/* May another immediate be posted? */
bool verbs_may_send_imm(struct verbs_link *link);
/* The payload of a cmd, one piece behind the other. */
void verbs_gather(uint8_t *to, const struct weft_cmd *cmd);
/* What was read into a slot, to where the user wants it. */
void verbs_scatter(const struct verbs_slot *slot, const struct weft_iov_local *iov, uint32_t niov);
/* Hand over n of nic->wrs, whose recs are accounted for. Returns how many the device took. quiet: as above. */
int verbs_chain(struct verbs_qp *qp, int n, bool quiet, int *err);
/* The next free rec, cleared. */
struct verbs_rec *verbs_rec_new(struct verbs_qp *qp);
/* Give back what a rec holds. */
void verbs_rec_release(struct verbs_rec *rec);

/* --- verbs_op.c: cmds of several work requests ---------------------------------------------------------- */

/* Is there memory for another one? */
bool verbs_op_may_be_new(struct verbs_nic *nic);
struct verbs_op *verbs_op_new(struct verbs_link *link, const struct weft_cmd *cmd);
void verbs_op_free(struct verbs_op *op);
void verbs_ops_push(struct verbs_ops *ops, struct verbs_op *op);
void verbs_ops_remove(struct verbs_ops *ops, struct verbs_op *op);
/* It goes to poll to be handed out. */
void verbs_op_done(struct verbs_op *op);
/* A long WRITE, WRITE_IMM or READ: queue its chunks. Or why it cannot be begun; then it is free. */
int verbs_op_start(struct verbs_op *op);
/* A chunk has ended. */
void verbs_op_chunk_done(struct verbs_qp *qp, const struct verbs_rec *rec, int status,
                         const char *why);
/* A request in the ring that turns out to lie in several parts of the peer's memory, and was not executed: a
 * chunk is cut anew; a short one becomes an op. */
void verbs_op_rewind(struct verbs_qp *qp, struct verbs_rec *rec);
void verbs_op_adopt(struct verbs_qp *qp, struct verbs_rec *rec);
/* Post chunks while there is room. */
void verbs_op_pump(struct verbs_link *link);
/* Pieces of a chunk as scatter list, at most `most`; returns their number, *len is cut to what they
 * hold. */
int verbs_op_sges(const struct verbs_op *op, uint64_t offset, uint64_t *len, struct ibv_sge *sges,
                  int most);
/* Ask the target about an operation of no bytes. */
void verbs_op_check(struct verbs_op *op);
void verbs_op_checked(struct verbs_link *link, const struct verbs_checked_msg *msg);
/* Free all ops of a link that is closed. */
void verbs_op_drop(struct verbs_link *link);

/* --- verbs_poll.c: completions and sleeping ----------------------------------------------------------- */

weft_poll_fn verbs_poll;
weft_wait_fd_fn verbs_wait_fd;
/* Something of the link is to be posted in poll. */
void verbs_busy(struct verbs_link *link);
/* All recs before this one have succeeded. */
void verbs_settle(struct verbs_qp *qp, uint32_t upto);

/* --- verbs_event.c: events of the device, deadlines ------------------------------------------------------ */

/* Events that the device has told of, and deadlines that have passed. */
void verbs_events(struct verbs_nic *nic);
/* After a sleep: what ended it. */
void verbs_wake(struct verbs_nic *nic);
/* Have the timer end a sleep in time. */
void verbs_set_timer(struct verbs_nic *nic);

#endif
