/* SPDX-License-Identifier: Apache-2.0 */
/* A worker and its operations: worker.c decides what to do, task.c does it and judges the end. */
#ifndef WEFT_TEST_SOAK_WORKER_H
#define WEFT_TEST_SOAK_WORKER_H

#include "soak.h"

#define RECVS 3 /* receives posted at once */
#define MAX_PIECES 64
#define BUF (PART + 64) /* of a task, with bytes behind it that nobody may touch */

enum kind { WRITE, READ, BOX_WRITE, STALE_WRITE, ADD, HOT_ADD, SEND, NOTIFY, RECV };

struct task {
    enum kind kind;
    bool busy, canceled, noted;
    weft_op_t op;
    int part;
    int timeout_ms; /* of a blocking call, or -1 */
    unsigned char *buf;
    uint64_t rest; /* pattern that buf holds between two operations */
    size_t len, npieces;
    struct weft_local local[MAX_PIECES];
    uint64_t offset[MAX_PIECES]; /* in the worker's memory at the other side */
    uint64_t seed, value, result;
    uint32_t seq, generation;
    int box;
    unsigned char note[PART];
    size_t note_len;
};

struct worker {
    struct side *side;
    struct slot *slot;
    int index;
    uint64_t random;
    struct account *account;    /* of its memory at the other side */
    struct stream *sends, *got; /* messages to the other side, and from it */
    struct task tasks[PARTS + RECVS];
    int nrecvs, first_recv; /* receives are a ring, in the order posted */
    struct test_mem mem;
    weft_mem_t handle;
    struct weft_remote remote, old; /* of the memory there; before it was registered anew */
    struct weft_remote remotes[MAX_PIECES];
    uint32_t generation;
    bool has_old, adding;
    uint32_t next_send, next_note, last_got;
};

/* Begin an operation of this kind in a free task; blocking ones are over when this returns. */
void task_begin(struct worker *w, struct task *t, enum kind kind, int timeout_ms);
/* The task if it is done: true. */
bool task_poll(struct worker *w, struct task *t);
/* Wait until it is done; false if it is not by then. */
bool task_wait(struct worker *w, struct task *t, int timeout_ms);
void task_cancel(struct worker *w, struct task *t);
uint64_t worker_pick(struct worker *w, uint64_t n);

#endif
