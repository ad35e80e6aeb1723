#include "pool.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace hone {
namespace {

constexpr int AWAKE_US = 100;  // between two passes a decode loop is back sooner than a sleeper could be woken
constexpr int BARRIER_SPINS = 300;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct Pool {
  int threads;
  int active;  // 1 in a forked child
  pid_t owner;
  std::vector<std::thread> workers;

  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<unsigned> phase{0};
  alignas(64) std::atomic<int> next{0};
  alignas(64) std::atomic<unsigned> round{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> closing{false};
  std::mutex door;
  std::condition_variable bell;
  void (*job)(void*, int) = nullptr;
  void* context = nullptr;
};

static void wait_for_round(Pool* pool, unsigned seen) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(AWAKE_US);
  for (int spin = 1; pool->round.load(std::memory_order_acquire) == seen; ++spin) {
    relax();
    if (spin % 32 == 0 && std::chrono::steady_clock::now() > until) {
      std::unique_lock<std::mutex> lock(pool->door);
      pool->sleepers.fetch_add(1);
      pool->bell.wait(lock, [&] { return pool->round.load() != seen; });
      pool->sleepers.fetch_sub(1);
      return;
    }
  }
}

static void work(Pool* pool, int thread) {
  for (unsigned seen = 0;;) {
    wait_for_round(pool, seen);
    seen = pool->round.load(std::memory_order_acquire);
    if (pool->closing.load()) return;
    pool->job(pool->context, thread);
    pool_barrier(pool);
  }
}

static void next_round(Pool* pool) {
  pool->round.fetch_add(1);  // sequentially consistent, as is the sleepers' count: one of the two sees the other
  if (pool->sleepers.load() > 0) {
    {
      std::lock_guard<std::mutex> lock(pool->door);
    }
    pool->bell.notify_all();
  }
}

Pool* pool_new(int threads) {
  Pool* pool = new Pool;
  pool->threads = pool->active = threads < 1 ? 1 : threads;
  pool->owner = getpid();
  for (int thread = 1; thread < pool->threads; ++thread) pool->workers.emplace_back(work, pool, thread);
  return pool;
}

void pool_free(Pool* pool) {
  if (getpid() != pool->owner) return;  // a child has no threads to join, and may not destroy what they wait on
  pool->closing.store(true);
  next_round(pool);
  for (std::thread& worker : pool->workers) worker.join();
  delete pool;
}

void pool_run(Pool* pool, void (*job)(void*, int), void* context) {
  pool->active = getpid() == pool->owner ? pool->threads : 1;
  pool->job = job;
  pool->context = context;
  pool->next.store(0);
  if (pool->active > 1) next_round(pool);
  job(context, 0);
  pool_barrier(pool);
}

void pool_barrier(Pool* pool) {
  const unsigned phase = pool->phase.load(std::memory_order_relaxed);
  if (pool->arrived.fetch_add(1, std::memory_order_acq_rel) == pool->active - 1) {
    pool->arrived.store(0, std::memory_order_relaxed);
    pool->next.store(0, std::memory_order_relaxed);
    pool->phase.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; pool->phase.load(std::memory_order_acquire) == phase; ++spin) {
    if (spin < BARRIER_SPINS)
      relax();
    else
      sched_yield();  // the thread that is missing may be waiting for this core
  }
}

int pool_take(Pool* pool, int count) { return pool->next.fetch_add(count, std::memory_order_relaxed); }

int pool_threads(const Pool* pool) { return pool->threads; }

}  // namespace hone
