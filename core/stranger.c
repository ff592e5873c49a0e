/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the callers that nobody knows makes room for another. */
#include "weft/transport.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

/* Random, so that no one can choose addresses that are counted as somebody else's. */
static uint32_t seed;
static pthread_once_t seeded = PTHREAD_ONCE_INIT;

static void make_seed(void)
{
    if (weft_random(&seed, sizeof seed))
        seed = (uint32_t)weft_now(); /* better than nothing, and nothing secret */
}

uint8_t weft_stranger_place(const void *name, size_t len)
{
    pthread_once(&seeded, make_seed);
    uint32_t hash = 2166136261u ^ seed; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ ((const uint8_t *)name)[i]) * 16777619u;
    return (uint8_t)(hash >> 24 ^ hash >> 16 ^ hash >> 8 ^ hash);
}

uint8_t weft_stranger_from(const struct sockaddr_storage *addr)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
    if (addr->ss_family == AF_INET)
        return weft_stranger_place(&((const struct sockaddr_in *)addr)->sin_addr, 4);
    if (addr->ss_family != AF_INET6)
        return 0;
    if (IN6_IS_ADDR_V4MAPPED(v6))
        return weft_stranger_place(v6->s6_addr + 12, 4);
    return weft_stranger_place(v6->s6_addr, 8); /* whoever has one address has 2^64 */
}

/* Does a go before b? */
static bool sooner(const struct weft_stranger *a, const struct weft_stranger *b,
                   const uint16_t *crowd)
{
    if (crowd[a->place] != crowd[b->place])
        return crowd[a->place] > crowd[b->place];
    if (a->known != b->known)
        return a->known < b->known;
    return a->since < b->since;
}

int weft_stranger_choose(const struct weft_stranger *list, int n)
{
    uint16_t crowd[UINT8_MAX + 1] = {0};
    int first = 0;
    for (int i = 0; i < n; i++)
        crowd[list[i].place] += crowd[list[i].place] < UINT16_MAX;
    for (int i = 1; i < n; i++)
        if (sooner(&list[i], &list[first], crowd))
            first = i;
    return n ? first : -1;
}
