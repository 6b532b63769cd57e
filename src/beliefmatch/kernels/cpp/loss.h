// The loss and its gradient for a range of rows: which lanes compute each row, and the walk over them.

constexpr double SMALL_LOSS = 0.02;
constexpr int64_t SHORT_ROW = 112; // classes up to which rows go side by side even if they have to be turned

enum class Path { rows, columns, soft, exact };

INLINE Path path_of(const Inputs& p) {
    if (is_soft(p)) return Path::soft;
    if (!is_plain(p)) return Path::exact;
    bool adjacent = p.logits.class_stride != 1 && p.logits.inner_stride == 1 && p.inner >= NF;
    return adjacent || p.classes <= SHORT_ROW ? Path::columns : Path::rows;
}

// Few enough rows for what is kept of them to stay in cache.
inline int rows_at_once(const Inputs& p) {
    if (path_of(p) == Path::columns) return BLOCK;
    if (p.logits.class_stride != 1 && p.inner > 1) return BLOCK; // rows that are read together
    int64_t fitting = (path_of(p) == Path::exact ? 512 : 4096) / p.classes;
    return int(fitting < 1 ? 1 : fitting > BLOCK ? BLOCK : fitting);
}

// Everything one thread needs, and its walk over the rows.
class Worker {
    const Inputs& p;
    const Output& out;
    const Plain plain;
    const int64_t pitch;
    const double limit;
    const Path path;
    const bool wants_grads, fine;
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
    static int64_t scratch_size(const Inputs& p) {
        int64_t pitch = pitch_of(p.classes), rows = rows_at_once(p);
        return ExactRows::scratch_size(p) + (rows + 1 + 3 * BLOCK / 2 + 2 * rows) * pitch;
    }

    Worker(const Inputs& inputs, const Output& output, double* scratch)
        : p(inputs), out(output), plain(p), pitch(pitch_of(p.classes)), limit(largest_of(out.gradient.kind)),
          path(path_of(p)), wants_grads(bool(out.gradient)), fine(p.logits.kind == Kind::float64), block_rows(rows_at_once(p)), exact(p, scratch),
          logits(p.logits, p), soft_counts(p.counts, p), rows_to(out.gradient, p), exact_to(out.gradient, p), columns(p.logits, p),
          columns_to(out.gradient, p) {
        alpha = scratch + ExactRows::scratch_size(p);
        wide = alpha + block_rows * pitch;
        exact_to.scratch = wide + pitch; // one way or the other is in use
        logits.scratch = reinterpret_cast<float*>(exact_to.scratch);
        rows_to.scratch = logits.scratch + BLOCK * pitch;
        soft_counts.scratch = rows_to.scratch + BLOCK * pitch;
        kept = reinterpret_cast<float*>(exact_to.scratch + 3 * BLOCK / 2 * pitch);
    }

    // Rows from `first` to `last`. False if one of them is not for this kernel.
    bool run(int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row += block_rows) {
            int rows = int(last - row < block_rows ? last - row : block_rows);
            begin(row, rows);
            if (path == Path::columns) all_columns_sums(row, rows);
            else if (path == Path::rows) all_rows_sums(row, rows);
            else if (path == Path::soft) all_soft_sums(rows);
            if (!all_exact_sums(row, rows)) return false;
            finish(block, rows, wants_grads, fine);
            if (path != Path::exact) refine_small_losses(row, rows);
            for (int i = 0; i < rows; ++i) out.row_loss[row + i] = counts[i] ? block.loss[i] : 0;
            if (!wants_grads) continue;
            if (path == Path::columns) all_columns_grads(row, rows);
            else if (path == Path::exact) all_exact_grads(row, rows);
            else all_rows_grads(row, rows);
        }
        return true;
    }

private:
    Kept kept_of(int i) {
        Kept of_row(kept + i * Kept::size(pitch), pitch);
        if (rows_to.direct && wants_grads) of_row.u = rows_to.row(i);
        return of_row;
    }
    Kept kept_of_columns(int i) const { return Kept(kept + i * Kept::size(pitch), p.classes * NF); }
    static int lanes(int i, int rows) { return rows - i < NF ? rows - i : NF; }

    void begin(int64_t row, int rows) {
        for (int i = 0; i < BLOCK; ++i) {
            if (path != Path::columns) block.clear(i); // there whole vectors are entered, and no row is left out
            block.log_normaliser[i] = p.log_normaliser;
            counts[i] = i < rows && !p.ignored(row + i);
            // too large an upstream gradient would leave the range of floats half way
            is_exact[i] = counts[i] && (path == Path::exact ||
                                        (wants_grads && !(std::fabs(out.row_scale[row + i]) <= PLAIN_SCALE)));
        }
        if (path == Path::rows || path == Path::soft) {
            logits.begin(row, rows);
            rows_to.begin(row);
        }
        if (path == Path::soft) soft_counts.begin(row, rows);
        if (path == Path::exact) exact.begin(row, rows);
    }

    void all_rows_sums(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i)
            if (counts[i] && !is_exact[i])
                is_exact[i] = !row_sums(logits.row(i), p.classes, p.ids[row + i], plain, kept_of(i), wants_grads, block, i);
    }

    void all_soft_sums(int rows) {
        for (int i = 0; i < rows; ++i) {
            if (is_exact[i]) continue;
            const float *z = logits.row(i), *votes = soft_counts.row(i);
            is_exact[i] = !soft_sums(z, votes, p.classes, plain, kept_of(i), wants_grads, block, i, top[i]);
        }
    }

    // A row that turned out to need double lanes, in a block of its own.
    const ExactRow& exact_after_all(int64_t row, int i, Block& alone) {
        for (int lane = 0; lane < ND; ++lane) alone.clear(lane);
        const ExactRow& one = *exact.open(row + i, i, false);
        exact_sums<false>(one, p.classes, wide, alone, 0);
        alone.log_normaliser[0] = exact.log_normaliser_of(one);
        finish(alone, 1, wants_grads, fine);
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
            columns.scratch = kept_of_columns(i).u; // each class gives way to what is kept of it, that to its gradient
            Columns at{columns.read_columns(row + i, some), columns.stride(row + i, some), labels_of(row, i, rows)};
            wants_grads ? columns_sums<true>(at, p.classes, some, plain, kept_of_columns(i), block, i, counts + i, is_exact)
                         : columns_sums<false>(at, p.classes, some, plain, kept_of_columns(i), block, i, counts + i, is_exact);
        }
    }

    bool all_exact_sums(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i) {
            if (!is_exact[i]) continue;
            const ExactRow* one = exact.open(row + i, i, path == Path::exact);
            double* at = alpha + i * pitch;
            if (!one || !(fine ? exact_sums<true>(*one, p.classes, at, block, i)
                               : exact_sums<false>(*one, p.classes, at, block, i)))
                return false;
            block.log_normaliser[i] = exact.log_normaliser_of(*one);
        }
        return true;
    }

    void exact_grads_of(int64_t row, int i, double* to) {
        const ExactRow& one = *exact.open(row + i, i, path == Path::exact);
        const double *at = alpha + i * pitch, scale = out.row_scale[row + i];
        if (fine) exact_gradient<true>(one, p.classes, at, block, i, scale, limit, to);
        else exact_gradient<false>(one, p.classes, at, block, i, scale, limit, to);
    }

    void all_exact_grads(int64_t row, int rows) {
        exact_to.begin(row);
        for (int i = 0; i < rows; ++i) {
            double* to = exact_to.row(i);
            if (counts[i]) exact_grads_of(row, i, to);
            else std::fill_n(to, p.classes, 0.);
            exact_to.end_row(i);
        }
        exact_to.end(rows);
    }

    void all_rows_grads(int64_t row, int rows) {
        for (int i = 0; i < rows; ++i) {
            float* to = rows_to.row(i);
            if (!counts[i]) {
                std::fill_n(to, p.classes, 0.f);
            } else if (is_exact[i]) {
                exact_grads_of(row, i, wide);
                for (int64_t k = 0; k < p.classes; ++k) to[k] = float(wide[k]);
            } else if (path == Path::rows) {
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

    void all_columns_grads(int64_t row, int rows) {
        for (int i = 0; i < rows; i += NF) {
            int some = lanes(i, rows);
            double scale[NF] = {};
            for (int lane = 0; lane < some; ++lane) scale[lane] = counts[i + lane] ? out.row_scale[row + i + lane] : 0;
            columns_to.scratch = kept_of_columns(i).u;
            float* to = columns_to.begin(row + i, some);
            columns_gradient(labels_of(row, i, rows), p.classes, plain, kept_of_columns(i), block, i, scale, limit,
                             to, columns_to.stride(row + i, some));
            columns_to.write_columns(row + i, some);
        }
        for (int i = 0; i < rows; ++i) {
            if (!is_exact[i]) continue;
            exact_grads_of(row, i, wide);
            write(out.gradient, row + i, 1, p.inner, p.classes, wide, pitch);
        }
    }
};

inline int64_t scratch_size(const Inputs& p) { return Worker::scratch_size(p); }

inline bool run(const Inputs& p, const Output& out, int64_t first, int64_t last, double* scratch) {
    return Worker(p, out, scratch).run(first, last);
}
