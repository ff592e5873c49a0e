/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's table, and its nic, with the buffers and ops that it keeps. */
#include "tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

static weft_probe_fn tcp_probe;
static weft_open_fn tcp_open;
static weft_close_fn tcp_close;

static const struct weft_transport_ops tcp_ops = {
    .probe = tcp_probe,
    .open = tcp_open,
    .close = tcp_close,
    .mem_reg = tcp_mem_reg,
    .mem_dereg = tcp_mem_dereg,
    .link_open = tcp_link_open,
    .link_address = tcp_link_address,
    .link_connect = tcp_link_connect,
    .link_close = tcp_link_close,
    .post = tcp_post,
    .poll = tcp_poll,
    .wait_fd = tcp_wait_fd,
};

const struct weft_transport weft_transport_tcp = {
    .abi = WEFT_ABI,
    .name = "tcp",
    .summary = "software RDMA over TCP sockets",
    .priority = 100,
    .by_processor = 1,
    .ops = &tcp_ops,
};

static const struct weft_nic_attr tcp_attr = {
    .ops = WEFT_OP_BIT(WEFT_OP_SEND) | WEFT_OP_BIT(WEFT_OP_WRITE) |
           WEFT_OP_BIT(WEFT_OP_WRITE_IMM) | WEFT_OP_BIT(WEFT_OP_READ) |
           WEFT_OP_BIT(WEFT_OP_ADD64) | WEFT_OP_BIT(WEFT_OP_FENCE),
    .mem_kinds = WEFT_MEM_HOST,
    .order = WEFT_ORDER_NONE,
    .done = WEFT_DONE_DELIVERED,
    .imm_bits = 32,
    .chosen_keys = 1,
    .add_global = 1,
    .target_progress = 1,
    .peer_death = 1,
    .max_inline = TCP_MAX_INLINE,
    .max_send = TCP_MAX_SEND,
    .max_iov = TCP_MAX_IOV,
    .tx_depth = TCP_DEPTH,
    .max_msg = TCP_MAX_MSG,
};

/* --- the nic ----------------------------------------------------------------------------------- */

static int tcp_probe(struct weft_device_info *list, int max)
{
    if (max > 0)
        list[0] = (struct weft_device_info){
            .name = "tcp", .summary = "any network interface", .usable = 1, .numa = -1};
    return 1;
}

static void read_settings(struct tcp_nic *nic)
{
    nic->nsocks = (uint32_t)weft_config_int("WEFT_TCP_SOCKETS");
    nic->chunk = (uint32_t)weft_config_int("WEFT_TCP_CHUNK");
    nic->sndbuf = (int)weft_config_int("WEFT_TCP_SNDBUF");
    nic->sndbuf_most = nic->sndbuf ? 0 : tcp_out_most();
    nic->rcvbuf = (int)weft_config_int("WEFT_TCP_RCVBUF");
    nic->zerocopy = (uint64_t)weft_config_int("WEFT_TCP_ZEROCOPY");
    if (nic->zerocopy && nic->zerocopy <= TCP_BULK_MIN) /* shorter payload is no chunk of its own */
        nic->zerocopy = TCP_BULK_MIN + 1;
    nic->timeout = weft_config_int("WEFT_TCP_TIMEOUT");
}

static struct tcp_nic *nic_new(void)
{
    struct tcp_nic *nic = calloc(1, sizeof(*nic));
    if (!nic)
        return NULL;
    nic->base.transport = &weft_transport_tcp;
    nic->base.attr = tcp_attr;
    nic->listener_source = TCP_LISTENER;
    nic->timer = TCP_TIMER;
    nic->ready_tail = &nic->ready;
    nic->parked_tail = &nic->parked;
    nic->unread_tail = &nic->unread;
    nic->patience = TCP_QUIET_LEAST;
    nic->busy_round = 1;
    for (int i = 0; i < TCP_HALF_OPEN; i++)
        nic->half[i].fd = -1;
    read_settings(nic);
    return nic;
}

static int tcp_open(const struct weft_nic_opts *opts, struct weft_nic **out)
{
    if (strcmp(opts->device, "tcp") != 0)
        return weft_fail(WEFT_ENODEV, "tcp: there is no device '%s', only 'tcp'", opts->device);
    struct tcp_nic *nic = nic_new();
    if (!nic)
        return weft_fail(-ENOMEM, "tcp: no memory for a nic");
    int rc;
    nic->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (nic->epoll_fd < 0) {
        rc = weft_fail(-errno, "tcp: cannot make an epoll descriptor: %m");
        goto err_free;
    }
    nic->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (nic->timer_fd < 0) {
        rc = weft_fail(-errno, "tcp: cannot make a timer: %m");
        goto err_epoll;
    }
    rc = tcp_watch(nic, EPOLL_CTL_ADD, nic->timer_fd, EPOLLIN, &nic->timer);
    if (rc == 0)
        rc = tcp_listen(nic, opts->bind_host);
    if (rc < 0)
        goto err_timer;
    tcp_lend_open(nic);
    *out = &nic->base;
    return 0;
err_timer:
    close(nic->timer_fd);
err_epoll:
    close(nic->epoll_fd);
err_free:
    free(nic);
    return rc;
}

static void free_bufs(struct tcp_buf *buf)
{
    while (buf) {
        struct tcp_buf *next = buf->next;
        free(buf);
        buf = next;
    }
}

static void tcp_close(struct weft_nic *base)
{
    struct tcp_nic *nic = (struct tcp_nic *)base;
    tcp_unlisten(nic);
    close(nic->timer_fd);
    close(nic->epoll_fd);
    free_bufs(nic->free_bufs);
    free_bufs(nic->lent_bufs);
    while (nic->free_ops) {
        struct tcp_op *op = nic->free_ops;
        nic->free_ops = op->next;
        free(op);
    }
    tcp_lend_close(nic);
    free(nic->mems);
    free(nic);
}

/* --- buffers and ops --------------------------------------------------------------------------- */

struct tcp_buf *tcp_buf_get(struct tcp_nic *nic)
{
    struct tcp_buf *buf = nic->free_bufs;
    if (buf) {
        nic->free_bufs = buf->next;
        nic->nfree_bufs--;
    } else {
        buf = malloc(sizeof(*buf));
        if (!buf)
            return NULL;
    }
    buf->lent = 0;
    buf->head = buf->tail = 0;
    return buf;
}

void tcp_buf_put(struct tcp_nic *nic, struct tcp_buf *buf)
{
    if (WEFT_LIKELY(buf->lent == nic->polls)) {
        buf->next = nic->lent_bufs;
        nic->lent_bufs = buf;
    } else if (nic->nfree_bufs < TCP_KEEP_BUFS) {
        buf->next = nic->free_bufs;
        nic->free_bufs = buf;
        nic->nfree_bufs++;
    } else {
        free(buf);
    }
}

void tcp_bufs_take_back(struct tcp_nic *nic)
{
    while (nic->lent_bufs) {
        struct tcp_buf *buf = nic->lent_bufs;
        nic->lent_bufs = buf->next;
        tcp_buf_put(nic, buf);
    }
}

struct tcp_op *tcp_op_take(struct tcp_link *link)
{
    struct tcp_nic *nic = tcp_nic_of(link);
    struct tcp_op *op = nic->free_ops;
    if (op)
        nic->free_ops = op->next;
    else if (!(op = malloc(sizeof(*op))))
        return NULL;
    op->link = link;
    op->prev_op = NULL;
    op->next_op = link->ops;
    if (op->next_op)
        op->next_op->prev_op = op;
    link->ops = op;
    return op;
}

struct tcp_op *tcp_op_new(struct tcp_link *link)
{
    struct tcp_op *op = tcp_op_take(link);
    if (op)
        memset(&op->op, 0, offsetof(struct tcp_op, copy) - offsetof(struct tcp_op, op));
    return op;
}

static void op_unlink(struct tcp_op *op)
{
    if (op->prev_op)
        op->prev_op->next_op = op->next_op;
    else
        op->link->ops = op->next_op;
    if (op->next_op)
        op->next_op->prev_op = op->prev_op;
}

void tcp_op_forget(struct tcp_op *op)
{
    struct tcp_nic *nic = tcp_nic_of(op->link);
    op->next = nic->free_ops;
    nic->free_ops = op;
}

void tcp_op_free(struct tcp_op *op)
{
    op_unlink(op);
    tcp_op_forget(op);
}

void tcp_op_done(struct tcp_op *op, int status)
{
    op_unlink(op);
    op->status = status;
    op->link->started--;
    op->link->nlong -= op->len > TCP_BULK_MIN;
    tcp_queue_push(&tcp_nic_of(op->link)->done, op);
}
