// What Python passes to a call: numbers and addresses, one after the other.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "problem.h"

namespace beliefmatch {

// In the order of the Python side.
class Arguments {
    PyObject* const* next;
    PyObject* const* end;

public:
    Arguments(PyObject* const* first, Py_ssize_t count) : next(first), end(first + count) {}

    int64_t whole() { return next < end ? PyLong_AsLongLong(*next++) : missing(); }
    double number() { return next < end ? PyFloat_AsDouble(*next++) : double(missing()); }
    template <class T> T* address() { return reinterpret_cast<T*>(static_cast<intptr_t>(whole())); }
    Strided strided() {
        Strided s;
        s.data = address<char>();
        s.kind = Kind(whole());
        s.outer_stride = whole(), s.class_stride = whole(), s.inner_stride = whole();
        return s;
    }
    bool complete() {
        if (!PyErr_Occurred() && next != end) PyErr_SetString(PyExc_TypeError, "too many arguments");
        return !PyErr_Occurred();
    }

private:
    int64_t missing() {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "too few arguments");
        return 0;
    }
};

} // namespace beliefmatch
