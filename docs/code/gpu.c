/* SPDX-License-Identifier: Apache-2.0 */
/* The code of docs/gpu.md: drives a backend as core does, without knowing which it is. */
#include <stdio.h>
#include <string.h>

#include "weft/gpu.h"

/* quote start */
static int round_trip(const struct weft_gpu_backend *backend)
{
    struct weft_gpu *gpu;
    struct weft_gpu_range range;
    char text[] = "hello, device", copy[sizeof text];
    void *memory;

    int rc = backend->ops->open(0, &gpu);
    if (rc < 0)
        return rc; /* weft_last_error() says why */
    rc = backend->ops->alloc(gpu, sizeof text, &memory);
    if (rc == 0) {
        backend->ops->copy(gpu, memory, text, sizeof text, NULL); /* no stream: done on return */
        backend->ops->copy(gpu, copy, memory, sizeof text, NULL);
        rc = backend->ops->query(memory, &range); /* 1: it is this backend's */
        backend->ops->free(gpu, memory);
    }
    backend->ops->close(gpu);
    return rc == 1 && !strcmp(text, copy) ? 0 : -1;
}
/* end */

int main(void)
{
    const struct weft_gpu_backend *backend = weft_gpu_find("auto");
    if (!backend) {
        fprintf(stderr, "%s\n", weft_last_error());
        return 1;
    }
    printf("%s: %d devices\n", backend->name, backend->ops->probe());
    return round_trip(backend) ? 1 : 0;
}
