/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint: connect, register, move bytes.
 *
 * An endpoint owns registered memory (mems) and connections (conns) to other endpoints. A conn
 * picks the best path to its peer by itself and can say which it took. Operations on a conn are
 * asynchronous (weft_post, then weft_op_poll or weft_op_wait) or blocking (weft_write and so on).
 *
 * Handles are 64-bit values with a generation, never pointers: using one that was closed, is
 * foreign or is of another kind gives WEFT_EHANDLE. 0 is never a handle. A handle belongs to the
 * process that made it: to a child of fork its parent's are stale, and it opens its own (over tcp and
 * local: what a child may do with a vendor's library is that library's to say).
 *
 * Threads. Every function may be called from any thread, on the same objects at once.
 *
 * Progress. Either the endpoint's own threads move the bytes (progress_threads >= 1; they sleep
 * when idle, and leave the signals of the process to the caller's), or only calls into Weft do
 * (WEFT_PROGRESS_CALLER): weft_endpoint_progress and every call that waits. In the second mode a
 * process that is the target of one-sided operations must keep calling weft_endpoint_progress.
 *
 * Order. Operations of a conn are not ordered with each other, with two exceptions: the messages
 * of SEND are matched with the peer's RECVs in the order posted, and a notification arrives after
 * the data of the operation that carries it (and notifications arrive in the order sent).
 * To order two operations, wait for the first: "done" always means delivered at the target.
 *
 * Time. Every timeout is in milliseconds; 0 and less does not wait; WEFT_FOREVER waits as long as the
 * peer lives. A peer that dies ends its operations with WEFT_EPEER; one that is stopped is alive.
 */
#ifndef WEFT_ENDPOINT_H
#define WEFT_ENDPOINT_H

#include "weft/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t weft_endpoint_t;
typedef uint64_t weft_conn_t;
typedef uint64_t weft_mem_t;
typedef uint64_t weft_op_t;

#define WEFT_FOREVER (-1) /* this number alone: what is left of a deadline that has passed is no forever */

/* --- endpoint ------------------------------------------------------------------------------ */

/* weft_endpoint_opts.progress_threads: only calls into Weft make progress. */
#define WEFT_PROGRESS_CALLER (-1)

struct weft_endpoint_opts {
    size_t struct_size;
    /* Where to accept connections: "HOST:PORT", "HOST", ":PORT" (all interfaces, IPv4), "[V6]:PORT" ("[::]:PORT": all, IPv6).
     * HOST is a numeric address or a name, of which an IPv4 address is taken if it has one. Port 0 or none: any free one. NULL: WEFT_LISTEN. */
    const char *listen;
    /* Comma-separated names, best first: only these are used, and each has to open. "": all that do.
     * NULL: WEFT_TRANSPORT ("auto"). */
    const char *transport;
    /* Name of the GPU backend, whose library is loaded and started. NULL: WEFT_GPU ("auto": the one whose library the
     * process has loaded, by the time that it opens the endpoint or names memory to it; nothing is loaded). A backend that
     * was named and finds no device: WEFT_ENODEV. */
    const char *gpu;
    /* 1 to 64: that many threads; WEFT_PROGRESS_CALLER; 0: WEFT_PROGRESS_THREADS. Where processors move the bytes
     * (tcp, local) a transfer is spread over up to 8 of them (WEFT_LANES), and threads that wait in Weft help; RDMA nics need no more than one. */
    int progress_threads;
    /* Accepted conns are not queued for weft_endpoint_accept: they work at once and are listed by
     * weft_endpoint_conns. One that goes down is closed by the endpoint: its handle is then stale. */
    int passive_accept;
    /* Text in the form of WEFT_FAULT: wraps every nic for tests. NULL: WEFT_FAULT (""). */
    const char *fault;
    /*
     * Any bytes, WEFT_SECRET_MIN to WEFT_SECRET_MAX of them, copied. NULL: WEFT_SECRET_FILE (""). With
     * a secret only endpoints that have the same one can connect, in either direction; each proves
     * to the other that it knows it, and the secret itself never travels. All others fail with
     * WEFT_EAUTH on both sides. WEFT_EUNSUPPORTED: this build or machine has no libcrypto.
     * It keeps strangers out. It does not encrypt, and does not keep who is between two endpoints
     * from changing the bytes of their transfers: where someone may be, use WireGuard or IPsec.
     */
    const void *secret;
    size_t secret_len;
    /*
     * What its devices are to be near to: the PCI address of a GPU ("0000:3b:00.0"), or memory
     * ("numa:1"). NULL: WEFT_NEAR (""); "": where the calling thread may run. Of a transport with several
     * devices those are used that are as near as the nearest, unless WEFT_RAILS_FAR says otherwise.
     */
    const char *near;
};
#define WEFT_SECRET_MIN 16
#define WEFT_SECRET_MAX 4096

/* Open an endpoint. opts may be NULL. The endpoint listens when this returns. */
WEFT_API int weft_endpoint_open(const struct weft_endpoint_opts *opts, weft_endpoint_t *endpoint);

/*
 * Close an endpoint with all its conns, mems and operations: operations end with WEFT_ECLOSED,
 * waiting calls return, peers see WEFT_EPEER. Registered memory is not touched after this returns. Messages and notifications of up
 * to WEFT_EAGER bytes that are under way have up to WEFT_CANCEL_GRACE to arrive; others that were posted may not have begun (a conn has
 * up to 1024 of each under way, and WEFT_EAGER_WINDOW bytes): wait for an operation that has to arrive. The same holds for weft_conn_close. A
 * process that ends without it may leave a peer waiting to hear that its last message was taken: that
 * operation of the peer then ends with WEFT_EPEER, though the message has arrived. WEFT_ETIMEOUT, after 10 s and what it needs of WEFT_CANCEL_GRACE: it
 * is closed, but a GPU has not ended a copy (what is queued before it never ends): memory that was registered, or named, stays in
 * use until the process ends, and who waits for an operation of that copy is told WEFT_ETIMEOUT.
 */
WEFT_API int weft_endpoint_close(weft_endpoint_t endpoint);

/*
 * The bytes with which another process connects to this endpoint: carry them there by any means.
 * Returns the length (at most WEFT_METADATA_MAX); writes nothing if cap is smaller. buf may be
 * NULL when cap is 0.
 */
#define WEFT_METADATA_MAX 512
WEFT_API int weft_endpoint_metadata(weft_endpoint_t endpoint, void *buf, size_t cap);

struct weft_metadata_info {
    uint8_t uuid[16]; /* of the endpoint */
    uint32_t pid;
    uint16_t port;
    char host[64]; /* first address at which it listens, numeric */
    char hostname[64];
};
/* Decode metadata. WEFT_EPROTO if it is not metadata, WEFT_EVERSION if of another version. */
WEFT_API int weft_metadata_parse(const void *metadata, size_t len,
                                 struct weft_metadata_info *info);

/* Port on which the endpoint listens. */
WEFT_API int weft_endpoint_port(weft_endpoint_t endpoint);

/* Make progress; if nothing has happened since this was called last (by any thread, in any call),
 * sleep up to timeout_ms for something. Returns how much happened (0 is not an error). With progress
 * threads it only waits. */
WEFT_API int weft_endpoint_progress(weft_endpoint_t endpoint, int timeout_ms);

/* --- conn ---------------------------------------------------------------------------------- */

struct weft_connect_opts {
    size_t struct_size;
    int timeout_ms;        /* 0: WEFT_CONNECT_TIMEOUT; WEFT_FOREVER is not allowed */
    const char *transport; /* as in weft_endpoint_opts, for this conn only */
    int nonblocking;       /* return at once; weft_conn_wait tells when it is up */
};

/* Connect to the endpoint that has this metadata, and to no other that may have its addresses now:
 * then WEFT_EREFUSED. opts may be NULL. Operations may be posted on the conn as soon as it exists;
 * they start when it is up. */
WEFT_API int weft_endpoint_connect(weft_endpoint_t endpoint, const void *metadata, size_t len,
                                   const struct weft_connect_opts *opts, weft_conn_t *conn);
/* The same by address: "HOST:PORT", "[V6]:PORT". A name is resolved before the call's deadline begins, and blocks as long as that
 * takes, also if nonblocking; -EINVAL if it is not. Of its addresses an IPv4 one is taken if there is one. */
WEFT_API int weft_endpoint_connect_to(weft_endpoint_t endpoint, const char *address,
                                      const struct weft_connect_opts *opts, weft_conn_t *conn);
/* Wait until a conn is up: 0; WEFT_ETIMEOUT: not yet; else why it failed (WEFT_EPEER if the peer did not answer in time). Its
 * operations then end with a code of the scope WEFT_SCOPE_CONN or wider: WEFT_EPEER where the reason has a narrower one. */
WEFT_API int weft_conn_wait(weft_conn_t conn, int timeout_ms);

/* Next conn that a peer opened to this endpoint. WEFT_ETIMEOUT if there was none in time. Up to
 * WEFT_BACKLOG wait to be taken; further peers are refused, but for those that are in their handshake when it fills up.
 * -EINVAL: the endpoint has passive_accept. */
WEFT_API int weft_endpoint_accept(weft_endpoint_t endpoint, int timeout_ms, weft_conn_t *conn);

/* Handles of all conns of an endpoint. Returns how many there are; fills list[0..min(that, max)). */
WEFT_API int weft_endpoint_conns(weft_endpoint_t endpoint, weft_conn_t *list, int max);

/* Close a conn. Its operations end with WEFT_ECLOSED, the peer's with WEFT_EPEER. A conn that
 * died by itself stays, as a handle that tells why, until this is called. To reconnect, connect
 * again: it gives another handle. WEFT_ETIMEOUT, after 10 s and what it needs of WEFT_CANCEL_GRACE: a
 * GPU has not ended a copy; until it has, memory that was named stays in use. */
WEFT_API int weft_conn_close(weft_conn_t conn);

enum weft_conn_state { WEFT_CONN_CONNECTING, WEFT_CONN_UP, WEFT_CONN_DOWN };

struct weft_conn_info {
    enum weft_conn_state state;
    int status;    /* why it is down: a code, else 0 */
    int initiator; /* this side connected */
    int same_host; /* peer runs on this host (boot id and namespaces agree) */
    int links;     /* that are alive */
    int links_of;  /* and how many there are: those that are lost, or could not be made, too */
    uint32_t peer_pid;
    uint8_t peer_uuid[16];
    char transport[16]; /* "tcp" */
    char path[96];      /* "tcp, 2 links, 127.0.0.1" */
    char why[256];      /* why this path and no better one, or why the conn is down */
    char peer[96];      /* "host:port" of the peer's endpoint, or where it came from */
};
WEFT_API int weft_conn_info(weft_conn_t conn, struct weft_conn_info *info);

/* Counters, always on. Bytes are payload, of this side's operations: what it serves counts at the peer. */
#define WEFT_CONN_STATS_MAP(XX)                                                                   \
    XX(ops_posted, "operations posted")                                                           \
    XX(ops_done, "operations that ended well")                                                    \
    XX(ops_failed, "operations that ended with an error, canceled ones included")                 \
    XX(bytes_written, "bytes written to the peer")                                                \
    XX(bytes_read, "bytes read from the peer")                                                    \
    XX(bytes_sent, "bytes of messages and notifications sent")                                    \
    XX(bytes_received, "bytes of messages and notifications received")                            \
    XX(msgs_sent, "messages and notifications sent")                                              \
    XX(msgs_received, "messages and notifications received")                                      \
    XX(msgs_large, "messages moved by rendezvous, received ones")                                 \
    XX(msgs_unexpected, "messages that arrived before their receive was posted")                  \
    XX(cmds_posted, "commands handed to transports")                                              \
    XX(cmds_resent, "commands handed over again after a link died")                               \
    XX(links_lost, "links that died")                                                             \
    XX(bytes_mapped, "of bytes written and read, those that this side copied to and from mapped " \
                     "memory of GPUs")

struct weft_conn_stats {
#define WEFT_STATS_FIELD(name, text) uint64_t name;
    WEFT_CONN_STATS_MAP(WEFT_STATS_FIELD)
#undef WEFT_STATS_FIELD
};
WEFT_API int weft_conn_stats(weft_conn_t conn, struct weft_conn_stats *stats);

/* --- memory -------------------------------------------------------------------------------- */

#define WEFT_READ 1u   /* peers may read */
#define WEFT_WRITE 2u  /* peers may write */
#define WEFT_ATOMIC 4u /* peers may add atomically */

struct weft_mem_opts {
    size_t struct_size;
    uint32_t access; /* WEFT_READ | WEFT_WRITE | WEFT_ATOMIC; 0: all three */
};

/*
 * Register memory: host memory, or a GPU's (found by asking the endpoint's GPU backend). What a nic does not reach goes
 * through pinned memory of the host (WEFT_STAGE_CHUNK, WEFT_STAGE_SLOTS), at this end, at the peer's, or at both. Over local a
 * peer maps such memory, all of the allocation that it lies in, and writes and reads by itself (WEFT_IPC=0: it does not). The
 * initiator's own memory may then be a GPU's, or registered memory of the host, if its process uses a GPU or names a
 * backend: Weft pins it when it is first used so. It stays the caller's and must stay mapped until weft_mem_dereg.
 * Registering a range once more, with the same access, costs nothing: both mems share one registration, which ends with
 * the last of them.
 * Read-only memory may be registered with WEFT_READ. Refused (-EFAULT) is memory of the host that is not mapped; what is mapped
 * without the access that it is registered with: so read-only memory where that has WEFT_WRITE or WEFT_ATOMIC (Linux 6.11 and newer; over verbs, always); and
 * what begins in memory of a GPU and is not all of it allocated on that one. Pages stay
 * accessible as registered (a file that they are mapped from does not become shorter): the first to touch one that is not may
 * be this process, which gets SIGSEGV or SIGBUS; where it is the kernel or a nic, the operation ends with -EFAULT, or the
 * conn does.
 */
WEFT_API int weft_mem_reg(weft_endpoint_t endpoint, void *addr, size_t len,
                          const struct weft_mem_opts *opts, weft_mem_t *mem);
/* End a registration. When this returns 0, peers can no longer touch the memory through this mem;
 * it waits for those that are touching it, but no longer than WEFT_CANCEL_GRACE: WEFT_ETIMEOUT says
 * that the memory must stay mapped until weft_conn_close of their conn has returned 0 (the handle is gone all the same).
 * The mem must not be in use by this side's own operations (-EBUSY). */
WEFT_API int weft_mem_dereg(weft_mem_t mem);

/* 64 bytes that let a peer's endpoint address a piece of this endpoint's memory. Plain data:
 * carry it by any means. Good until the mem is deregistered. */
struct weft_remote {
    uint8_t bytes[64];
};

struct weft_remote_info {
    uint64_t addr;
    uint64_t len;
    uint32_t access; /* WEFT_READ | ... */
};

/* Describe [addr, addr+len), which lies in mem, for peers. */
WEFT_API int weft_mem_advertise(weft_mem_t mem, const void *addr, size_t len,
                                struct weft_remote *remote);
/* What a remote says. WEFT_EPROTO if it is not one. */
WEFT_API int weft_remote_parse(const struct weft_remote *remote, struct weft_remote_info *info);
/* The piece [offset, offset+len) of a remote. WEFT_EBOUNDS if it does not lie inside. */
WEFT_API int weft_remote_slice(const struct weft_remote *remote, uint64_t offset, uint64_t len,
                               struct weft_remote *piece);

/* Lists of regions as one blob, for whole tensors or caches at once. */
struct weft_region {
    weft_mem_t mem;
    void *addr;
    size_t len;
};
/* Returns the blob's length; writes nothing if cap is smaller. */
WEFT_API int64_t weft_regions_pack(const struct weft_region *regions, size_t n, void *buf,
                                   size_t cap);
/* Returns the number of remotes in the blob; fills remotes[0..min(that, max)). */
WEFT_API int64_t weft_regions_unpack(const void *blob, size_t len, struct weft_remote *remotes,
                                     size_t max);

/* --- operations ---------------------------------------------------------------------------- */

enum weft_xfer_op {
    WEFT_XFER_WRITE = 1, /* local pieces into remote pieces */
    WEFT_XFER_READ,      /* remote pieces into local pieces */
    WEFT_XFER_SEND,      /* local pieces as one message to the peer's next RECV */
    WEFT_XFER_RECV,      /* next message of the peer into local pieces */
    WEFT_XFER_NOTIFY,    /* notify only */
    WEFT_XFER_ADD        /* add value to the remote 64-bit word */
};

/* A piece of local memory. mem 0: memory that is registered only for the operation, if at all. */
struct weft_local {
    void *addr;
    size_t len; /* 0 is legal; more than 4 GiB is legal */
    weft_mem_t mem;
};

/*
 * One operation. The struct and its arrays may be reused when weft_post returns; the memory that
 * local describes is Weft's until the operation is done, and so are the bytes of a RECV's buffer.
 * All of it may be memory of GPUs, registered or not, but for `notify` and `result`, which are the host's:
 * WEFT_EUNSUPPORTED. Memory of a backend that the endpoint does not use is taken for the host's, and is touched as such.
 */
struct weft_xfer {
    size_t struct_size;
    enum weft_xfer_op op;
    uint32_t flags; /* 0, or WEFT_XFER_MORE */
    const struct weft_local *local;
    size_t nlocal;
    /* WRITE, READ: remote[i] pairs with local[i] (nremote == nlocal), local[i].len bytes are moved
     * to or from its start. ADD: one remote of 8 bytes, aligned to 8. A pair of 0 bytes has to be a
     * remote and lie inside it; the peer is not asked, so its key may be stale. */
    const struct weft_remote *remote;
    size_t nremote;
    const uint64_t *remote_offset; /* added to the start of remote[i]; NULL: all 0 */
    /* WRITE, READ, ADD: delivered to the peer as a notification once the data is in place (for
     * READ: once it has been read). NOTIFY: the notification. NULL: none. Copied by weft_post;
     * notify_len may be 0 with notify non-NULL: an empty notification. */
    const void *notify;
    size_t notify_len;
    uint64_t value;   /* ADD */
    uint64_t *result; /* ADD: where the word before the addition goes; may be NULL */
    /* Begin after what is queued on this stream of a GPU now (a CUstream, a cudaStream_t, torch's `cuda_stream`), without
     * waiting for it here; nobody else need synchronise. NULL: none; what a kernel is still writing is not waited for.
     * WEFT_STREAM_DEFAULT: that which has the number 0, as torch's current one has unless the program made another: pass
     * `stream ? stream : WEFT_STREAM_DEFAULT`. A stream that is being captured into a graph must not be
     * named, nor WEFT_STREAM_DEFAULT while one that waits for the default stream is. WEFT_EUNSUPPORTED if the endpoint has no
     * backend of GPUs. */
    void *stream;
};
/* Of the GPU whose context the thread has; CU_STREAM_PER_THREAD, (void *)2, may be named as well. */
#define WEFT_STREAM_DEFAULT ((void *)1)
/* Another weft_post follows at once, and sending may wait for it; for a second at most if none does. Any call that
 * waits or makes progress ends the wait. A RECV sends nothing: it does not matter there. */
#define WEFT_XFER_MORE 1u

struct weft_op_status {
    int status;     /* 0, or why it failed */
    uint64_t bytes; /* moved, of what failed or was canceled, too; RECV: length of the message, also when it was too long */
    char text[160]; /* the failure as a sentence, "" if none */
};

/*
 * Start an operation. On success *op is a handle that lives until weft_op_poll or weft_op_wait
 * says that the operation is done. On failure nothing was started. op NULL: nobody will ask; the
 * handle is retired by itself (statistics still count it).
 *
 * A SEND of up to WEFT_INJECT bytes that nobody will ask for, and that names no stream, is copied: its memory is the
 * caller's again when this returns. It costs less than one with a handle: for messages whose answer says that they have
 * come. As any SEND it is matched in order. One that finds too short a RECV, or whose conn goes down, is counted as failed
 * (weft_conn_stats), and nobody is told.
 */
#define WEFT_INJECT 216
WEFT_API int weft_post(weft_conn_t conn, const struct weft_xfer *xfer, weft_op_t *op);

/* 1: done and well; 0: not yet; < 0: done and failed with this code, or WEFT_EHANDLE. When done,
 * the handle is gone and *status (may be NULL) is filled. Makes progress if it is not. */
WEFT_API int weft_op_poll(weft_op_t op, struct weft_op_status *status);
/* The same, waiting: 0: done and well; WEFT_ETIMEOUT with status->status WEFT_EAGAIN: not done by
 * then, or given up with its conn (weft_conn_close was WEFT_ETIMEOUT), the handle lives on, but for one that was given up with its
 * endpoint; else done and failed with the code returned. */
WEFT_API int weft_op_wait(weft_op_t op, int timeout_ms, struct weft_op_status *status);
/*
 * Ask that an operation ends soon. It still has to be waited for; it ends with WEFT_ECANCELED, or
 * as it would have if it was too late. What a link has been given of it is moved all the same: WEFT_AHEAD bytes (64 MiB) and a quarter
 * more, or all of one that is no longer than that quarter. What has reached the peer stays there, status.bytes at least; of a write or
 * read nothing lands after the end while the conn is up. A message
 * or notification that was on its way may still be taken. What a peer that does not go on (it is stopped, or makes no progress) is in the middle of ends when its conn
 * is closed. Returns 0.
 */
WEFT_API int weft_op_cancel(weft_op_t op);

/*
 * Blocking forms: post, wait, and on the deadline cancel; they return the bytes moved or a code.
 * When one returns, the memory is the caller's again: if a transport still holds it
 * WEFT_CANCEL_GRACE after the deadline, the conn is cut (its state is then WEFT_CONN_DOWN); but for what a GPU does not end 10 s
 * after that: the text says so, and the memory stays in use until it has. What was
 * canceled may have reached the peer all the same: a message is then received there, a word added to.
 */
WEFT_API int64_t weft_write(weft_conn_t conn, const void *addr, size_t len,
                            const struct weft_remote *remote, uint64_t offset, int timeout_ms);
WEFT_API int64_t weft_read(weft_conn_t conn, void *addr, size_t len,
                           const struct weft_remote *remote, uint64_t offset, int timeout_ms);
WEFT_API int64_t weft_send(weft_conn_t conn, const void *addr, size_t len, int timeout_ms);
WEFT_API int64_t weft_recv(weft_conn_t conn, void *addr, size_t len, int timeout_ms);
WEFT_API int weft_add(weft_conn_t conn, const struct weft_remote *remote, uint64_t offset,
                      uint64_t value, uint64_t *result, int timeout_ms);
/* Any operation, vectors included. status may be NULL. */
WEFT_API int64_t weft_transfer(weft_conn_t conn, const struct weft_xfer *xfer, int timeout_ms,
                               struct weft_op_status *status);

/* --- notifications ------------------------------------------------------------------------- */

/* A notification that arrived: any bytes, any length. No zero ends a text. */
struct weft_notif {
    weft_conn_t conn; /* by which it came */
    void *data;       /* the caller's until weft_notif_free; never NULL */
    size_t len;
};

/* Send a notification. Delivered (in the peer's queue) when this returns 0. To oneself: connect
 * the endpoint to its own metadata. */
WEFT_API int weft_notify(weft_conn_t conn, const void *data, size_t len, int timeout_ms);
/* Next notification of any conn, in the order each conn sent them. 0, or WEFT_ETIMEOUT. */
WEFT_API int weft_endpoint_notif(weft_endpoint_t endpoint, int timeout_ms,
                                 struct weft_notif *notif);
WEFT_API void weft_notif_free(struct weft_notif *notif);

#ifdef __cplusplus
}
#endif
#endif
