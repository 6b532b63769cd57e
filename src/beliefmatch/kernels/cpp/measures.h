// Measures of a Dirichlet, in double lanes, the largest class kept apart: sums over the others, then a few functions of
// the totals.

struct MeasureBlock {
    double z[BLOCK], rest[BLOCK], weighted[BLOCK], value[BLOCK]; // Σα and Σα·f(α) over the others
};

// g(α) = ψ(1 + α) − ln α, 1/(1 + α) in w. `sharp` keeps its relative precision where α is large.
template <bool fine, bool sharp> INLINE D digamma_gap(D alpha, D z, D& w) {
    constexpr double series[] = {1., 1. / 2, 1. / 3, 1. / 4, 1. / 5, 1. / 6, 1. / 7, 1. / 8, 1. / 9};
    D log_ratio = logarithm_and_inverse<fine>(1. + alpha, 1. + alpha, w) - z; // ln(1 + 1/α) = −ln(1 − w)
    if (sharp) log_ratio = select(w < 1. / 64, w * polynomial(series, w), log_ratio);
    return log_ratio - w * digamma_remainder<fine>(w);
}

template <Measure measure, bool fine, bool sharp> INLINE D weighted_term(D alpha, D z, double top) {
    D w;
    if (measure == Measure::entropy) return alpha * (z - top);
    if (measure == Measure::mutual_information) return alpha * digamma_gap<fine, sharp>(alpha, z, w);
    D log_next = logarithm_and_inverse<fine>(1. + alpha, 1. + alpha, w);
    return alpha * (log_next - w * digamma_remainder<fine>(w));
}

template <Measure measure, bool fine, bool sharp>
INLINE void measure_others(const double* z, int64_t classes, int64_t top, MeasureBlock& block, int i) {
    int64_t group = top / ND * ND, k = 0;
    D rest{}, weighted{};
    for (; k + ND <= classes; k += ND) {
        D at = load(z + k), alpha = exponential<fine>(at);
        DI mask = k == group ? counted(DI{}, k, classes, top) : ~DI{};
        rest += keep(mask, alpha);
        weighted += keep(mask, weighted_term<measure, fine, sharp>(alpha, at, z[top]));
    }
    if (k < classes) {
        D at = load_part(z + k, classes - k), alpha = exponential<fine>(at);
        DI mask = counted(DI{}, k, classes, top);
        rest += keep(mask, alpha);
        weighted += keep(mask, weighted_term<measure, fine, sharp>(alpha, at, z[top]));
    }
    block.z[i] = z[top];
    block.rest[i] = sum(rest);
    block.weighted[i] = sum(weighted);
}

// False if a logit is out of range or not a number.
template <Measure measure, bool fine> INLINE bool measure_sums(const double* z, int64_t classes, MeasureBlock& block, int i) {
    if (!all_within(z, classes, -EXACT_RANGE, EXACT_RANGE)) return false;
    const int64_t top = position_of_largest(z, classes);
    // Short polynomials serve unless small α make the terms of the expected entropy cancel.
    const bool small = measure == Measure::expected_entropy && z[top] < -2, sharp = z[top] > 9;
    if (sharp) measure_others<measure, fine, true>(z, classes, top, block, i);
    else if (small) measure_others<measure, true, false>(z, classes, top, block, i);
    else measure_others<measure, fine, false>(z, classes, top, block, i);
    return true;
}

template <Measure measure> INLINE void finish_measures(MeasureBlock& block) {
    for (int i = 0; i < BLOCK; i += ND) {
        D z = load(block.z + i), rest = load(block.rest + i), weighted = load(block.weighted + i);
        D alpha = exponential(z), inverse = 1. / alpha, ratio = rest * inverse, total = alpha + rest;
        D share = 1. / (1. + ratio), others = ratio * share, gap = logarithm_of_next(ratio);
        D mean = weighted / total, value = gap - mean;
        DI alike = gap < 1e-5; // total and class agree to most of their digits: take derivatives
        if (measure == Measure::expected_entropy) {
            Gammas own = gammas<true>(alpha, z), all = gammas<true>(total, z + gap);
            D drop = select(alike, 0.5 * gap * (own.digamma_grad + all.digamma_grad),
                            all.digamma_next - own.digamma_next);
            value = larger(share * drop + (others * all.digamma_next - mean), D{});
        } else if (measure == Measure::mutual_information) {
            D w, w_total, own = digamma_gap<true, true>(alpha, z, w), all = digamma_gap<true, true>(total, z + gap, w_total);
            D grad = -w * (1. - alpha * w * polynomial(TRIGAMMA_D, w));
            D drop = select(alike, gap * grad, all - own);
            value = larger(mean - drop - others * own, D{});
        }
        store(block.value + i, value);
    }
}

template <Measure measure, bool fine> double measure_alone(const double* z, int64_t classes) {
    MeasureBlock block = {};
    measure_sums<measure, fine>(z, classes, block, 0);
    finish_measures<measure>(block);
    return block.value[0];
}

template <Measure measure, bool fine>
bool measure_rows(const Inputs& p, int64_t first, int64_t last, double* scratch, double* to) {
    Source<double> logits(p.logits, p);
    logits.scratch = scratch;
    MeasureBlock block = {};
    for (int64_t row = first; row < last; row += BLOCK) {
        int rows = int(last - row < BLOCK ? last - row : BLOCK);
        logits.begin(row, rows);
        for (int i = 0; i < rows; ++i)
            if (!measure_sums<measure, fine>(logits.row(i), p.classes, block, i)) return false;
        finish_measures<measure>(block);
        for (int i = 0; i < rows; ++i) to[row + i] = block.value[i];
        if (measure != Measure::mutual_information) continue;
        for (int i = 0; i < rows; ++i) { // below a total of one the entropy is the larger by far
            if (std::exp(block.z[i]) + block.rest[i] > 1) continue;
            const double* z = logits.row(i);
            double spread = measure_alone<Measure::entropy, fine>(z, p.classes) -
                            measure_alone<Measure::expected_entropy, true>(z, p.classes);
            to[row + i] = spread > 0 ? spread : 0;
        }
    }
    return true;
}

// (2w − 1) G − w M − ½ ln 2π: what is left of the density's entropy of a class beyond z, 1/α and ln(1 + α).
template <bool fine> INLINE D density_term(D w) {
    return (2. * w - 1.) * digamma_remainder<fine>(w) - w * lgamma_remainder<fine>(w) - HALF_LN_2PI;
}

struct DensitySums {
    D rest, body, mantissa;
    DI exponent;

    INLINE DensitySums() {
        rest = body = D{};
        mantissa = splat(1.);
        exponent = DI{};
    }
    template <bool fine> INLINE void add(D z, DI mask) {
        D alpha = exponential<fine>(z), next = 1. + alpha, both = 1. / (alpha * next), w = both * alpha;
        rest += keep(mask, alpha);
        body += keep(mask, z + (both + w) + density_term<fine>(w));
        mantissa *= keep(mask, next) + keep(~mask, splat(1.));
        exponent += ((DI)mantissa >> 52) - 1023;
        mantissa = (D)(((DI)mantissa & 0x000fffffffffffff) | 0x3ff0000000000000);
    }
    INLINE double log_of_next() {
        double powers = 0;
        for (int i = 0; i < ND; ++i) powers += double(exponent[i]);
        return powers * LN2;
    }
};

// The divergence from the uniform Dirichlet without its constant, minus which is the entropy of the density.
template <bool fine> bool density_rows(const Inputs& p, int64_t first, int64_t last, double* scratch, double* to) {
    Source<double> logits(p.logits, p);
    logits.scratch = scratch;
    Block block;
    for (int64_t row = first; row < last; row += BLOCK) {
        int rows = int(last - row < BLOCK ? last - row : BLOCK);
        logits.begin(row, rows);
        for (int i = 0; i < BLOCK; ++i) {
            block.clear(i);
            if (i >= rows) continue;
            const double* z = logits.row(i);
            if (!all_within(z, p.classes, -EXACT_RANGE, EXACT_RANGE)) return false;
            const int64_t top = position_of_largest(z, p.classes), group = top / ND * ND;
            DensitySums sums;
            for (int64_t k = 0; k < p.classes; k += ND) {
                bool whole = k + ND <= p.classes;
                D at = whole ? load(z + k) : load_part(z + k, p.classes - k);
                sums.add<fine>(at, whole && k != group ? ~DI{} : counted(DI{}, k, p.classes, top));
            }
            block.z[i] = z[top];
            block.mass[i] = double(p.classes - 1);
            block.rest[i] = sum(sums.rest);
            block.kl_weight[i] = 1;
            block.log_weight[i] = -1.5;
            block.mantissa[i] = product(sums.mantissa);
            block.body[i] = sum(sums.body) - 1.5 * sums.log_of_next();
        }
        finish(block, rows, false, true);
        for (int i = 0; i < rows; ++i) to[row + i] = -block.loss[i];
    }
    return true;
}

inline int64_t measure_scratch_size(const Inputs& p) { return Source<double>(p.logits, p).scratch_size() + 8; }

template <bool fine>
bool measure_with(Measure which, const Inputs& p, int64_t first, int64_t last, double* scratch, double* to) {
    constexpr Measure SPREAD = Measure::mutual_information;
    switch (which) {
    case Measure::entropy: return measure_rows<Measure::entropy, fine>(p, first, last, scratch, to);
    case Measure::expected_entropy: return measure_rows<Measure::expected_entropy, fine>(p, first, last, scratch, to);
    case Measure::mutual_information: return measure_rows<SPREAD, fine>(p, first, last, scratch, to);
    case Measure::differential_entropy: return density_rows<fine>(p, first, last, scratch, to);
    }
    return false;
}

inline bool measure(Measure which, const Inputs& p, int64_t first, int64_t last, double* scratch, double* to) {
    return p.logits.kind == Kind::float64 ? measure_with<true>(which, p, first, last, scratch, to)
                                          : measure_with<false>(which, p, first, last, scratch, to);
}

// The variance of every class probability.

// s(1 − s)/(1 + α₀) with s = α/α₀; α₀ − α of the largest class is a sum of its own. False if a logit is out of
// range or not a number.
template <bool fine> INLINE bool variance_of(const double* z, int64_t classes, double* alpha, double* to) {
    if (!all_within(z, classes, -EXACT_RANGE, EXACT_RANGE)) return false;
    const int64_t top = position_of_largest(z, classes);
    D unused, others{};
    for (int64_t k = 0; k < classes; k += ND) {
        D at;
        exponential<fine>(load_up_to(z + k, classes - k), at, unused);
        store(alpha + k, at);
        DI mask = k == top / ND * ND || k + ND > classes ? counted(DI{}, k, classes, top) : ~DI{};
        others += keep(mask, at);
    }
    const double rest = sum(others), total = alpha[top] + rest, inverse = 1 / total, shrink = 1 / (1 + total);
    const double own = alpha[top] * inverse;
    for (int64_t k = 0; k < classes; k += ND) {
        D share = load(alpha + k) * inverse;
        store_up_to(to + k, classes - k, (share - share * share) * shrink);
    }
    to[top] = own * (rest * inverse) * shrink;
    return true;
}

inline int64_t variance_scratch_size(const Inputs& p, const Strided& to) {
    return Source<double>(p.logits, p).scratch_size() + Source<double>(to, p).scratch_size() + pitch_of(p.classes);
}

inline bool variance(const Inputs& p, const Strided& output, int64_t first, int64_t last, double* scratch) {
    Source<double> logits(p.logits, p);
    Sink<double> to(output, p);
    double* alpha = scratch;
    logits.scratch = alpha + pitch_of(p.classes);
    to.scratch = logits.scratch + logits.scratch_size();
    for (int64_t row = first; row < last; row += BLOCK) {
        const int rows = int(last - row < BLOCK ? last - row : BLOCK);
        logits.begin(row, rows);
        to.begin(row);
        for (int i = 0; i < rows; ++i) {
            const double* z = logits.row(i);
            double* there = to.row(i);
            bool done = p.logits.kind == Kind::float64 ? variance_of<true>(z, p.classes, alpha, there)
                                                       : variance_of<false>(z, p.classes, alpha, there);
            if (!done) return false;
            to.end_row(i);
        }
        to.end(rows);
    }
    return true;
}
