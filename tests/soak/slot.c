/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot's conns. The side that connects opens one and introduces it with a message that names
 * slot and epoch; the other side's doorman takes it and puts it at the slot's door, where the
 * slot's first worker finds it once it has closed the conn before, and says so. So nothing of an
 * old conn can land when the first operation of the new one begins.
 */
#include "soak.h"

#define ACCEPT_MS 50
#define RETRY_MS 5
#define LOOK_MS 100 /* between looks whether the round is over */

struct greeting {
    uint32_t magic, slot, epoch;
};

void slot_open(struct side *side, int index)
{
    struct slot *slot = &side->slots[index];
    memset(slot, 0, sizeof *slot);
    slot->index = index;
    slot->connects = index % SIDES == side->me;
    pthread_rwlock_init(&slot->lock, NULL);
    pthread_mutex_init(&slot->door, NULL);
}

void slot_close(struct slot *slot)
{
    if (slot->arrived)
        WEFT_OK(weft_conn_close(slot->arrived));
    pthread_rwlock_destroy(&slot->lock);
    pthread_mutex_destroy(&slot->door);
}

/* --- the side that connects -------------------------------------------------------------------- */

/* A message that the other side takes unless the round is over. */
static int64_t say(struct side *side, weft_conn_t conn, const void *data, size_t len)
{
    struct weft_local local = {.addr = (void *)(uintptr_t)data, .len = len};
    struct weft_xfer x = {
        .struct_size = sizeof x, .op = WEFT_XFER_SEND, .local = &local, .nlocal = 1};
    struct weft_op_status status;
    uint64_t until = weft_now() + HANG_MS * 1000000ull;
    weft_op_t op;
    int rc = weft_post(conn, &x, &op);
    if (rc)
        return rc;
    while ((rc = weft_op_wait(op, LOOK_MS, &status)) == WEFT_ETIMEOUT &&
           status.status == WEFT_EAGAIN) {
        CHECK(weft_now() < until, "a conn's first message hangs");
        if (atomic_load(&side->ledger->stop))
            WEFT_OK(weft_op_cancel(op));
    }
    return rc ? rc : (int64_t)len;
}

/* Say which slot's it is, and wait until that is free at the other side. */
static bool introduce(struct side *side, struct slot *slot, weft_conn_t conn, uint32_t epoch)
{
    struct greeting hello = {NOTE_MAGIC, (uint32_t)slot->index, epoch}, answer = {0};
    struct ledger *ledger = side->ledger;
    int64_t rc = say(side, conn, &hello, sizeof hello);
    while (rc == sizeof hello && !answer.magic && !atomic_load(&ledger->stop)) {
        rc = weft_recv(conn, &answer, sizeof answer, LOOK_MS);
        rc = rc == WEFT_ETIMEOUT ? (int64_t)sizeof hello : rc;
    }
    CHECK((rc == sizeof hello || side->plan.dies || atomic_load(&ledger->stop)) &&
              rc != WEFT_ETIMEOUT,
          "slot %d: a conn that just came up: %s", slot->index, weft_last_error());
    return rc == sizeof hello && !memcmp(&hello, &answer, sizeof hello);
}

static bool slot_connect(struct side *side, struct slot *slot)
{
    struct ledger *ledger = side->ledger;
    weft_conn_t conn;
    int rc = weft_endpoint_connect(side->endpoint, ledger->metadata[side->peer],
                                   (size_t)ledger->metadata_len[side->peer],
                                   WEFT_OPTS(weft_connect_opts, .timeout_ms = HANG_MS), &conn);
    if (rc) { /* the fault transport refuses some */
        CHECK(rc == WEFT_ENOPATH || (side->plan.dies && rc != WEFT_ETIMEOUT), "connect: %s",
              weft_last_error());
        return false;
    }
    uint32_t epoch = atomic_fetch_add(&ledger->epoch[slot->index], 1) + 1;
    if (!introduce(side, slot, conn, epoch)) {
        WEFT_OK(weft_conn_close(conn));
        return false;
    }
    slot->conn = conn;
    slot->epoch = epoch;
    count(side, TOTAL_CONNS, 1);
    return true;
}

/* --- the side that accepts --------------------------------------------------------------------- */

static void take(struct side *side, weft_conn_t conn)
{
    struct greeting hello = {0};
    int64_t rc = weft_recv(conn, &hello, sizeof hello, HANG_MS);
    if (rc < 0) { /* the other side gave it up */
        bool canceled = rc == WEFT_ECANCELED && atomic_load(&side->ledger->stop); /* see say() */
        CHECK((rc == WEFT_EPEER || canceled || side->plan.dies) && rc != WEFT_ETIMEOUT,
              "a conn's first message: %s", weft_last_error());
        WEFT_OK(weft_conn_close(conn));
        return;
    }
    CHECK(rc == sizeof hello && hello.magic == NOTE_MAGIC && hello.slot < SLOTS,
          "a greeting of %" PRId64 " bytes makes no sense", rc);
    struct slot *slot = &side->slots[hello.slot];
    pthread_mutex_lock(&slot->door);
    weft_conn_t before = slot->arrived;
    slot->arrived = conn;
    slot->arrived_epoch = hello.epoch;
    pthread_mutex_unlock(&slot->door);
    if (before)
        WEFT_OK(weft_conn_close(before));
}

void *doorman(void *arg)
{
    struct side *side = arg;
    while (!atomic_load(&side->ledger->stop)) {
        weft_conn_t conn;
        int rc = weft_endpoint_accept(side->endpoint, ACCEPT_MS, &conn);
        CHECK(rc == 0 || rc == WEFT_ETIMEOUT, "accept: %s", weft_last_error());
        if (rc == 0)
            take(side, conn);
    }
    return NULL;
}

static bool slot_accept(struct side *side, struct slot *slot)
{
    struct greeting answer = {NOTE_MAGIC, (uint32_t)slot->index, 0};
    pthread_mutex_lock(&slot->door);
    weft_conn_t conn = slot->arrived;
    slot->epoch = answer.epoch = slot->arrived_epoch;
    slot->arrived = 0;
    pthread_mutex_unlock(&slot->door);
    if (!conn)
        return false;
    int64_t rc = say(side, conn, &answer, sizeof answer);
    if (rc == sizeof answer) {
        slot->conn = conn;
        return true;
    }
    CHECK((side->plan.dies || atomic_load(&side->ledger->stop)) && rc != WEFT_ETIMEOUT,
          "slot %d, epoch %u (ended %u): a first answer: %s", slot->index, slot->epoch,
          atomic_load(&side->ledger->ended[slot->index]), weft_last_error());
    /* an answer that was canceled may have been taken: then the other side uses the conn */
    atomic_store(&side->ledger->ended[slot->index], slot->epoch);
    WEFT_OK(weft_conn_close(conn));
    return false;
}

/* --- both -------------------------------------------------------------------------------------- */

bool slot_renew(struct side *side, struct slot *slot)
{
    pthread_rwlock_wrlock(&slot->lock);
    if (slot->conn && !atomic_load(&slot->shut))
        WEFT_OK(weft_conn_close(slot->conn));
    slot->conn = 0;
    uint64_t until = weft_now() + HANG_MS * 1000000ull;
    while (!slot->conn && !atomic_load(&side->ledger->stop)) {
        bool up = slot->connects ? slot_connect(side, slot) : slot_accept(side, slot);
        CHECK(up || weft_now() < until, "slot %d: no conn in %d s", slot->index, HANG_MS / 1000);
        if (!up)
            test_sleep_ms(RETRY_MS);
    }
    bool up = slot->conn != 0;
    atomic_store(&slot->shut, false);
    atomic_store(&slot->dead, !up);
    pthread_rwlock_unlock(&slot->lock);
    return up;
}

void slot_end(struct side *side, struct slot *slot)
{
    if (atomic_exchange(&slot->dead, true))
        return;
    atomic_store(&side->ledger->ended[slot->index], slot->epoch);
    atomic_store(&slot->shut, true);
    WEFT_OK(weft_conn_close(slot->conn));
}

bool slot_failed(struct side *side, struct slot *slot, int rc)
{
    struct weft_conn_info info = {.why = "closed", .status = WEFT_ECLOSED};
    int got = weft_conn_info(slot->conn, &info);
    bool shut = atomic_load(&slot->shut); /* now: another thread may have done it meanwhile */
    if (!shut && (got || info.state != WEFT_CONN_DOWN))
        return false;
    bool asked = atomic_load(&side->ledger->ended[slot->index]) >= slot->epoch;
    CHECK(asked || side->plan.dies, "slot %d, epoch %u: the conn died by itself: %s (%s)",
          slot->index, slot->epoch, info.why, weft_err_name(info.status));
    CHECK(rc == WEFT_EPEER || rc == WEFT_ECLOSED || (rc == WEFT_EHANDLE && shut) ||
              side->plan.fails,
          "slot %d: on a dead conn an operation ended with %s: %s", slot->index, weft_err_name(rc),
          info.why);
    atomic_store(&slot->dead, true);
    return true;
}
