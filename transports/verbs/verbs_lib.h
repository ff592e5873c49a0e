/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs, opened when they are first needed. */
#ifndef WEFT_VERBS_LIB_H
#define WEFT_VERBS_LIB_H

#include <infiniband/verbs.h>

/* Needed, and those of newer versions. ibv_post_send and its like are no symbols: they are called
 * through the context, as verbs.h has them. */
#define VERBS_SYMBOLS(XX)                                                                         \
    XX(get_device_list)                                                                           \
    XX(free_device_list)                                                                          \
    XX(get_device_name)                                                                           \
    XX(open_device)                                                                               \
    XX(close_device)                                                                              \
    XX(query_device)                                                                              \
    XX(query_port)                                                                                \
    XX(query_gid)                                                                                 \
    XX(query_pkey)                                                                                \
    XX(alloc_pd)                                                                                  \
    XX(dealloc_pd)                                                                                \
    XX(reg_mr)                                                                                    \
    XX(dereg_mr)                                                                                  \
    XX(create_comp_channel)                                                                       \
    XX(destroy_comp_channel)                                                                      \
    XX(create_cq)                                                                                 \
    XX(destroy_cq)                                                                                \
    XX(get_cq_event)                                                                              \
    XX(ack_cq_events)                                                                             \
    XX(create_srq)                                                                                \
    XX(destroy_srq)                                                                               \
    XX(create_qp)                                                                                 \
    XX(modify_qp)                                                                                 \
    XX(destroy_qp)                                                                                \
    XX(get_async_event)                                                                           \
    XX(ack_async_event)                                                                           \
    XX(wc_status_str)                                                                             \
    XX(event_type_str)
#define VERBS_OPTIONAL_SYMBOLS(XX)                                                                \
    XX(reg_mr_iova2)                                                                              \
    XX(reg_dmabuf_mr)

/* Not every verbs.h declares it under this name. */
typedef ssize_t verbs_query_gid_table_fn(struct ibv_context *context,
                                         struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                                         size_t entry_size);

struct verbs_lib {
#define VERBS_MEMBER(name) __typeof__(&ibv_##name) name;
    VERBS_SYMBOLS(VERBS_MEMBER)
    VERBS_OPTIONAL_SYMBOLS(VERBS_MEMBER)
#undef VERBS_MEMBER
    verbs_query_gid_table_fn *query_gid_table; /* optional, too */
};

/* The library that WEFT_VERBS_LIBRARY names, or NULL and the reason in weft_last_error. It is never
 * closed, so the pointer stays good. Any thread. */
const struct verbs_lib *verbs_lib(void);

#endif
