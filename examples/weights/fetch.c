/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Missing pieces are fetched, several at a time, into buffers, and written to their files.
 *
 * A slot carries one piece from asking to its place. Each turn of the loop asks for as many
 * pieces as there are free slots, lets Weft work, starts a read for each window that the server
 * has opened, and puts away what was read. Writing whole pieces costs a copy from the cache and
 * saves what a mapped new file takes: a page fault and a page of zeros for every page.
 * When the server is lost, pieces that were under way are TODO again and the loop goes on with a
 * new conn.
 */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Longest sleep of a turn: how late verdicts of the verifier are noticed, and completions that came
 * up while another operation was asked for. */
#define TURN_MS 2
/* A server that owes us something and is silent for so long is taken for lost. */
#define SILENCE 30.0
/* Losses in a row, with no piece in place between them, after which the pull is given up. */
#define MOST_BARREN 5
/* Pause before a server that is out of windows is asked again. */
#define BUSY_PAUSE 0.02

/* --- files --------------------------------------------------------------------------------- */

static uint32_t prefix(const struct target *t)
{
    uint32_t n = t->ready;
    while (n < t->entry->npieces && t->pieces[n] == PIECE_HERE)
        n++;
    return n;
}

static void close_file(struct target *t)
{
    if (t->fd >= 0)
        close(t->fd);
    t->open = 0;
}

static void fail_file(struct fetch *f, uint32_t file, const char *why)
{
    struct target *t = &f->targets[file];
    if (!t->open)
        return;
    say("%s: %s", t->entry->name, why);
    f->missing -= t->todo;
    close_file(t);
    verifier_fail(f->verifier, file);
}

/* Tell the verifier how far a file is. */
static void advance(struct fetch *f, uint32_t file)
{
    struct target *t = &f->targets[file];
    uint32_t ready = prefix(t);
    if (t->todo == 0)
        close_file(t);
    verifier_ready(f->verifier, file, ready);
}

/* Open or make the file's .part, so that pieces can be fetched into it. */
static void open_file(struct fetch *f, uint32_t file)
{
    struct target *t = &f->targets[file];
    t->fd = store_open(f->verifier->root, t->entry->name, PART_SUFFIX, O_RDWR | O_CREAT);
    t->open = t->begun = 1;
    t->scan = 0;
    int rc = t->fd < 0 ? t->fd : ftruncate(t->fd, (off_t)t->entry->size) ? -errno : 0;
    pthread_mutex_lock(&f->verifier->lock);
    t->state = FILE_FETCHING;
    pthread_mutex_unlock(&f->verifier->lock);
    if (rc) {
        fail_file(f, file, strerror(-rc));
        return;
    }
    verifier_add(f->verifier, file);
    advance(f, file);
}

/* Files that the verifier sent back are fetched from again. */
static void reopen_files(struct fetch *f)
{
    struct verifier *v = f->verifier;
    pthread_mutex_lock(&v->lock);
    uint32_t reopened = v->reopened;
    pthread_mutex_unlock(&v->lock);
    for (uint32_t i = 0; f->reopened != reopened && i < f->manifest->nfiles; i++) {
        struct target *t = &f->targets[i];
        pthread_mutex_lock(&v->lock);
        int mine = t->state == FILE_FETCHING && !t->open;
        pthread_mutex_unlock(&v->lock);
        if (!mine)
            continue;
        f->reopened++;
        f->missing += t->todo;
        for (uint32_t p = 0; p < t->entry->npieces; p++)
            f->here -= t->pieces[p] == PIECE_TODO ? piece_len(t->entry, p) : 0;
        f->cursor = i < f->cursor ? i : f->cursor;
        open_file(f, i);
    }
}

/* --- asking -------------------------------------------------------------------------------- */

/* The next piece to ask for. 0 if there is none. */
static int next_piece(struct fetch *f, uint32_t *file, uint32_t *piece)
{
    for (; f->cursor < f->manifest->nfiles; f->cursor++) {
        struct target *t = &f->targets[f->cursor];
        if (!t->begun && !t->found)
            open_file(f, f->cursor);
        for (; t->open && t->scan < t->entry->npieces; t->scan++)
            if (t->pieces[t->scan] == PIECE_TODO) {
                *file = f->cursor;
                *piece = t->scan;
                return 1;
            }
    }
    return 0;
}

static int ask(struct fetch *f, struct slot *s)
{
    struct target *t = &f->targets[s->file];
    s->len = (size_t)piece_len(t->entry, s->piece);
    s->id = f->next_id++;
    s->state = SLOT_ASKED;
    t->pieces[s->piece] = PIECE_BUSY;
    return message_post(
        f->session->conn,
        &(struct message){.type = MSG_OPEN, .id = s->id, .file = s->file, .piece = s->piece});
}

/* May another piece be asked for, and if so, when the one after it? */
static int within_limit(struct fetch *f, size_t len)
{
    double now = seconds(), limit = f->session->opts->limit;
    if (now < f->asked_at)
        return 0;
    f->asked_at = limit > 0 ? now + (double)len / limit : 0;
    return 1;
}

static int ask_all(struct fetch *f)
{
    int rc = 0;
    for (int i = 0; i < f->depth && rc >= 0; i++) {
        struct slot *s = &f->slots[i];
        if (s->state != SLOT_FREE)
            continue;
        if (!next_piece(f, &s->file, &s->piece) ||
            !within_limit(f, (size_t)piece_len(f->targets[s->file].entry, s->piece)))
            return 0;
        rc = ask(f, s);
    }
    return rc;
}

/* --- reading ------------------------------------------------------------------------------- */

static int write_piece(const struct target *t, const struct slot *s)
{
    for (size_t done = 0; done < s->len;) {
        off_t offset = (off_t)(s->piece * PIECE + done);
        ssize_t n = pwrite(t->fd, s->buffer + done, s->len - done, offset);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A slot's piece is to be written to its place, or has to be asked for again. */
static void put_away(struct fetch *f, struct slot *s, int here)
{
    struct target *t = &f->targets[s->file];
    s->state = SLOT_FREE;
    if (!t->open)
        return;
    int rc = here ? write_piece(t, s) : 0;
    if (rc) {
        fail_file(f, s->file, strerror(-rc));
        return;
    }
    t->pieces[s->piece] = here ? PIECE_HERE : PIECE_TODO;
    if (!here) {
        t->scan = s->piece < t->scan ? s->piece : t->scan;
        f->cursor = s->file < f->cursor ? s->file : f->cursor;
        return;
    }
    t->todo--;
    f->missing--;
    f->moved += s->len;
    f->here += s->len;
    f->barren = 0;
    f->moved_at = seconds();
    advance(f, s->file);
}

/* Read a window into its place; when that is done the server hears that it may close it. */
static int start_read(struct fetch *f, struct slot *s, const struct message *m)
{
    uint8_t done[MESSAGE_BYTES];
    message_encode(&(struct message){.type = MSG_CLOSE, .id = s->id}, done);
    struct weft_local local = {.addr = s->buffer, .len = s->len, .mem = f->buffers_mem};
    int rc = weft_post(f->session->conn,
                       WEFT_OPTS(weft_xfer, .op = WEFT_XFER_READ, .local = &local, .nlocal = 1,
                                 .remote = &m->remote, .nremote = 1, .notify = done,
                                 .notify_len = sizeof done),
                       &s->op);
    if (rc >= 0)
        s->state = SLOT_READING;
    return rc;
}

static struct slot *find_slot(struct fetch *f, uint32_t id)
{
    for (int i = 0; i < f->depth; i++)
        if (f->slots[i].state == SLOT_ASKED && f->slots[i].id == id)
            return &f->slots[i];
    return NULL;
}

static int on_window(struct fetch *f, const struct message *m)
{
    struct slot *s = m->type == MSG_WINDOW ? find_slot(f, m->id) : NULL;
    if (!s)
        return WEFT_EPROTO;
    if (m->status == STATUS_OK)
        return m->len == s->len ? start_read(f, s, m) : WEFT_EPROTO;
    if (m->status == STATUS_BUSY)
        f->asked_at = seconds() + BUSY_PAUSE;
    else
        fail_file(f, s->file,
                  m->status == STATUS_CHANGED ? "changed on the server since it was started"
                                              : "cannot be read on the server");
    put_away(f, s, 0);
    return 0;
}

static int take_windows(struct fetch *f)
{
    struct message m;
    int rc;
    while ((rc = session_message(f->session, 0, &m)) == 0) {
        rc = on_window(f, &m);
        if (rc < 0)
            return rc;
    }
    return rc == WEFT_ETIMEOUT ? 0 : rc;
}

static int take_reads(struct fetch *f)
{
    for (int i = 0; i < f->depth; i++) {
        struct slot *s = &f->slots[i];
        struct weft_op_status status;
        int rc = s->state == SLOT_READING ? weft_op_poll(s->op, &status) : 0;
        if (rc == 0)
            continue;
        put_away(f, s, rc > 0);
        if (rc < 0) {
            say("reading failed: %s", *status.text ? status.text : weft_strerror(rc));
            return rc;
        }
    }
    return 0;
}

/* --- losing the server --------------------------------------------------------------------- */

/* Why the server has to be taken for lost; 0: it has not. */
static int check_server(struct fetch *f)
{
    int owed = 0;
    for (int i = 0; i < f->depth; i++)
        owed |= f->slots[i].state != SLOT_FREE;
    if (!owed)
        f->heard_at = seconds();
    struct weft_conn_info info;
    int rc = weft_conn_info(f->session->conn, &info);
    if (rc < 0)
        return rc;
    if (info.state == WEFT_CONN_DOWN)
        return info.status < 0 ? info.status : WEFT_EPEER;
    return seconds() - f->heard_at > SILENCE ? WEFT_ETIMEOUT : 0;
}

/* Close the conn and make every piece that was under way TODO again. */
static void drop_server(struct fetch *f)
{
    session_drop(f->session);
    for (int i = 0; i < f->depth; i++) {
        struct slot *s = &f->slots[i];
        if (s->state == SLOT_READING)
            weft_op_wait(s->op, WEFT_FOREVER, NULL); /* closing the conn has ended it */
        if (s->state != SLOT_FREE)
            put_away(f, s, 0);
    }
}

static int reach_server_again(struct fetch *f)
{
    struct message welcome;
    int rc = session_connect(f->session, &welcome);
    if (rc)
        return rc;
    if (memcmp(welcome.digest, f->manifest->id, DIGEST)) {
        say("the server came back with other files; pull again to get them");
        return -ESTALE;
    }
    say("connected again");
    f->heard_at = seconds();
    return 0;
}

static int recover(struct fetch *f, int why)
{
    say("lost the server: %s", weft_strerror(why));
    drop_server(f);
    if (f->missing == 0)
        return 0;
    if (++f->barren > MOST_BARREN) {
        say("lost it %d times without getting anything: giving up", f->barren);
        return why;
    }
    return reach_server_again(f);
}

/* --- the loop ------------------------------------------------------------------------------ */

static int turn(struct fetch *f)
{
    int rc = ask_all(f), events = 0;
    if (rc >= 0)
        rc = events = weft_endpoint_progress(f->session->endpoint, TURN_MS);
    if (rc >= 0)
        rc = take_windows(f);
    if (rc >= 0)
        rc = take_reads(f);
    if (events > 0)
        f->heard_at = seconds();
    else if (rc >= 0)
        rc = check_server(f);
    return rc;
}

static int settled(struct fetch *f)
{
    pthread_mutex_lock(&f->verifier->lock);
    int yes = f->verifier->settled == f->manifest->nfiles;
    pthread_mutex_unlock(&f->verifier->lock);
    return yes;
}

static int open_buffers(struct fetch *f)
{
    size_t len = (size_t)f->depth * PIECE;
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return -errno;
    f->buffers = at;
    for (int i = 0; i < f->depth; i++)
        f->slots[i].buffer = f->buffers + (size_t)i * PIECE;
    int rc = weft_mem_reg(f->session->endpoint, at, len, NULL, &f->buffers_mem);
    return rc < 0 ? say_weft(rc, "cannot register buffers") : 0;
}

static void close_buffers(struct fetch *f)
{
    if (f->buffers_mem)
        weft_mem_dereg(f->buffers_mem);
    if (f->buffers)
        munmap(f->buffers, (size_t)f->depth * PIECE);
}

static int run(struct fetch *f)
{
    f->started = f->heard_at = f->moved_at = seconds();
    int rc = 0;
    while (rc >= 0 && !settled(f)) {
        reopen_files(f);
        if (f->session->conn) {
            rc = turn(f);
            if (rc < 0)
                rc = recover(f, rc);
        } else if (f->missing) {
            rc = reach_server_again(f);
        } else {
            usleep(TURN_MS * 1000);
        }
        show_progress(f->here, f->manifest->bytes, (double)f->moved / (seconds() - f->started));
    }
    show_progress(0, 0, 0);
    drop_server(f);
    return rc < 0 ? rc : 0;
}

int fetch_run(struct fetch *f)
{
    int rc = open_buffers(f);
    if (!rc)
        rc = run(f);
    close_buffers(f);
    return rc;
}
