// Memory that is kept for the next call and grows with what is asked of it. One for each thread: make it thread_local.
#pragma once
#include <cstddef>
#include <cstdlib>

namespace hone {

struct Workspace {
  void* data = nullptr;
  size_t floats = 0;
  ~Workspace() { std::free(data); }

  float* at_least(size_t wanted) {
    if (floats < wanted) {
      std::free(data);
      floats = 0;
      data = std::aligned_alloc(64, (wanted * sizeof(float) + 63) / 64 * 64);
      if (!data) std::abort();
      floats = wanted;
    }
    return static_cast<float*>(data);
  }
};

}  // namespace hone
