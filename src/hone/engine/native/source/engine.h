// What the parts of the runner share: sizes, packed weights, pages, buffers, and the table of one instruction set.
//
// Every width is padded to 32 so that no kernel has a remainder: features of a head, inputs and outputs of linear
// layers. Padding has zero weights and zero activations, which add exactly nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "abi.h"
#include "basics.h"
#include "pool.h"

namespace hone {

constexpr int PAGE_TOKENS = 16;  // one AVX-512 register of float32 keys
constexpr int PANEL = 32;        // output features that a packed panel holds
constexpr int MOST_TILE_ROWS = 32;
constexpr int MOST_THREADS = 256;
constexpr int CODE_DEEP = 64;        // codes of a row that one AMX tile holds: rows of codes are padded to it
constexpr int MOST_CODED = 1 << 17;  // inputs of a product of codes, and below positions and features of a head whose
constexpr int MOST_CODED_POSITIONS = 1 << 16;  // keys and values are codes: sums of 32 bits hold no more
constexpr int MOST_CODED_HEAD = 512;

// 64-byte aligned memory that only grows, and starts as zeros. Of a large one, the machine gives what is written.
struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  void* mapped = nullptr;  // what the system gave for a large one, up to a huge page before `data`
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : data(other.data), bytes(other.bytes), mapped(other.mapped) {
    other.data = other.mapped = nullptr;
    other.bytes = 0;
  }
  ~Buffer();
  void release();
  bool ensure(size_t wanted);  // false: out of memory, and the buffer is empty. Contents are kept only if it was enough
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Where a column or an input feature of a packed layer comes from in the trainer's tensor.
struct Source {
  const HoneTensor* weight;
  const HoneTensor* bias;
  int rows, columns;             // of the trainer's weight
  int row_chunk, row_pad;        // rows come in chunks (heads), each padded
  int column_chunk, column_pad;  // as do the inputs of the attention's output projection
  bool gated;                    // panels of 16 gate and 16 up features
};

// Numbers between which all of a panel's inputs of other than zero weight lie.
struct Range {
  int32_t first, last;
};

// A weight in panels of 32 output features: [panel][k][32] float32, [panel][k / 2][32][2] bfloat16, or codes
// [plane][panel][k / 4][32][4]: of 8 bits in one plane, or the upper and the lower 8 bits of 16 in two (codes.h).
struct Linear {
  int panels = 0, k = 0;
  int planes = 0;       // of codes; 0: numbers
  Buffer weight, bias;  // bias: [panels * 32] float32, empty where there is none
  Buffer scale;         // [panels * 32] float32: what a code of a feature counts
  Buffer offset;        // [planes][panels * 32] int32: what the 128 of each activation adds to a feature's sum
  const uint8_t* blocks = nullptr;  // [panels][k / 32] blocks of the trainer's, which are read in place of `weight`
  std::vector<Range> ranges;        // [panels] of a layer that ends a low-rank update
};

// y = x A^T B^T: an update beside a weight.
struct LowRank {
  bool present = false;
  Linear in, out;
};

struct Layer {
  Linear qkv, out, gate_up, down;
  LowRank qkv_low, out_low, gate_up_low, down_low;
  std::vector<Linear> expert_gate_up, expert_down;  // in place of the last two
  Buffer router;                                    // [experts, hidden] float32
  Buffer selection_bias;                            // [experts] float32, or empty
  Buffer attention_norm, mlp_norm, q_norm, k_norm;  // float32, padded
  Buffer attention_after, mlp_after;
  int window = 0;  // tokens that a token sees, itself among them; 0: all
  int table = 0;   // of rotary positions
};

// Updates of one adapter: of qkv, out, gate_up and down of each layer, and of the head.
struct Adapter {
  std::vector<LowRank> updates;
};

enum { QKV_UPDATE, OUT_UPDATE, GATE_UP_UPDATE, DOWN_UPDATE, LAYER_UPDATES };
constexpr int MOST_ADAPTERS = 1 << 16;

// Neighbouring rows of a product that have the same adapter.
struct AdapterRows {
  int first, last;
  const Adapter* adapter;
};

struct Dims {
  HoneShape shape;
  int hidden;    // padded to 32
  int head;      // head_dim, padded to 32
  int group;     // query heads of a key head
  int qkv;       // row stride of queries, keys and values of a token
  int mixed;     // row stride of the attention's result
  int inner;     // intermediate, padded to 32
  int logits;    // row stride of logits
  int codes;     // row stride of coded activations
  int low;       // row stride of the middle of a low-rank update
  int number;    // bytes of an activation
  size_t block;  // bytes of one (page, layer, key head): keys, then values; see attention.h and code_attention.h
  size_t page;   // bytes of a page
};

// What sampling needs beside the logits, for each thread.
struct DrawScratch {
  Buffer scaled, weight;  // [logits] float32: logits / temperature, and exp of that minus its maximum
  std::vector<double> cumulative;
  std::vector<int32_t> candidates;
};

struct Scratch {
  Buffer scores;  // [group, positions] of the attention
  Buffer shares;  // [4, positions] codes of the attention's weights: two bytes each, and four more where they are widened
  Buffer row;     // [hidden] less its mean
  Buffer route;   // [2, experts] float32: probabilities, and what is left to choose from
  DrawScratch draw;
};

struct HiddenRows {           // a chunk of hidden states whose logits are in memory together
  int first, last;            // of `at`
  int first_draw, last_draw;  // of `draws`
  std::vector<AdapterRows> adapted;
};

struct Engine;

// One pass, as all threads see it.
struct Work {
  const HonePass* pass;
  std::vector<int32_t> at;     // [U] tokens whose logits are wanted, each once
  std::vector<int32_t> row;    // [R] draw -> its place in `at`
  std::vector<int32_t> draws;  // [R] draws in the order of `row`
  std::vector<HiddenRows> chunks;
  std::vector<AdapterRows> adapted;  // of the pass's tokens
  // Of the layer with experts that runs; a pair is a token and one of its choices, [tokens, per_token].
  std::vector<int32_t> chosen;   // expert of each pair
  std::vector<float> gate;       // its weight
  std::vector<int32_t> place;    // its row among the pairs sorted by expert
  std::vector<int32_t> source;   // pair of each such row
  std::vector<int32_t> first;    // [experts + 1] first row of each expert
  std::vector<int32_t> next;
};

// What a tile fetches into the cache while it computes: a share of the panel that comes next, or (step 0) nothing new.
// `step` bytes on for each time it is asked; half a line or less asks for a line more than once, which costs nothing.
struct Ahead {
  const char* line;
  int64_t step;
  void fetch(int64_t line_number) const { __builtin_prefetch(line + line_number * step, 0, 2); }
};

// `rows` rows of a [rows, k] times a panel, to c [rows, 32].
using TileBf16 = void (*)(const bf16* a, int64_t stride, int rows, const bf16* panel, int k, float* c,
                          const Ahead& ahead);

// As TileBf16, of codes: unsigned activations times signed weights, to whole sums c [rows, 32]. `k`: a multiple of 64.
using TileCodes = void (*)(const uint8_t* a, int64_t stride, int rows, const int8_t* panel, int k, int32_t* c,
                           const Ahead& ahead);

// Activations in codes of 8 bits, or of 16 in two planes, all of them signed; each 32 have a scale.
struct BlockRows {
  const uint8_t* codes;  // [planes][rows][stride]
  int64_t stride, plane;
  const float* scale;  // [rows][stride / 32]
  const int32_t* begin;  // [rows][stride / 32] where the sums of a block begin (code_blocks.h)
  int planes;
};

// `count` rows from `from` on, times a panel of `groups` blocks, to c [count, 32].
using TileBlocks = void (*)(const BlockRows& rows, int from, int count, const uint8_t* panel, int groups, int bits,
                            float* c, const Ahead& ahead);

struct CodeKernels {
  TileCodes tile;
  int tile_rows;
  TileBlocks blocks;
  int block_rows;
  void (*attend)(Engine& engine, int layer, int token, int kv_head, int thread);  // over a cache of codes
};

struct Kernels {
  const char* name;
  void (*forward)(Engine& engine, int thread);
  void (*pack)(Engine& engine, Linear& linear, const Source& source, int panel);
  // Fills scaled and weight [round_up(vocab, 32)], zeros past vocab; false where a logit is not finite.
  bool (*soften)(const float* logits, int vocab, float temperature, float cap, float* scaled, float* weight, float* top);
  TileBf16 tile_bf16;
  int tile_bf16_rows;
  CodeKernels codes;
  void (*enter)();  // around a thread's part of a pass; null: nothing to do
  void (*leave)();
};

struct Engine {
  Dims dims;
  const Kernels* kernels = nullptr;
  Pool* pool = nullptr;
  std::string error;
  bool fetches_to_first_cache = true;  // the codes of keys and values

  bool published = false;
  Buffer embedding;  // [vocab, hidden] float32 or bfloat16
  const uint8_t* embedding_blocks = nullptr;  // the trainer's, in its place
  Buffer final_norm;
  std::vector<float> frequencies, turn_lengths;  // [tables][head_dim / 2]
  int tables = 1;
  std::vector<Layer> layers;
  Linear head;
  std::map<int32_t, Adapter> adapters;  // by slot
  int adapter_low = 0;                  // row stride of the middle of their updates

  int64_t pages = 0;
  Buffer kv;
  int turns_known = 0;
  Buffer turns;  // [positions][tables][2][head]: cosines, and sines with the sign of the pair's member

  Work work;
  Buffer x, normed, qkv, mixed, inner, logits;
  Buffer codes, code_scale;     // activations of the next product [2][rows][dims.codes], and what a row's codes count
  Buffer code_begin;            // beside blocks [rows][dims.codes / 32], as is `code_scale` then
  Buffer low;                   // [rows][dims.low] a low-rank update in its middle
  Buffer gathered, expert_out;  // rows sorted by expert: inputs, and outputs in float32
  Buffer branch;                // [rows, hidden] float32: an output that is normalised before it is added
  std::vector<Scratch> scratch;
};

template <class T>
static inline T* block_of(const Engine& e, int page, int layer, int kv_head) {
  const HoneShape& s = e.dims.shape;
  HONE_CHECK(page >= 0 && page < e.pages && layer >= 0 && layer < s.layers && kv_head >= 0 && kv_head < s.kv_heads);
  char* kv = e.kv.as<char>() + size_t(page) * e.dims.page + (size_t(layer) * s.kv_heads + kv_head) * e.dims.block;
  return reinterpret_cast<T*>(kv);
}

// Draw number `draw` of the pass, from its logits.
void sample(const Engine& engine, const float* logits, int draw, DrawScratch& scratch);

}  // namespace hone
