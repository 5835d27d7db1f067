// SPDX-License-Identifier: Apache-2.0
// DLPack's exchange API. torch.Tensor.__dlpack_c_exchange_api__ points to it in torch 2.10 and later.
#ifndef ADAMANT_DLPACK_EXCHANGE_H
#define ADAMANT_DLPACK_EXCHANGE_H

#include <stdint.h>

typedef struct {
    void* data;
    int32_t device_type, device_id, ndim;
    uint8_t type_code, type_bits;
    uint16_t streams;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct {
    uint32_t major, minor;
    void* previous;
    void *allocate, *from_python, *to_python;
    int (*describe)(void* tensor, dl_tensor* description);
} dl_exchange;

enum { dl_cpu = 1, dl_unsigned = 1, dl_float = 2, dl_bfloat = 4 };

#endif
