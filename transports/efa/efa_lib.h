/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libfabric, opened when they are first needed. */
#ifndef WEFT_EFA_LIB_H
#define WEFT_EFA_LIB_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* All the symbols that there are: the rest is called through the objects, as the headers have it. */
#define EFA_SYMBOLS(XX)                                                                           \
    XX(getinfo)                                                                                   \
    XX(freeinfo)                                                                                  \
    XX(dupinfo)                                                                                   \
    XX(fabric)                                                                                    \
    XX(version)                                                                                   \
    XX(strerror)

struct efa_lib {
#define EFA_MEMBER(name) __typeof__(&fi_##name) name;
    EFA_SYMBOLS(EFA_MEMBER)
#undef EFA_MEMBER
    uint32_t api; /* version of the interface that it is asked for */
};

/* The library that WEFT_EFA_LIBRARY names, or NULL and the reason in weft_last_error. It is never
 * closed, so the pointer stays good. Any thread. */
const struct efa_lib *efa_lib(void);

#endif
