/* SPDX-License-Identifier: Apache-2.0 */
/* Work: everything that a conn can do, again and again for a while, one side acting and the other
 * answering. Nothing of it may fail, and each byte is compared. */
#ifndef WEFT_TEST_WORK_H
#define WEFT_TEST_WORK_H

#include "party.h"

#define WORK_LARGE 200000 /* longest message and notification; bytes of memory that are written */
#define WORK_DEPTH 4      /* operations of a kind that are posted at once */

struct work {
    struct weft_remote remote; /* PARTY_LEN bytes of the other side */
    bool acts;                 /* the others answer */
    bool posted;               /* several at once, else blocking */
    int run_ms;
    uint64_t rounds;
};

/* Length of message and notification number i. */
size_t work_len(uint64_t i);
/* For run_ms. */
void work_act(weft_conn_t conn, struct work *w);
/* Takes each message and notification once and in order, until an empty message. */
void work_answer(weft_endpoint_t endpoint, weft_conn_t conn, struct work *w);

#endif
