/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doubly linked lists for core and for backends. They hold together by a member of what is in them: a list is a ring, and its
 * head stands between the last one and the first, so that there is no case apart.
 *
 * Threads: none of it locks. Memory: none of it allocates.
 */
#ifndef WEFT_LIST_H
#define WEFT_LIST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A list's head, or the member of an item that is in it. */
struct weft_list {
    struct weft_list *prev, *next;
};

/* The struct whose member the item is. */
#define WEFT_LIST_OF(item, type, member)                                                          \
    ((type *)(void *)((char *)(item) - offsetof(type, member)))

/* An empty list; an item that is in none. */
static inline void weft_list_init(struct weft_list *list)
{
    list->prev = list->next = list;
}

static inline bool weft_list_empty(const struct weft_list *list)
{
    return list->next == list;
}

/* As the last one. The item is in no list. */
static inline void weft_list_push(struct weft_list *list, struct weft_list *item)
{
    item->prev = list->prev;
    item->next = list;
    list->prev->next = item;
    list->prev = item;
}

/* As the first one: of free things the one that was used last is still in a cache. The item is in no list. */
static inline void weft_list_push_first(struct weft_list *list, struct weft_list *item)
{
    weft_list_push(list->next, item);
}

/* Out of its list. Nothing happens to an item that was initialised, or removed, and is in none. */
static inline void weft_list_remove(struct weft_list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    weft_list_init(item);
}

#ifdef __cplusplus
}
#endif

#endif
