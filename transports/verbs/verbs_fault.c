/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data queue pair fails when one of its requests is refused (a wrong key, say), and with it the
 * peer's. Here both come back:
 *
 *     failed  -> all completions have come -> FAULT to the peer
 *     both FAULTs are said and heard       -> reset, ready again, READY to the peer
 *     both READYs are said and heard       -> what was not executed is posted again
 *
 * No answer at all may mean that the answer was lost which refused a request: the peer's queue pair has
 * failed then, and is silent. So control asks about the first request that was not answered; if the peer
 * is gone, it gets no answer either, and the link is lost.
 *
 * Memory may be in parts, of which the peer knows the first one's key: what goes beyond that is refused. Then
 * the verdict is WEFT_EAGAIN, before it come the keys of all parts (verbs_keys.c), and the request
 * goes again with them. If they are forgotten before it goes, for other memory or another queue pair's fault, it is
 * refused and they are told once more. They may be those of memory that is gone, since keys come back: what was
 * refused under such a key is tried once more with the one that the user has.
 *
 * What was executed: requests go in order, so all before the refused one, and none after it. An end
 * whose queue pair failed for the other's fault does not know which of its own were executed. Writes
 * and reads can be repeated; immediates are counted, so those that came are not repeated; an addition
 * ends with an error that says so.
 */
#include <errno.h>
#include <string.h>

#include "verbs.h"

#define FAULT_NS 10000000000u /* for both ends to be through */
#define MOST_UNCLAIMED 3      /* faults in a row that no request is the cause of */
#define PSN_MASK 0xffffffu
/* Refused requests go again with other keys so often: once for a table that is old, once for the plain key, once
 * for a new table. A long operation has some in each queue pair. */
#define MOST_AGAIN 3

/* --- what a status means --------------------------------------------------------------------------------- */

static const struct {
    enum ibv_wc_status status;
    int code;
    bool fatal; /* the link is lost, not just the request */
    const char *hint;
} meanings[] = {
    {IBV_WC_LOC_LEN_ERR, -EMSGSIZE, false, "local length error: longer than the device allows"},
    {IBV_WC_LOC_QP_OP_ERR, -EIO, true, "local queue pair error: a bug, or a broken device"},
    {IBV_WC_LOC_PROT_ERR, -EFAULT, false,
     "local protection error: is the local memory still registered and mapped?"},
    {IBV_WC_MW_BIND_ERR, -EIO, true, "memory window error"},
    {IBV_WC_BAD_RESP_ERR, WEFT_EPROTO, true, "bad response: the peer's device misbehaved"},
    {IBV_WC_LOC_ACCESS_ERR, -EFAULT, false,
     "local access error: is the local memory still registered, and writable?"},
    {IBV_WC_REM_INV_REQ_ERR, WEFT_EUNSUPPORTED, false,
     "the peer's device does not take this request: its length, its alignment, or too many reads"},
    {IBV_WC_REM_ACCESS_ERR, WEFT_EACCESS, false, "the peer's device refused key, range or access"},
    {IBV_WC_REM_OP_ERR, WEFT_ELINK, true, "the peer's device could not carry out a request"},
    {IBV_WC_RETRY_EXC_ERR, WEFT_ELINK, true,
     "no acknowledgement: the peer is gone, a port or cable is down, or for RoCE GID, MTU or flow "
     "control (PFC) is wrong"},
    {IBV_WC_RNR_RETRY_EXC_ERR, WEFT_ELINK, true, "the peer had no receive for a message"},
    {IBV_WC_LOC_RDD_VIOL_ERR, -EIO, true, "RDD violation"},
    {IBV_WC_REM_INV_RD_REQ_ERR, -EIO, true, "invalid RD request"},
    {IBV_WC_REM_ABORT_ERR, WEFT_ELINK, true, "the peer's device aborted a request"},
    {IBV_WC_INV_EECN_ERR, -EIO, true, "invalid EE context"},
    {IBV_WC_INV_EEC_STATE_ERR, -EIO, true, "invalid EE context state"},
    {IBV_WC_FATAL_ERR, -EIO, true, "fatal error of the device"},
    {IBV_WC_RESP_TIMEOUT_ERR, WEFT_ELINK, true, "response timeout"},
    {IBV_WC_GENERAL_ERR, -EIO, true, "error of the device that it does not name"},
    {IBV_WC_WR_FLUSH_ERR, WEFT_ELINK, false, "flushed: its queue pair failed for another request"},
};

static int status_of(enum ibv_wc_status status, const char **hint, bool *fatal)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++) {
        if (meanings[i].status != status)
            continue;
        *hint = meanings[i].hint;
        *fatal = meanings[i].fatal;
        return meanings[i].code;
    }
    *hint = "a status that is not known";
    *fatal = true;
    return -EIO;
}

int verbs_status(enum ibv_wc_status status, const char **hint)
{
    bool fatal;
    return status_of(status, hint, &fatal);
}

/* --- from failure to FAULT ----------------------------------------------------------------------------- */

static struct verbs_rec *rec_at(struct verbs_qp *qp, uint32_t index)
{
    return &qp->recs[index & qp->mask];
}

/* The first of the requests whose fate is open. False: there is none. */
static bool first_open(const struct verbs_qp *qp, uint32_t *index)
{
    uint32_t at = qp->settled;
    while (at != qp->head && qp->recs[at & qp->mask].nothing) /* executed, or failed before */
        at++;
    *index = at;
    return at != qp->head;
}

static struct verbs_question question_about(struct verbs_qp *qp)
{
    const struct verbs_rec *rec = rec_at(qp, qp->failed);
    if (!qp->guessed && (!qp->own_fault || rec->status == 0))
        return (struct verbs_question){.op = VERBS_NO_QUESTION};
    return (struct verbs_question){.addr = htole64(rec->remote_addr),
                                   .len = htole64(rec->len),
                                   .rkey = htole32(rec->rkey),
                                   .op = rec->kind};
}

static void begin(struct verbs_qp *qp)
{
    uint32_t psn = 0;
    if (qp->state != VERBS_QP_LIVE)
        return;
    verbs_qp_fail(qp);
    qp->state = VERBS_QP_DRAINING;
    qp->epoch++;
    qp->deadline = weft_now() + FAULT_NS;
    verbs_nic_of(qp->link)->nwaiting++;
    weft_random(&psn, sizeof psn);
    qp->psn = psn & PSN_MASK;
    weft_log(WEFT_LOG_DEBUG, "verbs", "%s: a queue pair starts anew",
             verbs_nic_of(qp->link)->name);
}

static void say_ready(struct verbs_qp *qp)
{
    struct verbs_ready_msg msg = {.qp = (uint8_t)(qp->index - 1), .epoch = qp->epoch};
    int rc = verbs_qp_restart(qp);
    if (rc) {
        verbs_link_fail(qp->link, rc, "%s", weft_last_error());
        return;
    }
    qp->state = VERBS_QP_RESET;
    msg.verdict = (int32_t)htole32((uint32_t)qp->verdict);
    verbs_control_note(qp->link, VERBS_READY, &msg, sizeof msg);
}

static uint8_t guess_of(struct verbs_qp *qp)
{
    if (!qp->guessed)
        return VERBS_NO_GUESS;
    return rec_at(qp, qp->failed)->tabled ? VERBS_GUESS_TABLED : VERBS_GUESS;
}

void verbs_fault_step(struct verbs_qp *qp)
{
    if (qp->state == VERBS_QP_DRAINING && qp->flying == 0 && qp->recvs == 0) {
        /* it may be this end's request all the same; one of no bytes needs no key */
        qp->guessed = !qp->own_fault && first_open(qp, &qp->failed) &&
                      rec_at(qp, qp->failed)->len > 0;
        struct verbs_fault_msg msg = {.qp = (uint8_t)(qp->index - 1),
                                      .epoch = qp->epoch,
                                      .guess = guess_of(qp),
                                      .psn = htole32(qp->psn),
                                      .imms = htole32(qp->imms_in),
                                      .question = question_about(qp)};
        qp->state = VERBS_QP_TOLD;
        verbs_control_note(qp->link, VERBS_FAULT, &msg, sizeof msg);
    }
    if (qp->state == VERBS_QP_TOLD && qp->heard && qp->link->state == VERBS_LINK_UP)
        say_ready(qp);
}

void verbs_fault_comp(struct verbs_qp *qp, uint32_t index, enum ibv_wc_status status)
{
    struct verbs_link *link = qp->link;
    const char *hint;
    bool fatal;
    int code = status_of(status, &hint, &fatal);
    /* those before it have succeeded, if no one said otherwise */
    if (qp->state == VERBS_QP_LIVE || status != IBV_WC_WR_FLUSH_ERR)
        verbs_settle(qp, index);
    qp->flying = qp->head - index - 1; /* requests end in order: of those before it nothing will be told */
    if (link->state != VERBS_LINK_UP)
        return;
    bool silent = status == IBV_WC_RETRY_EXC_ERR;
    if (fatal && !silent) {
        verbs_link_fail(link, code, "verbs %s: %s", verbs_nic_of(link)->name, hint);
        return;
    }
    if (status != IBV_WC_WR_FLUSH_ERR) {
        struct verbs_rec *rec = rec_at(qp, index);
        qp->own_fault = true;
        qp->suspected = silent;
        qp->failed = index;
        rec->ended = rec->nothing;
        if (!rec->ended) {
            rec->status = code;
            rec->why = hint;
            rec->nothing = true;
        }
    }
    begin(qp);
    verbs_fault_step(qp);
}

/* --- the peer's words ------------------------------------------------------------------------------------ */

static void broke_protocol(struct verbs_link *link)
{
    verbs_link_fail(link, WEFT_EPROTO, "verbs %s: the peer sent a fault that makes no sense",
                    verbs_nic_of(link)->name);
}

static bool is_refusal(int verdict)
{
    return verdict == WEFT_EKEY || verdict == WEFT_EBOUNDS || verdict == WEFT_EACCESS;
}

/* So many immediates: not fewer than it has said before, nor more than were sent. */
static bool may_have(const struct verbs_qp *qp, uint32_t imms)
{
    return imms - qp->imms_heard <= qp->imms_out - qp->imms_heard;
}

void verbs_fault_heard(struct verbs_link *link, const struct verbs_fault_msg *msg)
{
    struct verbs_qp *qp = msg->qp < link->ndata ? &link->data[msg->qp] : NULL;
    struct verbs_question question = {.addr = le64toh(msg->question.addr),
                                      .len = le64toh(msg->question.len),
                                      .rkey = le32toh(msg->question.rkey),
                                      .op = msg->question.op};
    const struct verbs_mem *beyond = NULL;
    bool live = qp && qp->state == VERBS_QP_LIVE;
    if (!qp || qp->heard || msg->epoch != (uint8_t)(qp->epoch + live) ||
        le32toh(msg->psn) > PSN_MASK || msg->guess >= VERBS_GUESSES || qp->state == VERBS_QP_RESET ||
        !may_have(qp, le32toh(msg->imms))) {
        broke_protocol(link);
        return;
    }
    qp->heard = true;
    qp->peer_psn = le32toh(msg->psn);
    qp->peer_imms = le32toh(msg->imms);
    qp->verdict = 0;
    if (question.op != VERBS_NO_QUESTION)
        qp->verdict = verbs_mem_judge(verbs_nic_of(link), &question, &beyond);
    /* a guess is the cause if it is refused, or went where the user's key does not reach */
    bool cause = msg->guess == VERBS_NO_GUESS || (msg->guess == VERBS_GUESS && beyond) || is_refusal(qp->verdict);
    qp->claimed = question.op != VERBS_NO_QUESTION && cause;
    if (beyond) {
        qp->verdict = WEFT_EAGAIN;
        verbs_keys_tell(link, beyond);
    }
    begin(qp);
    verbs_fault_step(qp);
}

/* --- again ------------------------------------------------------------------------------------------------ */

/* The peer's fault: which of these were executed is known up to the last immediate that came. */
static void mark_executed(struct verbs_qp *qp)
{
    uint32_t imms = 0, came;
    for (uint32_t i = qp->settled; i != qp->head; i++)
        imms += rec_at(qp, i)->kind == WEFT_OP_WRITE_IMM && rec_at(qp, i)->kind != VERBS_NOTHING;
    came = qp->peer_imms - (qp->imms_out - imms);
    if (came > imms)
        came = 0;
    for (uint32_t i = qp->settled; i != qp->head; i++) {
        struct verbs_rec *rec = rec_at(qp, i);
        if (rec->kind == WEFT_OP_ADD64) {
            rec->status = WEFT_ELINK;
            rec->why = "its queue pair failed: whether the addition took place is not known";
            rec->nothing = true;
        }
        if (came > 0 && (rec->kind == WEFT_OP_WRITE || rec->kind == WEFT_OP_WRITE_IMM))
            rec->nothing = true;
        came -= came > 0 && rec->kind == WEFT_OP_WRITE_IMM;
    }
}

/* What is known by now to lie in several parts of the peer's memory. */
static void cut_anew(struct verbs_qp *qp)
{
    struct verbs_link *link = qp->link;
    for (uint32_t i = qp->settled; link->ntables > 0 && i != qp->head; i++) {
        struct verbs_rec *rec = rec_at(qp, i);
        if (rec->nothing || rec->kind == WEFT_OP_ADD64 ||
            !verbs_keys_span(link, rec->rkey, rec->remote_addr, rec->len))
            continue;
        if (rec->op)
            verbs_op_rewind(qp, rec);
        else
            verbs_op_adopt(qp, rec);
    }
}

static void post_again(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    uint32_t at = qp->settled;
    cut_anew(qp);
    while (at != qp->head) {
        int n = 0, err;
        for (; n < VERBS_BATCH && at != qp->head; n++, at++)
            verbs_fill(qp, at, &nic->wrs[n], nic->sges[n]);
        if (verbs_chain(qp, n, false, &err) == n)
            continue;
        verbs_link_fail(qp->link, WEFT_ELINK, "verbs %s: cannot post again after a fault: %s",
                        nic->name, strerror(err));
        return;
    }
}

static void blame(struct verbs_qp *qp, uint32_t index, int status, const char *why)
{
    struct verbs_rec *rec = rec_at(qp, index);
    qp->imms_out -= rec->kind == WEFT_OP_WRITE_IMM; /* it never comes */
    rec->status = status;
    rec->why = why;
    rec->nothing = true;
}

/* A queue pair fails and no request is said to be the cause: it was the first one, if that happens again and
 * again and it stays the first one. */
static void blame_first(struct verbs_qp *qp)
{
    uint32_t first;
    if (!first_open(qp, &first))
        return;
    qp->unclaimed = first == qp->stuck_at ? (uint8_t)(qp->unclaimed + 1) : 1;
    qp->stuck_at = first;
    if (qp->unclaimed == MOST_UNCLAIMED)
        blame(qp, first, -EIO,
              "its queue pair fails for it, and the device does not say why: is the local memory "
              "still registered?");
}

/* The request is in order: it is posted again, like those after it. */
static void acquit(struct verbs_rec *rec)
{
    rec->status = 0;
    rec->why = NULL;
    rec->nothing = rec->kind == VERBS_NOTHING;
}

/* Once more, if that was not too often. */
static bool count_again(struct verbs_rec *rec)
{
    uint8_t *again = rec->op ? &rec->op->again : &rec->again;
    uint8_t most = rec->op ? MOST_AGAIN * VERBS_MAX_DATA : MOST_AGAIN;
    if (*again == most)
        return false;
    ++*again;
    return true;
}

/* It was refused for the key that it went with, and there is another. */
static bool goes_again(struct verbs_qp *qp, int verdict)
{
    struct verbs_rec *rec = rec_at(qp, qp->failed);
    if (rec->status != WEFT_EACCESS || (verdict != WEFT_EAGAIN && (verdict != 0 || !rec->tabled)) ||
        !count_again(rec))
        return false;
    acquit(rec);
    return true;
}

/* A request of this end was refused by a device. */
static void end_refused(struct verbs_qp *qp, int verdict)
{
    struct verbs_rec *rec = rec_at(qp, qp->failed);
    if (rec->ended || goes_again(qp, verdict))
        return;
    if (is_refusal(verdict))
        rec->status = verdict;
    qp->imms_out -= rec->kind == WEFT_OP_WRITE_IMM; /* it never comes */
}

/* No device refused one: what was executed is not repeated, and the one that the peer was asked about ends if
 * the peer refuses it. True if it was the cause. */
static bool end_judged(struct verbs_qp *qp, int verdict)
{
    struct verbs_rec *rec = rec_at(qp, qp->failed);
    bool asked = qp->guessed || (qp->suspected && !rec->ended);
    if (qp->suspected && !rec->ended)
        acquit(rec);
    mark_executed(qp);
    /* of an addition nothing shows whether it was: what is refused now counts as refused */
    bool executed = rec->nothing && rec->kind != WEFT_OP_ADD64;
    bool unkeyed = verdict == WEFT_EAGAIN && !rec->tabled; /* it went where its key does not reach */
    if (!asked || executed || !(is_refusal(verdict) || unkeyed))
        return false;
    if (unkeyed && count_again(rec))
        return true;
    blame(qp, qp->failed, unkeyed ? WEFT_EACCESS : verdict, "the peer refused key, range or access");
    return true;
}

void verbs_fault_ready(struct verbs_link *link, const struct verbs_ready_msg *msg)
{
    struct verbs_qp *qp = msg->qp < link->ndata ? &link->data[msg->qp] : NULL;
    int verdict = (int32_t)le32toh((uint32_t)msg->verdict);
    if (!qp || qp->state != VERBS_QP_RESET || msg->epoch != qp->epoch || verdict > 0 ||
        (verdict != 0 && question_about(qp).op == VERBS_NO_QUESTION)) {
        broke_protocol(link);
        return;
    }
    const struct verbs_rec *rec = rec_at(qp, qp->failed);
    /* went with keys that are not those of its memory any more */
    if ((qp->own_fault || qp->guessed) && rec->tabled && (verdict == 0 || verdict == WEFT_EKEY))
        verbs_keys_drop(link, rec->rkey);
    bool found = qp->own_fault && !qp->suspected;
    if (found)
        end_refused(qp, verdict);
    else
        found = end_judged(qp, verdict);
    if (found || qp->claimed)
        qp->unclaimed = 0;
    else
        blame_first(qp);
    qp->own_fault = qp->suspected = qp->guessed = qp->heard = qp->loose = false;
    qp->state = VERBS_QP_LIVE;
    qp->deadline = 0;
    verbs_nic_of(link)->nwaiting--;
    post_again(qp);
    verbs_busy(link);
}

void verbs_fault_tick(struct verbs_link *link, uint64_t now)
{
    for (uint32_t i = 0; i < link->ndata; i++) {
        const struct verbs_qp *qp = &link->data[i];
        if (qp->deadline && now >= qp->deadline)
            verbs_link_fail(link, WEFT_ELINK,
                            "verbs %s: a queue pair failed and did not come back",
                            verbs_nic_of(link)->name);
    }
}
