// The divergence of rows that are well apart, from one visit in float lanes: Σ T(α_k, γ_k) − T(α₀, γ₀) with
// T(α, γ) = lnΓ(γ) − lnΓ(α) − (γ − α)ψ(α). Its terms are as large as the concentrations, so a row is taken only
// if little of them cancels and no class is most of what is rounded. Included once for every instruction set.

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
