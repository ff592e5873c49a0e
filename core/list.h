/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked lists that hold together by a member of what is in them. A list is a ring: its head
 * stands between the last one and the first, so that there is no case apart. */
#ifndef WEFT_CORE_LIST_H
#define WEFT_CORE_LIST_H

#include <stddef.h>

struct weft__list {
    struct weft__list *prev, *next;
};

/* What has this member. */
#define WEFT__OF(item, type, member) ((type *)(void *)((char *)(item) - offsetof(type, member)))

static inline void weft__list_init(struct weft__list *list)
{
    list->prev = list->next = list;
}

/* As the last one. */
static inline void weft__list_push(struct weft__list *list, struct weft__list *item)
{
    item->prev = list->prev;
    item->next = list;
    list->prev->next = item;
    list->prev = item;
}

static inline void weft__list_remove(struct weft__list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
}

#endif
