// What Python passes to a call: numbers and addresses, one after the other.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <cstring>

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

// What Python has packed once for many calls: all but the addresses, eight bytes each.
class Plan {
    const char* next = nullptr;
    Py_ssize_t left = 0;

    template <class T> T take() {
        T value{};
        left -= Py_ssize_t(sizeof value);
        if (left < 0) return value;
        memcpy(&value, next, sizeof value);
        next += sizeof value;
        return value;
    }

public:
    explicit Plan(PyObject* packed) {
        char* first;
        if (PyBytes_AsStringAndSize(packed, &first, &left) == 0) next = first;
    }

    int64_t whole() { return take<int64_t>(); }
    double number() { return take<double>(); }
    Strided strided() {
        Strided s;
        s.kind = Kind(whole());
        s.outer_stride = whole(), s.class_stride = whole(), s.inner_stride = whole();
        return s;
    }
    bool complete() {
        if (!PyErr_Occurred() && left != 0) PyErr_SetString(PyExc_TypeError, "the plan has another length");
        return !PyErr_Occurred();
    }
};

} // namespace beliefmatch
