// Counts under a prior that is one number, in float lanes; the class kept apart is the largest. A row whose
// gradient turns out small beside its terms has lost digits, and goes through double lanes again. Included once
// for every instruction set.

constexpr float SOFT_MOST = 1e6f;    // of a count
constexpr float SOFT_MARGIN = 0.2f;  // of the largest slope beside the largest term

// ln x for normal x > 0.
INLINE F logarithm(F x) {
    FI bits = (FI)x - 0x3f3504f3; // so that the mantissa lies between √½ and √2
    F n = __builtin_convertvector(bits >> 23, F);
    F f = (F)((bits & 0x7fffff) + 0x3f3504f3) - 1.f;
    return n * 0.693359375f + (n * -2.12194440e-4f + (f + f * f * polynomial(LOGARITHM_F, f)));
}

struct SoftSums {
    D alpha, mass, excess, body; // whole blocks, in double
    F part_alpha, part_mass, part_excess, part_body, most;
    FI range, wrong;

    INLINE SoftSums() {
        alpha = mass = excess = body = D{};
        part_alpha = part_mass = part_excess = part_body = most = F{};
        range = wrong = FI{};
    }

    template <bool unit_prior, bool masked, bool keeps>
    INLINE void add(F z, F counts, const Plain& plain, FI mask, const Kept& kept, int64_t k, int64_t left = NF) {
        const float weight = float(plain.kl_weight);
        Concentration c = concentration<unit_prior>(z, plain);
        if (keeps) {
            store_up_to(kept.u + k, left, polynomial(EXCESS_F, c.w) * c.inverse);
            store(kept.alpha + k, c.alpha);
            store(kept.excess + k, c.excess);
        }
        F log_next = logarithm(c.next), g = polynomial(DIGAMMA_F, c.w);
        F likelihood = c.w * g + c.inverse - log_next;
        F entropy = z - 0.5f * log_next - c.w * polynomial(LGAMMA_F, c.w) - (1.f - c.w) * g;
        F body = (counts + weight * plain.beta) * likelihood + weight * entropy;
        F excess = counts - weight * c.excess;
        wrong |= ~((counts >= 0.f) & (counts <= SOFT_MOST));
        FI size = (FI)z & 0x7fffffff;
        range = size > range ? size : range;
        part_alpha += masked ? keep(mask, c.alpha) : c.alpha;
        part_mass += masked ? keep(mask, counts) : counts;
        part_excess += masked ? keep(mask, excess) : excess;
        part_body += masked ? keep(mask, body) : body;
    }

    INLINE void flush() {
        alpha += widened_sum(part_alpha);
        mass += widened_sum(part_mass);
        excess += widened_sum(part_excess);
        body += widened_sum(part_body);
        part_alpha = part_mass = part_excess = part_body = F{};
    }
};

// False if a logit or a count is not for float lanes. The position of the largest class in `top`.
template <bool unit_prior, bool keeps>
INLINE bool soft_sums(const float* z, const float* counts, int64_t classes, const Plain& plain, const Kept& kept,
                      Block& block, int i, int64_t& top) {
    SoftSums sums;
    top = position_of_largest(z, classes);
    const int64_t whole = classes / NF * NF, beside = top / NF * NF;
    for (int64_t k = 0; k < whole; k += NF) {
        if (k == beside)
            sums.add<unit_prior, true, keeps>(load(z + k), load(counts + k), plain, counted(FI{}, k, classes, top), kept, k);
        else
            sums.add<unit_prior, false, keeps>(load(z + k), load(counts + k), plain, FI{}, kept, k);
        if (k / NF % 16 == 15) sums.flush();
    }
    if (int64_t left = classes - whole) {
        F part = load_part(z + whole, left), some = load_part(counts + whole, left);
        sums.add<unit_prior, true, keeps>(part, some, plain, counted(FI{}, whole, classes, top), kept, whole, left);
    }
    sums.flush();
    F bad = (F)(((sums.range > PLAIN_RANGE_BITS) | sums.wrong) & 0x7fc00000);
    const double kl_weight = plain.kl_weight, others = double(classes - 1);
    const double body = sum(sums.body + widened_sum(bad));
    if (body != body) return false;
    block.z[i] = z[top];
    block.m[i] = double(counts[top]) + kl_weight * plain.prior;
    block.mass[i] = sum(sums.mass) + kl_weight * plain.prior * others;
    block.rest[i] = sum(sums.alpha);
    block.excess[i] = sum(sums.excess);
    block.kl_weight[i] = kl_weight;
    block.body[i] = body - kl_weight * HALF_LN_2PI * others;
    block.log_weight[i] = 0;
    block.mantissa[i] = 1;
    return true;
}

inline bool soft_sums(const float* z, const float* counts, int64_t classes, const Plain& plain, const Kept& kept,
                      bool keeps, Block& block, int i, int64_t& top) {
    if (plain.prior == 1)
        return keeps ? soft_sums<true, true>(z, counts, classes, plain, kept, block, i, top)
                     : soft_sums<true, false>(z, counts, classes, plain, kept, block, i, top);
    return keeps ? soft_sums<false, true>(z, counts, classes, plain, kept, block, i, top)
                 : soft_sums<false, false>(z, counts, classes, plain, kept, block, i, top);
}

// The gradient of a row, times `scale`; false if it has lost digits.
inline bool soft_gradient(const Kept& kept, const float* counts, int64_t classes, int64_t top, const Plain& plain,
                          const Block& block, int i, double scale, double limit, float* to) {
    F lead = splat(float(plain.prior * block.lead[i] * scale)), pull = splat(float(block.pull[i] * scale));
    F weight = splat(float(plain.kl_weight * scale)), offset = weight * plain.beta, size = splat(float(scale));
    F bound = splat(limit < 1e30 ? float(limit * std::fabs(scale)) : 3e38f), most_slope{}, most_term{};
    const bool near = std::fabs(block.lead[i]) < plain.kl_weight;
    for (int64_t k = 0; k < classes; k += NF) {
        const int64_t left = classes - k;
        F u = load_up_to(kept.u + k, left), alpha = load(kept.alpha + k), excess = load(kept.excess + k);
        F term = load_up_to(counts + k, left) * (size + size * u);
        F slope = near ? near_slope(u, excess, lead, pull, weight) : far_slope(u, alpha, excess, pull, weight, offset);
        slope = slope - term;
        FI mask = counted(FI{}, k, classes, top);
        most_slope = larger(keep(mask, magnitude(slope)), most_slope);
        most_term = larger(keep(mask, magnitude(term)), most_term);
        slope = limited(slope, bound);
        store_up_to(to + k, left, slope);
    }
    to[top] = float(scale * limited(block.apart[i], limit));
    const float own = std::fabs(to[top]), slopes = largest(most_slope);
    return (own > slopes ? own : slopes) >= SOFT_MARGIN * largest(most_term);
}
