// The trainer's tensors, packed for the kernels. Nothing of theirs is referred to afterwards.
#include <cstring>
#include <deque>

#include "model.h"

namespace hone {
namespace {

struct Panel {
  Linear* linear;
  const Source* source;
  int number;
};

struct Packing {
  Engine* engine;
  HoneTensor embedding;
  std::vector<Source> sources;
  std::vector<Linear*> linears;
  std::vector<Panel> panels;
  std::deque<HoneTensor> parts;  // of one expert each
};

float value_of(const HoneTensor& tensor, int64_t i) {
  if (!tensor.bfloat16) return static_cast<const float*>(tensor.data)[i];
  const uint32_t bits = uint32_t(static_cast<const uint16_t*>(tensor.data)[i]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

std::vector<float> numbers_of(const HoneTensor& tensor) {
  std::vector<float> numbers;
  for (int64_t i = 0; tensor.data && i < tensor.size; ++i) numbers.push_back(value_of(tensor, i));
  return numbers;
}

uint16_t half_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return value == value ? uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) : uint16_t(0x7fc0);
}

// False where it does not have `count` elements, or there is no memory.
bool take_vector(Buffer& buffer, const HoneTensor& tensor, int count, int padded) {
  if (!tensor.data) return true;
  if (tensor.size != count || !buffer.ensure(size_t(padded) * sizeof(float))) return false;
  for (int i = 0; i < count; ++i) buffer.as<float>()[i] = value_of(tensor, i);
  return true;
}

// As take_vector, of `rows` rows that are each padded.
bool take_rows(Buffer& buffer, const HoneTensor& tensor, int rows, int count, int padded) {
  if (!tensor.data) return true;
  if (tensor.size != int64_t(rows) * count || !buffer.ensure(size_t(rows) * padded * sizeof(float))) return false;
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < count; ++i)
      buffer.as<float>()[int64_t(row) * padded + i] = value_of(tensor, int64_t(row) * count + i);
  return true;
}

void take_embedding_row(Engine& e, const HoneTensor& tensor, int row) {
  const int count = e.dims.shape.hidden;
  for (int i = 0; i < count; ++i) {
    const float value = value_of(tensor, int64_t(row) * count + i);
    const size_t at = size_t(row) * e.dims.hidden + i;
    if (e.dims.shape.bfloat16)
      e.embedding.as<uint16_t>()[at] = half_of(value);
    else
      e.embedding.as<float>()[at] = value;
  }
}

void pack_on_thread(void* context, int) {
  constexpr int ROWS = 16;
  Packing& packing = *static_cast<Packing*>(context);
  Engine& e = *packing.engine;
  const int panels = int(packing.panels.size()), rows = e.dims.shape.bits ? 0 : e.dims.shape.vocab;
  for (int i = pool_take(e.pool, 1); i < panels; i = pool_take(e.pool, 1))
    e.kernels->pack(e, *packing.panels[i].linear, *packing.panels[i].source, packing.panels[i].number);
  pool_barrier(e.pool);
  for (int i = pool_take(e.pool, ROWS); i < rows; i = pool_take(e.pool, ROWS))
    for (int row = i; row < rows && row < i + ROWS; ++row) take_embedding_row(e, packing.embedding, row);
}

class Plan {
 public:
  Plan(Engine& e, Packing& packing) : e_(e), packing_(packing) {}

  // A linear layer whose inputs and outputs are not cut into heads, `rows` x `columns` in the trainer.
  Source plain(const HoneTensor& weight, const HoneTensor& bias, int rows, int columns) const {
    return {&weight, &bias, rows, columns, rows, rows, columns, columns, false};
  }

  // `planes` of codes, where the engine multiplies codes; 0: numbers in any case.
  void add(Linear& linear, const Source& source, int outputs, int inputs, int planes = 1) {
    if (e_.dims.shape.bits && planes) return add_blocks(linear, source, outputs);
    linear.planes = e_.dims.shape.int8 ? planes : 0;
    const size_t element = linear.planes ? planes : e_.dims.number;
    if (linear.planes) {
      inputs = round_up(inputs, CODE_DEEP);
      if (inputs > MOST_CODED)
        fault = "a product of INT8 codes has at most " + std::to_string(MOST_CODED) + " inputs, got " +
                std::to_string(inputs);
      if (!linear.scale.ensure(size_t(outputs) * sizeof(float)) ||
          !linear.offset.ensure(size_t(planes) * outputs * sizeof(int32_t)))
        fault = "out of memory for the packed weights";
    }
    if (source.weight->size != int64_t(source.rows) * source.columns || !source.weight->data)
      fault = "a weight has " + std::to_string(source.weight->size) + " elements where " + std::to_string(source.rows) +
              " x " + std::to_string(source.columns) + " were expected";
    if (source.bias->data && source.bias->size != source.rows)
      fault = "a bias has " + std::to_string(source.bias->size) + " elements where " + std::to_string(source.rows) +
              " were expected";
    linear.panels = outputs / PANEL;
    linear.k = inputs;
    if (!linear.weight.ensure(size_t(outputs) * inputs * element)) fault = "out of memory for the packed weights";
    if (source.bias->data && !linear.bias.ensure(size_t(outputs) * sizeof(float)))
      fault = "out of memory for the packed weights";
    packing_.linears.push_back(&linear);
    packing_.sources.push_back(source);
  }

  // Blocks are read where they lie.
  void add_blocks(Linear& linear, const Source& source, int outputs) {
    const int64_t block = PANEL * PANEL * e_.dims.shape.bits / 8 + 2 * PANEL, groups = source.columns / PANEL;
    if (source.columns % PANEL || source.weight->size % (groups * block) || !source.weight->data ||
        source.weight->size / (groups * block) < outputs / PANEL)
      fault = "a weight has " + std::to_string(source.weight->size) + " bytes of codes, too few for " +
              std::to_string(outputs) + " x " + std::to_string(source.columns);
    linear.blocks = static_cast<const uint8_t*>(source.weight->data);
    linear.panels = outputs / PANEL;
    linear.k = source.columns;
    if (!source.bias->data) return;
    if (!linear.bias.ensure(size_t(outputs) * sizeof(float))) fault = "out of memory for a bias";
    packing_.linears.push_back(&linear);
    packing_.sources.push_back(source);
  }

  // The update of a layer with `outputs` from `columns` inputs: `low` is its A, and B lies after it.
  void add_low_rank(LowRank& update, const HoneTensor* low, int outputs, int columns, bool gated) {
    update.present = low->data;
    if (!update.present) return;
    const int rank = int(low[0].size / columns), width = round_up(rank, PANEL);
    if (low[0].size != int64_t(rank) * columns || low[1].size != int64_t(outputs) * rank || !low[1].data) {
      fault = "a low-rank update has " + std::to_string(low[0].size) + " and " + std::to_string(low[1].size) +
              " elements";
      return;
    }
    if (width > e_.dims.low) e_.dims.low = width;
    Source out = plain(low[1], none_, outputs, rank);
    out.gated = gated;
    add(update.in, padded(plain(low[0], none_, rank, columns)), width, columns, 0);
    add(update.out, padded(out), outputs, round_up(rank, 16), 0);
    update.out.ranges.assign(size_t(update.out.panels), {0, 0});
  }

  void add_layer(Layer& layer, const HoneTensor* t) {
    const Dims& d = e_.dims;
    const HoneShape& s = d.shape;
    Source qkv = plain(t[QKV], t[QKV_BIAS], (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden);
    if (d.head != s.head_dim) {
      qkv.row_chunk = s.head_dim;
      qkv.row_pad = d.head;
    }
    Source out = plain(t[OUT], t[OUT_BIAS], s.hidden, s.heads * s.head_dim);
    if (d.head != s.head_dim) {
      out.column_chunk = s.head_dim;
      out.column_pad = d.head;
    }
    add(layer.qkv, padded(qkv), d.qkv, d.hidden);
    add(layer.out, padded(out), d.hidden, d.mixed);
    if (s.experts)
      add_experts(layer, t);
    else
      add_mlp(layer.gate_up, layer.down, t[GATE_UP], t[DOWN], t);
    const int width = s.heads * s.head_dim, joint = width + 2 * s.kv_heads * s.head_dim;
    add_low_rank(layer.qkv_low, t + QKV_LOW, joint, s.hidden, false);
    add_low_rank(layer.out_low, t + OUT_LOW, s.hidden, width, false);
    add_low_rank(layer.gate_up_low, t + GATE_UP_LOW, 2 * s.intermediate, s.hidden, true);
    add_low_rank(layer.down_low, t + DOWN_LOW, s.hidden, s.intermediate, false);
    const bool taken = take_vector(layer.attention_norm, t[ATTENTION_NORM], s.hidden, d.hidden) &&
                       take_vector(layer.mlp_norm, t[MLP_NORM], s.hidden, d.hidden) &&
                       take_vector(layer.attention_after, t[ATTENTION_AFTER], s.hidden, d.hidden) &&
                       take_vector(layer.mlp_after, t[MLP_AFTER], s.hidden, d.hidden) &&
                       take_rows(layer.q_norm, t[Q_NORM], s.norm_whole ? s.heads : 1, s.head_dim, d.head) &&
                       take_rows(layer.k_norm, t[K_NORM], s.norm_whole ? s.kv_heads : 1, s.head_dim, d.head);
    if (!taken) fault = "a norm of a layer has the wrong size, or there is no memory";
  }

  void add_mlp(Linear& gate_up, Linear& down, const HoneTensor& both, const HoneTensor& last, const HoneTensor* t) {
    const Dims& d = e_.dims;
    const HoneShape& s = d.shape;
    Source gated = plain(both, t[GATE_UP_BIAS], 2 * s.intermediate, s.hidden);
    gated.gated = true;
    add(gate_up, padded(gated), 2 * d.inner, d.hidden);
    add(down, padded(plain(last, t[DOWN_BIAS], s.hidden, s.intermediate)), d.hidden, d.inner);
  }

  void add_experts(Layer& layer, const HoneTensor* t) {
    const HoneShape& s = e_.dims.shape;
    const int64_t both = int64_t(2) * s.intermediate * s.hidden, last = int64_t(s.hidden) * s.intermediate;
    if (t[GATE_UP].size != s.experts * both || t[DOWN].size != s.experts * last) {
      fault = "the weights of " + std::to_string(s.experts) + " experts have " + std::to_string(t[GATE_UP].size) +
              " and " + std::to_string(t[DOWN].size) + " elements";
      return;
    }
    layer.expert_gate_up.resize(size_t(s.experts));
    layer.expert_down.resize(size_t(s.experts));
    for (int i = 0; i < s.experts; ++i)
      add_mlp(layer.expert_gate_up[i], layer.expert_down[i], part(t[GATE_UP], i, both), part(t[DOWN], i, last), t);
    if (!t[ROUTER].data || !take_rows(layer.router, t[ROUTER], s.experts, s.hidden, e_.dims.hidden) ||
        !take_vector(layer.selection_bias, t[SELECTION_BIAS], s.experts, s.experts))
      fault = "a router has the wrong size, or there is no memory";
  }

  // Elements i * size ... of a tensor.
  const HoneTensor& part(const HoneTensor& tensor, int64_t i, int64_t size) {
    const char* data = static_cast<const char*>(tensor.data) + i * size * (tensor.bfloat16 ? 2 : 4);
    packing_.parts.push_back({data, size, tensor.bfloat16});
    return packing_.parts.back();
  }

  // Layers that are not cut into chunks are one chunk, padded at its end.
  Source padded(Source source) const {
    if (source.row_pad == source.row_chunk) source.row_pad = round_up(source.row_pad, PANEL) + 2 * PANEL;
    if (source.column_pad == source.column_chunk) source.column_pad = round_up(source.column_pad, PANEL);
    return source;
  }

  std::string fault;

 private:
  Engine& e_;
  Packing& packing_;
  const HoneTensor none_ = {nullptr, 0, 0};
};

}  // namespace

std::string publish(Engine& e, const HoneTensor* tensors, int count) {
  const HoneShape& s = e.dims.shape;
  if (count != MODEL_TENSORS + s.layers * LAYER_TENSORS) return "publish: got " + std::to_string(count) + " tensors";
  e.published = false;
  if (s.cache == CACHE_INT8 && e.dims.head > MOST_CODED_HEAD)
    return "keys in INT8 have at most " + std::to_string(MOST_CODED_HEAD) + " features of a head, got " +
           std::to_string(s.head_dim);
  if (s.bits && (s.experts || s.head_dim % PANEL))
    return "blocks of codes are for dense models whose heads have a multiple of 32 features, got " +
           std::to_string(s.head_dim);
  e.dims.low = 0;
  Packing packing = {&e, tensors[EMBEDDING], {}, {}, {}, {}};
  Plan plan(e, packing);
  const HoneTensor& head = tensors[HEAD].data ? tensors[HEAD] : tensors[EMBEDDING];
  const HoneTensor none = {nullptr, 0, 0};
  HoneTensor used = head;
  if (!s.bits) used.size = int64_t(s.vocab_used) * s.hidden;
  plan.add(e.head, plan.padded(plan.plain(used, none, s.vocab_used, s.hidden)), e.dims.logits, e.dims.hidden, 2);
  e.layers.resize(size_t(s.layers));
  for (int layer = 0; layer < s.layers; ++layer)
    plan.add_layer(e.layers[layer], tensors + MODEL_TENSORS + layer * LAYER_TENSORS);
  if (!take_vector(e.final_norm, tensors[FINAL_NORM], s.hidden, e.dims.hidden))
    plan.fault = "the last norm has the wrong size";
  const size_t element = s.bfloat16 ? 2 : 4;
  const int64_t block = PANEL * PANEL * s.bits / 8 + 2 * PANEL, blocks = int64_t(round_up(s.vocab, PANEL)) / PANEL *
                                                                       (s.hidden / PANEL) * block;
  if (tensors[EMBEDDING].size != (s.bits ? blocks : int64_t(s.vocab) * s.hidden) || head.size != tensors[EMBEDDING].size)
    plan.fault = "the embedding or the head does not have " + std::to_string(s.vocab) + " rows";
  e.embedding_blocks = s.bits ? static_cast<const uint8_t*>(tensors[EMBEDDING].data) : nullptr;
  if (!s.bits && !e.embedding.ensure(size_t(s.vocab) * e.dims.hidden * element)) plan.fault = "out of memory for the embedding";
  if (!plan.fault.empty()) return plan.fault;
  for (size_t i = 0; i < packing.linears.size(); ++i)
    for (int panel = 0; panel < packing.linears[i]->panels; ++panel)
      packing.panels.push_back({packing.linears[i], &packing.sources[i], panel});
  e.frequencies = numbers_of(tensors[FREQUENCIES]);
  e.turn_lengths = numbers_of(tensors[TURN_LENGTHS]);
  const size_t known = e.frequencies.size(), pairs = size_t(s.head_dim / 2);
  if (known == 0 || known % pairs || (!e.turn_lengths.empty() && e.turn_lengths.size() != known))
    return "publish: got " + std::to_string(known) + " rotary frequencies";
  e.tables = int(known / pairs);
  const std::vector<float> windows = numbers_of(tensors[WINDOWS]), tables = numbers_of(tensors[TABLES]);
  for (int layer = 0; layer < s.layers; ++layer) {
    e.layers[layer].window = windows.empty() ? 0 : int(windows.at(layer));
    e.layers[layer].table = tables.empty() ? 0 : int(tables.at(layer));
    if (e.layers[layer].table < 0 || e.layers[layer].table >= e.tables || e.layers[layer].window < 0)
      return "publish: layer " + std::to_string(layer) + " has a table or a window that is not there";
  }
  e.turns_known = 0;
  pool_run(e.pool, pack_on_thread, &packing);
  e.published = true;
  return "";
}

}  // namespace hone
