/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of weft_perf say to each other: the bytes, and the conn that carries them. */
#include "perf_msg.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "perf_fail.h"

#define MAGIC 0x46525057u /* "WPRF" */
#define VERSION 2u
/* A side that is idle answers within this; filling its memory counts as part of the size. */
#define ANSWER_MS 20000
/* An error is told to a peer that may be gone. */
#define ERROR_MS 1000

static const char *const names[PERF_MSG_TYPES] = {
    "none", "hello", "welcome",  "address", "idle", "run",   "ready",
    "go",   "end",   "finished", "result",  "bye",  "error",
};

const char *perf_msg_name(uint32_t type)
{
    return type < PERF_MSG_TYPES ? names[type] : "unknown";
}

static uint8_t *put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static uint8_t *put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static uint32_t get32(const uint8_t **at)
{
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return le32toh(value);
}

static uint64_t get64(const uint8_t **at)
{
    uint64_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return le64toh(value);
}

size_t perf_msg_encode(const struct perf_msg *msg, uint8_t wire[PERF_MSG_MAX])
{
    uint8_t *at = put32(wire, MAGIC);
    at = put32(at, VERSION << 16 | msg->type);
    at = put32(at, msg->test);
    at = put32(at, msg->flags);
    at = put32(at, msg->threads);
    at = put32(at, msg->conns);
    at = put32(at, msg->timeout_s);
    at = put32(at, msg->iovs);
    at = put32(at, msg->slots);
    at = put64(at, msg->bytes);
    at = put64(at, msg->iters);
    at = put64(at, msg->seed);
    at = put64(at, msg->footprint);
    at = put64(at, msg->behind);
    at = put64(at, msg->cpu_ns);
    memcpy(at, msg->blob, msg->blob_len);
    return PERF_MSG_WIRE + msg->blob_len;
}

int perf_msg_decode(const uint8_t *wire, size_t len, struct perf_msg *msg)
{
    if (len < PERF_MSG_WIRE || len > PERF_MSG_MAX)
        return -1;
    memset(msg, 0, sizeof *msg);
    if (get32(&wire) != MAGIC)
        return -1;
    uint32_t head = get32(&wire);
    msg->type = head & 0xffff;
    if (head >> 16 != VERSION || msg->type == 0 || msg->type >= PERF_MSG_TYPES)
        return -1;
    msg->test = get32(&wire);
    msg->flags = get32(&wire);
    msg->threads = get32(&wire);
    msg->conns = get32(&wire);
    msg->timeout_s = get32(&wire);
    msg->iovs = get32(&wire);
    msg->slots = get32(&wire);
    msg->bytes = get64(&wire);
    msg->iters = get64(&wire);
    msg->seed = get64(&wire);
    msg->footprint = get64(&wire);
    msg->behind = get64(&wire);
    msg->cpu_ns = get64(&wire);
    msg->blob_len = (uint32_t)(len - PERF_MSG_WIRE);
    memcpy(msg->blob, wire, msg->blob_len);
    return msg->flags & ~PERF_FLAG_ALL ? -1 : 0;
}

static int post_recv(struct perf_channel *channel)
{
    struct weft_local local = {.addr = channel->in, .len = sizeof channel->in};
    int rc = weft_post(channel->conn,
                       WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1),
                       &channel->recv);
    return rc < 0 ? perf_fail("cannot receive from the other side: %s", weft_last_error()) : 0;
}

int perf_channel_open(struct perf_channel *channel, weft_endpoint_t endpoint, weft_conn_t conn)
{
    channel->endpoint = endpoint;
    channel->conn = conn;
    return post_recv(channel);
}

int perf_channel_send(struct perf_channel *channel, const struct perf_msg *msg)
{
    size_t len = perf_msg_encode(msg, channel->out);
    int64_t rc = weft_send(channel->conn, channel->out, len, ANSWER_MS);
    if (rc < 0)
        return perf_fail("cannot tell the other side '%s': %s", perf_msg_name(msg->type),
                         weft_last_error());
    return 0;
}

/* Text of a stranger: only what can be printed. */
static int fail_as_told(struct perf_msg *msg)
{
    for (uint32_t i = 0; i < msg->blob_len; i++)
        if (msg->blob[i] < ' ' || msg->blob[i] > '~')
            msg->blob[i] = '?';
    return perf_fail("the other side: %.*s", (int)msg->blob_len, (const char *)msg->blob);
}

int perf_channel_poll(struct perf_channel *channel, struct perf_msg *msg)
{
    struct weft_op_status status = {0};
    int rc = weft_op_poll(channel->recv, &status);
    if (rc == 0)
        return 0;
    if (rc < 0)
        return perf_fail("lost the other side: %s",
                         status.text[0] ? status.text : weft_strerror(rc));
    if (perf_msg_decode(channel->in, status.bytes, msg))
        return perf_fail("the other side is no weft_perf of this version");
    if (msg->type == PERF_MSG_ERROR)
        return fail_as_told(msg);
    if (msg->type == PERF_MSG_BYE)
        return 1; /* nothing follows: the conn may be closed already */
    return post_recv(channel) ? -1 : 1;
}

int perf_channel_wait(struct perf_channel *channel, int timeout_ms, struct perf_msg *msg)
{
    uint64_t deadline = now_ns() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        int rc = perf_channel_poll(channel, msg);
        if (rc)
            return rc < 0 ? -1 : 0;
        if (perf_stopped())
            return perf_fail_stopped();
        if (now_ns() > deadline)
            return perf_fail("the other side has said nothing for %d ms", timeout_ms);
        if (weft_endpoint_progress(channel->endpoint, PERF_SLICE_MS) < 0)
            return perf_fail("no progress: %s", weft_last_error());
    }
}

int perf_channel_expect(struct perf_channel *channel, enum perf_msg_type type, int timeout_ms,
                        struct perf_msg *msg)
{
    if (perf_channel_wait(channel, timeout_ms, msg))
        return -1;
    if (msg->type != type)
        return perf_fail("the other side says '%s' where '%s' was due", perf_msg_name(msg->type),
                         perf_msg_name(type));
    return 0;
}

void perf_channel_bye(struct perf_channel *channel)
{
    size_t len = perf_msg_encode(&(struct perf_msg){.type = PERF_MSG_BYE}, channel->out);
    (void)weft_send(channel->conn, channel->out, len, ANSWER_MS);
}

void perf_channel_error(struct perf_channel *channel, const char *text)
{
    struct perf_msg msg = {.type = PERF_MSG_ERROR};
    if (!channel->conn)
        return;
    msg.blob_len = (uint32_t)snprintf((char *)msg.blob, sizeof msg.blob, "%s", text);
    if (msg.blob_len >= sizeof msg.blob)
        msg.blob_len = sizeof msg.blob - 1;
    size_t len = perf_msg_encode(&msg, channel->out);
    (void)weft_send(channel->conn, channel->out, len, ERROR_MS); /* best effort */
}
