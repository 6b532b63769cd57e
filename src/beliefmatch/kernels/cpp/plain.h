// Rows of class ids under a prior that is one number, in float lanes: sums over every class but the label,
// then the gradient. Included once for every instruction set.

constexpr float PLAIN_RANGE = 30.f;
constexpr int32_t PLAIN_RANGE_BITS = 0x41f00000; // of |z|: α(1 + α) and the poles of a batch stay far inside float32
constexpr double PLAIN_SCALE = 1e10; // of an upstream gradient

// β w G − (1 − w) G − w M − ½ ln 2π: what is left of the loss of a class beyond z, 1/α and ln(1 + α).
struct Plain {
    double prior, kl_weight;
    float log_prior, log_prior_rest; // ln β to twice the digits of a float
    float remainder[10];

    explicit Plain(const Problem& p) : prior(p.prior_number), kl_weight(p.kl_weight) {
        double log_of = std::log(prior);
        log_prior = float(log_of);
        log_prior_rest = float(log_of - log_prior);
        double c[10] = {-HALF_LN_2PI};
        for (int i = 0; i < 9; ++i) {
            c[i] -= DIGAMMA_F[i];
            c[i + 1] += (prior + 1) * DIGAMMA_F[i] - LGAMMA_F[i];
        }
        for (int i = 0; i < 10; ++i) remainder[i] = float(c[i]);
    }
};

struct Concentration {
    F alpha, excess, w, inverse; // α, α − β, 1/(1 + α), 1/α
};

INLINE Concentration concentration(F z, const Plain& plain) {
    F power, growth;
    exponential((z - plain.log_prior) - plain.log_prior_rest, power, growth);
    Concentration c;
    c.alpha = float(plain.prior) * power;
    c.excess = float(plain.prior) * growth;
    F inverse = 1.f / (c.alpha * (1.f + c.alpha));
    c.w = inverse * c.alpha;
    c.inverse = inverse + c.w;
    return c;
}

// What the gradient of a row needs of its classes: r/α, α and α − β.
struct Kept {
    float *u, *alpha, *excess;

    static int64_t size(int64_t pitch) { return 3 * pitch; }
    Kept(float* scratch, int64_t pitch) : u(scratch), alpha(scratch + pitch), excess(scratch + 2 * pitch) {}
};

struct PlainSums {
    D alpha, excess, body; // whole blocks, in double
    F block_alpha, block_excess, block_body, mantissa;
    FI exponent, range;

    INLINE PlainSums() { // not by initialisers: a generated constructor would lack the target
        alpha = excess = body = D{};
        block_alpha = block_excess = block_body = F{};
        mantissa = splat(1.f);
        exponent = range = FI{};
    }

    template <bool masked, bool keeps> INLINE void add(F z, const Plain& plain, FI mask, const Kept& kept, int64_t k) {
        if (masked) z = keep(mask, z);
        Concentration c = concentration(z, plain);
        F body = z + float(plain.prior) * c.inverse + polynomial(plain.remainder, c.w);
        F next = 1.f + c.alpha;
        if (keeps) {
            F x = c.alpha * c.w;
            store(kept.u + k, (c.w + x * x * polynomial(TRIGAMMA_F, c.w)) * c.inverse);
            store(kept.alpha + k, c.alpha);
            store(kept.excess + k, c.excess);
        }
        if (masked) {
            c.alpha = keep(mask, c.alpha);
            c.excess = keep(mask, c.excess);
            body = keep(mask, body);
            next = keep(mask, next) + (F)(~mask & 0x3f800000);
        }
        block_alpha += c.alpha;
        block_excess += c.excess;
        block_body += body;
        // Σ ln(1 + α) from a sum of exponents and a product of mantissas
        exponent += ((FI)next >> 23) - 127;
        mantissa *= (F)(((FI)next & 0x7fffff) | 0x3f800000);
        FI size = (FI)z & 0x7fffffff; // ordered like |z|, with NaN at the top
        range = size > range ? size : range;
    }

    INLINE void flush() {
        alpha += widened_sum(block_alpha);
        excess += widened_sum(block_excess);
        body += widened_sum(block_body);
        block_alpha = block_excess = block_body = F{};
        exponent += ((FI)mantissa >> 23) - 127;
        mantissa = (F)(((FI)mantissa & 0x7fffff) | 0x3f800000);
    }

    // Whatever is λ times a sum over classes, without ln(mantissa); NaN if a logit was out of range.
    INLINE double total_body(const Plain& plain) {
        F beyond = (F)((range > PLAIN_RANGE_BITS) & 0x7fc00000);
        F powers = __builtin_convertvector(exponent, F); // of two: whole numbers below 2²⁴
        return sum(body - (plain.prior + 0.5) * LN2 * widened_sum(powers) + widened_sum(beyond));
    }
};

template <bool keeps>
INLINE void add_plain(PlainSums& sums, const float* z, int64_t from, int64_t to, const Plain& plain, const Kept& kept) {
    constexpr int64_t CHUNKS = 8; // float sums of more would lose digits
    for (int64_t k = from; k < to;) {
        int64_t end = k + CHUNKS * NF < to ? k + CHUNKS * NF : to;
        for (; k < end; k += NF) sums.add<false, keeps>(load(z + k), plain, FI{}, kept, k);
        sums.flush();
    }
}

// False if a logit is out of range or not a number.
template <bool keeps>
INLINE bool plain_sums(const float* z, int64_t classes, int64_t label, const Plain& plain, const Kept& kept,
                       Block& block, int i) {
    PlainSums sums;
    int64_t whole = classes / NF * NF, beside = label / NF * NF;
    add_plain<keeps>(sums, z, 0, beside < whole ? beside : whole, plain, kept);
    if (beside < whole) {
        sums.add<true, keeps>(load(z + beside), plain, counted(FI{}, beside, classes, label), kept, beside);
        sums.flush();
        add_plain<keeps>(sums, z, beside + NF, whole, plain, kept);
    }
    if (whole < classes) {
        F part = load_part(z + whole, classes - whole);
        sums.add<true, keeps>(part, plain, counted(FI{}, whole, classes, label), kept, whole);
        sums.flush();
    }
    const double kl_weight = plain.kl_weight, prior = plain.prior, own = z[label], body = sums.total_body(plain);
    if (!(std::fabs(own) <= PLAIN_RANGE) || body != body) return false;
    block.z[i] = own;
    block.m[i] = 1 + kl_weight * prior;
    block.mass[i] = kl_weight * prior * double(classes - 1);
    block.rest[i] = sum(sums.alpha);
    block.excess[i] = -kl_weight * sum(sums.excess);
    block.kl_weight[i] = kl_weight;
    block.log_weight[i] = -kl_weight * (prior + 0.5);
    block.mantissa[i] = product(low_half(sums.mantissa) * high_half(sums.mantissa));
    block.body[i] = kl_weight * body;
    return true;
}

struct PlainSlopes {
    float offset, lead, pull, kl_weight, limit;
};

// The gradient β·lead + (α − β)(pull + λu), or where that would cancel α·pull − λβ + (α − β)λu.
template <bool near, bool limited> INLINE F plain_slope(const Kept& kept, int64_t k, const PlainSlopes& s) {
    F u = load(kept.u + k), excess = load(kept.excess + k);
    F slope = near ? s.lead + excess * (s.pull + s.kl_weight * u)
                   : (load(kept.alpha + k) * s.pull + excess * (s.kl_weight * u)) - s.offset;
    if (limited) {
        slope = slope > s.limit ? splat(s.limit) : slope;
        slope = slope < -s.limit ? splat(-s.limit) : slope;
    }
    return slope;
}

template <bool near, bool limited>
INLINE void plain_slopes(const Kept& kept, int64_t classes, const PlainSlopes& s, float* to) {
    int64_t whole = classes / NF * NF;
    for (int64_t k = 0; k < whole; k += NF) store(to + k, plain_slope<near, limited>(kept, k, s));
    if (whole < classes) {
        F part = plain_slope<near, limited>(kept, whole, s);
        store_part(to + whole, classes - whole, part);
    }
}

// The gradient of a row, times `scale`; slopes saturate at `limit`.
INLINE void plain_gradient(const Kept& kept, int64_t classes, int64_t label, const Plain& plain, const Block& block,
                           int i, double scale, double limit, float* to) {
    PlainSlopes s;
    s.offset = float(plain.kl_weight * plain.prior * scale);
    s.lead = float(plain.prior * block.lead[i] * scale);
    s.pull = float(block.pull[i] * scale);
    s.kl_weight = float(plain.kl_weight * scale);
    s.limit = float(limit * std::fabs(scale));
    bool near = std::fabs(block.lead[i]) < plain.kl_weight;
    if (limit < 1e30)
        near ? plain_slopes<true, true>(kept, classes, s, to) : plain_slopes<false, true>(kept, classes, s, to);
    else
        near ? plain_slopes<true, false>(kept, classes, s, to) : plain_slopes<false, false>(kept, classes, s, to);
    double own = block.apart[i];
    to[label] = float(scale * (own > limit ? limit : own < -limit ? -limit : own));
}
