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
  int32_t bits;        // 4 or 8: the trainer's weights are blocks of codes (blocks.h), and float32 are the activations;
                       // `int8` then: these are multiplied in 8 bits, not in 16, with a scale of each 32; 0: numbers
  int32_t cache;       // keys and values: CACHE_FLOAT32 ...
  float norm_eps;
  int32_t norm_whole;  // 1: queries and keys are normalised over all heads at once
  int32_t experts;     // of each layer, each with `intermediate` inner features; 0: dense
  int32_t per_token;   // experts that a token goes to
  int32_t normalise_gates;  // 1: the weights of a token's experts are divided by their sum
  int32_t centred;         // 1: the mean is taken off before a norm
  int32_t parallel;        // 1: attention and MLP read the same norm
  int32_t gelu;            // 1: the gate is a GELU in its form with tanh; 0: SiLU
  int32_t query_original;  // with query_beta: queries at position p times 1 + beta log(1 + floor(p / original))
  float query_beta;
  float embedding_factor;  // on the embedding; 0 means 1, as in the next
  float residual_factor;   // on the outputs of attention and MLP
  float score_cap;         // scores s become cap tanh(s / cap); 0: they do not
  float logit_cap;         // the same of logits
};

enum { CACHE_FLOAT32, CACHE_BFLOAT16, CACHE_INT8 };

// A contiguous tensor of the trainer's; `data` is null where the model has none.
struct HoneTensor {
  const void* data;
  int64_t size;      // elements; bytes of blocks
  int32_t bfloat16;  // 0: float32, or blocks
};

// Tensors of a model, in the order of hone_publish: these, then LAYER_TENSORS for each layer.
// FREQUENCIES [tables, head_dim / 2] radians per position, TURN_LENGTHS the same (null: 1). Of each layer, in float32:
// WINDOWS, how many tokens a token sees, itself among them (null, or 0: all), and TABLES, its row of both (null: 0).
enum { EMBEDDING, FINAL_NORM, HEAD, FREQUENCIES, TURN_LENGTHS, WINDOWS, TABLES, MODEL_TENSORS };
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
  ATTENTION_AFTER,  // norms of the outputs of attention and MLP
  MLP_AFTER,
  QKV_LOW,         // beside blocks, a low-rank update: A [rank, inputs] of each layer, and after it B [outputs, rank]
  QKV_LOW_OUT,
  OUT_LOW,
  OUT_LOW_OUT,
  GATE_UP_LOW,
  GATE_UP_LOW_OUT,
  DOWN_LOW,
  DOWN_LOW_OUT,
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
  const uint8_t* allowed;       // [draws, ceil(vocab_used / 8)] tokens that a grammar allows, or null: all
  int32_t* token;
  float *logp, *sampled_logp;
  uint8_t* kept;  // [draws, ceil(vocab_used / 8)], or null: nothing truncates
  int32_t* top_token;  // [draws, top_width]
  float* top_logp;
  void* routing;  // [tokens_count, layers, per_token] uint8, uint16 for more than 255 experts; null for a dense model
  const int32_t* adapter;  // [sequences] slot of each one's adapter, -1: none; null: no sequence has one
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
// A slot's adapter: A [rank, inputs] and B [outputs, rank] of qkv, out, gate_up and down of each layer, then of the
// head (null: it leaves the layer alone); packed before this returns. `count` 0 frees the slot.
int32_t hone_adapt(HoneEngine* engine, int32_t slot, const HoneTensor* tensors, int32_t count);
const char* hone_error(const HoneEngine* engine);
int64_t hone_page_bytes(const HoneEngine* engine);
}
