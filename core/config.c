/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every setting of Weft, in one table. The environment is read on behalf of a caller only (an endpoint is opened, a setting asked
 * for or set): a thread of Weft's own would be in getenv while the application is in setenv. Texts stay (env.c), so reading
 * a setting takes no lock.
 */
#include "handshake.h"
#include "rail.h"
#include "util.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_STRING, KIND_LOG, KIND_INT, KIND_POWER, KIND_SIZE, KIND_BOOL };
static const char *const kind_names[] = {"string", "string", "int", "power of 2", "size", "bool"};

/* name, kind, default, least, most, help */
#define CONFIG_MAP(XX)                                                                            \
    XX("WEFT_LOG", LOG, "warn", 0, 0,                                                             \
       "level (error warn info debug), and levels of subsystems: warn,tcp:debug")                 \
    XX("WEFT_TRANSPORT", STRING, "auto", 0, 0,                                                    \
       "transports to use, best first, e.g. tcp or local,tcp: what is named has to open; auto: "  \
       "all that do, best first")                                                                 \
    XX("WEFT_GPU", STRING, "auto", 0, 0,                                                          \
       "GPU backend to use; auto: that whose vendor's library the process has loaded")            \
    XX("WEFT_MODULE_PATH", STRING, "", 0, 0,                                                      \
       "directories, separated by colons, from which weft_*.so modules are loaded")               \
    XX("WEFT_LISTEN", STRING, "127.0.0.1", 0, 0,                                                  \
       "where endpoints accept connections: HOST, HOST:PORT, :PORT (all, IPv4), [::]:PORT (all, IPv6)")             \
    XX("WEFT_SECRET_FILE", STRING, "", 0, 0,                                                      \
       "file with the secret that endpoints share, 16 to 4096 bytes; others may not read it")     \
    XX("WEFT_PROGRESS_THREADS", INT, "1", 0, 64,                                                  \
       "threads of an endpoint that move its bytes; 0: only calls into Weft do")                  \
    XX("WEFT_SPIN", INT, "50", 0, 1000000,                                                        \
       "microseconds that an idle thread polls before it sleeps")                                 \
    XX("WEFT_BACKLOG", INT, "128", 1, 65536,                                                      \
       "accepted conns that may wait for weft_endpoint_accept")                                   \
    XX("WEFT_CONNECT_TIMEOUT", INT, "10000", 1, 3600000, "milliseconds that connecting may take") \
    XX("WEFT_CANCEL_GRACE", INT, "1000", 0, 3600000,                                              \
       "milliseconds a blocking call waits, past its deadline, for a transport to let go of its " \
       "memory before it cuts the conn; and closing, at most, for short messages on their way")    \
    XX("WEFT_CHUNK", SIZE, "1M", 4096, 1 << 30,                                                   \
       "piece size in which a large transfer is spread over several links")                       \
    XX("WEFT_AHEAD", SIZE, "64M", 16384, INT64_C(1) << 40,                                        \
       "bytes of large transfers that a link is given at once, in four parts or in pieces of "    \
       "WEFT_CHUNK: what is canceled ends when these have; to be more than bandwidth times "      \
       "round trip")                                                                              \
    XX("WEFT_STAGE_CHUNK", SIZE, "2M", 4096, 1 << 28,                                             \
       "the longest pieces in which memory of GPUs that a nic does not reach goes through the "   \
       "host's")                                                                                  \
    XX("WEFT_STAGE_SLOTS", INT, "4", 2, 64,                                                       \
       "such pieces that a conn has under way, one way, for each of WEFT_LANES; at most 15")      \
    XX("WEFT_IPC", BOOL, "1", 0, 1,                                                               \
       "let processes of one host map each other's registered memory of GPUs, and copy by "       \
       "themselves")                                                                              \
    XX("WEFT_EAGER", SIZE, "8K", 0, 1 << 20,                                                      \
       "longest message that is sent without asking; longer ones are fetched by the receiver")    \
    XX("WEFT_EAGER_WINDOW", SIZE, "256K", WEFT__WINDOW_LEAST, 1 << 30,                            \
       "bytes of such messages a conn sends before the receiver has taken them")                  \
    XX("WEFT_NOTIFY_QUEUE", SIZE, "256M", 65536, (int64_t)1 << 40,                                \
       "bytes of arrived notifications an endpoint holds before it makes the senders wait")       \
    XX("WEFT_RAILS", INT, "4", 1, 32,                                                             \
       "devices of a transport that an endpoint uses at once, nearest first")                     \
    XX("WEFT_RAILS_FAR", BOOL, "0", 0, 1,                                                         \
       "use devices that are farther than the nearest one, too")                                  \
    XX("WEFT_NEAR", STRING, "", 0, 0,                                                             \
       "what devices are to be near to: PCI address of a GPU, numa:N; empty: where the thread "   \
       "that opens the endpoint may run")                                                         \
    XX("WEFT_LANES", INT, "0", 0, WEFT__MOST_LANES,                                               \
       "nics made of each device: transfers are spread over them, each may have its thread; 0: "  \
       "one for each progress thread where processors move the bytes (tcp, local), or two with "  \
       "tcp if GPUs are known of when the endpoint opens; else one")                              \
    XX("WEFT_NIC_ADDS", BOOL, "0", 0, 1,                                                          \
       "let RDMA nics add by themselves, atomic only among what one nic adds; else the peer's "   \
       "processor does")                                                                          \
    XX("WEFT_TCP_SOCKETS", INT, "3", 1, 16,                                                       \
       "sockets of a tcp link; the first carries small operations, the others large ones")        \
    XX("WEFT_TCP_CHUNK", SIZE, "1M", 4096, 1 << 30,                                               \
       "bytes of a large operation that tcp sends before it looks at other operations")           \
    XX("WEFT_TCP_SNDBUF", SIZE, "0", 0, 1 << 30,                                                  \
       "SO_SNDBUF of tcp's sockets; 0: follows rate and round trip")                              \
    XX("WEFT_TCP_RCVBUF", SIZE, "0", 0, 1 << 30, "SO_RCVBUF of tcp's sockets; 0: the kernel's")   \
    XX("WEFT_TCP_ZEROCOPY", SIZE, "64K", 0, 1 << 30,                                              \
       "payload of this length and more, and of over 16 KiB, leaves out of the caller's pages; 0: "\
       "all is copied")                                                                           \
    XX("WEFT_TCP_CONGESTION", STRING, "", 0, 0,                                                   \
       "congestion control of tcp's sockets; empty: the kernel's, and reno within a host")        \
    XX("WEFT_TCP_TIMEOUT", INT, "20000", 1000, 3600000,                                           \
       "milliseconds without a sign of life from a peer's host after which tcp gives it up")      \
    XX("WEFT_LOCAL_RING", SIZE, "256K", 16384, 1 << 30,                                           \
       "shared memory of a local link in each direction")                                         \
    XX("WEFT_LOCAL_CMA", BOOL, "1", 0, 1,                                                         \
       "local: copy between processes with process_vm_readv where the kernel allows it")          \
    XX("WEFT_LOCAL_SHARE", BOOL, "1", 0, 1,                                                       \
       "local: of a transfer of 1 MiB and more each of the two sides copies a part")              \
    XX("WEFT_VERBS_DEVICES", STRING, "", 0, 0,                                                    \
       "RDMA devices or ports to use, mlx5_0,mlx5_1:2; or not to: ^mlx5_3; empty: all")           \
    XX("WEFT_VERBS_GID_INDEX", INT, "-1", -1, 255,                                                \
       "GID of a port, by its index; -1: RoCE v2 with an IPv4 address if there is one")           \
    XX("WEFT_VERBS_TRAFFIC_CLASS", INT, "0", 0, 255,                                              \
       "traffic class of RoCE packets (DSCP times 4), of InfiniBand ones through routers")        \
    XX("WEFT_VERBS_SERVICE_LEVEL", INT, "0", 0, 15,                                               \
       "service level of InfiniBand; RoCE: priority")                                             \
    XX("WEFT_VERBS_PKEY", INT, "0", 0, 65535, "partition key; 0: the first of the port's table")  \
    XX("WEFT_VERBS_MTU", POWER, "4096", 256, 4096,                                                \
       "bytes of the longest packet, never more than the port's")                                  \
    XX("WEFT_VERBS_TIMEOUT", INT, "17", 1, 31,                                                    \
       "wait for an acknowledgement before sending again: 4.096 us times 2 to that (17: 0.5 s)")  \
    XX("WEFT_VERBS_RETRY", INT, "6", 0, 7,                                                        \
       "times to send again before the peer is given up; Soft-RoCE takes 7 for ever")             \
    XX("WEFT_VERBS_FLAP", INT, "1000", 0, 600000,                                                 \
       "milliseconds that a port may be down before its links are given up")                      \
    XX("WEFT_VERBS_QPS", INT, "2", 1, 8,                                                          \
       "data queue pairs of a link; the first carries what is short, the others what is long")    \
    XX("WEFT_VERBS_CHUNK", SIZE, "1M", 4096, 1 << 30,                                             \
       "bytes of a long operation in one work request")                                           \
    XX("WEFT_VERBS_CREDITS", INT, "32", 1, 1024,                                                  \
       "messages that a link's peer may send before they were taken")                             \
    XX("WEFT_VERBS_RECVS", INT, "512", 16, 32768,                                                 \
       "messages that all peers of a nic together may send at once: 8.5 KiB of memory each")      \
    XX("WEFT_VERBS_RELAXED", INT, "1", 0, 2,                                                      \
       "relaxed ordering of a device's writes to memory: 0 never, 1 where peers do not write, 2 " \
       "always")                                                                                  \
    XX("WEFT_VERBS_LIBRARY", STRING, "libibverbs.so.1", 0, 0, "file of the verbs library")        \
    XX("WEFT_EFA_PROVIDER", STRING, "efa", 0, 0,                                                  \
       "provider of libfabric: efa, or another with FI_EP_RDM: tcp;ofi_rxm shm udp;ofi_rxd ...")  \
    XX("WEFT_EFA_DEVICES", STRING, "", 0, 0,                                                      \
       "domains of libfabric to use, rdmap0s6-rdm,...; or not to: ^rdmap0s7-rdm; empty: all")     \
    XX("WEFT_EFA_CHUNK", SIZE, "1M", 4096, 1 << 30,                                               \
       "bytes of a long operation in one operation of libfabric")                                 \
    XX("WEFT_EFA_CREDITS", INT, "32", 4, 1024,                                                    \
       "messages that a link's peer may send before they were taken")                             \
    XX("WEFT_EFA_RECVS", INT, "512", 16, 32768,                                                   \
       "messages that all peers of a nic together may send at once: 8.5 KiB of memory each")      \
    XX("WEFT_EFA_WAIT", BOOL, "1", 0, 1,                                                          \
       "what arrives wakes who sleeps, if the provider can; 0: who sleeps looks each "            \
       "millisecond, and who polls pays nothing for it")                                          \
    XX("WEFT_EFA_LIBRARY", STRING, "libfabric.so.1", 0, 0, "file of libfabric")                   \
    XX("WEFT_CUDA_LIBRARY", STRING, "libcuda.so.1", 0, 0, "file of NVIDIA's driver")              \
    XX("WEFT_HIP_LIBRARY", STRING,                                                                \
       "libamdhip64.so.7,libamdhip64.so.6,libamdhip64.so.5,libamdhip64.so", 0, 0,                 \
       "files of AMD's HIP runtime: the first that this process has, else the first that there "  \
       "is")                                                                                      \
    XX("WEFT_GPU_KERNELS", BOOL, "1", 0, 1,                                                       \
       "what is many and short is copied by a kernel of Weft's, which needs room on the GPU; 0: " \
       "by its engines alone")                                                                    \
    XX("WEFT_CUDA_KERNELS", STRING, "", 0, 0,                                                     \
       "file of Weft's kernels, as nvcc makes it; empty: what it was built with, if it was")      \
    XX("WEFT_HIP_KERNELS", STRING, "", 0, 0, "the same, as hipcc makes it")                       \
    XX("WEFT_HOST_WAVE", POWER, "32", 32, 64,                                                     \
       "lanes of a wave of gpu/host, where Weft's kernels run on processors: 32 or 64")           \
    XX("WEFT_FAULT", STRING, "", 0, 0,                                                            \
       "for tests: wrap every nic and inject faults, e.g. seed=1,reorder=8 (transports/fault)")

struct setting {
    const char *name;
    enum kind kind;
    const char *preset;
    int64_t least, most;
    const char *help;
    weft__env_slot set, env; /* by weft_config_set; in the environment when that was read; or NULL */
};

static struct setting table[] = {
#define CONFIG_ROW(name, kind, preset, least, most, help)                                         \
    {name, KIND_##kind, preset, least, most, help, NULL, NULL},
    CONFIG_MAP(CONFIG_ROW)
#undef CONFIG_ROW
};
#define COUNT (sizeof table / sizeof *table)

static struct weft_static_lock lock = WEFT_STATIC_LOCK(); /* of who changes the table */

void weft__config_read(void)
{
    weft_static_lock(&lock);
    for (size_t i = 0; i < COUNT; i++)
        weft__env_read(&table[i].env, table[i].name);
    weft_static_unlock(&lock);
}

static struct setting *find(const char *name)
{
    for (size_t i = 0; i < COUNT; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

/* "64K" -> 65536. Returns 0 or -EINVAL. */
static int parse_number(const struct setting *s, const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 0);
    if (end == text || errno)
        return -EINVAL;
    if (s->kind == KIND_SIZE && *end) {
        const char *units = "KMGT", *unit = strchr(units, *end);
        if (!unit)
            return -EINVAL;
        int shift = 10 * (int)(unit - units + 1);
        if (value < 0 || value > INT64_MAX >> shift)
            return -EINVAL;
        value <<= shift;
        end++;
    }
    if (*end || value < s->least || value > s->most || (s->kind == KIND_POWER && value & (value - 1)))
        return -EINVAL;
    *out = value;
    return 0;
}

static int check(const struct setting *s, const char *text)
{
    int64_t value;
    if (s->kind == KIND_STRING || (s->kind == KIND_LOG && weft__log_spec_valid(text)))
        return 0;
    if (s->kind == KIND_LOG)
        return weft_fail(-EINVAL, "setting %s: '%s' is not like warn or warn,tcp:debug", s->name,
                         text);
    if (parse_number(s, text, &value) == 0)
        return 0;
    return weft_fail(-EINVAL, "setting %s: '%s' is no %s from %" PRId64 " to %" PRId64, s->name,
                     text, kind_names[s->kind], s->least, s->most);
}

/* Text in force. */
static const char *text_of(const struct setting *s, enum weft_config_source *source)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, weft__config_read);
    /* acquire: the text is there; pairs with the release of who stored it */
    const char *set = atomic_load_explicit(&s->set, memory_order_acquire);
    const char *env = weft__env(&s->env, s->name);
    *source = set ? WEFT_FROM_CALLER : env ? WEFT_FROM_ENVIRONMENT : WEFT_FROM_DEFAULT;
    return set ? set : env ? env : s->preset;
}

int weft_config_set(const char *name, const char *value)
{
    struct setting *s = name ? find(name) : NULL;
    if (!s)
        return weft_fail(WEFT_ECONFIG, "there is no setting %s", name ? name : "NULL");
    if (value && check(s, value))
        return -EINVAL;
    weft__config_read();
    weft_static_lock(&lock);
    const char *kept = value ? weft__text_keep(value) : NULL;
    if (!value || kept)
        atomic_store_explicit(&s->set, kept, memory_order_release);
    weft_static_unlock(&lock);
    return value && !kept ? weft_fail(-ENOMEM, "setting %s: no memory", name) : 0;
}

int weft_config_get(int i, struct weft_config_item *item)
{
    if (i < 0 || (size_t)i >= COUNT)
        return -ENOENT;
    if (!item)
        return weft_fail(-EINVAL, "weft_config_get: item is NULL");
    const struct setting *s = &table[i];
    weft__config_read();
    item->name = s->name;
    item->type = kind_names[s->kind];
    item->preset = s->preset;
    item->help = s->help;
    item->value = text_of(s, &item->source);
    return 0;
}

int64_t weft_config_int(const char *name)
{
    const struct setting *s = find(name);
    int64_t value = 0;
    if (!s || s->kind <= KIND_LOG) {
        weft_log(WEFT_LOG_ERROR, "config", "%s is not a number setting", name);
        return 0;
    }
    enum weft_config_source source;
    if (parse_number(s, text_of(s, &source), &value))
        parse_number(s, s->preset, &value);
    return value;
}

const char *weft_config_str(const char *name)
{
    const struct setting *s = find(name);
    if (!s)
        return "";
    enum weft_config_source source;
    return text_of(s, &source);
}

static int is_one_of(const char *item, size_t len, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strlen(names[i]) == len && memcmp(names[i], item, len) == 0)
            return 1;
    return 0;
}

/* The item of a list that begins at *at, which is moved behind it. */
struct item {
    const char *name;
    size_t len;
    int excludes;
};

static struct item next_item(const char **at)
{
    struct item item = {.excludes = **at == '^'};
    size_t len = strcspn(*at, ",");
    item.name = *at + item.excludes;
    item.len = len - (size_t)item.excludes;
    *at += len + ((*at)[len] == ',');
    return item;
}

int weft_config_selects(const char *setting, const char *const *names, int n, uint64_t *met)
{
    int any_wanted = 0, wanted = 0, unwanted = 0, i = 0;
    for (const char *at = weft_config_str(setting); *at; i++) {
        struct item item = next_item(&at);
        int named = is_one_of(item.name, item.len, names, n);
        if (named && i < 64)
            *met |= UINT64_C(1) << i;
        unwanted |= item.excludes && named;
        any_wanted |= !item.excludes && item.len > 0;
        wanted |= !item.excludes && named;
    }
    return !unwanted && (wanted || !any_wanted);
}

int weft_config_unmet(const char *setting, uint64_t met, const char *hint,
                      struct weft_device_info *list, int max, int n)
{
    int i = 0;
    for (const char *at = weft_config_str(setting); *at && i < 64; i++) {
        struct weft_device_info info = {.numa = -1, .missing = 1, .summary = "not there"};
        struct item item = next_item(&at);
        if ((item.len == 0 && !item.excludes) || met >> i & 1)
            continue;
        snprintf(info.name, sizeof info.name, "%s%.*s", item.excludes ? "^" : "", (int)item.len,
                 item.name);
        snprintf(info.reason, sizeof info.reason, "nothing is called %s, as %s=%s says (%s)",
                 info.name, setting, weft_config_str(setting), hint);
        if (n < max)
            list[n] = info;
        n++;
    }
    return n;
}

int weft__config_check(void)
{
    weft__config_read();
    for (size_t i = 0; i < COUNT; i++) {
        enum weft_config_source source;
        if (check(&table[i], text_of(&table[i], &source)))
            return WEFT_ECONFIG;
    }
    return 0;
}

int weft__opts_copy(void *ours, size_t our_size, const void *theirs, const char *what)
{
    if (!theirs)
        return 0;
    size_t size;
    memcpy(&size, theirs, sizeof size);
    if (size < sizeof size || size > 4096)
        return weft_fail(-EINVAL, "%s.struct_size is %zu: fill it with WEFT_OPTS", what, size);
    for (size_t i = our_size; i < size; i++)
        if (((const char *)theirs)[i])
            return weft_fail(-EINVAL, "%s has a field set that this version (%s) does not know",
                             what, WEFT_VERSION_STRING);
    memcpy(ours, theirs, size < our_size ? size : our_size);
    return 0;
}
