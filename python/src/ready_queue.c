// SPDX-License-Identifier: Apache-2.0
// Extension module adamant._ready_queue: collects the elements that have new weights.
//
// libadamant_c reports them in its own threads. A Python callback would need the GIL there, once for each shard, and
// threads that take turns with it cost more than the step of a small shard.
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    size_t shard, begin, end;
} range;

typedef struct {
    PyObject_HEAD pthread_mutex_t mutex;
    pthread_cond_t changed;
    range* ranges; // since the last take()
    size_t count, room, elements;
    size_t least; // number of elements that take() waits for
    int ended, out_of_memory;
} queue;

// The callback, an adamant_weights_ready.
static void add(void* user, size_t shard, size_t begin, size_t end)
{
    queue* self = user;
    pthread_mutex_lock(&self->mutex);
    if (self->count == self->room) {
        size_t const room = self->room == 0 ? 64 : 2 * self->room;
        range* grown = realloc(self->ranges, room * sizeof *grown);
        if (grown == NULL) {
            self->out_of_memory = 1;
            pthread_cond_broadcast(&self->changed);
            pthread_mutex_unlock(&self->mutex);
            return;
        }
        self->ranges = grown;
        self->room = room;
    }
    self->ranges[self->count++] = (range){shard, begin, end};
    self->elements += end - begin;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}

static PyObject* take(PyObject* object, PyObject* timeout)
{
    queue* self = (queue*)object;
    double const seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred())
        return NULL;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long long const ns = until.tv_nsec + (long long)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    range* ranges;
    size_t count;
    int failed;
    // The mutex is not held while this thread waits for the GIL.
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->mutex);
    while (self->elements < self->least && !self->ended && !self->out_of_memory)
        if (pthread_cond_timedwait(&self->changed, &self->mutex, &until) == ETIMEDOUT)
            break;
    ranges = self->ranges;
    count = self->count;
    failed = self->out_of_memory;
    self->ranges = NULL;
    self->count = self->room = self->elements = 0;
    self->out_of_memory = 0;
    pthread_mutex_unlock(&self->mutex);
    Py_END_ALLOW_THREADS
    PyObject* made = failed ? PyErr_NoMemory() : PyList_New((Py_ssize_t)count);
    for (size_t i = 0; i < count && made != NULL; ++i) {
        PyObject* item = Py_BuildValue("nnn", (Py_ssize_t)ranges[i].shard, (Py_ssize_t)ranges[i].begin,
                                       (Py_ssize_t)ranges[i].end);
        if (item == NULL || PyList_SetItem(made, (Py_ssize_t)i, item) != 0) {
            Py_DECREF(made);
            made = NULL;
        }
    }
    free(ranges);
    return made;
}

static PyObject* begin(PyObject* object, PyObject* least)
{
    queue* self = (queue*)object;
    size_t const elements = PyLong_AsSize_t(least);
    if (elements == (size_t)-1 && PyErr_Occurred())
        return NULL;
    pthread_mutex_lock(&self->mutex);
    self->least = elements;
    self->ended = 0;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    Py_RETURN_NONE;
}

static PyObject* end(PyObject* object, PyObject* nothing)
{
    (void)nothing;
    queue* self = (queue*)object;
    pthread_mutex_lock(&self->mutex);
    self->ended = 1;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    Py_RETURN_NONE;
}

static PyObject* has_ended(PyObject* object, void* nothing)
{
    (void)nothing;
    queue* self = (queue*)object;
    pthread_mutex_lock(&self->mutex);
    int const ended = self->ended;
    pthread_mutex_unlock(&self->mutex);
    return PyBool_FromLong(ended);
}

static PyObject* callback_of(PyObject* object, void* nothing)
{
    (void)object, (void)nothing;
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)&add);
}

static PyObject* user_of(PyObject* object, void* nothing)
{
    (void)nothing;
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)object);
}

static PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* named)
{
    (void)arguments, (void)named;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    queue* self = (queue*)allocate(type, 0);
    if (self == NULL)
        return NULL;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    return (PyObject*)self;
}

static void destroy(PyObject* object)
{
    queue* self = (queue*)object;
    PyTypeObject* type = Py_TYPE(object);
    free(self->ranges);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"take", take, METH_O,
     "Wait at most this number of seconds. Return the ranges (shard, begin, end) since the last call, in order."},
    {"begin", begin, METH_O, "Let take() wait for at least this number of elements."},
    {"end", end, METH_NOARGS, "Let take() wait no longer."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"ended", has_ended, NULL, "Whether end() was called after begin().", NULL},
    {"callback", callback_of, NULL, "Address of the function that libadamant_c calls.", NULL},
    {"user", user_of, NULL, "The pointer that this function needs. The queue must outlive its calls.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, destroy},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {Py_tp_doc, "Elements that have new weights, reported by libadamant_c. Thread-safe."},
    {0, NULL},
};

static PyType_Spec spec = {"adamant._ready_queue.ReadyQueue", sizeof(queue), 0, Py_TPFLAGS_DEFAULT, slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_ready_queue", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ready_queue(void)
{
    PyObject* made = PyModule_Create(&module);
    PyObject* type = made == NULL ? NULL : PyType_FromSpec(&spec);
    if (type == NULL || PyModule_AddObject(made, "ReadyQueue", type) != 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
