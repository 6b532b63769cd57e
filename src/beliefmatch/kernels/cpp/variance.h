// The variance of every class probability, in double lanes. Included once for every instruction set.

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

inline int64_t variance_scratch_size(const Problem& p, const Strided& to) {
    return Source<double>(p.logits, p).scratch_size() + Source<double>(to, p).scratch_size() + pitch_of(p.classes);
}

inline bool variance(const Problem& p, const Strided& output, int64_t first, int64_t last, double* scratch) {
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
