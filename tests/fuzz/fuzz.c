/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a fuzz target, read as a list of choices. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

_Noreturn void fuzz_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
    abort();
}

bool fuzz_more(const struct fuzz_in *in)
{
    return in->at < in->end;
}

size_t fuzz_span(struct fuzz_in *in, size_t len, const uint8_t **span)
{
    size_t left = (size_t)(in->end - in->at);
    size_t n = len < left ? len : left;
    *span = in->at;
    in->at += n;
    return n;
}

void fuzz_bytes(struct fuzz_in *in, void *buf, size_t len)
{
    const uint8_t *span;
    size_t n = fuzz_span(in, len, &span);
    memset(buf, 0, len);
    if (n)
        memcpy(buf, span, n);
}

uint8_t fuzz_u8(struct fuzz_in *in)
{
    return fuzz_more(in) ? *in->at++ : 0;
}

uint16_t fuzz_u16(struct fuzz_in *in)
{
    uint16_t v;
    fuzz_bytes(in, &v, sizeof v);
    return v;
}

uint32_t fuzz_u32(struct fuzz_in *in)
{
    uint32_t v;
    fuzz_bytes(in, &v, sizeof v);
    return v;
}

uint64_t fuzz_u64(struct fuzz_in *in)
{
    uint64_t v;
    fuzz_bytes(in, &v, sizeof v);
    return v;
}

uint32_t fuzz_pick(struct fuzz_in *in, uint32_t n)
{
    return fuzz_u8(in) % n;
}

uint64_t fuzz_near(struct fuzz_in *in, uint64_t right)
{
    int8_t how = (int8_t)fuzz_u8(in); /* 0, where the input has ended: right */
    if (how == INT8_MAX)
        return fuzz_u64(in);
    if (how >= 96)
        return right + (uint64_t)(how - 95);
    return how < 0 && how >= -32 ? right + (uint64_t)how : right;
}

char *fuzz_text(struct fuzz_in *in)
{
    const uint8_t *span;
    size_t n = fuzz_span(in, SIZE_MAX, &span);
    char *text = malloc(n + 1);
    FUZZ_CHECK(text);
    if (n)
        memcpy(text, span, n);
    text[n] = 0;
    return text;
}

size_t fuzz_damage(struct fuzz_in *in, uint8_t *frame, size_t len)
{
    uint8_t how = fuzz_u8(in);
    if (how >= 192 && len)
        frame[fuzz_u16(in) % len] ^= fuzz_u8(in);
    if (how >= 240)
        len = fuzz_u16(in) % (len + 1);
    return len;
}

const uint8_t *fuzz_link_key(void)
{
    static const uint8_t key[WEFT_MAC] = "the key of a link";
    return weft__mac_load() == 0 ? key : NULL;
}

bool fuzz_prove(struct fuzz_in *in, const void *said, size_t len, uint8_t proof[WEFT_MAC])
{
    uint8_t how = fuzz_u8(in), key[WEFT_MAC];
    memcpy(key, fuzz_link_key(), sizeof key);
    if (how >= 224)
        key[how % WEFT_MAC] ^= 1;
    FUZZ_OK(weft_mac(key, said, len, proof));
    if (how >= 192 && how < 224) /* as if there were no key */
        memset(proof, 0, WEFT_MAC);
    return how < 192;
}
