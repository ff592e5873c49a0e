/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that is launched again and again, as a graph of one node (CUDA graphs, driver 12.0 and later). */
#include "cuda_gpu.h"

#include <stdlib.h>

struct graph {
    void *kernel, *graph, *node, *exec;
    uint32_t threads;
};

static struct cuda_kernel_node node_of(const struct graph *graph, uint32_t blocks, void **args)
{
    return (struct cuda_kernel_node){.kernel = graph->kernel,
                                     .blocks = {blocks, 1, 1},
                                     .threads = {graph->threads, 1, 1},
                                     .args = args};
}

void cuda_graph_unmake(void *made)
{
    const struct cuda_api *api = &cuda_table;
    struct graph *graph = made;
    if (graph->exec)
        api->exec_destroy(graph->exec);
    if (graph->graph)
        api->graph_destroy(graph->graph);
    free(graph);
}

static bool has_all(const struct cuda_api *api)
{
#define CUDA_HAS(member, symbol, parameters)                                                      \
    if (!api->member)                                                                             \
        return false;
    CUDA_GRAPH_FUNCTIONS(CUDA_HAS)
#undef CUDA_HAS
    return true;
}

int cuda_graph_make(void **made, void *kernel, uint32_t threads, const void *args, void *stream)
{
    const struct cuda_api *api = &cuda_table;
    void *parameters[] = {(void *)(uintptr_t)args}; /* which are copied */
    struct graph *graph = has_all(api) ? calloc(1, sizeof *graph) : NULL;
    if (!graph)
        return has_all(api) ? VENDOR_ENOMEM : VENDOR_EUNSUPPORTED;
    graph->kernel = kernel;
    graph->threads = threads;
    const struct cuda_kernel_node node = node_of(graph, 1, parameters);
    int result = api->graph_create(&graph->graph, 0);
    if (result == 0)
        result = api->graph_add_kernel(&graph->node, graph->graph, NULL, 0, &node);
    if (result == 0)
        result = api->graph_instantiate(&graph->exec, graph->graph, 0);
    if (result == 0) /* now, and not with the first launch */
        result = api->exec_upload(graph->exec, stream);
    if (result)
        cuda_graph_unmake(graph);
    else
        *made = graph;
    return result;
}

int cuda_graph_launch(void *made, uint32_t blocks, const void *args, void *stream)
{
    const struct cuda_api *api = &cuda_table;
    const struct graph *graph = made;
    void *parameters[] = {(void *)(uintptr_t)args};
    const struct cuda_kernel_node node = node_of(graph, blocks, parameters);
    int result = api->exec_set_kernel(graph->exec, graph->node, &node);
    return result ? result : api->exec_launch(graph->exec, stream);
}
