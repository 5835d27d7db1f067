// SPDX-License-Identifier: Apache-2.0
// Extension module adamant._lists: reads lists of arrays and passes them to libadamant_c in one call.
//
// Uses the limited API of CPython 3.9. Plain torch tensors (of torch 2.10 and later) and NumPy arrays are read here;
// everything else, and every array that cannot be used, goes through a Python function, which raises the error.
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <adamant/adamant.h>

#include "dlpack_exchange.h"

// What an array's __array_struct__ points to.
typedef struct {
    int two, dims;
    char kind;
    int item_bytes, flags;
    Py_intptr_t *shape, *strides;
    void* data;
    PyObject* description;
} numpy_interface;
enum { numpy_contiguous = 0x1, numpy_native = 0x200, numpy_writeable = 0x400 };

typedef struct {
    void* data;
    adamant_dtype type;
    size_t elements;
} array_info;

// The arrays of a list: their name in errors, and which dtypes they may have besides float32, bfloat16 and float16.
typedef struct {
    const char* name;
    enum { element, master, moment } role;
    int written;
} column;
static const column params_column = {"params", master, 1}, grads_column = {"grads", element, 0},
                    exp_avgs_column = {"exp_avgs", moment, 1}, exp_avg_sqs_column = {"exp_avg_sqs", moment, 1},
                    weight_outs_column = {"weight_outs", element, 1}, sums_column = {"sums", element, 1};

static adamant_status (*step_list)(const adamant_executor*, const adamant_step_item*, size_t, uint64_t*);
static adamant_status (*accumulate_list)(const adamant_executor*, const adamant_sum_item*, size_t);
static PyObject *describe_in_python, *count_in_python, *check_status, *invalid_argument;
static const dl_exchange* exchange;
static PyTypeObject *tensor_type, *parameter_type, *ndarray_type;
static PyCFunction is_neg;
static PyObject* array_struct_name;

static adamant_dtype dtype_of(int is_float, int is_bfloat, int is_unsigned, int bits, int role)
{
    if (is_float && bits == 32)
        return ADAMANT_FLOAT32;
    if (is_float && bits == 16)
        return ADAMANT_FLOAT16;
    if (is_bfloat && bits == 16)
        return ADAMANT_BFLOAT16;
    if (is_unsigned && bits == 8 && role == moment)
        return ADAMANT_QUANTIZED8;
    if (!is_float && !is_bfloat && !is_unsigned && bits == 16 && role == master)
        return ADAMANT_SPLIT_FLOAT32;
    return ADAMANT_NONE;
}

static int is_plain_tensor(PyObject* object)
{
    return exchange != NULL && (Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type);
}

// Describes a dense tensor in host memory. False: it cannot be used, or Python must decide.
static int read_tensor(PyObject* tensor, int role, array_info* info)
{
    dl_tensor dl;
    memset(&dl, 0, sizeof dl);
    if (exchange->describe(tensor, &dl) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (dl.device_type != dl_cpu || dl.streams != 1)
        return 0;
    int64_t elements = 1;
    int is_contiguous = 1;
    for (int i = dl.ndim - 1; i >= 0; --i) {
        if (dl.shape[i] != 1 && dl.strides != NULL && dl.strides[i] != elements)
            is_contiguous = 0;
        elements *= dl.shape[i];
    }
    info->elements = (size_t)elements;
    info->data = elements == 0 ? NULL : (char*)dl.data + dl.byte_offset;
    info->type =
        dtype_of(dl.type_code == dl_float, dl.type_code == dl_bfloat, dl.type_code == dl_unsigned, dl.type_bits, role);
    // A released storage has an address below 1 TiB, which is the offset alone.
    if (info->type == ADAMANT_NONE || (!is_contiguous && elements != 0) ||
        (elements != 0 && (uintptr_t)info->data < (uintptr_t)1 << 40))
        return 0;
    if (elements == 1) { // the imaginary part of a conjugate: memory holds the negated value
        PyObject* answer = is_neg(tensor, NULL);
        const int is_negated = answer != Py_False;
        if (answer == NULL)
            PyErr_Clear();
        Py_XDECREF(answer);
        return !is_negated;
    }
    return 1;
}

static int read_numpy(PyObject* array, const column* list, array_info* info)
{
    PyObject* capsule = PyObject_GetAttr(array, array_struct_name);
    const numpy_interface* source = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    int is_usable = 0;
    if (source != NULL && source->two == 2) {
        info->elements = 1;
        for (int i = 0; i < source->dims; ++i)
            info->elements *= (size_t)source->shape[i];
        info->data = info->elements == 0 ? NULL : source->data;
        info->type = dtype_of(
            source->kind == 'f', 0, source->kind == 'u',
            source->kind == 'f' || source->kind == 'u' || source->kind == 'i' ? 8 * source->item_bytes : 0, list->role);
        const int needed = numpy_contiguous | numpy_native | (list->written ? numpy_writeable : 0);
        is_usable = info->type != ADAMANT_NONE && (source->flags & needed) == needed;
    }
    PyErr_Clear();
    Py_XDECREF(capsule);
    return is_usable;
}

// Returns -1 with an exception set if the array cannot be used.
static int read_array(PyObject* array, const column* list, Py_ssize_t index, array_info* info)
{
    if (is_plain_tensor(array) && read_tensor(array, list->role, info))
        return 0;
    if (Py_TYPE(array) == ndarray_type && read_numpy(array, list, info))
        return 0;
    static const char* const roles[] = {"", "master", "moment"};
    PyObject* answer =
        PyObject_CallFunction(describe_in_python, "Osnsi", array, list->name, index, roles[list->role], list->written);
    unsigned long long address, elements;
    int type;
    const int failed = answer == NULL || !PyArg_ParseTuple(answer, "KiK", &address, &type, &elements);
    Py_XDECREF(answer);
    if (failed)
        return -1;
    info->data = (void*)(uintptr_t)address;
    info->type = type;
    info->elements = (size_t)elements;
    return 0;
}

// Reads an array that belongs to one of `elements` elements, whose name is `first`.
static int read_partner(PyObject* array, const column* list, Py_ssize_t index, size_t elements, const char* first,
                        array_info* info)
{
    if (read_array(array, list, index, info) != 0)
        return -1;
    if (info->type == ADAMANT_QUANTIZED8) {
        const size_t groups = (elements + 63) / 64;
        if (info->elements == 68 * groups)
            return 0;
        PyErr_Format(invalid_argument,
                     "cannot step: %s[%zd] has %zu bytes, but must have the shape [%zu, 68] for the "
                     "%zu elements of %s[%zd]",
                     list->name, index, info->elements, groups, elements, first, index);
        return -1;
    }
    if (info->elements == elements)
        return 0;
    PyErr_Format(invalid_argument,
                 "cannot use %s[%zd] with %s[%zd]: they have %zu and %zu elements, but must have "
                 "the same number",
                 first, index, list->name, index, elements, info->elements);
    return -1;
}

// A tuple of a list's arrays, which keeps them alive during the call. NULL with an exception set unless it has `count`.
static PyObject* tuple_of(PyObject* list, const char* name, Py_ssize_t count, const char* first)
{
    PyObject* tuple = PySequence_Tuple(list);
    if (tuple == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyErr_Format(invalid_argument, "cannot use %R as %s: it is not a sequence. Pass one for each tensor", list, name);
    }
    if (tuple != NULL && count >= 0 && PyTuple_Size(tuple) != count) {
        PyErr_Format(invalid_argument, "cannot use %zd %s with %zd %s: pass one for each", PyTuple_Size(tuple), name,
                     count, first);
        Py_CLEAR(tuple);
    }
    return tuple;
}

static int read_count(PyObject* value, Py_ssize_t index, uint64_t* count)
{
    if (PyLong_CheckExact(value)) {
        *count = PyLong_AsUnsignedLongLong(value);
        if (!PyErr_Occurred())
            return 0;
        PyErr_Clear();
    } else if (is_plain_tensor(value)) {
        dl_tensor dl;
        memset(&dl, 0, sizeof dl);
        if (exchange->describe(value, &dl) != 0) {
            PyErr_Clear();
        } else if (dl.device_type == dl_cpu && dl.streams == 1 && dl.ndim == 0 && dl.type_code == dl_float &&
                   dl.type_bits == 32 && (uintptr_t)dl.data >= (uintptr_t)1 << 40) {
            float number;
            memcpy(&number, (char*)dl.data + dl.byte_offset, sizeof number);
            if (number >= 0 && number <= 16777216 && number == floorf(number)) {
                *count = (uint64_t)number;
                return 0;
            }
        }
    }
    PyObject* answer = PyObject_CallFunction(count_in_python, "On", value, index);
    if (answer == NULL)
        return -1;
    *count = PyLong_AsUnsignedLongLong(answer);
    Py_DECREF(answer);
    return PyErr_Occurred() ? -1 : 0;
}

// Raises the error of a status in this thread. Returns NULL.
static PyObject* raise_status(adamant_status status)
{
    PyObject* nothing = PyObject_CallFunction(check_status, "i", (int)status);
    Py_XDECREF(nothing);
    if (nothing != NULL)
        PyErr_SetString(PyExc_SystemError, "libadamant_c returned an unknown status");
    return NULL;
}

typedef struct {
    adamant_step_item* items;
    adamant_shard* shards;
    PyObject* lists[6]; // params, grads, exp_avgs, exp_avg_sqs, weight_outs and steps; the last two may be NULL
    uint64_t shared_step;
    adamant_hyperparameters hyper;
    double grad_scale;
} step_arguments;

static int read_item(step_arguments* all, Py_ssize_t i)
{
    adamant_step_item* item = all->items + i;
    adamant_shard* shard = all->shards + i;
    array_info param, grad, exp_avg, exp_avg_sq, weight_out = {NULL, ADAMANT_NONE, 0};
    if (read_array(PyTuple_GetItem(all->lists[0], i), &params_column, i, &param) != 0 ||
        read_partner(PyTuple_GetItem(all->lists[1], i), &grads_column, i, param.elements, "params", &grad) != 0 ||
        read_partner(PyTuple_GetItem(all->lists[2], i), &exp_avgs_column, i, param.elements, "params", &exp_avg) != 0 ||
        read_partner(PyTuple_GetItem(all->lists[3], i), &exp_avg_sqs_column, i, param.elements, "params",
                     &exp_avg_sq) != 0)
        return -1;
    if (all->lists[4] != NULL) {
        PyObject* weights = PyTuple_GetItem(all->lists[4], i);
        if (weights != Py_None &&
            read_partner(weights, &weight_outs_column, i, param.elements, "params", &weight_out) != 0)
            return -1;
    }
    item->struct_bytes = sizeof *item;
    item->shard = shard;
    item->hyper = &all->hyper;
    item->step_number = all->shared_step;
    item->grad_scale = all->grad_scale;
    if (all->lists[5] != NULL && read_count(PyTuple_GetItem(all->lists[5], i), i, &item->step_number) != 0)
        return -1;
    shard->struct_bytes = sizeof *shard;
    shard->elements = param.elements;
    shard->param = param.data;
    shard->grad = grad.data;
    shard->exp_avg = exp_avg.data;
    shard->exp_avg_sq = exp_avg_sq.data;
    shard->weight_out = weight_out.data;
    shard->accumulator = NULL;
    shard->param_dtype = param.type;
    shard->grad_dtype = grad.type;
    shard->exp_avg_dtype = exp_avg.type;
    shard->exp_avg_sq_dtype = exp_avg_sq.type;
    shard->weight_out_dtype = weight_out.type;
    shard->accumulator_dtype = ADAMANT_NONE;
    shard->shape = NULL;
    shard->dims = 0;
    shard->begin = 0;
    shard->rounding_stream = (uint64_t)i;
    shard->changed = NULL;
    return 0;
}

enum { few = 4 }; // items without an allocation

// step(executor, params, grads, exp_avgs, exp_avg_sqs, weight_outs, steps, lr, beta1, beta2, eps, weight_decay, decay,
//      bias_correction, exp_avg_sq_rounding, param_rounding, rounding_seed, grad_scale) -> infinite and NaN gradients
static PyObject* step(PyObject* nothing, PyObject* arguments)
{
    (void)nothing;
    unsigned long long executor, seed;
    PyObject* given[6];
    step_arguments all;
    adamant_hyperparameters* h = &all.hyper;
    int decay, bias_correction, exp_avg_sq_rounding, param_rounding;
    if (!PyArg_ParseTuple(arguments, "KOOOOOOdddddiiiiKd", &executor, &given[0], &given[1], &given[2], &given[3],
                          &given[4], &given[5], &h->lr, &h->beta1, &h->beta2, &h->eps, &h->weight_decay, &decay,
                          &bias_correction, &exp_avg_sq_rounding, &param_rounding, &seed, &all.grad_scale))
        return NULL;
    h->struct_bytes = sizeof *h;
    h->decay = decay;
    h->bias_correction = bias_correction;
    h->exp_avg_sq_rounding = exp_avg_sq_rounding;
    h->param_rounding = param_rounding;
    h->rounding_seed = seed;
    memset(all.lists, 0, sizeof all.lists);
    all.shared_step = 0;

    static const char* const list_names[] = {"params", "grads", "exp_avgs", "exp_avg_sqs", "weight_outs", "steps"};
    adamant_step_item few_items[few];
    adamant_shard few_shards[few];
    void* memory = NULL;
    PyObject* result = NULL;
    Py_ssize_t count = -1;
    for (int i = 0; i < 6; ++i) {
        if (i == 4 && given[i] == Py_None)
            continue;
        if (i == 5 && PyLong_CheckExact(given[i])) {
            if (read_count(given[i], 0, &all.shared_step) != 0)
                goto done;
            continue;
        }
        all.lists[i] = tuple_of(given[i], list_names[i], count, "params");
        if (all.lists[i] == NULL)
            goto done;
        if (i == 0)
            count = PyTuple_Size(all.lists[0]);
    }
    all.items = few_items;
    all.shards = few_shards;
    if (count > few) {
        memory = malloc((size_t)count * (sizeof *all.items + sizeof *all.shards));
        if (memory == NULL) {
            PyErr_NoMemory();
            goto done;
        }
        all.shards = memory;
        all.items = (adamant_step_item*)(all.shards + count);
    }
    for (Py_ssize_t i = 0; i < count; ++i)
        if (read_item(&all, i) != 0)
            goto done;
    uint64_t nonfinite = 0;
    adamant_status status;
    Py_BEGIN_ALLOW_THREADS status =
        step_list((const adamant_executor*)(uintptr_t)executor, all.items, (size_t)count, &nonfinite);
    Py_END_ALLOW_THREADS result = status == ADAMANT_OK ? PyLong_FromUnsignedLongLong(nonfinite) : raise_status(status);
done:
    free(memory);
    for (int i = 0; i < 6; ++i)
        Py_XDECREF(all.lists[i]);
    return result;
}

// accumulate(executor, sums, grads, replace). replace: a bool, or one for each sum.
static PyObject* accumulate(PyObject* nothing, PyObject* arguments)
{
    (void)nothing;
    unsigned long long executor;
    PyObject *given_sums, *given_grads, *given_replace;
    if (!PyArg_ParseTuple(arguments, "KOOO", &executor, &given_sums, &given_grads, &given_replace))
        return NULL;
    PyObject *sums = tuple_of(given_sums, "sums", -1, ""), *grads = NULL, *replace = NULL, *result = NULL;
    adamant_sum_item few_items[few], *items = few_items;
    void* memory = NULL;
    if (sums == NULL)
        return NULL;
    const Py_ssize_t count = PyTuple_Size(sums);
    grads = tuple_of(given_grads, "grads", count, "sums");
    if (grads == NULL)
        goto done;
    if (!PyBool_Check(given_replace)) {
        replace = tuple_of(given_replace, "values of replace", count, "sums");
        if (replace == NULL)
            goto done;
    }
    if (count > few) {
        items = memory = malloc((size_t)count * sizeof *items);
        if (memory == NULL) {
            PyErr_NoMemory();
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        array_info sum, grad;
        if (read_array(PyTuple_GetItem(sums, i), &sums_column, i, &sum) != 0 ||
            read_partner(PyTuple_GetItem(grads, i), &grads_column, i, sum.elements, "sums", &grad) != 0)
            goto done;
        const int replaces = replace == NULL ? given_replace == Py_True : PyObject_IsTrue(PyTuple_GetItem(replace, i));
        if (replaces < 0)
            goto done;
        items[i] = (adamant_sum_item){sizeof *items, sum.elements, sum.data, grad.data, sum.type, grad.type, replaces};
    }
    adamant_status status;
    Py_BEGIN_ALLOW_THREADS status = accumulate_list((const adamant_executor*)(uintptr_t)executor, items, (size_t)count);
    Py_END_ALLOW_THREADS if (status == ADAMANT_OK)
    {
        Py_INCREF(Py_None);
        result = Py_None;
    }
    else
    {
        result = raise_status(status);
    }
done:
    free(memory);
    Py_DECREF(sums);
    Py_XDECREF(grads);
    Py_XDECREF(replace);
    return result;
}

static void keep(PyObject** place, PyObject* object)
{
    Py_INCREF(object);
    Py_XDECREF(*place);
    *place = object;
}

static PyObject* use_library(PyObject* nothing, PyObject* arguments)
{
    (void)nothing;
    unsigned long long of_step, of_sums;
    PyObject *describe, *count, *check, *error;
    if (!PyArg_ParseTuple(arguments, "KKOOOO", &of_step, &of_sums, &describe, &count, &check, &error))
        return NULL;
    memcpy(&step_list, &(uintptr_t){(uintptr_t)of_step}, sizeof step_list);
    memcpy(&accumulate_list, &(uintptr_t){(uintptr_t)of_sums}, sizeof accumulate_list);
    keep(&describe_in_python, describe);
    keep(&count_in_python, count);
    keep(&check_status, check);
    keep(&invalid_argument, error);
    Py_RETURN_NONE;
}

static PyObject* use_torch(PyObject* nothing, PyObject* arguments)
{
    (void)nothing;
    PyObject *capsule, *tensor, *parameter, *function;
    if (!PyArg_ParseTuple(arguments, "OO!O!O", &capsule, &PyType_Type, &tensor, &PyType_Type, &parameter, &function))
        return NULL;
    const dl_exchange* found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (found == NULL)
        return NULL;
    if (found->major != 1 || !PyCFunction_Check(function) || PyCFunction_GetFlags(function) != METH_NOARGS)
        Py_RETURN_FALSE;
    keep((PyObject**)&tensor_type, tensor);
    keep((PyObject**)&parameter_type, parameter);
    is_neg = PyCFunction_GetFunction(function);
    exchange = found;
    Py_RETURN_TRUE;
}

static PyObject* describe_all(PyObject* nothing, PyObject* tensors)
{
    (void)nothing;
    if (!PyList_Check(tensors) || exchange == NULL) {
        PyErr_SetString(PyExc_TypeError, "describe_all() takes a list of tensors after use_torch()");
        return NULL;
    }
    dl_tensor dl;
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); ++i)
        if (exchange->describe(PyList_GetItem(tensors, i), &dl) != 0)
            return NULL;
    Py_RETURN_NONE;
}

static PyObject* use_numpy(PyObject* nothing, PyObject* type)
{
    (void)nothing;
    keep((PyObject**)&ndarray_type, type);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"step", step, METH_VARARGS, "Step a list of tensors. Returns the number of infinite and NaN gradients."},
    {"accumulate", accumulate, METH_VARARGS, "Add gradients to sums, or copy them there."},
    {"use_library", use_library, METH_VARARGS,
     "Set the addresses of adamant_step_list() and adamant_accumulate_list(), and the functions that describe arrays "
     "and "
     "counts and raise errors."},
    {"use_torch", use_torch, METH_VARARGS,
     "Read plain tensors here from now on. Returns whether this torch allows it."},
    {"describe_all", describe_all, METH_O,
     "Ask torch for the description of each tensor of a list, and do nothing with it: what step() cannot do without."},
    {"use_numpy", use_numpy, METH_O, "Read arrays of exactly this class here from now on."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lists", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lists(void)
{
    array_struct_name = PyUnicode_InternFromString("__array_struct__");
    return array_struct_name == NULL ? NULL : PyModule_Create(&module);
}
