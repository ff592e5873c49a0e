/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nics of the transport under test, and links between them: what every transport_*.c runs on.
 *
 * Side A is driven by the test. Side B is driven by it too, in turns, or lives in a process of its
 * own (pair->peer). A test does not see the difference: it names a side, and pair_call runs a
 * function there. Only tests of what one process can see alone take sides from the pair.
 *
 * Everything that poll returns is filed and judged at once: a comp that names no cmd, or the wrong
 * op or link, a second comp for a cmd, anything after LINK_DOWN, any comp of a closed link fails
 * the test. pair_close waits for every accepted cmd and checks the guards of every buffer.
 */
#ifndef WEFT_TEST_PAIR_H
#define WEFT_TEST_PAIR_H

#include "sides.h"

#define ACCESS_ALL (WEFT_ACCESS_READ | WEFT_ACCESS_WRITE | WEFT_ACCESS_ATOMIC)
#define MAX_LINKS 64
#define MAX_IOV 64 /* pieces that a test hands over at most */

/* --- side: one nic ------------------------------------------------------------------------- */

/* A cmd that post accepted. */
struct rec {
    struct weft_link *link;
    struct weft_iov_local *iov; /* the array, valid until the comp as transport.h asks */
    uint8_t op;
    uint64_t len;
    bool done;
    bool dropped; /* its link died or was closed before its comp */
    uint64_t nth; /* of all that was filed on this side */
    struct weft_comp comp;
    char why[160]; /* of a bad status */
};

/* A message or an immediate of the peer. */
struct arrival {
    struct weft_link *link;
    uint8_t op;
    uint32_t imm;
    uint64_t len, nth;
    unsigned char *data;
};

struct side_link {
    struct weft_link *link;
    bool down, closed;
    int status; /* of LINK_DOWN */
};

struct side_buf {
    struct test_mem mem;
    struct weft_mem_handle handle;
    bool registered;
};

struct side {
    const struct weft_transport_ops *ops;
    struct weft_nic *nic;
    struct side *other; /* polled in turns with this one, or NULL */
    struct side_link links[MAX_LINKS];
    int nlinks;
    struct rec *recs;
    size_t nrecs, pending;
    struct arrival *arrivals;
    size_t narrivals;
    struct side_buf *bufs;
    int nbufs;
    uint64_t filed;
    int max; /* comps that one poll may return */
    /* called while the arrival's data and memory are as poll left them */
    void (*on_arrival)(struct side *side, const struct arrival *arrival);
};

/* Lane of the first usable device of the transport under test, through the fault decorator if
 * the run has one. Ends the program with 77 and the reason if there is no device. */
void side_open(struct side *side, int lane);
/* Closes what is still open, links first. */
void side_close(struct side *side);
/* Poll once and file. Returns the number of comps. */
int side_poll(struct side *side);
/* Poll this side and the other; give the processor away if nothing came. */
void side_pump(struct side *side);
/* Hand over one cmd, as often as it takes. Returns its number, or the negative code of post. */
int64_t side_post(struct side *side, int link, const struct weft_cmd *cmd);
/* Hand over cmds once. Returns what post did; the first of them gets number *first. */
int side_post_many(struct side *side, int link, const struct weft_cmd *cmds, int n,
                   size_t *first);
int side_buf(struct side *side, size_t len, size_t misalign, uint32_t access);
void side_buf_reg(struct side *side, int id, uint32_t access);
int side_buf_dereg(struct side *side, int id);
void side_link_close(struct side *side, int link);
/* A link between two sides of this process, which may be the same one: the newest of each; if it
 * is one side, the passive end is the one before the newest. `hint` goes into the opts. */
struct sockaddr;
void side_join(struct side *active, struct side *passive, const struct sockaddr *hint,
               unsigned hint_len);
/* A cmd from buffer to buffer of sides of this process, whole. */
struct weft_cmd side_write(const struct side_buf *from, const struct side_buf *to);
struct weft_device_info side_device(void);
const struct weft_transport *side_transport(void);

/* --- pair ---------------------------------------------------------------------------------- */

enum who { A, B };

struct pair {
    struct side a, b; /* b: unless it is another process */
    struct test_peer peer;
};

/* Memory of one side, and how the other names it. */
struct buf {
    enum who who;
    int id;
    uint64_t addr, len, key;
    void *mem;
};

/* How a cmd ended. */
struct outcome {
    bool done, dropped;
    int status;
    char why[160]; /* what the transport says of a bad status */
    uint64_t len, value, nth;
};

struct arrived {
    uint8_t op;
    int link;
    uint32_t imm;
    uint64_t len, nth;
    uint64_t head; /* first 8 bytes, as a number */
};

struct link_state {
    bool down;
    int status;
};

/* cmocka fixtures: a pair with one link; *state is it. */
int pair_setup(void **state);
/* ... of nics that are opened with a setting; it is as before afterwards. */
int pair_setup_with(void **state, const char *setting, const char *value);
int pair_setup_processes(void **state);
int pair_teardown(void **state);
/* For tests that kill side B: closes side A alone. */
int pair_teardown_alone(void **state);
#define PAIR_MAIN(name, tests)                                                                    \
    test_sides_main(name, tests, ARRAY_LEN(tests), pair_setup_processes)
#define KILLED(test)                                                                              \
    cmocka_unit_test_setup_teardown(test, pair_setup_processes, pair_teardown_alone)
#define IN_ONE(test) cmocka_unit_test_setup_teardown(test, pair_setup, pair_teardown)
#define IN_TWO(test)                                                                              \
    {                                                                                             \
        #test " (two processes)", test, pair_setup_processes, pair_teardown, NULL                 \
    }
#define IN_BOTH(test) IN_ONE(test), IN_TWO(test)

void pair_open(struct pair *p, bool processes);
void pair_close(struct pair *p);
struct weft_nic_attr pair_attr(const struct pair *p);
bool pair_has(const struct pair *p, enum weft_op op);

/* Run fn on a side, with size bytes of arg, which it may change. */
typedef void pair_fn(struct side *side, void *arg);
void pair_call(struct pair *p, enum who who, pair_fn *fn, void *arg, size_t size);
void pair_pump(struct pair *p);

/* One more link, `active` being the active end. Returns its number, the same on both sides. */
int pair_link(struct pair *p, enum who active);
void pair_link_close(struct pair *p, enum who who, int link);
struct link_state pair_link_state(struct pair *p, enum who who, int link);
/* Wait for LINK_DOWN; returns why. */
int pair_link_down(struct pair *p, enum who who, int link);

struct buf pair_buf(struct pair *p, enum who who, size_t len, size_t misalign, uint32_t access);
void pair_fill(struct pair *p, struct buf buf, uint64_t seed);
/* Bytes [offset, offset+len) of a buffer are those of the pattern, which starts at offset. */
void pair_check(struct pair *p, struct buf buf, uint64_t offset, uint64_t len, uint64_t seed);
void pair_check_zero(struct pair *p, struct buf buf, uint64_t offset, uint64_t len);
uint64_t pair_word(struct pair *p, struct buf buf, uint64_t offset);
void pair_set_word(struct pair *p, struct buf buf, uint64_t offset, uint64_t value);
void pair_dereg(struct pair *p, struct buf *buf);
/* Register a buffer again, under another key. */
void pair_rereg(struct pair *p, struct buf *buf, uint32_t access);

/* n pieces of the buffer, each behind the one before it, some of no bytes. Their length. */
uint64_t buf_pieces(struct buf buf, uint32_t n, struct weft_iov_local *iov);

struct weft_cmd cmd_write(struct buf from, uint64_t from_offset, struct buf to,
                          uint64_t to_offset, uint64_t len);
struct weft_cmd cmd_imm(struct buf from, uint64_t from_offset, struct buf to, uint64_t to_offset,
                        uint64_t len, uint32_t imm);
/* From remote memory into local. */
struct weft_cmd cmd_read(struct buf into, uint64_t into_offset, struct buf from,
                         uint64_t from_offset, uint64_t len);
struct weft_cmd cmd_send(struct buf from, uint64_t offset, uint64_t len);
/* The word before the addition lands in the comp; `into` is where a nic may put it. */
struct weft_cmd cmd_add(struct buf into, struct buf word, uint64_t offset, uint64_t value);
struct weft_cmd cmd_fence(void);

/* Post on the side; cmd.iov may point to an array of the caller. Returns the cmd's number. */
size_t pair_post(struct pair *p, enum who who, int link, const struct weft_cmd *cmd);
/* Post what may be refused at once: returns the number or the code. */
int64_t pair_try(struct pair *p, enum who who, int link, const struct weft_cmd *cmd);
struct outcome pair_wait(struct pair *p, enum who who, size_t cmd);
/* Wait until all cmds of a side have ended. */
void pair_settle(struct pair *p, enum who who);
/* Post, wait, and require this status. */
struct outcome pair_do(struct pair *p, enum who who, int link, struct weft_cmd cmd, int status);
/* Wait for the i-th arrival on a side. */
struct arrived pair_arrival(struct pair *p, enum who who, size_t i);
size_t pair_arrivals(struct pair *p, enum who who);
/* Payload of the i-th arrival is the pattern from offset on. */
void pair_check_arrival(struct pair *p, enum who who, size_t i, uint64_t seed, uint64_t offset);
/* Go on polling for a moment: what should not come has time to come. */
void pair_linger(struct pair *p);

#endif
