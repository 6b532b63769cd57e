// The loss and its gradient in one visit of the logits each, for CPython's stable ABI. No dependence on torch:
// tensors come as addresses, types and strides, threads from the pool that torch has loaded.

#include "arguments.h" // Python's header comes first

#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "dispatch.h"

namespace {

using namespace beliefmatch;

const InstructionSet* best() {
    for (const auto& set : INSTRUCTION_SETS)
        if (set.supported()) return &set;
    return nullptr;
}
const InstructionSet* in_use = best();

// Whether there is memory that lies as the processor wants it.
bool is_aligned(const Strided& s) { return s.data && reinterpret_cast<uintptr_t>(s.data) % size_of(s.kind) == 0; }

// Whether the small inputs are what they must be; counts, priors and logits are looked at row by row.
bool is_sound(const Inputs& p) {
    if (!is_aligned(p.logits) || reinterpret_cast<uintptr_t>(p.ids) % sizeof *p.ids != 0) return false;
    if (p.ids)
        for (int64_t row = 0; row < p.rows(); ++row)
            if ((p.ids[row] < 0 || p.ids[row] >= p.classes) && p.ids[row] != p.ignore_index) return false;
    if (p.class_weight)
        for (int64_t k = 0; k < p.classes; ++k)
            if (!(p.class_weight[k] >= 0 && p.class_weight[k] <= 1e30)) return false;
    if (p.row_kl_weight)
        for (int64_t row = 0; row < p.rows(); ++row)
            if (!(p.row_kl_weight[row] >= 0 && p.row_kl_weight[row] <= 1e30)) return false;
    return p.rows() > 0 && p.prior_number >= 1e-30 && p.prior_number <= 1e30 && p.kl_weight <= 1e30;
}

double total_weight(const Inputs& p) {
    double total = 0;
    for (int64_t row = 0; row < p.rows(); ++row) total += p.row_weight(row);
    return total;
}

// Large fresh buffers cost more in page faults than in arithmetic: ask for large pages.
void prefer_large_pages(char* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr intptr_t page = 1 << 21;
    if (bytes < 4 * page) return;
    intptr_t first = (reinterpret_cast<intptr_t>(data) + page - 1) / page * page;
    intptr_t last = (reinterpret_cast<intptr_t>(data) + bytes) / page * page;
    madvise(reinterpret_cast<void*>(first), size_t(last - first), MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

struct Result { // where to write the reduced loss, or one value a row
    char* data;
    bool is_double;

    // The nearest number that the type of the result can hold.
    double saturate(double value) const {
        const double largest = is_double ? 1.7976931348623157e308 : 3.4028234663852886e38;
        return value > largest ? largest : value < -largest ? -largest : value;
    }
    void put(int64_t index, double value) const {
        value = saturate(value);
        if (is_double) reinterpret_cast<double*>(data)[index] = value;
        else reinterpret_cast<float*>(data)[index] = float(value);
    }
};

struct Upstream { // the upstream gradient: one number, or one a row; 1 if there is none
    const char* data;
    bool is_double;

    double at(int64_t index) const {
        if (!data) return 1;
        return is_double ? reinterpret_cast<const double*>(data)[index]
                         : double(reinterpret_cast<const float*>(data)[index]);
    }
};

void reduce(const Inputs& p, const std::vector<double>& row_loss, double total, const Result& result) {
    double reduced = 0;
    for (int64_t row = 0; row < p.rows(); ++row) {
        double weight = p.row_weight(row) / total; // first, so that a mean cannot overflow
        double loss = result.saturate(row_loss[size_t(row)]) * weight; // as the reference does: row by row, then again
        if (p.reduction == Reduction::none) result.put(row, loss);
        else reduced += loss;
    }
    if (p.reduction != Reduction::none) result.put(0, reduced);
}

// The loss, and its gradient where there is memory for it. False if the kernel does not support the inputs.
bool evaluate(Inputs p, const Result& result, const Strided& gradient, const Upstream& upstream,
              int64_t threads) {
    if (!is_sound(p)) return false;
    ClassPrior class_prior;
    if (p.shares_prior()) {
        in_use->tabulate_prior(p, class_prior);
        if (!class_prior.is_valid) return false;
        p.class_prior = &class_prior;
        p.log_normaliser = class_prior.log_normaliser;
    }
    const double total = p.reduction == Reduction::mean ? total_weight(p) : 1;
    if (!(total > 0)) return false;
    std::vector<double> row_loss(size_t(p.rows())), scale;
    Output out;
    out.row_loss = row_loss.data();
    out.gradient = gradient;
    if (gradient) {
        scale.resize(size_t(p.rows()));
        for (int64_t row = 0; row < p.rows(); ++row)
            scale[size_t(row)] = p.row_weight(row) / total * upstream.at(p.reduction == Reduction::none ? row : 0);
        out.row_scale = scale.data();
        prefer_large_pages(gradient.data, p.rows() * p.classes * size_of(gradient.kind));
    }
    const bool done = over_rows(p, threads, in_use->scratch_size(p), [&](int64_t first, int64_t last, double* scratch) {
        return in_use->run(p, out, first, last, scratch);
    });
    if (done) reduce(p, row_loss, total, result);
    return done;
}

// One value a row. False if the kernel does not support the logits.
bool measure(Measure which, const Inputs& p, const Result& result, int64_t threads) {
    std::vector<double> values(size_t(p.rows()));
    const int64_t size = in_use->measure_scratch_size(p);
    const bool done = over_rows(p, threads, size, [&](int64_t first, int64_t last, double* scratch) {
        return in_use->measure(which, p, first, last, scratch, values.data());
    });
    for (int64_t row = 0; done && row < p.rows(); ++row) result.put(row, values[size_t(row)]);
    return done;
}

// One value a row where there is memory for it, else gradients where there is memory for those.
bool divergence(const Inputs& p, const Result& result, const Strided& by_p, const Strided& by_q,
                const Upstream& upstream, int64_t threads) {
    std::vector<double> values(result.data ? size_t(p.rows()) : 0), scale(result.data ? 0 : size_t(p.rows()));
    for (size_t row = 0; row < scale.size(); ++row) scale[row] = upstream.at(int64_t(row));
    DivergenceOutput out{result.data ? values.data() : nullptr, by_p, by_q, scale.data()};
    const int64_t size = in_use->divergence_scratch_size(p, out);
    const bool done = over_rows(p, threads, size, [&](int64_t first, int64_t last, double* scratch) {
        return in_use->divergence(p, out, first, last, scratch);
    });
    for (size_t row = 0; done && row < values.size(); ++row) result.put(int64_t(row), values[row]);
    return done;
}

// The variance of every class. False if the kernel does not support the logits.
bool variance(const Inputs& p, const Strided& to, int64_t threads) {
    const int64_t size = in_use->variance_scratch_size(p, to);
    return over_rows(p, threads, size, [&](int64_t first, int64_t last, double* scratch) {
        return in_use->variance(p, to, first, last, scratch);
    });
}

// What metrics need of every row. False if a row or an id is not what it must be.
bool read_rows(const Inputs& p, const Readings& out, int64_t threads) {
    return over_rows(p, threads, 0, [&](int64_t first, int64_t last, double*) {
        return in_use->read_rows(p, out, first, last);
    });
}

// What `work` returns, as a Python bool.
template <class Work> PyObject* without_gil(const Work& work) {
    bool done = false, enough_memory = true;
    Py_BEGIN_ALLOW_THREADS;
    try {
        done = work();
    } catch (const std::bad_alloc&) {
        enough_memory = false;
    }
    Py_END_ALLOW_THREADS;
    return enough_memory ? PyBool_FromLong(done) : PyErr_NoMemory();
}

PyObject* py_evaluate(PyObject*, PyObject* const* given, Py_ssize_t count) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "too few arguments");
    Inputs p;
    Header header(given[0]);
    p.outer = header.whole(), p.classes = header.whole(), p.inner = header.whole();
    p.logits = header.strided(), p.counts = header.strided(), p.prior = header.strided();
    Strided gradient = header.strided();
    p.ignore_index = header.whole(), p.reduction = Reduction(header.whole());
    p.prior_number = header.number(), p.kl_weight = header.number(), p.log_normaliser = header.number();

    Arguments args(given + 1, count - 1);
    int64_t threads = args.whole();
    bool is_double = p.logits.kind == Kind::float64; // the result, then, and its gradient
    Result result{args.address<char>(), is_double};
    p.logits.data = args.address<char>();
    p.ids = args.address<const int64_t>();
    p.counts.data = args.address<char>();
    p.class_weight = args.address<const double>();
    p.prior.data = args.address<char>();
    p.row_kl_weight = args.address<const double>();
    gradient.data = args.address<char>();
    Upstream upstream{args.address<char>(), is_double};
    if (!header.complete() || !args.complete()) return nullptr;
    return without_gil([&] { return evaluate(p, result, gradient, upstream, threads); });
}

PyObject* py_measure(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments args(given, count);
    Measure which = Measure(args.whole());
    Inputs p;
    p.outer = args.whole(), p.classes = args.whole(), p.inner = args.whole();
    p.logits = args.strided();
    Result result{args.address<char>(), args.whole() == int64_t(Kind::float64)};
    int64_t threads = args.whole();
    if (!args.complete()) return nullptr;
    return without_gil([&] { return measure(which, p, result, threads); });
}

PyObject* py_divergence(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments args(given, count);
    Inputs p;
    p.outer = args.whole(), p.classes = args.whole(), p.inner = args.whole();
    p.logits = args.strided(), p.other = args.strided();
    Result result{args.address<char>(), args.whole() == int64_t(Kind::float64)};
    Strided by_p = args.strided(), by_q = args.strided();
    Upstream upstream{args.address<char>(), args.whole() == int64_t(Kind::float64)};
    int64_t threads = args.whole();
    if (!args.complete()) return nullptr;
    return without_gil([&] { return divergence(p, result, by_p, by_q, upstream, threads); });
}

PyObject* py_variance(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments args(given, count);
    Inputs p;
    p.outer = args.whole(), p.classes = args.whole(), p.inner = args.whole();
    p.logits = args.strided();
    Strided to = args.strided();
    int64_t threads = args.whole();
    if (!args.complete()) return nullptr;
    return without_gil([&] { return variance(p, to, threads); });
}

PyObject* py_read_rows(PyObject*, PyObject* const* given, Py_ssize_t count) {
    Arguments args(given, count);
    Inputs p;
    Readings out;
    p.inner = 1, p.outer = args.whole(), p.classes = args.whole();
    p.logits = args.strided();
    p.ids = args.address<const int64_t>();
    out.of_probs = args.whole(), out.with_entropy = args.whole(), out.sum_tolerance = args.number();
    int64_t threads = args.whole();
    out.best = args.address<int64_t>(), out.rank = args.address<int64_t>();
    out.top = args.address<double>(), out.own = args.address<double>();
    out.squares = args.address<double>(), out.doubt = args.address<double>();
    if (!out.of_probs) out.share = args.address<double>(), out.rest = args.address<double>();
    if (!args.complete()) return nullptr;
    return without_gil([&] { return read_rows(p, out, threads); });
}

PyObject* py_instruction_sets(PyObject*, PyObject*) {
    PyObject* names = PyList_New(0);
    for (const auto& set : INSTRUCTION_SETS) {
        if (!names || !set.supported()) continue;
        PyObject* name = PyUnicode_FromString(set.name);
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

PyObject* py_in_use(PyObject*, PyObject*) { return PyUnicode_FromString(in_use->name); }

PyObject* py_use(PyObject*, PyObject* name) {
    for (const auto& set : INSTRUCTION_SETS)
        if (set.supported() && PyUnicode_CompareWithASCIIString(name, set.name) == 0) {
            in_use = &set;
            return Py_NewRef(Py_None);
        }
    return PyErr_Format(PyExc_ValueError, "no such instruction set here: %R", name);
}

PyObject* py_shares_pool(PyObject*, PyObject*) { return PyBool_FromLong(Pool::get().found()); }

PyMethodDef methods[] = {
    {"evaluate", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_evaluate)), METH_FASTCALL,
     "Write the loss and, where there is memory for it, the gradient; False if the kernel does not support the inputs."},
    {"measure", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_measure)), METH_FASTCALL,
     "Write a measure of every row; False if the kernel does not support the logits."},
    {"divergence", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_divergence)), METH_FASTCALL,
     "Write every row's divergence, or its gradients; False if the kernel does not support the logits."},
    {"variance", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_variance)), METH_FASTCALL,
     "Write the variance of every class; False if the kernel does not support the logits."},
    {"read_rows", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(py_read_rows)), METH_FASTCALL,
     "Write what metrics need of every row; False if the kernel does not support the rows."},
    {"instruction_sets", py_instruction_sets, METH_NOARGS, "Names of those this processor has, best first."},
    {"in_use", py_in_use, METH_NOARGS, "Name of the instruction set in use."},
    {"use", py_use, METH_O, "Use the instruction set of this name from now on."},
    {"shares_pool", py_shares_pool, METH_NOARGS, "Whether torch's own thread pool is used."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "The loss kernel for CPUs.", -1, methods,
                      nullptr,               nullptr,   nullptr,                   nullptr};

} // namespace

PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&module); }
