/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libfabric that is the real one, made worse: what is handed to it goes out late and in any order, completions come late
 * and in any order, posts find no room, operations fail, and attributes are those of EFA. README.md has its settings.
 *
 * Objects of libfabric carry pointers to tables of functions. Those of the objects that pass through here are replaced,
 * and put back before the object is closed, since providers compare them.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_bury.h"
#include "fake_devices.h"
#include "fake_going.h"
#include "fake_gpu.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_HELD 64    /* operations of an endpoint that wait to be handed on */
#define MOST_POOL 512   /* completions of a queue that wait to be read */
#define MOST_PIECES 8
#define MOST_NAME 32
#define READS (FI_READ | FI_REMOTE_READ)

/* --- settings ---------------------------------------------------------------------------------------------- */

static struct {
    uint64_t random;
    unsigned hold, delay, eagain, room, fail, narrow, local, provkey, noread, noinject, hmem, minor, devices;
    char as[MOST_NAME], provider[64];
} set = {.random = 1};

static void (*real_freeinfo)(struct fi_info *);
static struct fi_info *(*real_dupinfo)(const struct fi_info *);
static int (*real_getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
                           struct fi_info **);
static int (*real_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
static uint32_t (*real_version)(void);
static const char *(*real_strerror)(int);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the settings and of the tables of objects */

static void misuse(const char *what)
{
    fprintf(stderr, "fake fabric: misuse: %s\n", what);
    abort();
}

/* splitmix64 */
static uint64_t draw(void)
{
    pthread_mutex_lock(&lock);
    uint64_t z = set.random += 0x9e3779b97f4a7c15u;
    pthread_mutex_unlock(&lock);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool chance(unsigned percent)
{
    return percent && draw() % 100 < percent;
}

static void read_setting(char *item)
{
    char *value = strchr(item, '=');
    if (!value)
        misuse(item);
    *value++ = '\0';
    unsigned number = (unsigned)strtoul(value, NULL, 0);
    if (!strcmp(item, "seed"))
        set.random = strtoull(value, NULL, 0);
    else if (!strcmp(item, "hold"))
        set.hold = number;
    else if (!strcmp(item, "delay"))
        set.delay = number;
    else if (!strcmp(item, "eagain"))
        set.eagain = number;
    else if (!strcmp(item, "room"))
        set.room = number;
    else if (!strcmp(item, "fail"))
        set.fail = number;
    else if (!strcmp(item, "narrow"))
        set.narrow = number;
    else if (!strcmp(item, "local"))
        set.local = number;
    else if (!strcmp(item, "provkey"))
        set.provkey = number;
    else if (!strcmp(item, "noread"))
        set.noread = number;
    else if (!strcmp(item, "noinject"))
        set.noinject = number;
    else if (!strcmp(item, "hmem"))
        set.hmem = number;
    else if (!strcmp(item, "devices"))
        set.devices = number;
    else if (!strcmp(item, "minor"))
        set.minor = number;
    else if (!strcmp(item, "as"))
        snprintf(set.as, sizeof set.as, "%s", value);
    else if (!strcmp(item, "provider"))
        snprintf(set.provider, sizeof set.provider, "%s", value);
    else
        misuse(item);
    for (char *at = set.provider; (at = strchr(at, '+')); at++)
        *at = ';'; /* which CMake and shells would take for something else */
}

static void read_settings(const char *text)
{
    char *copy = strdup(text), *save = NULL;
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
        read_setting(item);
    free(copy);
    fprintf(stderr, "fake fabric: %s\n", text);
}

static atomic_bool unreachable, late;
static atomic_uint refused;

void fake_fabric_unreachable(bool on)
{
    atomic_store(&unreachable, on);
}

void fake_fabric_late(bool on)
{
    atomic_store(&late, on);
}

unsigned fake_fabric_refused(void)
{
    return atomic_load(&refused);
}

static void *symbol(void *file, const char *name)
{
    void *found = dlsym(file, name);
    if (!found)
        misuse(name);
    return found;
}

static void load_once(void)
{
    const char *text = getenv("FAKE_FABRIC"), *library = getenv("FAKE_FABRIC_LIBRARY");
    void *file = dlopen(library ? library : "libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!file)
        misuse(dlerror());
    *(void **)&real_getinfo = symbol(file, "fi_getinfo");
    *(void **)&real_freeinfo = symbol(file, "fi_freeinfo");
    *(void **)&real_dupinfo = symbol(file, "fi_dupinfo");
    *(void **)&real_fabric = symbol(file, "fi_fabric");
    *(void **)&real_version = symbol(file, "fi_version");
    *(void **)&real_strerror = symbol(file, "fi_strerror");
    read_settings(text ? text : "");
}

static void load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
}

void fake_fabric_set(const char *settings)
{
    load();
    set.random = 1;
    set.hold = set.delay = set.eagain = set.room = set.fail = set.narrow = set.local = set.provkey = 0;
    set.noread = set.noinject = set.hmem = set.devices = 0;
    set.as[0] = set.provider[0] = '\0';
    read_settings(settings);
}

/* --- what is remembered of objects ---------------------------------------------------------------------------- */

struct object {
    struct object *next;
    struct fid *fid;
    struct fi_ops *fid_ops, fid_own;
};

/* An operation on its way out. */
struct held {
    uint8_t op; /* 'S', 'I' (inject), 'W', 'R' */
    void *copy; /* inject: the bytes */
    uint64_t flags, data;
    fi_addr_t addr;
    void *context;
    struct iovec iov[MOST_PIECES];
    void *desc[MOST_PIECES];
    bool of_gpu[MOST_PIECES];
    size_t n;
    struct fi_rma_iov far;
};

struct completion {
    struct fi_cq_data_entry entry;
    unsigned wait; /* reads until it may be read */
};

struct cq {
    struct object object;
    struct fi_ops_cq *ops, own;
    struct completion pool[MOST_POOL];
    unsigned n;
    void *failed[MOST_HELD]; /* contexts of operations that fail here */
    unsigned nfailed;
    struct ep *eps;
};

struct ep {
    struct object object;
    struct ep *of_cq;
    struct cq *cq;
    struct fid *av;
    struct fi_ops_msg *msg, msg_own;
    struct fi_ops_rma *rma, rma_own;
    struct fi_ops_ep *ops, own;
    char device[64];
    bool gpu, direct; /* opened with FI_HMEM; told not to copy through the host */
    struct held held[MOST_HELD];
    unsigned n;
    uint64_t posted;
};

static struct object *objects;

static void remember(struct object *object, struct fid *fid)
{
    object->fid = fid;
    object->fid_ops = fid->ops;
    object->fid_own = *fid->ops;
    fid->ops = &object->fid_own;
    pthread_mutex_lock(&lock);
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&lock);
}

static void *find(const struct fid *fid)
{
    pthread_mutex_lock(&lock);
    struct object *object = objects;
    while (object && object->fid != fid)
        object = object->next;
    pthread_mutex_unlock(&lock);
    return object;
}

static void forget(struct object *object)
{
    pthread_mutex_lock(&lock);
    struct object **at = &objects;
    while (*at != object)
        at = &(*at)->next;
    *at = object->next;
    pthread_mutex_unlock(&lock);
    object->fid->ops = object->fid_ops;
}

/* --- endpoints ------------------------------------------------------------------------------------------------ */

static int hand_on(struct ep *ep, const struct held *held)
{
    struct fid_ep *fid = (struct fid_ep *)ep->object.fid;
    if (held->op == 'I') {
        int rc = (int)ep->msg->inject(fid, held->copy, held->n, held->addr);
        if (rc != -FI_EAGAIN)
            free(held->copy);
        return rc;
    }
    if (held->op == 'S') {
        struct fi_msg msg = {.msg_iov = held->iov, .desc = (void **)held->desc,
                             .iov_count = held->n, .addr = held->addr, .context = held->context,
                             .data = held->data};
        return (int)ep->msg->sendmsg(fid, &msg, held->flags);
    }
    struct fi_msg_rma msg = {.msg_iov = held->iov, .desc = (void **)held->desc,
                             .iov_count = held->n, .addr = held->addr, .rma_iov = &held->far,
                             .rma_iov_count = 1, .context = held->context, .data = held->data};
    return (int)(held->op == 'R' ? ep->rma->readmsg(fid, &msg, held->flags)
                                 : ep->rma->writemsg(fid, &msg, held->flags));
}

/* In any order, each as soon as luck will have it. */
static void let_out(struct ep *ep)
{
    for (unsigned tries = ep->n; tries > 0; tries--) {
        unsigned i = (unsigned)(draw() % ep->n);
        if (ep->n <= set.hold && chance(50))
            continue;
        int rc = hand_on(ep, &ep->held[i]);
        if (rc == -FI_EAGAIN)
            continue;
        if (rc) /* as an error that comes late */
            ep->cq->failed[ep->cq->nfailed++] = ep->held[i].context;
        ep->held[i] = ep->held[--ep->n];
    }
}

static void check_pieces(const struct held *held)
{
    for (size_t i = 0; held->op != 'I' && i < held->n; i++)
        if (set.local && held->iov[i].iov_len > 0 && !held->desc[i])
            misuse("a piece of local memory is not registered");
    for (size_t i = 0; held->op == 'W' || held->op == 'R' ? i < held->n : false; i++)
        if (held->of_gpu[i] && !held->desc[i])
            misuse("a piece of a GPU's memory is not registered");
    if (set.narrow && held->data >> 32)
        misuse("more than 4 bytes of data with a write");
}

static ssize_t take(struct ep *ep, const struct held *held)
{
    check_pieces(held);
    bool is_rma = held->op == 'W' || held->op == 'R', gone = atomic_load(&unreachable);
    bool full = is_rma && set.room && fake_going_count(ep->object.fid) >= set.room;
    if (full)
        atomic_fetch_add(&refused, 1);
    if (full || chance(set.eagain) || ep->n == MOST_HELD || ep->cq->nfailed == MOST_HELD)
        return -FI_EAGAIN;
    bool fails = set.fail && is_rma && (ep->posted + 1) % set.fail == 0;
    int rc = 0;
    if (gone && held->op == 'I')
        free(held->copy);
    else if (fails || gone)
        ep->cq->failed[ep->cq->nfailed++] = held->context;
    else if (set.hold == 0)
        rc = hand_on(ep, held);
    else
        ep->held[ep->n++] = *held;
    if (rc == 0 && held->op != 'I')
        fake_going_begin(ep->object.fid, ep->av, held->addr, held->context);
    ep->posted += is_rma && rc == 0;
    if (is_rma && rc == 0)
        fake_device_carries(ep->device);
    return rc;
}

static void copy_pieces(struct held *held, const struct iovec *iov, void *const *desc, size_t n)
{
    if (n > MOST_PIECES)
        misuse("too many pieces");
    held->n = n;
    memcpy(held->iov, iov, n * sizeof *iov);
    if (desc)
        memcpy(held->desc, desc, n * sizeof *desc);
    for (size_t i = 0; i < n; i++) {
        void *bytes = fake_gpu_bytes(iov[i].iov_base);
        held->of_gpu[i] = bytes != NULL;
        if (bytes)
            held->iov[i].iov_base = bytes;
    }
}

static ssize_t own_sendmsg(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
    struct held held = {.op = 'S', .flags = flags, .data = msg->data, .addr = msg->addr,
                        .context = msg->context};
    copy_pieces(&held, msg->msg_iov, msg->desc, msg->iov_count);
    return take(find(&fid->fid), &held);
}

static ssize_t own_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t addr)
{
    struct held held = {.op = 'I', .copy = malloc(len), .n = len, .addr = addr};
    if (set.noinject || !held.copy)
        misuse("inject, which the provider does not have");
    memcpy(held.copy, buf, len);
    ssize_t rc = take(find(&fid->fid), &held);
    if (rc == -FI_EAGAIN)
        free(held.copy);
    return rc;
}

static ssize_t rma(struct fid_ep *fid, uint8_t op, const struct fi_msg_rma *msg, uint64_t flags)
{
    struct held held = {.op = op, .flags = flags, .data = msg->data, .addr = msg->addr,
                        .context = msg->context, .far = msg->rma_iov[0]};
    copy_pieces(&held, msg->msg_iov, msg->desc, msg->iov_count);
    void *bytes = fake_gpu_bytes((void *)(uintptr_t)held.far.addr);
    if (bytes)
        held.far.addr = (uintptr_t)bytes;
    return take(find(&fid->fid), &held);
}

static ssize_t own_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
    return rma(fid, 'W', msg, flags);
}

static ssize_t own_readmsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
    if (set.noread)
        misuse("a READ, which the provider does not have");
    return rma(fid, 'R', msg, flags);
}

static int own_ep_control(struct fid *fid, int command, void *arg)
{
    struct ep *ep = find(fid);
    struct fid_ep *real = (struct fid_ep *)fid;
    if (command == FI_ENABLE && ep->gpu && !ep->direct)
        misuse("an endpoint for GPUs that may copy through the host's memory");
    int rc = ep->object.fid_ops->control(fid, command, arg);
    if (rc || command != FI_ENABLE || ep->msg)
        return rc;
    ep->msg = real->msg;
    ep->rma = real->rma;
    ep->msg_own = *ep->msg;
    ep->rma_own = *ep->rma;
    ep->msg_own.sendmsg = own_sendmsg;
    ep->msg_own.inject = own_inject;
    ep->rma_own.writemsg = own_writemsg;
    ep->rma_own.readmsg = own_readmsg;
    real->msg = &ep->msg_own;
    real->rma = &ep->rma_own;
    return 0;
}

static int own_ep_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
    struct ep *ep = find(fid);
    struct cq *cq = find(to);
    if (cq && to->fclass == FI_CLASS_CQ) {
        ep->cq = cq;
        ep->of_cq = cq->eps;
        cq->eps = ep;
    }
    if (to->fclass == FI_CLASS_AV)
        ep->av = to;
    return ep->object.fid_ops->bind(fid, to, flags);
}

static int own_setopt(struct fid *fid, int level, int name, const void *value, size_t len)
{
    struct ep *ep = find(fid);
    if (level != FI_OPT_ENDPOINT || name != FI_OPT_FI_HMEM_P2P || !ep->gpu)
        return ep->ops->setopt(fid, level, name, value, len);
    if (len != sizeof(int) || set.hmem > 1)
        return -FI_EOPNOTSUPP;
    ep->direct = *(const int *)value == FI_HMEM_P2P_REQUIRED;
    return 0;
}

static int own_ep_close(struct fid *fid)
{
    struct ep *ep = find(fid);
    struct fid_ep *real = (struct fid_ep *)fid;
    fake_going_drop(fid);
    forget(&ep->object);
    real->ops = ep->ops;
    if (ep->msg) {
        real->msg = ep->msg;
        real->rma = ep->rma;
    }
    struct ep **at = ep->cq ? &ep->cq->eps : NULL;
    while (at && *at != ep)
        at = &(*at)->of_cq;
    if (at)
        *at = ep->of_cq;
    for (unsigned i = 0; i < ep->n; i++)
        free(ep->held[i].copy);
    free(ep);
    return fake_bury(fid);
}

/* --- completion queues ---------------------------------------------------------------------------------------- */

static void end_going(const struct cq *cq, const void *context)
{
    for (const struct ep *ep = cq->eps; ep; ep = ep->of_cq)
        fake_going_end(ep->object.fid, context);
}

static ssize_t own_read(struct fid_cq *fid, void *buf, size_t count)
{
    struct cq *cq = find(&fid->fid);
    struct fi_cq_data_entry *out = buf, fresh[32];
    for (struct ep *ep = cq->eps; ep; ep = ep->of_cq) {
        if (fake_going_lost(ep->object.fid))
            misuse("an endpoint goes on whose operation is on its way to an address that was removed");
        let_out(ep);
    }
    ssize_t n = cq->n + 32 <= MOST_POOL ? cq->ops->read(fid, fresh, 32) : 0;
    if (n == -FI_EAVAIL || (n == -FI_EAGAIN && cq->nfailed > 0))
        return -FI_EAVAIL;
    if (n < 0 && n != -FI_EAGAIN)
        return n;
    for (ssize_t i = 0; i < n; i++)
        cq->pool[cq->n++] = (struct completion){
            fresh[i], set.delay ? (unsigned)(draw() % (set.delay + 1)) : 0};
    bool closed = !cq->eps; /* all that had this queue */
    size_t got = 0;
    for (unsigned i = 0; i < cq->n;) {
        if (cq->pool[i].wait > 0)
            cq->pool[i++].wait--;
        else if (atomic_load(&late) && !closed && cq->pool[i].entry.flags & FI_REMOTE_CQ_DATA)
            i++;
        else if (got == count)
            break;
        else {
            end_going(cq, cq->pool[i].entry.op_context);
            out[got++] = cq->pool[i].entry;
            memmove(&cq->pool[i], &cq->pool[i + 1], (--cq->n - i) * sizeof cq->pool[0]);
        }
    }
    return got > 0 ? (ssize_t)got : -FI_EAGAIN;
}

/* Some of EFA's own codes, which come beside FI_EIO. */
static const struct {
    int code;
    const char *words;
} efa_errors[] = {{13, "Unresponsive remote"},
                  {7, "Remote address is unreachable"},
                  {8, "Connection was reset by the remote side"},
                  {9, "Destination queue pair does not exist"},
                  {10, "Destination has no receives posted"},
                  {2, "Internal error of the queue pair"}};
#define EFA_ERRORS (sizeof efa_errors / sizeof *efa_errors)

static const char *own_cq_strerror(struct fid_cq *fid, int code, const void *data, char *buf,
                                   size_t len)
{
    struct cq *cq = find(&fid->fid);
    for (size_t i = 0; i < EFA_ERRORS; i++)
        if (efa_errors[i].code == code)
            return efa_errors[i].words;
    return cq->ops->strerror(fid, code, data, buf, len);
}

static ssize_t own_readerr(struct fid_cq *fid, struct fi_cq_err_entry *entry, uint64_t flags)
{
    struct cq *cq = find(&fid->fid);
    if (cq->nfailed == 0) {
        ssize_t n = cq->ops->readerr(fid, entry, flags);
        if (n > 0)
            end_going(cq, entry->op_context);
        return n;
    }
    end_going(cq, cq->failed[cq->nfailed - 1]);
    *entry = (struct fi_cq_err_entry){.op_context = cq->failed[--cq->nfailed],
                                      .err = FI_EIO,
                                      .prov_errno = efa_errors[atomic_load(&unreachable)
                                                                   ? 0
                                                                   : draw() % EFA_ERRORS].code};
    return 1;
}

static int own_cq_close(struct fid *fid)
{
    struct cq *cq = find(fid);
    forget(&cq->object);
    ((struct fid_cq *)fid)->ops = cq->ops;
    free(cq);
    return fake_bury(fid);
}

/* --- domains -------------------------------------------------------------------------------------------------- */

struct domain {
    struct object object;
    struct fi_ops_domain *ops, own;
    struct fi_ops_mr *mr, mr_own;
};

static int own_cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out,
                       void *context)
{
    struct domain *domain = find(&fid->fid);
    if (attr->format != FI_CQ_FORMAT_DATA)
        misuse("completions of another format");
    int rc = domain->ops->cq_open(fid, attr, out, context);
    struct cq *cq = rc ? NULL : calloc(1, sizeof *cq);
    if (!cq)
        return rc ? rc : -FI_ENOMEM;
    remember(&cq->object, &(*out)->fid);
    cq->object.fid_own.close = own_cq_close;
    cq->ops = (*out)->ops;
    cq->own = *cq->ops;
    cq->own.read = own_read;
    cq->own.readerr = own_readerr;
    cq->own.strerror = own_cq_strerror;
    (*out)->ops = &cq->own;
    return 0;
}

struct av {
    struct object object;
    struct fi_ops_av *ops, own;
};

static int own_av_remove(struct fid_av *fid, fi_addr_t *addrs, size_t count, uint64_t flags)
{
    struct av *av = find(&fid->fid);
    for (size_t i = 0; i < count; i++)
        fake_going_nowhere(&fid->fid, addrs[i]);
    return av->ops->remove(fid, addrs, count, flags);
}

static int own_av_close(struct fid *fid)
{
    struct av *av = find(fid);
    forget(&av->object);
    ((struct fid_av *)fid)->ops = av->ops;
    free(av);
    return fake_bury(fid);
}

static int own_av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out,
                       void *context)
{
    struct domain *domain = find(&fid->fid);
    int rc = domain->ops->av_open(fid, attr, out, context);
    struct av *av = rc ? NULL : calloc(1, sizeof *av);
    if (!av)
        return rc ? rc : -FI_ENOMEM;
    remember(&av->object, &(*out)->fid);
    av->object.fid_own.close = own_av_close;
    av->ops = (*out)->ops;
    av->own = *av->ops;
    av->own.remove = own_av_remove;
    (*out)->ops = &av->own;
    return 0;
}

static struct fi_info *undone(const struct fi_info *info);

static int own_endpoint(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out,
                        void *context)
{
    struct domain *domain = find(&fid->fid);
    struct fi_info *copy = undone(info);
    int rc = domain->ops->endpoint(fid, copy, out, context);
    real_freeinfo(copy);
    struct ep *ep = rc ? NULL : calloc(1, sizeof *ep);
    if (!ep)
        return rc ? rc : -FI_ENOMEM;
    remember(&ep->object, &(*out)->fid);
    ep->object.fid_own.close = own_ep_close;
    ep->object.fid_own.bind = own_ep_bind;
    ep->object.fid_own.control = own_ep_control;
    ep->gpu = set.hmem && info->caps & FI_HMEM;
    snprintf(ep->device, sizeof ep->device, "%s", info->domain_attr->name);
    ep->ops = (*out)->ops;
    ep->own = *ep->ops;
    ep->own.setopt = own_setopt;
    (*out)->ops = &ep->own;
    return 0;
}

static int own_mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access,
                      uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                      void *context)
{
    struct domain *domain = find(fid);
    if (set.provkey && key)
        misuse("a key is asked for, but the provider makes them");
    return domain->mr->reg(fid, buf, len, access, offset, set.provkey ? draw() : key, flags, mr,
                           context);
}

static int own_mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
                          struct fid_mr **mr)
{
    void *bytes;
    size_t len;
    if (!set.hmem)
        misuse("memory of GPUs, which was not offered");
    const char *wrong = fake_gpu_registers(attr, flags, &bytes, &len);
    if (wrong)
        misuse(wrong);
    if (flags && FI_VERSION_LT(fi_version(), FI_VERSION(1, 20)))
        misuse("a dma-buf, which this version does not know");
    return own_mr_reg(fid, bytes, len, attr->access, 0, attr->requested_key, 0, mr, attr->context);
}

static int own_domain_close(struct fid *fid)
{
    struct domain *domain = find(fid);
    forget(&domain->object);
    ((struct fid_domain *)fid)->ops = domain->ops;
    ((struct fid_domain *)fid)->mr = domain->mr;
    free(domain);
    return fake_bury(fid);
}

struct fabric {
    struct object object;
    bool buries;
    struct fi_ops_fabric *ops, own;
};

static int own_domain(struct fid_fabric *fid, struct fi_info *info, struct fid_domain **out,
                      void *context)
{
    struct fabric *fabric = find(&fid->fid);
    struct fi_info *copy = undone(info);
    int rc = fabric->ops->domain(fid, copy, out, context);
    real_freeinfo(copy);
    struct domain *domain = rc ? NULL : calloc(1, sizeof *domain);
    if (!domain)
        return rc ? rc : -FI_ENOMEM;
    remember(&domain->object, &(*out)->fid);
    domain->object.fid_own.close = own_domain_close;
    domain->ops = (*out)->ops;
    domain->own = *domain->ops;
    domain->own.av_open = own_av_open;
    domain->own.cq_open = own_cq_open;
    domain->own.endpoint = own_endpoint;
    (*out)->ops = &domain->own;
    domain->mr = (*out)->mr;
    domain->mr_own = *domain->mr;
    domain->mr_own.reg = own_mr_reg;
    domain->mr_own.regattr = own_mr_regattr;
    (*out)->mr = &domain->mr_own;
    return 0;
}

/* Nobody sleeps on what lies here. */
static int own_trywait(struct fid_fabric *fid, struct fid **fids, int count)
{
    struct fabric *fabric = find(&fid->fid);
    for (int i = 0; i < count; i++) {
        struct cq *cq = find(fids[i]);
        bool any = cq->n > 0 || cq->nfailed > 0;
        for (struct ep *ep = cq->eps; ep; ep = ep->of_cq)
            any |= ep->n > 0;
        if (any)
            return -FI_EAGAIN;
    }
    return fabric->ops->trywait(fid, fids, count);
}

static int own_fabric_close(struct fid *fid)
{
    struct fabric *fabric = find(fid);
    bool buries = fabric->buries;
    forget(&fabric->object);
    ((struct fid_fabric *)fid)->ops = fabric->ops;
    free(fabric);
    return buries ? fake_bury_end(fid) : fid->ops->close(fid);
}

/* --- what the library exports --------------------------------------------------------------------------------- */

static void rename_provider(struct fi_fabric_attr *attr, const char *from, const char *to)
{
    if (!*from || !*to || !attr->prov_name || strcmp(attr->prov_name, from) != 0)
        return;
    free(attr->prov_name);
    attr->prov_name = strdup(to);
}

/* The attributes that EFA has, on what the real provider says. */
static void redo(struct fi_info *info, bool gpu)
{
    if (gpu) {
        info->caps |= FI_HMEM;
        info->domain_attr->mr_mode |= FI_MR_HMEM;
    }
    rename_provider(info->fabric_attr, set.provider, set.as);
    info->tx_attr->msg_order = info->rx_attr->msg_order = 0;
    if (set.noread)
        info->caps &= ~READS;
    if (set.noinject)
        info->tx_attr->inject_size = 0;
    if (set.narrow)
        info->domain_attr->cq_data_size = 4;
    if (set.local)
        info->domain_attr->mr_mode |= FI_MR_LOCAL;
    if (set.provkey)
        info->domain_attr->mr_mode |= FI_MR_PROV_KEY;
}

static void without_gpus(struct fi_info *info)
{
    if (!set.hmem)
        return;
    info->caps &= ~FI_HMEM;
    info->domain_attr->mr_mode &= ~FI_MR_HMEM;
}

/* And back, for the real one. */
static struct fi_info *undone(const struct fi_info *info)
{
    struct fi_info *copy = real_dupinfo(info);
    rename_provider(copy->fabric_attr, set.as, set.provider);
    without_gpus(copy);
    fake_devices_unmake(copy);
    if (set.noread)
        copy->caps |= READS;
    if (set.narrow)
        copy->domain_attr->cq_data_size = 8;
    copy->domain_attr->mr_mode &= ~((set.local ? FI_MR_LOCAL : 0) | (set.provkey ? FI_MR_PROV_KEY : 0));
    return copy;
}

EXPORT int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                      const struct fi_info *hints, struct fi_info **out);
EXPORT int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context);
EXPORT void fi_freeinfo(struct fi_info *info);
EXPORT struct fi_info *fi_dupinfo(const struct fi_info *info);
EXPORT uint32_t fi_version(void);
EXPORT const char *fi_strerror(int code);

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
               const struct fi_info *hints, struct fi_info **out)
{
    load();
    struct fi_info *copy = hints ? real_dupinfo(hints) : NULL;
    bool gpu = set.hmem && hints && hints->caps & FI_HMEM;
    if (gpu && !(hints->domain_attr->mr_mode & FI_MR_HMEM))
        misuse("memory of GPUs is wanted by who does not register it");
    if (copy) {
        rename_provider(copy->fabric_attr, set.as, set.provider);
        without_gpus(copy);
    }
    if (FI_VERSION_LT(real_version(), version))
        version = real_version();
    int rc = real_getinfo(version, node, service, flags, copy, out);
    if (copy)
        real_freeinfo(copy);
    for (struct fi_info *info = rc ? NULL : *out; info; info = info->next)
        redo(info, gpu);
    if (rc == 0 && set.devices && strcmp((*out)->fabric_attr->prov_name, set.as) == 0)
        real_freeinfo(fake_devices_make(real_dupinfo, *out, set.devices));
    return rc;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
    struct fi_fabric_attr real = *attr;
    real.prov_name = strdup(attr->prov_name);
    rename_provider(&real, set.as, set.provider);
    int rc = real_fabric(&real, out, context);
    free(real.prov_name);
    struct fabric *fabric = rc ? NULL : calloc(1, sizeof *fabric);
    if (!fabric)
        return rc ? rc : -FI_ENOMEM;
    fabric->buries = strcmp(set.provider, "shm") == 0;
    if (fabric->buries)
        fake_bury_begin();
    remember(&fabric->object, &(*out)->fid);
    fabric->object.fid_own.close = own_fabric_close;
    fabric->ops = (*out)->ops;
    fabric->own = *fabric->ops;
    fabric->own.domain = own_domain;
    fabric->own.trywait = own_trywait;
    (*out)->ops = &fabric->own;
    return 0;
}

void fi_freeinfo(struct fi_info *info)
{
    load();
    real_freeinfo(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    load();
    return real_dupinfo(info);
}

uint32_t fi_version(void)
{
    load();
    return set.minor ? FI_VERSION(1, set.minor) : real_version();
}

const char *fi_strerror(int code)
{
    load();
    return real_strerror(code);
}
