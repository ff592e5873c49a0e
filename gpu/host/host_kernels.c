/* SPDX-License-Identifier: Apache-2.0 */
/* Weft's kernels, run by this processor: block after block, lane after lane. Those in which lanes wait for each other are not
 * among them yet. */
#include "host_kernels.h"

#include <errno.h>
#include <string.h>

/* gcc does not see that a word is stored only where it was loaded. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/copy.cu"

__thread struct weftd_at weftd_at;

static void run_copy(const void *args)
{
    weft_copy(*(const struct weft_copy_args *)args);
}

static const struct kernel {
    const char *name;
    size_t args_len;
    void (*run)(const void *args);
} kernels[] = {{WEFT_COPY_KERNEL, sizeof(struct weft_copy_args), run_copy}};

static const struct kernel *find(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

int host_launch(struct weft_gpu *gpu, const struct weft_gpu_launch *what)
{
    const struct kernel *kernel = find(what->kernel);
    (void)gpu;
    if (!kernel)
        return weft_fail(WEFT_EUNSUPPORTED, "gpu host: has no kernel named %s", what->kernel);
    if (what->stream)
        return weft_fail(WEFT_EUNSUPPORTED, "gpu host: has no streams");
    if (what->args_len != kernel->args_len)
        return weft_fail(-EINVAL, "gpu host: %s takes %zu bytes of arguments, not %zu",
                         what->kernel, kernel->args_len, what->args_len);
    uint32_t lanes = (uint32_t)weft_config_int("WEFT_HOST_WAVE");
    struct weftd_at at = {.blocks = what->blocks, .threads = what->threads, .lanes = lanes};
    for (at.block = 0; at.block < at.blocks; at.block++)
        for (at.thread = 0; at.thread < at.threads; at.thread++) {
            weftd_at = at;
            kernel->run(what->args);
        }
    return 0;
}
