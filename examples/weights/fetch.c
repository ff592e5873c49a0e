/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Missing pieces are fetched, several at a time, and put into place.
 *
 * A slot carries one piece from asking to its place. Each turn of the loop takes back what the
 * writers have put into place, asks for as many pieces as there are free slots, lets Weft work,
 * starts a read for each window that the server has opened, and hands what was read to the writers.
 * When the server is lost, pieces that were under way are TODO again and the loop goes on with a
 * new conn.
 *
 * With several threads Weft moves the bytes by its own, and the loop only waits for windows:
 * writers get slots that are still read into. A call that makes progress would move bytes in the
 * stead of those threads, which step aside for it, while windows and slots wait.
 */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NO_FILE UINT32_MAX
/* Longest sleep of a turn: how late completions are noticed that came up while another operation
 * was asked for, and slots that come back while others are read. */
#define TURN_MS 2
/* The same while windows are waited for and Weft has threads: slots come back and want a new piece,
 * but at full speed a window comes sooner. */
#define GLANCE_MS 1
/* A server that owes us something and is silent for so long is taken for lost, and later if what it sends
 * may take longer: pieces come side by side, so the first may be whole only when all others nearly are. */
#define SILENCE 30.0
/* When no window and no piece came for so long, Weft is asked whether parts of one do. */
#define QUIET 1.0
/* Losses in a row, with no piece in place between them, after which the pull is given up. */
#define MOST_BARREN 5
/* Pause before a server that is out of windows is asked again. */
#define BUSY_PAUSE 0.02
/* Pieces of a file that may arrive wrong before it is given up: the first is an accident or a
 * change on the server, a third is neither. */
#define MOST_WRONG 3

/* Weft's threads move the bytes, and writers wait for them. */
static int is_threaded(const struct fetch *f)
{
    return f->session->opts->threads > 1;
}

/* --- files --------------------------------------------------------------------------------- */

/* Close a file that nothing will be written to any more. */
static void close_file(struct target *t)
{
    if (t->state == FILE_FETCHING || t->busy || t->fd < 0)
        return;
    close(t->fd);
    t->fd = -1;
}

static void fail_file(struct fetch *f, uint32_t file, const char *why)
{
    struct target *t = &f->targets[file];
    if (t->state != FILE_FETCHING)
        return;
    say("%s: %s", t->entry->name, why);
    f->missing -= t->todo;
    f->settled++;
    t->state = FILE_FAILED;
    close_file(t);
}

/* It cannot be opened or named. Where no descriptor is left, so it would be with all others, too. */
static void fail_store(struct fetch *f, uint32_t file, int rc)
{
    if (rc == -EMFILE || rc == -ENFILE)
        f->stop = rc;
    fail_file(f, file, strerror(-rc));
}

/* All pieces of a file are in place. */
static void complete_file(struct fetch *f, uint32_t file)
{
    struct target *t = &f->targets[file];
    int named = f->root >= 0 && !f->session->opts->verify;
    int rc = named ? store_finish(f->root, t->entry->name, PART_SUFFIX) : 0;
    if (rc) {
        fail_store(f, file, rc);
        return;
    }
    f->settled++;
    t->state = named || f->root < 0 ? FILE_DONE : FILE_WHOLE;
    close_file(t);
}

/* Open or make the file's .part, so that pieces can be put into it. */
static void open_file(struct fetch *f, uint32_t file)
{
    struct target *t = &f->targets[file];
    t->state = FILE_FETCHING;
    if (f->root >= 0) {
        t->fd = store_open(f->root, t->entry->name, PART_SUFFIX, O_RDWR | O_CREAT);
        int rc = t->fd < 0 ? t->fd : ftruncate(t->fd, (off_t)t->entry->size) ? -errno : 0;
        if (rc) {
            fail_store(f, file, rc);
            return;
        }
    }
    if (t->todo == 0)
        complete_file(f, file);
}

/* --- asking -------------------------------------------------------------------------------- */

/* Has it a piece to ask for? */
static int has_piece(struct target *t)
{
    if (t->state != FILE_FETCHING)
        return 0;
    while (t->scan < t->entry->npieces && t->pieces[t->scan] != PIECE_TODO)
        t->scan++;
    return t->scan < t->entry->npieces;
}

static int is_in_turns(const struct fetch *f, uint32_t file)
{
    for (int i = 0; i < f->session->opts->threads; i++)
        if (f->turns[i] == file)
            return 1;
    return 0;
}

/* The next file to ask for pieces of, beside those in turns. */
static uint32_t next_file(struct fetch *f)
{
    for (; f->cursor < f->manifest->nfiles && !f->stop; f->cursor++) {
        struct target *t = &f->targets[f->cursor];
        if (t->state == FILE_NEW)
            open_file(f, f->cursor);
        if (has_piece(t) && !is_in_turns(f, f->cursor))
            return f->cursor;
    }
    return NO_FILE;
}

/* The next piece to ask for, of as many files in turn as there are writers. 0 if there is none. */
static int next_piece(struct fetch *f, uint32_t *file, uint32_t *piece)
{
    int n = f->session->opts->threads;
    for (int k = 0; k < n; k++) {
        uint32_t *at = &f->turns[(f->turn + k) % n];
        if (*at == NO_FILE || !has_piece(&f->targets[*at]))
            *at = next_file(f);
        if (*at == NO_FILE)
            continue;
        *file = *at;
        *piece = f->targets[*at].scan;
        f->turn = (f->turn + k + 1) % n;
        return 1;
    }
    return 0;
}

static int ask(struct fetch *f, struct slot *s)
{
    struct target *t = &f->targets[s->file];
    s->len = (size_t)piece_len(t->entry, s->piece);
    s->id = f->next_id++;
    s->state = SLOT_ASKED;
    if (t->memory)
        s->buffer = t->memory + s->piece * PIECE;
    t->pieces[s->piece] = PIECE_BUSY;
    t->busy++;
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

/* --- putting away ---------------------------------------------------------------------------- */

/* A slot's piece is in its place, or has to be asked for again. */
static void put_away(struct fetch *f, struct slot *s, int here)
{
    struct target *t = &f->targets[s->file];
    s->state = SLOT_FREE;
    t->busy--;
    close_file(t);
    if (t->state != FILE_FETCHING)
        return;
    t->pieces[s->piece] = here ? PIECE_HERE : PIECE_TODO;
    if (!here) {
        t->scan = s->piece < t->scan ? s->piece : t->scan;
        f->cursor = s->file < f->cursor ? s->file : f->cursor;
        return;
    }
    f->missing--;
    f->moved += s->len;
    f->here += s->len;
    f->barren = 0;
    f->moved_at = seconds();
    if (--t->todo == 0)
        complete_file(f, s->file);
}

static void give_to_writers(struct fetch *f, struct slot *s)
{
    const struct target *t = &f->targets[s->file];
    s->state = SLOT_WRITING;
    s->sum = f->session->opts->no_check ? NULL : piece_sum(t->entry, s->piece);
    s->fd = t->fd;
    f->writing++;
    writers_give(&f->writers, s);
}

/* The read of a slot failed: with the server, unless we have let go of it. Returns why. */
static int lose_read(struct fetch *f, struct slot *s)
{
    int rc = s->read.status;
    if (f->session->conn)
        say("reading failed: %s", *s->read.text ? s->read.text : weft_strerror(rc));
    put_away(f, s, 0);
    return rc;
}

/* Take one back. Returns why its read failed, or 0. */
static int take_back(struct fetch *f, struct slot *s)
{
    f->writing--;
    if (s->read.status)
        return lose_read(f, s);
    if (s->result == -EBADMSG && ++f->targets[s->file].wrong == MOST_WRONG)
        fail_file(f, s->file, "arrived wrong again and again");
    else if (s->result == -EBADMSG)
        say("%s: piece %u arrived wrong", f->targets[s->file].entry->name, s->piece);
    else if (s->result)
        fail_file(f, s->file, strerror(-s->result));
    put_away(f, s, s->result == 0);
    return 0;
}

static int take_from_writers(struct fetch *f, int timeout_ms)
{
    int rc = 0;
    for (struct slot *s;
         !rc && f->writing && (s = writers_take(&f->writers, timeout_ms)) != NULL;) {
        timeout_ms = 0;
        f->heard_at = seconds();
        rc = take_back(f, s);
    }
    return rc;
}

/* --- reading ------------------------------------------------------------------------------- */

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
    if (rc < 0)
        return rc;
    s->state = SLOT_READING;
    s->read.status = 0;
    if (is_threaded(f))
        give_to_writers(f, s);
    return 0;
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
                  m->status == STATUS_CHANGED ? "changed on the server since it was started, or gone"
                                              : "cannot be read on the server, which says why");
    put_away(f, s, 0);
    return 0;
}

static int take_windows(struct fetch *f, int timeout_ms)
{
    struct message m;
    int rc;
    for (; (rc = session_message(f->session, timeout_ms, &m)) == 0; timeout_ms = 0) {
        f->heard_at = seconds();
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
        int rc = s->state == SLOT_READING ? weft_op_poll(s->op, &s->read) : 0;
        if (rc == 0)
            continue;
        s->op = 0;
        s->read.status = rc < 0 ? rc : 0;
        if (rc < 0)
            return lose_read(f, s);
        give_to_writers(f, s);
    }
    return 0;
}

/* --- losing the server --------------------------------------------------------------------- */

static int count_slots(const struct fetch *f, int state)
{
    int n = 0;
    for (int i = 0; i < f->depth; i++)
        n += (int)f->slots[i].state == state;
    return n;
}

/* Pieces that are on their way. */
static int count_reading(struct fetch *f)
{
    return count_slots(f, SLOT_READING) + writers_reading(&f->writers);
}

/* Is the server to answer or to send something? */
static int owes(struct fetch *f)
{
    return count_slots(f, SLOT_ASKED) || count_reading(f);
}

static double patience(struct fetch *f)
{
    return SILENCE + count_reading(f) * (double)PIECE / SLOWEST;
}

/* Why the server has to be taken for lost; 0: it has not. */
static int check_server(struct fetch *f)
{
    if (!owes(f) ||
        (seconds() - f->heard_at > QUIET && weft_endpoint_progress(f->session->endpoint, 1) > 0))
        f->heard_at = seconds();
    struct weft_conn_info info;
    int rc = weft_conn_info(f->session->conn, &info);
    if (rc < 0)
        return rc;
    if (info.state == WEFT_CONN_DOWN)
        return info.status < 0 ? info.status : WEFT_EPEER;
    return seconds() - f->heard_at > patience(f) ? WEFT_ETIMEOUT : 0;
}

/* Close the conn; every piece that was not read is TODO again, the others are put into place. */
static void drop_server(struct fetch *f)
{
    session_drop(f->session);
    for (int i = 0; i < f->depth; i++) {
        struct slot *s = &f->slots[i];
        if (s->state == SLOT_READING)
            weft_op_wait(s->op, WEFT_FOREVER, NULL); /* closing the conn has ended it */
        if (s->state == SLOT_ASKED || s->state == SLOT_READING)
            put_away(f, s, 0);
    }
    while (f->writing)
        take_from_writers(f, TURN_MS);
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

/* Let Weft work, and take what came of it. */
static int work(struct fetch *f)
{
    int rc = weft_endpoint_progress(f->session->endpoint, TURN_MS);
    if (rc > 0)
        f->heard_at = seconds();
    if (rc >= 0)
        rc = take_windows(f, 0);
    return rc < 0 ? rc : take_reads(f);
}

static int turn(struct fetch *f)
{
    double heard_at = f->heard_at;
    int rc = take_from_writers(f, 0);
    if (rc >= 0)
        rc = ask_all(f);
    if (rc >= 0 && f->writing && !(is_threaded(f) ? count_slots(f, SLOT_ASKED) : owes(f)))
        rc = take_from_writers(f, TURN_MS);
    else if (rc >= 0)
        rc = is_threaded(f) ? take_windows(f, GLANCE_MS) : work(f);
    return rc < 0 || f->heard_at > heard_at ? rc : check_server(f);
}

/* Files of which nothing is missing need no server. */
static void complete_files(struct fetch *f)
{
    for (uint32_t i = 0; i < f->manifest->nfiles && !f->stop; i++)
        if (f->targets[i].state == FILE_NEW && f->targets[i].todo == 0)
            open_file(f, i);
}

static int run(struct fetch *f)
{
    f->started = f->heard_at = f->moved_at = seconds();
    int rc = 0;
    for (int i = 0; i < THREADS_MOST; i++)
        f->turns[i] = NO_FILE;
    complete_files(f);
    while (rc >= 0 && !f->stop && f->settled < f->manifest->nfiles) {
        if (f->session->conn) {
            rc = turn(f);
            if (rc < 0)
                rc = recover(f, rc);
        } else {
            rc = reach_server_again(f);
        }
        show_progress(f->here, f->manifest->bytes, (double)f->moved / (seconds() - f->started));
    }
    show_progress(0, 0, 0);
    drop_server(f);
    if (f->stop)
        say("giving up: nothing else can be opened, either (ulimit -n); pulling again goes on");
    return rc < 0 ? rc : f->stop;
}

/* --- memory -------------------------------------------------------------------------------- */

/* Give every file its place in memory, one after the other, or only add up what they take. */
static size_t place_files(struct fetch *f)
{
    size_t len = 0, page = (size_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < f->manifest->nfiles; i++) {
        struct target *t = &f->targets[i];
        t->memory = f->buffers ? f->buffers + len : NULL;
        len += (size_t)(t->entry->size + page - 1) / page * page;
    }
    return len;
}

static void place_slots(struct fetch *f)
{
    for (int i = 0; i < f->depth; i++)
        f->slots[i].buffer = f->buffers + (size_t)i * PIECE;
}

/* Have every page there: a program that loads a model has allocated its memory before. */
static void touch(uint8_t *at, size_t len)
{
    for (size_t i = 0, page = (size_t)sysconf(_SC_PAGESIZE); i < len; i += page)
        at[i] = 0;
}

static int open_buffers(struct fetch *f)
{
    size_t len = f->root < 0 ? place_files(f) : (size_t)f->depth * PIECE;
    if (!len)
        return 0;
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        int rc = -errno;
        say("cannot allocate %zu bytes: %s", len, strerror(-rc));
        return rc;
    }
    f->buffers = at;
    f->buffers_len = len;
    madvise(at, len, MADV_HUGEPAGE); /* only faster */
    if (f->root < 0) {
        touch(f->buffers, len);
        place_files(f);
    } else {
        place_slots(f);
    }
    int rc = weft_mem_reg(f->session->endpoint, at, len, NULL, &f->buffers_mem);
    return rc < 0 ? say_weft(rc, "cannot register buffers") : 0;
}

static void close_buffers(struct fetch *f)
{
    if (f->buffers_mem)
        weft_mem_dereg(f->buffers_mem);
    if (f->buffers)
        munmap(f->buffers, f->buffers_len);
}

int fetch_run(struct fetch *f)
{
    int rc = open_buffers(f);
    if (!rc)
        rc = writers_start(&f->writers, f->session->opts->threads);
    if (!rc) {
        rc = run(f);
        writers_stop(&f->writers);
    }
    close_buffers(f);
    return rc;
}
