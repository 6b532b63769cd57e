// What is done once a row, many rows at a time. One class of each row, its label or its largest, is kept
// apart, so that what the others weigh against it is a sum of its own and never a difference.
// Notation of docs/mathematics.md. Included once for every instruction set.

constexpr int BLOCK = 16;

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
    D digamma_next, digamma_slope, entropy, r, w, x, big_r;
};

INLINE D excess_slope(const Gammas& at) { // dr/dz
    return at.w * at.x * (at.x * (2. * at.big_r - at.x * slope_of(TRIGAMMA_D, at.w)) - 1.);
}

INLINE Gammas gammas(D alpha, D z) {
    D w = 1. / (1. + alpha), x = alpha * w, log_next = logarithm(1. + alpha);
    D g = polynomial(DIGAMMA_D, w), big_r = polynomial(TRIGAMMA_D, w);
    Gammas at;
    at.digamma_next = log_next - w * g;
    at.digamma_slope = x * (1. + w * big_r);
    at.entropy = 0.5 * log_next - z + (HALF_LN_2PI + w * polynomial(LGAMMA_D, w) + x * g);
    at.r = w + x * x * big_r;
    at.w = w, at.x = x;
    at.big_r = big_r;
    return at;
}

// Rows from `i` on, as many as there are lanes.
INLINE void finish_lanes(Block& block, int i, double largest_loss, bool with_slopes) {
    D z = load(block.z + i), m = load(block.m + i), mass = load(block.mass + i), rest = load(block.rest + i);
    D kl_weight = load(block.kl_weight + i);
    D alpha = exponential(z), inverse = 1. / alpha, ratio = rest * inverse, total = alpha + rest;
    D share = 1. / (1. + ratio), others = ratio * share, gap = logarithm_of_next(ratio);
    Gammas own = gammas(alpha, z), all = gammas(total, z + gap);
    // from the slopes where total and class agree to most of their digits
    DI alike = gap < 1e-5;
    D digamma_drop = select(alike, 0.5 * gap * (own.digamma_slope + all.digamma_slope),
                            all.digamma_next - own.digamma_next);
    D entropy_drop = select(alike, -0.5 * gap * (own.r + all.r), all.entropy - own.entropy);
    D loss = load(block.body + i) + load(block.log_weight + i) * logarithm(load(block.mantissa + i));
    loss += mass * all.digamma_next + m * digamma_drop;
    loss += (m * others - mass * share) * inverse;
    loss += kl_weight * (entropy_drop + load(block.log_normaliser + i));
    store(block.loss + i, smaller(larger(loss, D{}), splat(largest_loss)));
    if (!with_slopes) return;

    D excess = load(block.excess + i), own_excess = m - kl_weight * alpha, r_drop = all.r - own.r;
    if (any(alike)) r_drop = select(alike, 0.5 * gap * (excess_slope(own) + excess_slope(all)), r_drop);
    D t_total = 1. + all.r / total;
    store(block.pull + i, ((m + mass) * t_total - kl_weight * all.r) / total);
    store(block.lead + i, t_total * (own_excess + excess) / total);
    // Two forms of one gradient; the one with the smaller terms has the smaller error.
    D poles = all.r * (mass * share * share - m * others * (1. + share)) + m * r_drop;
    D far = share * mass - m * others + kl_weight * (others * all.r - r_drop) + poles * inverse;
    D far_size = (share * mass + m * others) * (1. + inverse);
    D slope = (r_drop - others * all.r) * inverse - others * t_total;
    D near = share * t_total * excess + own_excess * slope;
    D near_size = magnitude(share * t_total * excess) + magnitude(own_excess * slope);
    store(block.apart + i, select(near_size < far_size, near, far));
}

inline void finish(Block& block, int rows, double largest_loss, bool with_slopes) {
    for (int i = 0; i < rows; i += ND) finish_lanes(block, i, largest_loss, with_slopes);
}
