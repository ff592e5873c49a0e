/* SPDX-License-Identifier: Apache-2.0 */
/* What all objects of the fake have in common: one mutex, life and death, and a list of what their
 * user did wrong. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC_LIVE 0x1bfa4e01u
#define MAGIC_DEAD 0x1bfa4edeu
#define GRAVES 1024 /* dead objects whose memory is kept */

pthread_mutex_t fake__mutex = PTHREAD_MUTEX_INITIALIZER;
int fake__objects;
struct fake_verbs_stats fake__stats;

static void *graves[GRAVES];
static size_t next_grave;

static char faults[16384];
static size_t faults_len;
static int nfaults;

static const char *const kind_name[FAKE_KINDS] = {
    [FAKE_CONTEXT] = "context",     [FAKE_PD] = "protection domain",
    [FAKE_MR] = "registration",     [FAKE_CHANNEL] = "completion channel",
    [FAKE_CQ] = "completion queue", [FAKE_SRQ] = "shared receive queue",
    [FAKE_QP] = "queue pair",
};

void fake__lock(void)
{
    pthread_mutex_lock(&fake__mutex);
}

void fake__unlock(void)
{
    pthread_mutex_unlock(&fake__mutex);
}

void fake__fault(const char *fmt, ...)
{
    va_list args;
    nfaults++;
    size_t room = sizeof faults - faults_len;
    va_start(args, fmt);
    int len = vsnprintf(faults + faults_len, room, fmt, args);
    va_end(args);
    if (len < 0 || (size_t)len + 1 >= room) {
        faults[faults_len] = 0; /* counted, but there is no room for the sentence */
        return;
    }
    faults_len += (size_t)len;
    faults[faults_len++] = '\n';
    faults[faults_len] = 0;
}

int fake_verbs_faults(char *text, size_t len)
{
    fake__lock();
    int n = nfaults;
    if (len > 0)
        snprintf(text, len, "%s", faults);
    fake__unlock();
    return n;
}

void fake_verbs_forgive(void)
{
    fake__lock();
    nfaults = 0;
    faults_len = 0;
    faults[0] = 0;
    fake__unlock();
}

int fake_verbs_objects(void)
{
    fake__lock();
    int n = fake__objects;
    fake__unlock();
    return n;
}

void fake_verbs_stats(struct fake_verbs_stats *stats)
{
    fake__lock();
    *stats = fake__stats;
    fake__unlock();
}

void fake__object_make(struct fake_object *object, enum fake_kind kind,
                       struct fake_context *context)
{
    *object = (struct fake_object){.magic = MAGIC_LIVE, .kind = kind, .context = context};
    context->live[kind]++;
    fake__objects++;
}

bool fake__object_ok(const struct fake_object *object, enum fake_kind kind, const char *call)
{
    if (!object)
        fake__fault("%s: no %s given", call, kind_name[kind]);
    else if (object->magic == MAGIC_DEAD)
        fake__fault("%s: this %s has been destroyed", call, kind_name[kind]);
    else if (object->magic != MAGIC_LIVE || object->kind != kind)
        fake__fault("%s: this is no %s", call, kind_name[kind]);
    else
        return true;
    return false;
}

/* Its context goes away, and nobody destroyed it. */
void fake__object_lost(struct fake_object *object)
{
    object->magic = MAGIC_DEAD;
}

void fake__object_retire(struct fake_object *object, void *memory)
{
    object->magic = MAGIC_DEAD;
    object->context->live[object->kind]--;
    fake__objects--;
    free(graves[next_grave]);
    graves[next_grave] = memory;
    next_grave = (next_grave + 1) % GRAVES;
}

/* The process ends, or the library is unloaded and nothing would point to these any more. */
__attribute__((destructor)) static void end(void)
{
    for (size_t i = 0; i < GRAVES; i++)
        free(graves[i]);
    if (!fake__config.strict || (!nfaults && !fake__objects))
        return;
    fprintf(stderr, "fake libibverbs: %d faults, %d objects are left\n%s", nfaults, fake__objects,
            faults);
    _exit(EXIT_FAILURE);
}
