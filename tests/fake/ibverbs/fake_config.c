/* SPDX-License-Identifier: Apache-2.0 */
/* What the devices are like: a text of NAME=VALUE, joined by commas. README.md has the list. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fake_config fake__config;

struct word {
    const char *word;
    uint64_t value;
};

static const struct word links[] = {
    {"eth", IBV_LINK_LAYER_ETHERNET}, {"ib", IBV_LINK_LAYER_INFINIBAND}, {NULL, 0}};
static const struct word atomics[] = {
    {"none", IBV_ATOMIC_NONE}, {"hca", IBV_ATOMIC_HCA}, {"glob", IBV_ATOMIC_GLOB}, {NULL, 0}};
static const struct word mtus[] = {{"256", IBV_MTU_256},   {"512", IBV_MTU_512},
                                   {"1024", IBV_MTU_1024}, {"2048", IBV_MTU_2048},
                                   {"4096", IBV_MTU_4096}, {NULL, 0}};

#define FIELD(name) offsetof(struct fake_config, name)
static const struct setting {
    const char *name;
    size_t field;
    uint64_t preset, min, max;
    const struct word *words;
} settings[] = {
    {"devices", FIELD(devices), 1, 0, FAKE_DEVICES, NULL},
    {"vendor", FIELD(vendor), 0xfa4e, 0, UINT32_MAX, NULL},
    {"ports", FIELD(ports), 1, 1, FAKE_PORTS, NULL},
    {"link", FIELD(link), IBV_LINK_LAYER_ETHERNET, 0, 0, links},
    {"pkeys", FIELD(pkeys), 2, 1, 128, NULL},
    {"mtu", FIELD(mtu), IBV_MTU_1024, 0, 0, mtus},
    {"inline", FIELD(inlined), 256, 0, 4096, NULL},
    {"inline_quiet", FIELD(inline_quiet), 0, 0, 1, NULL},
    {"atomics", FIELD(atomics), IBV_ATOMIC_HCA, 0, 0, atomics},
    {"srq", FIELD(srq), 1, 0, 1, NULL},
    {"max_sge", FIELD(max_sge), 30, 1, FAKE_SGE, NULL},
    {"max_qp_wr", FIELD(max_qp_wr), 16384, 1, 1 << 20, NULL},
    {"max_srq_wr", FIELD(max_srq_wr), 16384, 1, 1 << 20, NULL},
    {"max_cqe", FIELD(max_cqe), 1 << 22, 1, 1 << 22, NULL},
    {"max_qp", FIELD(max_qp), 1 << 17, 1, 1 << 20, NULL},
    {"max_mr", FIELD(max_mr), 1 << 20, 1, 1 << 24, NULL},
    {"max_mr_size", FIELD(max_mr_size), UINT64_MAX, 1, UINT64_MAX, NULL},
    {"mr_limit", FIELD(mr_limit), UINT64_MAX, 1, UINT64_MAX, NULL},
    {"max_rd_atom", FIELD(max_rd_atom), 16, 0, 255, NULL},
    {"max_msg", FIELD(max_msg), 1 << 30, 1, 1u << 31, NULL},
    {"dmabuf", FIELD(dmabuf), 1, 0, 1, NULL},
    {"relaxed", FIELD(relaxed), 1, 0, 1, NULL},
    {"gid_table", FIELD(gid_table), 1, 0, 1, NULL},
    {"stale", FIELD(stale), 0, 0, 1, NULL},
    {"mute", FIELD(mute), 0, 0, 2, NULL},
    {"comm_est", FIELD(comm_est), 1, 0, 1, NULL},
    {"strict", FIELD(strict), 0, 0, 1, NULL},
    {"retry_polls", FIELD(retry_polls), 0, 0, UINT64_MAX, NULL},
    {"retry_ms", FIELD(retry_ms), 500, 0, 1u << 20, NULL},
};
#define SETTINGS (sizeof settings / sizeof *settings)

static uint64_t *field_of(struct fake_config *config, const struct setting *setting)
{
    return (uint64_t *)(void *)((uint8_t *)config + setting->field);
}

static int parse_number(const char *text, uint64_t *value)
{
    static const char units[] = "KMGT";
    char *end;
    if (*text < '0' || *text > '9')
        return EINVAL;
    *value = strtoull(text, &end, 0);
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        *value <<= 10 * (unit - units + 1);
        end++;
    }
    return *end ? EINVAL : 0;
}

static int parse_value(const struct setting *setting, const char *text, uint64_t *value)
{
    if (!setting->words) {
        uint64_t number;
        if (parse_number(text, &number) || number < setting->min || number > setting->max)
            return EINVAL;
        *value = number;
        return 0;
    }
    for (const struct word *word = setting->words; word->word; word++) {
        if (!strcmp(word->word, text)) {
            *value = word->value;
            return 0;
        }
    }
    return EINVAL;
}

static int copy_text(char *to, size_t size, const char *text)
{
    if (strlen(text) >= size)
        return EINVAL;
    strcpy(to, text);
    return 0;
}

static int parse_pair(struct fake_config *config, char *pair)
{
    char *value = strchr(pair, '=');
    if (!value)
        return EINVAL;
    *value++ = 0;
    if (!strcmp(pair, "gid"))
        return copy_text(config->gid, sizeof config->gid, value);
    if (!strcmp(pair, "sysfs"))
        return copy_text(config->sysfs, sizeof config->sysfs, value);
    for (size_t i = 0; i < SETTINGS; i++)
        if (!strcmp(settings[i].name, pair))
            return parse_value(&settings[i], value, field_of(config, &settings[i]));
    return EINVAL;
}

int fake__config_parse(struct fake_config *config, const char *spec)
{
    char text[1024], *rest = text;
    if (copy_text(text, sizeof text, spec))
        return EINVAL;
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < SETTINGS; i++)
        *field_of(config, &settings[i]) = settings[i].preset;
    strcpy(config->gid, "link1+link2+ipv4v1+ipv4v2");
    strcpy(config->sysfs, "/sys/class/infiniband");
    for (char *pair; (pair = strsep(&rest, ","));)
        if (*pair && parse_pair(config, pair))
            return EINVAL;
    return 0;
}
