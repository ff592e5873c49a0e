/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that break the rules of examples/weights, for weights.sh: weights_stranger ADDRESS
 * TRANSPORT. The server must close each one's conn.
 */
#include <stdio.h>
#include <time.h>

#include "examples/weights/weights.h"

#define WAIT_MS 10000
#define STEP_MS 10
#define CROWD 300
#define CROWDS 5

/* What a stranger sends; the server may close the conn at the last. */
struct breach {
    const char *what;
    struct message messages[3];
    int n;
};

static const struct breach breaches[] = {
    {"a file that there is not", {{.type = MSG_OPEN, .file = 1}}, 1},
    {"a piece that there is not", {{.type = MSG_OPEN, .piece = 1}}, 1},
    {"the last number of a file", {{.type = MSG_OPEN, .file = UINT32_MAX}}, 1},
    {"one window twice", {{.type = MSG_OPEN, .id = 5}, {.type = MSG_OPEN, .id = 5}}, 2},
    {"a window that is not open", {{.type = MSG_CLOSE, .id = 5}}, 1},
    {"one of another id", {{.type = MSG_OPEN, .id = 5}, {.type = MSG_CLOSE, .id = 6}}, 2},
    {"a window closed twice",
     {{.type = MSG_OPEN, .id = 5}, {.type = MSG_CLOSE, .id = 5}, {.type = MSG_CLOSE, .id = 5}},
     3},
    {"an answer", {{.type = MSG_WINDOW}}, 1},
};

static weft_endpoint_t endpoint;

/* 0 when the server has closed the conn. */
static int await_down(weft_conn_t conn)
{
    for (int waited = 0; waited < WAIT_MS; waited += STEP_MS) {
        struct weft_conn_info info;
        if (weft_conn_info(conn, &info) < 0)
            return -1;
        if (info.state == WEFT_CONN_DOWN)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
        weft_endpoint_progress(endpoint, 0);
    }
    return -1;
}

static int try(const char *address, const struct breach *breach)
{
    weft_conn_t conn;
    if (weft_endpoint_connect_to(endpoint, address, NULL, &conn) < 0) {
        fprintf(stderr, "%s: %s\n", address, weft_last_error());
        return 1;
    }
    int rc = breach ? 0 : weft_notify(conn, "not a message", 13, WAIT_MS);
    for (int i = 0; breach && i < breach->n && rc >= 0; i++)
        rc = message_post(conn, &breach->messages[i]);
    int bad = rc < 0 || await_down(conn);
    if (bad)
        fprintf(stderr, "the server goes on with %s\n", breach ? breach->what : "garbage");
    weft_conn_close(conn);
    return bad;
}

/* How many of n answers to a conn say STATUS_BUSY; -1 if one is anything but that or a window. */
static int count_busy(weft_conn_t conn, int n)
{
    int busy = 0;
    while (n) {
        struct weft_notif notif;
        struct message m;
        if (weft_endpoint_notif(endpoint, WAIT_MS, &notif) < 0)
            return -1;
        int ours = notif.conn == conn; /* others are to those before it */
        int rc = message_decode(notif.data, notif.len, &m);
        weft_notif_free(&notif);
        if (!ours)
            continue;
        n--;
        if (rc < 0 || m.type != MSG_WINDOW || (m.status != STATUS_OK && m.status != STATUS_BUSY))
            return -1;
        busy += m.status == STATUS_BUSY;
    }
    return busy;
}

/* Connect and ask for windows 0 to n-1. */
static int ask(const char *address, uint32_t n, weft_conn_t *conn)
{
    int rc = weft_endpoint_connect_to(endpoint, address, NULL, conn);
    for (uint32_t i = 0; i < n && rc >= 0; i++)
        rc = message_post(*conn, &(struct message){.type = MSG_OPEN, .id = i});
    return rc < 0;
}

/* Hold all windows that a client may have: one more is refused, until one is given back. */
static int greedy(const char *address)
{
    weft_conn_t conn;
    if (ask(address, WINDOWS_MOST + 1, &conn))
        return 1;
    int bad = count_busy(conn, WINDOWS_MOST + 1) != 1;
    uint32_t given = 0;
    if (bad)
        fprintf(stderr, "more windows than a client may have\n");
    for (int busy = 1; !bad && busy;) { /* the window that was given back may still be closing */
        message_post(conn, &(struct message){.type = MSG_CLOSE, .id = given++});
        message_post(conn, &(struct message){.type = MSG_OPEN, .id = WINDOWS_MOST + given});
        busy = count_busy(conn, 1);
        bad = busy < 0 || given == WINDOWS_MOST;
        if (bad)
            fprintf(stderr, "a window that was given back cannot be had again\n");
    }
    weft_conn_close(conn);
    return bad;
}

/* Close the last of many windows twice, while the others before it are being closed. */
static int hasty(const char *address)
{
    weft_conn_t conn;
    if (ask(address, WINDOWS_MOST, &conn) || count_busy(conn, WINDOWS_MOST))
        return 1;
    for (uint32_t i = 0; i < WINDOWS_MOST; i++)
        message_post(conn, &(struct message){.type = MSG_CLOSE, .id = i});
    message_post(conn, &(struct message){.type = MSG_CLOSE, .id = WINDOWS_MOST - 1});
    int bad = await_down(conn);
    if (bad)
        fprintf(stderr, "the server goes on with one of many windows closed twice\n");
    weft_conn_close(conn);
    return bad;
}

/* Ask for more windows than a client may have, and leave before they are all open. */
static int crowd(const char *address)
{
    weft_conn_t conn;
    int rc = ask(address, CROWD, &conn);
    /* delivered with those before it; what is no message ends the conn, while windows are opened */
    if (!rc)
        weft_notify(conn, "enough", 6, WAIT_MS);
    weft_conn_close(conn);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = argv[2]), &endpoint) < 0)
        return 1;
    int bad = try(argv[1], NULL);
    for (size_t i = 0; i < sizeof breaches / sizeof *breaches; i++)
        bad |= try(argv[1], &breaches[i]);
    bad |= greedy(argv[1]);
    for (int i = 0; i < CROWDS; i++)
        bad |= hasty(argv[1]);
    for (int i = 0; i < CROWDS; i++)
        bad |= crowd(argv[1]);
    weft_endpoint_close(endpoint);
    return bad;
}
