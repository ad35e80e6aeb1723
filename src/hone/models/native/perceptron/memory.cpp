// Memory that the passes keep from one call to the next.
#include "perceptron.h"
#include "workspace.h"

namespace hone {

float* room(int place, size_t floats) {
  thread_local Workspace kept[16];
  return kept[place].at_least(floats);
}

}  // namespace hone
