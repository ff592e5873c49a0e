/* SPDX-License-Identifier: Apache-2.0 */
/* Completions of libfabric in, comps for core out; and sleeping. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "efa.h"

#define BATCHES 4          /* of completions in one poll: libfabric moves bytes while it is asked */
#define MOST_DRAIN 4096    /* the same, when all are wanted: more than a queue holds */
#define LOOK_NS 1000000u   /* between looks at deadlines */
#define WAIT_NS 5000000    /* the same, asleep */
#define STUCK_POLLS 32     /* without news of what is under way, before its target is asked to stay awake */
#define LOOK_POLLS 64      /* between looks at the clock */

/* --- in -------------------------------------------------------------------------------------------------- */

static void on_completion(struct efa_nic *nic, const struct fi_cq_data_entry *entry)
{
    struct efa_call *call = entry->op_context;
    if (entry->flags & FI_REMOTE_CQ_DATA) { /* messages carry none */
        efa_imm_tagged(nic, entry->data, entry->len);
        return;
    }
    if (!call)
        return;
    switch (call->kind) {
    case EFA_CALL_RECV:
        nic->nrecvs--;
        efa_msg_arrived(nic, WEFT_LIST_OF(call, struct efa_slot, call), entry->len);
        break;
    case EFA_CALL_SEND:
        efa_msg_sent(nic, WEFT_LIST_OF(call, struct efa_slot, call), 0, NULL);
        break;
    default:
        efa_req_done(WEFT_LIST_OF(call, struct efa_req, call), 0, NULL);
    }
}

/* The provider's own words say more than the code. */
static const char *words(const struct efa_nic *nic, struct fid_cq *cq,
                         const struct fi_cq_err_entry *entry, char *buf, size_t size)
{
    const char *own = fi_cq_strerror(cq, entry->prov_errno, entry->err_data, buf, size);
    return own && *own && entry->prov_errno ? own : nic->lib->strerror(entry->err);
}

static void on_error(struct efa_nic *nic, struct fid_cq *cq, const struct fi_cq_err_entry *entry)
{
    struct efa_call *call = entry->op_context;
    char buf[96];
    const char *why = words(nic, cq, entry, buf, sizeof buf);
    if (!call) { /* of a peer's operation, which the peer has to mind; or injected: efa_msg_tick finds out */
        weft_log(WEFT_LOG_DEBUG, "efa", "%s: a peer's operation, or a message to one, failed: %s", nic->name, why);
        return;
    }
    switch (call->kind) {
    case EFA_CALL_RECV:
        nic->nrecvs--;
        weft_list_push(&nic->back, &WEFT_LIST_OF(call, struct efa_slot, call)->in);
        break;
    case EFA_CALL_SEND:
        efa_msg_sent(nic, WEFT_LIST_OF(call, struct efa_slot, call), entry->err ? entry->err : EIO, why);
        break;
    default:
        efa_req_done(WEFT_LIST_OF(call, struct efa_req, call), entry->err ? entry->err : EIO, why);
    }
}

static int read_cq(struct efa_nic *nic, struct fid_cq *cq)
{
    if (!cq)
        return 0; /* the nic is lost */
    struct fi_cq_data_entry entries[EFA_BATCH];
    ssize_t n = fi_cq_read(cq, entries, EFA_BATCH);
    if (n == -FI_EAGAIN)
        return 0;
    if (n == -FI_EAVAIL) {
        union { /* it has grown since 1.17 */
            struct fi_cq_err_entry entry;
            char room[256];
        } error = {.entry = {.err_data_size = 0}};
        if (fi_cq_readerr(cq, &error.entry, 0) != 1)
            return 0;
        on_error(nic, cq, &error.entry);
        return 1;
    }
    if (n < 0) {
        nic->lost = efa_fail(nic, (int)n, "cannot read completions");
        return 0;
    }
    for (ssize_t i = 0; i < n; i++)
        on_completion(nic, &entries[i]);
    return (int)n;
}

/* work has something to do only when this side wants something, target when a peer was told of memory: also after it has given back
 * the last of it, for what it wrote before. */
static int progress_memory(struct efa_nic *nic)
{
    int n = 0;
    if (nic->nleases > 0 || nic->leased || nic->waited) {
        n += read_cq(nic, nic->target.cq);
        nic->leased = nic->nleases > 0 || n > 0;
    }
    if (!weft_list_empty(&nic->flying) || !weft_list_empty(&nic->busy) || nic->waited)
        n += read_cq(nic, nic->work.cq);
    return n;
}

int efa_progress(struct efa_nic *nic)
{
    int n = read_cq(nic, nic->message.cq);
    return n + progress_memory(nic);
}

void efa_drain(struct efa_nic *nic, const struct efa_end *end)
{
    for (int i = 0; end->cq && i < MOST_DRAIN && read_cq(nic, end->cq) > 0; i++)
        ;
}

/* --- out ------------------------------------------------------------------------------------------------- */

struct out {
    struct efa_nic *nic;
    struct weft_comp *comps;
    int n, max;
};

static void hand_out_done(struct out *out)
{
    struct efa_nic *nic = out->nic;
    while (out->n < out->max && !weft_list_empty(&nic->done)) {
        struct efa_op *op = WEFT_LIST_OF(nic->done.next, struct efa_op, in);
        out->comps[out->n++] = (struct weft_comp){.ctx = op->ctx,
                                                  .link = &op->link->base,
                                                  .op = op->op,
                                                  .status = op->status,
                                                  .value = op->value,
                                                  .len = op->status ? 0 : op->len,
                                                  .data = op->why};
        op->link->nposted--;
        efa_op_free(op);
    }
}

static void hand_out_messages(struct out *out)
{
    struct efa_nic *nic = out->nic;
    while (out->n < out->max && !weft_list_empty(&nic->arrivals)) {
        struct efa_slot *slot = WEFT_LIST_OF(nic->arrivals.next, struct efa_slot, in);
        const struct efa_head *head = slot->data;
        struct efa_link *link = slot->link;
        weft_list_remove(&slot->in);
        weft_list_push(&nic->lent, &slot->in);
        if (!link || link->state >= EFA_LINK_DOWN)
            continue;
        out->comps[out->n++] = (struct weft_comp){.link = &link->base,
                                                  .op = WEFT_OP_RECV,
                                                  .len = slot->len - sizeof *head,
                                                  .data = head + 1};
        efa_msg_taken(link, le32toh(head->seq));
    }
}

static void hand_out_imms(struct out *out)
{
    struct efa_nic *nic = out->nic;
    while (out->n < out->max && nic->imms) {
        struct efa_arrival *imm = nic->imms;
        nic->imms = imm->next;
        if (!nic->imms)
            nic->imms_tail = &nic->imms;
        if (imm->link && imm->link->state < EFA_LINK_DOWN)
            out->comps[out->n++] = (struct weft_comp){.link = &imm->link->base,
                                                      .op = WEFT_OP_WRITE_IMM,
                                                      .imm = imm->imm,
                                                      .len = imm->len};
        free(imm);
    }
}

static void hand_out_downs(struct out *out)
{
    struct efa_nic *nic = out->nic;
    for (struct weft_list *at = nic->links.next; nic->ndown && at != &nic->links && out->n < out->max;
         at = at->next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, in);
        if (!link->down_due)
            continue;
        link->down_due = false;
        nic->ndown--;
        out->comps[out->n++] = (struct weft_comp){
            .link = &link->base, .op = WEFT_OP_LINK_DOWN, .status = link->status, .data = link->why};
    }
}

/* A link that goes down does so when what ended and what arrived has been handed out. */
static void hand_out(struct out *out)
{
    struct efa_nic *nic = out->nic;
    if (!nic->put_off)
        hand_out_done(out);
    hand_out_messages(out);
    hand_out_imms(out);
    if (nic->ndown && !nic->put_off)
        hand_out_downs(out);
}

static bool has_news(const struct efa_nic *nic)
{
    return nic->ndown || nic->imms || !weft_list_empty(&nic->done) ||
           !weft_list_empty(&nic->arrivals);
}

/* --- poll ------------------------------------------------------------------------------------------------ */

static void look(struct efa_nic *nic)
{
    uint64_t now = weft_now();
    if (now - nic->looked < LOOK_NS)
        return;
    nic->looked = now;
    if (nic->processes)
        efa_process_look(nic);
    if (nic->nstaying > 0)
        efa_link_stays(nic, false);
    efa_link_tick(nic, now);
}

static void run_busy(struct efa_nic *nic)
{
    struct weft_list todo, served;
    if (nic->lost)
        return; /* it may have no endpoint */
    if (!weft_list_empty(&nic->last))
        efa_msg_last_again(nic);
    nic->full = false;
    if (!weft_list_empty(&nic->again))
        efa_req_again(nic);
    if (weft_list_empty(&nic->busy))
        return;
    /* those that stay busy come at the end of a new list; behind the others if they got something: room may be for one of them only */
    todo = nic->busy;
    todo.next->prev = todo.prev->next = &todo;
    weft_list_init(&nic->busy);
    weft_list_init(&served);
    while (!weft_list_empty(&todo)) {
        struct efa_link *link = WEFT_LIST_OF(todo.next, struct efa_link, busy);
        uint32_t flying = link->nflying;
        weft_list_remove(&link->busy);
        efa_msg_flush(link);
        efa_op_pump(link);
        if (link->nflying == flying || weft_list_empty(&link->busy))
            continue;
        weft_list_remove(&link->busy);
        weft_list_push(&served, &link->busy);
    }
    while (!weft_list_empty(&served)) {
        struct weft_list *item = served.next;
        weft_list_remove(item);
        weft_list_push(&nic->busy, item);
    }
}

/* Where nobody can be woken: peers to which something is under way for longer. */
static void keep_awake(struct efa_nic *nic, int news)
{
    nic->stuck = news > 0 || weft_list_empty(&nic->flying) ? 0 : nic->stuck + 1;
    if (nic->stuck >= STUCK_POLLS && nic->base.attr.target_progress) {
        nic->stuck = 0;
        efa_link_stays(nic, true);
    }
}

int efa_poll(struct weft_nic *base, struct weft_comp *comps, int max)
{
    struct efa_nic *nic = (struct efa_nic *)base;
    struct out out = {.nic = nic, .comps = comps, .max = max};
    nic->polls++;
    efa_msg_take_back(nic);
    int n = read_cq(nic, nic->message.cq);
    /* a message may be waited for, and its answer by the peer: what else there is to do is for the next poll, not for the one after it */
    nic->put_off = !nic->put_off && !nic->lost && !weft_list_empty(&nic->arrivals);
    if (!nic->put_off)
        n += progress_memory(nic);
    for (int i = 1; i < BATCHES && n >= EFA_BATCH && !nic->put_off; i++)
        n = efa_progress(nic);
    if (nic->message.fd < 0)
        keep_awake(nic, n);
    if (!weft_list_empty(&nic->telling))
        efa_msg_tell(nic, false);
    nic->fresh = true;
    if (!nic->put_off)
        run_busy(nic);
    nic->fresh = false;
    if (nic->polls % LOOK_POLLS == 0 || nic->waited)
        look(nic);
    nic->waited = false;
    if (has_news(nic))
        hand_out(&out);
    base->bulk = nic->nlong > 0 && nic->message.fd >= 0;
    return out.n == 0 && nic->lost ? nic->lost : out.n;
}

/* --- sleeping -------------------------------------------------------------------------------------------- */

/* Something has a deadline: look at it from time to time. */
static void set_timer(const struct efa_nic *nic, long ns)
{
    struct itimerspec spec = {.it_value.tv_nsec = ns};
    timerfd_settime(nic->timer_fd, 0, &spec, NULL);
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

int efa_wait_fd(struct weft_nic *base)
{
    struct efa_nic *nic = (struct efa_nic *)base;
    nic->waited = true;
    efa_msg_tell(nic, true);
    run_busy(nic);
    if (nic->message.fd < 0 && (nic->nstays > 0 || has_news(nic) || !weft_list_empty(&nic->flying)))
        return WEFT_EAGAIN; /* nobody would tell when there is more to do */
    if (nic->message.fd < 0)
        return WEFT_EUNSUPPORTED; /* asked each time that core goes to sleep: not an error to remember */
    if (has_news(nic) || !weft_list_empty(&nic->lent) || !weft_list_empty(&nic->back) ||
        !weft_list_empty(&nic->busy) || !weft_list_empty(&nic->last) || nic->full || nic->lost)
        return WEFT_EAGAIN;
    set_timer(nic, 0);
    /* trywait may do what the descriptor was readable for, or only clear it: poll knows */
    struct fid *fids[] = {&nic->message.cq->fid, &nic->target.cq->fid, &nic->work.cq->fid};
    bool was_readable = is_readable(nic->epoll_fd);
    if (fi_trywait(nic->fabric, fids, 3) != 0 || was_readable)
        return WEFT_EAGAIN;
    if (nic->nwaiting)
        set_timer(nic, WAIT_NS);
    return nic->epoll_fd;
}
