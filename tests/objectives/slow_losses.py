"""Every loss beyond the policy family, once more: one row at a time, in plain Python, straight from its formula.

Nothing of the package is used, nothing is made safe: these are for numbers of ordinary size.
"""

from math import exp, log, log1p, sqrt


def sigmoid(x):
    return 1 / (1 + exp(-x))


def softmax(xs):
    total = sum(exp(x) for x in xs)
    return [exp(x) / total for x in xs]


def logistic(x, e):
    return -(1 - e) * log(sigmoid(x)) - e * log(1 - sigmoid(x))


# ---------------------------------------------------------------------------------------------- preference


def dpo(chosen, rejected, *, beta=0.1, smoothing=0.0):
    return logistic(beta * (chosen - rejected), smoothing)


def robust_dpo(chosen, rejected, *, beta=0.1, smoothing=0.1):
    p = sigmoid(beta * (chosen - rejected))
    return (-(1 - smoothing) * log(p) + smoothing * log(1 - p)) / (1 - 2 * smoothing)


def ipo(chosen, rejected, *, beta=0.1):
    return (chosen - rejected - 1 / (2 * beta)) ** 2


def hinge(chosen, rejected, *, beta=0.1):
    return max(0.0, 1 - beta * (chosen - rejected))


def nca_pair(chosen, rejected, *, beta=0.1):
    won, lost = sigmoid(beta * chosen), sigmoid(beta * rejected)
    return -log(won) - log(1 - won) / 2 - log(1 - lost) / 2


def sppo(chosen, rejected, *, beta=0.1, probability=1.0):
    goal = (probability - 0.5) / beta
    return (chosen - goal) ** 2 + (rejected + goal) ** 2


def apo_zero(chosen, rejected, *, beta=0.1):
    return 1 - sigmoid(beta * chosen) + sigmoid(beta * rejected)


def apo_down(chosen, rejected, *, beta=0.1):
    return sigmoid(beta * chosen) + 1 - sigmoid(beta * (chosen - rejected))


def exo_pair(chosen, rejected, *, beta=0.1, smoothing=1e-3):
    p = sigmoid(beta * (chosen - rejected))
    return p * log(p / (1 - smoothing)) + (1 - p) * log((1 - p) / smoothing)


def discopop(chosen, rejected, *, beta=0.1, sharpness=0.05):
    x = beta * (chosen - rejected)
    q = sigmoid(x / sharpness)
    return (1 - q) * -log(sigmoid(x)) + q * exp(-x)


def bco_pair(chosen, rejected, shift, *, beta=0.1):
    return -log(sigmoid(beta * (chosen - shift))) - log(1 - sigmoid(beta * (rejected - shift)))


def aot(margin, partner, *, beta=0.1, smoothing=0.0):
    return logistic(beta * (margin - partner), smoothing)


def simpo(chosen, rejected, *, beta=2.0, margin=1.0):
    return -log(sigmoid(beta * (chosen - rejected) - margin))


def cpo(chosen, rejected, chosen_length, *, beta=0.1, likelihood=1.0):
    return -log(sigmoid(beta * (chosen - rejected))) - likelihood * chosen / chosen_length


def orpo(chosen, rejected, *, weight=0.1):
    won, lost = exp(chosen) / (1 - exp(chosen)), exp(rejected) / (1 - exp(rejected))
    return -chosen - weight * log(sigmoid(log(won / lost)))


def kto(score, desirable, baseline, *, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0):
    if desirable:
        return desirable_weight * (1 - sigmoid(beta * (score - baseline)))
    return undesirable_weight * (1 - sigmoid(beta * (baseline - score)))


def bco(score, desirable, shift, *, beta=0.1):
    p = sigmoid(beta * (score - shift))
    return -log(p) if desirable else -log(1 - p)


def apo_zero_unpaired(score, desirable, *, beta=0.1):
    p = sigmoid(beta * score)
    return 1 - p if desirable else p


def bradley_terry(chosen, rejected, margin, *, centring=0.01):
    return -log(sigmoid(chosen - rejected - margin)) + centring * (chosen + rejected) ** 2


def step_classification(logits, label):
    return 0.0 if label == -100 else -log(softmax(logits)[label])


def step_regression(logit, label):
    return 0.0 if label != label else -label * log(sigmoid(logit)) - (1 - label) * log(1 - sigmoid(logit))


def implicit_process_reward(score, correct, *, beta=0.05):
    p = sigmoid(beta * score)
    return -log(p) if correct else -log(1 - p)


# -------------------------------------------------------------------------------------------- distillation


def forward_kl(student, teacher):
    return sum(exp(t) * (t - s) for s, t in zip(student, teacher, strict=True))


def reverse_kl(student, teacher):
    return forward_kl(teacher, student)


def generalised_jsd(student, teacher, *, mix=0.3):
    middle = [log(mix * exp(t) + (1 - mix) * exp(s)) for s, t in zip(student, teacher, strict=True)]
    return mix * forward_kl(middle, teacher) + (1 - mix) * forward_kl(middle, student)


# ------------------------------------------------------------------------------------------------- control


def squared_error(value, target):
    return (value - target) ** 2 / 2


def huber(value, target, *, delta=0.7):
    error = abs(value - target)
    return error**2 / 2 if error <= delta else delta * (error - delta / 2)


def clipped_value(value, then, target, *, width=0.2):
    kept = min(max(value, then - width), then + width)
    return max((value - target) ** 2, (kept - target) ** 2) / 2


def two_hot(target, low, high, size):
    width = (high - low) / (size - 1)
    place = (min(max(target, low), high) - low) / width
    left = min(int(place), size - 2)
    probability = [0.0] * size
    probability[left], probability[left + 1] = 1 - (place - left), place - left
    return probability


def cross_entropy(logits, target):
    return -sum(p * log(q) for p, q in zip(target, softmax(logits), strict=True))


def c51_target(reward, discount, probability, low, high):
    size = len(probability)
    total = [0.0] * size
    for i, p in enumerate(probability):
        moved = reward + discount * (low + i * (high - low) / (size - 1))
        total = [a + p * b for a, b in zip(total, two_hot(moved, low, high, size), strict=True)]
    return total


def quantile_huber_loss(quantiles, target, *, kappa=1.0):
    loss = 0.0
    for i, quantile in enumerate(quantiles):
        tau = (i + 0.5) / len(quantiles)
        for y in target:
            u = y - quantile
            height = abs(u) if kappa == 0 else huber(u, 0.0, delta=kappa) / kappa
            loss += abs(tau - (u < 0)) * height / len(target)
    return loss


def ddpg_actor_loss(worth):
    return -worth


def expectile_loss(value, target, *, level=0.7):
    return (level if target >= value else 1 - level) * (target - value) ** 2


def advantage_weighted_regression(logp, advantage, *, inverse_temperature=3.0, cap=100.0):
    return -min(exp(inverse_temperature * advantage), cap) * logp


def td3_bc_actor_loss(worth, action, logged, scale):
    return -scale * worth + sum((a - b) ** 2 for a, b in zip(action, logged, strict=True)) / len(action)


def bcq_vae_loss(rebuilt, action, mean, log_std, *, divergence=0.5):
    distance = sum((a - b) ** 2 for a, b in zip(rebuilt, action, strict=True)) / len(action)
    kls = [(m**2 + exp(s) ** 2 - 1) / 2 - s for m, s in zip(mean, log_std, strict=True)]
    return distance + divergence * sum(kls) / len(kls)


def mmd(first, second, *, width=20.0, norm=1):
    def alike(xs, ys):
        similarities = [
            exp(-sum(abs(a - b) ** norm for a, b in zip(x, y, strict=True)) / (2 * width)) for x in xs for y in ys
        ]
        return sum(similarities) / len(similarities)

    return sqrt(alike(first, first) + alike(second, second) - 2 * alike(first, second) + 1e-6)


def bear_actor_loss(worth, distance, log_multiplier):
    return exp(min(max(log_multiplier, -5), 10)) * distance - worth


def bear_multiplier_loss(log_multiplier, distance, *, threshold=0.05):
    return -log_multiplier * (distance - threshold)


def cql_penalty(table, chosen):
    return -log(softmax(table)[chosen])


def cql_penalty_sampled(worth, log_density, logged):
    terms = [exp(q) / exp(d) for q, d in zip(worth, log_density, strict=True)]
    return log(sum(terms) / len(terms)) - logged


def twin_critic_loss(first, second, target):
    return squared_error(first, target) + squared_error(second, target)


def sac_actor_loss(logp, first, second, alpha):
    return alpha * logp - min(first, second)


def temperature_loss(log_alpha, logp, *, target_entropy=-1.0):
    return -log_alpha * (logp + target_entropy)


def forward_kl_link(score):
    return 1 - 1 / exp(score)


def js_link(score):
    u = exp(score)
    return log(2 * u / (1 + u))


def alpha_link(score, *, alpha=0.5):
    return (1 - exp(score) ** -alpha) / alpha


def log_odds(mean):
    return mean - log1p(-exp(mean))
