/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that lies, for weights.sh: weights_hostile LIE TRANSPORT. It speaks the messages of
 * examples/weights and offers one file; what is wrong with it is in the table of lies.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/weights/weights.h"

#define FILE_SIZE 100000
#define LONG (200u << 20) /* is not read in the time of a message */

struct lie {
    const char *word;
    const char *name;      /* instead of "aa/evil", of the same length */
    uint64_t manifest_len; /* instead of the true one */
    int manifest_cut;      /* bytes of the manifest that cannot be read */
    int mute;              /* hello is not answered */
    int gone;              /* the conn is closed instead */
    int stops;             /* it is stopped when its manifest, which is so long, is read */
    int wrong;             /* the data is not what its sum says */
    int sha;               /* the SHA-256 is not that of the data */
    int garbage;           /* answers are not messages */
    int window_cut;        /* bytes of the window that cannot be read */
    int busy;              /* so often no window is free; then all is as it should be */
};

static const struct lie lies[] = {
    {.word = "climb", .name = "../evil"},
    {.word = "absolute", .name = "/tevil_"},
    {.word = "dot", .name = "a/./b/c"},
    {.word = "control", .name = "aa\033[2Jb"},
    {.word = "huge", .manifest_len = (uint64_t)1 << 40},
    {.word = "short", .manifest_cut = 8},
    {.word = "mute", .mute = 1},
    {.word = "gone", .gone = 1},
    {.word = "stops", .stops = 1, .manifest_len = LONG},
    {.word = "wrong", .wrong = 1},
    {.word = "sha", .sha = 1},
    {.word = "garbage", .garbage = 1},
    {.word = "window", .window_cut = 1},
    {.word = "busy", .busy = 3},
};

static const struct lie *lie;
static weft_endpoint_t endpoint;
static struct manifest manifest;
static struct weft_remote manifest_remote, data_remote;
static uint8_t data[FILE_SIZE];

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_last_error());
    return 1;
}

/* The manifest, with its lie put in after it was made. */
static int make_manifest(void)
{
    char name[] = "aa/evil";
    memset(data, 'x', sizeof data); /* what no file has that was only made as long */
    uint8_t sum[SUM];
    struct source source = {.name = name, .size = FILE_SIZE, .sums = sum};
    if (digest_memory(data, sizeof data, source.sha) || sum_memory(data, sizeof data, sum))
        return -1;
    source.sha[0] ^= (uint8_t)lie->sha;
    if (manifest_build(&manifest, &source, 1))
        return -1;
    uint8_t *at = memmem(manifest.blob, manifest.len, name, sizeof name);
    if (lie->name)
        memcpy(at, lie->name, sizeof name);
    data[0] ^= (uint8_t)lie->wrong;
    return digest_memory(manifest.blob, manifest.len, manifest.id);
}

static int offer(void *memory, size_t len, struct weft_remote *remote)
{
    weft_mem_t mem;
    int rc = weft_mem_reg(endpoint, memory, len, WEFT_OPTS(weft_mem_opts, .access = WEFT_READ),
                          &mem);
    return rc < 0 ? rc : weft_mem_advertise(mem, memory, len, remote);
}

static int answer(weft_conn_t conn, struct message *m)
{
    if (lie->gone)
        return weft_conn_close(conn);
    if (lie->garbage)
        return weft_post(
            conn,
            WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = "garbage", .notify_len = 7),
            NULL);
    if (m->type == MSG_HELLO) {
        m->type = MSG_WELCOME;
        m->len = lie->manifest_len ? lie->manifest_len : manifest.len;
        m->remote = manifest_remote;
        memcpy(m->digest, manifest.id, DIGEST);
    } else if (m->type == MSG_OPEN) {
        static int asked;
        m->type = MSG_WINDOW;
        m->status = asked++ < lie->busy ? STATUS_BUSY : STATUS_OK;
        m->len = FILE_SIZE;
        m->remote = data_remote;
    } else {
        return 0;
    }
    if (lie->mute || !lie->stops)
        return lie->mute ? 0 : message_post(conn, m);
    uint8_t bytes[MESSAGE_BYTES];
    message_encode(m, bytes);
    return weft_notify(conn, bytes, sizeof bytes, 10000) < 0 ? -1 : raise(SIGSTOP);
}

static int run(void)
{
    for (;;) {
        struct weft_notif notif;
        struct message m;
        if (weft_endpoint_notif(endpoint, WEFT_FOREVER, &notif) < 0)
            return failed("waiting");
        if (message_decode(notif.data, notif.len, &m) == 0)
            answer(notif.conn, &m);
        weft_notif_free(&notif);
    }
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 3 && i < sizeof lies / sizeof *lies; i++)
        if (!strcmp(argv[1], lies[i].word))
            lie = &lies[i];
    if (!lie || make_manifest())
        return 2;
    if (weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = "127.0.0.1:0",
                                     .transport = argv[2], .passive_accept = 1),
                           &endpoint) < 0 ||
        offer(manifest.blob, manifest.len - (size_t)lie->manifest_cut, &manifest_remote) < 0 ||
        offer(data, sizeof data - (size_t)lie->window_cut, &data_remote) < 0)
        return failed("opening");
    if (lie->stops && offer(calloc(1, LONG), LONG, &manifest_remote) < 0)
        return failed("opening");
    printf("listening at 127.0.0.1:%d\n", weft_endpoint_port(endpoint));
    fflush(stdout);
    return run();
}
