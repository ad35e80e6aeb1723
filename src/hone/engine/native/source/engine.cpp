// Sizes, memory and the life of a pass; the arithmetic is in the kernels.
#include "engine.h"

#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "model.h"

namespace hone {

constexpr size_t HUGE_PAGE = size_t(1) << 21;

Buffer::~Buffer() { release(); }

void Buffer::release() {
  if (mapped)
    munmap(mapped, bytes + HUGE_PAGE);
  else
    std::free(data);
  data = mapped = nullptr;
  bytes = 0;
}

bool Buffer::ensure(size_t wanted) {
  if (wanted <= bytes) return true;
  release();
  const size_t alignment = wanted < HUGE_PAGE / 2 ? 64 : HUGE_PAGE;
  wanted = (wanted + alignment - 1) / alignment * alignment;
  if (alignment == HUGE_PAGE) {  // the system gives zeros, and memory only where something is written
    mapped = mmap(nullptr, wanted + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      mapped = nullptr;
      return false;
    }
    data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(mapped) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
#ifdef MADV_HUGEPAGE
    madvise(data, wanted, MADV_HUGEPAGE);
#endif
  } else {
    if (posix_memalign(&data, alignment, wanted) != 0) {
      data = nullptr;
      return false;
    }
    std::memset(data, 0, wanted);
  }
  bytes = wanted;
  return true;
}

Dims dims_of(const HoneShape& shape) {
  Dims d;
  d.shape = shape;
  if (!shape.embedding_factor) d.shape.embedding_factor = 1;
  if (!shape.residual_factor) d.shape.residual_factor = 1;
  d.hidden = round_up(shape.hidden, PANEL);
  d.head = round_up(shape.head_dim, PANEL);
  d.group = shape.heads / shape.kv_heads;
  d.qkv = round_up((shape.heads + 2 * shape.kv_heads) * d.head, PANEL);
  d.mixed = round_up(shape.heads * d.head, PANEL);
  d.inner = round_up(shape.intermediate, PANEL);
  d.logits = round_up(shape.vocab_used, PANEL);
  const int widest = d.hidden > d.mixed ? d.hidden : d.mixed;
  d.codes = round_up(widest > d.inner ? widest : d.inner, CODE_DEEP);
  d.number = shape.bfloat16 && !shape.int8 && !shape.bits ? 2 : 4;
  d.low = 0;
  const size_t numbers = size_t(2) * d.head * PAGE_TOKENS;
  const size_t scales = size_t(2) * PAGE_TOKENS * sizeof(float);
  d.block = shape.cache == CACHE_INT8 ? numbers + scales : numbers * (shape.cache == CACHE_BFLOAT16 ? 2 : 4);
  d.page = d.block * shape.layers * shape.kv_heads;
  return d;
}

namespace {

constexpr size_t LOGITS_BYTES = size_t(64) << 20;  // logits that are in memory at once

std::string number(int64_t value) { return std::to_string(value); }

std::string gibibytes(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / (1 << 30));
  return text;
}

// An empty string, or what is wrong with the pass.
std::string fault_in_tokens(const Engine& e, const HonePass& pass) {
  const HoneShape& s = e.dims.shape;
  std::vector<int32_t> longest(size_t(pass.sequences), -1);
  for (int t = 0; t < pass.tokens_count; ++t) {
    const int sequence = pass.sequence[t], position = pass.positions[t];
    const std::string where = "token " + number(t) + " of the pass: ";
    if (pass.tokens[t] < 0 || pass.tokens[t] >= s.vocab)
      return where + "id " + number(pass.tokens[t]) + " is not in the vocabulary of " + number(s.vocab);
    if (sequence < 0 || sequence >= pass.sequences)
      return where + "sequence " + number(sequence) + ", but pages has " + number(pass.sequences) + " rows";
    if (position < 0 || position / PAGE_TOKENS >= pass.most_pages)
      return where + "position " + number(position) + " lies outside its " + number(pass.most_pages) + " pages";
    if (s.cache == CACHE_INT8 && position >= MOST_CODED_POSITIONS)
      return where + "position " + number(position) + ": keys and values in INT8 have " + number(MOST_CODED_POSITIONS);
    if (position > longest[sequence]) longest[sequence] = position;
  }
  for (int b = 0; b < pass.sequences; ++b)
    for (int i = 0; longest[b] >= 0 && i <= longest[b] / PAGE_TOKENS; ++i) {
      const int page = pass.pages[int64_t(b) * pass.most_pages + i];
      if (page < 0 || page >= e.pages)
        return "page " + number(page) + " of sequence " + number(b) + ": " + number(e.pages) + " are reserved";
    }
  return "";
}

std::string fault_in_adapters(const Engine& e, const HonePass& pass) {
  for (int b = 0; pass.adapter && b < pass.sequences; ++b)
    if (pass.adapter[b] != -1 && !e.adapters.count(pass.adapter[b]))
      return "sequence " + number(b) + " of the pass: there is no adapter in slot " + number(pass.adapter[b]);
  return "";
}

std::string fault_in_draws(const Engine& e, const HonePass& pass) {
  for (int r = 0; r < pass.draws; ++r) {
    const std::string where = "draw " + number(r) + " of the pass: ";
    if (pass.at[r] < 0 || pass.at[r] >= pass.tokens_count)
      return where + "at " + number(pass.at[r]) + ", but the pass has " + number(pass.tokens_count) + " tokens";
    if (pass.given[r] < -1 || pass.given[r] >= e.dims.shape.vocab_used)
      return where + "given token " + number(pass.given[r]) + " is not one of " + number(e.dims.shape.vocab_used);
    if (!(pass.temperature[r] > 0))
      return where + "temperature " + std::to_string(pass.temperature[r]) + ", must be > 0";
    if (!(pass.uniform[r] >= 0 && pass.uniform[r] < 1))
      return where + "uniform " + std::to_string(pass.uniform[r]) + ", must be in [0, 1)";
    const int top = pass.top_logprobs ? pass.top_logprobs[r] : 0;
    if (top < 0 || top > pass.top_width || top > e.dims.shape.vocab_used)
      return where + number(top) + " likeliest tokens, of " + number(pass.top_width) + " that have a place";
  }
  return "";
}

// Rows of a product by their adapters; `token_of` gives each row's token.
template <class TokenOf>
std::vector<AdapterRows> adapted_rows(const Engine& e, const HonePass& pass, int rows, const TokenOf& token_of) {
  std::vector<AdapterRows> parts;
  for (int row = 0; pass.adapter && row < rows; ++row) {
    const int32_t slot = pass.adapter[pass.sequence[token_of(row)]];
    if (slot < 0) continue;
    const Adapter* adapter = &e.adapters.at(slot);
    const bool goes_on = !parts.empty() && parts.back().last == row && parts.back().adapter == adapter &&
                         row - parts.back().first < MOST_TILE_ROWS;
    if (goes_on)
      ++parts.back().last;
    else
      parts.push_back({row, row + 1, adapter});
  }
  return parts;
}

// Which hidden states are wanted, each once, in chunks whose logits fit in memory.
void plan(Engine& e, const HonePass& pass) {
  Work& work = e.work;
  work.pass = &pass;
  work.at.clear();
  work.chunks.clear();
  work.row.assign(size_t(pass.draws), 0);
  work.draws.assign(size_t(pass.draws), 0);
  std::vector<int32_t> place(size_t(pass.tokens_count), -1), count;
  for (int r = 0; r < pass.draws; ++r) {
    int32_t& row = place[pass.at[r]];
    if (row < 0) {
      row = int32_t(work.at.size());
      work.at.push_back(pass.at[r]);
      count.push_back(0);
    }
    work.row[r] = row;
    ++count[row];
  }
  std::vector<int32_t> next(count.size() + 1, 0);
  for (size_t row = 0; row < count.size(); ++row) next[row + 1] = next[row] + count[row];
  const std::vector<int32_t> offsets = next;
  for (int r = 0; r < pass.draws; ++r) work.draws[next[work.row[r]]++] = r;
  const int rows = int(work.at.size()), most = int(LOGITS_BYTES / (size_t(e.dims.logits) * 4));
  for (int first = 0; first < rows; first += most > 0 ? most : 1) {
    const int last = first + most < rows && most > 0 ? first + most : (most > 0 ? rows : first + 1);
    work.chunks.push_back({first, last, offsets[first], offsets[last], {}});
    work.chunks.back().adapted = adapted_rows(e, pass, last - first, [&](int row) { return work.at[first + row]; });
  }
  work.adapted = adapted_rows(e, pass, pass.tokens_count, [](int row) { return row; });
}

bool know_turns(Engine& e, int positions) {
  if (positions <= e.turns_known) return true;
  const int head = e.dims.head, wanted = round_up(positions > 2 * e.turns_known ? positions : 2 * e.turns_known, 256);
  const int rows = wanted * e.tables, half = e.dims.shape.head_dim / 2;
  e.turns_known = 0;
  if (!e.turns.ensure(size_t(rows) * 2 * head * sizeof(float))) return false;
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < 2 * half; ++i) {
      float* cosine = e.turns.as<float>() + size_t(row) * 2 * head + i;
      const int pair = row % e.tables * half + i / 2;
      const float angle = float(row / e.tables) * e.frequencies[pair];
      const float length = e.turn_lengths.empty() ? 1.0f : e.turn_lengths[pair];
      cosine[0] = length * float(std::cos(double(angle)));
      cosine[head] = length * float(std::sin(double(angle))) * (i % 2 ? 1.0f : -1.0f);
    }
  e.turns_known = wanted;
  return true;
}

bool make_room_for_codes(Engine& e, size_t rows) {
  const HoneShape& s = e.dims.shape;
  if (!s.int8 && !s.bits) return true;
  const size_t scales = s.bits ? size_t(e.dims.codes) / PANEL : 1;
  return e.codes.ensure(2 * rows * e.dims.codes) && e.code_scale.ensure(rows * scales * sizeof(float)) &&
         (!s.bits || (e.code_begin.ensure(rows * scales * sizeof(int32_t)) && e.low.ensure(rows * e.dims.low * 4)));
}

bool make_room_for_experts(Engine& e, int tokens) {
  const Dims& d = e.dims;
  if (!d.shape.experts) return true;
  const size_t act = d.number, pairs = size_t(tokens) * d.shape.per_token;
  const size_t rows = round_up(int(pairs), MOST_TILE_ROWS) + MOST_TILE_ROWS;
  bool enough = e.gathered.ensure(rows * d.hidden * act) && e.inner.ensure(rows * d.inner * act) &&
                e.expert_out.ensure(rows * d.hidden * 4) && make_room_for_codes(e, rows);
  for (Scratch& scratch : e.scratch)
    enough = enough && scratch.route.ensure(size_t(2) * round_up(d.shape.experts, PANEL) * sizeof(float));
  e.work.chosen.assign(pairs, 0);
  e.work.gate.assign(pairs, 0);
  e.work.place.assign(pairs, 0);
  e.work.source.assign(pairs, 0);
  return enough;
}

bool make_room(Engine& e, const HonePass& pass) {
  const Dims& d = e.dims;
  const size_t act = d.number,
               rows = size_t(round_up(pass.tokens_count, MOST_TILE_ROWS) + MOST_TILE_ROWS);
  int longest = 0, wanted = 1;
  for (int t = 0; t < pass.tokens_count; ++t) longest = pass.positions[t] > longest ? pass.positions[t] : longest;
  for (const HiddenRows& chunk : e.work.chunks)
    wanted = chunk.last - chunk.first > wanted ? chunk.last - chunk.first : wanted;
  bool enough = know_turns(e, longest + 1) && e.x.ensure(rows * d.hidden * 4) &&
                e.normed.ensure(rows * d.hidden * act) && e.qkv.ensure(rows * d.qkv * 4) &&
                e.mixed.ensure(rows * d.mixed * act) && e.branch.ensure(rows * d.hidden * 4) &&
                (d.shape.experts || e.inner.ensure(rows * d.inner * act)) &&
                e.logits.ensure(size_t(wanted) * d.logits * 4) && make_room_for_codes(e, rows) &&
                (!pass.adapter || e.low.ensure(rows * e.adapter_low * 4)) &&
                make_room_for_experts(e, pass.tokens_count);
  for (Scratch& scratch : e.scratch) {
    enough = enough && scratch.scores.ensure(size_t(4) * round_up(longest + 1, 256) * sizeof(float)) &&
             scratch.shares.ensure(size_t(24) * round_up(longest + 1, 256)) &&
             (!d.shape.centred || scratch.row.ensure(size_t(d.hidden) * sizeof(float))) &&
             scratch.draw.scaled.ensure(size_t(d.logits) * 4) && scratch.draw.weight.ensure(size_t(d.logits + 64) * 4);
  }
  return enough;
}

void pass_on_thread(void* context, int thread) {
  Engine& e = *static_cast<Engine*>(context);
  const bool tiles = (e.dims.shape.bfloat16 || e.dims.shape.int8) && e.kernels->enter;
  if (tiles) e.kernels->enter();
  e.kernels->forward(e, thread);
  if (tiles) e.kernels->leave();
}

struct Copies {
  Engine* engine;
  const int32_t *source, *target;
  int count;
  size_t bytes;
};

void copy_on_thread(void* context, int) {
  constexpr int PAGES = 4;
  const Copies& c = *static_cast<Copies*>(context);
  char* kv = c.engine->kv.as<char>();
  for (int first = pool_take(c.engine->pool, PAGES); first < c.count; first = pool_take(c.engine->pool, PAGES))
    for (int i = first; i < c.count && i < first + PAGES; ++i)
      if (c.source[i] != c.target[i])
        std::memcpy(kv + size_t(c.target[i]) * c.bytes, kv + size_t(c.source[i]) * c.bytes, c.bytes);
}

}  // namespace

std::string run(Engine& e, const HonePass& pass) {
  if (!e.published) return "run before publish: the runner has no weights";
  if (pass.tokens_count == 0) return pass.draws ? "draws of a pass without tokens" : "";
  if (e.dims.shape.experts && !pass.routing) return "a pass of a mixture of experts without a place for its routes";
  std::string fault = fault_in_tokens(e, pass);
  if (fault.empty()) fault = fault_in_adapters(e, pass);
  if (fault.empty()) fault = fault_in_draws(e, pass);
  if (!fault.empty()) return fault;
  plan(e, pass);
  if (!make_room(e, pass)) return "out of memory for a pass of " + number(pass.tokens_count) + " tokens";
  pool_run(e.pool, pass_on_thread, &e);
  return "";
}

std::string reserve(Engine& e, int64_t pages) {
  const size_t bytes = size_t(pages) * e.dims.page;
  e.pages = 0;
  if (pages < 0 || !e.kv.ensure(bytes))
    return "out of memory: " + number(pages) + " pages take " + gibibytes(bytes);
  e.pages = pages;
  return "";
}

std::string copy(Engine& e, const int32_t* source, const int32_t* target, int count) {
  const size_t bytes = e.dims.page;
  for (int i = 0; i < count; ++i)
    for (int page : {source[i], target[i]})
      if (page < 0 || page >= e.pages) return "copy of page " + number(page) + ": " + number(e.pages) + " are reserved";
  Copies copies = {&e, source, target, count, bytes};
  pool_run(e.pool, copy_on_thread, &copies);
  return "";
}

}  // namespace hone
