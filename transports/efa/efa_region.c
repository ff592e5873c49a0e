/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer's memory, as it was told. A region is in the link's table while it may be used by new reqs; taken back or in
 * doubt it leaves the table, and stays until its last req has ended.
 */
#include <errno.h>
#include <stdlib.h>

#include "efa.h"

#define STALE_NS 20000000u /* for what is under way there to end by itself */

static struct efa_region **bucket(struct efa_link *link, uint64_t key)
{
    return &link->table[key % EFA_BUCKETS];
}

/* --- one of them ----------------------------------------------------------------------------------------- */

static void unlist(struct efa_region *region)
{
    struct efa_link *link = region->link;
    struct efa_region **at = bucket(link, region->key);
    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    link->nregions--;
    weft_list_remove(&region->in);
    weft_list_push(&link->stale, &region->in);
}

/* Reqs end by themselves until then. */
static void owe(struct efa_region *region, uint32_t id)
{
    region->owed = true;
    region->id = id;
    if (!region->deadline) {
        region->deadline = weft_now() + STALE_NS;
        efa_nic_of(region->link)->nwaiting++;
    }
}

/* Nothing is under way to what is behind this key; or, if something is that went out when it was known by another
 * question, that will give it back. */
static void give_back(struct efa_link *link, uint64_t key, uint32_t id)
{
    struct efa_revoke_msg msg = {.key = htole64(key), .id = htole32(id), .done = htole32(1)};
    for (struct weft_list *at = link->stale.next; at != &link->stale; at = at->next) {
        struct efa_region *region = WEFT_LIST_OF(at, struct efa_region, in);
        if (region->key == key && region->users > 0) {
            owe(region, id);
            return;
        }
    }
    if (link->state == EFA_LINK_UP)
        efa_msg_note(link, EFA_REVOKE, &msg, sizeof msg);
}

/* It is out of the table; without users it goes. */
static void settle(struct efa_region *region)
{
    struct efa_link *link = region->link;
    if (region->users > 0)
        return;
    weft_list_remove(&region->in);
    if (region->deadline)
        efa_nic_of(link)->nwaiting--;
    if (region->owed)
        give_back(link, region->key, region->id);
    free(region);
}

/* The one that was used longest ago; the peer is not told, and may take back what is forgotten. */
static void forget_one(struct efa_link *link)
{
    for (struct weft_list *at = link->regions.next; at != &link->regions; at = at->next) {
        struct efa_region *region = WEFT_LIST_OF(at, struct efa_region, in);
        if (region->state != EFA_REGION_KNOWN || region->users > 0)
            continue;
        unlist(region);
        settle(region);
        return;
    }
}

static struct efa_region *ask(struct efa_link *link, uint64_t key)
{
    struct efa_region *region = calloc(1, sizeof *region);
    if (!region) {
        efa_link_fail(link, -ENOMEM, "efa %s: no memory for a region", efa_nic_of(link)->name);
        return NULL;
    }
    if (link->nregions >= EFA_REGIONS)
        forget_one(link);
    region->link = link;
    region->key = key;
    region->id = link->next_id++;
    weft_list_init(&region->in);
    weft_list_init(&region->ops);
    region->next = *bucket(link, key);
    *bucket(link, key) = region;
    weft_list_push(&link->regions, &region->in);
    link->nregions++;
    struct efa_lookup_msg msg = {.key = htole64(key), .id = htole32(region->id)};
    efa_msg_note(link, EFA_LOOKUP, &msg, sizeof msg);
    return region;
}

struct efa_region *efa_region_get(struct efa_link *link, uint64_t key)
{
    struct efa_region *region = *bucket(link, key);
    while (region && region->key != key)
        region = region->next;
    if (!region)
        return ask(link, key);
    if (link->regions.prev != &region->in) {
        weft_list_remove(&region->in);
        weft_list_push(&link->regions, &region->in);
    }
    return region;
}

void efa_region_leave(struct efa_region *region)
{
    region->users--;
    if (region->state >= EFA_REGION_STALE)
        settle(region);
}

/* --- ops ------------------------------------------------------------------------------------------------- */

const char *efa_refusal(int status)
{
    return status == WEFT_EKEY      ? "the peer has no memory under this key"
           : status == WEFT_EBOUNDS ? "it leaves the peer's memory"
           : status == WEFT_EACCESS ? "the peer does not allow this access"
                                    : "the peer refused it";
}

/* May it? Else it ends. */
static bool pass(struct efa_op *op, const struct efa_region *region)
{
    int status = efa_judge(region->addr, region->len, region->access, op->op, op->remote_addr,
                           op->len);
    if (status)
        efa_op_fail(op, status, efa_refusal(status));
    return status == 0;
}

struct efa_region *efa_region_of(struct efa_op *op)
{
    struct efa_link *link = op->link;
    struct efa_region *region = efa_region_get(link, op->remote_key);
    if (!region)
        return NULL;
    if (region->state == EFA_REGION_KNOWN)
        return pass(op, region) ? region : NULL;
    weft_list_remove(&op->in);
    weft_list_push(&region->ops, &op->in);
    return NULL;
}

static void move_ops(struct efa_region *region)
{
    while (!weft_list_empty(&region->ops)) {
        struct efa_op *op = WEFT_LIST_OF(region->ops.next, struct efa_op, in);
        weft_list_remove(&op->in);
        if (region->state == EFA_REGION_NONE)
            efa_op_fail(op, region->status, efa_refusal(region->status));
        else if (pass(op, region))
            efa_op_ready(op);
    }
}

/* --- what the peer says ---------------------------------------------------------------------------------- */

static struct efa_region *find(struct efa_link *link, uint32_t id)
{
    for (struct weft_list *at = link->regions.prev; at != &link->regions; at = at->prev) {
        struct efa_region *region = WEFT_LIST_OF(at, struct efa_region, in);
        if (region->id == id)
            return region;
    }
    return NULL;
}

void efa_region_answer(struct efa_link *link, const struct efa_answer_msg *msg)
{
    struct efa_region *region = find(link, le32toh(msg->id));
    if (!region || region->state != EFA_REGION_ASKED) {
        efa_link_fail(link, WEFT_EPROTO, "efa %s: the peer answers what was not asked",
                      efa_nic_of(link)->name);
        return;
    }
    region->status = efa_status_of(msg->status);
    if (region->recalled)
        region->status = WEFT_EKEY;
    region->addr = le64toh(msg->addr);
    region->len = le64toh(msg->len);
    region->rkey = le64toh(msg->rkey);
    region->base = le64toh(msg->base);
    region->access = le32toh(msg->access);
    region->epoch = le32toh(msg->epoch);
    region->state = region->status ? EFA_REGION_NONE : EFA_REGION_KNOWN;
    region->users++; /* not to go meanwhile */
    if (region->state == EFA_REGION_NONE)
        unlist(region);
    move_ops(region);
    efa_region_leave(region);
    efa_busy(link);
}

void efa_region_revoke(struct efa_link *link, uint64_t key, uint32_t id)
{
    struct efa_region *region = find(link, id);
    if (region && region->state == EFA_REGION_ASKED)
        region->recalled = true;
    if (!region || region->state == EFA_REGION_ASKED) {
        give_back(link, key, id);
        return;
    }
    unlist(region);
    region->state = EFA_REGION_STALE;
    region->owed = true;
    if (region->users > 0)
        owe(region, id);
    settle(region);
}

void efa_region_doubt(struct efa_region *region)
{
    if (region->state != EFA_REGION_KNOWN)
        return;
    unlist(region);
    region->state = EFA_REGION_STALE;
}

/* --- time, and the end ----------------------------------------------------------------------------------- */

void efa_region_tick(struct efa_link *link, uint64_t now)
{
    struct efa_nic *nic = efa_nic_of(link);
    bool any = false;
    for (struct weft_list *at = link->stale.next; at != &link->stale; at = at->next) {
        struct efa_region *region = WEFT_LIST_OF(at, struct efa_region, in);
        if (!region->deadline || now < region->deadline)
            continue;
        region->deadline = 0;
        nic->nwaiting--;
        any = true;
    }
    if (any)
        efa_ep_reset_work(nic);
}

static void drop(struct weft_list *list)
{
    while (!weft_list_empty(list)) {
        struct efa_region *region = WEFT_LIST_OF(list->next, struct efa_region, in);
        weft_list_remove(&region->in);
        if (region->deadline)
            efa_nic_of(region->link)->nwaiting--;
        free(region);
    }
}

void efa_region_drop_all(struct efa_link *link)
{
    drop(&link->regions);
    drop(&link->stale);
}
