/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What client and server say to each other, as notifications of one length.
 *
 * Little-endian: u32 magic, u16 version, u8 type, u8 status, u32 id, u32 file, u32 piece,
 * u32 zero, u64 length, 32 bytes digest, 64 bytes remote.
 */
#include "weights.h"

#include <endian.h>
#include <string.h>

#define MAGIC 0x54484757u /* "WGHT" */
#define VERSION 1

struct wire {
    uint32_t magic;
    uint16_t version;
    uint8_t type;
    uint8_t status;
    uint32_t id;
    uint32_t file;
    uint32_t piece;
    uint32_t zero;
    uint64_t len;
    uint8_t digest[DIGEST];
    uint8_t remote[64];
};
_Static_assert(sizeof(struct wire) == MESSAGE_BYTES, "a message has no padding");

void message_encode(const struct message *m, uint8_t out[MESSAGE_BYTES])
{
    struct wire w = {.magic = htole32(MAGIC),
                     .version = htole16(VERSION),
                     .type = (uint8_t)m->type,
                     .status = (uint8_t)m->status,
                     .id = htole32(m->id),
                     .file = htole32(m->file),
                     .piece = htole32(m->piece),
                     .len = htole64(m->len)};
    memcpy(w.digest, m->digest, DIGEST);
    memcpy(w.remote, m->remote.bytes, sizeof w.remote);
    memcpy(out, &w, sizeof w);
}

int message_decode(const void *data, size_t len, struct message *m)
{
    struct wire w;
    if (len != sizeof w)
        return WEFT_EPROTO;
    memcpy(&w, data, sizeof w);
    if (w.magic != htole32(MAGIC))
        return WEFT_EPROTO;
    if (w.version != htole16(VERSION))
        return WEFT_EVERSION;
    if (w.type < MSG_HELLO || w.type > MSG_CLOSE || w.status > STATUS_BUSY || w.zero)
        return WEFT_EPROTO;
    m->type = w.type;
    m->status = w.status;
    m->id = le32toh(w.id);
    m->file = le32toh(w.file);
    m->piece = le32toh(w.piece);
    m->len = le64toh(w.len);
    memcpy(m->digest, w.digest, DIGEST);
    memcpy(m->remote.bytes, w.remote, sizeof w.remote);
    return 0;
}

int message_post(weft_conn_t conn, const struct message *m)
{
    uint8_t bytes[MESSAGE_BYTES];
    message_encode(m, bytes);
    return weft_post(
        conn,
        WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes, .notify_len = sizeof bytes),
        NULL);
}
