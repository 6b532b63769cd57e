// Any row, in double lanes: counts c and priors β of every kind, and logits that float lanes cannot hold. The
// class kept apart is the largest. Included once for every instruction set.

constexpr double EXACT_RANGE = 300; // of |z|
constexpr double EXACT_SMALLEST = 1e-30, EXACT_LARGEST = 1e30; // of counts and priors

struct ExactRow {
    const double *z, *counts, *prior;
    double kl_weight;
};

// NaN is not within.
INLINE bool all_within(const double* values, int64_t count, double low, double high) {
    DI outside{};
    int64_t k = 0;
    for (; k + ND <= count; k += ND) {
        D v = load(values + k);
        outside |= ~((v >= low) & (v <= high));
    }
    bool all = true;
    for (int i = 0; i < ND; ++i) all = all && outside[i] == 0;
    for (; k < count; ++k) all = all && values[k] >= low && values[k] <= high;
    return all;
}

INLINE int64_t position_of_largest(const double* values, int64_t count) {
    int64_t k = 0;
    double top = values[0];
    if (count >= ND) {
        D tops = load(values);
        for (k = ND; k + ND <= count; k += ND) tops = larger(load(values + k), tops);
        top = largest(tops);
    }
    for (; k < count; ++k) top = values[k] > top ? values[k] : top;
    int64_t position = 0;
    while (values[position] != top) ++position;
    return position;
}

struct ExactSums {
    D rest, mass, excess, body;

    INLINE ExactSums() { rest = mass = excess = body = D{}; }

    template <bool fine> INLINE D add(D z, D counts, D prior, double kl_weight, DI mask) {
        D alpha = exponential(z), m = counts + kl_weight * prior;
        rest += keep(mask, alpha);
        mass += keep(mask, m);
        excess += keep(mask, m - kl_weight * alpha);
        D next = 1. + alpha, both, log_next = logarithm_and_inverse(next, alpha * next, both);
        D w = both * alpha, g = digamma_remainder<fine>(w);
        D likelihood = m * (w * g + (both + w) - log_next);
        D bounded = HALF_LN_2PI + w * lgamma_remainder<fine>(w) + (1. - w) * g;
        body += keep(mask, likelihood + kl_weight * (z - 0.5 * log_next - bounded));
        return alpha;
    }
};

// Leaves α in `alpha` and the rest in the block. False if a logit is out of range or not a number.
template <bool fine>
INLINE bool exact_sums(const ExactRow& row, int64_t classes, double* alpha, Block& block, int i) {
    if (!all_within(row.z, classes, -EXACT_RANGE, EXACT_RANGE)) return false;
    int64_t top = position_of_largest(row.z, classes), beside = top / ND * ND, k = 0;
    ExactSums sums;
    for (; k + ND <= classes; k += ND) {
        DI mask = k == beside ? counted(DI{}, k, classes, top) : ~DI{};
        D at = sums.add<fine>(load(row.z + k), load(row.counts + k), load(row.prior + k), row.kl_weight, mask);
        store(alpha + k, at);
    }
    if (k < classes) {
        int64_t left = classes - k;
        D z = load_part(row.z + k, left), counts = load_part(row.counts + k, left);
        D prior = load_part(row.prior + k, left);
        D at = sums.add<fine>(z, counts, prior, row.kl_weight, counted(DI{}, k, classes, top));
        store(alpha + k, at);
    }
    block.z[i] = row.z[top];
    block.m[i] = row.counts[top] + row.kl_weight * row.prior[top];
    block.mass[i] = sum(sums.mass);
    block.rest[i] = sum(sums.rest);
    block.excess[i] = sum(sums.excess);
    block.body[i] = sum(sums.body);
    block.kl_weight[i] = row.kl_weight;
    block.log_weight[i] = 0;
    block.mantissa[i] = 1;
    return true;
}

template <bool fine, bool near> INLINE D exact_slope(D alpha, D counts, D prior, double kl_weight, double lead, double pull) {
    D both = 1. / (alpha * (1. + alpha)), w = both * alpha, x = alpha * w;
    D u = (w + x * x * trigamma_remainder<fine>(w)) * (both + w);
    D slope = near ? prior * lead + (alpha - prior) * (pull + kl_weight * u)
                   : (alpha * pull + (alpha - prior) * (kl_weight * u)) - kl_weight * prior;
    return slope - counts * (1. + u);
}

template <bool fine, bool near>
INLINE void exact_slopes(const ExactRow& row, int64_t classes, const double* alpha, const Block& block, int i,
                         double limit, double scale, double* to) {
    double lead = block.lead[i], pull = block.pull[i], weight = row.kl_weight;
    int64_t k = 0;
    for (; k + ND <= classes; k += ND) {
        D counts = load(row.counts + k), prior = load(row.prior + k);
        D slope = exact_slope<fine, near>(load(alpha + k), counts, prior, weight, lead, pull);
        store(to + k, scale * smaller(larger(slope, splat(-limit)), splat(limit)));
    }
    if (k < classes) {
        int64_t left = classes - k;
        D counts = load_part(row.counts + k, left), prior = load_part(row.prior + k, left);
        D slope = exact_slope<fine, near>(load(alpha + k), counts, prior, weight, lead, pull);
        slope = scale * smaller(larger(slope, splat(-limit)), splat(limit));
        store_part(to + k, left, slope);
    }
    double own = block.apart[i];
    to[position_of_largest(row.z, classes)] = scale * limited(own, limit);
}

// `alpha` as exact_sums left it.
template <bool fine>
INLINE void exact_gradient(const ExactRow& row, int64_t classes, const double* alpha, const Block& block, int i,
                           double scale, double limit, double* to) {
    if (std::fabs(block.lead[i]) < row.kl_weight)
        exact_slopes<fine, true>(row, classes, alpha, block, i, limit, scale, to);
    else
        exact_slopes<fine, false>(row, classes, alpha, block, i, limit, scale, to);
}

INLINE D log_gamma(D beta) {
    D next = 1. + beta, w = 1. / next;
    D stirling = (beta + 0.5) * logarithm(next) - next + (HALF_LN_2PI + w * polynomial(LGAMMA_D, w));
    return stirling - logarithm(beta);
}

// Σ lnΓ(β) − lnΓ(β₀).
INLINE double log_normaliser(const double* prior, int64_t classes) {
    D total{}, gammas{};
    int64_t k = 0;
    for (; k + ND <= classes; k += ND) {
        D beta = load(prior + k);
        total += beta;
        gammas += log_gamma(beta);
    }
    if (k < classes) {
        DI mask = counted(DI{}, k, classes, -1);
        D beta = load_part(prior + k, classes - k);
        total += beta;
        gammas += keep(mask, log_gamma(beta + keep(~mask, splat(1.))));
    }
    return sum(gammas) - log_gamma(splat(sum(total)))[0];
}
