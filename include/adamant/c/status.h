/* SPDX-License-Identifier: Apache-2.0 */
/* What all other headers of the C interface need: versions, statuses and their texts. adamant_c.h has the rules. */
#ifndef ADAMANT_C_STATUS_H
#define ADAMANT_C_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ADAMANT_C_API __attribute__((visibility("default")))
#else
#define ADAMANT_C_API
#endif

/* The version of this interface. A program that was compiled against one version works with every library that has the
 * same version. Within a version, functions and statuses are only added, and fields of structs are only appended. */
#define ADAMANT_C_VERSION 1
/* ADAMANT_C_VERSION of the library that was loaded, to be compared with that of the header. */
ADAMANT_C_API uint32_t adamant_c_version(void);
/* The version of the project, "0.1.0". Lives for ever. */
ADAMANT_C_API const char* adamant_version(void);

typedef int32_t adamant_status;
enum {
    ADAMANT_OK = 0,
    ADAMANT_INVALID_ARGUMENT = 1, /* the request can never be right */
    ADAMANT_UNAVAILABLE = 2,      /* it is well formed, but this machine, file system or build cannot serve it */
    ADAMANT_OUT_OF_MEMORY = 3,
    ADAMANT_CORRUPTED = 4,     /* a file, or a state in memory, that is damaged */
    ADAMANT_REDUCE_FAILED = 5, /* adamant_optimizer_options.reduce said so */
    ADAMANT_INTERNAL = 6,      /* a defect of the library */
    ADAMANT_DEVICE_FAILED = 7  /* a device has failed at something, or has stopped answering */
};
/* The text of this thread's last call that failed, or of a save that left something out, in at most 4095 bytes of
 * UTF-8;
 * "" before the first one, and after a save that left nothing out. Bytes of a
 * path or name that are not UTF-8 are written as \xff. Lives until the next call of this thread that fails, or the end
 * of the thread. Never null. */
ADAMANT_C_API const char* adamant_last_error(void);
/* "ok", "invalid argument" and so on; "unknown status" for numbers that are none. Lives for ever. */
ADAMANT_C_API const char* adamant_status_name(adamant_status status);

/* A size that the library chooses, where a comment allows it. */
#define ADAMANT_AUTOMATIC_BYTES SIZE_MAX

#ifdef __cplusplus
}
#endif

#endif
