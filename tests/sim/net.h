/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated TCP: what net.c, which moves bytes between hosts, and socket.c, the calls, share. */
#ifndef WEFT_SIM_NET_H
#define WEFT_SIM_NET_H

#include "wrap.h"

#define SIM_RESEND_AFTER (200 * SIM_MS) /* unanswered for so long: sent again */
#define SIM_QUEUE 64                    /* connections that nobody has accepted yet */

enum sim_chunk_kind { CHUNK_DATA, CHUNK_END, CHUNK_RESET };

struct chunk {
    struct chunk *next;
    enum sim_chunk_kind kind;
    size_t len;
    uint64_t due, sent;
};

/* What is on its way to one end. */
struct pipe {
    uint8_t *data; /* a ring of cap bytes */
    size_t cap, head, len;
    size_t arrived; /* of len: may be received */
    struct chunk *chunks, **tail;
    uint64_t last_due;
    bool ticking; /* an event will look at the chunks */
    uint64_t put, got;  /* bytes of the stream: sent, and received */
    struct loan *loans; /* of what is not received, the oldest first */
};

enum stream_state { STREAM_NEW, STREAM_CONNECTING, STREAM_UP, STREAM_FAILED };

struct stream {
    enum stream_state state;
    struct stream *peer;
    struct sim_proc *proc;
    int host, port, peer_host, peer_port;
    bool v6, open; /* open: the program has not closed it */
    bool vanished; /* its host lost power */
    bool asks;     /* a datagram socket: by which way an address is reached */
    bool end_sent, end_seen, reset, read_shut, guarded;
    bool of_first;             /* it belongs to the first lane of a process */
    size_t carried;            /* bytes that this end has sent */
    int error;                 /* to be told once */
    uint64_t edges;            /* times that there was something new to tell */
    bool wants_room;           /* a send had none */
    uint64_t heard, called;    /* when the peer's kernel last answered; since when connecting */
    int idle, interval, count; /* keepalive, seconds */
    struct pipe in;
};

struct listener {
    int host, port;
    bool open, v6, packets;
    bool first; /* that of its process' first lane */
    struct stream *queue[SIM_QUEUE];
    int nqueue;
    void *unix_listener;
};

/* net.c */
/* Nothing passes between its hosts. */
bool sim_stream_dark(const struct stream *s);
/* To this end; the bytes are in its pipe already. */
void sim_chunk_send(struct stream *to, enum sim_chunk_kind kind, size_t len);

/* socket.c: -1 and errno, or how many bytes it took. */
ssize_t sim_stream_send(struct stream *s, const struct iovec *iov, size_t niov);

/* lend.c */
void sim_loans_check(const struct pipe *in, const uint8_t *data, size_t n);
void sim_loans_received(struct pipe *in);
void sim_loans_end(struct pipe *in, bool same_host);

#endif
