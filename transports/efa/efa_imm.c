/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Immediates. Their number lets one that is posted again, since nobody knows whether it arrived, arrive once.
 *
 * Where 64 bits come with a WRITE, the number is in the upper half, the immediate in the lower. Where 32 do, as on EFA,
 * the WRITE brings the number, a message the immediate, and the later of the two completes it.
 */
#include <errno.h>
#include <stdlib.h>

#include "efa.h"

#define MOST_HALVES 1024

static void arrive(struct efa_link *link, uint32_t imm, uint64_t len)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_arrival *arrival = malloc(sizeof *arrival);
    if (!arrival) {
        efa_link_fail(link, -ENOMEM, "efa %s: no memory for an immediate", nic->name);
        return;
    }
    *arrival = (struct efa_arrival){.link = link, .imm = imm, .len = len};
    *nic->imms_tail = arrival;
    nic->imms_tail = &arrival->next;
}

/* Numbers go round: how far is this one from the newest that has arrived, and one? */
static int ahead_of(const struct efa_link *link, uint16_t seq)
{
    return (int16_t)(uint16_t)(seq - link->imm_next);
}

/* Those whose other half is not sent any more, since their WRITE has failed. */
static void forget_old_halves(struct efa_link *link)
{
    struct efa_half **at = &link->halves, *half;
    while ((half = *at)) {
        if (ahead_of(link, half->msg.seq) >= -EFA_IMM_SEEN) {
            at = &half->next;
            continue;
        }
        *at = half->next;
        link->nhalves--;
        free(half);
    }
}

/* This number and those before it that had not come are the newest now. */
static void move_to(struct efa_link *link, uint16_t seq)
{
    int n = ahead_of(link, seq) + 1;
    for (uint16_t i = 0; i < n && i < EFA_IMM_SEEN; i++) {
        uint16_t at = (uint16_t)(seq - i);
        link->imm_seen[at % EFA_IMM_SEEN / 64] &= ~((uint64_t)1 << at % 64);
    }
    link->imm_next = (uint16_t)(seq + 1);
    forget_old_halves(link);
}

/* The first time that this number comes? */
static bool is_new(struct efa_link *link, uint16_t seq)
{
    uint64_t bit = (uint64_t)1 << seq % 64;
    uint64_t *word = &link->imm_seen[seq % EFA_IMM_SEEN / 64];
    if (ahead_of(link, seq) < -EFA_IMM_SEEN)
        return false;
    if (ahead_of(link, seq) >= 0)
        move_to(link, seq);
    bool seen = *word & bit;
    *word |= bit;
    return !seen;
}

/* The other half of this one, taken out of the list; NULL: it is not here, and this one waits. */
static struct efa_half *match(struct efa_link *link, const struct efa_imm_msg *msg, bool message)
{
    struct efa_half **at = &link->halves, *half;
    while ((half = *at) && (half->msg.seq != msg->seq || half->message == message))
        at = &half->next;
    if (half) {
        *at = half->next;
        link->nhalves--;
        return half;
    }
    half = link->nhalves < MOST_HALVES ? malloc(sizeof *half) : NULL;
    if (!half) {
        efa_link_fail(link, link->nhalves < MOST_HALVES ? -ENOMEM : WEFT_EPROTO,
                      "efa %s: too many halves of immediates", efa_nic_of(link)->name);
        return NULL;
    }
    *half = (struct efa_half){.next = link->halves, .msg = *msg, .message = message};
    link->halves = half;
    link->nhalves++;
    return NULL;
}

static void pair_up(struct efa_link *link, const struct efa_imm_msg *msg, bool message)
{
    struct efa_half *half = match(link, msg, message);
    if (!half)
        return;
    const struct efa_imm_msg *whole = message ? msg : &half->msg;
    arrive(link, whole->imm, whole->len);
    free(half);
}

void efa_imm_tagged(struct efa_nic *nic, uint64_t data, size_t len)
{
    uint32_t tag = nic->wide ? (uint32_t)(data >> 32) : (uint32_t)data;
    struct efa_link *link = efa_link_find(nic, tag >> 16);
    uint16_t seq = (uint16_t)tag;
    if (!link || link->state != EFA_LINK_UP || !is_new(link, seq))
        return;
    if (nic->wide)
        arrive(link, (uint32_t)data, len);
    else
        pair_up(link, &(struct efa_imm_msg){.seq = seq}, false);
}

void efa_imm_message(struct efa_link *link, const struct efa_imm_msg *wire)
{
    struct efa_imm_msg msg = {.imm = le32toh(wire->imm),
                              .seq = le16toh(wire->seq),
                              .paired = le16toh(wire->paired),
                              .len = le64toh(wire->len)};
    if (msg.paired)
        pair_up(link, &msg, true);
    else
        arrive(link, msg.imm, msg.len);
}

bool efa_imm_has_room(const struct efa_link *link)
{
    return link->nimms < EFA_IMMS && (uint16_t)(link->imm_seq - link->imm_oldest) < EFA_IMM_SEEN;
}

void efa_imm_out(struct efa_op *op)
{
    struct efa_link *link = op->link;
    op->numbered = true;
    op->imm_seq = link->imm_seq++;
    link->nimms++;
    link->imm_out[op->imm_seq % EFA_IMM_SEEN / 64] |= (uint64_t)1 << op->imm_seq % 64;
}

void efa_imm_ended(struct efa_op *op)
{
    struct efa_link *link = op->link;
    if (!op->numbered)
        return;
    op->numbered = false;
    link->nimms--;
    link->imm_out[op->imm_seq % EFA_IMM_SEEN / 64] &= ~((uint64_t)1 << op->imm_seq % 64);
    while (link->imm_oldest != link->imm_seq &&
           !(link->imm_out[link->imm_oldest % EFA_IMM_SEEN / 64] >> link->imm_oldest % 64 & 1))
        link->imm_oldest++;
}

void efa_imm_drop(struct efa_link *link)
{
    for (struct efa_arrival *at = efa_nic_of(link)->imms; at; at = at->next)
        if (at->link == link)
            at->link = NULL;
    while (link->halves) {
        struct efa_half *half = link->halves;
        link->halves = half->next;
        free(half);
    }
}
