/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READ by messages, where the provider has none, or none that is safe (efa_quirk.c). One end asks for bytes, the other
 * sends them, each as many as a message holds, in any order. Both copy, so no memory is ever under way.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "efa.h"

/* --- the end that has the memory ------------------------------------------------------------------------- */

static void fetch_free(struct efa_fetch *fetch)
{
    weft_list_remove(&fetch->in);
    weft_list_remove(&fetch->of_mem);
    fetch->link->nfetches--;
    free(fetch);
}

static void refuse(struct efa_link *link, uint32_t id, int status)
{
    struct efa_data_msg data = {.id = htole32(id), .status = (int32_t)htole32((uint32_t)status)};
    if (link->state == EFA_LINK_UP)
        efa_msg_note(link, EFA_DATA, &data, sizeof data);
}

static int fetch_new(struct efa_link *link, struct efa_mem *mem, const struct efa_fetch_msg *msg)
{
    struct efa_fetch *fetch = calloc(1, sizeof *fetch);
    if (!fetch)
        return -ENOMEM;
    fetch->link = link;
    fetch->id = le32toh(msg->id);
    fetch->from = (const uint8_t *)(uintptr_t)le64toh(msg->addr);
    fetch->len = le64toh(msg->len);
    weft_list_init(&fetch->in);
    weft_list_init(&fetch->of_mem);
    weft_list_push(&link->fetches, &fetch->in);
    weft_list_push(&mem->fetches, &fetch->of_mem);
    link->nfetches++;
    efa_busy(link);
    return 0;
}

void efa_fetch_asked(struct efa_link *link, const struct efa_fetch_msg *msg)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_mem *mem = efa_mem_find(nic, le64toh(msg->key));
    int status = WEFT_EKEY;
    if (link->nfetches >= EFA_NOTES) {
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer asks, and takes no answer", nic->name);
        return;
    }
    if (mem)
        status = efa_judge((uintptr_t)mem->range.addr, mem->range.len, mem->range.access,
                           WEFT_OP_READ, le64toh(msg->addr), le64toh(msg->len));
    if (status == 0 && mem->range.kind != WEFT_MEM_HOST)
        status = WEFT_EUNSUPPORTED; /* the processor would have to read it */
    if (status == 0)
        status = fetch_new(link, mem, msg);
    if (status)
        refuse(link, le32toh(msg->id), status);
}

uint32_t efa_fetch_fill(const struct efa_fetch *fetch, void *body, uint32_t room)
{
    struct efa_data_msg data = {.id = htole32(fetch->id), .offset = htole64(fetch->done)};
    uint64_t left = fetch->len - fetch->done, most = room - sizeof data;
    uint32_t n = (uint32_t)(left < most ? left : most);
    memcpy(body, &data, sizeof data);
    if (n > 0)
        memcpy((uint8_t *)body + sizeof data, fetch->from + fetch->done, n);
    return n;
}

void efa_fetch_sent(struct efa_fetch *fetch, uint32_t n)
{
    struct efa_link *link = fetch->link;
    fetch->done += n;
    if (fetch->done == fetch->len) {
        fetch_free(fetch);
        return;
    }
    weft_list_remove(&fetch->in); /* others in turn */
    weft_list_push(&link->fetches, &fetch->in);
}

void efa_fetch_drop_mem(struct efa_mem *mem)
{
    while (!weft_list_empty(&mem->fetches)) {
        struct efa_fetch *fetch = WEFT_LIST_OF(mem->fetches.next, struct efa_fetch, of_mem);
        refuse(fetch->link, fetch->id, WEFT_EKEY);
        fetch_free(fetch);
    }
}

void efa_fetch_drop(struct efa_link *link)
{
    while (!weft_list_empty(&link->fetches))
        fetch_free(WEFT_LIST_OF(link->fetches.next, struct efa_fetch, in));
}

/* --- the end that asks ----------------------------------------------------------------------------------- */

void efa_fetch_data(struct efa_link *link, const struct efa_data_msg *msg, const void *bytes,
                    size_t n)
{
    struct efa_op *op = efa_op_asked(link, le32toh(msg->id), WEFT_OP_READ);
    uint64_t offset = le64toh(msg->offset);
    if (!op) /* the peer has refused the rest meanwhile, and that came first */
        return;
    op->status = efa_status_of(msg->status);
    if (op->status) {
        op->why = efa_refusal(op->status);
    } else if (offset > op->len || n > op->len - offset || n > op->len - op->fetched) {
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer sends more than was asked for",
                      efa_nic_of(link)->name);
        return;
    } else {
        efa_op_scatter(op, offset, bytes, n);
        op->fetched += n;
        if (op->fetched < op->len)
            return;
    }
    weft_list_remove(&op->in);
    efa_op_message_done(op);
}
