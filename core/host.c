/* SPDX-License-Identifier: Apache-2.0 */
/* Which host this is: the same boot of the same kernel, seen from the same network namespace. */
#include "util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "0123abcd-..." into 16 bytes; whatever cannot be read stays zero. */
void weft_boot_id(uint8_t id[16])
{
    memset(id, 0, 16);
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) < 0)
        text[0] = 0;
    close(fd);
    int nibbles = 0;
    for (const char *p = text; *p && nibbles < 32; p++) {
        int digit = hex_digit(*p);
        if (digit < 0)
            continue;
        id[nibbles / 2] = (uint8_t)(id[nibbles / 2] << 4 | digit);
        nibbles++;
    }
}

void weft__host_self(struct weft__host *host)
{
    memset(host, 0, sizeof *host);
    weft_boot_id(host->boot_id);
    struct stat st;
    if (stat("/proc/self/ns/net", &st) == 0)
        host->netns = st.st_ino;
}

bool weft__host_same(const struct weft__host *a, const struct weft__host *b)
{
    static const uint8_t unknown[16];
    return memcmp(a->boot_id, unknown, 16) && !memcmp(a->boot_id, b->boot_id, 16) &&
           a->netns == b->netns;
}
