/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_bury.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct grave {
    struct grave *next;
    struct fid *fid;
} * graves, **last = &graves; /* in the order of what was closed */
static int fabrics;           /* 0: nothing is buried */

void fake_bury_fabric(bool buries)
{
    pthread_mutex_lock(&lock);
    fabrics += buries;
    pthread_mutex_unlock(&lock);
}

static void close_all(void)
{
    for (struct grave *grave = graves, *next; grave; grave = next) {
        next = grave->next;
        grave->fid->ops->close(grave->fid);
        free(grave);
    }
    graves = NULL;
    last = &graves;
}

int fake_bury(struct fid *fid)
{
    pthread_mutex_lock(&lock);
    struct grave *grave = fabrics ? calloc(1, sizeof *grave) : NULL;
    int rc = 0;
    if (grave) {
        grave->fid = fid;
        *last = grave;
        last = &grave->next;
        if (fid->fclass == FI_CLASS_FABRIC && --fabrics == 0)
            close_all();
    } else {
        rc = fid->ops->close(fid);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}
