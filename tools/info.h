/* SPDX-License-Identifier: Apache-2.0 */
/* What weft_info tells, as text and as JSON. */
#ifndef WEFT_TOOLS_INFO_H
#define WEFT_TOOLS_INFO_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "weft.h"

#define INFO_TEXT_MAX 256
#define INFO_MAX_ATTRS 24 /* more than there are: the last would be lost */

/* One attribute of a device, for people. */
struct info_attr {
    const char *name;
    char text[INFO_TEXT_MAX];
};

/* Attributes of a device. Returns how many (at most INFO_MAX_ATTRS), or a code. */
int info_attrs(const char *transport, const char *device, struct info_attr *list);
/* "summary, 0000:3b:00.0, NUMA node 0, same switch, 400 Gbit/s". Returns text. */
const char *info_device(const struct weft_device_info *d, char text[INFO_TEXT_MAX]);
/* "NVIDIA H200, 0000:3b:00.0, NUMA node 0, 139.8 GiB, waves of 32". Returns text. */
const char *info_gpu(const struct weft_gpu_device_info *d, char text[INFO_TEXT_MAX]);
/* Of an enum weft_gpu_link, or a code: "NVLink/xGMI". */
const char *info_link(int link);
/* Of an enum weft_gpu_way, or a code: "staged". */
const char *info_way(int way);
/* weft_gpu_way, of a transport that may not be usable. */
int info_gpu_way(const char *backend, int j, const struct weft_transport_info *t, char *why,
                 size_t size);
/* The usable device of a transport that is nearest to a GPU. 0, or -1: none is known to be near. */
int info_nearest(const char *transport, const struct weft_gpu_device_info *gpu,
                 struct weft_device_info *nearest);
/* "same switch" */
const char *info_distance(int distance);
/* "default", "environment", "program" */
const char *info_source(enum weft_config_source source);
/* Everything. NULL when out of memory. */
cJSON *info_json(void);

#endif
