// A range of rows, from the memory of the caller to the memory of the caller. Included once for every
// instruction set.

INLINE int64_t pitch_of(int64_t classes) { return (classes + 31) / 16 * 16; }

// Rows of a tensor as the lanes want them.
template <class T> struct Source {
    const Strided* tensor;
    T* scratch;
    int64_t inner, classes, pitch, first = 0;
    bool direct, together;

    Source(const Strided& s, const Problem& p)
        : tensor(&s), scratch(nullptr), inner(p.inner), classes(p.classes), pitch(pitch_of(p.classes)),
          direct(in_place<T>(s)), together(!direct && s.class_stride != 1 && s.inner_stride == 1 && inner > 1) {}

    int64_t scratch_size() const { return direct ? 0 : together ? BLOCK * pitch : pitch; }

    void begin(int64_t row, int rows) {
        first = row;
        if (together) read(*tensor, row, rows, inner, classes, scratch, pitch);
    }
    // Valid until the next row is asked for.
    T* row(int i) {
        if (direct) return reinterpret_cast<T*>(tensor->row(first + i, inner));
        if (together) return scratch + i * pitch;
        read(*tensor, first + i, 1, inner, classes, scratch, pitch);
        return scratch;
    }
};

// The same for writing: fill row(i), then end_row(i), then end() after the last.
template <class T> struct Sink : Source<T> {
    using Source<T>::Source;

    void begin(int64_t row) { this->first = row; }
    T* row(int i) {
        if (this->direct) return reinterpret_cast<T*>(this->tensor->row(this->first + i, this->inner));
        return this->together ? this->scratch + i * this->pitch : this->scratch;
    }
    void end_row(int i) {
        if (!this->direct && !this->together)
            write(*this->tensor, this->first + i, 1, this->inner, this->classes, this->scratch, this->pitch);
    }
    void end(int rows) {
        if (this->together)
            write(*this->tensor, this->first, rows, this->inner, this->classes, this->scratch, this->pitch);
    }
};

INLINE double largest_of(Kind kind) {
    return kind == Kind::float64    ? 1.7976931348623157e308
           : kind == Kind::float32  ? 3.4028234663852886e38
           : kind == Kind::bfloat16 ? 3.3895313892515355e38
                                    : 65504.;
}

// Everything one thread needs for rows in double lanes.
class ExactRows {
    const Problem& p;
    Source<double> logits, counts, prior;
    double *own_logits, *own_counts, *own_prior;
    bool uneven, knows_normaliser = false, is_filled = false;
    double normaliser = 0;
    int64_t opened = -1;
    ExactRow current = {};

public:
    static int64_t scratch_size(const Problem& p) {
        int64_t size = 3 * pitch_of(p.classes) + Source<double>(p.logits, p).scratch_size();
        if (p.counts) size += Source<double>(p.counts, p).scratch_size();
        if (p.prior) size += Source<double>(p.prior, p).scratch_size();
        return size;
    }

    ExactRows(const Problem& problem, double* scratch)
        : p(problem), logits(p.logits, p), counts(p.counts, p), prior(p.prior, p),
          uneven(p.prior && (p.prior.outer_stride != 0 || (p.inner > 1 && p.prior.inner_stride != 0))) {
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
        if (p.prior) prior.begin(row, rows);
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

    double log_normaliser_of(const ExactRow& row) {
        if (!p.prior) return p.log_normaliser;
        if (uneven || !knows_normaliser) normaliser = log_normaliser(row.prior, p.classes);
        knows_normaliser = true;
        return normaliser;
    }

private:
    bool fill(ExactRow& row, int64_t index, int i, bool begun) {
        row.kl_weight = p.row_kl_weight ? p.row_kl_weight[index] : p.kl_weight;
        if (!is_filled) {
            std::fill_n(own_counts, p.classes, 0.);
            std::fill_n(own_prior, p.classes, p.prior_number);
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
        if (p.prior) {
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

constexpr double SMALL_LOSS = 0.02;
constexpr int64_t SHORT_ROW = 80; // classes up to which rows go side by side even if they have to be turned

enum class Way { rows, columns, soft, exact };

INLINE Way way_of(const Problem& p) {
    if (is_soft(p)) return Way::soft;
    if (!is_plain(p)) return Way::exact;
    bool beside = p.logits.class_stride != 1 && p.logits.inner_stride == 1 && p.inner >= NF;
    return beside || p.classes <= SHORT_ROW ? Way::columns : Way::rows;
}

// Few enough rows for what is kept of them to stay in cache.
inline int rows_at_once(const Problem& p) {
    if (way_of(p) == Way::columns) return BLOCK;
    if (p.logits.class_stride != 1 && p.inner > 1) return BLOCK; // rows that are read together
    int64_t fitting = (way_of(p) == Way::exact ? 512 : 4096) / p.classes;
    return int(fitting < 1 ? 1 : fitting > BLOCK ? BLOCK : fitting);
}

// Everything one thread needs, and its walk over the rows.
class Worker {
    const Problem& p;
    const Output& out;
    const Plain plain;
    const int64_t pitch;
    const double limit;
    const Way way;
    const bool wants_slopes, fine;
    const int block_rows;
    Block block;
    bool counts[BLOCK], is_exact[BLOCK];
    ExactRows exact;
    Source<float> logits, soft_counts;
    int64_t top[BLOCK];
    Sink<float> rows_to;
    Sink<double> exact_to;
    ColumnSource columns, columns_to;
    double *alpha, *wide;
    float* kept;

public:
    static int64_t scratch_size(const Problem& p) {
        int64_t pitch = pitch_of(p.classes), rows = rows_at_once(p);
        return ExactRows::scratch_size(p) + (rows + 1 + 3 * BLOCK / 2 + 2 * rows) * pitch;
    }

    Worker(const Problem& problem, const Output& output, double* scratch)
        : p(problem), out(output), plain(p), pitch(pitch_of(p.classes)), limit(largest_of(out.gradient.kind)),
          way(way_of(p)), wants_slopes(bool(out.gradient)), fine(p.logits.kind == Kind::float64), block_rows(rows_at_once(p)), exact(p, scratch),
          logits(p.logits, p), soft_counts(p.counts, p), rows_to(out.gradient, p), exact_to(out.gradient, p), columns(p.logits, p),
          columns_to(out.gradient, p) {
        alpha = scratch + ExactRows::scratch_size(p);
        wide = alpha + block_rows * pitch;
        exact_to.scratch = wide + pitch; // one way or the other is in use
        logits.scratch = columns.scratch = reinterpret_cast<float*>(exact_to.scratch);
        rows_to.scratch = columns_to.scratch = logits.scratch + BLOCK * pitch;
        soft_counts.scratch = rows_to.scratch + BLOCK * pitch;
        kept = reinterpret_cast<float*>(exact_to.scratch + 3 * BLOCK / 2 * pitch);
    }

    // Rows from `first` to `last`. False if one of them is not for this kernel.
    bool run(int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row += block_rows) {
            int rows = int(last - row < block_rows ? last - row : block_rows);
            begin(row, rows);
            if (way == Way::columns) all_columns_sums(row, rows);
            else if (way == Way::rows) all_rows_sums(row, rows);
            else if (way == Way::soft) all_soft_sums(rows);
            if (!all_exact_sums(row, rows)) return false;
            finish(block, rows, out.largest_loss, wants_slopes);
            if (way != Way::exact) refine_small_losses(row, rows);
            for (int i = 0; i < rows; ++i) out.row_loss[row + i] = counts[i] ? block.loss[i] : 0;
            if (!wants_slopes) continue;
            if (way == Way::columns) all_columns_slopes(row, rows);
            else if (way == Way::exact) all_exact_slopes(row, rows);
            else all_rows_slopes(row, rows);
        }
        return true;
    }

private:
    Kept kept_of(int i) {
        Kept of_row(kept + i * Kept::size(pitch), pitch);
        if (rows_to.direct && wants_slopes) of_row.u = rows_to.row(i);
        return of_row;
    }
    Kept kept_of_columns(int i) const { return Kept(kept + i * Kept::size(pitch), p.classes * NF); }
    static int lanes(int i, int rows) { return rows - i < NF ? rows - i : NF; }

    void begin(int64_t row, int rows) {
        for (int i = 0; i < BLOCK; ++i) {
            block.clear(i);
            block.log_normaliser[i] = p.log_normaliser;
            counts[i] = i < rows && !p.ignored(row + i);
            // too large an upstream gradient would leave the range of floats half way
            is_exact[i] = counts[i] && (way == Way::exact ||
                                        (wants_slopes && !(std::fabs(out.row_scale[row + i]) <= PLAIN_SCALE)));
        }
        if (way == Way::rows || way == Way::soft) {
            logits.begin(row, rows);
            rows_to.begin(row);
        }
        if (way == Way::soft) soft_counts.begin(row, rows);
        if (way == Way::exact) exact.begin(row, rows);
    }

    void all_rows_sums(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i)
            if (counts[i] && !is_exact[i])
                is_exact[i] = !row_sums(logits.row(i), p.classes, p.ids[row + i], plain, kept_of(i), wants_slopes, block, i);
    }

    void all_soft_sums(int rows) {
        for (int i = 0; i < rows; ++i) {
            if (is_exact[i]) continue;
            const float *z = logits.row(i), *votes = soft_counts.row(i);
            is_exact[i] = !soft_sums(z, votes, p.classes, plain, kept_of(i), wants_slopes, block, i, top[i]);
        }
    }

    // A row that turned out to need double lanes, in a block of its own.
    const ExactRow& exact_after_all(int64_t row, int i, Block& alone) {
        for (int lane = 0; lane < ND; ++lane) alone.clear(lane);
        const ExactRow& one = *exact.open(row + i, i, false);
        exact_sums<false>(one, p.classes, wide, alone, 0);
        alone.log_normaliser[0] = p.log_normaliser;
        finish(alone, 1, out.largest_loss, wants_slopes);
        return one;
    }

    // A loss far below the terms it is made of has lost digits in float lanes.
    void refine_small_losses(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i) {
            double terms = block.m[i] + block.mass[i] + block.kl_weight[i] * double(p.classes);
            if (p.ids) terms = block.kl_weight[i] * double(p.classes); // the label's are in double
            if (!counts[i] || is_exact[i] || block.loss[i] >= SMALL_LOSS * terms) continue;
            Block alone;
            exact_after_all(row, i, alone);
            block.loss[i] = alone.loss[0];
        }
    }

    FI labels_of(int64_t row, int i, int rows) const {
        FI label = ~FI{};
        for (int lane = 0; lane < lanes(i, rows); ++lane)
            if (counts[i + lane]) label[lane] = int32_t(p.ids[row + i + lane]);
        return label;
    }

    void all_columns_sums(int64_t row, int rows) {
        for (int i = 0; i < rows; i += NF) {
            int some = lanes(i, rows);
            Columns at{columns.read_columns(row + i, some), columns.stride(row + i, some), labels_of(row, i, rows)};
            wants_slopes ? columns_sums<true>(at, p.classes, some, plain, kept_of_columns(i), block, i, counts + i, is_exact)
                         : columns_sums<false>(at, p.classes, some, plain, kept_of_columns(i), block, i, counts + i, is_exact);
        }
    }

    bool all_exact_sums(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i) {
            if (!is_exact[i]) continue;
            const ExactRow* one = exact.open(row + i, i, way == Way::exact);
            double* at = alpha + i * pitch;
            if (!one || !(fine ? exact_sums<true>(*one, p.classes, at, block, i)
                               : exact_sums<false>(*one, p.classes, at, block, i)))
                return false;
            block.log_normaliser[i] = exact.log_normaliser_of(*one);
        }
        return true;
    }

    void exact_slopes_of(int64_t row, int i, double* to) {
        const ExactRow& one = *exact.open(row + i, i, way == Way::exact);
        const double *at = alpha + i * pitch, scale = out.row_scale[row + i];
        if (fine) exact_gradient<true>(one, p.classes, at, block, i, scale, limit, to);
        else exact_gradient<false>(one, p.classes, at, block, i, scale, limit, to);
    }

    void all_exact_slopes(int64_t row, int rows) {
        exact_to.begin(row);
        for (int i = 0; i < rows; ++i) {
            double* to = exact_to.row(i);
            if (counts[i]) exact_slopes_of(row, i, to);
            else std::fill_n(to, p.classes, 0.);
            exact_to.end_row(i);
        }
        exact_to.end(rows);
    }

    void all_rows_slopes(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i) {
            float* to = rows_to.row(i);
            if (!counts[i]) {
                std::fill_n(to, p.classes, 0.f);
            } else if (is_exact[i]) {
                exact_slopes_of(row, i, wide);
                for (int64_t k = 0; k < p.classes; ++k) to[k] = float(wide[k]);
            } else if (way == Way::rows) {
                const double scale = out.row_scale[row + i];
                row_gradient(kept_of(i), p.classes, p.ids[row + i], plain, block, i, scale, limit, to);
            } else if (!soft_gradient(kept_of(i), soft_counts.row(i), p.classes, top[i], plain, block, i,
                                      out.row_scale[row + i], limit, to)) {
                Block alone;
                const ExactRow& one = exact_after_all(row, i, alone);
                exact_gradient<false>(one, p.classes, wide, alone, 0, out.row_scale[row + i], limit, wide);
                for (int64_t k = 0; k < p.classes; ++k) to[k] = float(wide[k]);
            }
            rows_to.end_row(i);
        }
        rows_to.end(rows);
    }

    void all_columns_slopes(int64_t row, int rows) {
        for (int i = 0; i < rows; i += NF) {
            int some = lanes(i, rows);
            double scale[NF];
            for (int lane = 0; lane < some; ++lane) scale[lane] = counts[i + lane] ? out.row_scale[row + i + lane] : 0;
            float* to = columns_to.begin(row + i, some);
            columns_gradient(labels_of(row, i, rows), p.classes, some, plain, kept_of_columns(i), block, i, scale, limit,
                             to, columns_to.stride(row + i, some));
            columns_to.write_columns(row + i, some);
        }
        for (int i = 0; i < rows; ++i) {
            if (!is_exact[i]) continue;
            exact_slopes_of(row, i, wide);
            write(out.gradient, row + i, 1, p.inner, p.classes, wide, pitch);
        }
    }
};

inline int64_t scratch_size(const Problem& p) { return Worker::scratch_size(p); }

inline bool run(const Problem& p, const Output& out, int64_t first, int64_t last, double* scratch) {
    return Worker(p, out, scratch).run(first, last);
}
