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

// α and α − β, each with full relative precision.
template <Prior kind> INLINE void concentration(F z, const Beta& prior, F& alpha, F& excess) {
    if (kind == Prior::one) exponential(z, alpha, excess);
    else exponential_beyond(z, prior.beta, prior.log_beta, prior.log_beta_rest, alpha, excess);
}

struct Inverses {
    F w, inverse; // 1/(1 + α), 1/α
};

// At the price of one division.
INLINE Inverses inverses(F alpha) {
    F both = 1.f / (alpha * (1.f + alpha)), w = both * alpha;
    return {w, both + w};
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

    // The classes are visited in steps, which leave α for one another: the operations of one step wait for each other,
    // and of a short step the processor has several vectors in hand at a time.
    template <Prior kind, bool masked, bool keeps>
    INLINE void add_concentrations(F z, const Beta& prior, FI mask, const Kept& kept, int64_t k) {
        F alpha, excess;
        if (masked) z = keep(mask, z);
        concentration<kind>(z, prior, alpha, excess);
        store(kept.alpha + k, alpha);
        part_alpha = masked ? plus(mask, part_alpha, alpha) : part_alpha + alpha;
        if (keeps) {
            store(kept.excess + k, excess);
            part_excess = masked ? plus(mask, part_excess, excess) : part_excess + excess;
        }
        if (kind != Prior::by_class) mantissa += mantissa * (masked ? keep(mask, alpha) : alpha);
        FI size = (FI)z & 0x7fffffff; // ordered like |z|, with NaN at the top
        range = size > range ? size : range;
    }

    template <Prior kind, bool masked, bool keeps>
    INLINE void add_terms(F z, const Plain& plain, const Beta& prior, FI mask, const Kept& kept, int64_t k, int64_t left = NF) {
        const Inverses c = inverses(load(kept.alpha + k));
        if (keeps) store_up_to(kept.u + k, left, polynomial(EXCESS_F, c.w) * c.inverse);
        F body = kind == Prior::one ? z + c.inverse : z + prior.beta * c.inverse;
        body += c.w * polynomial(plain.remainder, c.w);
        if (kind == Prior::by_class) body += prior.beta * (c.w * polynomial(DIGAMMA_F, c.w));
        part_body = masked ? plus(mask, part_body, body) : part_body + body;
    }

    // −(β + ½) ln(1 + α), where it is no logarithm of a product.
    template <bool masked> INLINE void add_logarithms(const Beta& prior, FI mask, const Kept& kept, int64_t k) {
        F body = (prior.beta + 0.5f) * -logarithm(1.f + load(kept.alpha + k));
        part_body = masked ? plus(mask, part_body, body) : part_body + body;
    }

    INLINE int room() const { return MOST_ADDED - pending; }
    INLINE void added(int count) {
        settle();
        if ((pending += count) == MOST_ADDED) flush();
    }

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

// Whether no logit of a row was out of range or not a number.
INLINE bool is_in_range(const Block& block, int i) {
    return std::fabs(block.z[i]) <= PLAIN_RANGE && block.body[i] == block.body[i];
}

// Near the optimum β·lead + (α − β)(pull + λu), elsewhere, where that would cancel, α·pull − λβ + (α − β)λu; all times
// the row's scale. One form for both: `base` is α − β or α, `anchor` what is left of the classes' own terms.
INLINE F grad_of_class(F u, F base, F excess, F anchor, F pull, F kl_weight) {
    return anchor + (base * pull + excess * (kl_weight * u));
}
INLINE bool is_near(const Plain& plain, const Block& block, int i) { return std::fabs(block.lead[i]) < plain.kl_weight; }
INLINE double anchor_of(const Plain& plain, const Block& block, int i) {
    return plain.prior * (is_near(plain, block, i) ? block.lead[i] : -plain.kl_weight);
}
INLINE F limited(F grad, F limit) {
    grad = grad > limit ? limit : grad;
    return grad < -limit ? -limit : grad;
}

// Rows one by one, their classes in the lanes: for rows that are contiguous and not short.

template <Prior kind, bool keeps>
INLINE void add_classes(PlainSums& sums, const float* z, int64_t from, int64_t to, const Plain& plain, const Kept& kept) {
    for (int64_t end; from < to; from = end) {
        end = std::min(to, from + sums.room() * NF);
        for (int64_t k = from; k < end; k += NF) {
            sums.add_concentrations<kind, false, keeps>(load(z + k), plain.lanes<kind>(k), FI{}, kept, k);
            if ((k - from) / NF % 2) sums.settle();
        }
        for (int64_t k = from; k < end; k += NF)
            sums.add_terms<kind, false, keeps>(load(z + k), plain, plain.lanes<kind>(k), FI{}, kept, k);
        for (int64_t k = from; kind == Prior::by_class && k < end; k += NF)
            sums.add_logarithms<false>(plain.lanes<kind>(k), FI{}, kept, k);
        sums.added(int((end - from) / NF));
    }
}

template <Prior kind, bool keeps>
INLINE void add_some_classes(PlainSums& sums, F z, int64_t k, int64_t classes, int64_t label, const Plain& plain,
                             const Kept& kept) {
    const FI mask = counted(FI{}, k, classes, label);
    const Beta prior = plain.lanes<kind>(k);
    sums.add_concentrations<kind, true, keeps>(z, prior, mask, kept, k);
    sums.add_terms<kind, true, keeps>(z, plain, prior, mask, kept, k, classes - k);
    if (kind == Prior::by_class) sums.add_logarithms<true>(prior, mask, kept, k);
    sums.added(1);
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
    const double kl_weight = plain.kl_weight, body = sum(sums.whole_body(plain, 0) + sums.whole_body(plain, 1));
    block.z[i] = z[label];
    block.m[i] = 1 + kl_weight * plain.of(label);
    block.mass[i] = kl_weight * plain.of_others(label, classes);
    block.rest[i] = sum(sums.alpha[0] + sums.alpha[1]);
    block.excess[i] = -kl_weight * sum(sums.excess[0] + sums.excess[1]);
    block.kl_weight[i] = kl_weight;
    block.body[i] = kl_weight * (body + plain.constant * double(classes - 1));
    block.log_weight[i] = -kl_weight * (plain.prior + 0.5); // the mantissa is 1 where every class has its own prior
    block.mantissa[i] = product(low_half(sums.mantissa) * high_half(sums.mantissa));
    return is_in_range(block, i);
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

// The gradient of a row, times `scale`, saturating at `limit`.
inline void row_gradient(const Kept& kept, int64_t classes, int64_t label, const Plain& plain, const Block& block, int i,
                         double scale, double limit, float* to) {
    F anchor = splat(float(anchor_of(plain, block, i) * scale)), pull = splat(float(block.pull[i] * scale));
    F kl_weight = splat(float(plain.kl_weight * scale));
    const float* base = is_near(plain, block, i) ? kept.excess : kept.alpha;
    const float* by_class = plain.by_class ? plain.by_class->beta.data() : nullptr;
    for (int64_t k = 0; k < classes; k += NF) {
        const int64_t left = classes - k;
        F u = load_up_to(kept.u + k, left), own_anchor = by_class ? anchor * load(by_class + k) : anchor;
        F grad = grad_of_class(u, load(base + k), load(kept.excess + k), own_anchor, pull, kl_weight);
        store_up_to(to + k, left, grad);
    }
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
#if defined(SHUFFLES)
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
#if defined(SHUFFLES)
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
#if defined(SHUFFLES)
        if (is_matrix(rows)) return write_matrix(reinterpret_cast<float*>(to));
#endif
        for (int i = 0; i < rows; ++i) {
            to = reinterpret_cast<To*>(tensor.row(row + i, inner));
            for (int64_t k = 0; k < classes; ++k) put(to + k * tensor.class_stride, scratch[k * NF + i]);
        }
    }
};

// Sums over the classes of every lane's row but its label.
template <Prior kind, bool keeps>
INLINE void column_sums(const Columns& columns, int64_t classes, const Plain& plain, const Kept& kept, PlainSums& sums) {
    const FI label = columns.label, valid = label >= 0;
    for (int64_t from = 0, end; from < classes; from = end) {
        end = std::min(classes, from + sums.room());
        for (int64_t k = from; k < end; ++k) {
            F z = load(columns.z + k * columns.stride);
            sums.add_concentrations<kind, true, keeps>(z, plain.column<kind>(k), valid & (label != int32_t(k)), kept, k * NF);
            if ((k - from) % 2) sums.settle();
        }
        for (int64_t k = from; k < end; ++k) {
            F z = load(columns.z + k * columns.stride);
            sums.add_terms<kind, true, keeps>(z, plain, plain.column<kind>(k), label != int32_t(k), kept, k * NF);
        }
        for (int64_t k = from; kind == Prior::by_class && k < end; ++k)
            sums.add_logarithms<true>(plain.column<kind>(k), label != int32_t(k), kept, k * NF);
        sums.added(int(end - from));
    }
    sums.flush();
}

// The logit of every lane's label.
INLINE void own_logits(const Columns& columns, double (&own)[NF]) {
    int32_t label[NF];
    memcpy(label, &columns.label, sizeof label);
    for (int lane = 0; lane < NF; ++lane) own[lane] = label[lane] < 0 ? 0 : columns.z[label[lane] * columns.stride + lane];
}

// Enters the rows from lane 0 on into the block from row i on; says which are out of range.
INLINE void enter_columns(Block& block, int i, int rows, const Plain& plain, int64_t classes, const Columns& columns,
                          const double* own, PlainSums& sums, const bool* counts, bool* is_exact) {
    const double kl_weight = plain.kl_weight;
    for (int half = 0; half < 2; ++half) {
        const int from = i + half * ND;
        store(block.rest + from, sums.alpha[half]);
        store(block.excess + from, -kl_weight * sums.excess[half]);
        store(block.body + from, kl_weight * (sums.whole_body(plain, half) + plain.constant * double(classes - 1)));
        store(block.mantissa + from, half ? high_half(sums.mantissa) : low_half(sums.mantissa));
        store(block.kl_weight + from, splat(kl_weight));
        store(block.log_weight + from, splat(-kl_weight * (plain.prior + 0.5)));
    }
    int32_t label[NF];
    memcpy(label, &columns.label, sizeof label);
    for (int lane = 0; lane < NF; ++lane) {
        const int64_t of_row = label[lane] < 0 ? 0 : label[lane];
        block.z[i + lane] = own[lane];
        block.m[i + lane] = 1 + kl_weight * plain.of(of_row);
        block.mass[i + lane] = kl_weight * plain.of_others(of_row, classes);
    }
    for (int lane = 0; lane < rows; ++lane)
        is_exact[i + lane] |= counts[lane] && !is_in_range(block, i + lane);
}

template <bool keeps>
inline void columns_sums(const Columns& columns, int64_t classes, int rows, const Plain& plain, const Kept& kept,
                         Block& block, int i, const bool* counts, bool* is_exact) {
    PlainSums sums;
    double own[NF];
    own_logits(columns, own); // what is kept may take their place
    switch (plain.kind()) {
    case Prior::one: column_sums<Prior::one, keeps>(columns, classes, plain, kept, sums); break;
    case Prior::number: column_sums<Prior::number, keeps>(columns, classes, plain, kept, sums); break;
    case Prior::by_class: column_sums<Prior::by_class, keeps>(columns, classes, plain, kept, sums); break;
    }
    enter_columns(block, i, rows, plain, classes, columns, own, sums, counts, is_exact);
}

// Gradients of the rows from i on, each times its scale, saturating at `limit`.
inline void columns_gradient(FI label, int64_t classes, const Plain& plain, const Kept& kept, const Block& block, int i,
                             const double* scale, double limit, float* to, int64_t stride) {
    float anchor[NF], pull[NF], kl_weight[NF], apart[NF], most[NF];
    int32_t near[NF];
    for (int lane = 0; lane < NF; ++lane) {
        near[lane] = is_near(plain, block, i + lane) ? -1 : 0;
        anchor[lane] = float(anchor_of(plain, block, i + lane) * scale[lane]);
        pull[lane] = float(block.pull[i + lane] * scale[lane]);
        kl_weight[lane] = float(plain.kl_weight * scale[lane]);
        apart[lane] = float(block.apart[i + lane] * scale[lane]);
        most[lane] = limit < 1e30 ? float(limit * std::fabs(scale[lane])) : 3e38f;
    }
    FI are_near;
    memcpy(&are_near, near, sizeof near);
    F anchors = load(anchor), pulls = load(pull), weights = load(kl_weight), own = load(apart);
    const float* by_class = plain.by_class ? plain.by_class->beta.data() : nullptr;
    for (int64_t k = 0; k < classes; ++k) {
        F u = load(kept.u + k * NF), alpha = load(kept.alpha + k * NF), excess = load(kept.excess + k * NF);
        F own_anchor = by_class ? anchors * by_class[k] : anchors;
        F grad = grad_of_class(u, are_near ? excess : alpha, excess, own_anchor, pulls, weights);
        store(to + k * stride, label == int32_t(k) ? own : grad);
    }
    if (limit < 1e30) // only half precision has a limit that plain rows can reach
        for (int64_t k = 0; k < classes; ++k) store(to + k * stride, limited(load(to + k * stride), load(most)));
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
        F alpha, beyond;
        concentration<kind>(z, prior, alpha, beyond);
        const Inverses c = inverses(alpha);
        if (keeps) {
            store_up_to(kept.u + k, left, polynomial(EXCESS_F, c.w) * c.inverse);
            store(kept.alpha + k, alpha);
            store(kept.excess + k, beyond);
        }
        F log_next = logarithm(1.f + alpha), g = polynomial(DIGAMMA_F, c.w);
        F likelihood = c.w * g + c.inverse - log_next;
        F entropy = z - 0.5f * log_next - c.w * polynomial(LGAMMA_F, c.w) - (1.f - c.w) * g;
        F body = (counts + weight * prior.beta) * likelihood + weight * entropy;
        F excess = counts - weight * beyond;
        wrong |= ~((counts >= 0.f) & (counts <= SOFT_MOST));
        FI size = (FI)z & 0x7fffffff;
        range = size > range ? size : range;
        part_alpha += masked ? keep(mask, alpha) : alpha;
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
    F anchor = splat(float(anchor_of(plain, block, i) * scale)), pull = splat(float(block.pull[i] * scale));
    F weight = splat(float(plain.kl_weight * scale)), size = splat(float(scale));
    F bound = splat(limit < 1e30 ? float(limit * std::fabs(scale)) : 3e38f), most_grad{}, most_term{};
    const float* base = is_near(plain, block, i) ? kept.excess : kept.alpha;
    const float* by_class = plain.by_class ? plain.by_class->beta.data() : nullptr;
    for (int64_t k = 0; k < classes; k += NF) {
        const int64_t left = classes - k;
        F u = load_up_to(kept.u + k, left), own_anchor = by_class ? anchor * load(by_class + k) : anchor;
        F term = load_up_to(counts + k, left) * (size + size * u);
        F grad = grad_of_class(u, load(base + k), load(kept.excess + k), own_anchor, pull, weight);
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
