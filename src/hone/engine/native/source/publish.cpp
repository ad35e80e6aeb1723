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
  const bool whole = packing.embedding.data && !e.dims.shape.bits;
  const int panels = int(packing.panels.size()), rows = whole ? e.dims.shape.vocab : 0;
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

  // The update of a layer with the weight `source`, `outputs` x `inputs` once packed: `pair` is its A, then B.
  void add_low_rank(LowRank& update, const HoneTensor* pair, const Source& source, int outputs, int inputs) {
    update.present = pair->data;
    if (!update.present) return;
    const int rank = int(pair[0].size / source.columns), width = round_up(rank, PANEL);
    if (pair[0].size != int64_t(rank) * source.columns || pair[1].size != int64_t(source.rows) * rank ||
        !pair[1].data || !rank) {
      fault = "a low-rank update has " + std::to_string(pair[0].size) + " and " + std::to_string(pair[1].size) +
              " elements";
      return;
    }
    if (width > low) low = width;
    Source in = source, out = source;
    in.weight = &pair[0];
    in.rows = in.row_chunk = in.row_pad = rank;
    in.gated = false;
    out.weight = &pair[1];
    out.columns = out.column_chunk = out.column_pad = rank;
    in.bias = out.bias = &none_;
    add(update.in, padded(in), width, inputs, 0);
    add(update.out, padded(out), outputs, round_up(rank, 16), 0);
    update.out.ranges.assign(size_t(update.out.panels), {0, 0});
  }

  // Weights of a layer and of the head, as the trainer stores them.
  Source qkv(const HoneTensor& weight, const HoneTensor& bias) const {
    const HoneShape& s = e_.dims.shape;
    Source source = plain(weight, bias, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden);
    if (e_.dims.head != s.head_dim) {
      source.row_chunk = s.head_dim;
      source.row_pad = e_.dims.head;
    }
    return source;
  }

  Source attention_out(const HoneTensor& weight, const HoneTensor& bias) const {
    const HoneShape& s = e_.dims.shape;
    Source source = plain(weight, bias, s.hidden, s.heads * s.head_dim);
    if (e_.dims.head != s.head_dim) {
      source.column_chunk = s.head_dim;
      source.column_pad = e_.dims.head;
    }
    return source;
  }

  Source gate_up(const HoneTensor& weight, const HoneTensor& bias) const {
    const HoneShape& s = e_.dims.shape;
    Source source = plain(weight, bias, 2 * s.intermediate, s.hidden);
    source.gated = true;
    return source;
  }

  Source down(const HoneTensor& weight, const HoneTensor& bias) const {
    return plain(weight, bias, e_.dims.shape.hidden, e_.dims.shape.intermediate);
  }

  Source head(const HoneTensor& weight) const { return plain(weight, none_, e_.dims.shape.vocab_used, e_.dims.shape.hidden); }

  // The head's B has rows for the whole vocabulary, as its weight has: those in use are read.
  void add_head_update(LowRank& update, const HoneTensor* pair) {
    const HoneShape& s = e_.dims.shape;
    const int64_t rank = pair[0].size / s.hidden;
    head_[0] = pair[0];
    head_[1] = pair[1];
    if (pair[1].data && pair[1].size == s.vocab * rank) head_[1].size = s.vocab_used * rank;
    add_low_rank(update, head_, head(none_), e_.dims.logits, e_.dims.hidden);
  }

  // The updates of a layer: pairs of its qkv, attention's output, gate and up, and down.
  void add_updates(LowRank* const* updates, const HoneTensor* pairs) {
    const Dims& d = e_.dims;
    add_low_rank(*updates[QKV_UPDATE], pairs, qkv(none_, none_), d.qkv, d.hidden);
    add_low_rank(*updates[OUT_UPDATE], pairs + 2, attention_out(none_, none_), d.hidden, d.mixed);
    add_low_rank(*updates[GATE_UP_UPDATE], pairs + 4, gate_up(none_, none_), 2 * d.inner, d.hidden);
    add_low_rank(*updates[DOWN_UPDATE], pairs + 6, down(none_, none_), d.hidden, d.inner);
  }

  void add_layer(Layer& layer, const HoneTensor* t) {
    const Dims& d = e_.dims;
    const HoneShape& s = d.shape;
    add(layer.qkv, padded(qkv(t[QKV], t[QKV_BIAS])), d.qkv, d.hidden);
    add(layer.out, padded(attention_out(t[OUT], t[OUT_BIAS])), d.hidden, d.mixed);
    if (s.experts)
      add_experts(layer, t);
    else
      add_mlp(layer.gate_up, layer.down, t[GATE_UP], t[DOWN], t);
    LowRank* const updates[] = {&layer.qkv_low, &layer.out_low, &layer.gate_up_low, &layer.down_low};
    add_updates(updates, t + QKV_LOW);
    const bool taken = take_vector(layer.attention_norm, t[ATTENTION_NORM], s.hidden, d.hidden) &&
                       take_vector(layer.mlp_norm, t[MLP_NORM], s.hidden, d.hidden) &&
                       take_vector(layer.attention_after, t[ATTENTION_AFTER], s.hidden, d.hidden) &&
                       take_vector(layer.mlp_after, t[MLP_AFTER], s.hidden, d.hidden) &&
                       take_rows(layer.q_norm, t[Q_NORM], s.norm_whole ? s.heads : 1, s.head_dim, d.head) &&
                       take_rows(layer.k_norm, t[K_NORM], s.norm_whole ? s.kv_heads : 1, s.head_dim, d.head);
    if (!taken) fault = "a norm of a layer has the wrong size, or there is no memory";
  }

  void add_mlp(Linear& both, Linear& last, const HoneTensor& wide, const HoneTensor& narrow, const HoneTensor* t) {
    const Dims& d = e_.dims;
    add(both, padded(gate_up(wide, t[GATE_UP_BIAS])), 2 * d.inner, d.hidden);
    add(last, padded(down(narrow, t[DOWN_BIAS])), d.hidden, d.inner);
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

  // A thread packs a panel: of all layers that were added. Nothing is packed where there was a fault.
  void pack() {
    for (size_t i = 0; i < packing_.linears.size(); ++i)
      for (int panel = 0; panel < packing_.linears[i]->panels; ++panel)
        packing_.panels.push_back({packing_.linears[i], &packing_.sources[i], panel});
    pool_run(e_.pool, pack_on_thread, &packing_);
  }

  std::string fault;
  int low = 0;  // row stride of the middle of the widest update

 private:
  Engine& e_;
  Packing& packing_;
  const HoneTensor none_ = {nullptr, 0, 0};
  HoneTensor head_[2] = {};
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
  Packing packing = {&e, tensors[EMBEDDING], {}, {}, {}, {}};
  Plan plan(e, packing);
  const HoneTensor& head = tensors[HEAD].data ? tensors[HEAD] : tensors[EMBEDDING];
  HoneTensor used = head;
  if (!s.bits) used.size = int64_t(s.vocab_used) * s.hidden;
  plan.add(e.head, plan.padded(plan.head(used)), e.dims.logits, e.dims.hidden, 2);
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
  e.dims.low = plan.low;
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
  plan.pack();
  e.published = true;
  return "";
}

std::string adapt(Engine& e, int slot, const HoneTensor* tensors, int count) {
  const HoneShape& s = e.dims.shape;
  if (slot < 0 || slot >= MOST_ADAPTERS) return "an adapter's slot is 0 to " + std::to_string(MOST_ADAPTERS - 1);
  e.adapters.erase(slot);
  if (!count) return "";
  const int updates = s.layers * LAYER_UPDATES + 1;
  if (count != 2 * updates) return "adapt: got " + std::to_string(count) + " tensors";
  if (s.bits || s.int8 || s.bfloat16 || s.experts)
    return "adapters stand beside dense weights in float32";
  Packing packing = {&e, {nullptr, 0, 0}, {}, {}, {}, {}};
  Plan plan(e, packing);
  Adapter adapter;
  adapter.updates.resize(size_t(updates));
  for (int layer = 0; layer < s.layers; ++layer) {
    LowRank* own = &adapter.updates[size_t(layer) * LAYER_UPDATES];
    LowRank* const each[] = {own, own + 1, own + 2, own + 3};
    plan.add_updates(each, tensors + 2 * LAYER_UPDATES * layer);
  }
  plan.add_head_update(adapter.updates.back(), tensors + count - 2);
  if (!plan.fault.empty()) return plan.fault;
  plan.pack();
  e.adapter_low = plan.low > e.adapter_low ? plan.low : e.adapter_low;
  e.adapters.emplace(slot, std::move(adapter));
  return "";
}

}  // namespace hone
