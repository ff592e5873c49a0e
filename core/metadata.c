/* SPDX-License-Identifier: Apache-2.0 */
/* What an endpoint says of itself to those who want to connect, and what they make of it. */
#include "metadata.h"

#include "endpoint.h"
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* u32 magic, u16 version, u16 zero, uuid, boot id, u64 netns, u32 pid, u16 port, hostname,
 * u8 n, n numeric addresses as text. */
#define METADATA_MAGIC 0x4d465457u
#define METADATA_VERSION 1

int weft_endpoint_metadata(weft_endpoint_t handle, void *buf, size_t cap)
{
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    uint8_t bytes[WEFT_METADATA_MAX];
    char text[64] = "";
    struct weft__address list[WEFT__METADATA_ADDRESSES];
    struct weft__writer w = {bytes, bytes + sizeof bytes, false};
    weft__put_u32(&w, METADATA_MAGIC);
    weft__put_u16(&w, METADATA_VERSION);
    weft__put_u16(&w, 0);
    weft__put(&w, ep->uuid, sizeof ep->uuid);
    weft__put(&w, ep->host.boot_id, sizeof ep->host.boot_id);
    weft__put_u64(&w, ep->host.netns);
    weft__put_u32(&w, ep->pid);
    weft__put_u16(&w, weft__address_port(&ep->bound));
    gethostname(text, sizeof text - 1);
    weft__put_text(&w, text);
    int n = weft__address_list(&ep->bound, list, WEFT__METADATA_ADDRESSES);
    weft__put_u8(&w, (uint8_t)n);
    for (int i = 0; i < n; i++) {
        weft__address_host(&list[i], text, sizeof text);
        weft__put_text(&w, text);
    }
    weft__handle_put(handle);
    int len = (int)(w.at - bytes);
    if (w.bad)
        return weft_fail(WEFT_ELIMIT, "metadata does not fit %d bytes", WEFT_METADATA_MAX);
    if (buf && cap >= (size_t)len)
        memcpy(buf, bytes, (size_t)len);
    return len;
}

int weft__metadata_decode(const void *data, size_t len, struct weft__metadata *m)
{
    memset(m, 0, sizeof *m);
    if (!data)
        return weft_fail(-EINVAL, "metadata is NULL");
    if (len > WEFT_METADATA_MAX) /* a code of weft_endpoint_metadata, taken for a length? */
        return weft_fail(WEFT_EPROTO, "%zu bytes that are not metadata: it has %d at most", len, WEFT_METADATA_MAX);
    struct weft__reader r = {data, (const uint8_t *)data + len, false};
    uint32_t magic = weft__get_u32(&r);
    uint16_t version = weft__get_u16(&r), zero = weft__get_u16(&r);
    if (r.bad || magic != METADATA_MAGIC || zero)
        return weft_fail(WEFT_EPROTO, "%zu bytes that are not metadata", len);
    if (version != METADATA_VERSION)
        return weft_fail(WEFT_EVERSION, "metadata has version %u, this library reads %u", version,
                         METADATA_VERSION);
    weft__get(&r, m->info.uuid, sizeof m->info.uuid);
    weft__get(&r, m->host.boot_id, sizeof m->host.boot_id);
    m->host.netns = weft__get_u64(&r);
    m->info.pid = weft__get_u32(&r);
    m->info.port = weft__get_u16(&r);
    weft__get_text(&r, m->info.hostname, sizeof m->info.hostname);
    m->n = weft__get_u8(&r);
    if (m->n > WEFT__METADATA_ADDRESSES)
        return weft_fail(WEFT_EPROTO, "metadata with %d addresses", m->n);
    for (int i = 0; i < m->n; i++)
        weft__get_text(&r, m->addresses[i], sizeof m->addresses[i]);
    if (r.bad || r.at != r.end || !m->n || !m->info.port)
        return weft_fail(WEFT_EPROTO, "malformed metadata of %zu bytes", len);
    memcpy(m->info.host, m->addresses[0], sizeof m->info.host);
    return 0;
}

int weft_metadata_parse(const void *metadata, size_t len, struct weft_metadata_info *info)
{
    struct weft__metadata m;
    if (!info)
        return weft_fail(-EINVAL, "weft_metadata_parse: info is NULL");
    int rc = weft__metadata_decode(metadata, len, &m);
    if (rc == 0)
        *info = m.info;
    return rc;
}

/* What a peer names is never resolved: "cafe.de" is a host, and made of hexadecimal digits. */
static bool is_numeric(const char *host)
{
    char text[64];
    struct in6_addr addr;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(host, "%"), host); /* without a scope */
    return inet_pton(AF_INET, host, &addr) == 1 || inet_pton(AF_INET6, text, &addr) == 1;
}

int weft__metadata_addresses(const struct weft__metadata *m, struct weft__address *list)
{
    for (int i = 0; i < m->n; i++) {
        char text[80];
        if (!is_numeric(m->addresses[i]))
            return weft_fail(WEFT_EPROTO, "metadata names a host that is not numeric");
        snprintf(text, sizeof text, "[%s]:%u", m->addresses[i], m->info.port);
        int rc = weft__address_parse(text, &list[i]);
        if (rc)
            return rc;
    }
    return m->n;
}
