// The C functions.
#include "perceptron.h"
#include "processor.h"

#define HONE_OUT extern "C" __attribute__((visibility("default")))

// Whether the passes run here.
HONE_OUT int32_t hone_runs() {
#ifdef HONE_HAS_AMX
  return hone::runs_amx();
#else
  return 0;
#endif
}

HONE_OUT void hone_forward(const hone::Perceptron* net, int64_t rows, const float* x, float* tape, float* y) {
#ifdef HONE_HAS_AMX
  hone::forward_amx(*net, {rows, x, tape, y});
#else
  (void)net, (void)rows, (void)x, (void)tape, (void)y;
#endif
}

HONE_OUT void hone_backward(const hone::Perceptron* net, int64_t rows, const float* x, const float* tape,
                            const float* slope, float* d_x, int32_t weights) {
#ifdef HONE_HAS_AMX
  hone::backward_amx(*net, {rows, x, tape, slope, d_x, weights != 0});
#else
  (void)net, (void)rows, (void)x, (void)tape, (void)slope, (void)d_x, (void)weights;
#endif
}
