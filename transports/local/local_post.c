/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator: cmds go into the ring, answers of the target become comps.
 *
 * A cmd takes a slot until its comp is handed out. A payload goes in the cmd's entry if it is
 * small, is fetched by the target if the target can copy, and else goes through the ring in
 * pieces, one of each cmd in turn, so that a long one does not hold up the others.
 */
#include "local.h"

#include <string.h>

static struct local_nic *nic_of(const struct local_link *link)
{
    return (struct local_nic *)link->base.nic;
}

/* --- slots ---------------------------------------------------------------------------------- */

static const struct weft_iov_local *cmd_iov(const struct weft_cmd *cmd, uint32_t *niov)
{
    *niov = cmd->niov ? cmd->niov : 1;
    return cmd->niov ? cmd->iov : &cmd->one;
}

/* Take the free slot that was looked at for this cmd. */
static struct local_slot *take_slot(struct local_link *link, const struct weft_cmd *cmd,
                                    enum local_how how)
{
    struct local_slot *slot = &link->slots[link->free_slots[--link->nfree]];
    slot->ctx = cmd->ctx;
    slot->len = cmd->len;
    slot->op = cmd->op;
    slot->state = LOCAL_SLOT_POSTED;
    slot->how = (uint8_t)how;
    slot->status = 0;
    slot->value = 0;
    link->nsmall += how != LOCAL_DIRECT;
    if (how != LOCAL_IN_ENTRY) {
        slot->answered = false;
        slot->moved = 0;
        slot->one = cmd->one;
        slot->niov = cmd->niov ? cmd->niov : 1;
        slot->iov = cmd->niov ? cmd->iov : &slot->one;
    }
    return slot;
}

static uint16_t next_slot(const struct local_link *link)
{
    return link->free_slots[link->nfree - 1];
}

static void end_slot(struct local_link *link, uint16_t number, int status)
{
    struct local_slot *slot = &link->slots[number];
    slot->state = LOCAL_SLOT_DONE;
    local_help_drop(link, number);
    if (!slot->status)
        slot->status = status;
    local_queue_push(&link->done, number);
}

/* --- post ----------------------------------------------------------------------------------- */

static enum local_how choose_how(const struct local_link *link, const struct weft_cmd *cmd)
{
    if (cmd->op == WEFT_OP_SEND || cmd->op == WEFT_OP_ADD64)
        return LOCAL_IN_ENTRY;
    if (cmd->len <= LOCAL_PAYLOAD)
        return cmd->op == WEFT_OP_READ ? LOCAL_IN_PIECES : LOCAL_IN_ENTRY;
    return link->direct_out ? LOCAL_DIRECT : LOCAL_IN_PIECES;
}

/* What ends the entry. */
static uint64_t rest_len(const struct weft_cmd *cmd, enum local_how how)
{
    if (how == LOCAL_IN_ENTRY)
        return cmd->len;
    if (how == LOCAL_DIRECT)
        return (cmd->niov ? cmd->niov : 1u) * sizeof(struct local_range);
    return 0;
}

static void write_rest(uint8_t *body, const struct weft_cmd *cmd, enum local_how how)
{
    uint32_t niov;
    const struct weft_iov_local *iov = cmd_iov(cmd, &niov);
    if (how == LOCAL_IN_ENTRY && cmd->op == WEFT_OP_ADD64)
        memcpy(body, &cmd->value, sizeof cmd->value);
    else if (how == LOCAL_IN_ENTRY && niov == 1 && cmd->len)
        memcpy(body, iov->addr, cmd->len);
    else if (how == LOCAL_IN_ENTRY)
        local_gather(body, iov, 0, cmd->len);
    else if (how == LOCAL_DIRECT)
        for (uint32_t i = 0; i < niov; i++) {
            struct local_range range = {(uintptr_t)iov[i].addr, iov[i].len};
            memcpy(body + i * sizeof range, &range, sizeof range);
        }
}

/* A fence is kept here: it ends when all that was posted before has ended, and nothing is
 * accepted behind it. The target would have to stop looking at its ring, which also carries
 * what this end waits for. */
static void post_fence(struct local_link *link, const struct weft_cmd *cmd)
{
    uint16_t number = next_slot(link);
    take_slot(link, cmd, LOCAL_IN_ENTRY);
    link->fence = number;
}

/* The entry of a cmd up to what ends it, which is for the caller to write. NULL: there is no room. */
static uint8_t *begin_entry(struct local_link *link, const struct weft_cmd *cmd, enum local_how how, uint16_t slot)
{
    uint64_t rest = rest_len(cmd, how);
    if (cmd->op == WEFT_OP_SEND)
        return local_ring_reserve(&link->tx, rest, LOCAL_SEND, cmd->op, slot);
    if (cmd->op == WEFT_OP_WRITE && how == LOCAL_IN_ENTRY) {
        struct local_write *write = local_ring_reserve(&link->tx, sizeof *write + rest, LOCAL_WRITE, cmd->op, slot);
        if (!write)
            return NULL;
        write->addr = cmd->remote_addr;
        write->key = cmd->remote_key;
        return (uint8_t *)(write + 1);
    }
    struct local_cmd *out = local_ring_reserve(&link->tx, sizeof *out + rest, LOCAL_CMD, cmd->op, slot);
    if (!out)
        return NULL;
    out->addr = cmd->remote_addr;
    out->key = cmd->remote_key;
    out->len = cmd->len;
    out->imm = cmd->imm;
    out->how = (uint16_t)how;
    out->niov = cmd->niov ? cmd->niov : 1;
    return (uint8_t *)(out + 1);
}

static int post_one(struct local_link *link, const struct weft_cmd *cmd)
{
    int rc = weft_cmd_check(&link->base.nic->attr, cmd);
    if (rc)
        return rc;
    if (link->nfree == 0 || link->fence != LOCAL_NO_SLOT)
        return WEFT_EAGAIN;
    if (cmd->op == WEFT_OP_FENCE) {
        post_fence(link, cmd);
        return 0;
    }
    enum local_how how = choose_how(link, cmd);
    uint16_t number = next_slot(link);
    uint8_t *rest = begin_entry(link, cmd, how, number);
    if (!rest) {
        link->starved = true;
        return WEFT_EAGAIN;
    }
    write_rest(rest, cmd, how);
    struct local_slot *slot = take_slot(link, cmd, how);
    if (how == LOCAL_IN_PIECES && cmd->op != WEFT_OP_READ) {
        slot->state = LOCAL_SLOT_SENDING;
        local_queue_push(&link->sending, number);
    }
    return 0;
}

int local_post(struct weft_link *base, const struct weft_cmd *cmds, int n)
{
    struct local_link *link = (struct local_link *)base;
    if (link->state != LOCAL_UP)
        return weft_fail(WEFT_ELINK, "local: the link is not up");
    int done = 0, rc = 0;
    while (done < n && !(rc = post_one(link, &cmds[done])))
        done++;
    if (local_ring_publish(&link->tx))
        local_wake(link);
    if (done)
        local_link_activate(link); /* answers will come */
    return done || rc == WEFT_EAGAIN ? done : rc;
}

/* --- payload in pieces ---------------------------------------------------------------------- */

/* Send one piece. False: there was no room. */
static bool send_piece(struct local_link *link, uint16_t number)
{
    struct local_slot *slot = &link->slots[number];
    uint64_t left = slot->len - slot->moved, most = local_piece_max(link->tx.size);
    uint64_t len = slot->answered ? 0 : left < most ? left : most;
    bool last = slot->answered || len == left;
    uint8_t *body = local_ring_reserve(&link->tx, len, LOCAL_TO_TARGET, last ? LOCAL_PIECE_LAST : LOCAL_PIECE_MORE, number);
    if (!body)
        return false;
    local_gather(body, slot->iov, slot->moved, len);
    slot->moved += len;
    if (last && slot->answered)
        end_slot(link, number, 0);
    else if (last)
        slot->state = LOCAL_SLOT_POSTED;
    else
        local_queue_push(&link->sending, number);
    return true;
}

void local_post_progress(struct local_link *link)
{
    struct local_nic *nic = nic_of(link);
    while (link->sending.count && nic->budget > 0) {
        uint16_t number = local_queue_pop(&link->sending);
        if (!send_piece(link, number)) {
            /* to the front: it is still this one's turn */
            link->sending.first = (link->sending.first + LOCAL_DEPTH - 1) % LOCAL_DEPTH;
            link->sending.count++;
            link->starved = true;
            return;
        }
        nic->budget -= (int64_t)local_piece_max(link->tx.size);
    }
}

/* A piece of what a READ asked for. */
int local_post_piece(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                     uint64_t len)
{
    if (head->slot >= LOCAL_DEPTH)
        return WEFT_EPROTO;
    struct local_slot *slot = &link->slots[head->slot];
    if (slot->state != LOCAL_SLOT_POSTED || slot->op != WEFT_OP_READ ||
        slot->how != LOCAL_IN_PIECES || len > slot->len - slot->moved)
        return WEFT_EPROTO;
    local_scatter(slot->iov, slot->moved, body, len);
    slot->moved += len;
    if ((head->op == LOCAL_PIECE_LAST) != (slot->moved == slot->len))
        return WEFT_EPROTO;
    if (head->op == LOCAL_PIECE_LAST)
        end_slot(link, head->slot, 0);
    return 0;
}

/* --- answers -------------------------------------------------------------------------------- */

/* Executed without a word: everything but what brings something back. */
static bool may_ack(const struct local_slot *slot)
{
    return slot->state == LOCAL_SLOT_POSTED && slot->op != WEFT_OP_ADD64 &&
           slot->op != WEFT_OP_FENCE &&
           !(slot->op == WEFT_OP_READ && slot->how == LOCAL_IN_PIECES);
}

int local_post_acks(struct local_link *link, const uint8_t *body, uint64_t len)
{
    for (uint64_t i = 0; i + sizeof(uint16_t) <= len; i += sizeof(uint16_t)) {
        uint16_t number;
        local_ring_read(&number, body + i, sizeof number);
        if (number >= LOCAL_DEPTH || !may_ack(&link->slots[number]))
            return WEFT_EPROTO;
        end_slot(link, number, 0);
    }
    return 0;
}

int local_post_answer(struct local_link *link, uint16_t number, const uint8_t *body, uint64_t len)
{
    struct local_answer answer;
    if (number >= LOCAL_DEPTH || len != sizeof answer)
        return WEFT_EPROTO;
    local_ring_read(&answer, body, sizeof answer);
    struct local_slot *slot = &link->slots[number];
    bool add = slot->op == WEFT_OP_ADD64;
    if (slot->op == WEFT_OP_FENCE || answer.status > 0 || answer.status < INT32_MIN ||
        (answer.status == 0 && !add))
        return WEFT_EPROTO;
    slot->value = answer.value;
    if (slot->state == LOCAL_SLOT_POSTED) {
        end_slot(link, number, (int)answer.status);
        return 0;
    }
    if (slot->state != LOCAL_SLOT_SENDING || slot->answered)
        return WEFT_EPROTO;
    /* the rest of the payload is not wanted: send_piece ends it */
    slot->answered = true;
    slot->status = (int)answer.status;
    return 0;
}

static void end_fence(struct local_link *link)
{
    if (link->fence == LOCAL_NO_SLOT || link->nfree != LOCAL_DEPTH - 1)
        return;
    end_slot(link, link->fence, 0);
    link->fence = LOCAL_NO_SLOT;
}

void local_post_comps(struct local_link *link, struct local_sink *sink)
{
    end_fence(link);
    while (link->done.count && sink->n < sink->max) {
        uint16_t number = local_queue_pop(&link->done);
        struct local_slot *slot = &link->slots[number];
        sink->comps[sink->n++] = (struct weft_comp){.ctx = slot->ctx,
                                                    .link = &link->base,
                                                    .op = slot->op,
                                                    .status = slot->status,
                                                    .value = slot->value,
                                                    .len = slot->status ? 0 : slot->len};
        slot->state = LOCAL_SLOT_FREE;
        link->nsmall -= slot->how != LOCAL_DIRECT;
        link->free_slots[link->nfree++] = number;
        end_fence(link);
    }
}
