/* SPDX-License-Identifier: Apache-2.0 */
/* The client's way to the server: connect, hello, the manifest, and all that again after a loss. */
#include "weights.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The server answers at once or not at all: seconds are for a machine under load. */
#define ANSWER_MS 10000
#define LOOK_MS 50 /* so often it is looked whether it is still there */
#define CONNECT_MS 5000
/* Pause between two attempts: doubles from the first to the last. */
#define FIRST_PAUSE 0.05
#define LAST_PAUSE 2.0

int session_open(struct session *s, const struct pull_opts *opts)
{
    memset(s, 0, sizeof *s);
    s->opts = opts;
    /* With one, who plans the reads also moves their bytes: one hand-over less for each. */
    int rc = weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = opts->transport,
                                          .progress_threads = threads_of_weft(opts->threads)),
                                &s->endpoint);
    return rc < 0 ? say_weft(rc, "cannot open an endpoint") : 0;
}

int session_message(struct session *s, int timeout_ms, struct message *m)
{
    for (;;) {
        struct weft_notif notif;
        int rc = weft_endpoint_notif(s->endpoint, timeout_ms, &notif);
        if (rc < 0)
            return rc;
        int ours = notif.conn == s->conn;
        if (ours)
            rc = message_decode(notif.data, notif.len, m);
        weft_notif_free(&notif);
        if (ours)
            return rc;
    }
}

/* Remember why an attempt failed: in Weft's words or, if it was not a call of Weft, in ours. */
static int because(struct session *s, int rc, const char *why)
{
    snprintf(s->why, sizeof s->why, "%s", why ? why : weft_last_error());
    return rc;
}

/* The answer of a server that may go before it gives one. */
static int await_answer(struct session *s, struct message *m)
{
    double until = seconds() + ANSWER_MS * 1e-3;
    for (;;) {
        struct weft_conn_info info;
        int rc = session_message(s, LOOK_MS, m);
        if (rc != WEFT_ETIMEOUT || seconds() > until)
            return rc;
        if (weft_conn_info(s->conn, &info) < 0 || info.state == WEFT_CONN_DOWN)
            return WEFT_EPEER;
    }
}

static int hello(struct session *s, struct message *welcome)
{
    int rc = message_post(s->conn, &(struct message){.type = MSG_HELLO});
    if (rc < 0)
        return because(s, rc, NULL);
    rc = await_answer(s, welcome);
    if (rc == WEFT_EPEER)
        return because(s, rc, "the server went before it answered");
    if (rc == WEFT_ETIMEOUT)
        return because(s, rc, "the server does not answer");
    if (rc == WEFT_EVERSION)
        return because(s, rc, "the server is of another version");
    if (rc < 0 || welcome->type != MSG_WELCOME || welcome->status != STATUS_OK)
        return because(s, WEFT_EPROTO, "what answers is not a weights server");
    return 0;
}

static int attempt(struct session *s, struct message *welcome)
{
    int rc =
        weft_endpoint_connect_to(s->endpoint, s->opts->address,
                                 WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS), &s->conn);
    if (rc < 0) {
        s->conn = 0;
        return because(s, rc, NULL);
    }
    rc = hello(s, welcome);
    if (rc)
        session_drop(s);
    return rc;
}

/* Will another attempt not help? */
static int is_final(int rc)
{
    return rc == WEFT_EPROTO || rc == WEFT_EVERSION || rc == WEFT_EAUTH || rc == WEFT_ENODEV ||
           rc == WEFT_ECONFIG || rc == -EINVAL;
}

int session_connect(struct session *s, struct message *welcome)
{
    double until = seconds() + s->opts->retry, pause = FIRST_PAUSE;
    int said = 0;
    for (;;) {
        int rc = attempt(s, welcome);
        if (rc == 0)
            return 0;
        double left = until - seconds();
        int last = is_final(rc) || left <= 0;
        if (last)
            say("%s: %s", s->opts->address, s->why);
        else if (!said++)
            say("%s: %s; trying for %d s", s->opts->address, s->why, s->opts->retry);
        if (last)
            return rc;
        usleep((useconds_t)((pause < left ? pause : left) * 1e6));
        pause = 2 * pause < LAST_PAUSE ? 2 * pause : LAST_PAUSE;
    }
}

int session_manifest(struct session *s, const struct message *welcome, struct manifest *m)
{
    if (welcome->len == 0 || welcome->len > MANIFEST_MAX) {
        say("the server's manifest has %llu bytes: more than is accepted",
            (unsigned long long)welcome->len);
        return WEFT_EPROTO;
    }
    uint8_t *blob = malloc(welcome->len);
    if (!blob) {
        say("no memory for the server's manifest of %llu bytes", (unsigned long long)welcome->len);
        return WEFT_ELIMIT;
    }
    int64_t got = weft_read(s->conn, blob, welcome->len, &welcome->remote, 0,
                            ANSWER_MS + (int)((double)welcome->len * 1e3 / SLOWEST));
    int rc = got < 0 ? say_weft((int)got, "cannot read the manifest") : 0;
    if (!rc && manifest_parse(m, blob, welcome->len)) {
        say("the server's manifest is malformed, or names a file that is not below it");
        rc = WEFT_EPROTO;
    } else if (!rc && memcmp(m->id, welcome->digest, DIGEST)) {
        say("the server's manifest is not the one that it announced");
        m->blob = NULL;
        manifest_free(m);
        rc = WEFT_EPROTO;
    }
    if (rc)
        free(blob);
    return rc;
}

void session_drop(struct session *s)
{
    if (s->conn)
        weft_conn_close(s->conn);
    s->conn = 0;
}

void session_close(struct session *s)
{
    session_drop(s);
    weft_endpoint_close(s->endpoint);
}
