/* SPDX-License-Identifier: Apache-2.0 */
/* What an endpoint says of itself (weft_endpoint_metadata), as its peers read it. */
#ifndef WEFT_CORE_METADATA_H
#define WEFT_CORE_METADATA_H

#include "util.h"
#include "weft/endpoint.h"

#define WEFT__METADATA_ADDRESSES 8

struct weft__metadata {
    struct weft__host host;
    struct weft_metadata_info info;
    int n;
    char addresses[WEFT__METADATA_ADDRESSES][64]; /* numeric, or it is refused */
};

/* 0; -EINVAL: there is none; WEFT_EPROTO, WEFT_EVERSION: bytes that are not metadata, or of another version. */
int weft__metadata_decode(const void *data, size_t len, struct weft__metadata *m);
/* Where the endpoint listens, at most WEFT__METADATA_ADDRESSES. Returns how many, or WEFT_EPROTO. */
int weft__metadata_addresses(const struct weft__metadata *m, struct weft__address *list);

#endif
