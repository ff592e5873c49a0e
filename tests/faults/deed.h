/* SPDX-License-Identifier: Apache-2.0 */
/* A deed: one operation, done again and again until it fails; and what the other side has to do
 * meanwhile. */
#ifndef WEFT_TEST_DEED_H
#define WEFT_TEST_DEED_H

#include "party.h"

enum shape { ONE_SMALL, ONE_LARGE, VECTOR, SHAPES };

struct deed {
    enum weft_xfer_op op;
    enum shape shape;
    bool posted;               /* several at once, else blocking calls */
    struct weft_remote remote; /* PARTY_LEN bytes of the other side */
    int kill_ms;               /* kill.c: when the victim dies */
};

/* Do it on a conn, with PARTY_LEN bytes of memory. Returns with what it failed. */
int deed_act(weft_conn_t conn, const struct deed *d, unsigned char *mem);
/* The other side of it, until that fails. */
int deed_answer(weft_endpoint_t endpoint, weft_conn_t conn, const struct deed *d,
                unsigned char *mem);

#endif
