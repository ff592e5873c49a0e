/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian encoding and bounds-checked decoding of what crosses a wire. */
#include "internal.h"

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

static void put_number(struct weft__writer *w, uint64_t v, size_t len)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    weft__put(w, bytes, len);
}

void weft__put_u8(struct weft__writer *w, uint8_t v)
{
    put_number(w, v, 1);
}

void weft__put_u16(struct weft__writer *w, uint16_t v)
{
    put_number(w, v, 2);
}

void weft__put_u32(struct weft__writer *w, uint32_t v)
{
    put_number(w, v, 4);
}

void weft__put_u64(struct weft__writer *w, uint64_t v)
{
    put_number(w, v, 8);
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

static uint64_t get_number(struct weft__reader *r, size_t len)
{
    uint8_t bytes[8];
    uint64_t v = 0;
    weft__get(r, bytes, len);
    for (size_t i = 0; i < len; i++)
        v |= (uint64_t)bytes[i] << (8 * i);
    return v;
}

uint8_t weft__get_u8(struct weft__reader *r)
{
    return (uint8_t)get_number(r, 1);
}

uint16_t weft__get_u16(struct weft__reader *r)
{
    return (uint16_t)get_number(r, 2);
}

uint32_t weft__get_u32(struct weft__reader *r)
{
    return (uint32_t)get_number(r, 4);
}

uint64_t weft__get_u64(struct weft__reader *r)
{
    return get_number(r, 8);
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
