// What a call is about, and how Python passes it: where tensors lie, which types and strides they have, and the
// numbers that go with them.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace beliefmatch {

enum class Kind : int64_t { float32 = 0, float64 = 1, bfloat16 = 2, float16 = 3 };

inline int64_t size_of(Kind kind) {
    return kind == Kind::float64 ? 8 : kind == Kind::float32 ? 4 : 2;
}

// A tensor of shape (outer, classes, inner), strides counted in elements. Row r is (r / inner, r % inner).
struct Strided {
    char* data = nullptr;
    Kind kind = Kind::float32;
    int64_t outer_stride = 0, class_stride = 0, inner_stride = 0;

    explicit operator bool() const { return data != nullptr; }

    char* row(int64_t index, int64_t inner) const {
        int64_t offset = index / inner * outer_stride + index % inner * inner_stride;
        return data + offset * size_of(kind);
    }
};

enum class Reduction : int64_t { mean = 0, sum = 1, none = 2 };

// A prior of one number a class, the same for all rows, as the lanes want it: with room for whole vectors.
struct ClassPrior {
    std::vector<double> prior;
    std::vector<float> beta, log_beta, log_beta_rest; // ln β to twice the digits of a float
    double total = 0, log_normaliser = 0;
    bool is_valid = false, is_ordinary = false;
};

struct Inputs {
    int64_t outer = 0, classes = 0, inner = 0;
    Strided logits, counts, prior;        // counts or ids; prior where it is not one number
    const ClassPrior* class_prior = nullptr; // where all rows share a prior that is not one number
    Strided other;                        // logits of a second Dirichlet, for divergences
    const int64_t* ids = nullptr;         // one a row
    int64_t ignore_index = -100;
    const double* class_weight = nullptr; // one a class
    const double* row_kl_weight = nullptr;
    double prior_number = 1, kl_weight = 0, log_normaliser = 0; // Σ lnΓ(β) − lnΓ(β₀) of a prior that all rows share
    Reduction reduction = Reduction::mean;

    int64_t rows() const { return outer * inner; }
    bool shares_prior() const {
        return prior && (outer == 1 || prior.outer_stride == 0) && (inner == 1 || prior.inner_stride == 0);
    }
    bool ignored(int64_t row) const { return ids && ids[row] == ignore_index; }
    double row_weight(int64_t row) const {
        if (!ids) return 1;
        if (ids[row] == ignore_index) return 0;
        return class_weight ? class_weight[ids[row]] : 1;
    }
};

constexpr double ORDINARY_SMALLEST = 0.25, ORDINARY_LARGEST = 4; // of a prior

// Logits of single precision and below and an ordinary prior run in float lanes; the rest in double ones.
inline bool is_ordinary(const Inputs& p) {
    if (p.logits.kind == Kind::float64 || p.row_kl_weight || p.kl_weight > 1e6) return false;
    if (p.prior) return p.class_prior && p.class_prior->is_ordinary;
    return p.prior_number >= ORDINARY_SMALLEST && p.prior_number <= ORDINARY_LARGEST;
}
inline bool is_plain(const Inputs& p) { return p.ids && is_ordinary(p); }
inline bool is_soft(const Inputs& p) {
    return p.counts && p.counts.kind != Kind::float64 && !p.class_weight && is_ordinary(p);
}

enum class Measure : int64_t { entropy = 0, expected_entropy = 1, mutual_information = 2, differential_entropy = 3 };

struct Output {
    double* row_loss = nullptr;
    Strided gradient;                   // where it is wanted,
    const double* row_scale = nullptr;  // each row's times its scale
};

struct DivergenceOutput { // a value, or gradients
    double* value = nullptr;            // one a row
    Strided by_p, by_q;                 // gradients by the logits and by the other ones,
    const double* row_scale = nullptr;  // each row's times its scale
};

struct Readings { // where to write what metrics need of every row
    bool of_probs = false, with_entropy = false;
    double sum_tolerance = 0; // by which a row of probabilities may miss one
    int64_t *best = nullptr, *rank = nullptr;
    double *top = nullptr, *own = nullptr, *squares = nullptr, *doubt = nullptr; // Σ −p ln p, or Σ d·e^d
    double *share = nullptr, *rest = nullptr;                                    // of logits only
};

// Numbers and addresses, one after the other, in the order of `native.py`.
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

// What Python has packed once for many calls: all of a call but its addresses, eight bytes each.
class Header {
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
    explicit Header(PyObject* packed) {
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
        if (!PyErr_Occurred() && left != 0) PyErr_SetString(PyExc_TypeError, "the header has another length");
        return !PyErr_Occurred();
    }
};

} // namespace beliefmatch
