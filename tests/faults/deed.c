/* SPDX-License-Identifier: Apache-2.0 */
/* See deed.h. */
#include "deed.h"

#define T TEST_DEADLINE_MS
#define DEPTH 6   /* operations under way when they are posted */
#define PIECES 24 /* of a vector */
#define SMALL 64

struct request {
    struct weft_xfer xfer;
    struct weft_local local[PIECES];
    struct weft_remote remote[PIECES];
    uint64_t offset[PIECES], result;
};

static void make_request(struct request *r, const struct deed *d, unsigned char *mem)
{
    bool one_sided = d->op == WEFT_XFER_WRITE || d->op == WEFT_XFER_READ,
         vector = d->shape == VECTOR;
    size_t n = vector ? PIECES : 1, len = d->shape == ONE_SMALL ? SMALL : PARTY_LEN;
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < n; i++) {
        r->local[i] = (struct weft_local){.addr = mem + i * (len / n),
                                          .len = vector ? i * 999 : len};
        r->remote[i] = d->remote;
        r->offset[i] = i * (len / n);
    }
    r->xfer = (struct weft_xfer){.struct_size = sizeof r->xfer, .op = d->op};
    if (d->op == WEFT_XFER_NOTIFY) {
        r->xfer.notify = mem;
        r->xfer.notify_len = len;
    } else if (d->op != WEFT_XFER_ADD) {
        r->xfer.local = r->local;
        r->xfer.nlocal = n;
    }
    if (one_sided || d->op == WEFT_XFER_ADD) {
        r->xfer.remote = r->remote;
        r->xfer.nremote = n;
        r->xfer.remote_offset = r->offset;
    }
    r->xfer.result = d->op == WEFT_XFER_ADD ? &r->result : NULL;
}

static int act_blocking(weft_conn_t conn, const struct weft_xfer *x)
{
    int64_t rc = 0;
    for (uint64_t end = test_deadline(); rc >= 0;) {
        CHECK(weft_now() < end, "the death of the peer was never noticed");
        rc = weft_transfer(conn, x, T, NULL);
    }
    return (int)rc;
}

static int act_posted(weft_conn_t conn, const struct weft_xfer *x)
{
    weft_op_t ops[DEPTH];
    uint64_t end = test_deadline(), posted = 0, waited = 0;
    int rc = 0, first = 0;
    while (!first || waited < posted) {
        CHECK(weft_now() < end, "the death of the peer was never noticed");
        if (!first && posted - waited < DEPTH) {
            first = weft_post(conn, x, &ops[posted % DEPTH]);
            posted += first == 0;
            continue;
        }
        rc = weft_op_wait(ops[waited++ % DEPTH], T, NULL);
        CHECK(rc == 0 || !first || rc == first, "operations ended with %s and with %s",
              weft_err_name(first), weft_err_name(rc));
        first = first ? first : rc;
    }
    return first;
}

int deed_act(weft_conn_t conn, const struct deed *d, unsigned char *mem)
{
    struct request r;
    make_request(&r, d, mem);
    return d->posted ? act_posted(conn, &r.xfer) : act_blocking(conn, &r.xfer);
}

static int take_notifs(weft_endpoint_t endpoint, weft_conn_t conn)
{
    struct weft_conn_info info;
    for (uint64_t end = test_deadline();;) {
        struct weft_notif notif;
        CHECK(weft_now() < end, "the death of the peer was never noticed");
        if (weft_endpoint_notif(endpoint, 10, &notif) == 0) {
            weft_notif_free(&notif);
            continue;
        }
        WEFT_OK(weft_conn_info(conn, &info));
        if (info.state == WEFT_CONN_DOWN)
            return info.status;
    }
}

int deed_answer(weft_endpoint_t endpoint, weft_conn_t conn, const struct deed *d,
                unsigned char *mem)
{
    struct deed back = *d;
    if (d->op == WEFT_XFER_NOTIFY)
        return take_notifs(endpoint, conn);
    back.op = d->op == WEFT_XFER_RECV ? WEFT_XFER_SEND : WEFT_XFER_RECV;
    return deed_act(conn, &back, mem);
}
