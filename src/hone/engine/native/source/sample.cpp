// Drawing a token: a function of a row's own logits, settings and uniform number. Compiled once: no instruction set
// here.
//
// Order: softmax of logits / temperature, then the tokens that a grammar allows, then top-k, then top-p of what is left,
// then min-p. Ranks run from the likeliest token on, ties from the smaller id.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine.h"

namespace hone {
namespace {

constexpr int BLOCK = 64;   // tokens whose probabilities are added before they join the cumulative sum
constexpr int BINS = 1024;  // of logits below the maximum: only one of them has to be sorted
constexpr float BINS_PER_NAT = 32;

struct Row {
  const float *scaled, *weight;  // logits / temperature, and exp of that minus `top`; weight 0: cut off
  int vocab;
  float top;
};

// The last token kept: of those with an equal logit, the smaller ids are.
struct Cut {
  float scaled = -std::numeric_limits<float>::infinity();
  int id = std::numeric_limits<int>::max();
  bool keeps(float other, int other_id) const { return other > scaled || (other == scaled && other_id <= id); }
};

int bin_of(const Row& row, int id) { return int(std::min((row.top - row.scaled[id]) * BINS_PER_NAT, float(BINS - 1))); }

// The order of tokens: the likeliest first, of equally likely ones the smaller id.
struct Likelier {
  const float* scaled;
  bool operator()(int a, int b) const { return scaled[a] != scaled[b] ? scaled[a] > scaled[b] : a < b; }
};

// Tokens of a bin that `within` keeps, the likeliest first.
const std::vector<int32_t>& ranked(const Row& row, int bin, const Cut& within, DrawScratch& scratch) {
  std::vector<int32_t>& found = scratch.candidates;
  found.clear();
  for (int id = 0; id < row.vocab; ++id)
    if (bin_of(row, id) == bin && within.keeps(row.scaled[id], id)) found.push_back(id);
  std::sort(found.begin(), found.end(), Likelier{row.scaled});
  return found;
}

Cut top_k_cut(const Row& row, int k, DrawScratch& scratch) {
  if (k <= 0 || k >= row.vocab) return Cut();
  int counts[BINS] = {};
  for (int id = 0; id < row.vocab; ++id) ++counts[bin_of(row, id)];
  int bin = 0, before = 0;
  while (before + counts[bin] < k) before += counts[bin++];
  const int last = ranked(row, bin, Cut(), scratch)[k - before - 1];
  return {row.scaled[last], last};
}

Cut top_p_cut(const Row& row, float top_p, const Cut& within, DrawScratch& scratch) {
  if (!(top_p < 1.0f)) return within;
  double masses[BINS] = {}, total = 0, before = 0;
  for (int id = 0; id < row.vocab; ++id)
    if (within.keeps(row.scaled[id], id)) masses[bin_of(row, id)] += row.weight[id];
  for (double mass : masses) total += mass;
  const double enough = top_p * total;
  int bin = 0;
  while (bin < BINS - 1 && before + masses[bin] < enough) before += masses[bin++];
  while (bin > 0 && masses[bin] == 0) before -= masses[--bin];  // rounding ran past the last token
  int last = 0;
  for (int id : ranked(row, bin, within, scratch)) {
    last = id;
    before += row.weight[id];
    if (before >= enough) break;
  }
  return {row.scaled[last], last};
}

// Cumulative sums of blocks of tokens, in the order of their ids; the last is the total.
double accumulate(const float* weight, int vocab, std::vector<double>& cumulative) {
  cumulative.clear();
  double total = 0;
  for (int first = 0; first < vocab; first += BLOCK) {
    double part[4] = {};
    for (int id = first; id < first + BLOCK; id += 4) {  // weights are padded with zeros
      if (id >= round_up(vocab, PANEL)) break;
      for (int lane = 0; lane < 4; ++lane) part[lane] += weight[id + lane];
    }
    total += (part[0] + part[1]) + (part[2] + part[3]);
    cumulative.push_back(total);
  }
  return total;
}

// The first token at which the cumulative weight exceeds uniform * total.
int draw_token(const float* weight, int vocab, const std::vector<double>& cumulative, double uniform) {
  const double total = cumulative.back();
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));  // the product may round up to the total
  const int block = int(std::upper_bound(cumulative.begin(), cumulative.end(), target) - cumulative.begin());
  double sum = block ? cumulative[block - 1] : 0.0;
  int last = 0;
  for (int id = block * BLOCK; id < std::min(vocab, (block + 1) * BLOCK); ++id) {
    if (weight[id] > 0) last = id;
    sum += weight[id];
    if (sum > target) return id;
  }
  return last;  // the block's sum was rounded up beyond that of its members
}

// The likeliest tokens of the whole policy, with their log-probabilities.
void report_likeliest(const Row& row, double total, int count, int32_t* token, float* logp, DrawScratch& scratch) {
  std::vector<int32_t>& ids = scratch.candidates;
  ids.resize(size_t(row.vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), Likelier{row.scaled});
  for (int place = 0; place < count; ++place) {
    token[place] = ids[place];
    logp[place] = float(double(row.scaled[ids[place]]) - double(row.top) - std::log(total));
  }
}

bool has(const uint8_t* bits, int id) { return bits[id / 8] >> (id % 8) & 1; }

// Weights of the allowed tokens alone, the likeliest of them 1: they may all be unlikely beside the others.
void keep_allowed(const uint8_t* allowed, Row& row, float* scaled, float* weight) {
  row.top = -std::numeric_limits<float>::infinity();
  for (int id = 0; id < row.vocab; ++id) {
    if (!has(allowed, id)) scaled[id] = -std::numeric_limits<float>::infinity();
    row.top = std::max(row.top, scaled[id]);
  }
  for (int id = 0; id < row.vocab; ++id) weight[id] = has(allowed, id) ? std::exp(scaled[id] - row.top) : 0.0f;
}

}  // namespace

void sample(const Engine& e, const float* logits, int draw, DrawScratch& scratch) {
  const HonePass& pass = *e.work.pass;
  const int vocab = e.dims.shape.vocab_used, given = pass.given[draw];
  float *scaled = scratch.scaled.as<float>(), *weight = scratch.weight.as<float>();
  Row row = {scaled, weight, vocab, 0};
  uint8_t* kept = pass.kept ? pass.kept + size_t(draw) * ((vocab + 7) / 8) : nullptr;
  if (!e.kernels->soften(logits, vocab, pass.temperature[draw], e.dims.shape.logit_cap, scaled, weight, &row.top)) {
    pass.token[draw] = given >= 0 ? given : 0;
    pass.logp[draw] = pass.sampled_logp[draw] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const double total = accumulate(weight, vocab, scratch.cumulative);
  if (const int count = pass.top_logprobs ? pass.top_logprobs[draw] : 0) {
    const int64_t at = int64_t(draw) * pass.top_width;
    report_likeliest(row, total, count, pass.top_token + at, pass.top_logp + at, scratch);
  }
  const float top = row.top, of_given = given >= 0 ? scaled[given] : 0;
  const uint8_t* allowed = pass.allowed ? pass.allowed + size_t(draw) * ((vocab + 7) / 8) : nullptr;
  if (allowed && std::all_of(allowed, allowed + vocab / 8, [](uint8_t bits) { return bits == 255; })) {
    bool all = true;
    for (int id = vocab / 8 * 8; id < vocab; ++id) all = all && has(allowed, id);
    if (all) allowed = nullptr;  // no grammar: the same sums as without a mate that has one
  }
  double left = total;
  if (allowed) {
    keep_allowed(allowed, row, scaled, weight);
    left = accumulate(weight, vocab, scratch.cumulative);
  }
  const bool likeliest = pass.greedy[draw];  // such a draw leaves nothing out
  Cut cut;
  if (!likeliest) cut = top_p_cut(row, pass.top_p[draw], top_k_cut(row, pass.top_k[draw], scratch), scratch);
  const float least = likeliest ? 0.0f : std::min(pass.min_p[draw], 1.0f);  // the likeliest stays always
  const auto stays = [&](int id) {
    return weight[id] >= least && cut.keeps(scaled[id], id) && (!allowed || has(allowed, id));
  };
  int token = given;
  bool reachable = true;
  if (likeliest) {
    const int best = int(std::find(scaled, scaled + vocab, row.top) - scaled);
    if (given < 0) token = best;
    reachable = token == best;
  } else if (given >= 0) {
    reachable = stays(given);
  }
  if (kept || pass.top_k[draw] > 0 || pass.top_p[draw] < 1 || least > 0) {
    for (int id = 0; id < vocab; ++id) {
      if (!stays(id))
        weight[id] = 0;
      else if (kept)
        kept[id / 8] |= uint8_t(1u << (id % 8));
    }
    left = accumulate(weight, vocab, scratch.cumulative);
  }
  if (token < 0) token = draw_token(weight, vocab, scratch.cumulative, pass.uniform[draw]);
  const double below = double(scaled[token]) - double(row.top);
  pass.token[draw] = token;
  pass.logp[draw] = float(double(given >= 0 ? of_given : scaled[token]) - double(top) - std::log(total));
  const float of_kept = likeliest ? 0.0f : float(below - std::log(left));
  pass.sampled_logp[draw] = reachable ? of_kept : -std::numeric_limits<float>::infinity();
}

}  // namespace hone
