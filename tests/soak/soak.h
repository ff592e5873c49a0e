/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soak: two processes move random bytes in every way the endpoint offers, round after round,
 * each round with other settings, another transport and other faults, all drawn from a seed.
 *
 * Words: a side is a process, with one endpoint. A slot is a conn between the two that is closed
 * and made again now and then. Each side has WORKERS threads on each slot; each of them has memory
 * at the other side (its area, mailboxes and word) that it alone writes to. What this memory must
 * hold, and what became of every message, stands in the ledger, which both processes share: so
 * each can check its own memory against what the other one did.
 */
#ifndef WEFT_TEST_SOAK_H
#define WEFT_TEST_SOAK_H

#include "helpers.h"

#include <pthread.h>
#include <stdatomic.h>

#define SIDES 2
#define SLOTS 3
#define WORKERS 2
#define PARTS 8                 /* operations of a worker under way at once, each in its part */
#define PART ((size_t)64 << 10) /* longest data operation, message and notification */
#define AREA (PARTS * PART)
#define BOXES 8 /* data that a notification announces */
#define BOX ((size_t)8 << 10)
#define HOSTED (AREA + BOXES * BOX + 64) /* area, mailboxes, then the word of a worker */
#define WORD_AT (AREA + BOXES * BOX)
#define MAX_SEQ 16384 /* messages of a stream in a round */
#define MAX_MAYBE 8   /* additions of which nobody knows whether they took place */

/* An operation that is not done by then has hung. Ten times what a loaded machine needs. */
#define HANG_MS 60000
/* A message may wait for a receive that is never posted: then it is canceled. */
#define PATIENCE_MS 1000

/* --- the ledger: shared by both processes ---------------------------------------------------- */

/* What its sender knows of a message. */
enum sent { SENT_NOT, SENT_UNKNOWN, SENT_DONE };

struct stream {
    _Atomic(uint8_t) sent[MAX_SEQ], received[MAX_SEQ];
    _Atomic(uint32_t) sent_short, received_short; /* that ended with WEFT_ETRUNC */
    _Atomic(uint32_t) unknown;                    /* sent, and may have been received */
};

/* What a side's memory must hold, by the worker of the other side that writes to it. */
struct account {
    _Atomic(uint32_t) generation; /* odd: being registered anew */
    struct weft_remote remote;
    uint8_t bytes[AREA], known[AREA];
    _Atomic(uint8_t) box_busy[BOXES];
    _Atomic(uint64_t) word;
    uint64_t maybe[MAX_MAYBE];
    int nmaybe;
    struct stream notifs;
};

enum total {
    TOTAL_OPS,
    TOTAL_BYTES,
    TOTAL_MESSAGES,
    TOTAL_NOTIFS,
    TOTAL_ADDS,
    TOTAL_CANCELED,
    TOTAL_CONNS,
    TOTAL_REGS,
    TOTALS
};

struct ledger {
    uint64_t seed;
    uint32_t round;
    _Atomic(bool) stop;                            /* begin no more operations */
    _Atomic(int) met[SIDES];                       /* see meet */
    _Atomic(int) running[SIDES];                   /* workers that are not done */
    _Atomic(uint32_t) epoch[SLOTS];                /* conns that the slot has had */
    _Atomic(uint32_t) ended[SLOTS];                /* last one that a side closed by intent */
    struct account account[SIDES][SLOTS][WORKERS]; /* by the side that hosts the memory */
    struct stream messages[SIDES][SLOTS];          /* by the side that receives */
    struct weft_remote hot[SIDES];                 /* a word to which all add */
    _Atomic(uint64_t) hot_sum[SIDES], hot_maybe[SIDES];
    char metadata[SIDES][WEFT_METADATA_MAX];
    int metadata_len[SIDES];
    _Atomic(uint64_t) total[SIDES][TOTALS];
};

/* --- a round as one side sees it -------------------------------------------------------------- */

/* What both sides draw from the seed: what is allowed to happen. */
struct plan {
    char transport[16];
    bool dies;   /* links are cut, or commands fail: conns may die by themselves */
    bool fails;  /* commands end with -EIO */
    bool closes; /* conns are closed by intent */
    bool regs;   /* memory is registered anew */
    int step_us; /* longest pause between two steps of a worker */
    struct {
        char fault[128];
        int progress_threads;
        int depth; /* operations under way */
    } side[SIDES];
};

struct slot {
    int index;
    bool connects;         /* this side does */
    pthread_rwlock_t lock; /* written by who replaces the conn, read by who uses it */
    weft_conn_t conn;      /* 0: none */
    uint32_t epoch;
    _Atomic(bool) dead;   /* seen to be down: worker 0 is to replace it */
    _Atomic(bool) shut;   /* this side has closed it: its handle is stale */
    pthread_mutex_t door; /* of what the doorman hands over */
    weft_conn_t arrived;
    uint32_t arrived_epoch;
};

struct hosted {
    struct test_mem mem;
    weft_mem_t handle;
};

struct side {
    int me, peer;
    struct ledger *ledger;
    struct plan plan;
    weft_endpoint_t endpoint;
    struct slot slots[SLOTS];
    struct hosted hosted[SLOTS][WORKERS];
    struct hosted hot;
    uint32_t last_notif[SLOTS][WORKERS], last_epoch[SLOTS][WORKERS];
};

/* Begins every message and notification; a pattern of seed follows. */
struct note {
    uint32_t magic;
    uint8_t slot, worker;
    uint8_t box;   /* 1 + that which it announces, or 0 */
    uint8_t plain; /* goes with no data, so it is sent when it is posted */
    uint32_t epoch, seq, len, box_len;
    uint64_t seed;
};
#define NOTE_MAGIC 0x6b616f73u
#define NOTE_MIN sizeof(struct note)

/* --- plan.c ----------------------------------------------------------------------------------- */

/* The plan of a round. */
struct plan plan_draw(uint64_t seed, uint32_t round, const char *transport);
/* Settings of this side's endpoint. */
void plan_apply(uint64_t seed, uint32_t round, int me);
/* The plan of the ledger's round; round 0 is the end. */
void plan_print(const struct ledger *ledger, const char *transport);

/* --- slot.c: conns ---------------------------------------------------------------------------- */

void slot_open(struct side *side, int index);
void slot_close(struct slot *slot);
/* Give a slot its first conn, or another one. False: the round is over. */
bool slot_renew(struct side *side, struct slot *slot);
/* Close the conn by intent; ops on it end, and workers see it. */
void slot_end(struct side *side, struct slot *slot);
/* An operation of the slot's conn has failed: is the conn down, as it may be? Notes that it is. */
bool slot_failed(struct side *side, struct slot *slot, int rc);
/* Thread: takes the conns that the other side opens to their slots. */
void *doorman(void *side);

/* --- worker.c, task.c ------------------------------------------------------------------------- */

struct worker;
void *worker_main(void *worker);
struct worker *worker_new(struct side *side, int slot, int index);
void worker_free(struct worker *worker);

/* --- account.c: what must be there ------------------------------------------------------------ */

void note_fill(unsigned char *at, const struct note *note);
/* Fails unless these bytes are a sound note. */
struct note note_check(const void *data, size_t len);
/* Memory that the other process has a hand in: the thread sanitizer is not to judge that. */
void shared_memory(const struct test_mem *mem);
void host_open(struct side *side, struct hosted *hosted, struct weft_remote *remote);
/* End the registration and begin another. */
void host_renew(struct side *side, int slot, int worker);
void account_wrote(struct account *a, size_t at, size_t len, uint64_t seed, uint64_t offset);
void account_unknown(struct account *a, size_t at, size_t len);
/* Index of the first byte of this that is known and is not what it must be, or -1. */
int64_t account_differs(const struct account *a, const void *data, size_t at, size_t len);
/* Word before an addition of `value`, which took place. */
void account_added(struct account *a, uint64_t before, uint64_t value);
/* Check all that this side hosts and has received. */
void side_check(struct side *side);
void notif_received(struct side *side, const struct weft_notif *notif);
/* All notifications to this side that are known to be sent have come. */
bool notifs_complete(const struct side *side);

/* --- leak.c: what a process holds -------------------------------------------------------------- */

/* After a round: nothing may be left of it. */
void leak_check(uint32_t rounds);

/* --- main.c ----------------------------------------------------------------------------------- */

void count(struct side *side, enum total what, uint64_t n);

#endif
