/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: pieces of files in registered memory, so that a client reads them.
 *
 * Files are read, not mapped: to put 4 MiB of a mapping into the page table, and to take it out again,
 * takes the kernel longer than to copy them, and what is copied is sent out of huge pages. It still takes
 * half as long as moving the bytes, so threads can do it while the one that answers messages goes on, and
 * while Weft's own move bytes. With one thread there are none: who asks does it.
 *
 * A window has one owner at a time. It is OPENING or CLOSING while it is in the queue or in a
 * loader's hands, and nobody else touches it then, but for `conn`: 0 there says that the client is
 * gone and nobody wants the window. It is OPEN before the client hears of it, so that CLOSE finds
 * it; and only who turns OPEN into CLOSING, under the lock, gives it to be closed: that is once.
 */
#include "weights.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* So many bytes of a file, from an offset on. 1: it ends before. */
static int read_whole(int fd, uint8_t *at, uint64_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t n = pread(fd, at, len, (off_t)offset);
        if (n == 0)
            return 1;
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0)
            at += n, len -= (uint64_t)n, offset += (uint64_t)n;
    }
    return 0;
}

/* What the client is to hear of a file that could not be opened or read: what stands there now is no such file, or why, which
 * is for who runs the server. */
static enum message_status unread(const char *name, int rc)
{
    if (rc == -ESTALE || rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP || rc == -ENXIO)
        return STATUS_CHANGED;
    say("%s: %s", name, strerror(-rc));
    return STATUS_UNREADABLE;
}

/* Read a piece into its window's slot. Returns what the client is to hear. */
static enum message_status fill_window(struct loader *l, int i, struct message *answer)
{
    struct window *w = &l->windows[i];
    const struct entry *e = &l->catalog->manifest.files[w->file];
    int fd = catalog_file(l->catalog, w->file);
    if (fd < 0)
        return unread(e->name, fd);
    answer->len = piece_len(e, w->piece);
    int rc = read_whole(fd, arena_slot(i), answer->len, w->piece * PIECE);
    close(fd);
    if (rc)
        return rc > 0 ? STATUS_CHANGED : unread(e->name, rc);
    rc = weft_mem_reg(l->endpoint, arena_slot(i), answer->len,
                      WEFT_OPTS(weft_mem_opts, .access = WEFT_READ), &w->mem);
    if (rc >= 0)
        rc = weft_mem_advertise(w->mem, arena_slot(i), answer->len, &answer->remote);
    if (rc >= 0)
        return STATUS_OK;
    say_weft(rc, e->name);
    return STATUS_UNREADABLE;
}

/* Of a window that is CLOSING. If a peer will not let go of it within a second, its slot is used again
 * all the same: what it reads then is another piece of what it may read. */
static void close_window(struct loader *l, int i)
{
    struct window *w = &l->windows[i];
    if (w->mem)
        weft_mem_dereg(w->mem);
    pthread_mutex_lock(&l->lock);
    *w = (struct window){.state = WINDOW_FREE};
    pthread_mutex_unlock(&l->lock);
}

/* Who wants the window: 0 if nobody does any more. */
static weft_conn_t wanted_by(struct loader *l, const struct window *w)
{
    pthread_mutex_lock(&l->lock);
    weft_conn_t conn = w->conn;
    pthread_mutex_unlock(&l->lock);
    return conn;
}

/* The window is as it will be. Returns who is to hear of it. */
static weft_conn_t settle(struct loader *l, struct window *w, enum message_status status)
{
    pthread_mutex_lock(&l->lock);
    weft_conn_t conn = w->conn;
    w->state = conn && status == STATUS_OK ? WINDOW_OPEN : WINDOW_CLOSING;
    pthread_mutex_unlock(&l->lock);
    return conn;
}

/* Of a window that is OPENING. */
static void open_window(struct loader *l, int i)
{
    struct window *w = &l->windows[i];
    struct message answer = {.type = MSG_WINDOW,
                             .status = STATUS_BUSY,
                             .id = w->id,
                             .file = w->file,
                             .piece = w->piece};
    if (wanted_by(l, w))
        answer.status = fill_window(l, i, &answer);
    weft_conn_t conn = settle(l, w, answer.status);
    if (!conn || answer.status != STATUS_OK)
        close_window(l, i);
    /* A conn that went away in between is no error. One that cannot be told is cut, or its client
     * would wait for ever; who keeps the list of them finds that out. */
    if (conn && message_post(conn, &answer) < 0)
        weft_conn_close(conn);
}

static void work_on(struct loader *l, int i)
{
    if (l->windows[i].state == WINDOW_OPENING)
        open_window(l, i);
    else
        close_window(l, i);
}

/* --- the queue ----------------------------------------------------------------------------- */

static void *loader_thread(void *arg)
{
    struct loader *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->head == l->tail && !l->stop)
            pthread_cond_wait(&l->given, &l->lock);
        if (l->head == l->tail)
            break;
        int i = l->queue[l->head++ % SLOTS];
        pthread_mutex_unlock(&l->lock);
        work_on(l, i);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Have someone open or close a window. The queue has room: a window is in it at most once. */
static void give(struct loader *l, int i)
{
    if (!l->nthreads) {
        work_on(l, i);
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->queue[l->tail++ % SLOTS] = i;
    pthread_cond_signal(&l->given);
    pthread_mutex_unlock(&l->lock);
}

int loader_start(struct loader *l, const struct catalog *catalog, weft_endpoint_t endpoint,
                 int threads)
{
    memset(l, 0, sizeof *l);
    l->catalog = catalog;
    l->endpoint = endpoint;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->given, NULL);
    for (int rc; threads > 1 && l->nthreads < threads; l->nthreads++) {
        rc = pthread_create(&l->threads[l->nthreads], NULL, loader_thread, l);
        if (rc) {
            say("cannot start a thread: %s", strerror(rc));
            loader_stop(l);
            return -rc;
        }
    }
    return 0;
}

void loader_stop(struct loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_broadcast(&l->given);
    pthread_mutex_unlock(&l->lock);
    while (l->nthreads)
        pthread_join(l->threads[--l->nthreads], NULL);
    pthread_cond_destroy(&l->given);
    pthread_mutex_destroy(&l->lock);
}

/* --- what clients ask for ------------------------------------------------------------------ */

static int is_held(const struct window *w, weft_conn_t conn, uint32_t id)
{
    return w->conn == conn && w->id == id &&
           (w->state == WINDOW_OPENING || w->state == WINDOW_OPEN);
}

/* A free window for a conn; -1: there is none, or the conn has its share. WEFT_EPROTO: it has one
 * of that id. The lock is held. */
static int find_room(const struct loader *l, weft_conn_t conn, uint32_t id)
{
    int room = -1, theirs = 0;
    for (int i = SLOTS - 1; i >= 0; i--) {
        const struct window *w = &l->windows[i];
        if (is_held(w, conn, id))
            return WEFT_EPROTO;
        theirs += w->conn == conn;
        if (w->state == WINDOW_FREE)
            room = i; /* the first one: its memory is there already */
    }
    return theirs < WINDOWS_MOST ? room : -1;
}

int loader_open(struct loader *l, weft_conn_t conn, const struct message *ask)
{
    pthread_mutex_lock(&l->lock);
    int i = find_room(l, conn, ask->id);
    if (i >= 0)
        l->windows[i] = (struct window){.state = WINDOW_OPENING,
                                        .conn = conn,
                                        .id = ask->id,
                                        .file = ask->file,
                                        .piece = ask->piece};
    pthread_mutex_unlock(&l->lock);
    if (i == -1)
        return message_post(
            conn, &(struct message){.type = MSG_WINDOW, .status = STATUS_BUSY, .id = ask->id});
    if (i < 0)
        return i;
    give(l, i);
    return 0;
}

int loader_close(struct loader *l, weft_conn_t conn, uint32_t id)
{
    int found = -1;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < SLOTS && found < 0; i++)
        if (is_held(&l->windows[i], conn, id) && l->windows[i].state == WINDOW_OPEN)
            found = i;
    if (found >= 0)
        l->windows[found].state = WINDOW_CLOSING;
    pthread_mutex_unlock(&l->lock);
    if (found < 0)
        return WEFT_EPROTO;
    give(l, found);
    return 0;
}

/* Let go of a window of a conn that was closed. Returns whether it is to be closed. */
static int disown(struct loader *l, struct window *w, weft_conn_t conn)
{
    pthread_mutex_lock(&l->lock);
    int open = w->conn == conn && w->state == WINDOW_OPEN;
    if (open)
        w->state = WINDOW_CLOSING;
    else if (w->conn == conn)
        w->conn = 0;
    pthread_mutex_unlock(&l->lock);
    return open;
}

void loader_drop(struct loader *l, weft_conn_t conn)
{
    for (int i = 0; i < SLOTS; i++)
        if (disown(l, &l->windows[i], conn))
            give(l, i);
}

static int is_at_rest(struct loader *l)
{
    int held = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < SLOTS; i++)
        held += l->windows[i].state != WINDOW_FREE;
    pthread_mutex_unlock(&l->lock);
    return held == 0;
}

int loader_rest(struct loader *l)
{
    int all = is_at_rest(l);
    if (all)
        arena_forget();
    return all;
}
