/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that checks pieces and writes them to their files, while the fetcher reads on.
 *
 * It is one, since a file takes one write at a time. Writing whole pieces costs a copy from the
 * buffer; to receive into the mapped file instead would cost, for every page of a new file, a fault
 * that takes longer than to copy the page.
 */
#include "weights.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int write_piece(const struct slot *s)
{
    for (size_t done = 0; done < s->len;) {
        off_t offset = (off_t)(s->piece * PIECE + done);
        ssize_t n = pwrite(s->fd, s->buffer + done, s->len - done, offset);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int check_piece(const struct slot *s)
{
    uint8_t sum[SUM];
    int rc = sum_memory(s->buffer, s->len, sum);
    return rc ? rc : memcmp(sum, s->sum, SUM) ? -EBADMSG : 0;
}

static int put_in_place(const struct slot *s)
{
    int rc = s->sum ? check_piece(s) : 0;
    return rc || s->fd < 0 ? rc : write_piece(s);
}

static void *writer_thread(void *arg)
{
    struct writer *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->head == w->tail && !w->stop)
            pthread_cond_wait(&w->given, &w->lock);
        if (w->head == w->tail)
            break;
        struct slot *s = w->slots[w->head % MOST_DEPTH];
        pthread_mutex_unlock(&w->lock);
        s->result = put_in_place(s);
        pthread_mutex_lock(&w->lock);
        w->head++;
        pthread_cond_signal(&w->taken);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int writer_start(struct writer *w)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    pthread_cond_init(&w->taken, NULL);
    return -pthread_create(&w->thread, NULL, writer_thread, w);
}

void writer_give(struct writer *w, struct slot *s)
{
    pthread_mutex_lock(&w->lock);
    w->slots[w->tail++ % MOST_DEPTH] = s;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
}

/* The moment so many milliseconds from now, as conditions count. */
static struct timespec in_ms(int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    return t;
}

struct slot *writer_take(struct writer *w, int timeout_ms)
{
    struct timespec until = in_ms(timeout_ms);
    struct slot *s = NULL;
    int rc = timeout_ms ? 0 : ETIMEDOUT;
    pthread_mutex_lock(&w->lock);
    while (w->done == w->head && !rc)
        rc = pthread_cond_timedwait(&w->taken, &w->lock, &until);
    if (w->done != w->head)
        s = w->slots[w->done++ % MOST_DEPTH];
    pthread_mutex_unlock(&w->lock);
    return s;
}

void writer_stop(struct writer *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->taken);
    pthread_cond_destroy(&w->given);
    pthread_mutex_destroy(&w->lock);
}
