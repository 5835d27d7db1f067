// SPDX-License-Identifier: Apache-2.0
// Extension module adamant._signal_handlers: replaces handlers of signals in Python, and leaves those in C as they are.
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>
#include <string.h>

enum { mask_bytes = 8 }; // of the kernel; the C library leaves the other bytes of a mask undefined

static struct sigaction cpythons; // what signal.signal() registers

static int is_cpythons(const struct sigaction* action)
{
    return action->sa_flags == cpythons.sa_flags && action->sa_handler == cpythons.sa_handler &&
           memcmp(&action->sa_mask, &cpythons.sa_mask, mask_bytes) == 0;
}

// replace(signal, number, handler) calls signal(number, handler), which registers CPython's C function without flags.
// If the process had registered something else, such as siginterrupt()'s flags or a C function that calls CPython's,
// restores it and returns True.
static PyObject* replace(PyObject* module, PyObject* arguments)
{
    (void)module;
    PyObject* const set_handler = PyTuple_GetItem(arguments, 0);
    PyObject* const number_object = PyTuple_GetItem(arguments, 1);
    PyObject* const handler = PyTuple_GetItem(arguments, 2);
    if (handler == NULL)
        return NULL;
    const int number = (int)PyLong_AsLong(number_object);
    struct sigaction old;
    if (sigaction(number, NULL, &old) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject* const previous = PyObject_CallFunctionObjArgs(set_handler, number_object, handler, NULL);
    if (previous == NULL)
        return NULL;
    Py_DECREF(previous);
    if (cpythons.sa_handler == SIG_DFL && sigaction(number, NULL, &cpythons) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (is_cpythons(&old))
        Py_RETURN_FALSE;
    if (sigaction(number, &old, NULL) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_TRUE;
}

PyMODINIT_FUNC PyInit__signal_handlers(void)
{
    static PyMethodDef functions[] = {{"replace", replace, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
    static struct PyModuleDef module = {
        PyModuleDef_HEAD_INIT, "_signal_handlers", NULL, -1, functions, NULL, NULL, NULL, NULL};
    return PyModule_Create(&module);
}
