// The loss in float lanes, for logits of at most single precision and a prior that all rows share: what every class adds
// to the sums of its row, and its gradient. The classes of a row in the lanes, the rows of a class in the lanes (for
// images and short rows), and counts in the place of class ids.

constexpr double PLAIN_SCALE = 1e10; // of an upstream gradient
constexpr float PLAIN_RANGE = 30;    // of |z|: α(1 + α), 1/α and their batches stay far inside float32
constexpr int32_t PLAIN_RANGE_BITS = 0x41f00000;

enum class Prior { one, number, by_class };

struct Beta { // of the classes in the lanes
    F beta, log_beta, log_beta_rest;
};

struct Plain {
    double prior, kl_weight; // the prior is 1 where every class has its own
    const ClassPrior* by_class;
    float beta, log_beta, log_beta_rest; // ln β to twice the digits of a float
    // Beyond z, 1/α and ln(1 + α), a class has constant + w·remainder(w) in its loss:
    // β w G − (1 − w) G − w M − ½ ln 2π, without the first term where every class has its own β.
    double constant;
    float remainder[8];

    explicit Plain(const Inputs& p)
        : prior(p.prior_number), kl_weight(p.kl_weight), by_class(p.class_prior), beta(float(prior)) {
        double log_of = std::log(prior);
        log_beta = float(log_of);
        log_beta_rest = float(log_of - log_beta);
        double c[10] = {-HALF_LN_2PI};
        for (int i = 0; i < 9; ++i) {
            c[i] -= DIGAMMA_F[i];
            c[i + 1] += ((by_class ? 0 : prior) + 1) * DIGAMMA_F[i] - LGAMMA_F[i];
        }
        shorten(c);
        constant = c[0];
        for (int i = 0; i < 8; ++i) remainder[i] = float(c[i + 1]);
    }

    Prior kind() const { return by_class ? Prior::by_class : prior == 1 ? Prior::one : Prior::number; }
    double of(int64_t k) const { return by_class ? by_class->prior[size_t(k)] : prior; }
    double of_others(int64_t k, int64_t classes) const {
        return by_class ? by_class->total - of(k) : prior * double(classes - 1);
    }

    // Of the classes from k on, one a lane; and of class k in all lanes.
    template <Prior kind> INLINE Beta lanes(int64_t k) const {
        if (kind != Prior::by_class) return {splat(beta), splat(log_beta), splat(log_beta_rest)};
        return {load(&by_class->beta[size_t(k)]), load(&by_class->log_beta[size_t(k)]),
                load(&by_class->log_beta_rest[size_t(k)])};
    }
    template <Prior kind> INLINE Beta column(int64_t k) const {
        if (kind != Prior::by_class) return lanes<kind>(k);
        return {splat(by_class->beta[size_t(k)]), splat(by_class->log_beta[size_t(k)]),
                splat(by_class->log_beta_rest[size_t(k)])};
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

template <Prior kind> INLINE Concentration concentration(F z, const Beta& prior) {
    Concentration c;
    if (kind == Prior::one) {
        exponential(z, c.alpha, c.excess);
    } else {
        exponential_beyond(z, prior.beta, prior.log_beta, prior.log_beta_rest, c.alpha, c.excess);
    }
    c.next = 1.f + c.alpha;
    F inverse = 1.f / (c.alpha * c.next);
    c.w = inverse * c.alpha;
    c.inverse = inverse + c.w;
    return c;
}

// What the gradient needs of every class: r/α, α and α − β. The first may lie where the gradient will: its pages are
// then first touched between the sums and not all at once. So it ends with the row; the others have room to spare.
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

    template <Prior kind, bool masked, bool keeps>
    INLINE void add(F z, const Plain& plain, const Beta& prior, FI mask, const Kept& kept, int64_t k, int64_t left = NF) {
        if (masked) z = keep(mask, z);
        Concentration c = concentration<kind>(z, prior);
        if (keeps) {
            store_up_to(kept.u + k, left, polynomial(EXCESS_F, c.w) * c.inverse);
            store(kept.alpha + k, c.alpha);
            store(kept.excess + k, c.excess);
        }
        F body = kind == Prior::one ? z + c.inverse : z + prior.beta * c.inverse;
        body = body + c.w * polynomial(plain.remainder, c.w);
        if (kind == Prior::by_class) {
            F log_next = logarithm(c.next);
            body = body + prior.beta * (c.w * polynomial(DIGAMMA_F, c.w) - log_next) - 0.5f * log_next;
        }
        if (masked) {
            c.alpha = keep(mask, c.alpha);
            c.excess = keep(mask, c.excess);
            body = keep(mask, body);
            if (kind != Prior::by_class) c.next = keep(mask, c.next) + (F)(~mask & 0x3f800000);
        }
        part_alpha += c.alpha;
        part_excess += c.excess;
        part_body += body;
        if (kind != Prior::by_class) mantissa *= c.next;
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
INLINE bool enter_plain(Block& block, int i, const Plain& plain, int64_t classes, int64_t label, double own, double rest,
                        double excess, double body, double mantissa) {
    if (!(std::fabs(own) <= PLAIN_RANGE) || body != body) return false;
    const double kl_weight = plain.kl_weight;
    block.z[i] = own;
    block.m[i] = 1 + kl_weight * plain.of(label);
    block.mass[i] = kl_weight * plain.of_others(label, classes);
    block.rest[i] = rest;
    block.excess[i] = -kl_weight * excess;
    block.kl_weight[i] = kl_weight;
    block.body[i] = kl_weight * (body + plain.constant * double(classes - 1));
    block.log_weight[i] = -kl_weight * (plain.prior + 0.5); // the mantissa is 1 where every class has its own prior
    block.mantissa[i] = mantissa;
    return true;
}

// β·lead + (α − β)(pull + λu), or where that would cancel α·pull − λβ + (α − β)λu; all times the row's scale.
INLINE F near_grad(F u, F excess, F lead, F pull, F kl_weight) { return lead + excess * (pull + kl_weight * u); }
INLINE F far_grad(F u, F alpha, F excess, F pull, F kl_weight, F offset) {
    return (alpha * pull + excess * (kl_weight * u)) - offset;
}
INLINE F limited(F grad, F limit) {
    grad = grad > limit ? limit : grad;
    return grad < -limit ? -limit : grad;
}

// Rows one by one, their classes in the lanes: for rows that are contiguous and not short.

template <Prior kind, bool keeps>
INLINE void add_classes(PlainSums& sums, const float* z, int64_t from, int64_t to, const Plain& plain, const Kept& kept) {
    int64_t k = from;
    while (k < to) {
        int64_t room = sums.room(), end = k + room * NF < to ? k + room * NF : to;
        sums.added(int((end - k) / NF));
        for (; k + NF < end; k += 2 * NF) {
            sums.add<kind, false, keeps>(load(z + k), plain, plain.lanes<kind>(k), FI{}, kept, k);
            sums.add<kind, false, keeps>(load(z + k + NF), plain, plain.lanes<kind>(k + NF), FI{}, kept, k + NF);
            sums.settle();
        }
        if (k < end) {
            sums.add<kind, false, keeps>(load(z + k), plain, plain.lanes<kind>(k), FI{}, kept, k);
            sums.settle();
            k += NF;
        }
        if (!sums.room()) sums.flush();
    }
}

template <Prior kind, bool keeps>
INLINE void add_some_classes(PlainSums& sums, F z, int64_t k, int64_t classes, int64_t label, const Plain& plain,
                             const Kept& kept) {
    sums.add<kind, true, keeps>(z, plain, plain.lanes<kind>(k), counted(FI{}, k, classes, label), kept, k, classes - k);
    sums.settle();
    sums.added(1);
    if (!sums.room()) sums.flush();
}

template <Prior kind, bool keeps>
INLINE bool row_sums(const float* z, int64_t classes, int64_t label, const Plain& plain, const Kept& kept, Block& block,
                     int i) {
    PlainSums sums;
    int64_t whole = classes / NF * NF, group = label / NF * NF;
    add_classes<kind, keeps>(sums, z, 0, group < whole ? group : whole, plain, kept);
    if (group < whole) {
        add_some_classes<kind, keeps>(sums, load(z + group), group, classes, label, plain, kept);
        add_classes<kind, keeps>(sums, z, group + NF, whole, plain, kept);
    }
    if (whole < classes) {
        F part = load_part(z + whole, classes - whole);
        add_some_classes<kind, keeps>(sums, part, whole, classes, label, plain, kept);
    }
    sums.flush();
    double body = sum(sums.whole_body(plain, 0) + sums.whole_body(plain, 1));
    double mantissa = product(low_half(sums.mantissa) * high_half(sums.mantissa));
    double rest = sum(sums.alpha[0] + sums.alpha[1]), excess = sum(sums.excess[0] + sums.excess[1]);
    return enter_plain(block, i, plain, classes, label, z[label], rest, excess, body, mantissa);
}

inline bool row_sums(const float* z, int64_t classes, int64_t label, const Plain& plain, const Kept& kept, bool keeps,
                     Block& block, int i) {
    switch (plain.kind()) {
    case Prior::one:
        return keeps ? row_sums<Prior::one, true>(z, classes, label, plain, kept, block, i)
                     : row_sums<Prior::one, false>(z, classes, label, plain, kept, block, i);
    case Prior::number:
        return keeps ? row_sums<Prior::number, true>(z, classes, label, plain, kept, block, i)
                     : row_sums<Prior::number, false>(z, classes, label, plain, kept, block, i);
    default:
        return keeps ? row_sums<Prior::by_class, true>(z, classes, label, plain, kept, block, i)
                     : row_sums<Prior::by_class, false>(z, classes, label, plain, kept, block, i);
    }
}

// `by_class` is the prior where every class has its own, else null.
template <bool near>
INLINE F row_grad(const Kept& kept, int64_t k, int64_t left, F lead, F pull, F kl_weight, F offset, const float* by_class) {
    F u = load_up_to(kept.u + k, left), excess = load(kept.excess + k);
    if (by_class) lead *= load(by_class + k), offset *= load(by_class + k);
    return near ? near_grad(u, excess, lead, pull, kl_weight)
                : far_grad(u, load(kept.alpha + k), excess, pull, kl_weight, offset);
}

template <bool near>
INLINE void row_grads(const Kept& kept, int64_t classes, double lead, double pull, double kl_weight, double offset,
                      const float* by_class, float* to) {
    F leads = splat(float(lead)), pulls = splat(float(pull));
    F weights = splat(float(kl_weight)), offsets = splat(float(offset));
    int64_t whole = classes / NF * NF;
    for (int64_t k = 0; k < whole; k += NF)
        store(to + k, row_grad<near>(kept, k, NF, leads, pulls, weights, offsets, by_class));
    if (int64_t left = classes - whole)
        store_part(to + whole, left, row_grad<near>(kept, whole, left, leads, pulls, weights, offsets, by_class));
}

// The gradient of a row, times `scale`, saturating at `limit`.
inline void row_gradient(const Kept& kept, int64_t classes, int64_t label, const Plain& plain, const Block& block, int i,
                         double scale, double limit, float* to) {
    double lead = plain.prior * block.lead[i] * scale, pull = block.pull[i] * scale;
    double kl_weight = plain.kl_weight * scale, offset = plain.prior * kl_weight;
    const float* by_class = plain.by_class ? plain.by_class->beta.data() : nullptr;
    if (std::fabs(block.lead[i]) < plain.kl_weight)
        row_grads<true>(kept, classes, lead, pull, kl_weight, offset, by_class, to);
    else
        row_grads<false>(kept, classes, lead, pull, kl_weight, offset, by_class, to);
    to[label] = float(scale * block.apart[i]);
    if (limit < 1e30) { // only half precision has a limit that plain rows can reach
        float most = float(limit * std::fabs(scale));
        for (int64_t k = 0; k < classes; ++k) to[k] = to[k] > most ? most : to[k] < -most ? -most : to[k];
    }
}

// Rows side by side, one a lane: for images, whose positions are neighbours in memory, and for short rows. A column is
// one class of as many rows as there are lanes.

struct Columns {
    const float* z; // of class k at z + k·stride
    int64_t stride;
    FI label; // −1 in lanes whose row does not count
};

// Columns of a tensor, in place or copied.
class ColumnSource {
    const Strided& tensor;
    const int64_t inner, classes;
    const bool direct;

public:
    float* scratch = nullptr;

    ColumnSource(const Strided& s, const Inputs& p)
        : tensor(s), inner(p.inner), classes(p.classes), direct(s.kind == Kind::float32 && s.inner_stride == 1) {}

    bool in_place(int64_t row, int rows) const {
        return direct && rows == NF && row / inner == (row + NF - 1) / inner;
    }
    int64_t stride(int64_t row, int rows) const { return in_place(row, rows) ? tensor.class_stride : NF; }

    float* begin(int64_t row, int rows) const {
        return in_place(row, rows) ? reinterpret_cast<float*>(tensor.row(row, inner)) : scratch;
    }
    const float* read_columns(int64_t row, int rows) const {
        if (in_place(row, rows)) return begin(row, rows);
        if (rows < NF) std::fill_n(scratch, classes * NF, 0.f);
        switch (tensor.kind) {
        case Kind::float32: copy_in_as<float>(row, rows); break;
        case Kind::float64: copy_in_as<double>(row, rows); break;
        case Kind::bfloat16: copy_in_as<BFloat16>(row, rows); break;
        case Kind::float16: copy_in_as<Float16>(row, rows); break;
        }
        return scratch;
    }
    void write_columns(int64_t row, int rows) const {
        if (in_place(row, rows)) return;
        switch (tensor.kind) {
        case Kind::float32: return copy_out_as<float>(row, rows);
        case Kind::float64: return copy_out_as<double>(row, rows);
        case Kind::bfloat16: return copy_out_as<BFloat16>(row, rows);
        case Kind::float16: return copy_out_as<Float16>(row, rows);
        }
    }

private:
    bool is_adjacent(int64_t row, int rows) const {
        return tensor.inner_stride == 1 && inner > 1 && rows == NF && row / inner == (row + NF - 1) / inner;
    }
#if defined(TRANSPOSES)
    // Rows of floats, each contiguous, one a lane: turned as many classes at a time as there are lanes.
    bool is_matrix(int rows) const {
        return rows == NF && inner == 1 && tensor.kind == Kind::float32 && tensor.class_stride == 1;
    }
    void read_matrix(const float* from) const {
        for (int64_t k = 0; k < classes; k += NF) {
            const int64_t left = classes - k;
            F v[NF];
            for (int i = 0; i < NF; ++i) v[i] = load_up_to(from + i * tensor.outer_stride + k, left);
            transpose(v);
            for (int i = 0; i < NF && i < left; ++i) store(scratch + (k + i) * NF, v[i]);
        }
    }
    void write_matrix(float* to) const {
        for (int64_t k = 0; k < classes; k += NF) {
            const int64_t left = classes - k;
            F v[NF];
            for (int i = 0; i < NF; ++i) v[i] = i < left ? load(scratch + (k + i) * NF) : F{};
            transpose(v);
            for (int i = 0; i < NF; ++i) store_up_to(to + i * tensor.outer_stride + k, left, v[i]);
        }
    }
#endif
    template <class From> void copy_in_as(int64_t row, int rows) const {
        auto from = reinterpret_cast<const From*>(tensor.row(row, inner));
        if (is_adjacent(row, rows)) {
            for (int64_t k = 0; k < classes; ++k, from += tensor.class_stride)
                for (int i = 0; i < NF; ++i) scratch[k * NF + i] = float(value_of(from + i));
            return;
        }
#if defined(TRANSPOSES)
        if (is_matrix(rows)) return read_matrix(reinterpret_cast<const float*>(from));
#endif
        for (int i = 0; i < rows; ++i) {
            from = reinterpret_cast<const From*>(tensor.row(row + i, inner));
            for (int64_t k = 0; k < classes; ++k) scratch[k * NF + i] = float(value_of(from + k * tensor.class_stride));
        }
    }
    template <class To> void copy_out_as(int64_t row, int rows) const {
        auto to = reinterpret_cast<To*>(tensor.row(row, inner));
        if (is_adjacent(row, rows)) {
            for (int64_t k = 0; k < classes; ++k, to += tensor.class_stride)
                for (int i = 0; i < NF; ++i) put(to + i, scratch[k * NF + i]);
            return;
        }
#if defined(TRANSPOSES)
        if (is_matrix(rows)) return write_matrix(reinterpret_cast<float*>(to));
#endif
        for (int i = 0; i < rows; ++i) {
            to = reinterpret_cast<To*>(tensor.row(row + i, inner));
            for (int64_t k = 0; k < classes; ++k) put(to + k * tensor.class_stride, scratch[k * NF + i]);
        }
    }
};

// Sums over the classes of every lane's row but its label, and the logit of that.
template <Prior kind, bool keeps>
INLINE F column_sums(const Columns& columns, int64_t classes, const Plain& plain, const Kept& kept, PlainSums& sums) {
    FI own{}, valid = columns.label >= 0;
    for (int64_t k = 0; k < classes; ++k) {
        F z = load(columns.z + k * columns.stride);
        FI is_label = columns.label == int32_t(k);
        own |= (FI)z & is_label;
        sums.add<kind, true, keeps>(z, plain, plain.column<kind>(k), valid & ~is_label, kept, k * NF);
        sums.added(1);
        if (!sums.room()) sums.flush();
        else if (k % 2 == 1) sums.settle();
    }
    sums.flush();
    return (F)own;
}

// Enters the rows from lane 0 on into the block from row i on; says which are out of range.
INLINE void enter_columns(Block& block, int i, int rows, const Plain& plain, int64_t classes, FI label, F own,
                          PlainSums& sums, const bool* counts, bool* is_exact) {
    double rest[NF], excess[NF], body[NF], mantissa[NF];
    for (int half = 0; half < 2; ++half) {
        store(rest + half * ND, sums.alpha[half]);
        store(excess + half * ND, sums.excess[half]);
        store(body + half * ND, sums.whole_body(plain, half));
        store(mantissa + half * ND, half ? high_half(sums.mantissa) : low_half(sums.mantissa));
    }
    for (int lane = 0; lane < rows; ++lane)
        if (counts[lane] && !enter_plain(block, i + lane, plain, classes, label[lane], own[lane], rest[lane],
                                         excess[lane], body[lane], mantissa[lane]))
            is_exact[i + lane] = true;
}

template <bool keeps>
inline void columns_sums(const Columns& columns, int64_t classes, int rows, const Plain& plain, const Kept& kept,
                         Block& block, int i, const bool* counts, bool* is_exact) {
    PlainSums sums;
    F own{};
    switch (plain.kind()) {
    case Prior::one: own = column_sums<Prior::one, keeps>(columns, classes, plain, kept, sums); break;
    case Prior::number: own = column_sums<Prior::number, keeps>(columns, classes, plain, kept, sums); break;
    case Prior::by_class: own = column_sums<Prior::by_class, keeps>(columns, classes, plain, kept, sums); break;
    }
    enter_columns(block, i, rows, plain, classes, columns.label, own, sums, counts, is_exact);
}

// Gradients of the rows from i on, each times its scale, saturating at `limit`.
inline void columns_gradient(FI label, int64_t classes, int rows, const Plain& plain, const Kept& kept,
                             const Block& block, int i, const double* scale, double limit, float* to, int64_t stride) {
    float lead[NF] = {}, pull[NF] = {}, kl_weight[NF] = {}, apart[NF] = {}, most[NF] = {};
    FI near{};
    for (int lane = 0; lane < rows; ++lane) {
        lead[lane] = float(plain.prior * block.lead[i + lane] * scale[lane]);
        pull[lane] = float(block.pull[i + lane] * scale[lane]);
        kl_weight[lane] = float(plain.kl_weight * scale[lane]);
        apart[lane] = float(block.apart[i + lane] * scale[lane]);
        most[lane] = float(limit < 1e30 ? limit * std::fabs(scale[lane]) : limit);
        near[lane] = std::fabs(block.lead[i + lane]) < plain.kl_weight ? -1 : 0;
    }
    F leads = load(lead), pulls = load(pull), weights = load(kl_weight), own = load(apart), bound = load(most);
    F offsets = weights * plain.beta;
    const float* by_class = plain.by_class ? plain.by_class->beta.data() : nullptr;
    for (int64_t k = 0; k < classes; ++k) {
        F lead_of_class = by_class ? leads * by_class[k] : leads, offset = by_class ? offsets * by_class[k] : offsets;
        F u = load(kept.u + k * NF), alpha = load(kept.alpha + k * NF), excess = load(kept.excess + k * NF);
        F grad = near ? near_grad(u, excess, lead_of_class, pulls, weights)
                       : far_grad(u, alpha, excess, pulls, weights, offset);
        grad = label == int32_t(k) ? own : grad;
        store(to + k * stride, limited(grad, bound));
    }
}

// Counts; the class kept apart is the largest. A row whose gradient is small against its terms has lost digits and is
// computed again in double lanes.

constexpr float SOFT_MOST = 1e6f;    // of a count
constexpr float SOFT_MARGIN = 0.2f;  // of the largest gradient over the largest term

struct SoftSums {
    D alpha, mass, excess, body; // whole blocks, in double
    F part_alpha, part_mass, part_excess, part_body, most;
    FI range, wrong;

    INLINE SoftSums() {
        alpha = mass = excess = body = D{};
        part_alpha = part_mass = part_excess = part_body = most = F{};
        range = wrong = FI{};
    }

    template <Prior kind, bool masked, bool keeps>
    INLINE void add(F z, F counts, const Plain& plain, FI mask, const Kept& kept, int64_t k, int64_t left = NF) {
        const float weight = float(plain.kl_weight);
        const Beta prior = plain.lanes<kind>(k);
        Concentration c = concentration<kind>(z, prior);
        if (keeps) {
            store_up_to(kept.u + k, left, polynomial(EXCESS_F, c.w) * c.inverse);
            store(kept.alpha + k, c.alpha);
            store(kept.excess + k, c.excess);
        }
        F log_next = logarithm(c.next), g = polynomial(DIGAMMA_F, c.w);
        F likelihood = c.w * g + c.inverse - log_next;
        F entropy = z - 0.5f * log_next - c.w * polynomial(LGAMMA_F, c.w) - (1.f - c.w) * g;
        F body = (counts + weight * prior.beta) * likelihood + weight * entropy;
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
template <Prior kind, bool keeps>
INLINE bool soft_sums(const float* z, const float* counts, int64_t classes, const Plain& plain, const Kept& kept,
                      Block& block, int i, int64_t& top) {
    SoftSums sums;
    top = position_of_largest(z, classes);
    const int64_t whole = classes / NF * NF, group = top / NF * NF;
    for (int64_t k = 0; k < whole; k += NF) {
        if (k == group)
            sums.add<kind, true, keeps>(load(z + k), load(counts + k), plain, counted(FI{}, k, classes, top), kept, k);
        else
            sums.add<kind, false, keeps>(load(z + k), load(counts + k), plain, FI{}, kept, k);
        if (k / NF % 16 == 15) sums.flush();
    }
    if (int64_t left = classes - whole) {
        F part = load_part(z + whole, left), some = load_part(counts + whole, left);
        sums.add<kind, true, keeps>(part, some, plain, counted(FI{}, whole, classes, top), kept, whole, left);
    }
    sums.flush();
    F bad = (F)(((sums.range > PLAIN_RANGE_BITS) | sums.wrong) & 0x7fc00000);
    const double kl_weight = plain.kl_weight, others = double(classes - 1);
    const double body = sum(sums.body + widened_sum(bad));
    if (body != body) return false;
    block.z[i] = z[top];
    block.m[i] = double(counts[top]) + kl_weight * plain.of(top);
    block.mass[i] = sum(sums.mass) + kl_weight * plain.of_others(top, classes);
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
    switch (plain.kind()) {
    case Prior::one:
        return keeps ? soft_sums<Prior::one, true>(z, counts, classes, plain, kept, block, i, top)
                     : soft_sums<Prior::one, false>(z, counts, classes, plain, kept, block, i, top);
    case Prior::number:
        return keeps ? soft_sums<Prior::number, true>(z, counts, classes, plain, kept, block, i, top)
                     : soft_sums<Prior::number, false>(z, counts, classes, plain, kept, block, i, top);
    default:
        return keeps ? soft_sums<Prior::by_class, true>(z, counts, classes, plain, kept, block, i, top)
                     : soft_sums<Prior::by_class, false>(z, counts, classes, plain, kept, block, i, top);
    }
}

// The gradient of a row, times `scale`; false if it has lost digits.
inline bool soft_gradient(const Kept& kept, const float* counts, int64_t classes, int64_t top, const Plain& plain,
                          const Block& block, int i, double scale, double limit, float* to) {
    F lead = splat(float(plain.prior * block.lead[i] * scale)), pull = splat(float(block.pull[i] * scale));
    F weight = splat(float(plain.kl_weight * scale)), offset = weight * plain.beta, size = splat(float(scale));
    F bound = splat(limit < 1e30 ? float(limit * std::fabs(scale)) : 3e38f), most_grad{}, most_term{};
    const bool near = std::fabs(block.lead[i]) < plain.kl_weight;
    const float* by_class = plain.by_class ? plain.by_class->beta.data() : nullptr;
    for (int64_t k = 0; k < classes; k += NF) {
        const int64_t left = classes - k;
        F leads = by_class ? lead * load(by_class + k) : lead, offsets = by_class ? offset * load(by_class + k) : offset;
        F u = load_up_to(kept.u + k, left), alpha = load(kept.alpha + k), excess = load(kept.excess + k);
        F term = load_up_to(counts + k, left) * (size + size * u);
        F grad = near ? near_grad(u, excess, leads, pull, weight) : far_grad(u, alpha, excess, pull, weight, offsets);
        grad = grad - term;
        FI mask = counted(FI{}, k, classes, top);
        most_grad = larger(keep(mask, magnitude(grad)), most_grad);
        most_term = larger(keep(mask, magnitude(term)), most_term);
        grad = limited(grad, bound);
        store_up_to(to + k, left, grad);
    }
    to[top] = float(scale * limited(block.apart[i], limit));
    const float own = std::fabs(to[top]), grads = largest(most_grad);
    return (own > grads ? own : grads) >= SOFT_MARGIN * largest(most_term);
}
