/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: what was posted, how it ended, what memory has to hold. All processes of a schedule
 * live in one real process, so the ledger sees both sides of everything.
 */
#ifndef WEFT_SIM_LEDGER_H
#define WEFT_SIM_LEDGER_H

#include "sim.h"
#include "weft.h"

#define AREAS 8
#define SLOTS 6
#define WORDS 3
#define DIGITS 31 /* additions to a word, two bits each: one that is done twice shows */
#define MAX_ENDS 160
#define MAX_MSGS 200 /* of an end and kind */
#define MAX_OPS 192  /* of a process, posted and not ended: RECVS_AHEAD of each conn, and more */
#define MAX_PIECES 4
#define GUARD 64
#define HEAD 16 /* bytes that name a message */

struct end;
struct actor;

/* Bytes of a target that one write at a time may go to. */
struct slot {
    uint8_t *shadow;  /* what they were after the last write that ended well */
    uint64_t seed;    /* of the write that is under way, or has failed */
    size_t len;       /* of it; 0: none */
    bool busy, dirty; /* dirty: it has failed, and may be there in part for ever */
    uint64_t writes;
};

/* A target's memory for one end of a peer. */
struct area {
    struct actor *owner;
    struct end *user;
    uint8_t *base; /* guard, words, guard, slots with a guard behind each */
    size_t len, slot_len;
    weft_mem_t mem;
    struct weft_remote remote;
    bool open;     /* registered */
    bool frozen;   /* no peer may touch it any more */
    uint64_t hash; /* of it then */
    struct slot slots[SLOTS];
    int digits[WORDS];           /* used */
    uint8_t fate[WORDS][DIGITS]; /* enum fate */
};

enum fate { FATE_PENDING, FATE_OK, FATE_FAILED, FATE_TRUNCATED };

struct msg {
    enum fate fate;
    uint64_t len, posted, ended; /* when; ended 0: not yet, or never posted */
    bool received;
};

/* One side of a conn. */
struct end {
    int id;
    struct actor *actor, *peer; /* peer: NULL if not known */
    struct end *other;          /* once a message has told */
    struct area *area;          /* of the peer, that this end writes to */
    weft_conn_t handle;
    bool initiator, closing, closed, cut; /* cut: a blocking call may have cut it */
    bool posting, receiving;              /* a fiber is about to */
    struct msg sends[MAX_MSGS], notes[MAX_MSGS], marks[MAX_MSGS]; /* marks: with data */
    int nsends, nnotes, nmarks;
    int notes_seen;          /* of the other end's, in order */
    int64_t recvs[MAX_MSGS]; /* number of the message, or -1: none, -2: was too long */
    uint64_t recv_len[MAX_MSGS];
    int nrecvs, waiting_recvs;
    uint64_t posted, injected; /* operations; those of them that nobody asks for */
};

struct piece {
    uint8_t *at; /* local memory */
    size_t len;
    struct area *area;
    int slot;
    uint64_t seed, offset;
};

struct op {
    bool used, busy; /* busy: a fiber waits for it */
    struct end *end;
    enum weft_xfer_op kind;
    weft_op_t handle;
    struct piece pieces[MAX_PIECES];
    int npieces;
    uint64_t total, posted_at;
    int index; /* of a message, a RECV, or the digit of an ADD */
    int word;
    uint64_t result;
    int mark;            /* number of the notification that comes with data, or -1 */
    bool canceled, late; /* late: its memory at the target was gone before it was posted */
    bool deadline;       /* a blocking call that may time out */
};

struct actor {
    struct sim_proc *proc;
    weft_endpoint_t endpoint;
    uint8_t metadata[WEFT_METADATA_MAX];
    int metadata_len;
    uint8_t uuid[16];
    bool open, passive, threads, blind; /* blind: it ended without reading all */
    bool popping;
    uint64_t drained; /* when it last began to read all notifications */
    uint64_t stalled; /* ns that it may have been stopped, or delayed by the end of others */
    struct area areas[AREAS];
    uint8_t *source; /* what peers read */
    size_t source_len;
    weft_mem_t source_mem;
    struct weft_remote source_remote;
    struct op ops[MAX_OPS];
    int grace_ms, tcp_timeout_ms;
    int fibers, finished; /* of its program */
    int connects;
};

extern struct actor actors[SIM_MAX_PROCS];

void ledger_fill(void *at, size_t len, uint64_t seed);
int64_t ledger_differs(const void *at, size_t len, uint64_t seed);

/* --- areas --- */
void area_make(struct actor *actor, struct area *area, size_t slot_len);
uint8_t *area_slot(const struct area *area, int slot);
uint64_t *area_word(const struct area *area, int word);
void area_check(struct area *area);
/* From now on no byte of it changes. */
void area_freeze(struct area *area);

/* --- ends --- */
/* Makes it, unless another fiber or a message was faster. */
struct end *end_new(struct actor *actor, weft_conn_t handle, bool initiator, struct actor *peer);
struct end *end_find(const struct actor *actor, weft_conn_t handle);
struct end *end_at(int id);
int end_count(void);

/* --- ops --- */
struct op *op_new(struct end *end, enum weft_xfer_op kind);
/* Memory for a piece; a little is kept on both sides to see that nothing else is written. */
uint8_t *piece_memory(size_t len);
/* It was not posted after all. */
void op_drop(struct op *op);
/* It has ended. */
void op_ended(struct op *op, const struct weft_op_status *status);
/* May an operation or a conn of this end fail so? */
void status_check(const struct end *end, const struct op *op, int status, const char *what);
/* A notification has arrived. */
void note_arrived(struct actor *actor, const struct weft_notif *notif);
void ledger_check(void);

/* --- act.c --- */
/* Something at random. */
void act(struct actor *actor);
/* Post what is needed for the peer to go on: receives. True: some have ended, and more may be needed. */
bool act_serve(struct actor *actor);
void act_accept(struct actor *actor);
void act_drain(struct actor *actor);
void act_close_conn(struct end *end);
/* Wait for an operation. Returns whether it has ended. */
bool act_wait(struct op *op, int timeout_ms);
struct op *op_of(struct actor *actor, bool busy_too);

#endif
