/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of the local transport: its objects, then what passes between two processes, then the
 * functions by file. README.md says in which order to read.
 *
 * A nic listens on a unix socket. A link is one connection of such sockets, which stays open for
 * wake-ups and to see the peer die, and a segment of shared memory with a ring each way.
 */
#ifndef WEFT_TRANSPORTS_LOCAL_H
#define WEFT_TRANSPORTS_LOCAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "weft/transport.h"

#include "local_ring.h"

/* Changes with every change of the structs under "what passes between two processes". */
#define LOCAL_VERSION 5
/* Cmds of a link between post and completion. A slot number is 16 bits on the ring. */
#define LOCAL_DEPTH 256
#define LOCAL_NO_SLOT UINT16_MAX
/* Payload up to this goes through the ring: two copies of 4 KiB cost less than asking the kernel
 * for one (which pins pages); and it fits the smallest ring. */
#define LOCAL_PAYLOAD 4096
#define LOCAL_MAX_SEND 16384
#define LOCAL_MAX_INLINE 512
#define LOCAL_MAX_IOV 64
#define LOCAL_MAX_MSG ((uint64_t)1 << 40)
/* One system call, or one hold of the gate, copies at most this, in some 40 us: link_close may wait
 * for it, and what is small does. */
#define LOCAL_STEP (128 * 1024)
/* From here on the initiator copies a part itself: to wake it costs 50 us, as long as a step. */
#define LOCAL_SHARE_MIN (8 * LOCAL_STEP)
/* One poll copies at most this: about 300 us. */
#define LOCAL_POLL_BYTES (1024 * 1024)
/* Messages that one poll hands out at most; they are copied out of the ring, which the peer can
 * still write to. */
#define LOCAL_ARENA (4 * LOCAL_MAX_SEND)
/* Connections that have not said which link they are for; beyond, one gives way (seat). */
#define LOCAL_GUESTS 32

/* --- objects ------------------------------------------------------------------------------- */

struct local_nic;
struct local_link;

/* What an epoll event belongs to: first member of what owns a socket. */
enum local_source_kind { LOCAL_LISTENER, LOCAL_GUEST, LOCAL_LINK };
struct local_source {
    enum local_source_kind kind;
    int fd; /* -1: none */
};

/* An accepted connection that has said nothing yet. */
struct local_guest {
    struct local_source source;
    uint64_t number; /* of arrival */
    uint8_t place;   /* of its user: weft_stranger_place */
};

struct local_id {
    uint8_t bytes[16];
};

/* Memory that peers may reach. */
struct local_mem {
    struct local_mem *next; /* of the same bucket */
    uint64_t key, addr, len;
    uint32_t access;
    bool closing; /* peers find it no more */
};

struct local_mem_table {
    struct local_mem **buckets;
    size_t mask, count;
};

struct local_nic {
    struct weft_nic base;
    int epoll;
    struct weft_listener listener;
    struct local_source listener_source;
    struct local_id socket_id; /* names the listening socket */
    struct local_id boot_id;   /* of the running kernel; all zero if it cannot be told */
    struct local_mem_table mems;
    struct local_guest guests[LOCAL_GUESTS];
    uint64_t guest_number;
    struct local_link *waiting; /* passive links that no hello has come for */
    struct local_link **active; /* links whose rings poll looks at */
    uint32_t nactive, nlinks, active_cap, next_active;
    uint64_t ring_size;
    struct local_link *sharing; /* whose initiators may be copying to our memory */
    bool direct;                /* setting WEFT_LOCAL_CMA */
    bool share;                 /* setting WEFT_LOCAL_SHARE */
    bool armed;                 /* wait_fd was called since sockets were looked at */
    uint64_t now;               /* as of the last look at the clock */
    uint64_t sockets_at;        /* when poll looked at the sockets */
    uint32_t polls;
    int64_t budget; /* of this poll */
    int taken;      /* entries, in this poll or the last one */
    bool gave;      /* the last poll gave its caller a comp */
    uint32_t arena_used;
    uint8_t *arena;
};

/* Shared memory of a link; both ends use one mapping if they are in one process. */
struct local_segment {
    struct local_segment *next;
    uint32_t refs;
    dev_t dev;
    ino_t ino;
    uint64_t ring_size;
    uint8_t *base;
};

/*
 * Who may touch an end's memory past the ring: one word for each end, in the segment. Its peer enters for each step of a
 * copy (its own, as target; or core's, of memory of a GPU); the end's link_close shuts it and waits until no one is
 * inside. Memory is taken back in turns: who entered in an earlier one counts apart (weft_link_recall_fn).
 */
struct local_gate {
    _Alignas(LOCAL_CACHE_LINE) _Atomic(uint64_t) word;
};

/* Which units of a copy are taken: one word for each end as target, in the segment
 * (local_share.c). */
struct local_share_word {
    _Alignas(LOCAL_CACHE_LINE) _Atomic(uint64_t) word;
};

/* The target's record of the copy that the initiator may take a part of. */
struct local_share {
    _Atomic(uint64_t) *word;
    uint16_t slot; /* of the job, LOCAL_NO_SLOT */
    uint32_t tag, units, front;
    bool waiting; /* for the initiator, which has the last unit: not among link->running */
    /* in nic->sharing, which outlasts the job if the initiator is in a unit when it ends */
    bool listed;
    uint64_t key; /* of the memory */
    struct local_link *next;
};

/* The initiator's. */
struct local_help {
    uint16_t slot; /* of the cmd, LOCAL_NO_SLOT */
    uint32_t tag, units;
    uint32_t left; /* how many an honest target can let us take */
    uint64_t addr; /* in the target */
    bool tell;     /* HELPED found no room */
};

/* Initiator's record of a cmd. */
enum local_slot_state { LOCAL_SLOT_FREE, LOCAL_SLOT_POSTED, LOCAL_SLOT_SENDING, LOCAL_SLOT_DONE };
struct local_slot {
    uint64_t ctx, len;
    uint8_t op;
    uint8_t state; /* SENDING: payload goes through the ring in pieces and is not all there */
    uint8_t how;   /* enum local_how */
    bool answered; /* SENDING: the target has answered already, with an error */
    int32_t status;
    uint64_t value;
    uint64_t moved; /* bytes sent or received in pieces */
    uint32_t niov;
    const struct weft_iov_local *iov;
    struct weft_iov_local one;
};

/* Target's record of a peer's cmd that is not executed at once. */
struct local_job {
    uint64_t key, addr, len, done;
    uint64_t value;
    int32_t status;
    uint32_t imm;
    uint8_t op, how;
    bool failed; /* pieces that still come are dropped */
    bool last;   /* the last piece has come */
    uint32_t niov;
    struct iovec *iov; /* memory of the initiator: &one, or allocated */
    struct iovec one;
};

/* What the target remembers of every slot of the peer, in a byte. */
enum local_serve_state {
    LOCAL_SERVE_FREE,
    LOCAL_SERVE_JOB,   /* jobs[slot] is under way */
    LOCAL_SERVE_ACK,   /* executed, the peer will be told */
    LOCAL_SERVE_ANSWER /* the same, with status and value of jobs[slot] */
};

/* A set of slot numbers in order of arrival; each is in it at most once. */
struct local_queue {
    uint16_t slots[LOCAL_DEPTH];
    uint32_t first, count;
};

enum local_link_state {
    LOCAL_IDLE,  /* opened */
    LOCAL_HELLO, /* active: has sent its hello; passive: has got and answered it */
    LOCAL_READY, /* shaken hands; link_connect has not said so yet */
    LOCAL_UP,
    LOCAL_ENDING, /* peer is gone: what it had published is still taken, then LINK_DOWN */
    LOCAL_DOWN    /* LINK_DOWN was reported, or connecting failed: status says why */
};

/* A descriptor that the peer has passed with a number, or LOCAL_NO_ROOM: there was none left for it. */
struct local_passed {
    uint64_t number;
    int fd;
};
#define LOCAL_PASSED 64 /* that nobody has taken; of more, the oldest are closed */

struct local_link {
    struct weft_link base;
    struct local_source source;
    enum local_link_state state;
    enum weft_role role;
    int status;
    struct local_link *next_waiting;
    uint32_t active_at; /* index in nic->active, LOCAL_NOT_ACTIVE */
    uint64_t busy_at;   /* nic->now when it last did something */
    struct local_ring_tx tx;
    struct local_ring_rx rx;
    bool starved; /* something did not fit into tx */

    /* initiator */
    struct local_slot *slots;
    uint16_t free_slots[LOCAL_DEPTH];
    uint32_t nfree;
    uint32_t nsmall;            /* of those that are taken, not DIRECT */
    uint16_t fence;             /* slot of a FENCE that waits for all others, LOCAL_NO_SLOT */
    struct local_queue done;    /* slots that ended and whose comps are not handed out */
    struct local_queue sending; /* slots whose payload goes in pieces */
    struct local_help help;
    _Atomic(uint64_t) *help_word;

    /* target */
    struct local_job *jobs;
    uint8_t serving[LOCAL_DEPTH]; /* enum local_serve_state */
    struct local_queue running;   /* jobs that wait for poll, not for the peer */
    uint32_t copying;             /* of these, those that need no room in tx */
    struct local_queue ended;     /* slots that the peer is to be told of */
    struct local_share share;

    /* the peer */
    pid_t pid;
    bool same_process;
    bool direct_out; /* the peer copies from and to our memory itself */
    bool direct_in;  /* we copy from and to the peer's memory */
    struct local_id token, peer_token;
    struct local_passed passed[LOCAL_PASSED]; /* the oldest first */
    int npassed;
    bool keyed; /* only who has the key may join */
    uint8_t key[WEFT_MAC];
    struct local_segment *segment;
    struct local_gate *gate_mine, *gate_peer;
    uint64_t shut_at; /* weft_now: nobody is let into our memory since then; 0: they are */
    uint64_t probe; /* random; the peer reads it to prove that it can copy */
};
#define LOCAL_NOT_ACTIVE UINT32_MAX

/* Where poll puts comps. */
struct local_sink {
    struct weft_comp *comps;
    int n, max;
};

/* --- what passes between two processes (of one machine: in its byte order) ------------------- */

/* What link_address gives. */
struct local_address {
    uint32_t version;
    uint32_t reserved;
    struct local_id boot, socket, token;
    uint64_t ring_size;
};

/* On the socket, one packet each: active sends hello, passive answer, active confirm. Wake-ups
 * are packets of one byte. */
enum local_packet_type { LOCAL_PACKET_HELLO = 1, LOCAL_PACKET_ANSWER, LOCAL_PACKET_CONFIRM };
struct local_packet {
    uint32_t version;
    uint32_t type;
    struct local_id to, from; /* tokens of the links */
    uint64_t ring_size;       /* HELLO: of the segment whose descriptor comes with it */
    uint64_t probe_addr, probe_value;
    uint32_t direct; /* ANSWER, CONFIRM: I can copy from and to your memory */
    uint32_t reserved;
    /* weft_mac of all before it, if the link has a key: whoever is in this network namespace can
     * connect to the socket, and may have seen the token on its way. Else zeros. */
    uint8_t proof[WEFT_MAC];
};

/* Beginning of a segment; the two rings follow at LOCAL_SEGMENT_HEAD. [0] is the active end's. */
struct local_segment_head {
    struct local_ring_shared ring[2]; /* by producer */
    struct local_gate gate[2];        /* by whose memory it is */
    struct local_share_word share[2]; /* by target */
};
#define LOCAL_SEGMENT_HEAD 4096

/* Types of ring entries; `slot` of the head is the initiator's slot. */
enum local_entry_type {
    LOCAL_CMD = 1,      /* to the target: struct local_cmd, then payload (WRITE_IMM, ADD64) or addresses */
    LOCAL_TO_TARGET,    /* a piece of a WRITE's payload; op: enum local_piece */
    LOCAL_TO_INITIATOR, /* a piece of a READ's payload; the last one completes it */
    LOCAL_ACKS,         /* to the initiator: slots (uint16_t each) whose cmds were executed */
    LOCAL_ANSWER,       /* to the initiator: struct local_answer */
    LOCAL_OFFER,        /* to the initiator: struct local_offer; it may take units of this cmd */
    LOCAL_HELPED,       /* to the target: it will take no more of them; wakes it */
    LOCAL_WRITE,        /* to the target: struct local_write, then the payload of a short WRITE */
    LOCAL_SEND,         /* to the target: the payload of a SEND */
    LOCAL_ENTRY_TYPES
};

enum local_piece { LOCAL_PIECE_MORE, LOCAL_PIECE_LAST };

/* How a cmd's payload travels. */
enum local_how {
    LOCAL_IN_ENTRY,  /* with the cmd */
    LOCAL_IN_PIECES, /* in entries of its own */
    LOCAL_DIRECT     /* the target copies: addresses in the initiator's memory come with the cmd */
};

struct local_cmd {
    uint64_t addr, key, len;
    uint32_t imm;
    uint16_t how;
    uint16_t niov; /* DIRECT: number of struct local_range that follow */
};

/* Most cmds are short WRITEs and SENDs: they have entries of their own that tell no more than they have to, since each line of the
 * ring goes from one core to the other. */
struct local_write {
    uint64_t addr, key;
};

struct local_range {
    uint64_t addr, len;
};

struct local_answer {
    int64_t status;
    uint64_t value;
};

struct local_offer {
    uint64_t addr; /* of the cmd's memory in the target */
    uint32_t tag;  /* of the word while units of this cmd can be taken */
    uint32_t reserved;
};

/* --- local.c: table, probe, open, close ------------------------------------------------------- */

bool local_id_equal(const struct local_id *a, const struct local_id *b);

/* --- local_socket.c: the unix sockets ----------------------------------------------------------- */

int local_listen(struct local_nic *nic);
/* Connect to a nic. WEFT_EAGAIN: its queue is full. */
int local_dial(const struct local_id *socket_id, int *fd);
/* Send a packet, and a descriptor unless -1. */
int local_packet_send(int fd, const struct local_packet *packet, int pass);
/* Receive one. *passed is the caller's if it is not negative; LOCAL_NO_ROOM: one came, and this
 * process can have no more. WEFT_EAGAIN: none yet. */
#define LOCAL_NO_ROOM (-2)
int local_packet_recv(int fd, struct local_packet *packet, int *passed);
void local_wake(struct local_link *link);
/* Take wake-ups. False: the peer is gone. */
bool local_wakes_take(struct local_link *link);
/* Those that nobody has taken. */
void local_passed_close(struct local_link *link);
weft_link_pass_fn local_link_pass;
weft_link_take_fn local_link_take;
/* Process at the other end, 0 if it is not visible from here. */
pid_t local_peer_pid(int fd);
bool local_peer_gone(int fd);
int local_watch(struct local_nic *nic, struct local_source *source);
/* Poll looks at it no more; it stays open. */
void local_ignore(struct local_nic *nic, const struct local_source *source);
/* The same, and it is closed. */
void local_unwatch(struct local_nic *nic, struct local_source *source);
/* Make a socket that is watched another source's. */
int local_hand_over(struct local_nic *nic, struct local_source *from, struct local_source *to);
/* Look at the sockets: new connections, handshakes, wake-ups, peers that died. */
void local_sockets_progress(struct local_nic *nic);

/* --- local_segment.c ---------------------------------------------------------------------------- */

int local_segment_create(uint64_t ring_size, struct local_segment **segment, int *fd);
/* Map the peer's. Takes nothing for granted; fd stays the caller's. */
int local_segment_open(int fd, uint64_t ring_size, struct local_segment **segment);
void local_segment_put(struct local_segment *segment);
/* Set the link's rings and gates up. */
void local_segment_attach(struct local_segment *segment, struct local_link *link);

/* False: it is shut, or this turn is over. Any thread; leave, too. */
bool local_gate_enter(struct local_gate *gate, uint32_t turn);
/* In whatever turn it is. */
bool local_gate_enter_now(struct local_gate *gate, uint32_t *turn);
void local_gate_leave(struct local_gate *gate, uint32_t turn);
/* The next turn begins: its number. */
uint32_t local_gate_recall(struct local_gate *gate);
/* Nobody is inside our memory since an earlier turn, or at all if it is shut; or the peer has ended. */
bool local_gate_recalled(const struct local_link *link);
/* Let no one in any more. */
void local_gate_shut(struct local_link *link);
weft_link_enter_fn local_link_enter;
weft_link_leave_fn local_link_leave;
weft_link_recall_fn local_link_recall;
weft_link_recalled_fn local_link_recalled;

/* --- local_mem.c -------------------------------------------------------------------------------- */

weft_mem_reg_fn local_mem_reg;
weft_mem_dereg_fn local_mem_dereg;
void local_mem_free_all(struct local_nic *nic);
/* 0 if a peer may do this with [addr, addr + len), else WEFT_EKEY, WEFT_EBOUNDS, WEFT_EACCESS. */
int local_mem_check(const struct local_nic *nic, uint64_t key, uint64_t addr, uint64_t len,
                    uint32_t access);

/* --- local_copy.c: memory of the peer, pieces of iovs ------------------------------------------- */

/* Can we read `value` at this address of the peer's process? */
bool local_copy_probe(const struct local_link *link, uint64_t addr, uint64_t value);
/* Move up to len bytes between ours and job's memory in the initiator from job->done on: bytes
 * moved, or a negative code. */
ssize_t local_copy(struct local_link *link, const struct local_job *job, void *ours, uint64_t len);
/* Move what fits into theirs to it (out), or from it: bytes moved, or a negative code. */
ssize_t local_move(const struct local_link *link, void *ours, const struct iovec *theirs,
                   uint32_t n, bool out);
/* Copy len bytes from, or to, an iov at an offset. */
void local_gather(void *dst, const struct weft_iov_local *iov, uint64_t offset, uint64_t len);
void local_scatter(const struct weft_iov_local *iov, uint64_t offset, const void *src,
                   uint64_t len);

/* --- local_link.c: a link's life -------------------------------------------------------------- */

weft_link_open_fn local_link_open;
weft_link_address_fn local_link_address;
weft_link_connect_fn local_link_connect;
weft_link_close_fn local_link_close;
/* A hello has come over this guest: hand its socket to its link, or close it. */
void local_link_hello(struct local_nic *nic, struct local_guest *guest);
/* Something has come over the link's own socket. */
void local_link_event(struct local_link *link);
/* The link is lost. LINK_DOWN follows, or link_connect says so. */
void local_link_lost(struct local_link *link, int status) WEFT_COLD;
/* Put a link among those that poll looks at, and take it out. */
void local_link_activate(struct local_link *link);
void local_link_deactivate(struct local_link *link);

/* --- local_post.c: the initiator ------------------------------------------------------------------ */

weft_post_fn local_post;
/* Entries of the target. 0, or WEFT_EPROTO. */
int local_post_acks(struct local_link *link, const uint8_t *body, uint64_t len);
int local_post_answer(struct local_link *link, uint16_t slot, const uint8_t *body, uint64_t len);
int local_post_piece(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                     uint64_t len);
/* Send pieces of payloads as far as there is room. */
void local_post_progress(struct local_link *link);
/* Hand comps out. */
void local_post_comps(struct local_link *link, struct local_sink *sink);

/* --- local_serve.c: the target -------------------------------------------------------------------- */

/* Entries of the initiator. 0; LOCAL_LATER: not in this poll; or WEFT_EPROTO. */
#define LOCAL_LATER 1
int local_serve_cmd(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                    uint64_t len, struct local_sink *sink);
int local_serve_write(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                      uint64_t len);
int local_serve_send(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                     uint64_t len, struct local_sink *sink);
int local_serve_piece(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                      uint64_t len, struct local_sink *sink);
/* Go on with jobs, and tell the peer what has ended. */
void local_serve_progress(struct local_link *link, struct local_sink *sink);
void local_serve_free(struct local_link *link);

/* A job that waited for the initiator goes on. */
void local_serve_resume(struct local_link *link, uint16_t slot);

/* --- local_share.c: both ends copy -------------------------------------------------------------- */

enum local_share_turn {
    LOCAL_SHARE_MINE, /* one more unit from the front is the target's */
    LOCAL_SHARE_WAIT, /* the initiator is in the last one */
    LOCAL_SHARE_OVER  /* all are copied */
};

/* The target: let the initiator take a part of this job, if it is long and another is not shared. */
void local_share_offer(struct local_link *link, uint16_t slot);
enum local_share_turn local_share_take(struct local_link *link);
/* Can the job that waits go on? */
bool local_share_ready(const struct local_link *link);
/* The initiator takes no more units. It may be in one. */
void local_share_end(struct local_link *link);
/* The same; what waits for the initiator goes on alone. */
void local_share_withdraw(struct local_link *link);
/* May the initiator be in a unit? */
bool local_share_entered(const struct local_link *link);
/* Withdraw all jobs on memory of this key. True: an initiator may still be in a unit of it. */
bool local_share_revoke(struct local_nic *nic, uint64_t key);
/* The link is to be freed. */
void local_share_close(struct local_link *link);

/* The initiator: entries of the target, a unit of what is offered, a cmd that has ended. */
int local_help_offered(struct local_link *link, uint16_t slot, const uint8_t *body, uint64_t len);
/* Can a unit be taken, or the target be told? Not while an answer has to come first. */
bool local_help_ready(const struct local_link *link);
void local_help_progress(struct local_link *link);
void local_help_drop(struct local_link *link, uint16_t slot);

/* --- local_poll.c --------------------------------------------------------------------------------- */

weft_poll_fn local_poll;
weft_wait_fd_fn local_wait_fd;

/* --- queues of slots ----------------------------------------------------------------------------- */

static inline void local_queue_push(struct local_queue *q, uint16_t slot)
{
    q->slots[(q->first + q->count++) % LOCAL_DEPTH] = slot;
}

static inline uint16_t local_queue_pop(struct local_queue *q)
{
    uint16_t slot = q->slots[q->first];
    q->first = (q->first + 1) % LOCAL_DEPTH;
    q->count--;
    return slot;
}

/* Longest piece of a payload that goes through a ring of this size: several fit at once. */
static inline uint64_t local_piece_max(uint64_t ring_size)
{
    uint64_t most = 64 * 1024; /* beyond, the copy itself is all that counts */
    return ring_size / 8 < most ? ring_size / 8 : most;
}

#endif
