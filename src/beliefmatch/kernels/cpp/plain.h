// Class ids under a prior that is one number, in float lanes: what every class adds to the sums of its row, and
// its gradient. `rows.h` has the classes of a row in the lanes, `columns.h` the rows of a class. Included once for
// every instruction set.

constexpr double PLAIN_SCALE = 1e10; // of an upstream gradient
constexpr float PLAIN_RANGE = 30;    // of |z|: α(1 + α), 1/α and their batches stay far inside float32
constexpr int32_t PLAIN_RANGE_BITS = 0x41f00000;

struct Plain {
    double prior, kl_weight;
    float beta, log_beta, log_beta_rest; // ln β to twice the digits of a float
    // Beyond z, 1/α and ln(1 + α), a class has constant + w·remainder(w) in its loss:
    // β w G − (1 − w) G − w M − ½ ln 2π.
    double constant;
    float remainder[8];

    explicit Plain(const Problem& p) : prior(p.prior_number), kl_weight(p.kl_weight), beta(float(prior)) {
        double log_of = std::log(prior);
        log_beta = float(log_of);
        log_beta_rest = float(log_of - log_beta);
        double c[10] = {-HALF_LN_2PI};
        for (int i = 0; i < 9; ++i) {
            c[i] -= DIGAMMA_F[i];
            c[i + 1] += (prior + 1) * DIGAMMA_F[i] - LGAMMA_F[i];
        }
        shorten(c);
        constant = c[0];
        for (int i = 0; i < 8; ++i) remainder[i] = float(c[i + 1]);
    }

private:
    // Takes the highest power away by the Chebyshev polynomial T₉(2w − 1), which costs 2⁻¹⁷ of its coefficient.
    static void shorten(double (&c)[10]) {
        constexpr double t[10] = {-1, 162, -4320, 44352, -228096, 658944, -1118208, 1105920, -589824, 131072};
        double top = c[9] / t[9];
        for (int i = 0; i < 10; ++i) c[i] -= top * t[i];
    }
};

struct Concentration {
    F alpha, excess, next, w, inverse; // α, α − β, 1 + α, 1/(1 + α), 1/α
};

template <bool unit_prior> INLINE Concentration concentration(F z, const Plain& plain) {
    Concentration c;
    if (unit_prior) {
        exponential(z, c.alpha, c.excess);
    } else {
        // z − ln β and what its rounding lost, which for a large z is much of a step of α
        F level = z - plain.log_beta, back = level - z;
        F lost = (z - (level - back)) - (plain.log_beta + back);
        exponential_of<true>(level, lost - plain.log_beta_rest, c.alpha, c.excess);
        c.alpha *= plain.beta;
        c.excess *= plain.beta;
    }
    c.next = 1.f + c.alpha;
    F inverse = 1.f / (c.alpha * c.next);
    c.w = inverse * c.alpha;
    c.inverse = inverse + c.w;
    return c;
}

// What the gradient needs of every class: r/α, α and α − β. The first may lie where the gradient will: those pages are
// then asked for between the sums, and not all at once. So it ends with the row; the others have room to spare.
struct Kept {
    float *u, *alpha, *excess;

    static int64_t size(int64_t pitch) { return 3 * pitch; }
    Kept(float* scratch, int64_t pitch) : u(scratch), alpha(scratch + pitch), excess(scratch + 2 * pitch) {}
};

// Sums over classes, lane by lane. Between two flushes at most MOST_ADDED, or the float sums would lose digits;
// between two settlings at most two, or the product of 1 + α could leave the range of floats.
struct PlainSums {
    static constexpr int MOST_ADDED = 16;
    int pending = 0;
    D alpha[2], excess[2], body[2]; // low lanes and high lanes
    F part_alpha, part_excess, part_body, mantissa;
    FI exponent, range;

    INLINE PlainSums() { // not by initialisers: a generated constructor would lack the target
        for (int half = 0; half < 2; ++half) alpha[half] = excess[half] = body[half] = D{};
        part_alpha = part_excess = part_body = F{};
        mantissa = splat(1.f);
        exponent = range = FI{};
    }

    template <bool unit_prior, bool masked, bool keeps>
    INLINE void add(F z, const Plain& plain, FI mask, const Kept& kept, int64_t k, int64_t left = NF) {
        if (masked) z = keep(mask, z);
        Concentration c = concentration<unit_prior>(z, plain);
        if (keeps) {
            store_up_to(kept.u + k, left, polynomial(EXCESS_F, c.w) * c.inverse);
            store(kept.alpha + k, c.alpha);
            store(kept.excess + k, c.excess);
        }
        F body = unit_prior ? z + c.inverse : z + plain.beta * c.inverse;
        body = body + c.w * polynomial(plain.remainder, c.w);
        if (masked) {
            c.alpha = keep(mask, c.alpha);
            c.excess = keep(mask, c.excess);
            body = keep(mask, body);
            c.next = keep(mask, c.next) + (F)(~mask & 0x3f800000);
        }
        part_alpha += c.alpha;
        part_excess += c.excess;
        part_body += body;
        mantissa *= c.next;
        FI size = (FI)z & 0x7fffffff; // ordered like |z|, with NaN at the top
        range = size > range ? size : range;
    }

    INLINE int room() const { return MOST_ADDED - pending; }
    INLINE void added(int count) { pending += count; }

    // Σ ln(1 + α) is a sum of exponents and a product of mantissas.
    INLINE void settle() {
        exponent += ((FI)mantissa >> 23) - 127;
        mantissa = (F)(((FI)mantissa & 0x7fffff) | 0x3f800000);
    }

    INLINE void flush() {
        settle();
        alpha[0] += low_half(part_alpha), alpha[1] += high_half(part_alpha);
        excess[0] += low_half(part_excess), excess[1] += high_half(part_excess);
        body[0] += low_half(part_body), body[1] += high_half(part_body);
        part_alpha = part_excess = part_body = F{};
        pending = 0;
    }

    // What is λ times a sum over classes, but for ln(mantissa) and the constants, in either half of the lanes; NaN
    // where a logit was out of range.
    INLINE D whole_body(const Plain& plain, int half) {
        F beyond = (F)((range > PLAIN_RANGE_BITS) & 0x7fc00000);
        F powers = __builtin_convertvector(exponent, F); // of two: whole numbers below 2²⁴
        D log_two = splat(-(plain.prior + 0.5) * LN2);
        return half ? body[1] + log_two * high_half(powers) + high_half(beyond)
                    : body[0] + log_two * low_half(powers) + low_half(beyond);
    }
};

// Enters a row into the block; false if a logit was out of range or not a number.
INLINE bool enter_plain(Block& block, int i, const Plain& plain, int64_t classes, double own, double rest,
                        double excess, double body, double mantissa) {
    if (!(std::fabs(own) <= PLAIN_RANGE) || body != body) return false;
    const double kl_weight = plain.kl_weight, prior = plain.prior, others = double(classes - 1);
    block.z[i] = own;
    block.m[i] = 1 + kl_weight * prior;
    block.mass[i] = kl_weight * prior * others;
    block.rest[i] = rest;
    block.excess[i] = -kl_weight * excess;
    block.kl_weight[i] = kl_weight;
    block.body[i] = kl_weight * (body + plain.constant * others);
    block.log_weight[i] = -kl_weight * (prior + 0.5);
    block.mantissa[i] = mantissa;
    return true;
}

// β·lead + (α − β)(pull + λu), or where that would cancel α·pull − λβ + (α − β)λu; all times the row's scale.
INLINE F near_slope(F u, F excess, F lead, F pull, F kl_weight) { return lead + excess * (pull + kl_weight * u); }
INLINE F far_slope(F u, F alpha, F excess, F pull, F kl_weight, F offset) {
    return (alpha * pull + excess * (kl_weight * u)) - offset;
}
INLINE F limited(F slope, F limit) {
    slope = slope > limit ? limit : slope;
    return slope < -limit ? -limit : slope;
}
INLINE double limited(double slope, double limit) { return slope > limit ? limit : slope < -limit ? -limit : slope; }
