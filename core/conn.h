/* SPDX-License-Identifier: Apache-2.0 */
/* A conn: its links, what goes over them, and how it comes up and goes down. */
#ifndef WEFT_CORE_CONN_H
#define WEFT_CORE_CONN_H

#include <stdbool.h>

#include "weft/endpoint.h"

#include "ipc.h"
#include "lane.h"
#include "match.h"
#include "op.h"
#include "stage.h"
#include "util.h"
#include "weft/list.h"

struct weft__endpoint;
struct weft__msg;

#define WEFT__WINDOW 1024 /* messages in flight or not taken, per conn and stream */

struct weft__early {
    uint64_t seq;
    uint32_t len;
    uint8_t *data; /* malloc; NULL: free slot */
};

struct weft__conn {
    struct weft__endpoint *ep;
    weft_endpoint_t ep_handle;
    weft_conn_t handle;
    struct weft__conn *prev, *next; /* endpoint->conns */
    struct weft__conn *accept_next; /* endpoint->accepts */
    struct weft__conn *tell_next;   /* endpoint->tells */
    bool telling;                   /* in endpoint->tells */
    bool owes;                      /* the peer has not been told all that was taken */
    struct weft__conn *hear_next;   /* endpoint->hears */
    bool hearing;                   /* in endpoint->hears */
    bool hears;                     /* heard has not been looked at */
    uint32_t heard[2];              /* counts that came with the last message */
    uint64_t taken_bytes;           /* since it was last told at once */
    bool queued_accept;
    bool passive;  /* no caller will close it: who frees it is the reaper */
    bool reaping;  /* its handle is shut, by the reaper or by who closes the endpoint */
    bool given_up; /* it was closed, and something does not end: who waits for its operations waits no longer */
    bool same_host_path; /* the transport needs no address */
    bool handshaking;    /* boot.c still refers to it */
    uint32_t nops;       /* in ops */
    int links_open;      /* not closed yet */
    enum weft_conn_state state;
    int status;
    bool initiator, same_host;
    const char *hint; /* why it may be that the peer is not reached; NULL: none */
    char why[256], peer_text[96], transport[16];
    struct weft__address peer_addr;
    uint8_t peer_uuid[16];
    uint32_t peer_owner, peer_pid;
    uint64_t peer_window; /* eager bytes it accepts */
    struct weft__link *links[WEFT__MAX_LINKS];
    int nlinks, next_link;
    uint64_t max_msg;                  /* the least of its nics: any of them can carry so much */
    uint64_t part;                     /* of a transfer, that goes by one link at once */
    uint32_t lanes;                    /* of its links that are up, as bits */
    _Atomic(struct weft__lane *) home; /* of the only link of a conn that is up; else NULL */
    uint64_t notif_scan;               /* see weft__notif_pop */

    struct weft_list ops; /* all that are not done */
    struct weft_list afters; /* in order of posting: those that wait for a stream */
    struct weft__opq todo, longs, recvq;
    struct weft__stage stage;
    struct weft__ipc ipc;
    struct weft__wr *resend;                   /* wrs of dead links that may go now */
    struct weft__wr *orphans[WEFT__MAX_LINKS]; /* wrs of dead links, peer not asked yet */
    bool lost_seen[WEFT__MAX_LINKS], gone_due[WEFT__MAX_LINKS];

    uint64_t next_seq, expect_seq;
    uint64_t out_base;                    /* oldest message that has not ended */
    uint64_t out_done[WEFT__WINDOW / 64]; /* which of out_base.. have, by seq % WINDOW */
    struct weft__msg *outq, **outq_tail;  /* messages not assigned to a link */
    struct weft__early *early;            /* 2 * WEFT__WINDOW, by seq, made when first needed */
    uint64_t early_bytes;                 /* of users' payload in it */
    uint32_t answers;                     /* messages to the peer that only answer its own */
    uint64_t eager_out;                   /* eager bytes sent and not taken */
    struct weft__stream stream[WEFT__STREAMS];
    struct weft__op *adds; /* emulated ADDs that wait for their answer, through qnext */
    uint32_t nadds;
    struct weft_conn_stats stats;
};

/* Endpoint lock held, but for conn_open. peer: NULL if it is not known. */
int weft__conn_open(struct weft__endpoint *ep, bool initiator, const struct weft__address *peer, struct weft__conn **out);
/* Nobody accepts it any more, or somebody does. Endpoint lock held. */
void weft__conn_unqueue(struct weft__conn *conn);
/* Nothing refers to it any more but its handle. */
bool weft__conn_idle(void *conn);
/* Give back a conn that is down and idle. Takes the endpoint lock. */
void weft__conn_free(struct weft__conn *conn);
/* Free passive conns that died. No lock held but the boot lock. */
void weft__conn_reap(struct weft__endpoint *ep);
void weft__conn_down(struct weft__conn *conn, int status, const char *fmt, ...)
    WEFT_PRINTF(3, 4) WEFT_COLD;
/* What operations of a conn that is down end with. A failed connect's code does not speak of the conn, and might be taken for "not yet". */
int weft__conn_end(const struct weft__conn *conn);
/* weft_conn_wait; over: it does not connect any more, and the code is the connect's own. */
int weft__conn_wait(weft_conn_t handle, int timeout_ms, bool *over);
void weft__conn_up(struct weft__conn *conn);
/* A link has room again, which a cmd of either kind may have taken: for what waits of both. */
void weft__conn_refill(struct weft__conn *conn);
static inline void weft__conn_fill(struct weft__conn *conn)
{
    if (conn->outq || conn->todo.head || conn->longs.head || conn->resend)
        weft__conn_refill(conn);
}
void weft__link_shut(struct weft__link *link, int status);
/* The transport reports, or has been made to. Endpoint lock held. */
void weft__link_lost(struct weft__link *link, int status, const char *why) WEFT_COLD;
void weft__link_closed(struct weft__link *link);
/* Messages about links. 0, or a code that takes the conn down. */
int weft__link_lost_arrived(struct weft__conn *conn, uint32_t index);
int weft__link_gone_arrived(struct weft__conn *conn, uint32_t index);
int weft__conn_links_up(const struct weft__conn *conn);

#endif
