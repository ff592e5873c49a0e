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

/* The first time that this number comes? */
static bool is_new(struct efa_link *link, uint16_t seq)
{
    uint16_t ahead = (uint16_t)(seq - link->imm_base);
    uint64_t bit = (uint64_t)1 << seq % 64;
    uint64_t *word = &link->imm_seen[seq % EFA_IMM_SEEN / 64];
    if (ahead >= EFA_IMM_SEEN || *word & bit)
        return false;
    *word |= bit;
    for (;;) {
        word = &link->imm_seen[link->imm_base % EFA_IMM_SEEN / 64];
        bit = (uint64_t)1 << link->imm_base % 64;
        if (!(*word & bit))
            return true;
        *word &= ~bit;
        link->imm_base++;
    }
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
