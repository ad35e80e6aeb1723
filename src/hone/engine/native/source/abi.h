// The plain C interface of the compiled runner: what library.py mirrors, field by field.
#pragma once
#include <cstdint>

extern "C" {

struct HoneShape {
  int32_t layers, hidden, intermediate, heads, kv_heads, head_dim;
  int32_t vocab;       // rows of the embedding
  int32_t vocab_used;  // ids from there on have probability 0
  int32_t bfloat16;    // 0: float32 weights and activations; 1: bfloat16, with a float32 residual stream
  int32_t int8;        // 1: linear layers multiply codes of 8 bits, the head codes of 16; `bfloat16` is the embedding's
  int32_t cache;       // keys and values: CACHE_FLOAT32 ...
  float norm_eps;
  float rotary_scale;  // factor on queries and keys besides their rotation: 1 but for YaRN
  int32_t norm_whole;  // 1: queries and keys are normalised over all heads at once
  int32_t experts;     // of each layer, each with `intermediate` inner features; 0: dense
  int32_t per_token;   // experts that a token goes to
  int32_t normalise_gates;  // 1: the weights of a token's experts are divided by their sum
};

enum { CACHE_FLOAT32, CACHE_BFLOAT16, CACHE_INT8 };

// A contiguous tensor of the trainer's; `data` is null where the model has none.
struct HoneTensor {
  const void* data;
  int64_t size;      // elements
  int32_t bfloat16;  // 0: float32
};

// Tensors of a model, in the order of hone_publish: these, then LAYER_TENSORS for each layer.
enum { EMBEDDING, FINAL_NORM, HEAD, FREQUENCIES, MODEL_TENSORS };
enum {
  ATTENTION_NORM,
  QKV,
  QKV_BIAS,
  Q_NORM,
  K_NORM,
  OUT,
  OUT_BIAS,
  MLP_NORM,
  GATE_UP,
  GATE_UP_BIAS,
  DOWN,
  DOWN_BIAS,
  ROUTER,          // with experts, GATE_UP and DOWN are those of all experts, one after another
  SELECTION_BIAS,  // of the router's choice
  LAYER_TENSORS
};

// engine/work.py: Pass, Draws and Drawn.
struct HonePass {
  int32_t tokens_count, sequences, most_pages, draws;
  int32_t top_width;  // columns of top_token and top_logp
  const int32_t *tokens, *positions, *sequence, *pages;
  const int32_t *at, *given;
  const double* uniform;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const uint8_t* greedy;
  const int32_t* top_logprobs;  // [draws] likeliest tokens to report, at most top_width; null: none
  int32_t* token;
  float *logp, *sampled_logp;
  uint8_t* kept;  // [draws, ceil(vocab_used / 8)], or null: nothing truncates
  int32_t* top_token;  // [draws, top_width]
  float* top_logp;
  void* routing;  // [tokens_count, layers, per_token] uint8, uint16 for more than 255 experts; null for a dense model
};

typedef struct HoneEngine HoneEngine;

// Bit i: instruction set i of ISA_NAMES (library.py) was compiled and runs on this CPU.
uint32_t hone_instruction_sets(void);
// Of these, the ones that a less capable set outdoes on this CPU.
uint32_t hone_slow_sets(void);
int32_t hone_page_tokens(void);
HoneEngine* hone_new(const HoneShape* shape, int32_t instruction_set, int32_t threads);
void hone_free(HoneEngine* engine);

// 0, or -1 with the reason in hone_error.
int32_t hone_publish(HoneEngine* engine, const HoneTensor* tensors, int32_t count);
int32_t hone_reserve(HoneEngine* engine, int64_t pages);
int32_t hone_run(HoneEngine* engine, const HonePass* pass);
int32_t hone_copy(HoneEngine* engine, const int32_t* source, const int32_t* target, int32_t count);
const char* hone_error(const HoneEngine* engine);
int64_t hone_page_bytes(const HoneEngine* engine);
}
