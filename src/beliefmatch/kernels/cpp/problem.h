// What a call is about: where its numbers lie, in the words of the Python side.
#pragma once

#include <cstdint>

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

struct Problem {
    int64_t outer = 0, classes = 0, inner = 0;
    Strided logits, counts, prior;        // counts or ids; prior where it is not one number
    Strided other;                        // logits of a second Dirichlet, for divergences
    const int64_t* ids = nullptr;         // one a row
    int64_t ignore_index = -100;
    const double* class_weight = nullptr; // one a class
    const double* row_kl_weight = nullptr;
    double prior_number = 1, kl_weight = 0, log_normaliser = 0; // Σ lnΓ(β) − lnΓ(β₀) of a prior that is one number
    Reduction reduction = Reduction::mean;

    int64_t rows() const { return outer * inner; }
    bool ignored(int64_t row) const { return ids && ids[row] == ignore_index; }
    double row_weight(int64_t row) const {
        if (!ids) return 1;
        if (ids[row] == ignore_index) return 0;
        return class_weight ? class_weight[ids[row]] : 1;
    }
};

// Logits of single precision and below and an ordinary prior run in float lanes; the rest in double ones.
inline bool is_ordinary(const Problem& p) {
    return p.logits.kind != Kind::float64 && !p.prior && !p.row_kl_weight && p.prior_number >= 0.25 &&
           p.prior_number <= 4 && p.kl_weight <= 1e6;
}
inline bool is_plain(const Problem& p) { return p.ids && is_ordinary(p); }
inline bool is_soft(const Problem& p) {
    return p.counts && p.counts.kind != Kind::float64 && !p.class_weight && is_ordinary(p);
}

enum class Measure : int64_t { entropy = 0, expected_entropy = 1, mutual_information = 2, differential_entropy = 3 };

struct Output {
    double* row_loss = nullptr;
    double largest_loss = 0;            // that the type of the result can hold
    Strided gradient;                   // where it is wanted,
    const double* row_scale = nullptr;  // each row's times its scale
};

struct DivergenceOutput { // what is wanted
    double* value = nullptr;            // one a row
    Strided by_p, by_q;                 // slopes by the logits and by the other ones,
    const double* row_scale = nullptr;  // each row's times its scale
};

struct Readings { // where to write what metrics need of every row
    bool of_probs = false, with_entropy = false;
    double sum_tolerance = 0; // by which a row of probabilities may miss one
    int64_t *best = nullptr, *rank = nullptr;
    double *top = nullptr, *own = nullptr, *squares = nullptr, *doubt = nullptr; // Σ −p ln p, or Σ d·e^d
    double *share = nullptr, *rest = nullptr;                                    // of logits only
};

} // namespace beliefmatch
