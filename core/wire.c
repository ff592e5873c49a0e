/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian encoding and bounds-checked decoding of what crosses a wire. */
#include "util.h"

#include <endian.h>
#include <string.h>

void weft__put(struct weft__writer *w, const void *data, size_t len)
{
    if (w->bad || len > (size_t)(w->end - w->at)) {
        w->bad = true;
        return;
    }
    if (len)
        memcpy(w->at, data, len);
    w->at += len;
}

void weft__put_u8(struct weft__writer *w, uint8_t v)
{
    weft__put(w, &v, sizeof v);
}

void weft__put_u16(struct weft__writer *w, uint16_t v)
{
    v = htole16(v);
    weft__put(w, &v, sizeof v);
}

void weft__put_u32(struct weft__writer *w, uint32_t v)
{
    v = htole32(v);
    weft__put(w, &v, sizeof v);
}

void weft__put_u64(struct weft__writer *w, uint64_t v)
{
    v = htole64(v);
    weft__put(w, &v, sizeof v);
}

void weft__put_text(struct weft__writer *w, const char *text)
{
    size_t len = strlen(text);
    weft__put_u16(w, (uint16_t)len);
    weft__put(w, text, (uint16_t)len);
}

const void *weft__get_span(struct weft__reader *r, size_t len)
{
    if (r->bad || len > (size_t)(r->end - r->at)) {
        r->bad = true;
        return NULL;
    }
    const void *span = r->at;
    r->at += len;
    return span;
}

void weft__get(struct weft__reader *r, void *data, size_t len)
{
    const void *span = weft__get_span(r, len);
    if (span)
        memcpy(data, span, len);
    else
        memset(data, 0, len);
}

uint8_t weft__get_u8(struct weft__reader *r)
{
    uint8_t v = 0;
    weft__get(r, &v, sizeof v);
    return v;
}

uint16_t weft__get_u16(struct weft__reader *r)
{
    uint16_t v = 0;
    weft__get(r, &v, sizeof v);
    return le16toh(v);
}

uint32_t weft__get_u32(struct weft__reader *r)
{
    uint32_t v = 0;
    weft__get(r, &v, sizeof v);
    return le32toh(v);
}

uint64_t weft__get_u64(struct weft__reader *r)
{
    uint64_t v = 0;
    weft__get(r, &v, sizeof v);
    return le64toh(v);
}

void weft__get_text(struct weft__reader *r, char *text, size_t cap)
{
    size_t len = weft__get_u16(r);
    const char *span = weft__get_span(r, len);
    if (!span || len >= cap || memchr(span, 0, len)) {
        r->bad = true;
        text[0] = 0;
        return;
    }
    memcpy(text, span, len);
    text[len] = 0;
}
