/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand: which call, which request is to fail. */
#include "fake.h"

#include <string.h>

#define PLANS 16

static struct call_plan {
    char name[40];
    int left, error; /* left: calls until the one that fails; 0 for no plan */
    bool every_one;
} calls[PLANS];

static struct {
    int left, k, error;
} post;

static struct send_plan {
    int left, opcode;
    enum ibv_wc_status status;
    bool delivered;
} sends[PLANS];

int fake__plan_call(const char *name)
{
    for (struct call_plan *plan = calls; plan < calls + PLANS; plan++) {
        if (!plan->left || strcmp(plan->name, name) != 0)
            continue;
        if (plan->left > 1) {
            plan->left--;
            return 0;
        }
        if (!plan->every_one)
            plan->left = 0;
        return plan->error;
    }
    return 0;
}

int fake__plan_post(int requests, int *error)
{
    if (!post.left || requests < post.k || --post.left)
        return 0;
    *error = post.error;
    return post.k;
}

bool fake__plan_send(int opcode, enum ibv_wc_status *status, bool *delivered)
{
    for (struct send_plan *plan = sends; plan < sends + PLANS; plan++) {
        if (!plan->left || (plan->opcode != FAKE_VERBS_ANY && plan->opcode != opcode))
            continue;
        if (--plan->left)
            continue;
        *status = plan->status;
        *delivered = plan->delivered;
        return true;
    }
    return false;
}

void fake__plan_clear(void)
{
    memset(calls, 0, sizeof calls);
    memset(&post, 0, sizeof post);
    memset(sends, 0, sizeof sends);
}

void fake_verbs_fail_post(int nth, int k, int error)
{
    fake__lock();
    post.left = nth;
    post.k = k;
    post.error = error;
    fake__unlock();
}

void fake_verbs_fail_send(int opcode, int nth, enum ibv_wc_status status, bool delivered)
{
    fake__lock();
    struct send_plan *plan = sends;
    while (plan < sends + PLANS && plan->left)
        plan++;
    if (plan == sends + PLANS)
        fake__fault("fake_verbs_fail_send: too many plans");
    else
        *plan = (struct send_plan){nth, opcode, status, delivered};
    fake__unlock();
}

static struct call_plan *plan_of(const char *name)
{
    struct call_plan *unused = NULL;
    for (struct call_plan *plan = calls; plan < calls + PLANS; plan++) {
        if (plan->left && !strcmp(plan->name, name))
            return plan;
        if (!plan->left)
            unused = plan;
    }
    return unused;
}

void fake_verbs_fail_call(const char *name, int nth, int error, bool every_one)
{
    fake__lock();
    struct call_plan *plan = plan_of(name);
    if (!plan || strlen(name) >= sizeof plan->name) {
        fake__fault("fake_verbs_fail_call: no room for a plan for %s", name);
    } else {
        memset(plan, 0, sizeof *plan);
        strcpy(plan->name, name);
        plan->left = error ? nth : 0;
        plan->error = error;
        plan->every_one = every_one;
    }
    fake__unlock();
}
