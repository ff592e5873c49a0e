/* SPDX-License-Identifier: Apache-2.0 */
/* The client: look what is here, fetch the rest, check all of it, report. */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The comparison with cat moves the same bytes, but of large sets only the first gibibyte. */
#define CAT_MOST ((uint64_t)1 << 30)
/* Before a server is asked once more that went in the middle of its manifest. */
#define LOST_PAUSE_US 200000

struct pull {
    const struct pull_opts *opts;
    int root;
    struct session session;
    struct manifest manifest;
    struct target *targets;
    struct fetch fetch;
    int made;       /* the destination, by this pull */
    uint64_t found; /* bytes that were here before */
    char path[sizeof((struct weft_conn_info *)0)->path];
    double total; /* seconds from the first ask to the last file checked */
};

/* --- start --------------------------------------------------------------------------------- */

/* The destination, made if need be, and ours alone. */
static int open_dest(struct pull *p)
{
    const char *dest = p->opts->dest;
    p->root = -1;
    if (p->opts->memory)
        return 0;
    p->made = mkdir(dest, 0777) == 0;
    if (!p->made && errno != EEXIST) {
        say("%s: %s", dest, strerror(errno));
        return -errno;
    }
    p->root = open(dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->root < 0) {
        say("%s: %s", dest, strerror(errno));
        return -errno;
    }
    if (flock(p->root, LOCK_EX | LOCK_NB) == 0)
        return 0;
    say("%s: another pull is writing there", dest);
    close(p->root);
    return -EBUSY;
}

/* The server went between its welcome and the end of its manifest. */
static int is_lost(const struct pull *p, int rc)
{
    struct weft_conn_info info;
    return rc < 0 && rc != WEFT_EPROTO &&
           (weft_conn_info(p->session.conn, &info) < 0 || info.state == WEFT_CONN_DOWN);
}

static int meet_server(struct pull *p)
{
    struct message welcome;
    struct weft_conn_info info;
    double until = seconds() + p->opts->retry;
    int rc;
    for (;;) {
        rc = session_connect(&p->session, &welcome);
        if (!rc)
            rc = session_manifest(&p->session, &welcome, &p->manifest);
        if (!p->session.conn || !is_lost(p, rc) || seconds() > until)
            break;
        session_drop(&p->session);
        usleep(LOST_PAUSE_US);
    }
    if (!rc && weft_conn_info(p->session.conn, &info) >= 0)
        memcpy(p->path, info.path, sizeof p->path);
    return rc;
}

static int look(void *arg, size_t i)
{
    struct pull *p = arg;
    return verify_found(p->root, &p->targets[i]);
}

/* What is here already, of this or an earlier pull? */
static int plan(struct pull *p)
{
    uint32_t n = p->manifest.nfiles;
    p->targets = calloc(n + (size_t)1, sizeof *p->targets);
    if (!p->targets)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        p->targets[i] = (struct target){.entry = &p->manifest.files[i], .fd = -1};
    int rc = for_all(n, look, p);
    for (uint32_t i = 0; i < n; i++) {
        const struct target *t = &p->targets[i];
        p->found += t->found ? t->entry->size : 0;
        for (uint32_t k = 0; !t->found && t->pieces && k < t->entry->npieces; k++)
            p->found += t->pieces[k] == PIECE_HERE ? piece_len(t->entry, k) : 0;
    }
    return rc;
}

/* --- fetch --------------------------------------------------------------------------------- */

static int verify(void *arg, size_t i)
{
    struct pull *p = arg;
    struct target *t = &p->targets[i];
    return t->state == FILE_WHOLE || t->found ? verify_whole(p->root, t) : 0;
}

static int fetch(struct pull *p)
{
    struct fetch *f = &p->fetch;
    *f = (struct fetch){.session = &p->session,
                        .manifest = &p->manifest,
                        .targets = p->targets,
                        .root = p->root,
                        .depth = p->opts->depth,
                        .here = p->found};
    for (uint32_t i = 0; i < p->manifest.nfiles; i++) {
        struct target *t = &p->targets[i];
        f->missing += t->todo;
        f->settled += (uint32_t)t->found;
        t->state = t->found ? FILE_DONE : FILE_NEW;
    }
    int rc = fetch_run(f);
    if (p->opts->verify)
        for_all(p->manifest.nfiles, verify, p);
    p->total = seconds() - f->started;
    return rc;
}

/* --- report -------------------------------------------------------------------------------- */

static double rate(uint64_t bytes, double time)
{
    return time > 0 ? (double)bytes * 1e-9 / time : 0;
}

static uint32_t count(const struct pull *p, enum file_state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->manifest.nfiles; i++)
        n += p->targets[i].state == state;
    return n;
}

static void compare(const struct pull *p, double moved)
{
    struct cat_result cat;
    int rc = cat_through_socket(p->root, &p->manifest, CAT_MOST, &cat);
    if (rc) {
        say("comparison with cat failed: %s", strerror(-rc));
        return;
    }
    double other = rate(cat.bytes, cat.seconds);
    printf("cat      %llu bytes in %.3f s: %.3f GB/s (cat files | socket | file, on this host's "
           "loopback, nothing checked)\n",
           (unsigned long long)cat.bytes, cat.seconds, other);
    if (other > 0 && !(p->opts->limit > 0))
        printf("ratio    %.2f moved / cat\n", moved / other);
}

/* Returns 0 if every file is there and right. */
static int report(const struct pull *p)
{
    const struct fetch *f = &p->fetch;
    uint32_t done = count(p, FILE_DONE);
    double moving = f->moved_at - f->started;
    printf("files    %u of %u done, of %llu bytes\n", done, p->manifest.nfiles,
           (unsigned long long)p->manifest.bytes);
    printf("moved    %llu bytes in %.3f s: %.3f GB/s (%s); %llu bytes were here\n",
           (unsigned long long)f->moved, moving, rate(f->moved, moving), p->path,
           (unsigned long long)p->found);
    if (p->opts->verify)
        printf("verified SHA-256 of every file; moved and verified in %.3f s: %.3f GB/s\n",
               p->total, rate(f->moved, p->total));
    if (done < p->manifest.nfiles)
        return -EIO;
    if (!p->opts->no_compare && !p->opts->memory && f->moved)
        compare(p, rate(f->moved, moving));
    return fflush(stdout) ? -errno : 0;
}

static void clean(struct pull *p)
{
    for (uint32_t i = 0; p->targets && i < p->manifest.nfiles; i++)
        free(p->targets[i].pieces);
    free(p->targets);
    manifest_free(&p->manifest);
}

int pull(const struct pull_opts *opts)
{
    struct pull p = {.opts = opts};
    int rc = open_dest(&p);
    if (rc)
        return rc;
    rc = session_open(&p.session, opts);
    if (!rc) {
        rc = meet_server(&p);
        if (!rc)
            rc = plan(&p);
        if (!rc)
            rc = fetch(&p);
        session_close(&p.session);
    }
    /* The endpoint is closed and the threads are gone: now it is safe to fork. */
    int unfinished = p.fetch.session ? report(&p) : 0;
    clean(&p);
    if (rc && p.made)
        rmdir(opts->dest); /* fails if something has come, which the next pull goes on with */
    if (p.root >= 0)
        close(p.root);
    return rc ? rc : unfinished;
}
