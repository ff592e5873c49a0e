/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weights: what its files share, grouped by file.
 *
 * The server describes its files in one manifest, which the client reads whole, once a session.
 * Files are cut into pieces of PIECE bytes. For each piece the client asks the server to have it
 * in memory (OPEN), gets a 64-byte remote (WINDOW), reads it into a buffer and writes that to the file, and
 * the read itself carries the notification (CLOSE) that gives the window back.
 */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "weft.h"

/* Unit of asking, reading, checking and resuming. Large enough that asking costs nothing beside
 * moving it, small enough that DEPTH of them is little memory. A multiple of any page size. */
#define PIECE ((uint64_t)4 << 20)
#define SLOWEST 1e6 /* bytes a second: the least that a network is taken to carry */
#define DIGEST 32 /* bytes of a SHA-256 */
/* Bytes of a piece's sum, which finds damage and not malice: who sends the pieces sends the sums.
 * It is GMAC with a key that everybody knows, for libcrypto computes it ten times as fast as any
 * hash, and a pull must not take longer to check than to move. */
#define SUM 16

/* --- say.c: words for the user ------------------------------------------------------------- */

/* Print "weights: ..." to standard error, on its own line even while a progress bar is shown. */
void say(const char *fmt, ...) WEFT_PRINTF(1, 2);
/* The same, with weft_last_error() appended; returns code. */
int say_weft(int code, const char *what);
/* Seconds of the monotonic clock. */
double seconds(void);
/* Show how far we are, and at how many bytes a second; at most ten times a second, and only on a
 * terminal. total 0 wipes it. */
void show_progress(uint64_t done, uint64_t total, double rate);

/* --- threads.c: how many ---------------------------------------------------------------------- */

#define THREADS_MOST 8

/* Threads of a kind for the processors that this process may use: half of them, 2 of 2 or 3. */
int threads_default(void);
/* progress_threads of the endpoint beside so many threads of ours: with one there are none. */
int threads_of_weft(int threads);

/* --- digest.c: sums of pieces, SHA-256 of files ---------------------------------------------- */

/* Sum of memory. */
int sum_memory(const void *data, size_t len, uint8_t out[SUM]);
/* Sum of each piece of a file of this size, one after the other. -EIO if the file is shorter. */
int sum_pieces(int fd, uint64_t size, uint8_t *out);
/* Sum of [offset, offset+len) of a file. -EIO if the file is shorter. */
int sum_range(int fd, uint64_t offset, uint64_t len, uint8_t out[SUM]);
/* SHA-256 of memory. */
int digest_memory(const void *data, size_t len, uint8_t out[DIGEST]);
/* SHA-256 of the first size bytes of a file. -EIO if the file is shorter. */
int digest_file(int fd, uint64_t size, uint8_t out[DIGEST]);

/* Call fn(arg, 0..n-1), spread over the machine's cores. Returns 0 or the first failure. */
int for_all(size_t n, int (*fn)(void *arg, size_t i), void *arg);
/* Cores worth using for hashing. */
int cores(void);

/* --- manifest.c: which files there are ----------------------------------------------------- */

/* Most bytes of manifest that a client accepts: a million files, or 60 TiB in large ones. */
#define MANIFEST_MAX ((uint64_t)256 << 20)
/* A name that ends so belongs to an unfinished file: it is neither served nor accepted. */
#define PART_SUFFIX ".part"

struct entry {
    const char *name; /* relative path, checked by name_ok */
    uint64_t size;
    uint32_t npieces;
    const uint8_t *sha;  /* of the file */
    const uint8_t *sums; /* of the pieces, one after the other */
};

struct manifest {
    uint8_t *blob; /* what travels; the entries point into it */
    size_t len;
    uint8_t id[DIGEST]; /* SHA-256 of blob */
    struct entry *files;
    uint32_t nfiles;
    uint64_t bytes; /* of all files */
};

static inline uint64_t piece_len(const struct entry *e, uint32_t piece)
{
    uint64_t start = piece * PIECE;
    return e->size - start < PIECE ? e->size - start : PIECE;
}

static inline const uint8_t *piece_sum(const struct entry *e, uint32_t piece)
{
    return e->sums + (size_t)piece * SUM;
}

/* Is this a relative path that stays below its root and can be printed? */
int name_ok(const char *name, size_t len);
/* Check a blob from anywhere and list its files. On success the blob belongs to the manifest.
 * -EPROTO if anything in it is wrong: then it stays the caller's, and the manifest is empty. */
int manifest_parse(struct manifest *m, uint8_t *blob, size_t len);
void manifest_free(struct manifest *m);

/* What the server knows of a file beside its entry. */
struct source {
    char *name;
    uint64_t size;
    dev_t dev;
    ino_t ino;
    struct timespec mtime;
    uint8_t sha[DIGEST];
    uint8_t *sums; /* of the pieces */
};
/* Make the manifest of these files, which are sorted by name. */
int manifest_build(struct manifest *m, const struct source *sources, size_t n);

/* --- catalog.c: the served directory ------------------------------------------------------- */

struct catalog {
    int root;               /* the directory */
    struct source *sources; /* in the manifest's order */
    size_t n, cap;
    struct manifest manifest;
};
/* Find and hash everything below dir. */
int catalog_open(struct catalog *c, const char *dir);
void catalog_close(struct catalog *c);
/* Open the i-th file, if it is still the one that was hashed; else -ESTALE or -errno. */
int catalog_file(const struct catalog *c, size_t i);

/* --- message.c: what travels as notifications ----------------------------------------------- */

#define MESSAGE_BYTES 128

enum message_type {
    MSG_HELLO = 1, /* client: what do you have? */
    MSG_WELCOME,   /* server: len and remote of the manifest, digest is its id */
    MSG_OPEN,      /* client: have this piece of this file in memory, call it id */
    MSG_WINDOW,    /* server: len and remote of piece id, or a status */
    MSG_CLOSE      /* client: piece id was read */
};

enum message_status {
    STATUS_OK,
    STATUS_CHANGED,    /* the file is no longer the one in the manifest */
    STATUS_UNREADABLE, /* the server cannot open or read it */
    STATUS_BUSY        /* too many windows are open: ask again when one has been closed */
};

struct message {
    enum message_type type;
    enum message_status status;
    uint32_t id;
    uint32_t file;
    uint32_t piece;
    uint64_t len;
    uint8_t digest[DIGEST];
    struct weft_remote remote;
};

/* Send; it is delivered some time later. */
int message_post(weft_conn_t conn, const struct message *m);
void message_encode(const struct message *m, uint8_t out[MESSAGE_BYTES]);
/* WEFT_EPROTO or WEFT_EVERSION for bytes that are not a message of this version. */
int message_decode(const void *data, size_t len, struct message *m);

/* --- store.c: the destination directory ----------------------------------------------------- */

/* Open name+suffix below root without following any symbolic link. With O_CREAT, directories on
 * the way are made. Returns a descriptor or -errno. */
int store_open(int root, const char *name, const char *suffix, int flags);
/* Give name its final name: take the suffix away. */
int store_finish(int root, const char *name, const char *suffix);

/* --- verify.c: what is here is what the manifest says ----------------------------------------- */

enum file_state {
    FILE_NEW,      /* nothing was done about it in this run */
    FILE_FETCHING, /* pieces are missing */
    FILE_WHOLE,    /* all pieces are in place and right, under the unfinished name */
    FILE_DONE,     /* it has its name; or is in memory */
    FILE_FAILED    /* given up; said why */
};
enum piece_state { PIECE_TODO, PIECE_BUSY, PIECE_HERE };

struct target {
    const struct entry *entry;
    enum file_state state;
    int found;       /* was there, whole and right, before this run */
    uint8_t *pieces; /* enum piece_state */
    uint32_t todo;   /* pieces that are not HERE */
    uint32_t busy;   /* slots that have a piece of it */
    uint32_t scan;   /* no piece before it is TODO */
    int wrong;       /* pieces that arrived and did not have their sum */
    int fd;          /* while it is FETCHING; -1: none */
    uint8_t *memory; /* where it goes if it does not go to a file */
};

/* Find what an earlier run left of a file: sets found, or pieces and todo. Any thread. root -1:
 * nothing can be there. */
int verify_found(int root, struct target *t);
/* Compare the SHA-256 of a file that is WHOLE or was found. It is DONE then, or FAILED; returns 0
 * in any case. Any thread. */
int verify_whole(int root, struct target *t);

/* --- session.c: the client's way to the server ----------------------------------------------- */

struct session {
    const struct pull_opts *opts;
    weft_endpoint_t endpoint;
    weft_conn_t conn; /* 0: none */
    char why[256];    /* the last attempt to connect failed */
};
int session_open(struct session *s, const struct pull_opts *opts);
/* Connect and say hello; tries again, for as long as opts say, while the server is away. */
int session_connect(struct session *s, struct message *welcome);
/* Fetch the manifest that a welcome announces. */
int session_manifest(struct session *s, const struct message *welcome, struct manifest *m);
/* Next message of the server: 0, WEFT_ETIMEOUT, or another code: the server is not to be trusted
 * any more. */
int session_message(struct session *s, int timeout_ms, struct message *m);
/* Let go of the conn, if there is one. */
void session_drop(struct session *s);
void session_close(struct session *s);

/* --- writer.c: pieces are checked and written ------------------------------------------------- */

#define MOST_DEPTH 64

/* One piece, from asking for it to its place. */
struct slot {
    enum { SLOT_FREE, SLOT_ASKED, SLOT_READING, SLOT_WRITING } state;
    uint32_t id, file, piece;
    uint8_t *buffer; /* where the piece arrives */
    size_t len;
    weft_op_t op;               /* 0: the read is over */
    struct weft_op_status read; /* how it ended */
    /* for the writers: */
    const uint8_t *sum; /* what it has to be; NULL: that is not checked */
    int fd;             /* where it goes; -1: it stays in the buffer */
    int result;         /* 0, -EBADMSG: the sum is another, or -errno of writing */
};

/* Threads that check and write while the fetcher reads on. */
struct writers {
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t given, taken;
    struct slot *todo[MOST_DEPTH], *done[MOST_DEPTH];
    int ntodo, ndone;
    struct slot *hands[THREADS_MOST]; /* what each is busy with; NULL: nothing */
    int nhands;
    int reading; /* slots given whose read is not over */
    int stop;
    pthread_t threads[THREADS_MOST];
    int nthreads;
};
int writers_start(struct writers *w, int threads);
/* Hand a slot over, with its read under way or over: it is the writers' until it comes back. */
void writers_give(struct writers *w, struct slot *s);
/* How many of them are waiting for their read. */
int writers_reading(struct writers *w);
/* A slot that is done; NULL if there is none for so long. */
struct slot *writers_take(struct writers *w, int timeout_ms);
/* Nothing may be under way. */
void writers_stop(struct writers *w);

/* --- fetch.c: pieces that are missing are fetched --------------------------------------------- */

struct fetch {
    struct session *session;
    const struct manifest *manifest;
    struct target *targets;
    int root; /* -1: into memory */
    struct writers writers;
    struct slot slots[MOST_DEPTH];
    int depth;
    uint8_t *buffers; /* one for each slot, or all files: registered once */
    size_t buffers_len;
    weft_mem_t buffers_mem;
    uint32_t turns[THREADS_MOST]; /* files of which pieces are asked for in turn; or NO_FILE */
    int turn;                     /* the next of them */
    uint32_t cursor;              /* no file before it has a piece to ask for, but for those */
    uint32_t next_id;
    int writing;              /* slots that the writers have */
    uint64_t missing;         /* pieces that are not in place */
    uint32_t settled;         /* files that are WHOLE, DONE or FAILED */
    int stop;                 /* why no file can be opened any more */
    double asked_at;          /* with a limit: when the next piece may be asked for */
    double heard_at;          /* when something last happened */
    int barren;               /* losses of the server in a row without a piece between them */
    uint64_t moved;           /* bytes read from the server */
    uint64_t here;            /* bytes that are in place */
    double started, moved_at; /* first ask, last piece in place */
};
/* Fetch until every file is whole or failed. */
int fetch_run(struct fetch *f);

/* --- cat.c: the thing to compare with -------------------------------------------------------- */

struct cat_result {
    uint64_t bytes;
    double seconds;
};
/* Send up to limit bytes of the files as `cat FILES | nc` would, over one loopback TCP socket,
 * into a scratch file below root. */
int cat_through_socket(int root, const struct manifest *m, uint64_t limit, struct cat_result *out);

/* --- arena.c: memory for windows ---------------------------------------------------------------- */

#define SLOTS 256 /* windows of all clients: 1 GiB, of which as much is used as were open at once */

int arena_open(void);
/* Where a slot begins; it is PIECE bytes long. */
uint8_t *arena_slot(int slot);
/* No slot takes memory until it is written to again. */
void arena_forget(void);

/* --- loader.c: windows are opened and closed -------------------------------------------------- */

#define WINDOWS_MOST 128 /* of one client: twice the depth it may have */

struct window {
    enum { WINDOW_FREE, WINDOW_OPENING, WINDOW_OPEN, WINDOW_CLOSING } state;
    weft_conn_t conn; /* whose it is; 0: nobody's */
    uint32_t id, file, piece;
    weft_mem_t mem; /* 0: not registered */
};

struct loader {
    const struct catalog *catalog;
    weft_endpoint_t endpoint;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t given;
    struct window windows[SLOTS]; /* each at the arena's slot of that number */
    int queue[SLOTS];             /* a ring: [head, tail) are to be opened or closed */
    uint32_t head, tail;
    int stop;
    pthread_t threads[THREADS_MOST];
    int nthreads; /* 0: whoever calls does the work */
};
int loader_start(struct loader *l, const struct catalog *catalog, weft_endpoint_t endpoint,
                 int threads);
/* A conn asks for a window, and hears when it is open, or why not. WEFT_EPROTO if it holds one of
 * that id. */
int loader_open(struct loader *l, weft_conn_t conn, const struct message *ask);
/* A conn gives a window back. WEFT_EPROTO if it is not open. */
int loader_close(struct loader *l, weft_conn_t conn, uint32_t id);
/* Close all windows of a conn, which is closed itself: then no read is under way. */
void loader_drop(struct loader *l, weft_conn_t conn);
/* There is no client: give the memory of windows back. Returns whether all are closed, and it is. */
int loader_rest(struct loader *l);
/* When all conns were dropped; what is queued is done first. */
void loader_stop(struct loader *l);

/* --- serve.c, pull.c: the two commands ------------------------------------------------------- */

struct serve_opts {
    const char *dir;
    const char *listen;
    const char *transport;
    int threads; /* that read files; 1: none but the one that answers */
    double idle; /* seconds without a client after which memory of windows is given back */
};
int serve(const struct serve_opts *opts);

struct pull_opts {
    const char *address;
    const char *dest;
    const char *transport;
    int depth;    /* pieces in flight */
    int threads;  /* that check and write; 1: the fetcher moves the bytes, and no thread of Weft */
    int retry;    /* seconds to try to reach a server that is away */
    double limit; /* bytes a second; 0: as fast as it goes */
    int memory;   /* into memory instead of files; dest is NULL */
    int no_check; /* take what arrives for right */
    int verify;   /* compare SHA-256 of whole files */
    int no_compare; /* leave out the comparison with cat */
};
int pull(const struct pull_opts *opts);

#endif
