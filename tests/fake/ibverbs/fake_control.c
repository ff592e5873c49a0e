/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask for beside the calls of verbs: see fake_ibverbs.h. */
#include "fake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int configure(const char *spec)
{
    struct fake_config config;
    if (fake__contexts)
        return EBUSY;
    if (fake__config_parse(&config, spec))
        return EINVAL;
    fake__config = config;
    fake__devices_make();
    return 0;
}

static int configure_from_environment(void)
{
    const char *spec = getenv("FAKE_VERBS");
    int err = configure(spec ? spec : "");
    if (err == EINVAL) {
        configure("");
        fake__fault("FAKE_VERBS does not parse: %s", spec);
    }
    return err;
}

__attribute__((constructor)) static void begin(void)
{
    fake__lock();
    configure_from_environment();
    fake__unlock();
}

int fake_verbs_configure(const char *spec)
{
    fake__lock();
    int err = configure(spec);
    fake__unlock();
    return err;
}

int fake_verbs_reset(void)
{
    fake_verbs_release(-1);
    fake_verbs_hold_acks(false);
    fake_verbs_forgive();
    fake__lock();
    fake__plan_clear();
    memset(&fake__stats, 0, sizeof fake__stats);
    int err = configure_from_environment();
    fake__unlock();
    return err;
}

int fake_verbs_set_gid(const char *name, int port, int index, const char *address,
                       enum ibv_gid_type type)
{
    struct fake_gid gid = {.type = type};
    if (port < 0 || index < 0 || index >= FAKE_GIDS || inet_pton(AF_INET6, address, &gid.gid) != 1)
        return EINVAL;
    fake__lock();
    struct fake_device *device = fake__device(name);
    bool found = device && fake__port_exists((uint32_t)port);
    if (found)
        device->ports[port].gids[index] = gid;
    fake__unlock();
    return found ? 0 : ENODEV;
}

/* --- when things happen ---------------------------------------------------------------------- */

void fake_verbs_hold(void)
{
    fake__lock();
    fake__holding = true;
    fake__unlock();
}

int fake_verbs_release(int n)
{
    fake__lock();
    int ran = fake__run_some(n < 0 ? INT_MAX : n);
    if (n < 0) {
        fake__holding = false;
        fake__run_waiting(NULL);
    }
    fake__unlock();
    return ran;
}

void fake_verbs_hold_acks(bool hold)
{
    fake__lock();
    fake__holding_acks = hold;
    for (int i = 0; i < FAKE_DEVICES && !hold; i++)
        fake__qp_each(&fake__devices[i], fake__acknowledge);
    fake__unlock();
}

int fake_verbs_waiting(void)
{
    fake__lock();
    int n = fake__waiting_sends();
    fake__unlock();
    return n;
}

/* --- events ---------------------------------------------------------------------------------- */

static void tell(const struct fake_device *device, enum ibv_event_type type, int port)
{
    for (struct fake_context *c = fake__contexts; c; c = c->next)
        if (c->device == device)
            fake__async_port(c, type, port);
}

int fake_verbs_port(const char *name, int port, bool up)
{
    fake__lock();
    struct fake_device *device = fake__device(name);
    bool found = device && port >= 0 && fake__port_exists((uint32_t)port);
    enum ibv_port_state state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    if (found && device->ports[port].state != state) {
        device->ports[port].state = state;
        tell(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port);
        fake__run_waiting(NULL);
    }
    fake__unlock();
    return found ? 0 : ENODEV;
}

static int qp_event(struct fake_device *device, enum ibv_event_type type, uint32_t number)
{
    struct fake_qp *qp = fake__qp_find(device, number);
    if (!qp)
        return ENOENT;
    fake__async(qp->object.context, type, &qp->pub);
    if (type != IBV_EVENT_COMM_EST)
        fake__qp_error(qp);
    return 0;
}

static int event(struct fake_device *device, enum ibv_event_type type, uint32_t which)
{
    switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
        return qp_event(device, type, which);
    case IBV_EVENT_DEVICE_FATAL:
        device->fatal = true;
        tell(device, type, 0);
        fake__qp_each(device, fake__qp_error);
        return 0;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
        if (!fake__port_exists(which))
            return EINVAL;
        tell(device, type, (int)which);
        return 0;
    default:
        return EINVAL;
    }
}

int fake_verbs_event(const char *name, enum ibv_event_type type, uint32_t which)
{
    fake__lock();
    struct fake_device *device = fake__device(name);
    int err = device ? event(device, type, which) : ENODEV;
    fake__unlock();
    return err;
}
