/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for optimizer state: in huge pages, on chosen NUMA nodes, first touched by the threads that will use it.
 * adamant_c.h has the rules. */
#ifndef ADAMANT_C_BUFFER_H
#define ADAMANT_C_BUFFER_H

#include <adamant/c/executor.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t adamant_pages;
enum {
    ADAMANT_PAGES_TRANSPARENT = 0, /* huge where the kernel has huge ones at hand (MADV_HUGEPAGE) */
    ADAMANT_PAGES_NORMAL = 1,      /* never huge */
    ADAMANT_PAGES_HUGETLB_2M = 2,  /* from the pool that the administrator fills; set aside at once */
    ADAMANT_PAGES_HUGETLB_1G = 3
};

typedef int32_t adamant_memory_binding;
enum {
    ADAMANT_MEMORY_UNBOUND = 0,   /* where the process's policy puts it */
    ADAMANT_MEMORY_PREFERRED = 1, /* on other nodes where the chosen ones are full */
    ADAMANT_MEMORY_BOUND = 2      /* on the chosen nodes only */
};

typedef struct adamant_buffer_options {
    size_t struct_bytes;
    const char* nodes;      /* NUMA nodes, "0-1"; may be null or "": the process's policy. See adamant_select_nodes() */
    adamant_pages pages;    /* ADAMANT_PAGES_TRANSPARENT */
    int32_t pages_required; /* 0: hugetlb falls back to transparent pages, and these to normal ones */
    int32_t nodes_required; /* 0: a bound buffer falls back to preferred nodes, and these to no binding */
    int32_t check_available; /* 1: refuse what does not fit in the memory that is free */
} adamant_buffer_options;
ADAMANT_C_API adamant_status adamant_buffer_options_init(adamant_buffer_options* options, size_t struct_bytes);

typedef struct adamant_buffer adamant_buffer;

/* Makes a buffer of `elements` elements of elem_bytes bytes each, all zero, for *made. Each part is first touched by
 * the thread of the executor that begins with it in a step over so many elements, so the kernel puts it near that
 * thread. The executor may be null: then nothing is touched. options may be null: the defaults. It begins at a multiple
 * of a page. For few and large arrays. invalid argument: sizes that no machine has. unavailable: not enough memory, or
 * something required that cannot be had; nothing has been touched then. */
ADAMANT_C_API adamant_status adamant_buffer_create(const adamant_executor* executor, size_t elements, size_t elem_bytes,
                                                   const adamant_buffer_options* options, adamant_buffer** made);
/* May be null. The memory is gone then: free optimizers whose shards are in it first. */
ADAMANT_C_API void adamant_buffer_free(adamant_buffer* buffer);
/* Where it begins (null for no elements), and its bytes. Each result may be null. */
ADAMANT_C_API adamant_status adamant_buffer_data(const adamant_buffer* buffer, void** data, size_t* bytes);

/* What was got. */
typedef struct adamant_buffer_report {
    size_t struct_bytes;
    size_t bytes;        /* that were asked for */
    size_t mapped_bytes; /* in whole pages */
    const char* nodes;   /* that it is bound to, as a list; "" for none. Lives as long as the buffer, as the next */
    const char* notes;   /* what was asked for and not got, and why; "" where all was got */
    adamant_pages pages; /* how many of them are huge, adamant_buffer_measure() says */
    adamant_memory_binding binding;
} adamant_buffer_report;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_buffer_report_init(adamant_buffer_report* report, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_buffer_describe(const adamant_buffer* buffer, adamant_buffer_report* report);
/* What the kernel has given to the buffer by now: how many bytes are in memory, how many of these in huge pages, and
 * how many on each of the NUMA nodes from 0 to node_count - 1 (a sample for large buffers). Each result may be null,
 * node_bytes with node_count 0. May take a second. */
ADAMANT_C_API adamant_status adamant_buffer_measure(const adamant_buffer* buffer, size_t* resident_bytes,
                                                    size_t* huge_bytes, size_t* node_bytes, size_t node_count);

#ifdef __cplusplus
}
#endif

#endif
