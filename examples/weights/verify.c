/* SPDX-License-Identifier: Apache-2.0 */
/* What has arrived, or was there before, is compared with the manifest's digests. */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Times that a file whose pieces are all there may turn out wrong before it is given up: the first
 * is a change on the disk or on the server, a third is no accident. */
#define MOST_TRIES 3

/* --- before the pull ----------------------------------------------------------------------- */

/* 1: the file at fd has this digest. 0: no, or it cannot be read. */
static int matches(int fd, uint64_t offset, uint64_t len, const uint8_t *sha)
{
    uint8_t got[DIGEST];
    return digest_range(fd, offset, len, got) == 0 && !memcmp(got, sha, DIGEST);
}

static uint64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) ? 0 : (uint64_t)st.st_size;
}

/* Is the file there under its final name, whole and right? */
static int is_done(int root, const struct entry *e)
{
    int fd = store_open(root, e->name, "", O_RDONLY);
    if (fd < 0)
        return 0;
    int yes = size_of(fd) == e->size && matches(fd, 0, e->size, e->sha);
    close(fd);
    return yes;
}

/* Mark the pieces at fd that are right as HERE, the others as TODO. */
static void check_pieces(struct target *t, int fd)
{
    const struct entry *e = t->entry;
    uint64_t size = size_of(fd);
    t->todo = e->npieces;
    for (uint32_t i = 0; i < e->npieces; i++) {
        uint64_t offset = i * PIECE, len = piece_len(e, i);
        int here = offset + len <= size && matches(fd, offset, len, e->pieces + i * DIGEST);
        t->pieces[i] = here ? PIECE_HERE : PIECE_TODO;
        t->todo -= (uint32_t)here;
    }
}

int verify_found(int root, struct target *t)
{
    t->found = is_done(root, t->entry);
    if (t->found)
        return 0;
    t->todo = t->entry->npieces;
    t->pieces = calloc(t->todo + (size_t)1, 1);
    if (!t->pieces)
        return -ENOMEM;
    int fd = store_open(root, t->entry->name, PART_SUFFIX, O_RDONLY);
    if (fd < 0)
        return 0;
    check_pieces(t, fd);
    close(fd);
    return 0;
}

/* --- while it runs -------------------------------------------------------------------------- */

static void settle(struct verifier *v, struct target *t, enum file_state state)
{
    t->state = state;
    v->settled++;
    pthread_cond_broadcast(&v->changed);
}

/* Wait for piece i of t. 0 when it is in place, -ECANCELED if it will not come. */
static int await_piece(struct verifier *v, struct target *t, uint32_t i)
{
    pthread_mutex_lock(&v->lock);
    while (t->ready <= i && t->state != FILE_FAILED && !v->stop)
        pthread_cond_wait(&v->changed, &v->lock);
    int ok = t->ready > i && t->state != FILE_FAILED && !v->stop;
    pthread_mutex_unlock(&v->lock);
    return ok ? 0 : -ECANCELED;
}

/* Digest of the file at fd, piece by piece as they come. */
static int follow(struct verifier *v, struct target *t, int fd, uint8_t out[DIGEST])
{
    struct digest *d = digest_start();
    if (!d)
        return -ENOMEM;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < t->entry->npieces; i++) {
        rc = await_piece(v, t, i);
        if (!rc)
            rc = digest_add(d, fd, i * PIECE, piece_len(t->entry, i));
    }
    int end = digest_end(d, rc ? NULL : out);
    return rc ? rc : end;
}

static void give_up(struct verifier *v, struct target *t, const char *why)
{
    say("%s: %s", t->entry->name, why);
    pthread_mutex_lock(&v->lock);
    if (t->state != FILE_FAILED)
        settle(v, t, FILE_FAILED);
    pthread_mutex_unlock(&v->lock);
}

/* All pieces were there, but the file is wrong: find out which and have them fetched again. */
static void reopen(struct verifier *v, struct target *t, int fd)
{
    check_pieces(t, fd);
    if (t->todo == 0) {
        give_up(v, t, "its digest and those of its pieces contradict each other");
        return;
    }
    if (++t->tries == MOST_TRIES) {
        give_up(v, t, "SHA-256 is wrong again and again");
        return;
    }
    say("%s: %u pieces are wrong and fetched again", t->entry->name, t->todo);
    pthread_mutex_lock(&v->lock);
    t->ready = 0;
    t->state = FILE_FETCHING;
    v->reopened++;
    pthread_mutex_unlock(&v->lock);
}

static void finish(struct verifier *v, struct target *t)
{
    int rc = store_finish(v->root, t->entry->name, PART_SUFFIX);
    if (rc) {
        give_up(v, t, strerror(-rc));
        return;
    }
    pthread_mutex_lock(&v->lock);
    settle(v, t, FILE_DONE);
    pthread_mutex_unlock(&v->lock);
}

static void verify(struct verifier *v, struct target *t)
{
    uint8_t sha[DIGEST];
    int fd = store_open(v->root, t->entry->name, PART_SUFFIX, O_RDONLY);
    int rc = fd < 0 ? fd : follow(v, t, fd, sha);
    if (rc && rc != -ECANCELED)
        give_up(v, t, strerror(-rc));
    else if (!rc && memcmp(sha, t->entry->sha, DIGEST))
        reopen(v, t, fd);
    else if (!rc)
        finish(v, t);
    if (fd >= 0)
        close(fd);
}

/* Hashing must not take a processor from moving: it has all of them afterwards. */
static void step_back(void)
{
    struct sched_param none = {0};
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &none); /* refused: they share */
}

static void *verifier_thread(void *arg)
{
    struct verifier *v = arg;
    step_back();
    pthread_mutex_lock(&v->lock);
    while (!v->stop) {
        if (v->head == v->tail) {
            pthread_cond_wait(&v->changed, &v->lock);
            continue;
        }
        struct target *t = &v->targets[v->queue[v->head++ % v->n]];
        pthread_mutex_unlock(&v->lock);
        verify(v, t);
        pthread_mutex_lock(&v->lock);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

int verifier_start(struct verifier *v, int root, struct target *targets, uint32_t n)
{
    memset(v, 0, sizeof *v);
    v->root = root;
    v->targets = targets;
    v->n = n;
    v->queue = calloc(n + (size_t)1, sizeof *v->queue);
    if (!v->queue)
        return -ENOMEM;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->changed, NULL);
    while (v->nthreads < cores() &&
           !pthread_create(&v->threads[v->nthreads], NULL, verifier_thread, v))
        v->nthreads++;
    return v->nthreads ? 0 : -EAGAIN;
}

void verifier_add(struct verifier *v, uint32_t file)
{
    pthread_mutex_lock(&v->lock);
    v->queue[v->tail++ % v->n] = file;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}

void verifier_ready(struct verifier *v, uint32_t file, uint32_t ready)
{
    struct target *t = &v->targets[file];
    pthread_mutex_lock(&v->lock);
    t->ready = ready;
    if (ready == t->entry->npieces && t->state == FILE_FETCHING)
        t->state = FILE_WHOLE;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}

void verifier_fail(struct verifier *v, uint32_t file)
{
    struct target *t = &v->targets[file];
    pthread_mutex_lock(&v->lock);
    if (t->state != FILE_FAILED && t->state != FILE_DONE)
        settle(v, t, FILE_FAILED);
    pthread_mutex_unlock(&v->lock);
}

void verifier_stop(struct verifier *v)
{
    pthread_mutex_lock(&v->lock);
    v->stop = 1;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
    while (v->nthreads)
        pthread_join(v->threads[--v->nthreads], NULL);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
    free(v->queue);
}
