// The loss in double lanes: what is done once a row for every kind of row, and the sums and gradients of rows that
// float lanes do not hold, with counts c and priors β of every kind. Notation of docs/mathematics.md.
//
// One class of each row, its label or its largest, is kept apart, so that what the others weigh against it is a sum
// of its own and never a difference.

struct alignas(64) Block {
    double z[BLOCK];      // logit of the class kept apart
    double m[BLOCK];      // its evidence c + λβ
    double mass[BLOCK];   // evidence of the others
    double rest[BLOCK];   // Σα of the others
    double excess[BLOCK]; // Σ(m − λα) of the others
    double kl_weight[BLOCK];
    double body[BLOCK]; // the others' part of the loss: body + log_weight · ln(mantissa)
    double log_weight[BLOCK];
    double mantissa[BLOCK];
    double log_normaliser[BLOCK];

    double loss[BLOCK];
    double pull[BLOCK];  // (M t₀ − λ r₀)/α₀
    double lead[BLOCK];  // t₀ Σd/α₀ = pull − λ, from terms that vanish at the optimum
    double apart[BLOCK]; // ∂ℓ/∂z of the class kept apart

    // A row that asks for nothing, where none is to be computed.
    void clear(int i) {
        z[i] = excess[i] = kl_weight[i] = body[i] = log_weight[i] = log_normaliser[i] = 0;
        m[i] = mass[i] = rest[i] = mantissa[i] = 1;
    }
};

struct Gammas { // of one concentration
    D digamma_next, digamma_grad, entropy, r, w, x, big_r;
};

INLINE D excess_grad(const Gammas& at) { // dr/dz
    return at.w * at.x * (at.x * (2. * at.big_r - at.x * derivative_of(TRIGAMMA_D, at.w)) - 1.);
}

template <bool fine> INLINE Gammas gammas(D alpha, D z) {
    D w = 1. / (1. + alpha), x = alpha * w, log_next = logarithm(1. + alpha);
    D g = digamma_remainder<fine>(w), big_r = trigamma_remainder<fine>(w);
    Gammas at;
    at.digamma_next = log_next - w * g;
    at.digamma_grad = x * (1. + w * big_r);
    at.entropy = 0.5 * log_next - z + (HALF_LN_2PI + w * lgamma_remainder<fine>(w) + x * g);
    at.r = w + x * x * big_r;
    at.w = w, at.x = x;
    at.big_r = big_r;
    return at;
}

// Rows from `i` on, as many as there are lanes.
template <bool fine> INLINE void finish_lanes(Block& block, int i, bool with_grads) {
    D z = load(block.z + i), m = load(block.m + i), mass = load(block.mass + i), rest = load(block.rest + i);
    D kl_weight = load(block.kl_weight + i);
    D alpha = exponential(z), inverse = 1. / alpha, ratio = rest * inverse, total = alpha + rest;
    D share = 1. / (1. + ratio), others = ratio * share, gap = logarithm_of_next(ratio);
    Gammas own = gammas<fine>(alpha, z), all = gammas<fine>(total, z + gap);
    // from derivatives where total and class agree to most of their digits
    DI alike = gap < 1e-5;
    D digamma_drop = select(alike, 0.5 * gap * (own.digamma_grad + all.digamma_grad),
                            all.digamma_next - own.digamma_next);
    D entropy_drop = select(alike, -0.5 * gap * (own.r + all.r), all.entropy - own.entropy);
    D loss = load(block.body + i) + load(block.log_weight + i) * logarithm(load(block.mantissa + i));
    loss += mass * all.digamma_next + m * digamma_drop;
    loss += (m * others - mass * share) * inverse;
    loss += kl_weight * (entropy_drop + load(block.log_normaliser + i));
    store(block.loss + i, larger(loss, D{}));
    if (!with_grads) return;

    D excess = load(block.excess + i), own_excess = m - kl_weight * alpha, r_drop = all.r - own.r;
    if (any(alike)) r_drop = select(alike, 0.5 * gap * (excess_grad(own) + excess_grad(all)), r_drop);
    D t_total = 1. + all.r / total;
    store(block.pull + i, ((m + mass) * t_total - kl_weight * all.r) / total);
    store(block.lead + i, t_total * (own_excess + excess) / total);
    // Two forms of one gradient; the one with the smaller terms has the smaller error.
    D poles = all.r * (mass * share * share - m * others * (1. + share)) + m * r_drop;
    D far = share * mass - m * others + kl_weight * (others * all.r - r_drop) + poles * inverse;
    D far_size = (share * mass + m * others) * (1. + inverse);
    D t_drop = (r_drop - others * all.r) * inverse - others * t_total;
    D near = share * t_total * excess + own_excess * t_drop;
    D near_size = magnitude(share * t_total * excess) + magnitude(own_excess * t_drop);
    store(block.apart + i, select(near_size < far_size, near, far));
}

// `fine` is for logits in double: those of single precision do not show the last digits of the remainders.
inline void finish(Block& block, int rows, bool with_grads, bool fine) {
    for (int i = 0; i < rows; i += ND) fine ? finish_lanes<true>(block, i, with_grads) : finish_lanes<false>(block, i, with_grads);
}

INLINE double limited(double grad, double limit) { return grad > limit ? limit : grad < -limit ? -limit : grad; }

constexpr double EXACT_RANGE = 300; // of |z|
constexpr double EXACT_SMALLEST = 1e-30, EXACT_LARGEST = 1e30; // of counts and priors

struct ExactRow {
    const double *z, *counts, *prior;
    double kl_weight;
};

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
    int64_t top = position_of_largest(row.z, classes), group = top / ND * ND, k = 0;
    ExactSums sums;
    for (; k + ND <= classes; k += ND) {
        DI mask = k == group ? counted(DI{}, k, classes, top) : ~DI{};
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

template <bool fine, bool near> INLINE D exact_grad(D alpha, D counts, D prior, double kl_weight, double lead, double pull) {
    D both = 1. / (alpha * (1. + alpha)), w = both * alpha, x = alpha * w;
    D u = (w + x * x * trigamma_remainder<fine>(w)) * (both + w);
    D grad = near ? prior * lead + (alpha - prior) * (pull + kl_weight * u)
                   : (alpha * pull + (alpha - prior) * (kl_weight * u)) - kl_weight * prior;
    return grad - counts * (1. + u);
}

template <bool fine, bool near>
INLINE void exact_grads(const ExactRow& row, int64_t classes, const double* alpha, const Block& block, int i,
                         double limit, double scale, double* to) {
    double lead = block.lead[i], pull = block.pull[i], weight = row.kl_weight;
    int64_t k = 0;
    for (; k + ND <= classes; k += ND) {
        D counts = load(row.counts + k), prior = load(row.prior + k);
        D grad = exact_grad<fine, near>(load(alpha + k), counts, prior, weight, lead, pull);
        store(to + k, scale * smaller(larger(grad, splat(-limit)), splat(limit)));
    }
    if (k < classes) {
        int64_t left = classes - k;
        D counts = load_part(row.counts + k, left), prior = load_part(row.prior + k, left);
        D grad = exact_grad<fine, near>(load(alpha + k), counts, prior, weight, lead, pull);
        grad = scale * smaller(larger(grad, splat(-limit)), splat(limit));
        store_part(to + k, left, grad);
    }
    double own = block.apart[i];
    to[position_of_largest(row.z, classes)] = scale * limited(own, limit);
}

// `alpha` as exact_sums left it.
template <bool fine>
INLINE void exact_gradient(const ExactRow& row, int64_t classes, const double* alpha, const Block& block, int i,
                           double scale, double limit, double* to) {
    if (std::fabs(block.lead[i]) < row.kl_weight)
        exact_grads<fine, true>(row, classes, alpha, block, i, limit, scale, to);
    else
        exact_grads<fine, false>(row, classes, alpha, block, i, limit, scale, to);
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

// What all rows need of a prior that they share.
inline void tabulate_prior(const Inputs& p, ClassPrior& table) {
    const int64_t size = pitch_of(p.classes);
    table.prior.assign(size_t(size), 1.);
    table.beta.resize(size_t(size)), table.log_beta.resize(size_t(size)), table.log_beta_rest.resize(size_t(size));
    double* prior = table.prior.data();
    read(p.prior, 0, 1, p.inner, p.classes, prior, 0);
    table.is_valid = all_within(prior, p.classes, EXACT_SMALLEST, EXACT_LARGEST);
    table.is_ordinary = all_within(prior, p.classes, ORDINARY_SMALLEST, ORDINARY_LARGEST);
    if (!table.is_valid) return;
    D total{};
    for (int64_t k = 0; k < size; k += ND) {
        double log_beta[ND];
        D beta = load(prior + k);
        store(log_beta, logarithm(beta));
        total += keep(counted(DI{}, k, p.classes, -1), beta);
        for (int i = 0; i < ND; ++i) {
            table.beta[size_t(k + i)] = float(prior[k + i]);
            table.log_beta[size_t(k + i)] = float(log_beta[i]);
            table.log_beta_rest[size_t(k + i)] = float(log_beta[i] - float(log_beta[i]));
        }
    }
    table.total = sum(total);
    table.log_normaliser = log_normaliser(prior, p.classes);
}

// Everything one thread needs for rows in double lanes.
class ExactRows {
    const Inputs& p;
    Source<double> logits, counts, prior;
    double *own_logits, *own_counts, *own_prior;
    bool is_filled = false;
    int64_t opened = -1;
    ExactRow current = {};

public:
    static int64_t scratch_size(const Inputs& p) {
        int64_t size = 3 * pitch_of(p.classes) + Source<double>(p.logits, p).scratch_size();
        if (p.counts) size += Source<double>(p.counts, p).scratch_size();
        if (p.prior) size += Source<double>(p.prior, p).scratch_size();
        return size;
    }

    ExactRows(const Inputs& inputs, double* scratch)
        : p(inputs), logits(p.logits, p), counts(p.counts, p), prior(p.prior, p) {
        const int64_t pitch = pitch_of(p.classes);
        own_logits = scratch;
        own_counts = scratch + pitch;
        own_prior = scratch + 2 * pitch;
        logits.scratch = scratch + 3 * pitch;
        counts.scratch = logits.scratch + logits.scratch_size();
        prior.scratch = counts.scratch + (p.counts ? counts.scratch_size() : 0);
    }

    void begin(int64_t row, int rows) {
        logits.begin(row, rows);
        if (p.counts) counts.begin(row, rows);
        if (differs_by_row()) prior.begin(row, rows);
    }

    // The numbers of a row, the i-th of those begun, until the next is opened; null if some are not what they must be.
    const ExactRow* open(int64_t index, int i, bool begun) {
        if (index == opened) return &current;
        if (p.ids && opened >= 0) own_counts[p.ids[opened]] = 0;
        opened = -1;
        if (!fill(current, index, i, begun)) return nullptr;
        opened = index;
        return &current;
    }

    double log_normaliser_of(const ExactRow& row) const {
        return differs_by_row() ? log_normaliser(row.prior, p.classes) : p.log_normaliser;
    }

private:
    bool differs_by_row() const { return p.prior && !p.class_prior; }

    bool fill(ExactRow& row, int64_t index, int i, bool begun) {
        row.kl_weight = p.row_kl_weight ? p.row_kl_weight[index] : p.kl_weight;
        if (!is_filled) {
            std::fill_n(own_counts, p.classes, 0.);
            if (p.class_prior) std::copy_n(p.class_prior->prior.data(), p.classes, own_prior);
            else std::fill_n(own_prior, p.classes, p.prior_number);
            is_filled = true;
        }
        if (begun) {
            row.z = logits.row(i);
        } else {
            read(p.logits, index, 1, p.inner, p.classes, own_logits, 0);
            row.z = own_logits;
        }
        row.counts = own_counts;
        if (p.ids) own_counts[p.ids[index]] = 1;
        else if (p.counts && !open_counts(index, i, begun, row)) return false;
        row.prior = own_prior;
        if (differs_by_row()) {
            row.prior = prior.row(i);
            if (!all_within(row.prior, p.classes, EXACT_SMALLEST, EXACT_LARGEST)) return false;
        }
        return true;
    }

    // A class weight multiplies its votes, and λ by their mean weight.
    bool open_counts(int64_t index, int i, bool begun, ExactRow& row) {
        const double* from = own_counts;
        if (begun) from = counts.row(i);
        else read(p.counts, index, 1, p.inner, p.classes, own_counts, 0);
        row.counts = from;
        if (!all_within(from, p.classes, 0, EXACT_LARGEST)) return false;
        if (!p.class_weight) return true;
        double votes = 0, weighted = 0;
        for (int64_t k = 0; k < p.classes; ++k) {
            votes += from[k];
            weighted += own_counts[k] = from[k] * p.class_weight[k];
        }
        if (votes > 0) row.kl_weight *= weighted / votes;
        row.counts = own_counts;
        return true;
    }
};
