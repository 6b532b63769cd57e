// Plain rows side by side, one a lane: for images, whose positions lie side by side in memory, and for short rows.
// A column is one class of as many rows as there are lanes. Included once for every instruction set.

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

    ColumnSource(const Strided& s, const Problem& p)
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
    bool beside(int64_t row, int rows) const {
        return tensor.inner_stride == 1 && inner > 1 && rows == NF && row / inner == (row + NF - 1) / inner;
    }
    template <class From> void copy_in_as(int64_t row, int rows) const {
        auto from = reinterpret_cast<const From*>(tensor.row(row, inner));
        if (beside(row, rows)) {
            for (int64_t k = 0; k < classes; ++k, from += tensor.class_stride)
                for (int i = 0; i < NF; ++i) scratch[k * NF + i] = float(value_of(from + i));
            return;
        }
        for (int i = 0; i < rows; ++i) {
            from = reinterpret_cast<const From*>(tensor.row(row + i, inner));
            for (int64_t k = 0; k < classes; ++k) scratch[k * NF + i] = float(value_of(from + k * tensor.class_stride));
        }
    }
    template <class To> void copy_out_as(int64_t row, int rows) const {
        auto to = reinterpret_cast<To*>(tensor.row(row, inner));
        if (beside(row, rows)) {
            for (int64_t k = 0; k < classes; ++k, to += tensor.class_stride)
                for (int i = 0; i < NF; ++i) put(to + i, scratch[k * NF + i]);
            return;
        }
        for (int i = 0; i < rows; ++i) {
            to = reinterpret_cast<To*>(tensor.row(row + i, inner));
            for (int64_t k = 0; k < classes; ++k) put(to + k * tensor.class_stride, scratch[k * NF + i]);
        }
    }
};

// Sums over the classes of every lane's row but its label, and the logit of that.
template <bool unit_prior, bool keeps>
INLINE F column_sums(const Columns& columns, int64_t classes, const Plain& plain, const Kept& kept, PlainSums& sums) {
    FI own{}, valid = columns.label >= 0;
    for (int64_t k = 0; k < classes; ++k) {
        F z = load(columns.z + k * columns.stride);
        FI is_label = columns.label == int32_t(k);
        own |= (FI)z & is_label;
        sums.add<unit_prior, true, keeps>(z, plain, valid & ~is_label, kept, k * NF);
        sums.added(1);
        if (!sums.room()) sums.flush();
        else if (k % 2 == 1) sums.settle();
    }
    sums.flush();
    return (F)own;
}

// Enters the rows from lane 0 on into the block from row i on; says which are out of range.
INLINE void enter_columns(Block& block, int i, int rows, const Plain& plain, int64_t classes, F own, PlainSums& sums,
                          const bool* counts, bool* is_exact) {
    double rest[NF], excess[NF], body[NF], mantissa[NF];
    for (int half = 0; half < 2; ++half) {
        store(rest + half * ND, sums.alpha[half]);
        store(excess + half * ND, sums.excess[half]);
        store(body + half * ND, sums.whole_body(plain, half));
        store(mantissa + half * ND, half ? high_half(sums.mantissa) : low_half(sums.mantissa));
    }
    for (int lane = 0; lane < rows; ++lane)
        if (counts[lane] && !enter_plain(block, i + lane, plain, classes, own[lane], rest[lane], excess[lane],
                                         body[lane], mantissa[lane]))
            is_exact[i + lane] = true;
}

template <bool keeps>
inline void columns_sums(const Columns& columns, int64_t classes, int rows, const Plain& plain, const Kept& kept,
                         Block& block, int i, const bool* counts, bool* is_exact) {
    PlainSums sums;
    F own = plain.prior == 1 ? column_sums<true, keeps>(columns, classes, plain, kept, sums)
                             : column_sums<false, keeps>(columns, classes, plain, kept, sums);
    enter_columns(block, i, rows, plain, classes, own, sums, counts, is_exact);
}

// Gradients of the rows from i on, each times its scale; slopes saturate at `limit`.
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
    for (int64_t k = 0; k < classes; ++k) {
        F u = load(kept.u + k * NF), alpha = load(kept.alpha + k * NF), excess = load(kept.excess + k * NF);
        F slope = near ? near_slope(u, excess, leads, pulls, weights)
                       : far_slope(u, alpha, excess, pulls, weights, offsets);
        slope = label == int32_t(k) ? own : slope;
        store(to + k * stride, limited(slope, bound));
    }
}
