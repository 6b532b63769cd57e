// The divergence of one Dirichlet from another and its gradients, by the formulas of `dirichlet.py`. With α = e^p,
// γ = e^q and δ = q − p, differences are counted from p's largest class: v = δ − δ_*. Values of long rows of single
// precision are tried in float lanes first, by one formula for rows that are close and one for rows well apart.

// Rows well apart, from one visit: Σ T(α_k, γ_k) − T(α₀, γ₀) with T(α, γ) = lnΓ(γ) − lnΓ(α) − (γ − α)ψ(α). Its terms
// are as large as the concentrations, so a row is accepted only if little of them cancels and no class is most of what
// is rounded.

constexpr float APART_RANGE = 25;        // of |z|: α(1 + α)(1 + γ) stays far inside float32
constexpr int64_t APART_CLASSES = 64;    // from which the roundings of the classes average out
constexpr double APART_KEPT = 0.06;       // the least part of its terms that may be left of a row
constexpr double APART_NOISE = 6;         // of what is rounded, by its root of squares, at most: in values
constexpr int APART_ADDED = 8;           // lanes in a sum of floats before it goes to one of doubles

struct Apart { // sums over the classes: α, γ, T, the size of T's terms, and the square of what is rounded
    D alpha, gamma, value, size, squares;
    F part_alpha, part_gamma, part_value, part_size, part_squares;
    FI outside;

    INLINE Apart() {
        alpha = gamma = value = size = squares = D{};
        part_alpha = part_gamma = part_value = part_size = part_squares = F{};
        outside = FI{};
    }

    INLINE void add(F p, F q, FI mask) {
        F a, g, unused;
        exponential(p, a, unused);
        exponential(q, g, unused);
        outside |= ~((magnitude(p) <= APART_RANGE) & (magnitude(q) <= APART_RANGE));
        F w_alpha, w_gamma, inverse, log_ratio = log_of_ratio(a, g, w_alpha, w_gamma, inverse);
        F large = (g + 0.5f) * log_ratio, growth = (g - a) * (inverse + w_alpha * polynomial(DIGAMMA_F, w_alpha));
        F remainders = w_gamma * polynomial(LGAMMA_F, w_gamma) - w_alpha * polynomial(LGAMMA_F, w_alpha);
        part_value += keep(mask, ((large - (g - a)) + growth) + (remainders + (p - q)));
        F size = magnitude(large) + magnitude(growth), rounded = size + (g + a) + g * inverse;
        part_size += keep(mask, size);
        part_squares += keep(mask, rounded * rounded);
        part_alpha += keep(mask, a);
        part_gamma += keep(mask, g);
    }

    INLINE void flush() {
        alpha += widened_sum(part_alpha);
        gamma += widened_sum(part_gamma);
        value += widened_sum(part_value);
        size += widened_sum(part_size);
        squares += widened_sum(part_squares);
        part_alpha = part_gamma = part_value = part_size = part_squares = F{};
    }

    INLINE bool is_inside() const {
        bool inside = true;
        for (int i = 0; i < NF; ++i) inside = inside && outside[i] == 0;
        return inside;
    }

private:
    // ln((1 + γ)/(1 + α)), 1/(1 + α), 1/(1 + γ) and 1/α, for one division.
    static INLINE F log_of_ratio(F a, F g, F& w_alpha, F& w_gamma, F& inverse) {
        constexpr float c[] = {1.f, 1.f / 3, 1.f / 5, 1.f / 7, 1.f / 9, 1.f / 11, 1.f / 13, 1.f / 15};
        constexpr int32_t half = 0x3f3504f3, fraction = 0x007fffff;
        F after = 1.f + g, before = 1.f + a;
        FI after_bits = (FI)after - half, before_bits = (FI)before - half;
        F after_part = (F)((after_bits & fraction) + half), before_part = (F)((before_bits & fraction) + half);
        F n = __builtin_convertvector((after_bits >> 23) - (before_bits >> 23), F);
        F below = after_part + before_part, one = a * before, other = after * below;
        F both = 1.f / (one * other), first = both * other, second = both * one;
        w_alpha = first * a;
        inverse = first + w_alpha;
        w_gamma = second * below;
        F s = (after_part - before_part) * (second * after);
        return n * 0.693359375f + (2.f * s * polynomial(c, s * s) - n * 2.12194440e-4f);
    }
};

// T(α₀, γ₀) and the size of its terms.
INLINE double apart_total(double alpha, double gamma, double& size) {
    D a = splat(alpha), w_alpha = 1. / (1. + a), w_gamma = splat(1 / (1 + gamma));
    double remainders = (w_gamma * polynomial(LGAMMA_D, w_gamma) - w_alpha * polynomial(LGAMMA_D, w_alpha))[0];
    double large = (gamma + 0.5) * std::log((1 + gamma) / (1 + alpha));
    double growth = (gamma - alpha) * (1 / alpha + (w_alpha * polynomial(DIGAMMA_D, w_alpha))[0]);
    size = std::fabs(large) + std::fabs(growth);
    return large - (gamma - alpha) + growth + remainders - std::log(gamma / alpha);
}

// False if the row is to be computed in double lanes.
INLINE bool apart_value(const float* p, const float* q, int64_t classes, double& value) {
    Apart sums;
    int64_t k = 0;
    while (k + NF <= classes) {
        for (int i = 0; i < APART_ADDED && k + NF <= classes; ++i, k += NF) sums.add(load(p + k), load(q + k), ~FI{});
        const bool is_first = k <= APART_ADDED * NF;
        sums.flush();
        if (is_first && !(sum(sums.value) > 0.5 * APART_KEPT * sum(sums.size))) return false;
    }
    if (k < classes) {
        int64_t left = classes - k;
        sums.add(load_part(p + k, left), load_part(q + k, left), counted(FI{}, 0, left, -1));
        sums.flush();
    }
    if (!sums.is_inside()) return false;
    const double alpha = sum(sums.alpha), gamma = sum(sums.gamma), ratio = gamma / alpha;
    double size, total = apart_total(alpha, gamma, size);
    value = sum(sums.value) - total;
    const double noise = std::sqrt(sum(sums.squares)) * (1 + std::fabs(std::log(ratio)) + std::fabs(ratio - 1));
    return value > APART_KEPT * (sum(sums.size) + size) && APART_NOISE * value > noise;
}

// Rows that are close: every term is of second order in δ, and none but that of the totals is negative.

constexpr float CLOSE_RANGE = 0.2f; // of |δ|
constexpr double CLOSE_KEPT = 0.25; // the least part of its terms that may be left of a row

// E(γ, α): the mean of r(αe^t) under the weight e^(δ−t) − 1, by Gauss's rule of two points, times its integral.
INLINE F close_bregman(F alpha, F delta) {
    constexpr float series[] = {1.f / 2, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720};
    constexpr float first = 0.15505103f, second = 0.64494897f; // (4 ∓ √6)/10, for the weight δ − t
    F square = delta * delta, shift = square * (-1.f / 36), t = delta * first + shift, u = delta * second + shift;
    F before = 1.f + (alpha + alpha * (t + t * t * (0.5f + t * (1.f / 6))));
    F after = 1.f + (alpha + alpha * (u + u * u * (0.5f + u * (1.f / 6))));
    F both = 1.f / (before * after);
    F mean = 0.63608276f * polynomial(EXCESS_F, both * after) + 0.36391724f * polynomial(EXCESS_F, both * before);
    return mean * (square * polynomial(series, delta));
}

// γ₀ (q ln(q/p) − q + p) of the means, x = ln(q/p).
INLINE F close_mean_term(F alpha, F x, float ratio) {
    constexpr float series[] = {1.f / 2, 1.f / 3, 1.f / 8, 1.f / 30, 1.f / 144, 1.f / 840, 1.f / 5760};
    return (alpha * ratio) * (x * x * polynomial(series, x));
}

struct Close {
    float *alpha, *delta; // room for whole lanes
    float level;          // δ of p's largest class
    double total, moved;  // α₀ and e^(δ₀ − level) − 1
};

// False if the row is not close, or its logits out of range.
INLINE bool open_close(Close& row, const float* p, const float* q, int64_t classes) {
    if (!none(magnitude(load_up_to(q, classes) - load_up_to(p, classes)) > CLOSE_RANGE)) return false; // most are not
    const int64_t top = position_of_largest(p, classes);
    row.level = q[top] - p[top];
    D total{}, moved{};
    FI outside{};
    for (int64_t k = 0; k < classes; k += NF) {
        const int64_t left = classes - k;
        F at = load_up_to(p + k, left), delta = load_up_to(q + k, left) - at, alpha, growth, unused;
        outside |= ~((magnitude(at) <= APART_RANGE) & (magnitude(delta) <= CLOSE_RANGE));
        exponential(at, alpha, unused);
        exponential(delta - row.level, unused, growth);
        store(row.alpha + k, alpha);
        store(row.delta + k, delta);
        alpha = keep(existing(FI{}, left), alpha);
        total += widened_sum(alpha);
        moved += widened_sum(alpha * growth);
    }
    row.total = sum(total);
    row.moved = sum(moved) / row.total;
    return none(outside);
}

// False if the row is to be computed in double lanes.
INLINE bool close_value(Close& row, const float* p, const float* q, int64_t classes, double& value) {
    if (!open_close(row, p, q, classes)) return false;
    const double shift = std::log1p(row.moved);
    const float ratio = float(std::exp(double(row.level)) * (1 + row.moved)), down = float(shift);
    D terms{};
    for (int64_t k = 0; k < classes; k += NF) {
        F alpha = load(row.alpha + k), delta = load(row.delta + k);
        F term = close_mean_term(alpha, (delta - row.level) - down, ratio) + close_bregman(alpha, delta);
        terms += widened_sum(keep(existing(FI{}, classes - k), term));
    }
    const double size = sum(terms);
    value = size - close_bregman(splat(float(row.total)), splat(float(row.level + shift)))[0];
    return value >= CLOSE_KEPT * size;
}

// Any pair of rows, in double lanes.

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

// Fills what the value and the gradients of a pair are made of. False if a logit is out of range or not a number.
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
    D grad = 1. + at.alpha * w_alpha * digamma_remainder<full>(w_alpha);
    return (gamma + 0.5) * drop - 0.5 * delta + remainders + at.growth * grad;
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
template <bool fine, Distance distance> INLINE D bregman_grad(const Concentrations& at, D gamma) {
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

INLINE D scaled_within(D grad, double limit, double scale) {
    return scale * smaller(larger(grad, splat(-limit)), splat(limit));
}

// α_k γ₀/α₀ − γ_k − r(α_k)(e^δ − 1) + (α_k/α₀) r(α₀)(e^δ₀ − 1).
template <bool fine> INLINE void divergence_grads_by_p(const Pair& row, double limit, double scale, double* to) {
    const double common = trigamma_excess<true>(splat(row.total))[0] * row.total_growth() / row.total;
    for (int64_t k = 0; k < row.classes; k += ND) {
        Concentrations at = classes_from(row, k);
        D means = at.alpha * (row.level_power * (row.moved - load(row.growth + k)));
        D grad = means - trigamma_excess<fine>(at.alpha) * at.growth + at.alpha * common;
        store_up_to(to + k, row.classes - k, scaled_within(grad, limit, scale));
    }
}

// γ_k x_k + ∂E/∂δ of the class − its share of that of the totals.
template <bool fine, Distance distance>
INLINE void divergence_grads_by_q(const Pair& row, double limit, double scale, double* to) {
    Concentrations all = totals(row);
    D total = all.alpha * all.power;
    const double common = (bregman_grad<true, distance>(all, total) / total)[0];
    for (int64_t k = 0; k < row.classes; k += ND) {
        Concentrations at = classes_from(row, k);
        D gamma = at.alpha * at.power, x = load(row.v + k) - row.shift;
        D grad = gamma * x + bregman_grad<fine, distance>(at, gamma) - gamma * common;
        store_up_to(to + k, row.classes - k, scaled_within(grad, limit, scale));
    }
}

template <bool fine> INLINE void divergence_grads_by_q(const Pair& row, double limit, double scale, double* to) {
    switch (distance(row)) {
    case Distance::near: return divergence_grads_by_q<fine, Distance::near>(row, limit, scale, to);
    case Distance::middle: return divergence_grads_by_q<fine, Distance::middle>(row, limit, scale, to);
    default: return divergence_grads_by_q<fine, Distance::far>(row, limit, scale, to);
    }
}

// Everything one thread needs, and its walk over the rows.
class Pairs {
    const Inputs& inputs;
    const DivergenceOutput& out;
    Source<double> p, q;
    Source<float> narrow_p, narrow_q;
    Sink<double> by_p, by_q;
    Pair row = {};
    bool begun = false;

public:
    static int64_t scratch_size(const Inputs& inputs, const DivergenceOutput& out) {
        int64_t size = 4 * pitch_of(inputs.classes);
        for (const Strided* tensor : {&inputs.logits, &inputs.other, &out.by_p, &out.by_q})
            size += Source<double>(*tensor, inputs).scratch_size();
        for (const Strided* tensor : {&inputs.logits, &inputs.other})
            size += Source<float>(*tensor, inputs).scratch_size();
        return size;
    }

    Pairs(const Inputs& inputs, const DivergenceOutput& out, double* scratch)
        : inputs(inputs), out(out), p(inputs.logits, inputs), q(inputs.other, inputs),
          narrow_p(inputs.logits, inputs), narrow_q(inputs.other, inputs), by_p(out.by_p, inputs),
          by_q(out.by_q, inputs) {
        row.classes = inputs.classes;
        for (double** part : {&row.alpha, &row.power, &row.growth, &row.v}) {
            *part = scratch;
            scratch += pitch_of(inputs.classes);
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
            const bool narrow = !fine && out.value && inputs.classes >= APART_CLASSES;
            if (narrow) narrow_p.begin(at, rows), narrow_q.begin(at, rows);
            by_p.begin(at);
            by_q.begin(at);
            begun = false;
            for (int i = 0; i < rows; ++i) {
                if (narrow && in_floats(i, out.value[at + i])) continue;
                if (!open<fine>(at, i, rows)) return false;
                if (out.value) out.value[at + i] = divergence_of<fine>(row);
                else grads<fine>(at, i);
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
        return close_value(close, from_p, from_q, inputs.classes, value) ||
               apart_value(from_p, from_q, inputs.classes, value);
    }

    template <bool fine> bool open(int64_t at, int i, int rows) {
        if (!begun) p.begin(at, rows), q.begin(at, rows);
        begun = true;
        row.p = p.row(i), row.q = q.row(i);
        return open_pair<fine>(row);
    }

    template <bool fine> void grads(int64_t at, int i) {
        const double scale = out.row_scale[at + i];
        if (out.by_p) {
            divergence_grads_by_p<fine>(row, largest_of(out.by_p.kind), scale, by_p.row(i));
            by_p.end_row(i);
        }
        if (out.by_q) {
            divergence_grads_by_q<fine>(row, largest_of(out.by_q.kind), scale, by_q.row(i));
            by_q.end_row(i);
        }
    }
};

inline int64_t divergence_scratch_size(const Inputs& inputs, const DivergenceOutput& out) {
    return Pairs::scratch_size(inputs, out);
}

inline bool divergence(const Inputs& inputs, const DivergenceOutput& out, int64_t first, int64_t last, double* scratch) {
    Pairs pairs(inputs, out, scratch);
    const bool fine = inputs.logits.kind == Kind::float64 || inputs.other.kind == Kind::float64;
    return fine ? pairs.run<true>(first, last) : pairs.run<false>(first, last);
}
