"""Settings of other libraries, as values of a config: `preset = "verl"` makes a recipe's mathematics verl's.

A preset sets keys of `algorithm` and of `learner.ratio` to what the library runs under the recipe's name by default,
and nothing else: no learning rate, no sizes. Keys that a user gives win. What no key expresses is stated in the
reference of algorithms, recipe by recipe. Read in the sources of TRL 1.16.0, verl 0.9.1 and AReaL (commit cbff54d64,
2026).
"""

import copy
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

from hone.core.config import Config

PresetName = Literal["trl", "verl", "areal"]
Values: TypeAlias = Mapping[str, object]
VERSIONS: Final[Mapping[str, str]] = {"trl": "TRL 1.16.0", "verl": "verl 0.9.1", "areal": "AReaL, commit cbff54d64"}


def _advantage(scale: str = "group", *, epsilon: float, whiten: str = "none") -> Values:
    return {"center": "group", "scale": scale, "ddof": 1, "epsilon": epsilon, "whiten": whiten}


def _run(algorithm: Values, ratio: Values) -> Values:
    return {"algorithm": algorithm, "learner": {"ratio": ratio}}


# TRL computes the trainer's log-probabilities anew where vLLM generates, and masks answers by the product of ratios.
_TRL_RATIO: Final[Values] = {"denominator": "recomputed", "correction": "sequence_masked_is", "weight_cap": 3.0}
_TRL_KL: Final[Values] = {"kl": 0.0, "kl_estimator": "weighted_k3", "entropy": 0.0}
_TRL: Final[Values] = {**_TRL_KL, "advantage": _advantage(epsilon=1e-4)}
_TRL_CLIP: Final[Values] = {**_TRL, "clip_low": 0.2, "clip_high": 0.2, "negative_cap": None}
_VERL_RATIO: Final[Values] = {"denominator": "recomputed", "correction": "none"}
_VERL_PENALTIES: Final[Values] = {"kl": 0.0, "kl_estimator": "k3", "entropy": 0.0, "aggregation": "token_mean"}
_VERL: Final[Values] = {**_VERL_PENALTIES, "advantage": _advantage(epsilon=1e-6)}
_VERL_WIDTHS: Final[Values] = {"clip_low": 0.2, "clip_high": 0.2}
_VERL_CLIP: Final[Values] = {**_VERL_PENALTIES, **_VERL_WIDTHS, "negative_cap": 3.0}
_NO_KL: Final[Values] = {"kind": "fixed", "weight": 0.0}
_AREAL_RATIO: Final[Values] = {"denominator": "recomputed", "correction": "none"}
_AREAL: Final[Values] = {
    "kl": 0.0,
    "entropy": 0.0,
    "aggregation": "token_mean",
    "advantage": _advantage(epsilon=1e-5, whiten="decisions"),
}
_AREAL_CLIP: Final[Values] = {**_AREAL, "clip_low": 0.2, "clip_high": 0.2, "negative_cap": None}

PRESETS: Final[Mapping[str, Mapping[str, Values]]] = {
    "trl": {
        "grpo": _run({**_TRL_CLIP, "aggregation": "token_mean"}, _TRL_RATIO),
        "dr_grpo": _run(
            {**_TRL_CLIP, "aggregation": "constant_length", "advantage": _advantage("none", epsilon=1e-4)}, _TRL_RATIO
        ),
        "gspo": _run({**_TRL_CLIP, "aggregation": "sequence_mean"}, _TRL_RATIO),
        "luspo": _run({**_TRL_CLIP, "aggregation": "sequence_sum"}, _TRL_RATIO),
        "cispo": _run({**_TRL, "aggregation": "token_mean", "ratio_cap": 0.2, "ratio_floor": 0.0}, _TRL_RATIO),
        "sapo": _run(
            {**_TRL, "aggregation": "sequence_mean", "positive_steepness": 1.0, "negative_steepness": 1.05}, _TRL_RATIO
        ),
        "vespo": _run(
            {
                **_TRL,
                "aggregation": "token_mean",
                "positive_power": 2.0,
                "positive_rate": 3.0,
                "negative_power": 3.0,
                "negative_rate": 2.0,
            },
            {"denominator": "recomputed", "correction": "none"},  # VESPO has its own, and refuses the product
        ),
        "gmpo": _run(
            {**_TRL, "kl_estimator": "k3", "aggregation": "sequence_mean", "log_low": 0.4, "log_high": 0.4},
            {"denominator": "recomputed", "correction": "none"},
        ),
        "opsm": _run({**_TRL_CLIP, "aggregation": "token_mean", "max_nats": 0.5}, _TRL_RATIO),
        "gdpo": _run(
            {
                **_TRL_KL,
                "clip_low": 0.2,
                "clip_high": 0.2,
                "negative_cap": None,
                "aggregation": "token_mean",
                "ddof": 1,
                "epsilon": 1e-4,
                "over": "answers",
            },
            _TRL_RATIO,
        ),
        "rloo": {
            "algorithm": {
                "kl_in_reward": {"kind": "fixed", "weight": 0.05, "estimator": "k1"},
                "whiten": "none",
                "epsilon": 1e-4,
                "aggregation": "sequence_sum",
            }
        },
    },
    "verl": {
        "grpo": _run({**_VERL_CLIP, "advantage": _advantage(epsilon=1e-6)}, _VERL_RATIO),
        "dr_grpo": _run(
            {**_VERL_CLIP, "aggregation": "constant_length", "advantage": _advantage("none", epsilon=1e-6)},
            _VERL_RATIO,
        ),
        "gspo_token": _run({**_VERL, **_VERL_WIDTHS, "negative_cap": None}, _VERL_RATIO),
        "cispo": _run({**_VERL, "ratio_cap": 1.2, "ratio_floor": 0.8}, _VERL_RATIO),
        "sapo": _run(
            {**_VERL, "aggregation": "sequence_mean", "positive_steepness": 1.0, "negative_steepness": 1.05},
            _VERL_RATIO,
        ),
        "dppo": _run(
            {
                **_VERL,
                "aggregation": "constant_length",
                "advantage": _advantage("none", epsilon=1e-6),
                "trust": {"kind": "tv", "max_increase": 0.2, "max_decrease": 0.2, "top": 0},
                "ratio_cap": 3.0,
            },
            _VERL_RATIO,
        ),
        "gmpo": _run({**_VERL, "aggregation": "sequence_mean", "log_low": 0.2, "log_high": 0.2}, _VERL_RATIO),
        "clip_cov": _run(
            {**_VERL, **_VERL_WIDTHS, "negative_cap": None, "share": 2e-4, "above": 1.0, "below": 5.0}, _VERL_RATIO
        ),
        "kl_cov": _run(
            {"aggregation": "token_mean", "advantage": _advantage(epsilon=1e-6), "share": 2e-4, "penalty": 0.1},
            _VERL_RATIO,
        ),
        "gdpo": _run({**_VERL_CLIP, "ddof": 1, "epsilon": 1e-6, "over": "decisions"}, _VERL_RATIO),
        "passk_best": _run({**_VERL_CLIP, "scale": "group", "ddof": 1, "epsilon": 1e-6}, _VERL_RATIO),
        "reinforce_plus_plus": _run(
            {**_VERL_CLIP, "kl_in_reward": _NO_KL, "whiten_rewards": "none", "ddof": 1, "epsilon": 1e-8}, _VERL_RATIO
        ),
        "reinforce_plus_plus_baseline": _run({**_VERL_CLIP, "ddof": 1, "epsilon": 1e-8}, _VERL_RATIO),
        "gpg": {"algorithm": {"norm": 1.0, "aggregation": "token_mean"}},
        "rloo": {"algorithm": {"kl_in_reward": _NO_KL, "whiten": "none", "aggregation": "token_mean"}},
        "remax": {"algorithm": {"kl_in_reward": _NO_KL, "aggregation": "token_mean"}},
        "opo": {"algorithm": {"aggregation": "token_mean"}},
        "optimal_token_baseline": {"algorithm": {"aggregation": "token_mean"}},
    },
    "areal": {
        "grpo": _run(_AREAL_CLIP, _AREAL_RATIO),
        "dr_grpo": _run(
            {**_AREAL_CLIP, "advantage": _advantage("none", epsilon=1e-5, whiten="decisions")}, _AREAL_RATIO
        ),
        "gspo": _run(_AREAL_CLIP, _AREAL_RATIO),
        "sapo": _run({**_AREAL, "positive_steepness": 1.0, "negative_steepness": 1.05}, _AREAL_RATIO),
        "cispo": _run({**_AREAL, "ratio_cap": 5.0, "ratio_floor": 0.0}, _AREAL_RATIO),
        "decoupled_ppo": {"algorithm": {**_AREAL_CLIP, "weight_cap": None, "weight_floor": None}},
    },
}
"""Library -> recipe -> values of its config."""


def preset_values(given: Mapping[str, object]) -> dict[str, object]:
    """What the preset of a run's config sets, without the keys that `given` sets itself; empty without a preset.

    A table of which `given` names another alternative is not set. Raises ValueError, naming those that there are, where
    the library has none for the recipe.
    """
    name, recipe = given.get("preset"), given.get("recipe")
    if not isinstance(name, str) or name not in PRESETS or not isinstance(recipe, str):
        return {}  # validation refuses an unknown name
    if recipe not in PRESETS[name]:
        others = [library for library, recipes in PRESETS.items() if recipe in recipes]
        has = f"it has {' and '.join(others)}" if others else "it has none"
        raise ValueError(
            f'preset = "{name}": recipe {recipe} has no preset of {VERSIONS[name]}; {has}. Leave preset out, or take '
            f"one of the recipes with it: {', '.join(PRESETS[name])}"
        )
    for key in ("algorithm", "learner"):
        if isinstance(given.get(key), Config):
            raise ValueError(
                f'preset = "{name}" with {key} as an object, of which no key is known to be yours: give {key} as a '
                "dictionary of the keys that you set"
            )
    return _missing(PRESETS[name][recipe], given)


def _missing(values: Values, given: Values) -> dict[str, object]:
    """The part of `values` that `given` does not set, table by table."""
    result: dict[str, object] = {}
    for key, value in values.items():
        left = copy.deepcopy(value) if key not in given else _inner(value, given[key])
        if left is not None or key not in given:
            result[key] = left
    return result


def _inner(value: object, given: object) -> dict[str, object] | None:
    """The part of a table that the given one leaves out; None for nothing, or for another alternative."""
    if not isinstance(value, Mapping) or not isinstance(given, Mapping):
        return None
    table, own = cast("Values", value), cast("Values", given)
    if "kind" in table and own.get("kind", table["kind"]) != table["kind"]:
        return None
    return _missing(table, own) or None
