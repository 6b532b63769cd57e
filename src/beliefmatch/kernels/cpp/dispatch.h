// The computation compiled for every instruction set that this processor family may have, the best of them, and the
// threads that run it. The headers of a computation are included once for every instruction set, each time inside a
// namespace of its own: they have no include guards.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#include "arguments.h"
#include "coefficients.h"

#define INLINE inline __attribute__((always_inline))

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) // not before GCC 12
#define SHUFFLES
#endif
#endif

#if defined(__x86_64__) && defined(__clang__)
#define TARGET_WIDE \
    _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512dq,avx512bw,avx512vl,avx2,fma\"))), apply_to=function)")
#define TARGET_MIDDLE _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to=function)")
#define TARGET_END _Pragma("clang attribute pop")
#elif defined(__x86_64__)
#define TARGET_WIDE \
    _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512dq,avx512bw,avx512vl,avx2,fma\")")
#define TARGET_MIDDLE _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define TARGET_END _Pragma("GCC pop_options")
#endif

namespace beliefmatch {

#if defined(__x86_64__)
namespace avx512 {
TARGET_WIDE
#define LANE_BYTES 64
#include "lanes.h"
#include "rows.h"
#include "loss_exact.h"
#include "loss_float.h"
#include "loss.h"
#include "measures.h"
#include "divergence.h"
#include "readings.h"
#undef LANE_BYTES
TARGET_END
} // namespace avx512

namespace avx2 {
TARGET_MIDDLE
#define LANE_BYTES 32
#include "lanes.h"
#include "rows.h"
#include "loss_exact.h"
#include "loss_float.h"
#include "loss.h"
#include "measures.h"
#include "divergence.h"
#include "readings.h"
#undef LANE_BYTES
TARGET_END
} // namespace avx2
#endif

namespace baseline { // SSE2 or NEON
#define LANE_BYTES 16
#include "lanes.h"
#include "rows.h"
#include "loss_exact.h"
#include "loss_float.h"
#include "loss.h"
#include "measures.h"
#include "divergence.h"
#include "readings.h"
#undef LANE_BYTES
} // namespace baseline

struct InstructionSet {
    const char* name;
    bool (*supported)();
    void (*tabulate_prior)(const Inputs&, ClassPrior&);
    int64_t (*scratch_size)(const Inputs&);
    bool (*run)(const Inputs&, const Output&, int64_t, int64_t, double*);
    int64_t (*measure_scratch_size)(const Inputs&);
    bool (*measure)(Measure, const Inputs&, int64_t, int64_t, double*, double*);
    int64_t (*divergence_scratch_size)(const Inputs&, const DivergenceOutput&);
    bool (*divergence)(const Inputs&, const DivergenceOutput&, int64_t, int64_t, double*);
    int64_t (*variance_scratch_size)(const Inputs&, const Strided&);
    bool (*variance)(const Inputs&, const Strided&, int64_t, int64_t, double*);
    bool (*read_rows)(const Inputs&, const Readings&, int64_t, int64_t);
};

inline bool always() { return true; }
#if defined(__x86_64__)
inline bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#define OF_NAMESPACE(name, supported, space)                                                             \
    {name, supported, space::tabulate_prior, space::scratch_size, space::run, space::measure_scratch_size, space::measure, \
     space::divergence_scratch_size, space::divergence, space::variance_scratch_size, space::variance, \
     space::read_rows}

inline const InstructionSet INSTRUCTION_SETS[] = {
#if defined(__x86_64__)
    OF_NAMESPACE("avx512", has_avx512, avx512),
    OF_NAMESPACE("avx2", has_avx2, avx2),
    OF_NAMESPACE("sse2", always, baseline),
#elif defined(__aarch64__)
    OF_NAMESPACE("neon", always, baseline),
#else
    OF_NAMESPACE("generic", always, baseline),
#endif
};
#undef OF_NAMESPACE

// Threads: rows are shared out on the pool that torch already has, or on threads of our own where it has none.

// Both GNU's and LLVM's OpenMP runtimes export these; torch brings one of them.
struct Pool {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread)() = nullptr;
    int (*team)() = nullptr;

    static const Pool& get() {
        static const Pool pool = find();
        return pool;
    }

    bool found() const { return parallel && thread && team; }

private:
    static Pool find() {
        Pool pool;
#if !defined(_WIN32)
        pool.parallel = reinterpret_cast<decltype(pool.parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        pool.thread = reinterpret_cast<decltype(pool.thread)>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
        pool.team = reinterpret_cast<decltype(pool.team)>(dlsym(RTLD_DEFAULT, "omp_get_num_threads"));
#endif
        return pool;
    }
};

// Calls work(0) ... work(parts − 1), each once. `work` must not throw.
template <class Work> void in_parallel(int parts, const Work& work) {
    struct Team {
        const Work& work;
        int parts;
        static void run(void* self) {
            auto& team = *static_cast<Team*>(self);
            const Pool& pool = Pool::get();
            for (int part = pool.thread(); part < team.parts; part += pool.team()) team.work(part);
        }
    } team{work, parts};
    if (parts <= 1) {
        for (int part = 0; part < parts; ++part) work(part);
    } else if (Pool::get().found()) {
        Pool::get().parallel(&Team::run, &team, static_cast<unsigned>(parts), 0);
    } else {
        std::vector<std::thread> others;
        int started = 1;
        try {
            for (; started < parts; ++started) others.emplace_back([&work, started] { work(started); });
        } catch (...) { // no more threads to be had: this one does the rest
        }
        work(0);
        for (int part = started; part < parts; ++part) work(part);
        for (auto& other : others) other.join();
    }
}

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

// Splits the rows among threads: work(first row, last row, scratch of its own). False if one of them returns false.
template <class Work> bool over_rows(const Inputs& p, int64_t threads, int64_t scratch_size, const Work& work) {
    int64_t rows = p.rows(), useful = rows * p.classes / LEAST_WORK + 1;
    int64_t parts = std::max<int64_t>(1, std::min({threads, useful, rows}));
    int64_t size = (scratch_size + 7) / 8 * 8;
    Scratch scratch(size_t(size * parts));
    std::atomic<bool> done{true};
    in_parallel(int(parts), [&](int part) {
        if (!work(rows * part / parts, rows * (part + 1) / parts, scratch.data + size * part)) done = false;
    });
    return done;
}

} // namespace beliefmatch
