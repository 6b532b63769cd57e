// The divergence of rows that are close, in float lanes: every term is of second order in δ, and none is negative
// but that of the totals. Included once for every instruction set.

constexpr float CLOSE_RANGE = 0.2f; // of |δ|
constexpr double CLOSE_KEPT = 0.25; // the least part of its terms that may be left of a row

INLINE FI existing(FI, int64_t left) { return left >= NF ? ~FI{} : counted(FI{}, 0, left, -1); }

// E(γ, α): the mean of r(αe^t) under the weight e^(δ−t) − 1, by Gauss's rule of two points, times its integral.
INLINE F close_bregman(F alpha, F delta) {
    constexpr float series[] = {1.f / 2, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720};
    constexpr float first = 0.15505103f, second = 0.64494897f; // (4 ∓ √6)/10, for the weight δ − t
    F square = delta * delta, shift = square * (-1.f / 36), t = delta * first + shift, u = delta * second + shift;
    F before = 1.f + (alpha + alpha * (t + t * t * (0.5f + t * (1.f / 6))));
    F after = 1.f + (alpha + alpha * (u + u * u * (0.5f + u * (1.f / 6))));
    F both = 1.f / (before * after);
    F mean = 0.63608276f * polynomial(EXCESS_F, both * after) + 0.36391724f * polynomial(EXCESS_F, both * before);
    return mean * (square * polynomial(series, delta));
}

// γ₀ (q ln(q/p) − q + p) of the means, x = ln(q/p).
INLINE F close_mean_term(F alpha, F x, float ratio) {
    constexpr float series[] = {1.f / 2, 1.f / 3, 1.f / 8, 1.f / 30, 1.f / 144, 1.f / 840, 1.f / 5760};
    return (alpha * ratio) * (x * x * polynomial(series, x));
}

struct Close {
    float *alpha, *delta; // room for whole lanes
    float level;          // δ of p's largest class
    double total, moved;  // α₀ and e^(δ₀ − level) − 1
};

// False if the row is not close, or its logits out of range.
INLINE bool open_close(Close& row, const float* p, const float* q, int64_t classes) {
    if (!none(magnitude(load_up_to(q, classes) - load_up_to(p, classes)) > CLOSE_RANGE)) return false; // most are not
    const int64_t top = position_of_largest(p, classes);
    row.level = q[top] - p[top];
    D total{}, moved{};
    FI outside{};
    for (int64_t k = 0; k < classes; k += NF) {
        const int64_t left = classes - k;
        F at = load_up_to(p + k, left), delta = load_up_to(q + k, left) - at, alpha, growth, unused;
        outside |= ~((magnitude(at) <= APART_RANGE) & (magnitude(delta) <= CLOSE_RANGE));
        exponential(at, alpha, unused);
        exponential(delta - row.level, unused, growth);
        store(row.alpha + k, alpha);
        store(row.delta + k, delta);
        alpha = keep(existing(FI{}, left), alpha);
        total += widened_sum(alpha);
        moved += widened_sum(alpha * growth);
    }
    row.total = sum(total);
    row.moved = sum(moved) / row.total;
    return none(outside);
}

// False if the row is to be computed in double lanes.
INLINE bool close_value(Close& row, const float* p, const float* q, int64_t classes, double& value) {
    if (!open_close(row, p, q, classes)) return false;
    const double shift = std::log1p(row.moved);
    const float ratio = float(std::exp(double(row.level)) * (1 + row.moved)), down = float(shift);
    D terms{};
    for (int64_t k = 0; k < classes; k += NF) {
        F alpha = load(row.alpha + k), delta = load(row.delta + k);
        F term = close_mean_term(alpha, (delta - row.level) - down, ratio) + close_bregman(alpha, delta);
        terms += widened_sum(keep(existing(FI{}, classes - k), term));
    }
    const double size = sum(terms);
    value = size - close_bregman(splat(float(row.total)), splat(float(row.level + shift)))[0];
    return value >= CLOSE_KEPT * size;
}
