/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that check pieces and write them to their files, while the fetcher reads on.
 *
 * A file takes one write at a time, so each takes a piece of a file that no other has in hand, if
 * there is one; sums of one file are made by all. Writing whole pieces costs a copy from the
 * buffer; to receive into the mapped file instead would cost, for every page of a new file, a fault
 * that takes longer than to copy the page.
 *
 * They also wait for reads that threads of Weft carry out: to ask for each whether it is done, as
 * who moves the bytes himself does, would keep those threads from it.
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

/* It ends when its conn does, which the fetcher sees to if the server is silent. */
static void await_read(struct writers *w, struct slot *s)
{
    if (!s->op)
        return;
    int rc = weft_op_wait(s->op, WEFT_FOREVER, &s->read);
    s->read.status = rc < 0 ? rc : 0;
    s->op = 0;
    pthread_mutex_lock(&w->lock);
    w->reading--;
    pthread_mutex_unlock(&w->lock);
}

static int in_hand(const struct writers *w, uint32_t file)
{
    for (int i = 0; i < w->nthreads; i++)
        if (w->hands[i] && w->hands[i]->file == file)
            return 1;
    return 0;
}

/* The oldest slot whose file nobody is writing; or the oldest, of which the sum can be made. The
 * lock is held. */
static struct slot *pick(struct writers *w)
{
    int i = 0;
    while (i < w->ntodo && w->todo[i]->fd >= 0 && in_hand(w, w->todo[i]->file))
        i++;
    i = i < w->ntodo ? i : 0;
    struct slot *s = w->todo[i];
    w->ntodo--;
    memmove(&w->todo[i], &w->todo[i + 1], (size_t)(w->ntodo - i) * sizeof *w->todo);
    return s;
}

static void *writer_thread(void *arg)
{
    struct writers *w = arg;
    pthread_mutex_lock(&w->lock);
    struct slot **hand = &w->hands[w->nhands++];
    for (;;) {
        while (!w->ntodo && !w->stop)
            pthread_cond_wait(&w->given, &w->lock);
        if (!w->ntodo)
            break;
        struct slot *s = *hand = pick(w);
        pthread_mutex_unlock(&w->lock);
        await_read(w, s);
        s->result = s->read.status ? 0 : put_in_place(s);
        pthread_mutex_lock(&w->lock);
        *hand = NULL;
        w->done[w->ndone++] = s;
        pthread_cond_signal(&w->taken);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int writers_start(struct writers *w, int threads)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    pthread_cond_init(&w->taken, NULL);
    int rc = 0;
    pthread_mutex_lock(&w->lock); /* nthreads is for those that have started, too */
    while (!rc && w->nthreads < threads) {
        rc = pthread_create(&w->threads[w->nthreads], NULL, writer_thread, w);
        w->nthreads += !rc;
    }
    pthread_mutex_unlock(&w->lock);
    if (!rc)
        return 0;
    say("cannot start a thread: %s", strerror(rc));
    writers_stop(w);
    return -rc;
}

void writers_give(struct writers *w, struct slot *s)
{
    pthread_mutex_lock(&w->lock);
    w->todo[w->ntodo++] = s;
    w->reading += s->op != 0;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
}

int writers_reading(struct writers *w)
{
    pthread_mutex_lock(&w->lock);
    int n = w->reading;
    pthread_mutex_unlock(&w->lock);
    return n;
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

struct slot *writers_take(struct writers *w, int timeout_ms)
{
    struct timespec until = in_ms(timeout_ms);
    struct slot *s = NULL;
    int rc = timeout_ms ? 0 : ETIMEDOUT;
    pthread_mutex_lock(&w->lock);
    while (!w->ndone && !rc)
        rc = pthread_cond_timedwait(&w->taken, &w->lock, &until);
    if (w->ndone)
        s = w->done[--w->ndone];
    pthread_mutex_unlock(&w->lock);
    return s;
}

void writers_stop(struct writers *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_broadcast(&w->given);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->nthreads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->taken);
    pthread_cond_destroy(&w->given);
    pthread_mutex_destroy(&w->lock);
}
