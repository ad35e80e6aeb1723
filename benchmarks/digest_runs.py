"""The runs of `run_digests.py`: short ones of every family, and the data that they read.

Belongs here: at least one config of each recipe, which loads before and after a change of the code, and files that this
module writes by itself, so that a fault of the code under test cannot reach its own data.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Settings = dict[str, Any]
"""Dotted key -> value."""

COMMON: Settings = {
    "seed": 3,
    "run.threads": 1,
    "run.certify": False,
    "run.log_every": 1,
    "run.checkpoint_every": 0,
}
"""Settings of every run: one line of metrics per step, one checkpoint at the end."""

REWARDS = '''
def right(completions, answer, **columns):
    return [float(text == wanted) for text, wanted in zip(completions, answer)]

def close(completions, answer, **columns):
    """Characters that are right, less a little for length."""
    return [sum(a == b for a, b in zip(text, wanted)) - 0.1 * len(text) for text, wanted in zip(completions, answer)]
'''
SMALL: Settings = {"network.hidden": [16, 16]}


# ---------------------------------------------------------------------------------------------- language models

MODEL: Settings = {
    "model.compute": "float32",
    "model.new": {
        "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24,
        "max_positions": 32, "alphabet": "0123456789+=",
    },
    "task.source": "sums.jsonl",
    "learner.lr": 0.01,
}  # fmt: skip
"""A one-layer model on sums of two digits."""
LINES: Settings = {"model.new": MODEL["model.new"] | {"alphabet": "0123456789+=\n"}}
"""Its answers may have several lines."""
EVALUATION: Settings = {
    "evaluation.max_tokens": 3,
    "evaluation.every": 2,
    "evaluation.task.source": "held.jsonl",
    "evaluation.rewards": {"functions": [{"use": "rewards.py:right"}]},
    "user_code.workers": 1,
}


def text(*functions: str, updates: int = 2, more: Settings | None = None) -> Settings:
    """A recipe on scored answers, of which it learns in `updates` optimizer steps."""
    rewards = {"functions": [{"use": f"rewards.py:{name}"} for name in functions or ("close",)]}
    rollout = {"prompts_per_step": 4, "samples_per_prompt": 4, "max_tokens": 4, "max_concurrent": 5}
    keys = {"rewards": rewards, "user_code.workers": 1} | {f"rollout.{key}": value for key, value in rollout.items()}
    return {"steps": 4, "run.rollouts_every": 2} | MODEL | keys | {"learner.minibatches": updates} | (more or {})


def without_learner(settings: Settings) -> Settings:
    """For a recipe that has no optimizer to set."""
    return {key: value for key, value in settings.items() if not key.startswith("learner.")}


KL_IN_REWARD = {"algorithm.kl_in_reward": {"kind": "adaptive", "weight": 0.1, "target_nats": 2.0}}
PENALTIES = {"algorithm.kl": 0.1, "algorithm.clip_high": 0.28, "algorithm.entropy": 0.01}
STEP_LABELS = {"collect.continue_from": "steps", "collect.separator": "7", "collect.continuations": 3}
ROUNDS = {"algorithm.collect_steps": 1, "algorithm.learn_steps": 1, "algorithm.batch": 4}
CRITIC = {"algorithm.critic": {"warmup_steps": 1, "epochs": 2, "loss": {"kind": "bins", "low": -1.0, "high": 4.0}}}
AGAIN = {"algorithm.correction": {"nudge": "+", "first_stage_steps": 2}, "rollout.stop": ["1", "2", "3", "4"]}
DIVERGENCE = {"algorithm.teacher": "runs/sft", "algorithm.divergence": {"kind": "jsd", "top_k": 4}}
PAIRS = {"steps": 4, "batch": 8, "learner.minibatches": 2, "samples": {"prompts": 4, "every": 2}}
LABELLED = {"steps": 4, "batch": 8, "learner.minibatches": 2}
ALIKE = (
    "cispo", "clip_cov", "curious_grpo", "decoupled_ppo", "dppo", "dr_grpo", "gmpo", "gspo", "gspo_token",
    "high_entropy_grpo", "kl_cov", "luspo", "m2po", "opsm", "sapo", "simko", "vespo",
)  # fmt: skip
"""Recipes that learn from a batch of scored answers in several updates."""
ONCE: dict[str, Settings] = {
    "gpg": {}, "opo": {}, "optimal_token_baseline": {}, "passk_best": {}, "reinforce": {}, "reinforce_plus_plus": {},
    "reinforce_plus_plus_baseline": {}, "self_imitation": {}, "passk": {"algorithm.k": 2}, "pkpo": {"algorithm.k": 2},
    "dro": {"algorithm.beta": 0.1},
}  # fmt: skip
"""Recipes that learn from it in one, and what they cannot do without."""
TEXT: dict[str, tuple[str, Settings]] = {
    "sft": ("sft", {"steps": 6, "batch": 10, "learner.minibatches": 2} | MODEL | EVALUATION),
    "grpo": ("grpo", text(more=EVALUATION | PENALTIES)),
    "dapo": ("dapo", text()),
    "gigpo": ("gigpo", text(more=PENALTIES)),
    "rloo": ("rloo", text(updates=1, more=KL_IN_REWARD)),
    "remax": ("remax", text(updates=1)),
    "gdpo": ("gdpo", text("close", "right")),
    "ppo_text": ("ppo_text", text(more=KL_IN_REWARD | CRITIC)),
    "self_correction": ("self_correction", text(more=EVALUATION | AGAIN)),
    "trpo_text": ("trpo_text", without_learner(text())),
    "decoupled_ppo_ahead": ("decoupled_ppo", text(more={"rollout.max_staleness": 1})),
    "opsm_ahead": ("opsm", text(more={"rollout.max_staleness": {"steps": 2}})),
    "collect": ("collect", without_learner(text(more=STEP_LABELS))),
    "expert_iteration": ("expert_iteration", text(more=ROUNDS | {"algorithm.min_score": -9.0})),
    "best_of_n_distillation": ("best_of_n_distillation", text(more=ROUNDS)),
    "dpo": ("dpo", MODEL | PAIRS | {"task.source": "pairs.jsonl"}),
    "dpo_aot": ("dpo", MODEL | PAIRS | {"task.source": "pairs.jsonl", "algorithm.loss": {"kind": "aot"}}),
    "simpo": ("simpo", MODEL | PAIRS | {"task.source": "pairs.jsonl"}),
    "kto": ("kto", MODEL | PAIRS | {"task.source": "marks.jsonl"}),
    "online_dpo": ("online_dpo", text()),
    "reward_pairs": ("reward_pairs", MODEL | LABELLED | {"task.source": "pairs.jsonl"}),
    "reward_outcome": ("reward_outcome", MODEL | LABELLED | {"task.source": "marks.jsonl"}),
    "implicit_prm": ("implicit_prm", MODEL | LABELLED | {"task.source": "marks.jsonl", "samples": {"prompts": 0}}),
    "on_policy_distillation_jsd": ("on_policy_distillation", text(updates=1, more=DIVERGENCE)),
    "on_policy_distillation": ("on_policy_distillation", text(updates=1, more={"algorithm.teacher": "runs/sft"})),
    "warm_grpo": ("warm_grpo", text(more={"algorithm.warm": {"source": "runs/collect", "share": 0.5}})),
    "max_rl": ("max_rl", text("right")),
    "reward_steps": ("reward_steps", MODEL | LINES | LABELLED | {"task.source": "steps.jsonl"}),
    **{name: (name, MODEL | PAIRS | {"task.source": "pairs.jsonl"}) for name in ("cpo", "orpo", "rpo")},
    **{name: (name, text()) for name in ALIKE},
    **{name: (name, text(updates=1, more=more)) for name, more in ONCE.items()},
}


# ---------------------------------------------------------------------------------------------- control


def control(env: str, *more: Settings, steps: int = 4, envs: int = 4, episodes: int = 2) -> Settings:
    """A recipe on Gymnasium environments."""
    keys: Settings = {"steps": steps, "env.id": env, "env.num_envs": envs, "evaluation.episodes": episodes}
    for one in more:
        keys = keys | one
    return keys


SHORT: Settings = {"rollout_steps": 32, "learner.minibatches": 2, "learner.epochs": 2} | SMALL
MAZE: Settings = {"rollout_steps": 16, "learner.minibatches": 2}
STAGES: Settings = {"curriculum.stages": [{"distance": 4}, {"distance": 8}]}
HINTS: Settings = {"hints.potential": {"kind": "linear", "weights": [0.0, 0.0, 1.0, 0.0]}}
CARTS = [
    {"id": "CartPole-v1", "num_envs": 2},
    {"id": "CartPole-v1", "num_envs": 2, "kwargs": {"sutton_barto_reward": True}},
]
GAME = "hone.control.seats.matrix_games:TwoStepGame"
PENNIES: Settings = {"env.id": "hone.control.seats.matrix_games:MatchingPenniesGame"}
SEATS: dict[str, tuple[str, tuple[Settings, ...]]] = {
    "ippo": ("ippo", ()),
    "ippo_past": ("ippo", (PENNIES, {"opponents": {"kind": "past", "every": 1}})),
    "ippo_apart": ("ippo", ({"env.sharing": "independent"},)),
    "ia2c": ("ia2c", (PENNIES, {"opponents": {"kind": "pfsp", "every": 1}})),
    "mappo": ("mappo", ()),
}
POKER: Settings = {"env.id": "compiled:kuhn_poker"}
LEAGUE: Settings = {"league.every": 1, "league.reset_every": 2, "league.payoff_matches": 2}
FOUR: Settings = {"env.id": "compiled:connect_four", "search.simulations": 4, "search.evaluation_simulations": 4}
TEAM: Settings = {"replay": {"collect": 8, "batch": 16, "capacity": 120, "warmup": 40}}
ON_POLICY: dict[str, tuple[str, Settings]] = {
    "ppo": ("ppo", control("CartPole-v1", SHORT, {"learner.lr_decay": "linear", "algorithm.gae_lambda": 0.9})),
    "ppo_box": ("ppo", control("Pendulum-v1", SHORT, {"env.clip_actions": True})),
    "ppo_ahead": ("ppo", control("CartPole-v1", SHORT, {"algorithm.max_staleness": 1})),
    "ppo_kl": ("ppo_kl", control("CartPole-v1", SHORT)),
    "a2c": ("a2c", control("CartPole-v1", SMALL, {"algorithm.normalise": {"observations": True, "rewards": True}})),
    "a2c_ahead": ("a2c", control("CartPole-v1", SMALL, {"algorithm.max_staleness": 1})),
    "trpo": ("trpo", control("CartPole-v1", SMALL, {"rollout_steps": 32})),
    "reinforce_control": ("reinforce_control", control("CartPole-v1", SMALL)),
    "ppo_rnd": ("ppo_rnd", control("hone/Maze-v0", MAZE)),
    "ppo_icm": ("ppo_icm", control("hone/Maze-v0", MAZE)),
    "ppo_counts": ("ppo_counts", control("hone/Maze-v0", MAZE)),
    "ppo_shaped": ("ppo_shaped", control("CartPole-v1", SHORT, HINTS)),
    "ppo_curriculum": ("ppo_curriculum", control("hone/Maze-v0", MAZE, STAGES)),
    "dispatch": ("dispatch", control("hone/Warehouse-v0", SMALL, {"rollout_steps": 16, "env.kwargs": {"limit": 60}})),
    "option_critic": ("option_critic", control("hone/FourRooms-v0", SMALL, {"rollout_steps": 16})),
    "option_q_learning": ("option_q_learning", control("hone/FourRooms-v0")),
    "multitask_ppo": ("multitask_ppo", {"steps": 3, "evaluation.episodes": 2, "tasks": CARTS} | SHORT),
    "rl2": ("rl2", control("hone/BanditTrials-v0", {"env.kwargs": {"arms": 3, "pulls": 10}}, envs=8, episodes=4)),
    "reptile": (
        "reptile",
        control("hone/SineTrials-v0", SMALL, {"env.kwargs": {"arms": 5, "pulls": 10}, "rollout_steps": 10}, steps=20),
    ),
    **{name: (recipe, control(GAME, SHORT, *more)) for name, (recipe, more) in SEATS.items()},
    "league": ("league", control("", SMALL, POKER, LEAGUE)),
    "alphazero": ("alphazero", control("", SMALL, FOUR, {"learner.minibatches": 2}, steps=2)),
    **{name: (name, control("", POKER, steps=6)) for name in ("cfr_plus", "double_oracle")},
    "gail": ("gail", control("CartPole-v1", SMALL, {"log": "cartpole.parquet", "rollout_steps": 32})),
}


def turns(*more: Settings, env: str = "CartPole-v1") -> Settings:
    """A recipe that collects some steps, then learns from its replay buffer."""
    replay: Settings = {
        "replay": {"collect": 8, "batch": 16, "capacity": 120, "warmup": 40},
        "learner.updates_per_iteration": 4,
    }
    return control(env, replay, SMALL, *more, steps=6)


def stepwise(*more: Settings) -> Settings:
    """A recipe that learns from its replay buffer after every step."""
    return control(
        "Pendulum-v1", {"replay": {"batch": 16, "capacity": 60, "warmup": 20}}, SMALL, *more, steps=30, envs=2
    )


ENSEMBLE: Settings = {
    "rollout_steps": 8,
    "learner.updates_per_iteration": 5,
    "algorithm": {"warmup": 10, "members": 2, "replay_capacity": 50},
    "planning": {"candidates": 20, "elites": 4, "horizon": 4},
    "env.max_episode_steps": 10,
}
EXPERT: Settings = {"expert": {"kind": "policy", "policy": "runs/ppo"}, "algorithm.replay_capacity": 500}
PLAIN = ("n_step_dqn", "prioritized_dqn", "dueling_dqn", "noisy_dqn", "c51", "qr_dqn", "rainbow", "discrete_sac")
REPLAY: dict[str, tuple[str, Settings]] = {
    "dagger": ("dagger", control("CartPole-v1", SMALL, EXPERT, steps=3)),
    "dqn": ("dqn", turns({"algorithm": {"target_every": 2, "tau": 0.5}})),
    "double_dqn": (
        "double_dqn",
        turns({"exploration": {"kind": "boltzmann", "start": 1.0, "end": 0.1, "decay_env_steps": 90}}),
    ),
    **{
        name: (name, turns()) for name in ("n_step_dqn", "prioritized_dqn", "dueling_dqn", "noisy_dqn", "c51", "qr_dqn")
    },
    "rainbow": ("rainbow", turns()),
    "r2d2": ("r2d2", turns()),
    "discrete_sac": ("discrete_sac", turns()),
    "her_dqn": ("her_dqn", turns({"env.kwargs": {"bits": 5}}, env="hone/BitFlip-v0")),
    "her_sac": ("her_sac", turns(env="hone/Reach-v0")),
    "sac": ("sac", stepwise({"algorithm.tau": 0.01})),
    "td3": ("td3", stepwise()),
    "ddpg": ("ddpg", stepwise({"exploration": {"kind": "ornstein_uhlenbeck", "scale": 0.3}})),
    **{name: (name, control(GAME, TEAM, SMALL, steps=6)) for name in ("vdn", "qmix")},
    "pets": ("pets", control("hone/CartPoleSwingUp-v0", SMALL, ENSEMBLE, steps=3, envs=1, episodes=1)),
}


def logged(log: str, *more: Settings) -> Settings:
    """A recipe on logged decisions, judged in the environment of the log."""
    env = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}[log]
    return control(env, {"log": f"{log}.parquet", "batch": 32}, SMALL, *more, steps=10, envs=1)


OFFLINE: dict[str, tuple[str, Settings]] = {
    "bc": ("bc", logged("cartpole")),
    "cql": ("cql", logged("cartpole")),
    "cql_box": ("cql", logged("pendulum")),
    "iql": ("iql", logged("cartpole", {"learner.lr_decay": "linear", "algorithm.tau": 0.05})),
    "iql_box": ("iql", logged("pendulum")),
    "bcq": ("bcq", logged("cartpole")),
    "bear": ("bear", logged("pendulum")),
    "td3_bc": ("td3_bc", logged("pendulum")),
}


# ---------------------------------------------------------------------------------------------- tables, bandits


def table(world: str, *more: Settings, limit: int | None = None) -> Settings:
    """A recipe on a table of action values."""
    epsilon = {"kind": "exponential", "start": 1.0, "end": 0.05, "half_life": 10}
    keys: Settings = {"steps": 20, "rollout_steps": 8, "finite.copies": 8, "exploration.epsilon": epsilon}
    keys |= {"finite.world": {"kind": "gymnasium", "id": world}} | ({"finite.limit": limit} if limit else {})
    for one in more:
        keys = keys | one
    return keys


GRID: Settings = {"steps": 100, "finite.world": {"kind": "grid"}}
BERNOULLI = {"kind": "bernoulli", "rates": [0.1, 0.3, 0.5]}
LINEAR = {"kind": "linear", "arms": 3, "features": 2}
CLOSED: dict[str, tuple[str, Settings]] = {
    "q_learning": ("q_learning", table("Taxi-v4")),
    "double_q_learning": ("double_q_learning", table("CliffWalking-v1", limit=50)),
    "sarsa": ("sarsa", table("CliffWalking-v1", limit=50)),
    "expected_sarsa": ("expected_sarsa", table("FrozenLake-v1")),
    "sarsa_lambda": ("sarsa_lambda", table("FrozenLake-v1", {"algorithm.trace_lambda": 0.5})),
    "monte_carlo": ("monte_carlo", table("FrozenLake-v1")),
    "dyna_q": ("dyna_q", GRID),
    "prioritized_sweeping": ("prioritized_sweeping", GRID),
    "td_prediction": ("td_prediction", {"steps": 20, "finite": {"world": {"kind": "chain"}, "copies": 4}}),
    "gradient_td": ("gradient_td", {"steps": 50}),
    "tile_sarsa": ("tile_sarsa", control("MountainCar-v0", steps=20)),
    "thompson": ("thompson", {"steps": 60, "arms": BERNOULLI}),
    **{name: (name, {"steps": 60, "arms": BERNOULLI}) for name in ("boltzmann", "epsilon_greedy")},
    **{name: (name, {"steps": 60, "pulls": 2, "arms": LINEAR}) for name in ("linucb", "squarecb")},
    "thompson_linear": ("thompson", {"steps": 60, "pulls": 2, "arms": LINEAR, "model": {"kind": "linear"}}),
}

RUNS = TEXT | ON_POLICY | REPLAY | OFFLINE | CLOSED
"""Name of a run -> recipe, and the settings besides `COMMON`. A run that others read from stands before them."""
NEEDS = {"on_policy_distillation": "sft", "warm_grpo": "collect", "dagger": "ppo"}
"""Run -> the run that it reads a policy from."""


# ---------------------------------------------------------------------------------------------- files


def as_toml(value: object) -> str:
    """A value as TOML says it; a table inline."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {as_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(as_toml(inner) for inner in value) + "]"
    return json.dumps(value)


def config(name: str) -> str:
    """The run's config file."""
    recipe, settings = RUNS[name]
    keys = {"recipe": recipe, "name": name} | COMMON | settings
    return "".join(f"{key} = {as_toml(value)}\n" for key, value in keys.items())


def lay_out(folder: Path) -> None:
    """Configs, reward functions, questions and logs, in `folder`."""
    for name in RUNS:
        (folder / f"{name}.toml").write_text(config(name), encoding="utf-8")
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    sums = [{"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a in range(6) for b in range(4)]
    held = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6, 9) for b in range(3)]
    answers = [(row["prompt"], row["answer"]) for row in sums]
    pairs = [{"prompt": prompt, "chosen": answer, "rejected": answer + "0"} for prompt, answer in answers]
    marks = [
        {"prompt": prompt, "completion": answer + "1" * (place % 2), "label": place % 2 == 0}
        for place, (prompt, answer) in enumerate(answers)
    ]
    steps = [
        {"prompt": prompt, "completions": [answer, "1" * (place % 3 + 1)], "labels": [True, place % 2 == 0]}
        for place, (prompt, answer) in enumerate(answers)
    ]
    rows_of = {"sums": sums, "held": held, "pairs": pairs, "marks": marks, "steps": steps}
    for place, rows in rows_of.items():
        (folder / f"{place}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_log(folder / "cartpole.parquet", "CartPole-v1", lambda draws: int(draws.integers(2)), logp=np.log(0.5))
    write_log(
        folder / "pendulum.parquet",
        "Pendulum-v1",
        lambda draws: draws.uniform(-2.0, 2.0, 1).astype(np.float32).tolist(),
        logp=np.log(0.25),
    )


def write_log(path: Path, env: str, act: Callable[[np.random.Generator], Any], *, logp: float) -> None:
    """Six episodes of at most 60 steps, decided at random, as the parquet that offline recipes read."""
    world, draws, rows = gymnasium.make(env, max_episode_steps=60), np.random.default_rng(5), []
    for episode in range(6):
        seen, score, ended = world.reset(seed=episode)[0], 0.0, False
        while not ended:
            action = act(draws)
            after, reward, terminated, truncated, _ = world.step(np.asarray(action) if "Pen" in env else action)
            ended, score = terminated or truncated, score + float(reward)
            row = {"episode": episode, "group": episode, "version": 0, "observation": seen.tolist(), "action": action}
            ends = {"terminated": terminated, "truncated": truncated, "final": after.tolist() if ended else None}
            rows.append(row | {"logp": float(logp), "reward": float(reward)} | ends)
            seen = after
        rows[-1]["score"] = score
    last = {row["episode"]: row["score"] for row in rows if "score" in row}
    rows = [row | {"score": last[row["episode"]]} for row in rows]
    notes = {"observation_space": described(world.observation_space), "action_space": described(world.action_space)}
    columns = pa.table({name: column([row[name] for row in rows]) for name in rows[0]})
    pq.write_table(columns.replace_schema_metadata({"hone": json.dumps(notes)}), path)


def column(values: list[Any]) -> pa.Array:
    """Plain values, or lists of a fixed size."""
    width = next((len(value) for value in values if isinstance(value, list)), None)
    return pa.array(values, type=None if width is None else pa.list_(pa.float32(), width))


def described(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """A space in Minari's notation."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    assert isinstance(space, gymnasium.spaces.Box)
    bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
    return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape)} | bounds
