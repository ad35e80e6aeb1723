// Threads that wait awake for a moment and asleep after that, and the barrier between the phases of a pass.
#pragma once

namespace hone {

struct Pool;

Pool* pool_new(int threads);
void pool_free(Pool* pool);

// Calls job(context, thread) on every thread, the caller's included, and returns when all have ended. In a forked
// child, where the threads do not exist, the caller works alone; no result depends on the number of threads.
void pool_run(Pool* pool, void (*job)(void* context, int thread), void* context);

// Within a job: wait for all threads. The counter of tasks starts anew.
void pool_barrier(Pool* pool);

// Within a job: the next `count` tasks of this phase are the caller's; returns the first one's number.
int pool_take(Pool* pool, int count);

int pool_threads(const Pool* pool);

}  // namespace hone
