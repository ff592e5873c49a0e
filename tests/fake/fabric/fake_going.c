/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_going.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct going {
    const struct fid *ep, *av;
    fi_addr_t addr;
    const void *context;
    bool lost; /* its address was removed */
} *all;
static size_t n, room;

void fake_going_begin(const struct fid *ep, const struct fid *av, fi_addr_t addr, const void *context)
{
    pthread_mutex_lock(&lock);
    if (n == room) {
        room += 256;
        all = realloc(all, room * sizeof *all);
        if (!all)
            abort();
    }
    all[n++] = (struct going){ep, av, addr, context, false};
    pthread_mutex_unlock(&lock);
}

void fake_going_end(const struct fid *ep, const void *context)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++)
        if (all[i].ep == ep && all[i].context == context) {
            all[i] = all[--n];
            break;
        }
    pthread_mutex_unlock(&lock);
}

void fake_going_drop(const struct fid *ep)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n;)
        if (all[i].ep == ep)
            all[i] = all[--n];
        else
            i++;
    pthread_mutex_unlock(&lock);
}

void fake_going_nowhere(const struct fid *av, fi_addr_t addr)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++)
        all[i].lost |= all[i].av == av && all[i].addr == addr;
    pthread_mutex_unlock(&lock);
}

size_t fake_going_count(const struct fid *ep)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++)
        count += all[i].ep == ep;
    pthread_mutex_unlock(&lock);
    return count;
}

bool fake_going_lost(const struct fid *ep)
{
    bool any = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n && !any; i++)
        any = all[i].ep == ep && all[i].lost;
    pthread_mutex_unlock(&lock);
    return any;
}
