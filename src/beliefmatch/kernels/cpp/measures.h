// Measures of doubt of every row, in double lanes, the largest class kept apart: sums over the others, then a few
// functions of the totals. Included once for every instruction set.

struct MeasureBlock {
    double z[BLOCK], rest[BLOCK], weighted[BLOCK], value[BLOCK]; // Σα and Σα·f(α) over the others
};

INLINE D digamma_next(D alpha, D w) { return logarithm(1. + alpha) - w * polynomial(DIGAMMA_D, w); }

// g(α) = ψ(1 + α) − ln α, with full relative precision: ln(1 + 1/α) − w G.
INLINE D digamma_gap(D alpha, D w, D inverse) {
    D next = 1. + inverse, rounding = inverse - (next - 1.);
    return logarithm(next) + rounding * (alpha * w) - w * polynomial(DIGAMMA_D, w);
}

template <Measure measure> INLINE D weighted_term(D alpha, D z, double top) {
    if (measure == Measure::entropy) return alpha * (z - top);
    if (measure == Measure::expected_entropy) return alpha * digamma_next(alpha, 1. / (1. + alpha));
    D both = 1. / (alpha * (1. + alpha)), w = both * alpha;
    return alpha * digamma_gap(alpha, w, both + w);
}

// False if a logit is out of range or not a number.
template <Measure measure> INLINE bool measure_sums(const double* z, int64_t classes, MeasureBlock& block, int i) {
    if (!all_within(z, classes, -EXACT_RANGE, EXACT_RANGE)) return false;
    int64_t top = position_of_largest(z, classes), beside = top / ND * ND, k = 0;
    D rest{}, weighted{};
    for (; k + ND <= classes; k += ND) {
        D at = load(z + k), alpha = exponential(at);
        DI mask = k == beside ? counted(DI{}, k, classes, top) : ~DI{};
        rest += keep(mask, alpha);
        weighted += keep(mask, weighted_term<measure>(alpha, at, z[top]));
    }
    if (k < classes) {
        D at = load_part(z + k, classes - k), alpha = exponential(at);
        DI mask = counted(DI{}, k, classes, top);
        rest += keep(mask, alpha);
        weighted += keep(mask, weighted_term<measure>(alpha, at, z[top]));
    }
    block.z[i] = z[top];
    block.rest[i] = sum(rest);
    block.weighted[i] = sum(weighted);
    return true;
}

template <Measure measure> INLINE void finish_measures(MeasureBlock& block) {
    for (int i = 0; i < BLOCK; i += ND) {
        D z = load(block.z + i), rest = load(block.rest + i), weighted = load(block.weighted + i);
        D alpha = exponential(z), inverse = 1. / alpha, ratio = rest * inverse, total = alpha + rest;
        D share = 1. / (1. + ratio), others = ratio * share, gap = logarithm_of_next(ratio);
        D mean = weighted / total, value = gap - mean;
        DI alike = gap < 1e-5; // total and class agree to most of their digits: take slopes
        if (measure == Measure::expected_entropy) {
            Gammas own = gammas(alpha, z), all = gammas(total, z + gap);
            D drop = select(alike, 0.5 * gap * (own.digamma_slope + all.digamma_slope),
                            all.digamma_next - own.digamma_next);
            value = larger(share * drop + (others * all.digamma_next - mean), D{});
        } else if (measure == Measure::mutual_information) {
            D w = 1. / (1. + alpha), w_total = 1. / (1. + total);
            D own = digamma_gap(alpha, w, inverse), all = digamma_gap(total, w_total, 1. / total);
            D slope = -w * (1. - alpha * w * polynomial(TRIGAMMA_D, w));
            D drop = select(alike, gap * slope, all - own);
            value = larger(mean - drop - others * own, D{});
        }
        store(block.value + i, value);
    }
}

template <Measure measure> double measure_alone(const double* z, int64_t classes) {
    MeasureBlock block = {};
    measure_sums<measure>(z, classes, block, 0);
    finish_measures<measure>(block);
    return block.value[0];
}

template <Measure measure> bool measure_rows(const Problem& p, int64_t first, int64_t last, double* scratch, double* to) {
    Source<double> logits(p.logits, p);
    logits.scratch = scratch;
    MeasureBlock block = {};
    for (int64_t row = first; row < last; row += BLOCK) {
        int rows = int(last - row < BLOCK ? last - row : BLOCK);
        logits.begin(row, rows);
        for (int i = 0; i < rows; ++i)
            if (!measure_sums<measure>(logits.row(i), p.classes, block, i)) return false;
        finish_measures<measure>(block);
        for (int i = 0; i < rows; ++i) to[row + i] = block.value[i];
        if (measure != Measure::mutual_information) continue;
        for (int i = 0; i < rows; ++i) { // below a total of one the entropy is the larger by far
            if (std::exp(block.z[i]) + block.rest[i] > 1) continue;
            const double* z = logits.row(i);
            double spread = measure_alone<Measure::entropy>(z, p.classes) -
                            measure_alone<Measure::expected_entropy>(z, p.classes);
            to[row + i] = spread > 0 ? spread : 0;
        }
    }
    return true;
}

inline int64_t measure_scratch_size(const Problem& p) { return Source<double>(p.logits, p).scratch_size() + 8; }

inline bool measure(Measure which, const Problem& p, int64_t first, int64_t last, double* scratch, double* to) {
    switch (which) {
    case Measure::entropy: return measure_rows<Measure::entropy>(p, first, last, scratch, to);
    case Measure::expected_entropy: return measure_rows<Measure::expected_entropy>(p, first, last, scratch, to);
    case Measure::mutual_information: return measure_rows<Measure::mutual_information>(p, first, last, scratch, to);
    }
    return false;
}
