/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs that peers are given by any means: metadata, and what connecting with it does; remotes,
 * slices of them, lists of regions, and operations that use them.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "util.h"
#include "weft/endpoint.h"

static weft_endpoint_t endpoint;
static weft_mem_t mem;
static uint8_t memory[256];

static void set_up(void)
{
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "stub",
                                         .listen = "127.0.0.1",
                                         .progress_threads = WEFT_PROGRESS_CALLER),
                               &endpoint));
    FUZZ_OK(weft_mem_reg(endpoint, memory, sizeof memory, NULL, &mem));
    fuzz_net_refuse(true); /* whom metadata names is not called */
}

/* --- metadata ------------------------------------------------------------------------------- */

static void use_metadata(const uint8_t *blob, size_t len)
{
    struct weft_metadata_info info;
    weft_conn_t conn;
    int rc = weft_metadata_parse(blob, len, &info);
    FUZZ_CHECK(rc == 0 || rc == WEFT_EPROTO || rc == WEFT_EVERSION);
    if (rc == 0)
        FUZZ_CHECK(memchr(info.host, 0, sizeof info.host) && info.port &&
                   memchr(info.hostname, 0, sizeof info.hostname));
    int connected = weft_endpoint_connect(endpoint, blob, len,
                                          WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &conn);
    FUZZ_CHECK(rc == 0 || connected == rc);
    if (connected == 0)
        FUZZ_OK(weft_conn_close(conn));
    FUZZ_CHECK(weft_endpoint_progress(endpoint, 0) >= 0);
    FUZZ_CHECK(weft_endpoint_conns(endpoint, NULL, 0) == 0);
}

/* As an endpoint writes it, with texts and counts of the input. */
static size_t build_metadata(struct fuzz_in *in, uint8_t *blob, size_t cap)
{
    static const char *const hosts[] = {"127.0.0.1", "::1", "10.0.0.1", "fe80::1%lo", "cafe.de"};
    struct weft__writer w = {blob, blob + cap, false};
    uint8_t zeros[16 + 16 + 8 + 4] = {0}; /* uuid, boot id, namespace, pid */
    char text[80] = "";
    weft__put_u32(&w, 0x4d465457u);
    weft__put_u16(&w, (uint16_t)fuzz_near(in, 1));
    weft__put_u16(&w, 0);
    weft__put(&w, zeros, sizeof zeros);
    weft__put_u16(&w, fuzz_u16(in));
    weft__put_text(&w, "host");
    uint8_t n = fuzz_u8(in) % 10, said = (uint8_t)fuzz_near(in, n);
    weft__put_u8(&w, said);
    for (int i = 0; i < n; i++) {
        uint8_t which = fuzz_u8(in);
        fuzz_bytes(in, text, which < 128 ? 0 : which % sizeof text);
        weft__put_text(&w, which < 128 ? hosts[which % WEFT__ARRAY_LEN(hosts)] : text);
    }
    return (size_t)(w.at - blob);
}

static void fuzz_metadata(struct fuzz_in *in, bool raw)
{
    uint8_t buf[1024];
    const uint8_t *blob;
    size_t len = raw ? fuzz_span(in, sizeof buf, &blob) : build_metadata(in, buf, sizeof buf);
    if (raw)
        memcpy(buf, blob, len);
    len = fuzz_damage(in, buf, len);
    uint8_t *exact = malloc(len ? len : 1); /* so that a read past the end is seen */
    FUZZ_CHECK(exact);
    memcpy(exact, buf, len);
    use_metadata(exact, len);
    free(exact);
}

/* --- remotes -------------------------------------------------------------------------------- */

static void fuzz_remote(struct fuzz_in *in)
{
    struct weft_remote remote, piece;
    struct weft_remote_info info, part;
    FUZZ_OK(weft_mem_advertise(mem, memory, sizeof memory, &remote));
    fuzz_damage(in, remote.bytes, sizeof remote.bytes);
    fuzz_damage(in, remote.bytes, sizeof remote.bytes);
    uint64_t offset = fuzz_near(in, 0), len = fuzz_near(in, sizeof memory);
    int rc = weft_remote_parse(&remote, &info);
    int sliced = weft_remote_slice(&remote, offset, len, &piece);
    FUZZ_CHECK(rc == 0 || sliced == rc);
    if (sliced)
        return;
    FUZZ_OK(weft_remote_parse(&piece, &part));
    FUZZ_CHECK(part.addr - info.addr == offset && part.len == len);
    FUZZ_CHECK(part.addr >= info.addr && part.addr + part.len <= info.addr + info.len);
}

/* A list of regions, damaged. What is read of it reads as remotes. */
static void fuzz_regions(struct fuzz_in *in)
{
    enum { MOST = 5 };
    struct weft_region regions[MOST];
    struct weft_remote remotes[2];
    struct weft_remote_info info;
    size_t n = fuzz_pick(in, MOST);
    for (size_t i = 0; i < n; i++)
        regions[i] = (struct weft_region){.mem = mem, .addr = memory, .len = i * 10};
    uint8_t buf[1024];
    int64_t len = weft_regions_pack(regions, n, buf, sizeof buf);
    FUZZ_CHECK(len > 0 && len <= (int64_t)sizeof buf);
    size_t cut = fuzz_damage(in, buf, (size_t)len);
    uint8_t *exact = malloc(cut ? cut : 1);
    FUZZ_CHECK(exact);
    memcpy(exact, buf, cut);
    int64_t got = weft_regions_unpack(exact, cut, remotes, WEFT__ARRAY_LEN(remotes));
    for (int64_t i = 0; i < got && i < (int64_t)WEFT__ARRAY_LEN(remotes); i++)
        FUZZ_OK(weft_remote_parse(&remotes[i], &info));
    FUZZ_CHECK(got <= MOST);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, data + size};
    if (!endpoint)
        set_up();
    uint8_t which = fuzz_u8(&in) % 4;
    if (which < 2)
        fuzz_metadata(&in, which == 0);
    else if (which == 2)
        fuzz_remote(&in);
    else
        fuzz_regions(&in);
    return 0;
}
