// PPO's minibatch of small networks in one call: both networks forwards, the loss of every row, both backwards.
// Included by perceptron_vector.cpp, once for each instruction set.
//
// loss = max(-A r, -A clamp(r, 1 - low, 1 + high)) + value_weight (V - target)^2 / 2 - entropy_weight H, where
// r = exp(log p - logp): the same as control/ppo_backward.py, which is its specification. Lanes are rows, so that a head
// of k outputs is k registers.
#pragma once

namespace hone {
namespace HONE_ISA {

constexpr float MOST_LOG_RATIO = 20.0f;  // LOG_RATIO_LIMIT of objectives/ratios.py
constexpr float HALF_LOG_TWO_PI = 0.918938533204672742f;

HONE_INLINE vf choose(vi condition, vf a, vf b) {
  return reinterpret_cast<vf>((condition & reinterpret_cast<vi>(a)) | (~condition & reinterpret_cast<vi>(b)));
}

// log of x within [2^-126, 2^127], to about one unit in the last place: x = 2^n m, m in [sqrt(1/2), sqrt(2)), and a
// polynomial in m - 1 (Cephes). log(1) is 0 exactly; what is not a number stays so.
HONE_INLINE vf log(vf x) {
  const vu bits = reinterpret_cast<vu>(x), half = vu{} + 0x3f3504f3u;  // sqrt(1/2)
  const vu shifted = bits - half;
  const vi n = reinterpret_cast<vi>(shifted) >> 23;
  const vf m = reinterpret_cast<vf>((shifted & 0x007fffffu) + half) - spread(1.0f);
  const vf whole = __builtin_convertvector(n, vf);
  vf p = spread(7.0376836292e-2f);
  constexpr float FIT[] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                           -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
#pragma GCC unroll 8
  for (float number : FIT) p = fma(p, m, spread(number));
  const vf square = m * m;
  vf y = p * m * square;
  y = fma(whole, spread(-2.12194440e-4f), y);
  y = fma(spread(-0.5f), square, y) + m;
  return x == x ? fma(whole, spread(0.693359375f), y) : x;
}

// A panel of a minibatch: its columns, padded by zeros.
struct Column {
  alignas(64) float at[PANEL];
  Column(const float* from, int64_t count) {
    std::memset(at, 0, sizeof at);
    std::memcpy(at, from, count * sizeof(float));
  }
};

// The loss of one panel of `count` rows from row `first` on. `outputs` [outs][PANEL] of the actor and `value` [PANEL]
// become the loss's derivatives by them, 0 in rows past the end.
struct Head {
  const Clipped& a;
  int64_t outs, first, count;

  vi inside(int v) const { return lane_numbers() + v * LANES < vi{} + int(count); }
  void keep(float* to, int v, vf x) const {
    if (int64_t(v + 1) * LANES <= count) return store(to + first + v * LANES, x);
    alignas(64) float lanes[LANES];
    store(lanes, x);
    for (int64_t i = v * LANES; i < count; ++i) to[first + i] = lanes[i - v * LANES];
  }

  // Loss of the ratio -> its derivative by log p, times the weight.
  vf surrogate(vf now, vf then, vf advantage, vf* loss) const {
    const vf difference = now - then, cost = -advantage, most = spread(MOST_LOG_RATIO);
    const vf r = exp(difference > most ? most : difference);
    const vf low = spread(1.0f - a.low), high = spread(1.0f + a.high);
    const vf free = cost * r, held = cost * (r < low ? low : r > high ? high : r);
    const vi clipped = held > free;
    *loss = choose(clipped, held, free);
    return choose(clipped | (difference > most), vf{}, free) * spread(*a.weight);
  }

  // Adds the entropy to the loss, and stores it with the log-probability.
  void finish(int v, vf now, vf nats, vf loss) const {
    keep(a.now, v, now);
    keep(a.nats, v, nats);
    keep(a.loss, v, fma(spread(-a.entropy_weight), nats, loss));
  }

  void choices(float* outputs, const Column& then, const Column& advantage) const {
    alignas(64) int32_t choice[PANEL] = {};
    for (int64_t i = 0; i < count; ++i) choice[i] = int32_t(a.choice[first + i] - a.start);
    for (int v = 0; v < 2; ++v) {
      const vi chosen = *reinterpret_cast<const vi*>(choice + v * LANES);
      float* column = outputs + v * LANES;
      vi legal[MOST_OUTPUTS];
      for (int64_t o = 0; o < outs; ++o) {
        legal[o] = ~vi{};
        if (a.legal)
          for (int i = 0; i < LANES; ++i) {
            const int64_t row = std::min<int64_t>(v * LANES + i, count - 1);
            legal[o][i] = a.legal[(first + row) * outs + o] ? -1 : 0;
          }
      }
      vf most = spread(-__builtin_inff());
      for (int64_t o = 0; o < outs; ++o) {
        const vf z = load(column + o * PANEL);
        most = choose(legal[o], z > most ? z : most, most);
      }
      vf whole = {}, share[MOST_OUTPUTS];
      for (int64_t o = 0; o < outs; ++o) {
        share[o] = choose(legal[o], exp(load(column + o * PANEL) - most), vf{});
        whole += share[o];
      }
      const vf sum = log(whole), part = spread(1.0f) / whole;
      vf now = {}, nats = {};
      for (int64_t o = 0; o < outs; ++o) {
        const vf logp = choose(legal[o], load(column + o * PANEL) - most - sum, vf{});
        share[o] *= part;
        nats = nats - share[o] * logp;
        now = choose(chosen == int(o), logp, now);
        store(column + o * PANEL, logp);
      }
      vf loss;
      const vf by_logp = surrogate(now, load(then.at + v * LANES), load(advantage.at + v * LANES), &loss);
      const vf by_entropy = spread(-a.entropy_weight * *a.weight);
      for (int64_t o = 0; o < outs; ++o) {
        vf slope = choose(chosen == int(o), by_logp, vf{}) - by_logp * share[o];
        slope = slope - by_entropy * share[o] * (load(column + o * PANEL) + nats);
        store(column + o * PANEL, choose(inside(v), slope, vf{}));
      }
      finish(v, now, nats, loss);
    }
  }

  void gaussian(float* outputs, const Column& then, const Column& advantage) const {
    alignas(64) float sample[MOST_OUTPUTS * PANEL];
    to_panel(a.sample + first * outs, count, outs, sample);
    float spread_sum = 0.0f;
    for (int64_t o = 0; o < outs; ++o) spread_sum += a.log_std[o];
    for (int v = 0; v < 2; ++v) {
      float* column = outputs + v * LANES;
      vf squares = {};
      for (int64_t o = 0; o < outs; ++o) {
        const vf scaled = (load(sample + o * PANEL + v * LANES) - load(column + o * PANEL)) * spread(a.precision[o]);
        squares = fma(scaled, scaled, squares);
        store(column + o * PANEL, scaled);
      }
      const float constant = spread_sum + HALF_LOG_TWO_PI * float(outs) + a.volume;
      const vf now = fma(spread(-0.5f), squares, spread(-constant));
      const vf nats = spread(constant + 0.5f * float(outs));
      vf loss;
      vf by_logp = surrogate(now, load(then.at + v * LANES), load(advantage.at + v * LANES), &loss);
      by_logp = choose(inside(v), by_logp, vf{});
      const vf by_entropy = choose(inside(v), spread(-a.entropy_weight * *a.weight), vf{});
      for (int64_t o = 0; o < outs; ++o) {
        const vf scaled = choose(inside(v), load(column + o * PANEL), vf{});
        a.d_log_std[o] += hone::HONE_ISA::sum(fma(by_logp, fma(scaled, scaled, spread(-1.0f)), by_entropy));
        store(column + o * PANEL, by_logp * scaled * spread(a.precision[o]));
      }
      finish(v, now, nats, loss);
    }
  }

  // Adds the critic's loss to that of the rows.
  void values(float* value, const Column& target) const {
    for (int v = 0; v < 2; ++v) {
      const vf now = load(value + v * LANES), error = now - load(target.at + v * LANES);
      keep(a.value, v, now);
      const Column loss(a.loss + first, count);
      keep(a.loss, v, fma(spread(0.5f * a.value_weight) * error, error, load(loss.at + v * LANES)));
      store(value + v * LANES, choose(inside(v), error * spread(a.value_weight * *a.weight), vf{}));
    }
  }
};

void clipped(const Perceptron& actor, const Perceptron& critic, const Clipped& a) {
  const Shape acts(actor), judges(critic);
  const int64_t ins = actor.sizes[0], widest = std::max(acts.widest, judges.widest);
  float* x = room(INPUTS, MOST_INPUTS * ROWS);
  float* y = room(OUTPUTS, MOST_OUTPUTS * ROWS);
  float* tape = room(UNITS, std::max(acts.hidden, judges.hidden) * ROWS);
  float *slopes = room(SLOPES, widest * ROWS), *below = room(BELOW, widest * ROWS);
  for (int64_t row = 0; row < a.rows; row += ROWS) {
    const int64_t rows = std::min<int64_t>(ROWS, a.rows - row), panels = (rows + PANEL - 1) / PANEL;
    for (int64_t p = 0; p < panels; ++p)
      to_panel(a.x + (row + p * PANEL) * ins, rows_of_panel(a.rows, row + p * PANEL), ins, x + p * ins * PANEL);
    for (const Shape* shape : {&acts, &judges}) {
      const Perceptron& net = shape->net;
      const int64_t outs = net.sizes[net.layers];
      for (int64_t p = 0; p < panels; ++p) {
        float* out = y + p * outs * PANEL;
        for (int64_t l = 0; l < net.layers; ++l)
          pass(net, l, l ? shape->units(tape, p, l) : x + p * ins * PANEL,
               l + 1 < net.layers ? shape->units(tape, p, l + 1) : out);
        const int64_t first = row + p * PANEL, count = rows_of_panel(a.rows, first);
        const Head head{a, outs, first, count};
        if (shape == &judges) {
          head.values(out, Column(a.target + first, count));
          continue;
        }
        const Column then(a.logp + first, count), advantage(a.advantage + first, count);
        if (a.choice) head.choices(out, then, advantage);
        else head.gaussian(out, then, advantage);
      }
      Block{*shape, net, panels, shape->units(tape, 0, 1), x, y, slopes, below}.go(true);
    }
  }
}

}  // namespace HONE_ISA
}  // namespace hone
