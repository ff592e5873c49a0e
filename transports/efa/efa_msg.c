/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: the user's, and the transport's own. Each has a number and says which of the peer's were taken, all before
 * `ack`; so it does not matter in which order they come.
 *
 * A SEND ends when the peer's poll has handed it out, not when it lies in the peer's memory: what lies there when the
 * peer's end is closed is lost, and core sends it again over another link.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "efa.h"

#define TELL_POLLS 16 /* for an answer to carry the count of what was taken, before a message is made of it */
#define SPARE_RECVS 32
#define UNSURE_NS 1000000000u

/* --- out ------------------------------------------------------------------------------------------------- */

static bool has_credit(const struct efa_link *link)
{
    return link->seq - link->acked < link->window;
}

/* The peer hears now what was taken. */
static void told(struct efa_link *link)
{
    link->told = link->taken;
    link->tell = false;
    weft_list_remove(&link->telling);
}

static void fill_head(struct efa_link *link, struct efa_slot *slot, enum efa_kind kind)
{
    struct efa_head *head = slot->data;
    *head = (struct efa_head){.link = link->peer.link,
                              .token = link->peer.token,
                              .seq = htole32(link->seq),
                              .ack = htole32(link->taken),
                              .kind = (uint8_t)kind};
}

/* Hand a slot that is filled to libfabric. 0, or its negative code. */
static int hand_over(struct efa_nic *nic, struct efa_slot *slot)
{
    struct iovec iov = {.iov_base = slot->data, .iov_len = slot->len};
    struct fi_msg msg = {.msg_iov = &iov,
                         .desc = &slot->desc,
                         .iov_count = 1,
                         .addr = slot->to->addr,
                         .context = &slot->call.context};
    slot->call.kind = EFA_CALL_SEND;
    return (int)fi_sendmsg(nic->message.ep, &msg, 0);
}

static void slot_end(struct efa_nic *nic, struct efa_slot *slot)
{
    efa_name_put(nic, slot->to);
    efa_process_put(nic, slot->process);
    slot->to = NULL;
    slot->process = NULL;
    efa_slot_put(slot);
}

/* The fate of what is injected is not reported. */
static void set_unsure(struct efa_link *link, uint64_t since)
{
    efa_nic_of(link)->nwaiting += (link->unsure == 0 && since) - (link->unsure && since == 0);
    link->unsure = since;
}

void efa_msg_tick(struct efa_link *link, uint64_t now)
{
    if (!link->unsure || now - link->unsure < UNSURE_NS)
        return;
    set_unsure(link, 0);
    link->ninjected = EFA_INJECTED;
    link->tell = true;
    efa_busy(link);
}

/* 1 posted; 0 no room, the slot is as before; or the link has failed, and the slot is gone. */
static int post(struct efa_link *link, struct efa_slot *slot, enum efa_kind kind)
{
    struct efa_nic *nic = efa_nic_of(link);
    bool inject = slot->len <= nic->inject && link->ninjected < EFA_INJECTED;
    int rc = -FI_EAGAIN;
    fill_head(link, slot, kind);
    slot->link = link;
    slot->to = link->to;
    if (efa_quirk_reachable(nic, link->process))
        rc = inject ? (int)fi_inject(nic->message.ep, slot->data, slot->len, slot->to->addr)
                    : hand_over(nic, slot);
    if (rc == -FI_EAGAIN) {
        slot->to = NULL;
        return 0;
    }
    efa_name_keep(slot->to);
    weft_list_remove(&slot->in);
    if (rc) {
        slot_end(nic, slot);
        efa_link_fail(link, WEFT_ELINK, "efa %s: cannot send to the peer: %s", nic->name,
                      nic->lib->strerror(-rc));
        return WEFT_ELINK;
    }
    if (inject) {
        slot_end(nic, slot);
        if (!link->unsure && kind > EFA_BYE) /* the peer acknowledges it */
            set_unsure(link, nic->looked);
    } else {
        weft_list_push(&link->posted, &slot->in);
    }
    link->ninjected = inject ? link->ninjected + 1 : 0;
    link->seq += kind > EFA_BYE;
    told(link);
    return 1;
}

void efa_msg_sent(struct efa_nic *nic, struct efa_slot *slot, int error, const char *why)
{
    struct efa_link *link = slot->link;
    if (!link)
        nic->nlast--;
    slot_end(nic, slot);
    if (error && link)
        efa_link_fail(link, WEFT_ELINK, "efa %s: cannot reach the peer: %s", nic->name, why);
}

void efa_msg_note(struct efa_link *link, enum efa_kind kind, const void *body, uint32_t len)
{
    struct efa_nic *nic = efa_nic_of(link);
    if (link->nnotes >= EFA_NOTES) {
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer asks, and takes no answer", nic->name);
        return;
    }
    struct efa_slot *slot = efa_slot_get(&nic->smalls);
    if (!slot) {
        efa_link_fail(link, -ENOMEM, "efa %s: no memory for a message", nic->name);
        return;
    }
    struct efa_head *head = slot->data;
    head->kind = (uint8_t)kind;
    if (len > 0)
        memcpy(head + 1, body, len);
    slot->len = (uint32_t)sizeof *head + len;
    weft_list_push(&link->notes, &slot->in);
    link->nnotes++;
    efa_busy(link);
}

static bool flush_notes(struct efa_link *link)
{
    while (!weft_list_empty(&link->notes) && has_credit(link)) {
        struct efa_slot *slot = WEFT_LIST_OF(link->notes.next, struct efa_slot, in);
        const struct efa_head *head = slot->data;
        int rc = post(link, slot, head->kind);
        if (rc == 0)
            efa_busy(link);
        if (rc <= 0)
            return false;
        link->nnotes--;
    }
    return true;
}

/* The body of an op that is a message. */
static enum efa_kind fill_body(struct efa_op *op, struct efa_slot *slot)
{
    void *body = (struct efa_head *)slot->data + 1;
    if (op->op == WEFT_OP_SEND) {
        efa_op_gather(op, body);
        slot->len = (uint32_t)(sizeof(struct efa_head) + op->len);
        return EFA_MSG;
    }
    if (op->op == WEFT_OP_ADD64) {
        struct efa_add_msg add = {.key = htole64(op->remote_key),
                                  .addr = htole64(op->remote_addr),
                                  .value = htole64(op->value),
                                  .id = htole32(op->id)};
        memcpy(body, &add, sizeof add);
        slot->len = sizeof(struct efa_head) + sizeof add;
        return EFA_ADD;
    }
    if (op->op == WEFT_OP_READ) {
        struct efa_fetch_msg fetch = {.key = htole64(op->remote_key),
                                      .addr = htole64(op->remote_addr),
                                      .len = htole64(op->len),
                                      .id = htole32(op->id)};
        memcpy(body, &fetch, sizeof fetch);
        slot->len = sizeof(struct efa_head) + sizeof fetch;
        return EFA_FETCH;
    }
    struct efa_imm_msg imm = {.imm = htole32(op->imm),
                              .seq = htole16(op->imm_seq),
                              .paired = htole16(op->numbered),
                              .len = htole64(op->len)};
    memcpy(body, &imm, sizeof imm);
    slot->len = sizeof(struct efa_head) + sizeof imm;
    return EFA_IMM;
}

static void flush_sends(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    while (!weft_list_empty(&link->sends) && has_credit(link)) {
        struct efa_op *op = WEFT_LIST_OF(link->sends.next, struct efa_op, in);
        bool small = op->op != WEFT_OP_SEND || op->len + sizeof(struct efa_head) <= nic->smalls.size;
        struct efa_slot *slot = efa_slot_get(small ? &nic->smalls : &nic->larges);
        if (!slot) { /* memory may come free */
            efa_busy(link);
            return;
        }
        op->seq = link->seq;
        int rc = post(link, slot, fill_body(op, slot));
        if (rc == 0) {
            efa_slot_put(slot);
            efa_busy(link);
        }
        if (rc <= 0)
            return;
        weft_list_remove(&op->in);
        bool asks = op->op == WEFT_OP_ADD64 || op->op == WEFT_OP_READ;
        weft_list_push(asks ? &link->asked : &link->untaken, &op->in);
    }
}

int efa_msg_send(struct efa_link *link, const struct weft_cmd *cmd)
{
    struct efa_nic *nic = efa_nic_of(link);
    const struct weft_iov_local *pieces = cmd->niov ? cmd->iov : &cmd->one;
    bool small = cmd->len + sizeof(struct efa_head) <= nic->smalls.size;
    if (!weft_list_empty(&link->notes) || !weft_list_empty(&link->sends) || !has_credit(link))
        return 0;
    struct efa_slot *slot = efa_slot_get(small ? &nic->smalls : &nic->larges);
    if (!slot)
        return 0;
    efa_gather(pieces, cmd->niov ? cmd->niov : 1, (struct efa_head *)slot->data + 1);
    slot->len = (uint32_t)(sizeof(struct efa_head) + cmd->len);
    int rc = post(link, slot, EFA_MSG);
    if (rc == 0)
        efa_slot_put(slot);
    return rc;
}

/* What the peer reads by messages. */
static void flush_fetches(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    uint32_t room = nic->base.attr.max_send;
    while (!weft_list_empty(&link->fetches) && has_credit(link)) {
        struct efa_fetch *fetch = WEFT_LIST_OF(link->fetches.next, struct efa_fetch, in);
        struct efa_slot *slot = efa_slot_get(&nic->larges);
        if (!slot) {
            efa_busy(link);
            return;
        }
        uint32_t n = efa_fetch_fill(fetch, (struct efa_head *)slot->data + 1, room);
        slot->len = (uint32_t)(sizeof(struct efa_head) + sizeof(struct efa_data_msg)) + n;
        int rc = post(link, slot, EFA_DATA);
        if (rc == 0) {
            efa_slot_put(slot);
            efa_busy(link);
        }
        if (rc <= 0)
            return;
        efa_fetch_sent(fetch, n);
    }
}

static void flush_count(struct efa_link *link)
{
    if (!link->tell)
        return;
    struct efa_slot *slot = efa_slot_get(&efa_nic_of(link)->smalls);
    if (!slot)
        return;
    slot->len = sizeof(struct efa_head);
    if (post(link, slot, EFA_CREDIT) == 0) {
        efa_slot_put(slot);
        efa_busy(link);
    }
}

void efa_msg_end_taken(struct efa_link *link)
{
    while (!weft_list_empty(&link->untaken)) {
        struct efa_op *op = WEFT_LIST_OF(link->untaken.next, struct efa_op, in);
        if (op->seq - link->acked < EFA_SEEN)
            return;
        weft_list_remove(&op->in);
        efa_op_message_done(op);
    }
}

void efa_msg_flush(struct efa_link *link)
{
    if (link->state >= EFA_LINK_DOWN || !link->to)
        return;
    efa_msg_end_taken(link);
    if (flush_notes(link) && link->state == EFA_LINK_UP)
        flush_sends(link);
    if (link->state == EFA_LINK_UP)
        flush_fetches(link);
    if (link->state < EFA_LINK_DOWN)
        flush_count(link);
}

void efa_msg_tell(struct efa_nic *nic, bool all)
{
    for (struct weft_list *at = nic->telling.next, *next; at != &nic->telling; at = next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, telling);
        next = at->next;
        if (!all && nic->polls - link->untold_poll < TELL_POLLS)
            return; /* those behind are younger */
        link->tell = true;
        efa_busy(link);
        weft_list_remove(&link->telling);
    }
}

/* --- last words ------------------------------------------------------------------------------------------ */

/* 0, or not now. */
static int post_last(struct efa_nic *nic, struct efa_slot *slot)
{
    int rc = efa_quirk_reachable(nic, slot->process) ? hand_over(nic, slot) : -FI_EOTHER;
    if (rc == -FI_EAGAIN)
        return rc;
    weft_list_remove(&slot->in);
    if (rc)
        slot_end(nic, slot);
    else
        nic->nlast++;
    return 0;
}

void efa_msg_last(struct efa_link *link, enum efa_kind kind)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_slot *slot = link->to ? efa_slot_get(&nic->smalls) : NULL;
    if (!slot)
        return; /* the peer finds out when it wants something */
    if (!efa_process_alive(link->process)) { /* nobody would take it, and some providers never say so */
        efa_slot_put(slot);
        return;
    }
    fill_head(link, slot, kind);
    slot->len = sizeof(struct efa_head);
    slot->to = efa_name_keep(link->to);
    slot->process = link->process;
    if (slot->process)
        slot->process->refs++;
    slot->link = NULL;
    weft_list_push(&nic->last, &slot->in);
    efa_msg_last_again(nic);
}

void efa_msg_last_again(struct efa_nic *nic)
{
    for (struct weft_list *at = nic->last.next, *next; at != &nic->last; at = next) {
        next = at->next;
        post_last(nic, WEFT_LIST_OF(at, struct efa_slot, in)); /* one peer that is stuck does not keep others waiting */
    }
}

/* --- receives -------------------------------------------------------------------------------------------- */

static bool receive(struct efa_nic *nic, struct efa_slot *slot)
{
    slot->link = NULL;
    slot->call.kind = EFA_CALL_RECV;
    ssize_t rc = fi_recv(nic->message.ep, slot->data, slot->pool->size, slot->desc, FI_ADDR_UNSPEC,
                         &slot->call.context);
    if (rc == -FI_EAGAIN)
        return false;
    weft_list_remove(&slot->in);
    if (rc) {
        nic->lost = efa_fail(nic, (int)rc, "cannot post a receive");
        efa_slot_put(slot);
        return false;
    }
    nic->nrecvs++;
    return true;
}

void efa_msg_receive(struct efa_nic *nic)
{
    uint32_t want = nic->recvs_want + SPARE_RECVS;
    if (want > nic->recvs_most)
        want = nic->recvs_most;
    while (!weft_list_empty(&nic->back)) {
        struct efa_slot *slot = WEFT_LIST_OF(nic->back.next, struct efa_slot, in);
        if (nic->nrecvs >= want)
            efa_slot_put(slot);
        else if (!receive(nic, slot))
            return;
    }
    while (nic->nrecvs < want) {
        struct efa_slot *slot = efa_slot_get(&nic->larges);
        if (!slot)
            return; /* later; the provider makes peers wait */
        if (!receive(nic, slot)) {
            if (!nic->lost)
                efa_slot_put(slot);
            return;
        }
    }
}

void efa_msg_take_back(struct efa_nic *nic)
{
    while (!weft_list_empty(&nic->lent)) {
        struct weft_list *item = nic->lent.next;
        weft_list_remove(item);
        weft_list_push(&nic->back, item);
    }
    if (!weft_list_empty(&nic->back))
        efa_msg_receive(nic);
}

/* --- in -------------------------------------------------------------------------------------------------- */

static bool is_taken(const struct efa_link *link, uint32_t seq)
{
    return link->seen[seq % EFA_SEEN / 64] >> seq % 64 & 1;
}

void efa_msg_taken(struct efa_link *link, uint32_t seq)
{
    struct efa_nic *nic = efa_nic_of(link);
    if (seq == link->taken)
        link->taken++;
    else
        link->seen[seq % EFA_SEEN / 64] |= (uint64_t)1 << seq % 64;
    while (is_taken(link, link->taken)) { /* what has overtaken it */
        link->seen[link->taken % EFA_SEEN / 64] &= ~((uint64_t)1 << link->taken % 64);
        link->taken++;
    }
    uint32_t untold = link->taken - link->told;
    if (untold > 0 && weft_list_empty(&link->telling)) {
        link->untold_poll = nic->polls;
        weft_list_push(&nic->telling, &link->telling);
    }
    if (untold >= (link->own_window + 1) / 2) {
        link->tell = true;
        efa_busy(link);
    }
    if (link->leaving)
        efa_link_leave(link);
}

static void on_ack(struct efa_link *link, uint32_t ack)
{
    if (ack - link->acked > link->seq - link->acked)
        return; /* an old one, or nonsense */
    link->acked = ack;
    if (link->unsure && ack == link->seq)
        set_unsure(link, 0);
    if (!weft_list_empty(&link->untaken) || !weft_list_empty(&link->notes) ||
        !weft_list_empty(&link->sends) || !weft_list_empty(&link->fetches))
        efa_busy(link);
}

static const uint16_t body_len[EFA_KINDS] = {
    [EFA_HELLO] = sizeof(struct efa_hello),       [EFA_TARGET] = sizeof(struct efa_target),
    [EFA_LOOKUP] = sizeof(struct efa_lookup_msg), [EFA_ANSWER] = sizeof(struct efa_answer_msg),
    [EFA_REVOKE] = sizeof(struct efa_revoke_msg), [EFA_ADD] = sizeof(struct efa_add_msg),
    [EFA_ADDED] = sizeof(struct efa_added_msg),   [EFA_IMM] = sizeof(struct efa_imm_msg),
    [EFA_STAY] = sizeof(struct efa_stay_msg),     [EFA_FETCH] = sizeof(struct efa_fetch_msg),
    [EFA_DATA] = sizeof(struct efa_data_msg),
};

/* A message of the transport's own that has come at its time. */
static void take(struct efa_link *link, enum efa_kind kind, const void *body, size_t len)
{
    union {
        struct efa_hello hello;
        struct efa_target target;
        struct efa_lookup_msg lookup;
        struct efa_answer_msg answer;
        struct efa_revoke_msg revoke;
        struct efa_add_msg add;
        struct efa_added_msg added;
        struct efa_imm_msg imm;
        struct efa_stay_msg stay;
        struct efa_fetch_msg fetch;
        struct efa_data_msg data;
    } m;
    memcpy(&m, body, body_len[kind]); /* aligned */
    switch (kind) {
    case EFA_HELLO:
        efa_link_on_hello(link, &m.hello);
        break;
    case EFA_UP:
        efa_link_on_up(link);
        break;
    case EFA_TARGET:
        efa_link_on_target(link, &m.target);
        break;
    case EFA_LOOKUP:
        efa_mem_lookup(link, &m.lookup);
        break;
    case EFA_ANSWER:
        efa_region_answer(link, &m.answer);
        break;
    case EFA_REVOKE:
        if (m.revoke.done)
            efa_mem_returned(link, le32toh(m.revoke.id));
        else
            efa_region_revoke(link, le64toh(m.revoke.key), le32toh(m.revoke.id));
        break;
    case EFA_ADD:
        efa_mem_add(link, &m.add);
        break;
    case EFA_ADDED:
        efa_op_added(link, &m.added);
        break;
    case EFA_IMM:
        efa_imm_message(link, &m.imm);
        break;
    case EFA_STAY:
        efa_link_on_stay(link, &m.stay);
        break;
    case EFA_FETCH:
        efa_fetch_asked(link, &m.fetch);
        break;
    case EFA_DATA:
        efa_fetch_data(link, &m.data, (const uint8_t *)body + sizeof m.data, len - sizeof m.data);
        break;
    default:
        break;
    }
}

/* Is this message one that could come now? Else the link has failed. */
static bool is_sound(struct efa_link *link, const struct efa_head *head, size_t len)
{
    uint32_t ahead = le32toh(head->seq) - link->taken;
    bool sound = head->kind >= EFA_CREDIT && head->kind < EFA_KINDS;
    if (sound && head->kind == EFA_DATA)
        sound = len >= sizeof *head + sizeof(struct efa_data_msg);
    else if (sound && head->kind != EFA_MSG)
        sound = len == sizeof *head + body_len[head->kind];
    /* without a number: a count, the goodbye, and what comes after it */
    if (sound && head->kind > EFA_BYE && head->kind != EFA_QUIET)
        sound = ahead < EFA_SEEN && !is_taken(link, le32toh(head->seq));
    if (!sound)
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer sent a malformed message",
                      efa_nic_of(link)->name);
    return sound;
}

/* True: the slot is kept. */
static bool arrived(struct efa_link *link, struct efa_slot *slot)
{
    struct efa_nic *nic = efa_nic_of(link);
    const struct efa_head *head = slot->data;
    enum efa_kind kind = head->kind;
    bool joining = kind == EFA_HELLO || kind == EFA_UP || kind == EFA_CREDIT;
    switch (kind) {
    case EFA_BYE:
        efa_link_on_bye(link, le32toh(head->seq));
        return false;
    case EFA_QUIET:
        link->quiet = true;
        return false;
    default:
        break;
    }
    if (link->state >= EFA_LINK_DOWN)
        return false;
    if (link->state < EFA_LINK_UP && !joining) { /* it has overtaken the peer's last word of joining */
        if (link->nearly >= link->own_window) {
            efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer sends more than it may before it has joined", nic->name);
            return false;
        }
        slot->link = link;
        link->nearly++;
        weft_list_push(&link->early, &slot->in);
        return true;
    }
    if (kind == EFA_CREDIT)
        return false;
    if (kind == EFA_MSG) {
        slot->link = link;
        weft_list_push(&nic->arrivals, &slot->in);
        return true;
    }
    take(link, kind, head + 1, slot->len - sizeof *head);
    if (link->state < EFA_LINK_DOWN)
        efa_msg_taken(link, le32toh(head->seq));
    return false;
}

void efa_msg_arrived(struct efa_nic *nic, struct efa_slot *slot, size_t len)
{
    const struct efa_head *head = slot->data;
    struct efa_link *link = len >= sizeof *head ? efa_link_find(nic, le32toh(head->link)) : NULL;
    slot->len = (uint32_t)len;
    if (link && link->own.token != head->token)
        link = NULL;
    if (link && link->process)
        link->process->heard = true;
    if (link && is_sound(link, head, len)) {
        on_ack(link, le32toh(head->ack));
        if (arrived(link, slot))
            return;
    }
    weft_list_push(&nic->back, &slot->in);
}

void efa_msg_early(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    while (!weft_list_empty(&link->early) && link->state == EFA_LINK_UP) {
        struct efa_slot *slot = WEFT_LIST_OF(link->early.next, struct efa_slot, in);
        weft_list_remove(&slot->in);
        link->nearly--;
        if (!arrived(link, slot))
            weft_list_push(&nic->back, &slot->in);
    }
}

/* --- the end --------------------------------------------------------------------------------------------- */

static void forget_slots(struct weft_list *list, const struct efa_link *link)
{
    for (struct weft_list *at = list->next; at != list; at = at->next) {
        struct efa_slot *slot = WEFT_LIST_OF(at, struct efa_slot, in);
        if (slot->link == link)
            slot->link = NULL;
    }
}

void efa_msg_drop(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    while (!weft_list_empty(&link->notes))
        efa_slot_put(WEFT_LIST_OF(link->notes.next, struct efa_slot, in));
    while (!weft_list_empty(&link->early)) {
        struct weft_list *item = link->early.next;
        weft_list_remove(item);
        weft_list_push(&nic->back, item);
    }
    link->nearly = 0;
    while (!weft_list_empty(&link->posted)) {
        struct efa_slot *slot = WEFT_LIST_OF(link->posted.next, struct efa_slot, in);
        weft_list_remove(&slot->in);
        slot->link = NULL;
        nic->nlast++; /* counted down by its completion */
    }
    forget_slots(&nic->arrivals, link);
    weft_list_remove(&link->telling);
    set_unsure(link, 0);
}
