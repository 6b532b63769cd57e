// The rows of a call shared out among threads, each with memory of its own.
#pragma once

#include <algorithm>
#include <memory>

#include "problem.h"
#include "threads.h"

namespace beliefmatch {

constexpr int64_t LEAST_WORK = 8192; // classes times rows below which another thread costs more than it brings

// Memory for a call, aligned to cache lines. The calling thread keeps a little for its next one.
class Scratch {
    static constexpr size_t KEPT = 1 << 17, LINE = 8; // doubles
    std::unique_ptr<double[]> own;

    static double* aligned(double* data) {
        return reinterpret_cast<double*>((reinterpret_cast<uintptr_t>(data) + 63) / 64 * 64);
    }

public:
    double* data;

    explicit Scratch(size_t size) {
        static thread_local std::unique_ptr<double[]> kept;
        auto& place = size > KEPT ? own : kept;
        if (!place) place.reset(new double[(size > KEPT ? size : KEPT) + LINE]);
        data = aligned(place.get());
    }
};

// Splits the rows among threads; work(first row, last row, scratch of its own).
template <class Work> void over_rows(const Problem& p, int64_t threads, int64_t scratch_size, const Work& work) {
    int64_t rows = p.rows(), useful = rows * p.classes / LEAST_WORK + 1;
    int64_t parts = std::max<int64_t>(1, std::min({threads, useful, rows}));
    int64_t size = (scratch_size + 7) / 8 * 8;
    Scratch scratch(size_t(size * parts));
    in_parallel(int(parts), [&](int part) {
        work(rows * part / parts, rows * (part + 1) / parts, scratch.data + size * part);
    });
}

} // namespace beliefmatch
