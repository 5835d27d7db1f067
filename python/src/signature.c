// SPDX-License-Identifier: Apache-2.0
// adamant._signature: compares the param groups and the state of a torch optimizer with what they were.
//
// Uses the limited API of CPython 3.9, and torch only through Python objects: one build serves every version of both.
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// DLPack's exchange API, which torch.Tensor.__dlpack_c_exchange_api__ points to from torch 2.10 on.
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
    int (*describe)(void* tensor, dl_tensor* found);
} dl_exchange;

enum { max_dims = 64 };

// A tensor's address and layout. `type` and `device` are numbers that are equal where these are.
typedef struct {
    uint64_t data, type, device;
    int dims;
    int64_t elements;
    int64_t sizes[2 * max_dims]; // shape, then strides; those of dimensions of one element are 0
} layout;

// Bits that check() returns.
enum { hyper_changed = 1, changed = 2, new_gradient = 4, no_gradient = 8 };
enum { moments = 2, masters = 2, max_state = 5 };

typedef struct {
    uint64_t step_data, step_type, grad_kind; // grad_kind: of the gradient when it was recorded
    double steps;
    Py_ssize_t slot, group, index, first_word, end_word;
    PyObject* param; // borrowed: compared, never used
} entry;

typedef struct {
    PyObject_HEAD
    dl_exchange* exchange;
    PyObject* scalar_types; // float32, float64, int64, for torch without the exchange API
    PyObject* plain_types; // of tensors that are no DTensors
    uint64_t* words;
    Py_ssize_t words_used, words_room;
    double* hyper;
    Py_ssize_t hyper_count, hyper_room, group_count;
    entry* entries;
    Py_ssize_t count, slots;
    Py_ssize_t* state_order; // entries that have a state, in the order of the state's keys
    Py_ssize_t state_count;
    uint64_t* addresses; // of gradients, by slot
    PyObject** gradients; // kept alive until release()
    PyObject** found_states; // scratch: borrowed states by entry
} signature;

static const char* const names_text[] = {"params", "grad", "exp_avg", "exp_avg_sq", "step", "master_param", "master_low",
    "lr", "betas", "eps", "weight_decay", "maximize", "amsgrad", "differentiable", "decoupled_weight_decay", "param_names",
    "_local_tensor", "data_ptr", "dtype", "shape", "stride", "is_cpu", "get_device", "untyped_storage", "nbytes", "layout",
    "_version", "is_neg"};
enum { n_params, n_grad, n_exp_avg, n_exp_avg_sq, n_step, n_master_param, n_master_low, n_lr, n_betas, n_eps,
    n_weight_decay, n_maximize, n_amsgrad, n_differentiable, n_decoupled, n_param_names, n_local, n_data_ptr, n_dtype,
    n_shape, n_stride, n_is_cpu, n_get_device, n_untyped_storage, n_nbytes, n_layout, n_version, n_is_neg, name_count };
static PyObject* names[name_count];

enum { unreadable = 0xfff }; // the type of what is no dense tensor with memory

static int64_t integer_of(PyObject* object) {
    const long long value = object == NULL ? -1 : PyLong_AsLongLong(object);
    Py_XDECREF(object);
    return value;
}

static void normalise(layout* found) {
    found->elements = 1;
    for (int i = 0; i < found->dims; ++i) {
        found->elements *= found->sizes[i];
        if (found->sizes[i] == 1) found->sizes[found->dims + i] = 0;
    }
}

// The same by methods of the tensor, where there is no exchange API. Returns -1 with an exception set.
static int describe_by_methods(PyObject* tensor, layout* found) {
    PyObject* type = PyObject_GetAttr(tensor, names[n_dtype]);
    if (type == NULL) return -1;
    found->type = (uint64_t)(uintptr_t)type; // torch keeps its dtypes forever
    Py_DECREF(type);
    PyObject* data = PyObject_CallMethodObjArgs(tensor, names[n_data_ptr], NULL);
    if (data == NULL) return -1;
    found->data = PyLong_AsUnsignedLongLong(data);
    Py_DECREF(data);
    PyObject* is_cpu = PyObject_GetAttr(tensor, names[n_is_cpu]);
    if (is_cpu == NULL) return -1;
    found->device = is_cpu == Py_True ? 1 : 2;
    Py_DECREF(is_cpu);
    if (found->device == 2)
        found->device += (uint64_t)(integer_of(PyObject_CallMethodObjArgs(tensor, names[n_get_device], NULL)) + 1) << 8;
    PyObject* shape = PyObject_GetAttr(tensor, names[n_shape]);
    PyObject* stride = shape == NULL ? NULL : PyObject_CallMethodObjArgs(tensor, names[n_stride], NULL);
    if (stride == NULL) {
        Py_XDECREF(shape);
        return -1;
    }
    const Py_ssize_t dims = PyTuple_Size(shape);
    if (dims <= max_dims) {
        found->dims = (int)dims;
        for (Py_ssize_t i = 0; i < dims; ++i) {
            found->sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
            found->sizes[dims + i] = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
        }
    } else {
        found->type = unreadable;
    }
    Py_DECREF(shape);
    Py_DECREF(stride);
    return PyErr_Occurred() ? -1 : 0;
}

// Whether the tensor's storage has memory. Torch computes an address from an offset where it has none.
static int probe_allocation(PyObject* tensor) {
    PyObject* storage = PyObject_CallMethodObjArgs(tensor, names[n_untyped_storage], NULL);
    const int64_t bytes = storage == NULL ? -1 : integer_of(PyObject_CallMethodObjArgs(storage, names[n_nbytes], NULL));
    Py_XDECREF(storage);
    PyErr_Clear();
    return bytes > 0;
}

// Fills `found`. What cannot be described, or has no memory, has the type `unreadable`. Never leaves an exception.
static void describe(signature* self, PyObject* tensor, layout* found) {
    PyObject* local = NULL;
    found->type = unreadable;
    found->data = found->device = 0;
    found->dims = 0;
    found->elements = 0;
    int is_plain = 0;
    for (Py_ssize_t i = 0; !is_plain && i < PyTuple_Size(self->plain_types); ++i)
        is_plain = PyTuple_GetItem(self->plain_types, i) == (PyObject*)Py_TYPE(tensor);
    if (!is_plain && PyObject_HasAttr(tensor, names[n_local])) {
        local = PyObject_GetAttr(tensor, names[n_local]);
        tensor = local;
        if (tensor == NULL) {
            PyErr_Clear();
            return;
        }
    }
    if (self->exchange != NULL) {
        dl_tensor seen;
        memset(&seen, 0, sizeof seen);
        if (self->exchange->describe(tensor, &seen) == 0 && seen.ndim <= max_dims) {
            found->type = (uint64_t)seen.type_code << 16 | (uint64_t)seen.type_bits << 24 | seen.streams;
            found->device = (uint64_t)seen.device_type | (uint64_t)(uint32_t)seen.device_id << 32;
            found->data = (uint64_t)(uintptr_t)seen.data + seen.byte_offset;
            found->dims = seen.ndim;
            for (int i = 0; i < seen.ndim; ++i) {
                found->sizes[i] = seen.shape[i];
                found->sizes[seen.ndim + i] = seen.strides == NULL ? 0 : seen.strides[i];
            }
        }
        PyErr_Clear();
    } else if (describe_by_methods(tensor, found) != 0) {
        PyErr_Clear();
        found->type = unreadable;
    }
    normalise(found);
    // Memory below 1 TiB may be an offset from no memory at all; zero tensors have an address of 0.
    if (found->type != unreadable && found->elements > 0 && found->data < (uint64_t)1 << 40 &&
        (found->data == 0 || !probe_allocation(tensor))) {
        found->type = unreadable;
        found->data = 0;
    }
    Py_XDECREF(local);
}

// A stream of words that is recorded or compared.
typedef struct {
    signature* self;
    Py_ssize_t at, end;
    int records, differs;
} stream;

static void put(stream* to, uint64_t word) {
    signature* self = to->self;
    if (!to->records) {
        if (to->at >= to->end || self->words[to->at] != word) to->differs = 1;
        ++to->at;
        return;
    }
    if (self->words_used == self->words_room) {
        const Py_ssize_t room = self->words_room * 2 + 256;
        uint64_t* words = realloc(self->words, (size_t)room * sizeof *words);
        if (words == NULL) {
            to->differs = -1;
            return;
        }
        self->words = words;
        self->words_room = room;
    }
    self->words[self->words_used++] = word;
}

static void put_layout(stream* to, const layout* what) {
    put(to, what->data);
    put(to, what->type);
    put(to, what->device);
    put(to, (uint64_t)what->dims);
    for (int i = 0; i < 2 * what->dims; ++i) put(to, (uint64_t)what->sizes[i]);
}

static int is_scalar_type(signature* self, uint64_t type, int which) {
    static const uint64_t by_code[] = {2u << 16 | 32u << 24 | 1, 2u << 16 | (uint64_t)64 << 24 | 1, (uint64_t)64 << 24 | 1};
    if (self->exchange != NULL) return type == by_code[which];
    return type == (uint64_t)(uintptr_t)PyTuple_GetItem(self->scalar_types, which);
}

static double read_steps(signature* self, uint64_t data, uint64_t type) {
    if (data == 0) return -1;
    if (is_scalar_type(self, type, 0)) return *(float*)(uintptr_t)data;
    if (is_scalar_type(self, type, 1)) return *(double*)(uintptr_t)data;
    if (is_scalar_type(self, type, 2)) return (double)*(int64_t*)(uintptr_t)data;
    return -1;
}

// One param: the words of the param and its state; the bits that check() returns of its gradient.
static int walk_param(stream* to, entry* of, PyObject* param, PyObject* state) {
    signature* self = to->self;
    layout own, seen;
    put(to, (uint64_t)(uintptr_t)param);
    put(to, (uint64_t)(uintptr_t)Py_TYPE(param));
    describe(self, param, &own);
    put_layout(to, &own);
    const int has_state = state != NULL && PyDict_Check(state);
    put(to, (uint64_t)has_state);
    double steps = -1;
    uint64_t step_data = 0, step_type = 0;
    if (has_state) {
        for (int name = n_exp_avg; name <= n_master_low; ++name) {
            PyObject* tensor = PyDict_GetItemWithError(state, names[name]);
            put(to, tensor != NULL);
            if (tensor == NULL) continue;
            describe(self, tensor, &seen);
            if (name != n_step) {
                put(to, (uint64_t)(uintptr_t)tensor); // another tensor over the same memory may have the negative bit
                put_layout(to, &seen);
            } else {
                const int is_host = (seen.device & 0xffffffffu) == 1;
                step_data = seen.elements == 1 && is_host ? seen.data : 0;
                step_type = seen.type;
                steps = read_steps(self, step_data, step_type);
            }
        }
    }
    if (to->records) {
        of->steps = steps;
    } else if (of->slot >= 0 && steps != of->steps) {
        to->differs = 1;
    }
    of->step_data = step_data;
    of->step_type = step_type;
    // The gradient, whose address may be another in each step.
    PyObject* grad = PyObject_GetAttr(param, names[n_grad]);
    if (grad == NULL) return -1;
    if (of->slot < 0) {
        const int has = grad != Py_None;
        Py_DECREF(grad);
        return has ? new_gradient : 0;
    }
    Py_XDECREF(self->gradients[of->slot]);
    self->gradients[of->slot] = NULL;
    self->addresses[of->slot] = 0;
    if (grad == Py_None) {
        Py_DECREF(grad);
        return no_gradient;
    }
    describe(self, grad, &seen);
    // is_neg(): memory holds the negated elements.
    PyObject* negated = PyObject_CallMethodObjArgs(grad, names[n_is_neg], NULL);
    if (negated == NULL) PyErr_Clear();
    int same = seen.dims == own.dims && seen.type != unreadable && negated == Py_False;
    Py_XDECREF(negated);
    for (int i = 0; same && i < own.dims; ++i) same = seen.sizes[i] == own.sizes[i];
    for (int i = 0; same && seen.elements > 1 && i < own.dims; ++i) same = seen.sizes[own.dims + i] == own.sizes[own.dims + i];
    const uint64_t kind = same ? (seen.type ^ seen.device << 40) | (uint64_t)1 << 63 : 1;
    if (to->records)
        of->grad_kind = kind;
    else if (kind != of->grad_kind)
        to->differs = 1;
    self->addresses[of->slot] = seen.data;
    self->gradients[of->slot] = grad;
    return 0;
}

static double number_of(PyObject* group, int name, double missing, int* failed) {
    PyObject* value = PyDict_GetItemWithError(group, names[name]);
    if (value == NULL) {
        if (PyErr_Occurred()) *failed = 1;
        return missing;
    }
    if (name >= n_maximize) {
        const int is_true = PyObject_IsTrue(value);
        if (is_true < 0) *failed = 1;
        return is_true;
    }
    const double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) *failed = 1;
    return number;
}

enum { hyper_per_group = 9 };

static int read_hyper(PyObject* group, double* to) {
    int failed = 0;
    to[0] = number_of(group, n_lr, -1, &failed);
    to[1] = to[2] = -1;
    PyObject* betas = failed ? NULL : PyDict_GetItemWithError(group, names[n_betas]);
    for (int i = 0; i < 2 && betas != NULL && !failed; ++i) {
        PyObject* beta = PySequence_GetItem(betas, i);
        if (beta == NULL) return -1;
        to[1 + i] = PyFloat_AsDouble(beta);
        Py_DECREF(beta);
        if (PyErr_Occurred()) failed = 1;
    }
    for (int i = 0; i < 6 && !failed; ++i) to[3 + i] = number_of(group, n_eps + i, 0, &failed);
    return failed || PyErr_Occurred() ? -1 : 0;
}

static int same_numbers(const double* a, const double* b, int count) {
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

// Borrowed items of a list or a tuple.
static Py_ssize_t length_of(PyObject* sequence) {
    return PyList_Check(sequence) ? PyList_Size(sequence) : PyTuple_Check(sequence) ? PyTuple_Size(sequence) : -1;
}

static PyObject* item_of(PyObject* sequence, Py_ssize_t i) {
    return PyList_Check(sequence) ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i);
}

static void drop_gradients(signature* self) {
    for (Py_ssize_t i = 0; i < self->slots; ++i) {
        PyObject* gradient = self->gradients[i];
        self->gradients[i] = NULL;
        Py_XDECREF(gradient);
    }
}

static void drop_all(signature* self) {
    if (self->gradients != NULL) drop_gradients(self);
    free(self->words);
    free(self->hyper);
    free(self->entries);
    free(self->state_order);
    free(self->addresses);
    free(self->gradients);
    free(self->found_states);
    self->words = NULL;
    self->hyper = NULL;
    self->entries = NULL;
    self->state_order = NULL;
    self->addresses = NULL;
    self->gradients = NULL;
    self->found_states = NULL;
    self->words_used = self->words_room = self->group_count = self->count = self->slots = self->state_count = 0;
}

typedef struct {
    PyObject* param;
    Py_ssize_t entry;
} known_param;

static int by_address(const void* a, const void* b) {
    const uintptr_t x = (uintptr_t)((const known_param*)a)->param, y = (uintptr_t)((const known_param*)b)->param;
    return x != y ? (x < y ? -1 : 1) : 0;
}

static void walk_names(stream* to, PyObject* group) {
    PyObject* given = PyDict_GetItemWithError(group, names[n_param_names]);
    const Py_ssize_t count = given == NULL ? 0 : length_of(given);
    put(to, (uint64_t)count);
    for (Py_ssize_t i = 0; i < count; ++i) put(to, (uint64_t)(uintptr_t)item_of(given, i));
}

// record(groups, state, slots): slots has a number for each param of the groups in order, -1 for those not stepped.
static PyObject* record(PyObject* object, PyObject* arguments) {
    signature* self = (signature*)object;
    PyObject *groups, *state, *slots;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyList_Type, &groups, &PyDict_Type, &state, &PyList_Type, &slots)) return NULL;
    // Keep the kinds of gradients that are None now because they were accumulated.
    entry* before = self->entries;
    const Py_ssize_t before_count = self->count;
    self->entries = NULL;
    drop_all(self);
    const Py_ssize_t count = PyList_Size(slots), group_count = PyList_Size(groups);
    self->entries = calloc((size_t)count + 1, sizeof *self->entries);
    self->state_order = calloc((size_t)count + 1, sizeof *self->state_order);
    self->addresses = calloc((size_t)count + 1, sizeof *self->addresses);
    self->gradients = calloc((size_t)count + 1, sizeof *self->gradients);
    self->found_states = calloc((size_t)count + 1, sizeof *self->found_states);
    self->hyper = calloc((size_t)(group_count + 1) * hyper_per_group, sizeof *self->hyper);
    known_param* known = calloc((size_t)count + 1, sizeof *known);
    if (known == NULL || self->entries == NULL || self->state_order == NULL || self->addresses == NULL ||
        self->gradients == NULL || self->found_states == NULL || self->hyper == NULL) {
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
        if (params == NULL || read_hyper(group, self->hyper + g * hyper_per_group) != 0) goto failed;
        for (Py_ssize_t i = 0; i < length_of(params); ++i, ++number) {
            if (number == count) goto failed;
            entry* of = self->entries + number;
            of->slot = PyLong_AsSsize_t(PyList_GetItem(slots, number));
            of->group = g;
            of->index = i;
            of->param = item_of(params, i);
            if (number < before_count && before[number].param == of->param) of->grad_kind = before[number].grad_kind;
            known[number] = (known_param){of->param, number};
            if (of->slot >= self->slots) self->slots = of->slot + 1;
            if (of->slot >= count) goto failed;
        }
    }
    if (number != count) goto failed;
    self->count = count;
    qsort(known, (size_t)count, sizeof *known, by_address);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(state, &at, &key, &value)) {
        const known_param wanted = {key, 0};
        const known_param* found = bsearch(&wanted, known, (size_t)count, sizeof *known, by_address);
        if (found == NULL) continue;
        // A param that is listed twice is stepped by its first entry.
        const known_param* same = found;
        while (same > known && same[-1].param == key) --same;
        for (; same < known + count && same->param == key; ++same)
            if (same->entry < found->entry) found = same;
        self->state_order[self->state_count++] = found->entry;
        self->found_states[found->entry] = value;
    }
    free(known);
    known = NULL;
    stream to = {self, 0, 0, 1, 0};
    number = 0;
    for (Py_ssize_t g = 0; g < group_count; ++g) {
        PyObject* group = PyList_GetItem(groups, g);
        walk_names(&to, group);
        for (; number < count && self->entries[number].group == g; ++number) {
            self->entries[number].first_word = self->words_used;
            if (walk_param(&to, self->entries + number, self->entries[number].param, self->found_states[number]) < 0) goto failed;
            self->entries[number].end_word = self->words_used;
        }
    }
    free(before);
    before = NULL;
    if (to.differs < 0) goto failed;
    Py_RETURN_NONE;
failed:
    free(known);
    free(before);
    drop_all(self);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the groups and the slots do not belong together");
    return NULL;
}

// check(groups, state) -> bits. What was recorded stays, but for hyperparameters, which become those found.
static PyObject* check(PyObject* object, PyObject* arguments) {
    signature* self = (signature*)object;
    PyObject *groups, *state;
    if (!PyArg_ParseTuple(arguments, "OO", &groups, &state)) return NULL;
    if (self->entries == NULL || !PyList_Check(groups) || !PyDict_Check(state) || PyList_Size(groups) != self->group_count)
        return PyLong_FromLong(changed);
    // States by the order of their keys, which saves their hashes.
    PyObject *key, *value;
    Py_ssize_t at = 0, matched = 0;
    while (matched < self->state_count && PyDict_Next(state, &at, &key, &value)) {
        const Py_ssize_t next = self->state_order[matched];
        if (key != self->entries[next].param) continue;
        self->found_states[next] = value;
        ++matched;
    }
    if (matched != self->state_count) return PyLong_FromLong(changed);
    long bits = 0;
    stream to = {self, 0, self->words_used, 0, 0};
    Py_ssize_t number = 0;
    for (Py_ssize_t g = 0; g < self->group_count && !to.differs; ++g) {
        PyObject* group = PyList_GetItem(groups, g);
        double now[hyper_per_group];
        PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, names[n_params]) : NULL;
        if (params == NULL) return PyErr_Occurred() ? NULL : PyLong_FromLong(changed);
        if (read_hyper(group, now) != 0) return NULL;
        if (!same_numbers(now, self->hyper + g * hyper_per_group, 5)) bits |= hyper_changed;
        if (!same_numbers(now + 5, self->hyper + g * hyper_per_group + 5, hyper_per_group - 5)) bits |= changed;
        memcpy(self->hyper + g * hyper_per_group, now, 5 * sizeof *now); // flags that differ stay so until record()
        walk_names(&to, group);
        const Py_ssize_t length = length_of(params);
        for (Py_ssize_t i = 0; i < length && !to.differs; ++i, ++number) {
            if (number == self->count || self->entries[number].group != g || item_of(params, i) != self->entries[number].param)
                return PyLong_FromLong(bits | changed);
            PyObject* param = self->entries[number].param;
            to.at = self->entries[number].first_word;
            const int found = walk_param(&to, self->entries + number, param, self->found_states[number]);
            if (found < 0) return NULL;
            bits |= found;
        }
    }
    if (to.differs || number != self->count) bits |= changed;
    return PyLong_FromLong(bits);
}

// check_one(groups, state, number) -> whether that param, its group and its state are as recorded. Reads its gradient.
static PyObject* check_one(PyObject* object, PyObject* arguments) {
    signature* self = (signature*)object;
    PyObject *groups, *state;
    Py_ssize_t number;
    if (!PyArg_ParseTuple(arguments, "OOn", &groups, &state, &number)) return NULL;
    if (number < 0 || number >= self->count || !PyList_Check(groups) || !PyDict_Check(state) ||
        PyList_Size(groups) != self->group_count)
        Py_RETURN_FALSE;
    entry* of = self->entries + number;
    PyObject* group = PyList_GetItem(groups, of->group);
    PyObject* params = PyDict_Check(group) ? PyDict_GetItemWithError(group, names[n_params]) : NULL;
    double now[hyper_per_group];
    if (params == NULL || length_of(params) <= of->index || item_of(params, of->index) != of->param) Py_RETURN_FALSE;
    if (read_hyper(group, now) != 0) return NULL;
    if (!same_numbers(now, self->hyper + of->group * hyper_per_group, hyper_per_group)) Py_RETURN_FALSE;
    PyObject* of_param = PyDict_GetItemWithError(state, of->param);
    if (of_param == NULL && PyErr_Occurred()) return NULL;
    stream to = {self, of->first_word, of->end_word, 0, 0};
    const int found = walk_param(&to, of, of->param, of_param);
    if (found < 0) return NULL;
    return PyBool_FromLong(found == 0 && !to.differs);
}

// take_hyper(groups) -> whether nothing but numbers of the groups has changed. These are recorded anew.
static PyObject* take_hyper(PyObject* object, PyObject* groups) {
    signature* self = (signature*)object;
    if (self->entries == NULL || !PyList_Check(groups) || PyList_Size(groups) != self->group_count) Py_RETURN_FALSE;
    for (Py_ssize_t g = 0; g < self->group_count; ++g) {
        double now[hyper_per_group];
        PyObject* group = PyList_GetItem(groups, g);
        if (!PyDict_Check(group)) Py_RETURN_FALSE;
        if (read_hyper(group, now) != 0) return NULL;
        double* known = self->hyper + g * hyper_per_group;
        if (!same_numbers(now + 5, known + 5, hyper_per_group - 5)) Py_RETURN_FALSE;
        memcpy(known, now, sizeof now);
    }
    Py_RETURN_TRUE;
}

// advance(slots or None) -> entries whose step counts no longer fit their tensors. Adds a step to those.
static PyObject* advance(PyObject* object, PyObject* wanted) {
    signature* self = (signature*)object;
    char* takes_part = NULL;
    if (wanted != Py_None) {
        takes_part = calloc((size_t)self->slots + 1, 1);
        if (takes_part == NULL) return PyErr_NoMemory();
        for (Py_ssize_t i = 0; i < PyList_Size(wanted); ++i) {
            const Py_ssize_t slot = PyLong_AsSsize_t(PyList_GetItem(wanted, i));
            if (slot >= 0 && slot < self->slots) takes_part[slot] = 1;
        }
    }
    PyObject* full = PyList_New(0);
    for (Py_ssize_t i = 0; full != NULL && i < self->count; ++i) {
        entry* of = self->entries + i;
        if (of->slot < 0 || (takes_part != NULL && !takes_part[of->slot])) continue;
        const double next = of->steps + 1;
        of->steps = next;
        if (is_scalar_type(self, of->step_type, 0)) {
            *(float*)(uintptr_t)of->step_data = (float)next;
            if (next >= 16777216.0) {
                PyObject* number = PyLong_FromSsize_t(i);
                if (number == NULL || PyList_Append(full, number) != 0) Py_CLEAR(full);
                Py_XDECREF(number);
            }
        } else if (is_scalar_type(self, of->step_type, 1)) {
            *(double*)(uintptr_t)of->step_data = next;
        } else {
            *(int64_t*)(uintptr_t)of->step_data = (int64_t)next;
        }
    }
    free(takes_part);
    return full;
}

static PyObject* release(PyObject* object, PyObject* nothing) {
    (void)nothing;
    drop_gradients((signature*)object);
    Py_RETURN_NONE;
}

static PyObject* address_of(PyObject* object, PyObject* slot) {
    signature* self = (signature*)object;
    const Py_ssize_t number = PyLong_AsSsize_t(slot);
    if (number < 0 || number >= self->slots) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "there is no such slot");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(self->addresses[number]);
}

static PyObject* addresses_at(PyObject* object, void* nothing) {
    (void)nothing;
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)((signature*)object)->addresses);
}

static PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* named) {
    (void)named;
    PyObject *capsule, *scalar_types, *plain_types;
    if (!PyArg_ParseTuple(arguments, "OO!O!", &capsule, &PyTuple_Type, &scalar_types, &PyTuple_Type, &plain_types)) return NULL;
    dl_exchange* exchange = NULL;
    if (capsule != Py_None) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (exchange == NULL) return NULL;
        if (exchange->major != 1) exchange = NULL; // of another layout
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    signature* self = (signature*)allocate(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(scalar_types);
    self->scalar_types = scalar_types;
    Py_INCREF(plain_types);
    self->plain_types = plain_types;
    self->exchange = exchange;
    return (PyObject*)self;
}

static void destroy(PyObject* object) {
    signature* self = (signature*)object;
    PyTypeObject* type = Py_TYPE(object);
    drop_all(self);
    Py_XDECREF(self->scalar_types);
    Py_XDECREF(self->plain_types);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"record", record, METH_VARARGS, "Record the groups and the state. slots: a number for each param, or -1."},
    {"check", check, METH_VARARGS, "Compare the groups and the state with what was recorded, and find the gradients."},
    {"check_one", check_one, METH_VARARGS, "Compare one param, its group and its state with what was recorded."},
    {"take_hyper", take_hyper, METH_O, "Record the numbers of the groups anew."},
    {"advance", advance, METH_O, "Add a step to the counts of these slots, or of all."},
    {"release", release, METH_NOARGS, "Drop the references to gradients."},
    {"address_of", address_of, METH_O, "Return the address of a slot's gradient, or 0."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"addresses", addresses_at, NULL, "The address of the gradients' addresses, by slot.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots_of_type[] = {
    {Py_tp_new, make}, {Py_tp_dealloc, destroy}, {Py_tp_methods, methods}, {Py_tp_getset, attributes},
    {Py_tp_doc, "What a torch optimizer's groups and state were when its step was set up."}, {0, NULL},
};

static PyType_Spec spec = {"adamant._signature.Signature", sizeof(signature), 0, Py_TPFLAGS_DEFAULT, slots_of_type};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_signature", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__signature(void) {
    for (int i = 0; i < name_count; ++i) {
        names[i] = PyUnicode_InternFromString(names_text[i]);
        if (names[i] == NULL) return NULL;
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
