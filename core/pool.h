/* SPDX-License-Identifier: Apache-2.0 */
/* Free objects of one size, kept for the next use: a small operation takes three or four. */
#ifndef WEFT_CORE_POOL_H
#define WEFT_CORE_POOL_H

#include <stdlib.h>

/* Under the lock of its owner. All zero: empty. */
struct weft__pool {
    void **free; /* each points to the next */
    size_t nfree;
};

/* Not initialised. NULL: no memory. `size` is the same in all calls, and that of a pointer or more. */
static inline void *weft__pool_get(struct weft__pool *pool, size_t size)
{
    void **item = pool->free;
    if (!item)
        return malloc(size);
    pool->free = *item;
    pool->nfree--;
    return item;
}

static inline void weft__pool_put(struct weft__pool *pool, void *object)
{
    void **item = object;
    *item = pool->free;
    pool->free = item;
    pool->nfree++;
}

/* Of large objects no more are kept; in a build for a sanitizer (WEFT_SANITIZED), which is to see who uses one after that,
 * none. */
static inline void weft__pool_put_most(struct weft__pool *pool, void *object, size_t most)
{
#ifdef WEFT_SANITIZED
    most = 0;
#endif
    if (pool->nfree < most)
        weft__pool_put(pool, object);
    else
        free(object);
}

static inline void weft__pool_drain(struct weft__pool *pool)
{
    while (pool->free)
        free(weft__pool_get(pool, sizeof(void *)));
}

#endif
