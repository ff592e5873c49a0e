/* SPDX-License-Identifier: Apache-2.0 */
/* See work.h. */
#include "work.h"

#define T TEST_DEADLINE_MS
#define WORDS (PARTY_LEN - 64) /* of the memory: words that are added to */

size_t work_len(uint64_t i)
{
    return i % 3 ? 8 + i % 50 : WORK_LARGE;
}

/* Several of an operation, or one; each has to end well. */
static void do_one(weft_conn_t conn, const struct work *w, struct weft_xfer x)
{
    weft_op_t ops[WORK_DEPTH];
    struct weft_op_status status;
    x.struct_size = sizeof x;
    if (!w->posted) {
        WEFT_OK(weft_transfer(conn, &x, T, NULL));
        return;
    }
    for (int i = 0; i < WORK_DEPTH; i++)
        WEFT_OK(weft_post(conn, &x, &ops[i]));
    for (int i = 0; i < WORK_DEPTH; i++) {
        int rc = weft_op_wait(ops[i], T, &status);
        CHECK(rc == 0, "operation %d: %s: %s", x.op, weft_err_name(rc), status.text);
    }
}

static void act_round(weft_conn_t conn, const struct work *w, uint64_t i, unsigned char *buf)
{
    size_t len = work_len(i);
    struct weft_local local = {.addr = buf, .len = len};
    struct weft_xfer x = {
        .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1, .remote = &w->remote, .nremote = 1};
    uint64_t at = WORDS, before = 0;
    test_fill(buf, len, i, 0);
    do_one(conn, w, x);
    test_zero(buf, len);
    x.op = WEFT_XFER_READ;
    do_one(conn, w, x);
    CHECK(test_differs(buf, len, i, 0) < 0, "round %" PRIu64 " read wrong bytes", i);
    do_one(conn, w, (struct weft_xfer){.op = WEFT_XFER_NOTIFY, .notify = buf, .notify_len = len});
    do_one(conn, w, (struct weft_xfer){.op = WEFT_XFER_SEND, .local = &local, .nlocal = 1});
    do_one(conn, w,
           (struct weft_xfer){.op = WEFT_XFER_ADD,
                              .remote = &w->remote,
                              .nremote = 1,
                              .remote_offset = &at,
                              .value = 1});
    WEFT_OK(weft_add(conn, &w->remote, WORDS + 8, 1, &before, T));
    CHECK(before == i, "addition %" PRIu64 " found %" PRIu64, i, before);
}

void work_act(weft_conn_t conn, struct work *w)
{
    unsigned char *buf = malloc(WORK_LARGE);
    CHECK(buf, "no memory");
    uint64_t end = weft_now() + (uint64_t)w->run_ms * 1000000;
    for (w->rounds = 0; weft_now() < end; w->rounds++)
        act_round(conn, w, w->rounds, buf);
    struct weft_xfer last = {.struct_size = sizeof last, .op = WEFT_XFER_SEND};
    WEFT_OK(weft_transfer(conn, &last, T, NULL));
    free(buf);
}

static void take_notif(weft_endpoint_t endpoint, uint64_t i)
{
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(endpoint, T, &notif));
    CHECK(notif.len == work_len(i) && test_differs(notif.data, notif.len, i, 0) < 0,
          "notification %" PRIu64 " is wrong", i);
    weft_notif_free(&notif);
}

void work_answer(weft_endpoint_t endpoint, weft_conn_t conn, struct work *w)
{
    uint64_t times = w->posted ? WORK_DEPTH : 1, n = 0;
    unsigned char *buf = malloc(WORK_LARGE);
    CHECK(buf, "no memory");
    for (;; n++) {
        int64_t len = WEFT_OK(weft_recv(conn, buf, WORK_LARGE, T));
        if (len == 0)
            break;
        CHECK((size_t)len == work_len(n / times) &&
                  test_differs(buf, (size_t)len, n / times, 0) < 0,
              "message %" PRIu64 " is wrong", n);
        take_notif(endpoint, n / times);
    }
    CHECK(n % times == 0, "%" PRIu64 " messages", n);
    w->rounds = n / times;
    free(buf);
}
