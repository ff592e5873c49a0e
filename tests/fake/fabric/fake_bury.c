/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_bury.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct grave {
    struct grave *next;
    struct fid *fid;
} * graves, **last = &graves; /* in the order of what was closed */
static int fabrics;           /* 0: nothing is buried */

void fake_bury_begin(void)
{
    pthread_mutex_lock(&lock);
    fabrics++;
    pthread_mutex_unlock(&lock);
}

static void push(struct fid *fid)
{
    struct grave *grave = calloc(1, sizeof *grave);
    if (!grave)
        abort();
    grave->fid = fid;
    *last = grave;
    last = &grave->next;
}

static int close_all(void)
{
    int rc = 0;
    for (struct grave *grave = graves, *next; grave; grave = next) {
        next = grave->next;
        int one = grave->fid->ops->close(grave->fid);
        rc = rc ? rc : one;
        free(grave);
    }
    graves = NULL;
    last = &graves;
    return rc;
}

int fake_bury(struct fid *fid)
{
    pthread_mutex_lock(&lock);
    int rc = 0;
    if (fabrics)
        push(fid);
    else
        rc = fid->ops->close(fid);
    pthread_mutex_unlock(&lock);
    return rc;
}

int fake_bury_end(struct fid *fid)
{
    pthread_mutex_lock(&lock);
    push(fid);
    int rc = --fabrics == 0 ? close_all() : 0;
    pthread_mutex_unlock(&lock);
    if (rc) {
        fprintf(stderr, "fake fabric: something was in use when all was closed: %d\n", rc);
        abort();
    }
    return 0;
}
