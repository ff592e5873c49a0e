/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of memory in parts. Core carries one key for a remote, the first part's. What goes beyond that part is
 * refused by the target's device; the target's program then tells the keys of all parts (verbs_fault.c), and
 * the link keeps them in a table.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define MOST_KEYS (4 * VERBS_MAX_PARTS) /* of all tables of a link */

/* --- telling ------------------------------------------------------------------------------------------- */

void verbs_keys_tell(struct verbs_link *link, const struct verbs_mem *mem)
{
    for (uint32_t at = 0; at < mem->nparts; at += VERBS_KEYS_AT_ONCE) {
        struct verbs_keys_msg msg = {.addr = htole64((uintptr_t)mem->range.addr),
                                     .len = htole64(mem->range.len),
                                     .key = htole32(mem->rkey),
                                     .index = htole16((uint16_t)at),
                                     .shift = mem->shift};
        for (uint32_t i = 0; i < VERBS_KEYS_AT_ONCE && at + i < mem->nparts; i++)
            msg.keys[i] = htole32(mem->parts[at + i].rkey);
        verbs_control_note(link, VERBS_KEYS, &msg, sizeof msg);
    }
}

/* --- tables -------------------------------------------------------------------------------------------- */

static void drop(struct verbs_link *link, struct verbs_table **at)
{
    struct verbs_table *table = *at;
    *at = table->next;
    link->ntables--;
    link->nkeys -= table->nkeys;
    verbs_count_parted(verbs_nic_of(link), -1);
    free(table);
}

void verbs_keys_drop(struct verbs_link *link, uint32_t key)
{
    struct verbs_table **at = &link->tables;
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    if (*at)
        drop(link, at);
}

void verbs_keys_drop_all(struct verbs_link *link)
{
    while (link->tables)
        drop(link, &link->tables);
    free(link->telling);
    link->telling = NULL;
}

/* It takes the place of one that the peer told before, or of those that were not used for longest. */
static void add(struct verbs_link *link, struct verbs_table *table)
{
    verbs_keys_drop(link, table->key);
    while (link->ntables == VERBS_TABLES || link->nkeys + table->nkeys > MOST_KEYS) {
        struct verbs_table **last = &link->tables;
        while ((*last)->next)
            last = &(*last)->next;
        drop(link, last);
    }
    table->next = link->tables;
    link->tables = table;
    link->ntables++;
    link->nkeys += table->nkeys;
    verbs_count_parted(verbs_nic_of(link), 1);
}

/* --- hearing ------------------------------------------------------------------------------------------- */

static struct verbs_keys_msg read_msg(const struct verbs_keys_msg *wire)
{
    struct verbs_keys_msg msg = {.addr = le64toh(wire->addr),
                                 .len = le64toh(wire->len),
                                 .key = le32toh(wire->key),
                                 .index = le16toh(wire->index),
                                 .shift = wire->shift};
    for (int i = 0; i < VERBS_KEYS_AT_ONCE; i++)
        msg.keys[i] = le32toh(wire->keys[i]);
    return msg;
}

/* The number of parts; 0: it makes no sense. What is empty, or does not end, has one, none, or far too many. */
static uint32_t count_parts(const struct verbs_keys_msg *msg)
{
    if (msg->shift < VERBS_LEAST_PART || msg->shift > 63)
        return 0;
    uint64_t count = verbs_part_count(msg->shift, msg->addr, msg->len);
    return count > 1 && count <= VERBS_MAX_PARTS ? (uint32_t)count : 0;
}

/* Begin a table, or go on with the one that is being told. False: it makes no sense. */
static bool find_place(struct verbs_link *link, const struct verbs_keys_msg *msg)
{
    struct verbs_table *table = link->telling;
    uint32_t nkeys = count_parts(msg);
    if (table)
        return table->key == msg->key && table->addr == msg->addr && table->len == msg->len &&
               table->shift == msg->shift && table->have == msg->index;
    if (nkeys == 0 || msg->index != 0 || msg->keys[0] != msg->key)
        return false;
    table = calloc(1, sizeof *table + nkeys * sizeof *table->keys);
    if (!table) {
        verbs_link_fail(link, -ENOMEM, "verbs %s: no memory for keys", verbs_nic_of(link)->name);
        return false;
    }
    table->addr = msg->addr;
    table->len = msg->len;
    table->key = msg->key;
    table->shift = msg->shift;
    table->nkeys = nkeys;
    link->telling = table;
    return true;
}

void verbs_keys_heard(struct verbs_link *link, const struct verbs_keys_msg *wire)
{
    struct verbs_keys_msg msg = read_msg(wire);
    if (!find_place(link, &msg)) {
        verbs_link_fail(link, WEFT_EPROTO, "verbs %s: the peer sent keys that make no sense",
                        verbs_nic_of(link)->name);
        return;
    }
    struct verbs_table *table = link->telling;
    for (int i = 0; i < VERBS_KEYS_AT_ONCE && table->have < table->nkeys; i++)
        table->keys[table->have++] = msg.keys[i];
    if (table->have < table->nkeys)
        return;
    link->telling = NULL;
    add(link, table);
}

/* --- using them ---------------------------------------------------------------------------------------- */

static const struct verbs_table *table_of(struct verbs_link *link, uint32_t key, uint64_t addr)
{
    struct verbs_table **at = &link->tables, *table;
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    table = *at;
    if (!table || addr - table->addr >= table->len)
        return NULL;
    *at = table->next;
    table->next = link->tables;
    link->tables = table;
    return table;
}

uint32_t verbs_keys_find(struct verbs_link *link, uint32_t key, uint64_t addr, uint64_t *len)
{
    const struct verbs_table *table = table_of(link, key, addr);
    if (!table)
        return key;
    uint64_t left = verbs_part_left(table->shift, addr);
    uint64_t part = (addr >> table->shift) - (table->addr >> table->shift);
    if (*len > left && part + 1 < table->nkeys)
        *len = left;
    return table->keys[part];
}

bool verbs_keys_span(struct verbs_link *link, uint32_t key, uint64_t addr, uint64_t len)
{
    uint64_t first = len;
    const struct verbs_table *table = table_of(link, key, addr);
    if (!table || len > table->len - (addr - table->addr))
        return false;
    verbs_keys_find(link, key, addr, &first);
    return first < len;
}
