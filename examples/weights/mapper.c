/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: pieces of files that are mapped and registered, so that a client reads them.
 *
 * To map, populate, register, and all of it backwards, takes the kernel a third of the time that
 * moving the bytes does, so threads can do it while the one that answers messages goes on, and
 * while Weft's own move bytes. With one thread there are none: who asks does it.
 *
 * A window has one owner at a time. It is OPENING or CLOSING while it is in the queue or in a
 * mapper's hands, and nobody else touches it then, but for `conn`: 0 there says that the client is
 * gone and nobody wants the window. It is OPEN before the client hears of it, so that CLOSE finds
 * it; and only who turns OPEN into CLOSING, under the lock, gives it to be closed: that is once.
 */
#include "weights.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEAST_PAGE 4096 /* of any machine */

/* Have the pages of a mapping in the table at once, and not by a fault for every few of them; but
 * do not wait for a disk: then have it read ahead. */
static void get_ready(uint8_t *at, size_t len)
{
    unsigned char resident[PIECE / LEAST_PAGE];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (len + page - 1) / page;
    int here = mincore(at, len, resident) == 0 && !memchr(resident, 0, pages);
    madvise(at, len, here ? MADV_POPULATE_READ : MADV_WILLNEED);
}

/* Map a piece at its window's slot and register it. Returns what the client is to hear. */
static enum message_status map_window(struct mapper *m, int i, struct message *answer)
{
    struct window *w = &m->windows[i];
    const struct entry *e = &m->catalog->manifest.files[w->file];
    int fd = catalog_file(m->catalog, w->file);
    if (fd < 0)
        return fd == -ESTALE || fd == -ENOENT ? STATUS_CHANGED : STATUS_UNREADABLE;
    uint8_t *at = arena_slot(i);
    answer->len = piece_len(e, w->piece);
    void *map = mmap(at, answer->len, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
                     (off_t)(w->piece * PIECE));
    close(fd);
    if (map == MAP_FAILED)
        return STATUS_UNREADABLE;
    get_ready(at, answer->len);
    int rc = weft_mem_reg(m->endpoint, at, answer->len,
                          WEFT_OPTS(weft_mem_opts, .access = WEFT_READ), &w->mem);
    if (rc >= 0)
        rc = weft_mem_advertise(w->mem, at, answer->len, &answer->remote);
    if (rc >= 0)
        return STATUS_OK;
    say_weft(rc, e->name);
    return STATUS_UNREADABLE;
}

/* Of a window that is CLOSING. If a peer will not let go of it within a second, its slot is blank
 * all the same: what it reads then is nothing, or another piece of what it may read. */
static void close_window(struct mapper *m, int i)
{
    struct window *w = &m->windows[i];
    if (w->mem)
        weft_mem_dereg(w->mem);
    w->mem = 0;
    arena_blank(i);
    pthread_mutex_lock(&m->lock);
    w->state = WINDOW_FREE;
    w->conn = 0;
    pthread_mutex_unlock(&m->lock);
}

/* Who wants the window: 0 if nobody does any more. */
static weft_conn_t wanted_by(struct mapper *m, const struct window *w)
{
    pthread_mutex_lock(&m->lock);
    weft_conn_t conn = w->conn;
    pthread_mutex_unlock(&m->lock);
    return conn;
}

/* The window is as it will be. Returns who is to hear of it. */
static weft_conn_t settle(struct mapper *m, struct window *w, enum message_status status)
{
    pthread_mutex_lock(&m->lock);
    weft_conn_t conn = w->conn;
    w->state = conn && status == STATUS_OK ? WINDOW_OPEN : WINDOW_CLOSING;
    pthread_mutex_unlock(&m->lock);
    return conn;
}

/* Of a window that is OPENING. */
static void open_window(struct mapper *m, int i)
{
    struct window *w = &m->windows[i];
    struct message answer = {.type = MSG_WINDOW,
                             .status = STATUS_BUSY,
                             .id = w->id,
                             .file = w->file,
                             .piece = w->piece};
    if (wanted_by(m, w))
        answer.status = map_window(m, i, &answer);
    weft_conn_t conn = settle(m, w, answer.status);
    if (!conn || answer.status != STATUS_OK)
        close_window(m, i);
    /* A conn that went away in between is no error. One that cannot be told is cut, or its client
     * would wait for ever; who keeps the list of them finds that out. */
    if (conn && message_post(conn, &answer) < 0)
        weft_conn_close(conn);
}

static void work_on(struct mapper *m, int i)
{
    if (m->windows[i].state == WINDOW_OPENING)
        open_window(m, i);
    else
        close_window(m, i);
}

/* --- the queue ----------------------------------------------------------------------------- */

static void *mapper_thread(void *arg)
{
    struct mapper *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (m->head == m->tail && !m->stop)
            pthread_cond_wait(&m->given, &m->lock);
        if (m->head == m->tail)
            break;
        int i = m->queue[m->head++ % SLOTS];
        pthread_mutex_unlock(&m->lock);
        work_on(m, i);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* Have someone open or close a window. The queue has room: a window is in it at most once. */
static void give(struct mapper *m, int i)
{
    if (!m->nthreads) {
        work_on(m, i);
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->queue[m->tail++ % SLOTS] = i;
    pthread_cond_signal(&m->given);
    pthread_mutex_unlock(&m->lock);
}

int mapper_start(struct mapper *m, const struct catalog *catalog, weft_endpoint_t endpoint,
                 int threads)
{
    memset(m, 0, sizeof *m);
    m->catalog = catalog;
    m->endpoint = endpoint;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->given, NULL);
    for (int rc; threads > 1 && m->nthreads < threads; m->nthreads++) {
        rc = pthread_create(&m->threads[m->nthreads], NULL, mapper_thread, m);
        if (rc) {
            say("cannot start a thread: %s", strerror(rc));
            mapper_stop(m);
            return -rc;
        }
    }
    return 0;
}

void mapper_stop(struct mapper *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = 1;
    pthread_cond_broadcast(&m->given);
    pthread_mutex_unlock(&m->lock);
    while (m->nthreads)
        pthread_join(m->threads[--m->nthreads], NULL);
    pthread_cond_destroy(&m->given);
    pthread_mutex_destroy(&m->lock);
}

/* --- what clients ask for ------------------------------------------------------------------ */

static int is_held(const struct window *w, weft_conn_t conn, uint32_t id)
{
    return w->conn == conn && w->id == id &&
           (w->state == WINDOW_OPENING || w->state == WINDOW_OPEN);
}

/* A free window for a conn; -1: there is none, or the conn has its share. WEFT_EPROTO: it has one
 * of that id. The lock is held. */
static int find_room(const struct mapper *m, weft_conn_t conn, uint32_t id)
{
    int room = -1, theirs = 0;
    for (int i = SLOTS - 1; i >= 0; i--) {
        const struct window *w = &m->windows[i];
        if (is_held(w, conn, id))
            return WEFT_EPROTO;
        theirs += w->conn == conn;
        if (w->state == WINDOW_FREE)
            room = i;
    }
    return theirs < WINDOWS_MOST ? room : -1;
}

int mapper_open(struct mapper *m, weft_conn_t conn, const struct message *ask)
{
    pthread_mutex_lock(&m->lock);
    int i = find_room(m, conn, ask->id);
    if (i >= 0)
        m->windows[i] = (struct window){.state = WINDOW_OPENING,
                                        .conn = conn,
                                        .id = ask->id,
                                        .file = ask->file,
                                        .piece = ask->piece};
    pthread_mutex_unlock(&m->lock);
    if (i == -1)
        return message_post(
            conn, &(struct message){.type = MSG_WINDOW, .status = STATUS_BUSY, .id = ask->id});
    if (i < 0)
        return i;
    give(m, i);
    return 0;
}

int mapper_close(struct mapper *m, weft_conn_t conn, uint32_t id)
{
    int found = -1;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < SLOTS && found < 0; i++)
        if (is_held(&m->windows[i], conn, id) && m->windows[i].state == WINDOW_OPEN)
            found = i;
    if (found >= 0)
        m->windows[found].state = WINDOW_CLOSING;
    pthread_mutex_unlock(&m->lock);
    if (found < 0)
        return WEFT_EPROTO;
    give(m, found);
    return 0;
}

/* Let go of a window of a conn that was closed. Returns whether it is to be closed. */
static int disown(struct mapper *m, struct window *w, weft_conn_t conn)
{
    pthread_mutex_lock(&m->lock);
    int open = w->conn == conn && w->state == WINDOW_OPEN;
    if (open)
        w->state = WINDOW_CLOSING;
    else if (w->conn == conn)
        w->conn = 0;
    pthread_mutex_unlock(&m->lock);
    return open;
}

void mapper_drop(struct mapper *m, weft_conn_t conn)
{
    for (int i = 0; i < SLOTS; i++)
        if (disown(m, &m->windows[i], conn))
            give(m, i);
}
