/* SPDX-License-Identifier: Apache-2.0 */
/* A program outside the tree: built against what was installed, it moves bytes to itself. */
#include <weft.h>

#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 10000

static int fail(const char *step)
{
    fprintf(stderr, "%s: %s\n", step, weft_last_error());
    return 1;
}

int main(void)
{
    char from[] = "installed", to[sizeof from] = "";
    unsigned char metadata[WEFT_METADATA_MAX];
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    weft_mem_t mem;
    struct weft_remote remote;

    if (strcmp(weft_version(), WEFT_VERSION_STRING))
        return fail("header and library are of different versions");
    if (weft_endpoint_open(NULL, &endpoint))
        return fail("open");
    int len = weft_endpoint_metadata(endpoint, metadata, sizeof metadata);
    if (len < 0 || weft_endpoint_connect(endpoint, metadata, (size_t)len, NULL, &conn))
        return fail("connect");
    if (weft_mem_reg(endpoint, to, sizeof to, NULL, &mem) ||
        weft_mem_advertise(mem, to, sizeof to, &remote))
        return fail("register");
    if (weft_write(conn, from, sizeof from, &remote, 0, TIMEOUT_MS) != sizeof from)
        return fail("write");
    if (strcmp(from, to))
        return fail("the bytes are not there");
    weft_endpoint_close(endpoint);
    printf("weft %s: %s\n", weft_version(), to);
    return 0;
}
