/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp: software RDMA over sockets. Structs first, then the functions of each file.
 *
 * A link is a few sockets. Socket 0 carries what is small, answers and acknowledgements; the
 * others carry chunks of large payloads, each on whichever socket has room, so that nothing small
 * waits behind something large. With one socket everything shares it, chunk by chunk.
 *
 * Life of a WRITE: post makes an op of the cmd and puts it into link->todo; tcp_tx_pump turns
 * it into frames (head and small payload copied into the socket's out buffer, large payload as a
 * splice that points to the caller's memory) and gives sendmsg all of it; each frame is remembered
 * in sock->flight. The target checks key, range and access, receives the payload where it belongs
 * and counts the frame in sock->executed, which travels back in the next head that goes that way.
 * Then the op is in nic->done until poll hands it out.
 *
 * A READ's answer is an op too, at the target: its payload is spliced in the same way, and its long frames are counted.
 */
#ifndef WEFT_TCP_H
#define WEFT_TCP_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "tcp_wire.h"
#include "weft/transport.h"

/* Most cmds of a link between post and completion; the protocol's bound on calls and frames. */
#define TCP_DEPTH 512
#define TCP_MAX_SOCKETS 16
#define TCP_MAX_INLINE 256
#define TCP_MAX_SEND 65536
#define TCP_MAX_IOV 128
#define TCP_MAX_MSG ((uint64_t)1 << 46) /* more than a process can map */

/* A buffer of received or outgoing bytes: one large message, or a few hundred small operations. */
#define TCP_BUF 131072
/* Outgoing cmds fill half of a buffer. The other half is for answers: at most 32 bytes for each
 * call and each frame that the peer may have open (TCP_DEPTH of each, twice that with more than
 * one socket), so answers always find room and a peer that lets them pile up broke its bound. */
#define TCP_OUT_CMDS (TCP_BUF / 2)
#define TCP_KEEP_BUFS 16 /* free buffers a nic keeps: what one poll can use */

/* Up to this a payload is copied behind its head: cheaper than a piece of its own in sendmsg. */
#define TCP_COPY_MAX 2048
/* Longer payloads leave socket 0: from here on their chunk occupies a socket for longer than a
 * system call takes. */
#define TCP_BULK_MIN 16384
/* What one link may send, and one socket receive, in a poll before the next one has its turn. */
#define TCP_TURN (256 * 1024)
/* Polls after which a fresh nic, and one that has work, asks epoll beside its hot sockets. */
#define TCP_QUIET_LEAST 1
#define TCP_MIXED_POLLS 64 /* short operations are said to come and go for so many after the last one */
#define TCP_SPLICES 32 /* payloads of one socket that wait to be sent */
#define TCP_IOV 96     /* pieces given to one sendmsg */

#define TCP_HALF_OPEN 64           /* accepted sockets that have not said hello */
#define TCP_HALF_YOUNG 1000000000u /* ns before one that says nothing is called silent */
#define TCP_HELLO_TIMEOUT                                                                         \
    5000000000u   /* ns that one may take for it, if WEFT_TCP_TIMEOUT is longer */
#define TCP_HOT 4 /* sockets that poll reads without being told to */

#define TCP_CONGESTION_MAX 16 /* the kernel's TCP_CA_NAME_MAX */

struct tcp_nic;
struct tcp_link;
struct tcp_sock;

/* First member of everything that epoll reports. */
enum tcp_source { TCP_LISTENER, TCP_HALF, TCP_SOCK, TCP_TIMER };

struct tcp_buf {
    struct tcp_buf *next;
    uint64_t lent; /* number of the poll that gave away pointers into it */
    uint32_t head, tail;
    uint8_t data[TCP_BUF];
};

struct tcp_mem {
    struct tcp_mem *next; /* of the same hash */
    struct weft_mem_range range;
    uint32_t busy; /* payloads under way into or out of it */
    bool closing;
};

/* Where in a list of pieces. */
struct tcp_cursor {
    uint32_t index;
    uint64_t offset;
};

/* A cmd, or the answer to a READ of the peer (is_answer). */
struct tcp_op {
    struct tcp_op *next;              /* of a queue */
    struct tcp_op *prev_op, *next_op; /* link->ops */
    struct tcp_link *link;
    uint8_t op, sock; /* sock: WRITE_IMM in chunks: the socket of its chunks, 0: none yet */
    bool is_answer;
    bool patient, quiet; /* WEFT_CMD_PATIENT, WEFT_CMD_QUIET */
    uint16_t niov;
    uint32_t imm;
    uint32_t call;    /* READ, ADD64, answers */
    uint32_t pending; /* frames without acknowledgement; answers: and splices not sent of those that have none */
    int32_t status;
    uint64_t remote_addr, remote_key, value, len, ctx;
    uint64_t staged;           /* bytes in frames so far */
    uint64_t claimed, arrived; /* READ: bytes of which a head, and all, has come */
    uint64_t end;              /* READ: bytes that will come: len, or fewer if it failed */
    struct tcp_cursor at;      /* where `staged` is */
    struct weft_iov_local one;
    const struct weft_iov_local *iov;
    struct tcp_mem *mem; /* answers: kept busy by each frame without acknowledgement */
    uint8_t copy[TCP_MAX_INLINE]; /* of an inline payload that could not be staged at once */
};

struct tcp_queue {
    struct tcp_op *head, **tail;
};

/* Payload that goes out between the bytes of the out buffer. */
struct tcp_splice {
    struct tcp_op *op;
    struct tcp_mem *mem; /* answers in frames that are not counted: kept busy */
    struct tcp_cursor at;
    uint64_t left;
    uint32_t pos; /* in the out buffer, after which it goes */
};

/* Takes references to pages into a socket (tcp_lend.c). */
struct tcp_pipe {
    int in, out;
    uint64_t held; /* bytes in it */
};

/* A counted frame: acknowledged only once its last byte was sent. */
struct tcp_flight {
    struct tcp_op *op;
    uint64_t end; /* in bytes of the socket's stream */
};

/* The frame whose payload is being received. */
struct tcp_rx {
    struct tcp_buf *buf;
    uint8_t type;            /* 0: none */
    bool lent;               /* its payload is the peer's until it is here */
    bool waits;              /* unparsed bytes are kept since poll had no room: nic->parked */
    uint32_t imm, len, rest; /* len: of the payload; rest: still to come */
    struct tcp_mem *mem;     /* WRITE: where it goes; NULL: refused, thrown away */
    uint8_t *dst;
    struct tcp_op *op; /* DATA: the READ */
    struct tcp_cursor at;
};

enum tcp_sock_state { TCP_CLOSED, TCP_CONNECTING, TCP_GREETED, TCP_JOINED };

struct tcp_sock {
    enum tcp_source source;
    enum tcp_sock_state state;
    struct tcp_link *link;
    int fd;
    uint8_t index;
    bool blocked;   /* send had no room; epoll tells when it has */
    bool ending;    /* the peer has shut it: read on to the very end */
    bool unread;    /* in nic->unread */
    uint8_t misses; /* polls in a row that found nothing, while hot */
    uint8_t hits;   /* polls that found something since it is hot and nobody slept, at most HITS */
    bool hot;
    bool unwatched; /* epoll does not know it: it is hot, and not blocked */
    bool unproven;    /* has sent, and is not known to be acknowledged by the peer's kernel */
    uint64_t suspect; /* since when the peer's kernel has been silent, 0: it is not */
    uint64_t turn;    /* number of the poll that last read it */
    uint64_t busy_round; /* nic->busy_round in which it last had something */
    struct tcp_sock *parked_next, *unread_next;
    /* sending */
    struct tcp_buf *out;
    uint64_t sent, staged;     /* bytes of the stream */
    uint64_t fit_sent, fit_at; /* sent, and when, as its buffer was last looked at */
    uint64_t fit_rate;         /* bytes per microsecond, smoothed */
    int fit_size;              /* what it was given; 0: it is the kernel's */
    uint8_t fits;              /* how often in a row it was as it should be */
    uint32_t splice_first, nsplices;
    struct tcp_flight *flight; /* ring of `window` */
    uint32_t window, flight_first, nflight;
    uint32_t nawaited; /* of those in flight: not quiet */
    uint32_t acked; /* frames the peer has executed */
    struct tcp_splice splices[TCP_SPLICES];
    struct tcp_pipe *pipe;      /* holds the next bytes of the first splice; NULL: none does */
    uint64_t lent, executed_to; /* bytes of the stream: the last one out of lent pages; what the peer has executed */
    /* receiving */
    uint32_t executed; /* counted frames of the peer */
    uint64_t pause;    /* until when it is left alone by who polls all the time; 0: it is not */
    struct tcp_rx rx;
    uint8_t greeting[TCP_HELLO_SIZE]; /* active: the answer, as far as it is here */
    uint32_t greeting_len;
};

enum tcp_link_state { TCP_LINK_NEW, TCP_LINK_JOINING, TCP_LINK_UP, TCP_LINK_DOWN };

struct tcp_link {
    struct weft_link base;
    struct tcp_link *prev, *next; /* nic->links */
    enum tcp_link_state state;
    enum weft_role role;
    int status;    /* why it is down */
    bool down_due; /* LINK_DOWN has not been handed out */
    bool ready;    /* in nic->ready */
    struct tcp_link *ready_next;
    struct sockaddr_storage peer; /* of link_opts; family 0: none */
    uint8_t token[TCP_TOKEN];     /* the passive end's */
    bool keyed;                   /* only who has the key may join */
    uint8_t key[WEFT_MAC];
    uint32_t depth, nsocks, joined;
    struct tcp_sock *socks;
    struct tcp_op *ops; /* all that are not done */
    /* sending */
    struct tcp_queue todo;    /* posted, not started */
    struct tcp_queue bulk;    /* started, have chunks to send, in turns */
    struct tcp_queue answers; /* READs of the peer not started */
    uint32_t posted;          /* ops that poll has not handed out */
    uint32_t started;         /* ops between todo and done */
    uint32_t nlong;           /* those of them that are longer than TCP_BULK_MIN */
    uint32_t nanswers;        /* answers in any queue */
    uint32_t acks;            /* bit per socket: frames executed that the peer does not know of */
    uint64_t acks_poll;       /* poll in which the first of them was executed */
    struct tcp_op *calls[TCP_DEPTH];
    uint16_t free_calls[TCP_DEPTH];
    uint32_t nfree_calls;
};

/* Accepted, but not known yet. */
struct tcp_half {
    enum tcp_source source;
    int fd; /* -1: free */
    uint64_t since;
    uint8_t place; /* weft_stranger_from */
    uint32_t len;
    uint8_t hello[TCP_HELLO_SIZE];
};

struct tcp_nic {
    struct weft_nic base;
    enum tcp_source listener_source, timer; /* what epoll reports for the two */
    struct weft_listener listener;
    int epoll_fd, timer_fd;
    struct sockaddr_storage bound;
    uint64_t polls;      /* number of the current poll */
    uint64_t short_poll; /* in which there last was a short operation, of this side or a peer */
    /* settings */
    uint32_t nsocks, chunk;
    int sndbuf, rcvbuf;
    int sndbuf_most; /* that a socket is fitted to; 0: none is */
    uint64_t zerocopy; /* payload of this length and more is lent to the kernel; 0: none is */
    char near[TCP_CONGESTION_MAX], far[TCP_CONGESTION_MAX]; /* congestion control within this host, and beyond */
    int64_t timeout; /* ms of silence after which a peer is dead */
    uint32_t keepalives[2]; /* sockets that were given times for it, the first of links and the others */
    /* memory */
    struct tcp_mem **mems; /* hash table */
    uint32_t mem_slots, nmems;
    struct tcp_buf *free_bufs, *lent_bufs;
    uint32_t nfree_bufs;
    struct tcp_op *free_ops;
    struct tcp_pipe *free_pipe;
    uint32_t npipes;
    uint64_t pipe_again; /* poll from which another pipe may be asked for */
    /* links */
    struct tcp_link *links;
    struct tcp_link *ready, **ready_tail;   /* something may be sent */
    struct tcp_queue done;                  /* ops to hand out */
    uint32_t ndown;                         /* links with down_due */
    struct tcp_sock *parked, **parked_tail; /* have bytes that poll had no room for */
    uint32_t nparked;
    struct tcp_sock *unread, **unread_tail; /* may have bytes that epoll will not tell of again */
    uint32_t nunread;
    struct tcp_sock *hot[TCP_HOT];
    uint32_t nhot, nblocked;
    uint64_t busy_round;         /* from 1 */
    uint32_t nbusy, busy_polls;  /* in this round: sockets that had something, and polls that found any */
    bool crowd; /* more sockets are at work than are worth asking one by one: none is hot, but for those that epoll refuses */
    uint32_t quiet, patience; /* polls since epoll was asked, after how many to ask */
    uint32_t nunproven;       /* sockets that are */
    bool stirred; /* a link has become ready for more than to acknowledge */
    /* an acknowledgement that came with a message, for the next poll, or a later one if only quiet cmds wait for it; NULL: none */
    struct tcp_link *heard;
    uint8_t heard_sock;
    uint32_t heard_count;
    uint64_t heard_poll; /* in which the first of what it covers came */
    bool timer_set;
    bool stale; /* sockets were read of which epoll has still to tell */
    bool full;  /* epoll has refused a socket, and the log says so */
    bool woken; /* wait_fd was called since the last poll: epoll knows better than the hot list */
    bool was_woken;   /* and before the poll before that */
    bool sleepy;      /* wait_fd was called since the last poll, whatever it said */
    uint64_t checked; /* when links were last checked for silence */
    struct tcp_half half[TCP_HALF_OPEN];
    uint32_t nhalf;
};

/* One call of poll. */
struct tcp_poll {
    struct tcp_nic *nic;
    struct weft_comp *comps;
    int n, max;
    int64_t budget; /* bytes of work left */
    bool found;     /* a socket had something */
};

static inline struct tcp_nic *tcp_nic_of(const struct tcp_link *link)
{
    return (struct tcp_nic *)link->base.nic;
}

/* What is short is not to wait for what is long. */
static inline void tcp_note_short(struct tcp_nic *nic)
{
    nic->short_poll = nic->polls;
}

/* Short operations come and go: they wait for what a turn takes. Else one system call may take as much as a socket has, or
 * has room for. */
static inline bool tcp_mixed(const struct tcp_nic *nic)
{
    return nic->polls - nic->short_poll < TCP_MIXED_POLLS;
}

/* --- tcp.c: table, probe, open, close, buffers, ops ------------------------------------------------ */

struct tcp_buf *tcp_buf_get(struct tcp_nic *nic);
/* Gives back a buffer; the bytes that a comp of this poll points to stay until the next. */
void tcp_buf_put(struct tcp_nic *nic, struct tcp_buf *buf);
/* What the comps of the last poll pointed to may be used again. */
void tcp_bufs_take_back(struct tcp_nic *nic);
/* All zero, but for its place in the link's list. */
struct tcp_op *tcp_op_new(struct tcp_link *link);
/* The same, but nothing else in it is filled in. */
struct tcp_op *tcp_op_take(struct tcp_link *link);
void tcp_op_free(struct tcp_op *op);
/* Free an op that is done. */
void tcp_op_forget(struct tcp_op *op);
/* A started op has ended. */
void tcp_op_done(struct tcp_op *op, int status);

/* --- tcp_poll.c ----------------------------------------------------------------------------------- */

weft_poll_fn tcp_poll;
weft_wait_fd_fn tcp_wait_fd;
/* Epoll is to tell of it again. WEFT_EAGAIN or another code: it cannot. */
int tcp_rewatch(struct tcp_sock *sock);

/* --- tcp_addr.c -------------------------------------------------------------------------------- */

/* The address of a host, as numbers; NULL: the loopback's. */
int tcp_addr_parse(const char *host, struct sockaddr_storage *addr, socklen_t *len);
/* Is it this host's? Who sends to it has it, too. */
bool tcp_addr_is_ours(const struct sockaddr_storage *addr);
/* Is what the peer says of its address sound? */
int tcp_addr_check(const struct tcp_link *link, const uint8_t *blob, size_t len);
/* Where to connect to, of an address that is sound. One that listens everywhere, or on its loopback, is where core met it. */
socklen_t tcp_addr_target(const struct tcp_link *link, const uint8_t *blob, struct sockaddr_storage *addr);
weft_link_address_fn tcp_link_address;

/* --- tcp_link.c: sockets and a link's life ------------------------------------------------------ */

int tcp_listen(struct tcp_nic *nic, const char *host);
void tcp_unlisten(struct tcp_nic *nic);
void tcp_accept(struct tcp_nic *nic);
void tcp_half_event(struct tcp_nic *nic, struct tcp_half *half);
/* Drop those that have had time enough to say hello. */
void tcp_half_expire(struct tcp_nic *nic);
/* A socket of a link that is not up yet has something to say. */
void tcp_sock_greet(struct tcp_sock *sock);
/* What a socket of a link that is up is watched for. Edges: epoll tells once that there are bytes,
 * or room, and is not asked to change its mind each time a buffer is full. */
#define TCP_EDGES (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)
/* epoll's interest in a socket. */
int tcp_watch(struct tcp_nic *nic, int op, int fd, uint32_t events, void *source);
/* After tcp_watch has failed: what that means goes to the log, once for each nic. */
void tcp_tell_full(struct tcp_nic *nic, const char *so) WEFT_COLD;
/* The link is lost: comps that have not been earned are dropped, LINK_DOWN follows. */
void tcp_link_fail(struct tcp_link *link, int status) WEFT_COLD;
/* The code for an error of send, recv or connect. */
int tcp_status(int err);
/* Fail links whose peer's kernel has been silent for too long. */
void tcp_check_silence(struct tcp_nic *nic);
weft_link_open_fn tcp_link_open;
weft_link_connect_fn tcp_link_connect;
weft_link_close_fn tcp_link_close;

/* --- tcp_mem.c: keys --------------------------------------------------------------------------- */

weft_mem_reg_fn tcp_mem_reg;
weft_mem_dereg_fn tcp_mem_dereg;
/* Fills *mem and returns TCP_OK if a peer may do this with [addr, addr + len). */
enum tcp_code tcp_mem_find(struct tcp_nic *nic, uint64_t key, uint64_t addr, uint64_t len,
                           uint32_t access, struct tcp_mem **mem);

/* --- tcp_out.c: what leaves through a socket ---------------------------------------------------- */

/* Up to max pieces of at most len bytes from the cursor on, which does not move; bytes in them. */
uint64_t tcp_pieces(const struct tcp_op *op, struct tcp_cursor at, uint64_t len, struct iovec *iov,
                    int max, int *niov);
void tcp_cursor_move(const struct tcp_op *op, struct tcp_cursor *at, uint64_t by);
/* Room for `need` bytes, if no more than `limit` are in the buffer then. */
bool tcp_out_room(struct tcp_sock *sock, uint32_t need, uint32_t limit);
/* Room for a cmd's frame with so much payload. */
bool tcp_out_fits(struct tcp_sock *sock, uint64_t len);
/* Head of a frame; the caller has made room. On socket 0 it takes an ack along. */
void tcp_out_head(struct tcp_sock *sock, struct tcp_frame *frame);
/* The next len bytes of op, behind its head; mem is kept busy until they are sent. */
void tcp_out_payload(struct tcp_sock *sock, struct tcp_op *op, uint32_t len, struct tcp_mem *mem);
/* All of a short SEND or WRITE, which op stands for: it was staged. The caller has made room. */
void tcp_out_short(struct tcp_sock *sock, struct tcp_op *op, const struct weft_cmd *cmd);
/* A frame of op with payload that the peer will count. */
void tcp_out_counted(struct tcp_sock *sock, struct tcp_op *op, struct tcp_frame *frame);
/* The largest send buffer that this system lets a program ask for (net.core.wmem_max), up to what is ever asked for. */
int tcp_out_most(void);
/* Send up to so many bytes, or until the socket is full. Returns bytes sent. */
uint64_t tcp_out_flush(struct tcp_sock *sock, uint64_t limit);
void tcp_out_drop(struct tcp_sock *sock);

/* --- tcp_lend.c: payload that is not copied ------------------------------------------------------ */

/* So long a payload is to be lent, if the kernel can: its frame says so. */
bool tcp_lends(const struct tcp_link *link, uint64_t len);
/* The same, of what is left of one. */
bool tcp_lend_fits(const struct tcp_sock *sock, const struct tcp_splice *splice);
/* One system call, of up to so many bytes of the first splice, whose head has been sent: how many there were in *want,
 * and what came of it, as of send. False: they have to be copied. */
bool tcp_lend(struct tcp_sock *sock, uint64_t limit, uint64_t *want, ssize_t *sent);
/* The socket is about to be closed: no page of the caller's is to be read any more. */
void tcp_lend_end(struct tcp_sock *sock);
/* Pipes of a nic. That there are none is no error: what cannot be lent is copied. */
void tcp_lend_open(struct tcp_nic *nic);
void tcp_lend_close(struct tcp_nic *nic);

/* --- tcp_post.c: the initiator ----------------------------------------------------------------- */

weft_post_fn tcp_post;
/* Its payload goes in chunks over the sockets for large ones. */
bool tcp_is_bulk(const struct tcp_op *op);
/* Head of the frame with the next n bytes of a WRITE. */
struct tcp_frame tcp_write_frame(const struct tcp_op *op, uint32_t n);
/* Start the cmds that may be, in order. */
void tcp_post_start(struct tcp_link *link);
/* The peer has executed frames of a socket up to this count. False: it cannot have. */
bool tcp_post_acked(struct tcp_link *link, uint32_t sock, uint32_t count);
/* The same, which came with a message: who waits for that does not wait for this, too, but the next poll does it.
 * False: what waited since the last message was no true count. */
bool tcp_post_heard(struct tcp_link *link, uint8_t sock, uint32_t count);
/* Do it. False: the peer broke the protocol. */
bool tcp_post_hear(struct tcp_nic *nic);
/* It is to be done now: someone waits for it, there is much of it, or it has waited for long. */
bool tcp_post_must_hear(const struct tcp_nic *nic);
/* The peer has refused a frame. False: there is no such frame. */
bool tcp_post_nacked(struct tcp_link *link, uint64_t sock, uint32_t nth, int status);
/* A READ or ADD64 has its answer. */
void tcp_call_done(struct tcp_op *op, int status);

/* --- tcp_tx.c: whose turn it is to send -------------------------------------------------------- */

void tcp_queue_push(struct tcp_queue *queue, struct tcp_op *op);
struct tcp_op *tcp_queue_pop(struct tcp_queue *queue);
/* Put a link on the list of those that poll lets send. */
void tcp_tx_ready(struct tcp_link *link);
/* The same, but there is nothing to send than acknowledgements, which wait for a frame to ride on. */
void tcp_tx_owes(struct tcp_link *link);
/* Bytes that a link may send before the next one has its turn. */
int64_t tcp_tx_turn(const struct tcp_link *link);
/* Something waits for room, a turn, or a fence. */
bool tcp_tx_queued(const struct tcp_link *link);
/* Frames of what may be sent, as far as there is room, and as much of them as the sockets take. */
void tcp_tx_run(struct tcp_link *link, int64_t *budget);
/* A READ of the peer, to be answered. */
int tcp_tx_serve(struct tcp_link *link, const struct tcp_frame *frame);
/* An answer without payload, on socket 0. */
void tcp_tx_answer(struct tcp_link *link, struct tcp_frame *frame);
/* All of an answer has been sent. */
void tcp_answer_end(struct tcp_op *op);
/* Last words before a link is closed. */
void tcp_tx_farewell(struct tcp_link *link);

/* --- tcp_rx.c: receiving ----------------------------------------------------------------------- */

/* Read a socket once or a few times, and do what its frames say. True if anything came. */
bool tcp_rx_turn(struct tcp_poll *poll, struct tcp_sock *sock);
/* It is left alone for now, unless somebody is about to sleep: more is on its way. */
bool tcp_rx_pauses(const struct tcp_sock *sock);
/* Go on with bytes that were left since comps or budget had run out. */
void tcp_rx_resume(struct tcp_poll *poll);
/* To be read once more, without a word from epoll; and not. */
void tcp_rx_unread(struct tcp_sock *sock);
void tcp_rx_forget(struct tcp_sock *sock);
/* Forget a frame that has not come whole. */
void tcp_rx_drop(struct tcp_sock *sock);

#endif
