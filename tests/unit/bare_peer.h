/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that is made of bare sockets: it speaks the handshake, tcp's frames and the conn's messages,
 * and reads and acknowledges nothing that it is not told to. What such a one does must cost the
 * endpoint a bounded amount, and nobody else anything.
 */
#ifndef WEFT_TESTS_UNIT_BARE_PEER_H
#define WEFT_TESTS_UNIT_BARE_PEER_H

#include "helpers.h"

#include "msg.h"
#include "transports/tcp/tcp_wire.h"

#define BARE_LINKS 2

struct bare_peer {
    int boot;             /* bootstrap socket, closed once the conn is up */
    int fd[BARE_LINKS];   /* socket 0 of each link; there is no other */
    int links;
    uint8_t uuid[16];
    uint64_t seq;         /* of the next message */
    uint32_t index[2];    /* of the next user's message, by stream */
};

/* A conn to an endpoint that listens on this port of 127.0.0.1 and has the tcp transport. */
void bare_connect(struct bare_peer *peer, int port, int links);
/* The same; it says that these links were joined at both ends, as bits. */
void bare_connect_by(struct bare_peer *peer, int port, int links, uint8_t which);
void bare_close(struct bare_peer *peer);
/* A frame on a link's socket, with payload. False: the endpoint has hung up. */
bool bare_frame(struct bare_peer *peer, int link, struct tcp_frame frame, const void *payload);
/* A message of the conn, over link `link`. The head's seq is filled in. */
bool bare_message(struct bare_peer *peer, int link, struct weft__msg_head head, const void *body,
                  size_t len);

#endif
