/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server: lets clients read pieces of its files.
 *
 * One thread keeps the list of clients and answers their messages; windows are the loader's.
 * Nothing of a client is trusted: it names files and pieces by number, and may hold a bounded
 * number of windows.
 */
#include "weights.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Conns that died are looked for this often, and a request to stop is noticed. */
#define SWEEP_MS 200

struct client {
    weft_conn_t conn;
    struct client *next;
};

struct server {
    struct catalog catalog;
    weft_endpoint_t endpoint;
    weft_mem_t manifest;
    struct weft_remote manifest_remote;
    struct client *clients;
    double idle, left_at; /* seconds: see serve_opts; when the last client went, 0: it has been seen to */
    struct loader loader;
};

/* --- clients ------------------------------------------------------------------------------- */

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
    c->next = s->clients;
    s->clients = c;
    return c;
}

/* The conn goes first: then no read is under way that closing a window would have to wait for. */
static void drop_client(struct server *s, struct client *c)
{
    weft_conn_close(c->conn);
    loader_drop(&s->loader, c->conn);
    struct client **link = &s->clients;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    free(c);
    s->left_at = seconds();
}

static void sweep(struct server *s)
{
    for (struct client *c = s->clients, *next; c; c = next) {
        struct weft_conn_info info;
        next = c->next;
        if (weft_conn_info(c->conn, &info) < 0 || info.state == WEFT_CONN_DOWN)
            drop_client(s, c);
    }
    if (!s->clients && s->left_at > 0 && seconds() - s->left_at >= s->idle && loader_rest(&s->loader))
        s->left_at = 0;
}

/* --- messages ------------------------------------------------------------------------------ */

static int on_hello(struct server *s, struct client *c)
{
    struct message m = {
        .type = MSG_WELCOME, .len = s->catalog.manifest.len, .remote = s->manifest_remote};
    memcpy(m.digest, s->catalog.manifest.id, DIGEST);
    return message_post(c->conn, &m);
}

static int on_open(struct server *s, struct client *c, const struct message *m)
{
    const struct manifest *all = &s->catalog.manifest;
    if (m->file >= all->nfiles || m->piece >= all->files[m->file].npieces)
        return WEFT_EPROTO;
    return loader_open(&s->loader, c->conn, m);
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
        return loader_close(&s->loader, c->conn, m.id);
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
    int rc = weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = opts->listen,
                                          .transport = opts->transport, .passive_accept = 1,
                                          .progress_threads = threads_of_weft(opts->threads)),
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

/* From the first client to the last window. */
static int work(struct server *s, const struct serve_opts *opts)
{
    int rc = loader_start(&s->loader, &s->catalog, s->endpoint, opts->threads);
    if (rc)
        return rc;
    rc = announce(s);
    if (!rc)
        rc = run(s);
    while (s->clients)
        drop_client(s, s->clients);
    loader_stop(&s->loader);
    return rc;
}

int serve(const struct serve_opts *opts)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    s->idle = opts->idle;
    int rc = catalog_open(&s->catalog, opts->dir);
    if (rc) {
        free(s);
        return rc;
    }
    rc = arena_open();
    if (!rc)
        rc = listen_for_clients(s, opts);
    if (!rc)
        rc = work(s, opts);
    if (s->endpoint)
        weft_endpoint_close(s->endpoint);
    catalog_close(&s->catalog);
    free(s);
    return rc;
}
