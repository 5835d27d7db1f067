/* SPDX-License-Identifier: Apache-2.0 */
/* The library for programs in C, and in every language that can call C: all of its headers, and the rules that hold for
 * every call. */
#ifndef ADAMANT_C_H
#define ADAMANT_C_H

#include <adamant/c/buffer.h>
#include <adamant/c/cores.h>
#include <adamant/c/deepspeed.h>
#include <adamant/c/device.h>
#include <adamant/c/executor.h>
#include <adamant/c/optimizer.h>
#include <adamant/c/shard.h>
#include <adamant/c/split.h>
#include <adamant/c/state.h>
#include <adamant/c/status.h>
#include <adamant/c/step.h>
#include <adamant/c/tuning.h>
#include <adamant/c/zenflow.h>

/*
 * Errors. A function that can fail returns a status; ADAMANT_OK is 0. After any other status adamant_last_error() says,
 * to the thread that made the call, what was asked, what was found and what to do. Unless its comment says otherwise, a
 * call that fails has changed nothing and has written none of its results. No exception leaves the library. A null
 * pointer is an error, except where the comment says "may be null"; a pointer that is not null is believed.
 * A call that runs out of memory says so and has changed nothing. The exceptions are in other libraries, which then end
 * the process: nlohmann-json, which reads and writes checkpoints, tuning results and configurations, if memory runs out
 * while it frees its own; hwloc, if it does while the machine is read, which is once in a process, in the first call
 * that needs cores or makes threads (8 MiB must be free before), and again where another machine is described; and the
 * OpenMP runtime, while a team's threads are made (1 MiB and 32 KiB for each thread must be free before).
 *
 * Threads. Different optimizers may be used by different threads at the same time, even on one executor. Of one
 * optimizer, functions whose comment says "from any thread" may be called by several threads at once, and all others by
 * one thread at a time. A thread must not be cancelled (pthread_cancel) during a call. In a process that was forked from
 * that of an optimizer, executor, team or device, calls that need their threads return ADAMANT_UNAVAILABLE. Handles may
 * be freed there: that waits for nothing, and leaks what threads were at work on.
 *
 * Ownership. Arrays of params, gradients, moments and weights are the caller's, and must outlive the optimizer that was
 * told of them. Everything else that is passed in (names, structs and what they point to) is copied, and may be freed
 * after the call. Texts that are returned belong to the library; each comment says how long they live. What an
 * adamant_..._create() has made is given back to its adamant_..._free(), which takes a null pointer, too. Handles count
 * their users: what another object was made with may be freed first.
 *
 * Structs. Each begins with struct_bytes, its size as the caller's compiler knows it, so that later versions of the
 * library may append fields. adamant_..._init(&it, sizeof it) sets struct_bytes and all defaults; a struct of zeros
 * with struct_bytes set is not the same. Fields that this version of the library does not know must be zero. Fields
 * that the caller's version does not know have their defaults.
 *
 * Numbers. Sizes and indices are of type size_t; they count elements unless the name says bytes, and indices begin at
 * 0. True and false are int32_t: 0 is false, anything else is true. Only what belongs to the formula changes the bits
 * of a result: hyperparameters, limits, the loss scale and the order of shards. No other choice does.
 */

#endif
