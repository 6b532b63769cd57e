// The divergence of one Dirichlet from another, and its slopes, in double lanes: formulas of `dirichlet.py`. With
// α = e^p, γ = e^q and δ = q − p, differences are counted from p's largest class: v = δ − δ_*. Included once for
// every instruction set.

constexpr double PAIR_RANGE = 340; // of |δ|, so that e^v is finite
// Of a row's largest |δ|: below, E(γ, α) is a mean of r; above, short polynomials are exact enough for logits of
// single precision. Between the two their errors would outgrow a value of the size δ².
constexpr double PAIR_NEAR = 3e-4, PAIR_FAR = 0.1;

enum class Distance { near, middle, far };

struct Pair { // a row of each
    const double *p, *q;
    int64_t classes;
    double *alpha, *power, *growth, *v; // α, e^δ, e^v − 1 and v, with room for whole lanes
    double level, level_power, level_growth; // δ_*, e^δ_* and e^δ_* − 1
    double total, moved, shift;              // α₀, e^(δ₀ − δ_*) − 1 and δ₀ − δ_*
    double farthest;                         // |δ|

    INLINE double ratio() const { return level_power * (1 + moved); }                // γ₀/α₀
    INLINE double total_growth() const { return moved * level_power + level_growth; } // γ₀/α₀ − 1
};

// ln(1 + u) for u > −1; `next` is 1 + u without the rounding of that sum.
INLINE double logarithm_of_next(double u, double next) { return std::fabs(u) < 0.4 ? std::log1p(u) : std::log(next); }

// Fills what a pair's slopes and value are made of. False if a logit is out of range or not a number.
template <bool fine> INLINE bool open_pair(Pair& row) {
    if (!all_within(row.p, row.classes, -EXACT_RANGE, EXACT_RANGE)) return false;
    if (!all_within(row.q, row.classes, -EXACT_RANGE, EXACT_RANGE)) return false;
    const int64_t top = position_of_largest(row.p, row.classes);
    row.level = row.q[top] - row.p[top];
    row.level_power = std::exp(row.level);
    row.level_growth = std::expm1(row.level);
    D total{}, grown{}, moved{}, farthest{};
    for (int64_t k = 0; k < row.classes; k += ND) {
        const int64_t left = row.classes - k;
        D p = load_up_to(row.p + k, left), delta = load_up_to(row.q + k, left) - p, v = delta - row.level;
        D alpha, power, growth, unused;
        exponential<fine>(p, alpha, unused);
        exponential<fine>(v, power, growth);
        store(row.alpha + k, alpha);
        store(row.power + k, power * row.level_power);
        store(row.growth + k, growth);
        store(row.v + k, v);
        alpha = keep(existing(left), alpha);
        total += alpha;
        grown += alpha * power;
        moved += alpha * growth;
        farthest = larger(magnitude(delta), farthest);
    }
    row.total = sum(total);
    row.moved = sum(moved) / row.total;
    row.shift = logarithm_of_next(row.moved, sum(grown) / row.total);
    row.farthest = largest(farthest);
    return row.farthest <= PAIR_RANGE;
}

INLINE Distance distance(const Pair& row) {
    return row.farthest < PAIR_NEAR ? Distance::near : row.farthest < PAIR_FAR ? Distance::middle : Distance::far;
}

// One concentration of each: α, γ/α, that minus one, and its logarithm.
struct Concentrations {
    D alpha, power, growth, delta;
};

INLINE Concentrations totals(const Pair& row) {
    return {splat(row.total), splat(row.ratio()), splat(row.total_growth()), splat(row.level + row.shift)};
}
INLINE Concentrations classes_from(const Pair& row, int64_t k) {
    D growth = load(row.growth + k) * row.level_power + row.level_growth;
    return {load(row.alpha + k), load(row.power + k), growth, load(row.v + k) + row.level};
}

// r(α) = α²ψ′(α) − α.
template <bool fine> INLINE D trigamma_excess(D alpha) {
    D w = 1. / (1. + alpha), x = alpha * w;
    return w + x * x * trigamma_remainder<fine>(w);
}

// ln(1 + 1/γ) − ln(1 + 1/α) with full relative precision, and w = 1/(1 + α) of both, for one division.
template <bool fine> INLINE D log_inverse_ratio(const Concentrations& at, D gamma, D& w_alpha, D& w_gamma) {
    constexpr double c[] = {1.,      1. / 3,  1. / 5,  1. / 7,  1. / 9,  1. / 11, 1. / 13, 1. / 15, 1. / 17,
                            1. / 19, 1. / 21, 1. / 23, 1. / 25, 1. / 27, 1. / 29, 1. / 31, 1. / 33};
    constexpr double c_short[] = {1., 1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19};
    constexpr int64_t half = 0x3fe6a09e667f3bcd, fraction = 0x000fffffffffffff;
    // of numbers whose difference is 1 − e^δ: over their sum where they are alike, by their mantissas elsewhere
    D next = 1. + gamma, base = at.power + gamma, both = next * (1. + at.alpha);
    DI next_bits = (DI)next - half, base_bits = (DI)base - half;
    D next_part = (D)((next_bits & fraction) + half), base_part = (D)((base_bits & fraction) + half);
    DI alike = magnitude(at.growth) < 0.3 * base;
    D scale = (D)(0x3ff0000000000000 - (base_bits & ~fraction));
    D above = select(alike, -at.growth * scale, next_part - base_part);
    D below = select(alike, next * scale, next_part) + base_part;
    DI whole = ((next_bits & ~fraction) - (base_bits & ~fraction)) >> 52;
    D n = (D)((whole & ~alike) + 0x4338000000000000) - 6755399441055744.;
    D inverse = 1. / (below * both), shared = inverse * below, s = above * (inverse * both);
    w_alpha = shared * next;
    w_gamma = shared * (1. + at.alpha);
    D series = fine ? polynomial(c, s * s) : polynomial(c_short, s * s);
    return n * 0.693147180369123816490 + (2. * s * series + n * 1.90821492927058770002e-10);
}

// E(γ, α) = B(γ) − B(α) − (γ − α)B′(α), the integral of r(αe^t)(e^(δ−t) − 1) over t from 0 to δ.
template <bool fine, Distance distance> INLINE D bregman(const Concentrations& at, D gamma) {
    D delta = at.delta;
    if (distance == Distance::near) { // r where that weight has its mean
        D between = at.alpha * (1. + delta * (1. / 3 + delta * (1. / 18)));
        return trigamma_excess<fine>(between) * (delta * delta * (0.5 + delta * (1. / 6 + delta * (1. / 24))));
    }
    constexpr bool full = fine || distance == Distance::middle;
    D w_alpha, w_gamma, drop = log_inverse_ratio<full>(at, gamma, w_alpha, w_gamma);
    D remainders = w_gamma * lgamma_remainder<full>(w_gamma) - w_alpha * lgamma_remainder<full>(w_alpha);
    D slope = 1. + at.alpha * w_alpha * digamma_remainder<full>(w_alpha);
    return (gamma + 0.5) * drop - 0.5 * delta + remainders + at.growth * slope;
}

// γ₀ times q ln(q/p) − q + p of the means q = γ/γ₀ and p = α/α₀, x = ln(q/p).
INLINE D mean_term(D alpha, D gamma, D x, double ratio) {
    constexpr double series[] = {1. / 2, 1. / 3, 1. / 8, 1. / 30, 1. / 144, 1. / 840};
    D scaled = alpha * ratio;
    return select(magnitude(x) < 0.02, scaled * (x * x * polynomial(series, x)), gamma * x - gamma + scaled);
}

template <bool fine, Distance distance> INLINE double divergence_value(const Pair& row) {
    D value{};
    const double ratio = row.ratio();
    for (int64_t k = 0; k < row.classes; k += ND) {
        Concentrations at = classes_from(row, k);
        D gamma = at.alpha * at.power, x = load(row.v + k) - row.shift;
        D term = mean_term(at.alpha, gamma, x, ratio) + bregman<fine, distance>(at, gamma);
        value += keep(existing(row.classes - k), term);
    }
    Concentrations all = totals(row);
    double whole = sum(value) - bregman<true, distance>(all, all.alpha * all.power)[0];
    return whole > 0 ? whole : 0;
}

template <bool fine> INLINE double divergence_of(const Pair& row) {
    switch (distance(row)) {
    case Distance::near: return divergence_value<fine, Distance::near>(row);
    case Distance::middle: return divergence_value<fine, Distance::middle>(row);
    default: return divergence_value<fine, Distance::far>(row);
    }
}

// ∂E/∂δ = γ(B′(γ) − B′(α)), the integral of r(αe^t)e^(δ−t) over t from 0 to δ.
template <bool fine, Distance distance> INLINE D bregman_slope(const Concentrations& at, D gamma) {
    if (distance == Distance::near) {
        D between = at.alpha * (1. + at.delta * (0.5 + at.delta * 0.125));
        return trigamma_excess<fine>(between) * at.growth;
    }
    constexpr bool full = fine || distance == Distance::middle;
    D w_alpha, w_gamma, drop = log_inverse_ratio<full>(at, gamma, w_alpha, w_gamma);
    D after = gamma * w_gamma * digamma_remainder<full>(w_gamma);
    D before = at.power * (at.alpha * w_alpha) * digamma_remainder<full>(w_alpha);
    return gamma * drop + at.growth - after + before;
}

INLINE D scaled_within(D slope, double limit, double scale) {
    return scale * smaller(larger(slope, splat(-limit)), splat(limit));
}

// α_k γ₀/α₀ − γ_k − r(α_k)(e^δ − 1) + (α_k/α₀) r(α₀)(e^δ₀ − 1).
template <bool fine> INLINE void divergence_slopes_by_p(const Pair& row, double limit, double scale, double* to) {
    const double common = trigamma_excess<true>(splat(row.total))[0] * row.total_growth() / row.total;
    for (int64_t k = 0; k < row.classes; k += ND) {
        Concentrations at = classes_from(row, k);
        D means = at.alpha * (row.level_power * (row.moved - load(row.growth + k)));
        D slope = means - trigamma_excess<fine>(at.alpha) * at.growth + at.alpha * common;
        store_up_to(to + k, row.classes - k, scaled_within(slope, limit, scale));
    }
}

// γ_k x_k + ∂E/∂δ of the class − its share of that of the totals.
template <bool fine, Distance distance>
INLINE void divergence_slopes_by_q(const Pair& row, double limit, double scale, double* to) {
    Concentrations all = totals(row);
    D total = all.alpha * all.power;
    const double common = (bregman_slope<true, distance>(all, total) / total)[0];
    for (int64_t k = 0; k < row.classes; k += ND) {
        Concentrations at = classes_from(row, k);
        D gamma = at.alpha * at.power, x = load(row.v + k) - row.shift;
        D slope = gamma * x + bregman_slope<fine, distance>(at, gamma) - gamma * common;
        store_up_to(to + k, row.classes - k, scaled_within(slope, limit, scale));
    }
}

template <bool fine> INLINE void divergence_slopes_by_q(const Pair& row, double limit, double scale, double* to) {
    switch (distance(row)) {
    case Distance::near: return divergence_slopes_by_q<fine, Distance::near>(row, limit, scale, to);
    case Distance::middle: return divergence_slopes_by_q<fine, Distance::middle>(row, limit, scale, to);
    default: return divergence_slopes_by_q<fine, Distance::far>(row, limit, scale, to);
    }
}

// Everything one thread needs, and its walk over the rows.
class Pairs {
    const Problem& problem;
    const DivergenceOutput& out;
    Source<double> p, q;
    Source<float> narrow_p, narrow_q;
    Sink<double> by_p, by_q;
    Pair row = {};
    bool begun = false;

public:
    static int64_t scratch_size(const Problem& problem, const DivergenceOutput& out) {
        int64_t size = 4 * pitch_of(problem.classes);
        for (const Strided* tensor : {&problem.logits, &problem.other, &out.by_p, &out.by_q})
            size += Source<double>(*tensor, problem).scratch_size();
        for (const Strided* tensor : {&problem.logits, &problem.other})
            size += Source<float>(*tensor, problem).scratch_size();
        return size;
    }

    Pairs(const Problem& problem, const DivergenceOutput& out, double* scratch)
        : problem(problem), out(out), p(problem.logits, problem), q(problem.other, problem),
          narrow_p(problem.logits, problem), narrow_q(problem.other, problem), by_p(out.by_p, problem),
          by_q(out.by_q, problem) {
        row.classes = problem.classes;
        for (double** part : {&row.alpha, &row.power, &row.growth, &row.v}) {
            *part = scratch;
            scratch += pitch_of(problem.classes);
        }
        for (Source<double>* part : {&p, &q, static_cast<Source<double>*>(&by_p), static_cast<Source<double>*>(&by_q)}) {
            part->scratch = scratch;
            scratch += part->scratch_size();
        }
        for (Source<float>* part : {&narrow_p, &narrow_q}) {
            part->scratch = reinterpret_cast<float*>(scratch);
            scratch += part->scratch_size();
        }
    }

    // Rows from `first` to `last`. False if one of them is not for this kernel.
    template <bool fine> bool run(int64_t first, int64_t last) {
        for (int64_t at = first; at < last; at += BLOCK) {
            const int rows = int(last - at < BLOCK ? last - at : BLOCK);
            const bool narrow = !fine && out.value && problem.classes >= APART_CLASSES;
            if (narrow) narrow_p.begin(at, rows), narrow_q.begin(at, rows);
            by_p.begin(at);
            by_q.begin(at);
            begun = false;
            for (int i = 0; i < rows; ++i) {
                if (narrow && in_floats(i, out.value[at + i])) continue;
                if (!open<fine>(at, i, rows)) return false;
                if (out.value) out.value[at + i] = divergence_of<fine>(row);
                else slopes<fine>(at, i);
            }
            if (out.by_p) by_p.end(rows);
            if (out.by_q) by_q.end(rows);
        }
        return true;
    }

private:
    bool in_floats(int i, double& value) {
        const float *from_p = narrow_p.row(i), *from_q = narrow_q.row(i);
        Close close = {reinterpret_cast<float*>(row.alpha), reinterpret_cast<float*>(row.power), 0, 0, 0};
        return close_value(close, from_p, from_q, problem.classes, value) ||
               apart_value(from_p, from_q, problem.classes, value);
    }

    template <bool fine> bool open(int64_t at, int i, int rows) {
        if (!begun) p.begin(at, rows), q.begin(at, rows);
        begun = true;
        row.p = p.row(i), row.q = q.row(i);
        return open_pair<fine>(row);
    }

    template <bool fine> void slopes(int64_t at, int i) {
        const double scale = out.row_scale[at + i];
        if (out.by_p) {
            divergence_slopes_by_p<fine>(row, largest_of(out.by_p.kind), scale, by_p.row(i));
            by_p.end_row(i);
        }
        if (out.by_q) {
            divergence_slopes_by_q<fine>(row, largest_of(out.by_q.kind), scale, by_q.row(i));
            by_q.end_row(i);
        }
    }
};

inline int64_t divergence_scratch_size(const Problem& problem, const DivergenceOutput& out) {
    return Pairs::scratch_size(problem, out);
}

inline bool divergence(const Problem& problem, const DivergenceOutput& out, int64_t first, int64_t last, double* scratch) {
    Pairs pairs(problem, out, scratch);
    const bool fine = problem.logits.kind == Kind::float64 || problem.other.kind == Kind::float64;
    return fine ? pairs.run<true>(first, last) : pairs.run<false>(first, last);
}
