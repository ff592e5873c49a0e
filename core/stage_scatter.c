/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a short message, which are here already, into memory of GPUs. The endpoint lock is held. */
#include "copier.h"
#include "endpoint.h"
#include "stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Copies to GPUs, and the bytes that they are of. */
struct scatter {
    struct weft__copy copy;
    struct weft__op *op;
    uint8_t bytes[];
};

static void scattered(struct weft__copy *copy, int status, const char *why)
{
    struct scatter *scatter = (struct scatter *)copy; /* the first member */
    struct weft__op *op = scatter->op;
    if (status)
        weft__op_fail(op, status, why);
    free(scatter);
    weft__op_unpend(op);
}

static int scatter_one(struct weft__op *op, const struct weft__piece *piece, const uint8_t *data,
                       uint64_t len)
{
    struct scatter *scatter = malloc(sizeof *scatter + len);
    if (!scatter)
        return -ENOMEM;
    memcpy(scatter->bytes, data, len);
    scatter->op = op;
    scatter->copy = (struct weft__copy){.ordinal = piece->gpu - 1,
                                        .list = &scatter->copy.one,
                                        .n = 1,
                                        .host = WEFT_GPU_FROM_HOST,
                                        .one = {piece->addr, scatter->bytes, len},
                                        .done = scattered};
    op->pending++;
    weft__copy_push(op->ep, &scatter->copy);
    return 0;
}

int weft__stage_scatter(struct weft__op *op, const uint8_t *data, uint64_t len)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < op->npieces && len; i++) {
        const struct weft__piece *piece = &op->pieces[i];
        uint64_t n = piece->len < len ? piece->len : len;
        if (n && piece->gpu)
            rc = scatter_one(op, piece, data, n);
        else if (n)
            memcpy(piece->addr, data, n);
        data += n;
        len -= n;
    }
    return rc;
}
