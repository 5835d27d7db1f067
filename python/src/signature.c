// SPDX-License-Identifier: Apache-2.0
// Extension module adamant._signature: detects changes of a torch optimizer's param groups and state between steps.
//
// Uses the limited API of CPython 3.9, and torch only through Python objects: one build serves every version of both.
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dlpack_exchange.h"

enum { max_dims = 64 };

// A tensor's address and layout. `type` and `device` are equal numbers for equal dtypes and devices.
typedef struct {
    uint64_t data, type, device;
    int dims;
    int64_t elements;
    int64_t sizes[2 * max_dims]; // shape, then strides; the stride of a dimension of size 1 is 0
} layout;

// Bits that check() returns.
enum { hyper_changed = 1, changed = 2, new_gradient = 4, no_gradient = 8 };
enum { moments = 2, masters = 2, max_state = 5 };

typedef struct {
    uint64_t step_data, step_type, grad_kind; // grad_kind: dtype, device and layout of the recorded gradient
    double steps;
    Py_ssize_t slot, group, index, first_word, end_word;
    PyObject* param; // borrowed: compared, never used
} entry;

typedef struct {
    PyObject_HEAD dl_exchange* exchange;
    PyObject* scalar_types;                     // float32, float64, int64, for torch without the exchange API
    PyTypeObject *tensor_type, *parameter_type; // classes of tensors other than DTensor
    PyCFunction is_neg;                         // torch.Tensor.is_neg if it is a C function: a call by name is slower
    uint64_t* words;
    Py_ssize_t words_used, words_room;
    double* hyper;
    Py_ssize_t hyper_count, hyper_room, group_count;
    entry* entries;
    Py_ssize_t count, slots;
    Py_ssize_t* state_order; // entries with a state, in the order of the state's keys
    Py_ssize_t state_count;
    uint64_t* addresses;     // of gradients, by slot
    uint64_t* next_steps;    // step counts plus 1, by slot
    PyObject** gradients;    // kept alive until release()
    PyObject** found_states; // scratch: borrowed states by entry
} signature;

static const char* const names_text[] = {
    "params",       "grad",          "exp_avg",    "exp_avg_sq",      "step",
    "master_param", "master_low",    "lr",         "betas",           "eps",
    "weight_decay", "maximize",      "amsgrad",    "differentiable",  "decoupled_weight_decay",
    "param_names",  "_local_tensor", "data_ptr",   "dtype",           "shape",
    "stride",       "is_cpu",        "get_device", "untyped_storage", "nbytes",
    "layout",       "_version",      "is_neg"};
enum {
    n_params,
    n_grad,
    n_exp_avg,
    n_exp_avg_sq,
    n_step,
    n_master_param,
    n_master_low,
    n_lr,
    n_betas,
    n_eps,
    n_weight_decay,
    n_maximize,
    n_amsgrad,
    n_differentiable,
    n_decoupled,
    n_param_names,
    n_local,
    n_data_ptr,
    n_dtype,
    n_shape,
    n_stride,
    n_is_cpu,
    n_get_device,
    n_untyped_storage,
    n_nbytes,
    n_layout,
    n_version,
    n_is_neg,
    name_count
};
static PyObject* names[name_count];

enum { unreadable = 0xfff }; // type of objects other than dense tensors with memory

static int64_t integer_of(PyObject* object)
{
    const long long value = object == NULL ? -1 : PyLong_AsLongLong(object);
    Py_XDECREF(object);
    return value;
}

static void normalise(layout* tensor_layout)
{
    tensor_layout->elements = 1;
    for (int i = 0; i < tensor_layout->dims; ++i) {
        tensor_layout->elements *= tensor_layout->sizes[i];
        if (tensor_layout->sizes[i] == 1)
            tensor_layout->sizes[tensor_layout->dims + i] = 0;
    }
}

// Describes a tensor by its methods, for torch without the exchange API. Returns -1 with an exception set on errors.
static int describe_by_methods(PyObject* tensor, layout* tensor_layout)
{
    PyObject* type = PyObject_GetAttr(tensor, names[n_dtype]);
    if (type == NULL)
        return -1;
    tensor_layout->type = (uint64_t)(uintptr_t)type; // torch keeps its dtypes forever
    Py_DECREF(type);
    PyObject* data = PyObject_CallMethodObjArgs(tensor, names[n_data_ptr], NULL);
    if (data == NULL)
        return -1;
    tensor_layout->data = PyLong_AsUnsignedLongLong(data);
    Py_DECREF(data);
    PyObject* is_cpu = PyObject_GetAttr(tensor, names[n_is_cpu]);
    if (is_cpu == NULL)
        return -1;
    tensor_layout->device = is_cpu == Py_True ? 1 : 2;
    Py_DECREF(is_cpu);
    if (tensor_layout->device == 2)
        tensor_layout->device +=
            (uint64_t)(integer_of(PyObject_CallMethodObjArgs(tensor, names[n_get_device], NULL)) + 1) << 8;
    PyObject* shape = PyObject_GetAttr(tensor, names[n_shape]);
    PyObject* stride = shape == NULL ? NULL : PyObject_CallMethodObjArgs(tensor, names[n_stride], NULL);
    if (stride == NULL) {
        Py_XDECREF(shape);
        return -1;
    }
    const Py_ssize_t dims = PyTuple_Size(shape);
    if (dims <= max_dims) {
        tensor_layout->dims = (int)dims;
        for (Py_ssize_t i = 0; i < dims; ++i) {
            tensor_layout->sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
            tensor_layout->sizes[dims + i] = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
        }
    } else {
        tensor_layout->type = unreadable;
    }
    Py_DECREF(shape);
    Py_DECREF(stride);
    return PyErr_Occurred() ? -1 : 0;
}

// Whether the tensor's storage has memory. Without memory torch computes an address from the offset alone.
static int has_allocation(PyObject* tensor)
{
    PyObject* storage = PyObject_CallMethodObjArgs(tensor, names[n_untyped_storage], NULL);
    const int64_t bytes = storage == NULL ? -1 : integer_of(PyObject_CallMethodObjArgs(storage, names[n_nbytes], NULL));
    Py_XDECREF(storage);
    PyErr_Clear();
    return bytes > 0;
}

static int is_plain(const signature* self, PyObject* tensor)
{
    return Py_TYPE(tensor) == self->tensor_type || Py_TYPE(tensor) == self->parameter_type;
}

// Fills `tensor_layout`. Objects that cannot be described or have no memory get the type `unreadable`. Clears
// exceptions.
static void describe(signature* self, PyObject* tensor, layout* tensor_layout)
{
    PyObject* local = NULL;
    tensor_layout->type = unreadable;
    tensor_layout->data = tensor_layout->device = 0;
    tensor_layout->dims = 0;
    tensor_layout->elements = 0;
    if (!is_plain(self, tensor) && PyObject_HasAttr(tensor, names[n_local])) {
        local = PyObject_GetAttr(tensor, names[n_local]);
        tensor = local;
        if (tensor == NULL) {
            PyErr_Clear();
            return;
        }
    }
    if (self->exchange != NULL) {
        dl_tensor description;
        memset(&description, 0, sizeof description);
        if (self->exchange->describe(tensor, &description) == 0 && description.ndim <= max_dims) {
            tensor_layout->type =
                (uint64_t)description.type_code << 16 | (uint64_t)description.type_bits << 24 | description.streams;
            tensor_layout->device = (uint64_t)description.device_type | (uint64_t)(uint32_t)description.device_id << 32;
            tensor_layout->data = (uint64_t)(uintptr_t)description.data + description.byte_offset;
            tensor_layout->dims = description.ndim;
            for (int i = 0; i < description.ndim; ++i) {
                tensor_layout->sizes[i] = description.shape[i];
                tensor_layout->sizes[description.ndim + i] = description.strides == NULL ? 0 : description.strides[i];
            }
        } else {
            PyErr_Clear();
        }
    } else if (describe_by_methods(tensor, tensor_layout) != 0) {
        PyErr_Clear();
        tensor_layout->type = unreadable;
    }
    normalise(tensor_layout);
    // An address below 1 TiB may be an offset without memory. Zero tensors have the address 0.
    if (tensor_layout->type != unreadable && tensor_layout->elements > 0 && tensor_layout->data < (uint64_t)1 << 40 &&
        (tensor_layout->data == 0 || !has_allocation(tensor))) {
        tensor_layout->type = unreadable;
        tensor_layout->data = 0;
    }
    Py_XDECREF(local);
}

// A stream of words, which is recorded or compared with the recorded words.
typedef struct {
    signature* self;
    Py_ssize_t position, end;
    int records, differs;
} stream;

static void put_recorded(stream* output, uint64_t word);

static inline void put(stream* output, uint64_t word)
{
    if (output->records) {
        put_recorded(output, word);
        return;
    }
    if (output->position >= output->end || output->self->words[output->position] != word)
        output->differs = 1;
    ++output->position;
}

static void put_recorded(stream* output, uint64_t word)
{
    signature* self = output->self;
    if (self->words_used == self->words_room) {
        const Py_ssize_t room = self->words_room * 2 + 256;
        uint64_t* words = realloc(self->words, (size_t)room * sizeof *words);
        if (words == NULL) {
            output->differs = -1;
            return;
        }
        self->words = words;
        self->words_room = room;
    }
    self->words[self->words_used++] = word;
}

static void put_layout(stream* output, const layout* tensor_layout)
{
    put(output, tensor_layout->data);
    put(output, tensor_layout->type);
    put(output, tensor_layout->device);
    put(output, (uint64_t)tensor_layout->dims);
    for (int i = 0; i < 2 * tensor_layout->dims; ++i)
        put(output, (uint64_t)tensor_layout->sizes[i]);
}

static int is_scalar_type(signature* self, uint64_t type, int index)
{
    static const uint64_t codes[] = {2u << 16 | 32u << 24 | 1, 2u << 16 | (uint64_t)64 << 24 | 1,
                                     (uint64_t)64 << 24 | 1};
    if (self->exchange != NULL)
        return type == codes[index];
    return type == (uint64_t)(uintptr_t)PyTuple_GetItem(self->scalar_types, index);
}

static double read_steps(signature* self, uint64_t data, uint64_t type)
{
    if (data == 0)
        return -1;
    if (is_scalar_type(self, type, 0))
        return *(float*)(uintptr_t)data;
    if (is_scalar_type(self, type, 1))
        return *(double*)(uintptr_t)data;
    if (is_scalar_type(self, type, 2))
        return (double)*(int64_t*)(uintptr_t)data;
    return -1;
}

// Whether memory holds the negated elements, or the tensor does not say.
static int is_negated(signature* self, PyObject* tensor)
{
    PyObject* answer = self->is_neg != NULL && is_plain(self, tensor)
                           ? self->is_neg(tensor, NULL)
                           : PyObject_CallMethodObjArgs(tensor, names[n_is_neg], NULL);
    const int is_negative = answer != Py_False;
    if (answer == NULL)
        PyErr_Clear();
    Py_XDECREF(answer);
    return is_negative;
}

// Writes the words of a param and its state. Returns check()'s bits for its gradient, or -1 on errors.
static int walk_param(stream* output, entry* item, PyObject* param, PyObject* state)
{
    signature* self = output->self;
    layout own, other;
    put(output, (uint64_t)(uintptr_t)param);
    put(output, (uint64_t)(uintptr_t)Py_TYPE(param));
    describe(self, param, &own);
    put_layout(output, &own);
    const int has_state = state != NULL && PyDict_Check(state);
    put(output, (uint64_t)has_state);
    double steps = -1;
    uint64_t step_data = 0, step_type = 0;
    if (has_state) {
        for (int name = n_exp_avg; name <= n_master_low; ++name) {
            PyObject* tensor = PyDict_GetItemWithError(state, names[name]);
            put(output, tensor != NULL);
            if (tensor == NULL)
                continue;
            describe(self, tensor, &other);
            if (name != n_step) {
                put(output,
                    (uint64_t)(uintptr_t)tensor); // another tensor with the same memory may have the negative bit
                put_layout(output, &other);
            } else {
                const int is_host = (other.device & 0xffffffffu) == 1;
                step_data = other.elements == 1 && is_host ? other.data : 0;
                step_type = other.type;
                steps = read_steps(self, step_data, step_type);
            }
        }
    }
    if (output->records) {
        item->steps = steps;
    } else if (item->slot >= 0 && steps != item->steps) {
        output->differs = 1;
    }
    item->step_data = step_data;
    item->step_type = step_type;
    // The gradient's address may change in every step, so it is no part of the words.
    PyObject* grad = PyObject_GetAttr(param, names[n_grad]);
    if (grad == NULL)
        return -1;
    if (item->slot < 0) {
        const int has_grad = grad != Py_None;
        Py_DECREF(grad);
        return has_grad ? new_gradient : 0;
    }
    Py_XDECREF(self->gradients[item->slot]);
    self->gradients[item->slot] = NULL;
    self->addresses[item->slot] = 0;
    if (grad == Py_None) {
        Py_DECREF(grad);
        return no_gradient;
    }
    describe(self, grad, &other);
    int is_same = other.dims == own.dims && other.type != unreadable && !is_negated(self, grad);
    for (int i = 0; is_same && i < own.dims; ++i)
        is_same = other.sizes[i] == own.sizes[i];
    for (int i = 0; is_same && other.elements > 1 && i < own.dims; ++i)
        is_same = other.sizes[own.dims + i] == own.sizes[own.dims + i];
    const uint64_t kind = is_same ? (other.type ^ other.device << 40) | (uint64_t)1 << 63 : 1;
    if (output->records)
        item->grad_kind = kind;
    else if (kind != item->grad_kind)
        output->differs = 1;
    self->addresses[item->slot] = other.data;
    self->gradients[item->slot] = grad;
    return 0;
}

static double number_of(PyObject* group, int name, double missing, int* failed)
{
    PyObject* value = PyDict_GetItemWithError(group, names[name]);
    if (value == NULL) {
        if (PyErr_Occurred())
            *failed = 1;
        return missing;
    }
    if (name >= n_maximize) {
        const int is_true = PyObject_IsTrue(value);
        if (is_true < 0)
            *failed = 1;
        return is_true;
    }
    const double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        *failed = 1;
    return number;
}

// New reference to an item of a sequence, or of a tensor, which is none.
static PyObject* item_at(PyObject* items, int i)
{
    if (PySequence_Check(items))
        return PySequence_GetItem(items, i);
    PyObject* number = PyLong_FromLong(i);
    PyObject* item = number == NULL ? NULL : PyObject_GetItem(items, number);
    Py_XDECREF(number);
    return item;
}

enum { hyper_per_group = 9 };

static int read_hyper(PyObject* group, double* values)
{
    int failed = 0;
    values[0] = number_of(group, n_lr, -1, &failed);
    values[1] = values[2] = -1;
    PyObject* betas = failed ? NULL : PyDict_GetItemWithError(group, names[n_betas]);
    for (int i = 0; i < 2 && betas != NULL && !failed; ++i) {
        PyObject* beta = item_at(betas, i);
        if (beta == NULL)
            return -1;
        values[1 + i] = PyFloat_AsDouble(beta);
        Py_DECREF(beta);
        if (PyErr_Occurred())
            failed = 1;
    }
    for (int i = 0; i < 6 && !failed; ++i)
        values[3 + i] = number_of(group, n_eps + i, 0, &failed);
    return failed || PyErr_Occurred() ? -1 : 0;
}

static int same_numbers(const double* a, const double* b, int count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

// Borrowed items of a list or a tuple.
static Py_ssize_t length_of(PyObject* sequence)
{
    return PyList_Check(sequence) ? PyList_Size(sequence) : PyTuple_Check(sequence) ? PyTuple_Size(sequence) : -1;
}

static PyObject* item_of(PyObject* sequence, Py_ssize_t i)
{
    return PyList_Check(sequence) ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i);
}

static void drop_gradients(signature* self)
{
    for (Py_ssize_t i = 0; i < self->slots; ++i) {
        PyObject* gradient = self->gradients[i];
        self->gradients[i] = NULL;
        Py_XDECREF(gradient);
    }
}

static void drop_all(signature* self)
{
    if (self->gradients != NULL)
        drop_gradients(self);
    free(self->words);
    free(self->hyper);
    free(self->entries);
    free(self->state_order);
    free(self->addresses);
    free(self->next_steps);
    free(self->gradients);
    free(self->found_states);
    self->words = NULL;
    self->hyper = NULL;
    self->entries = NULL;
    self->state_order = NULL;
    self->addresses = NULL;
    self->next_steps = NULL;
    self->gradients = NULL;
    self->found_states = NULL;
    self->words_used = self->words_room = self->group_count = self->count = self->slots = self->state_count = 0;
}

typedef struct {
    PyObject* param;
    Py_ssize_t entry;
} known_param;

static int by_address(const void* a, const void* b)
{
    const uintptr_t x = (uintptr_t)((const known_param*)a)->param, y = (uintptr_t)((const known_param*)b)->param;
    return x != y ? (x < y ? -1 : 1) : 0;
}

static void walk_names(stream* output, PyObject* group)
{
    PyObject* param_names = PyDict_GetItemWithError(group, names[n_param_names]);
    const Py_ssize_t count = param_names == NULL ? 0 : length_of(param_names);
    put(output, (uint64_t)count);
    for (Py_ssize_t i = 0; i < count; ++i)
        put(output, (uint64_t)(uintptr_t)item_of(param_names, i));
}

// record(groups, state, slots): slots has a number for each param of the groups in order, -1 for params without a step.
static PyObject* record(PyObject* object, PyObject* arguments)
{
    signature* self = (signature*)object;
    PyObject *groups, *state, *slots;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyList_Type, &groups, &PyDict_Type, &state, &PyList_Type, &slots))
        return NULL;
    // Keep the recorded kinds of gradients that are None because they were accumulated.
    entry* before = self->entries;
    const Py_ssize_t before_count = self->count;
    self->entries = NULL;
    drop_all(self);
    const Py_ssize_t count = PyList_Size(slots), group_count = PyList_Size(groups);
    self->entries = calloc((size_t)count + 1, sizeof *self->entries);
    self->state_order = calloc((size_t)count + 1, sizeof *self->state_order);
    self->addresses = calloc((size_t)count + 1, sizeof *self->addresses);
    self->next_steps = calloc((size_t)count + 1, sizeof *self->next_steps);
    self->gradients = calloc((size_t)count + 1, sizeof *self->gradients);
    self->found_states = calloc((size_t)count + 1, sizeof *self->found_states);
    self->hyper = calloc((size_t)(group_count + 1) * hyper_per_group, sizeof *self->hyper);
    known_param* known = calloc((size_t)count + 1, sizeof *known);
    if (known == NULL || self->entries == NULL || self->state_order == NULL || self->addresses == NULL ||
        self->next_steps == NULL || self->gradients == NULL || self->found_states == NULL || self->hyper == NULL) {
        free(known);
        free(before);
        drop_all(self);
        return PyErr_NoMemory();
    }
    self->group_count = group_count;
    Py_ssize_t number = 0;
    for (Py_ssize_t g = 0; g < group_count; ++g) {
        PyObject* group = PyList_GetItem(groups, g);
        PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, names[n_params]) : NULL;
        if (params == NULL || read_hyper(group, self->hyper + g * hyper_per_group) != 0)
            goto failed;
        for (Py_ssize_t i = 0; i < length_of(params); ++i, ++number) {
            if (number == count)
                goto failed;
            entry* item = self->entries + number;
            item->slot = PyLong_AsSsize_t(PyList_GetItem(slots, number));
            item->group = g;
            item->index = i;
            item->param = item_of(params, i);
            if (number < before_count && before[number].param == item->param)
                item->grad_kind = before[number].grad_kind;
            known[number] = (known_param){item->param, number};
            if (item->slot >= self->slots)
                self->slots = item->slot + 1;
            if (item->slot >= count)
                goto failed;
        }
    }
    if (number != count)
        goto failed;
    self->count = count;
    qsort(known, (size_t)count, sizeof *known, by_address);
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(state, &position, &key, &value)) {
        const known_param target = {key, 0};
        const known_param* match = bsearch(&target, known, (size_t)count, sizeof *known, by_address);
        if (match == NULL)
            continue;
        // A param that is listed twice is stepped by its first entry.
        const known_param* candidate = match;
        while (candidate > known && candidate[-1].param == key)
            --candidate;
        for (; candidate < known + count && candidate->param == key; ++candidate)
            if (candidate->entry < match->entry)
                match = candidate;
        self->state_order[self->state_count++] = match->entry;
        self->found_states[match->entry] = value;
    }
    free(known);
    known = NULL;
    stream output = {self, 0, 0, 1, 0};
    number = 0;
    for (Py_ssize_t g = 0; g < group_count; ++g) {
        PyObject* group = PyList_GetItem(groups, g);
        walk_names(&output, group);
        for (; number < count && self->entries[number].group == g; ++number) {
            self->entries[number].first_word = self->words_used;
            if (walk_param(&output, self->entries + number, self->entries[number].param, self->found_states[number]) <
                0)
                goto failed;
            self->entries[number].end_word = self->words_used;
            if (self->entries[number].slot >= 0)
                self->next_steps[self->entries[number].slot] = (uint64_t)(self->entries[number].steps + 1);
        }
    }
    free(before);
    before = NULL;
    if (output.differs < 0)
        goto failed;
    Py_RETURN_NONE;
failed:
    free(known);
    free(before);
    drop_all(self);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "cannot record the optimizer: slots does not match the groups");
    return NULL;
}

// check(groups, state) -> bits. Records new hyperparameters and nothing else.
static PyObject* check(PyObject* object, PyObject* arguments)
{
    signature* self = (signature*)object;
    PyObject *groups, *state;
    if (!PyArg_ParseTuple(arguments, "OO", &groups, &state))
        return NULL;
    if (self->entries == NULL || !PyList_Check(groups) || !PyDict_Check(state) ||
        PyList_Size(groups) != self->group_count)
        return PyLong_FromLong(changed);
    // Walk the state in the order of its keys, which needs no hashes.
    PyObject *key, *value;
    Py_ssize_t position = 0, matched = 0;
    while (matched < self->state_count && PyDict_Next(state, &position, &key, &value)) {
        const Py_ssize_t next = self->state_order[matched];
        if (key != self->entries[next].param)
            continue;
        self->found_states[next] = value;
        ++matched;
    }
    if (matched != self->state_count)
        return PyLong_FromLong(changed);
    long bits = 0;
    stream output = {self, 0, self->words_used, 0, 0};
    Py_ssize_t number = 0;
    for (Py_ssize_t g = 0; g < self->group_count && !output.differs; ++g) {
        PyObject* group = PyList_GetItem(groups, g);
        double hyper[hyper_per_group];
        PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, names[n_params]) : NULL;
        if (params == NULL)
            return PyErr_Occurred() ? NULL : PyLong_FromLong(changed);
        if (read_hyper(group, hyper) != 0)
            return NULL;
        if (!same_numbers(hyper, self->hyper + g * hyper_per_group, 5))
            bits |= hyper_changed;
        if (!same_numbers(hyper + 5, self->hyper + g * hyper_per_group + 5, hyper_per_group - 5))
            bits |= changed;
        memcpy(self->hyper + g * hyper_per_group, hyper,
               5 * sizeof *hyper); // changed flags stay changed until record()
        walk_names(&output, group);
        const Py_ssize_t length = length_of(params);
        for (Py_ssize_t i = 0; i < length && !output.differs; ++i, ++number) {
            if (number == self->count || self->entries[number].group != g ||
                item_of(params, i) != self->entries[number].param)
                return PyLong_FromLong(bits | changed);
            PyObject* param = self->entries[number].param;
            output.position = self->entries[number].first_word;
            const int grad_bits = walk_param(&output, self->entries + number, param, self->found_states[number]);
            if (grad_bits < 0)
                return NULL;
            bits |= grad_bits;
        }
    }
    if (output.differs || number != self->count)
        bits |= changed;
    return PyLong_FromLong(bits);
}

// check_one(groups, state, number) -> bool: the param, its group and its state are as recorded. Reads its gradient.
static PyObject* check_one(PyObject* object, PyObject* arguments)
{
    signature* self = (signature*)object;
    PyObject *groups, *state;
    Py_ssize_t number;
    if (!PyArg_ParseTuple(arguments, "OOn", &groups, &state, &number))
        return NULL;
    if (number < 0 || number >= self->count || !PyList_Check(groups) || !PyDict_Check(state) ||
        PyList_Size(groups) != self->group_count)
        Py_RETURN_FALSE;
    entry* item = self->entries + number;
    PyObject* group = PyList_GetItem(groups, item->group);
    PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, names[n_params]) : NULL;
    double hyper[hyper_per_group];
    if (params == NULL || length_of(params) <= item->index || item_of(params, item->index) != item->param)
        Py_RETURN_FALSE;
    if (read_hyper(group, hyper) != 0)
        return NULL;
    if (!same_numbers(hyper, self->hyper + item->group * hyper_per_group, hyper_per_group))
        Py_RETURN_FALSE;
    PyObject* param_state = PyDict_GetItemWithError(state, item->param);
    if (param_state == NULL && PyErr_Occurred())
        return NULL;
    stream output = {self, item->first_word, item->end_word, 0, 0};
    const int grad_bits = walk_param(&output, item, item->param, param_state);
    if (grad_bits < 0)
        return NULL;
    return PyBool_FromLong(grad_bits == 0 && !output.differs);
}

// take_hyper(groups) -> bool: only numeric hyperparameters have changed. Records the new numbers.
static PyObject* take_hyper(PyObject* object, PyObject* groups)
{
    signature* self = (signature*)object;
    if (self->entries == NULL || !PyList_Check(groups) || PyList_Size(groups) != self->group_count)
        Py_RETURN_FALSE;
    for (Py_ssize_t g = 0; g < self->group_count; ++g) {
        double hyper[hyper_per_group];
        PyObject* group = PyList_GetItem(groups, g);
        if (!PyDict_Check(group))
            Py_RETURN_FALSE;
        if (read_hyper(group, hyper) != 0)
            return NULL;
        double* known = self->hyper + g * hyper_per_group;
        if (!same_numbers(hyper + 5, known + 5, hyper_per_group - 5))
            Py_RETURN_FALSE;
        memcpy(known, hyper, sizeof hyper);
    }
    Py_RETURN_TRUE;
}

// advance(first, count, skipped) -> entries whose next counts do not fit the dtype. Adds 1 to the step counts of
// `count` slots from `first`, except those in `skipped`, which are relative to `first`.
static PyObject* advance(PyObject* object, PyObject* arguments)
{
    signature* self = (signature*)object;
    Py_ssize_t first, count;
    PyObject* skipped;
    if (!PyArg_ParseTuple(arguments, "nnO!", &first, &count, &PyList_Type, &skipped))
        return NULL;
    char* is_skipped = calloc((size_t)(count > 0 ? count : 0) + 1, 1);
    if (is_skipped == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < PyList_Size(skipped); ++i) {
        const Py_ssize_t number = PyLong_AsSsize_t(PyList_GetItem(skipped, i));
        if (number >= 0 && number < count)
            is_skipped[number] = 1;
    }
    PyObject* overflowed = PyList_New(0);
    for (Py_ssize_t i = 0; overflowed != NULL && i < self->count; ++i) {
        entry* item = self->entries + i;
        const Py_ssize_t number = item->slot - first;
        if (item->slot < 0 || number < 0 || number >= count || is_skipped[number])
            continue;
        const double next = item->steps + 1;
        item->steps = next;
        self->next_steps[item->slot] = (uint64_t)next + 1;
        if (is_scalar_type(self, item->step_type, 0)) {
            *(float*)(uintptr_t)item->step_data = (float)next;
            if (next >= 16777216.0) {
                PyObject* position = PyLong_FromSsize_t(i);
                if (position == NULL || PyList_Append(overflowed, position) != 0)
                    Py_CLEAR(overflowed);
                Py_XDECREF(position);
            }
        } else if (is_scalar_type(self, item->step_type, 1)) {
            *(double*)(uintptr_t)item->step_data = next;
        } else {
            *(int64_t*)(uintptr_t)item->step_data = (int64_t)next;
        }
    }
    free(is_skipped);
    return overflowed;
}

static PyObject* release(PyObject* object, PyObject* nothing)
{
    (void)nothing;
    drop_gradients((signature*)object);
    Py_RETURN_NONE;
}

static PyObject* address_of(PyObject* object, PyObject* slot)
{
    signature* self = (signature*)object;
    const Py_ssize_t number = PyLong_AsSsize_t(slot);
    if (number < 0 || number >= self->slots) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "slot is out of range");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(self->addresses[number]);
}

static PyObject* addresses_at(PyObject* object, void* nothing)
{
    (void)nothing;
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)((signature*)object)->addresses);
}

static PyObject* next_steps_at(PyObject* object, void* nothing)
{
    (void)nothing;
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)((signature*)object)->next_steps);
}

static PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* named)
{
    (void)named;
    PyObject *capsule, *scalar_types, *is_neg;
    PyTypeObject *tensor_type, *parameter_type;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!O", &capsule, &PyTuple_Type, &scalar_types, &PyType_Type, &tensor_type,
                          &PyType_Type, &parameter_type, &is_neg))
        return NULL;
    dl_exchange* exchange = NULL;
    if (capsule != Py_None) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (exchange == NULL)
            return NULL;
        if (exchange->major != 1)
            exchange = NULL; // another version of the struct
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    signature* self = (signature*)allocate(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(scalar_types);
    self->scalar_types = scalar_types;
    Py_INCREF(tensor_type);
    self->tensor_type = tensor_type;
    Py_INCREF(parameter_type);
    self->parameter_type = parameter_type;
    if (PyCFunction_Check(is_neg) && PyCFunction_GetFlags(is_neg) == METH_NOARGS)
        self->is_neg = PyCFunction_GetFunction(is_neg);
    self->exchange = exchange;
    return (PyObject*)self;
}

static void destroy(PyObject* object)
{
    signature* self = (signature*)object;
    PyTypeObject* type = Py_TYPE(object);
    drop_all(self);
    Py_XDECREF(self->scalar_types);
    Py_XDECREF(self->tensor_type);
    Py_XDECREF(self->parameter_type);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"record", record, METH_VARARGS, "Record the groups and the state. slots: a number for each param, or -1."},
    {"check", check, METH_VARARGS, "Compare the groups and the state with the recorded ones, and read the gradients."},
    {"check_one", check_one, METH_VARARGS, "Compare one param, its group and its state with the recorded ones."},
    {"take_hyper", take_hyper, METH_O, "Record the current numeric hyperparameters."},
    {"advance", advance, METH_VARARGS, "Add 1 to the step counts of a range of slots, except the skipped ones."},
    {"release", release, METH_NOARGS, "Drop the references to gradients."},
    {"address_of", address_of, METH_O, "Return the address of a slot's gradient, or 0."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"addresses", addresses_at, NULL, "Address of the array of gradient addresses, by slot.", NULL},
    {"next_steps", next_steps_at, NULL, "Address of the array of step counts plus 1, by slot.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots_of_type[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, destroy},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, "Recorded param groups and state of a torch optimizer."},
    {0, NULL},
};

static PyType_Spec spec = {"adamant._signature.Signature", sizeof(signature), 0, Py_TPFLAGS_DEFAULT, slots_of_type};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_signature", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__signature(void)
{
    for (int i = 0; i < name_count; ++i) {
        names[i] = PyUnicode_InternFromString(names_text[i]);
        if (names[i] == NULL)
            return NULL;
    }
    PyObject* made = PyModule_Create(&module);
    PyObject* type = made == NULL ? NULL : PyType_FromSpec(&spec);
    if (type == NULL || PyModule_AddObject(made, "Signature", type) != 0 ||
        PyModule_AddIntConstant(made, "HYPER_CHANGED", hyper_changed) != 0 ||
        PyModule_AddIntConstant(made, "CHANGED", changed) != 0 ||
        PyModule_AddIntConstant(made, "NEW_GRADIENT", new_gradient) != 0 ||
        PyModule_AddIntConstant(made, "NO_GRADIENT", no_gradient) != 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
