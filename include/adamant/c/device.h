/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that step a part of an optimizer's shards beside the CPU, with the same bits. adamant_c.h has the rules. */
#ifndef ADAMANT_C_DEVICE_H
#define ADAMANT_C_DEVICE_H

#include <adamant/c/optimizer.h>
#include <adamant/c/split.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices ------------------------------------------------------------------------------------------------------
 */

/* One optimizer at a time, of either kind, has shards on a device; make another handle for another optimizer, of the
 * same GPU if need be. The functions below may be called from any thread, but not during a step of that optimizer where
 * they copy. */
typedef struct adamant_device adamant_device;

/* Makes an NVIDIA GPU of compute capability 7.0 or newer for *made, by CUDA's number for it, from 0, as
 * CUDA_VISIBLE_DEVICES leaves them. unavailable: there is none of that number, it is older, or the library was built
 * without nvcc. device failed: CUDA says so. */
ADAMANT_C_API adamant_status adamant_cuda_device_create(int32_t ordinal, adamant_device** made);
/* What is submitted from now on waits for this event of the caller's, a cudaEvent_t on any stream of this GPU: for
 * gradients that are still being made there. Call it before adamant_submit() or adamant_zenflow_submit(). invalid
 * argument: not such a device. */
ADAMANT_C_API adamant_status adamant_cuda_device_follow(adamant_device* device, void* event);

/* A device that is imitated in host memory: for tests, and for machines without a GPU. */
typedef struct adamant_emulation_options {
    size_t struct_bytes;
    const char* name;        /* may be null: "emulated device" */
    size_t memory_bytes;     /* 1 TiB; only what is used is allocated */
    double work_bytes_per_s; /* INFINITY, as the next two: as fast as this machine */
    double up_bytes_per_s;   /* copies from the host */
    double down_bytes_per_s; /* copies to the host */
    double latency_s;        /* 0; of everything that it does */
} adamant_emulation_options;
ADAMANT_C_API adamant_status adamant_emulation_options_init(adamant_emulation_options* options, size_t struct_bytes);
/* Makes one for *made. options may be null: the defaults. invalid argument: rates that are not above 0, a latency below
 * 0. */
ADAMANT_C_API adamant_status adamant_emulated_device_create(const adamant_emulation_options* options,
                                                            adamant_device** made);
typedef int32_t adamant_device_operation;
enum { ADAMANT_DEVICE_COPY_UP = 0, ADAMANT_DEVICE_COPY_DOWN = 1, ADAMANT_DEVICE_WORK = 2, ADAMANT_DEVICE_ALLOCATE = 3 };
/* To see what a program does when a device fails: operation number `after` of this kind from now on, counted from 0,
 * fails. invalid argument: not an emulated device. */
ADAMANT_C_API adamant_status adamant_emulated_device_fail(adamant_device* device, adamant_device_operation operation,
                                                          size_t after);
/* The same for an operation that does not end until adamant_emulated_device_resume(). */
ADAMANT_C_API adamant_status adamant_emulated_device_hang(adamant_device* device, adamant_device_operation operation,
                                                          size_t after);
/* Nothing hangs, or will hang or fail, any more. */
ADAMANT_C_API adamant_status adamant_emulated_device_resume(adamant_device* device);

/* May be null. An optimizer that has shards on the device keeps it. */
ADAMANT_C_API void adamant_device_free(adamant_device* device);
/* Its name, for people, and its memory. Each result may be null. The text lives as long as the handle. */
ADAMANT_C_API adamant_status adamant_device_describe(const adamant_device* device, const char** name,
                                                     size_t* total_bytes, size_t* free_bytes);

/* Memory on the device, for adamant_set_device_arrays() and adamant_zenflow_set_device_arrays(); a program that uses
 * CUDA may take cudaMalloc()'s addresses, too. Addresses are not for the host to look at. They begin at multiples of
 * 256 bytes, and their contents are undefined. 0 for 0 bytes. unavailable: it has too little memory left. */
ADAMANT_C_API adamant_status adamant_device_allocate(adamant_device* device, size_t bytes, uint64_t* address);
/* Of adamant_device_allocate(), or 0. No optimizer may use it any more. */
ADAMANT_C_API adamant_status adamant_device_release(adamant_device* device, uint64_t address);
/* Copies to and from memory of the device, and returns when that is done. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_device_copy_up(adamant_device* device, uint64_t to, const void* from,
                                                    size_t bytes);
ADAMANT_C_API adamant_status adamant_device_copy_down(adamant_device* device, void* to, uint64_t from, size_t bytes);

/* ---- Shards on a device: between steps -----------------------------------------------------------------------------
 */

/* The sizes of all shards in elements, in order: `count` of them, which must be what adamant_shard_count() says. */
ADAMANT_C_API adamant_status adamant_shard_sizes(const adamant_optimizer* optimizer, size_t* sizes, size_t count);
/* How many bytes of the device's memory adamant_place() would take with this placement. */
ADAMANT_C_API adamant_status adamant_device_bytes(const adamant_optimizer* optimizer, const adamant_device* device,
                                                  const adamant_placement* placement, size_t* bytes);
/* Gives a part of the shards to a device, changes which part it has, or takes all back: then device and placement are
 * null. From the next step on the device steps its pieces and the CPU the others, at once, with the same bits wherever
 * the cut. The state of those pieces moves: it is in the device's memory alone, and the shards' own arrays of it are
 * out of date until adamant_update_host_arrays(), a save, or its return. Shards that are added later are the CPU's.
 *
 * The device needs room for what it gets beside what it has. The last step can then no longer be rolled back.
 *
 * When a step ends with ADAMANT_DEVICE_FAILED, it has been taken back on both sides: state and accumulated gradients
 * are as before it. For that the steps of both sides are recorded; see device_records of adamant_optimizer_options. A
 * device that does not answer in time does its part of that later, before anything else; until then the gradients of
 * the step must stay where they are on it.
 *
 * invalid argument: a placement of other shards, a device that has another optimizer's shards, and during a step.
 * unavailable, device failed: the device lacks the memory, or has failed; everything is where it was. What
 * adamant_prepare() fails with, lack of memory above all, comes when all has moved. */
ADAMANT_C_API adamant_status adamant_place(adamant_optimizer* optimizer, const adamant_device* device,
                                           const adamant_placement* placement);
/* Says that a shard's gradient is made on the device that adamant_place() is given next, and that its weights are
 * wanted there: in arrays of the caller's in the device's memory, with the shard's size and types, at multiples of 16
 * bytes, until all is taken back. The shard's own grad and weight_out are then where the CPU's part of them passes
 * through. weight_out is 0 for a shard without; both 0: gradient and weights are in host memory. invalid argument:
 * shards are on a device already, an address that is missing or not such a multiple, no such shard, and during a step.
 */
ADAMANT_C_API adamant_status adamant_set_device_arrays(adamant_optimizer* optimizer, size_t shard, uint64_t grad,
                                                       uint64_t weight_out);
/* Copies what a device has of params and moments into the shards' own arrays, for the caller to read them there.
 * Without a device there is nothing to do. invalid argument: during a step. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_update_host_arrays(adamant_optimizer* optimizer);

#ifdef __cplusplus
}
#endif

#endif
