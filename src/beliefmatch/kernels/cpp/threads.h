// Work in parallel on the thread pool that torch already has, or on threads of our own where it has none.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

namespace beliefmatch {

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

} // namespace beliefmatch
