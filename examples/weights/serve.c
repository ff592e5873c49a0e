/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server: maps pieces of its files and lets clients read them.
 *
 * One thread answers messages and lets Weft work. Nothing of a client is trusted: it names files and pieces by
 * number, and may hold a bounded number of windows.
 */
#include "weights.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WINDOWS_MOST 128 /* of one client: twice the depth it may have */
#define SLOTS 1024       /* windows of all clients: 4 GiB of addresses */
#define LEAST_PAGE 4096  /* of any machine */
/* Conns that died are looked for this often, and a request to stop is noticed. */
#define SWEEP_MS 200

struct window {
    int slot; /* -1: not in use */
    uint32_t id;
    weft_mem_t mem;
};

struct client {
    weft_conn_t conn;
    struct window windows[WINDOWS_MOST];
    struct client *next;
};

struct server {
    struct catalog catalog;
    weft_endpoint_t endpoint;
    weft_mem_t manifest;
    struct weft_remote manifest_remote;
    struct client *clients;
    int free_slots[SLOTS];
    int nfree;
};

/* --- windows ------------------------------------------------------------------------------- */

/* Where windows are mapped, SLOTS times PIECE bytes: one range, so that a fault in it is known. */
static uint8_t *arena;

static uint8_t *slot_at(int slot)
{
    return arena + (size_t)slot * PIECE;
}

/* Put nothing into a slot. */
static int blank(void *at, size_t len)
{
    void *p =
        mmap(at, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return p == MAP_FAILED ? -errno : 0;
}

/*
 * A file that was cut short under our mapping: readers get zeros, which its digest gives away, and
 * the next window of it is refused. Anywhere else the fault is a bug and ends the process.
 */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    uint8_t *at = info->si_addr;
    if (at >= arena && at < arena + SLOTS * PIECE) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        if (blank(at - (uintptr_t)at % page, page) == 0)
            return;
    }
    signal(sig, SIG_DFL);
}

static int arena_open(struct server *s)
{
    arena =
        mmap(NULL, SLOTS * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED)
        return -errno;
    while (s->nfree < SLOTS) {
        s->free_slots[s->nfree] = SLOTS - 1 - s->nfree;
        s->nfree++;
    }
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    return sigaction(SIGBUS, &action, NULL) ? -errno : 0;
}

static void window_close(struct server *s, struct window *w)
{
    weft_mem_dereg(w->mem);
    blank(slot_at(w->slot), PIECE);
    s->free_slots[s->nfree++] = w->slot;
    w->slot = -1;
}

/* Have the pages of a mapping in the table at once, and not by a fault for every few of them; but
 * do not wait for a disk: then have it read ahead. */
static void get_ready(uint8_t *at, size_t len)
{
    static unsigned char resident[PIECE / LEAST_PAGE];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (len + page - 1) / page;
    int here = mincore(at, len, resident) == 0 && !memchr(resident, 0, pages);
    madvise(at, len, here ? MADV_POPULATE_READ : MADV_WILLNEED);
}

/* Map a piece into w's slot and register it. Returns what the client is to hear. */
static enum message_status window_map(struct server *s, struct window *w, struct message *m)
{
    const struct entry *e = &s->catalog.manifest.files[m->file];
    int fd = catalog_file(&s->catalog, m->file);
    if (fd < 0)
        return fd == -ESTALE || fd == -ENOENT ? STATUS_CHANGED : STATUS_UNREADABLE;
    uint8_t *at = slot_at(w->slot);
    m->len = piece_len(e, m->piece);
    void *map = mmap(at, m->len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)(m->piece * PIECE));
    close(fd);
    if (map == MAP_FAILED)
        return STATUS_UNREADABLE;
    get_ready(at, m->len);
    int rc = weft_mem_reg(s->endpoint, at, m->len, WEFT_OPTS(weft_mem_opts, .access = WEFT_READ),
                          &w->mem);
    if (rc >= 0) {
        rc = weft_mem_advertise(w->mem, at, m->len, &m->remote);
        if (rc >= 0)
            return STATUS_OK;
        weft_mem_dereg(w->mem);
    }
    say_weft(rc, e->name);
    return STATUS_UNREADABLE;
}

static enum message_status window_open(struct server *s, struct window *w, struct message *m)
{
    if (!w || !s->nfree)
        return STATUS_BUSY;
    w->slot = s->free_slots[--s->nfree];
    w->id = m->id;
    enum message_status status = window_map(s, w, m);
    if (status != STATUS_OK) {
        blank(slot_at(w->slot), PIECE);
        s->free_slots[s->nfree++] = w->slot;
        w->slot = -1;
    }
    return status;
}

/* --- clients ------------------------------------------------------------------------------- */

static struct window *find_window(struct client *c, uint32_t id)
{
    for (int i = 0; i < WINDOWS_MOST; i++)
        if (c->windows[i].slot >= 0 && c->windows[i].id == id)
            return &c->windows[i];
    return NULL;
}

static struct window *free_window(struct client *c)
{
    for (int i = 0; i < WINDOWS_MOST; i++)
        if (c->windows[i].slot < 0)
            return &c->windows[i];
    return NULL;
}

static struct client *find_client(struct server *s, weft_conn_t conn)
{
    struct client *c = s->clients;
    while (c && c->conn != conn)
        c = c->next;
    if (c)
        return c;
    c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->conn = conn;
    for (int i = 0; i < WINDOWS_MOST; i++)
        c->windows[i].slot = -1;
    c->next = s->clients;
    s->clients = c;
    return c;
}

/* The conn goes first: then no read is under way that closing a window would have to wait for. */
static void drop_client(struct server *s, struct client *c)
{
    weft_conn_close(c->conn);
    for (int i = 0; i < WINDOWS_MOST; i++)
        if (c->windows[i].slot >= 0)
            window_close(s, &c->windows[i]);
    struct client **link = &s->clients;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    free(c);
}

static void sweep(struct server *s)
{
    for (struct client *c = s->clients, *next; c; c = next) {
        struct weft_conn_info info;
        next = c->next;
        if (weft_conn_info(c->conn, &info) < 0 || info.state == WEFT_CONN_DOWN)
            drop_client(s, c);
    }
}

/* --- messages ------------------------------------------------------------------------------ */

static int on_hello(struct server *s, struct client *c)
{
    struct message m = {
        .type = MSG_WELCOME, .len = s->catalog.manifest.len, .remote = s->manifest_remote};
    memcpy(m.digest, s->catalog.manifest.id, DIGEST);
    return message_post(c->conn, &m);
}

static int on_open(struct server *s, struct client *c, struct message *m)
{
    const struct manifest *all = &s->catalog.manifest;
    if (m->file >= all->nfiles || m->piece >= all->files[m->file].npieces || find_window(c, m->id))
        return WEFT_EPROTO;
    m->type = MSG_WINDOW;
    m->status = window_open(s, free_window(c), m);
    return message_post(c->conn, m);
}

static int on_close(struct server *s, struct client *c, const struct message *m)
{
    struct window *w = find_window(c, m->id);
    if (!w)
        return WEFT_EPROTO;
    window_close(s, w);
    return 0;
}

static int on_message(struct server *s, struct client *c, const struct weft_notif *notif)
{
    struct message m;
    int rc = message_decode(notif->data, notif->len, &m);
    if (rc == WEFT_EVERSION)
        return on_hello(s, c); /* in our version, so that the client can say what is wrong */
    if (rc < 0)
        return rc;
    switch (m.type) {
    case MSG_HELLO:
        return on_hello(s, c);
    case MSG_OPEN:
        return on_open(s, c, &m);
    case MSG_CLOSE:
        return on_close(s, c, &m);
    default:
        return WEFT_EPROTO;
    }
}

/* --- the process --------------------------------------------------------------------------- */

static volatile sig_atomic_t stopping;

static void on_stop(int sig)
{
    (void)sig;
    stopping = 1;
}

static int run(struct server *s)
{
    double swept = 0;
    while (!stopping) {
        struct weft_notif notif;
        int rc = weft_endpoint_notif(s->endpoint, SWEEP_MS, &notif);
        if (rc >= 0) {
            struct client *c = find_client(s, notif.conn);
            if (c && on_message(s, c, &notif) < 0)
                drop_client(s, c);
            weft_notif_free(&notif);
        } else if (rc != WEFT_ETIMEOUT) {
            return say_weft(rc, "the endpoint failed");
        }
        if (seconds() - swept < SWEEP_MS / 1000.0)
            continue;
        sweep(s);
        swept = seconds();
    }
    return 0;
}

static int announce(struct server *s)
{
    uint8_t metadata[WEFT_METADATA_MAX];
    struct weft_metadata_info info;
    int len = weft_endpoint_metadata(s->endpoint, metadata, sizeof metadata);
    int rc = len < 0 ? len : weft_metadata_parse(metadata, (size_t)len, &info);
    if (rc < 0)
        return say_weft(rc, "cannot tell where the endpoint listens");
    const char *form = strchr(info.host, ':') ? "[%s]:%u\n" : "%s:%u\n";
    printf("serving %u files, %llu bytes at ", s->catalog.manifest.nfiles,
           (unsigned long long)s->catalog.manifest.bytes);
    printf(form, info.host, info.port);
    return fflush(stdout) ? -errno : 0;
}

static int listen_for_clients(struct server *s, const struct serve_opts *opts)
{
    /* One thread for all: another one would run on every unmapping only to forget the pages. */
    int rc = weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = opts->listen,
                                          .transport = opts->transport, .passive_accept = 1,
                                          .progress_threads = WEFT_PROGRESS_CALLER),
                                &s->endpoint);
    if (rc < 0)
        return say_weft(rc, "cannot open an endpoint");
    struct manifest *m = &s->catalog.manifest;
    rc = weft_mem_reg(s->endpoint, m->blob, m->len, WEFT_OPTS(weft_mem_opts, .access = WEFT_READ),
                      &s->manifest);
    if (rc >= 0)
        rc = weft_mem_advertise(s->manifest, m->blob, m->len, &s->manifest_remote);
    return rc < 0 ? say_weft(rc, "cannot register the manifest") : 0;
}

int serve(const struct serve_opts *opts)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    int rc = catalog_open(&s->catalog, opts->dir);
    if (rc) {
        free(s);
        return rc;
    }
    rc = arena_open(s);
    if (!rc)
        rc = listen_for_clients(s, opts);
    if (!rc)
        rc = announce(s);
    if (!rc)
        rc = run(s);
    while (s->clients)
        drop_client(s, s->clients);
    if (s->endpoint)
        weft_endpoint_close(s->endpoint);
    catalog_close(&s->catalog);
    free(s);
    return rc;
}
