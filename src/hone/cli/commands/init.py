"""`hone init`: three questions, and a config that runs.

Belongs here: the questions and the texts of the configs. Answers come from options, or from the terminal for those that
are left out; without a terminal they are the first choice. `sums`, the data of the first choice, is written beside the
config, so that it trains at once.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.cli.options import CommandCall
from hone.cli.terminal.screen import standard_screen
from hone.core.errors import ConfigError, did_you_mean
from hone.run.store.durable import replace_file

SUMS: Final = "sums"
"""Answer to the third question for language models: data that `hone init` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LearnerKind:
    """One answer to the first question."""

    words: str
    methods: Mapping[str, str]
    """Answers to the second question, and their meaning."""
    subject: str
    """The third question."""
    subjects: Mapping[str, str]
    """Its default by method."""


KINDS: Final[Mapping[str, _LearnerKind]] = {
    "language": _LearnerKind(
        words="a language model",
        methods={
            "grpo": "from a reward that judges its answers",
            "sft": "from written answers",
            "dpo": "from pairs of a better and a worse answer",
        },
        subject="data: a .jsonl or .parquet file, or sums, a small file that is written for you",
        subjects={"grpo": SUMS, "sft": SUMS, "dpo": SUMS},
    ),
    "control": _LearnerKind(
        words="a policy for an environment",
        methods={
            "ppo": "any environment, by many cheap steps",
            "dqn": "a few actions, by few steps",
            "sac": "actions that are numbers, by few steps",
        },
        subject="Gymnasium's id of the environment",
        subjects={"ppo": "CartPole-v1", "dqn": "CartPole-v1", "sac": "Pendulum-v1"},
    ),
    "bandit": _LearnerKind(
        words="a choice among a few arms",
        methods={
            "thompson": "by draws from the posterior",
            "epsilon_greedy": "the best so far, and sometimes any",
            "boltzmann": "in proportion to what is known",
        },
        subject="success rate of each arm, by commas",
        subjects=dict.fromkeys(("thompson", "epsilon_greedy", "boltzmann"), "0.2,0.5,0.6"),
    ),
}

_MODEL: Final = """
[{stage}model.new]  # a model that learns on a laptop; model.path = "DIR" takes a pretrained one
hidden_size = 64
layers = 2
heads = 4
kv_heads = 2
head_dim = 16
intermediate_size = 192
max_positions = 256
"""
_IMITATION: Final = """steps = 300
batch = 32
task = {{ source = {data} }}
learner = {{ lr = {lr}, warmup_steps = 20 }}
"""
_REWARD: Final = """steps = 60
task = {{ source = {data} }}
learner = {{ lr = 3e-4 }}
rollout = {{ prompts_per_step = 16, samples_per_prompt = 8, max_tokens = 16 }}

[[{stage}rewards.functions]]
use = "exact_match"  # the column answer, letter by letter; file.py:name is a function of yours
"""
_CONTROL: Final = """steps = {steps}

[env]
id = {data}
{env}"""
_BANDIT: Final = """steps = 2_000

[arms]
kind = "bernoulli"
rates = [{rates}]
"""


def config_text(kind: str, method: str, subject: str) -> str:
    """The config for three answers. Raises ConfigError for rates that are none."""
    head = f"# Made by hone init: {KINDS[kind].words}, {method}.\n#   hone train FILE\n"
    data = json.dumps(f"{SUMS}.jsonl" if subject == SUMS else subject, ensure_ascii=False)
    if kind == "bandit":
        return f'{head}recipe = "{method}"\n{_BANDIT.format(rates=", ".join(map(str, _rates(subject))))}'
    if kind == "control":
        steps, env = {"ppo": (390, "num_envs = 8\n"), "dqn": (2000, ""), "sac": (5000, "")}[method]
        return f'{head}recipe = "{method}"\n{_CONTROL.format(steps=steps, data=data, env=env)}'
    if method == "sft":
        return f'{head}recipe = "sft"\n{_IMITATION.format(data=data, lr="3e-3")}{_MODEL.format(stage="")}'
    if method == "dpo":
        note = "# Preferences refine a model that has learnt to answer: give it by model.path.\n"
        return f'{head}{note}recipe = "dpo"\n{_IMITATION.format(data=data, lr="3e-4")}{_MODEL.format(stage="")}'
    if subject != SUMS:
        return f'{head}recipe = "grpo"\n{_REWARD.format(data=data, stage="")}{_MODEL.format(stage="")}'
    start = '[[stage]]\nname = "sft"  # imitate until some answers are right\nrecipe = "sft"\n'
    start += f"{_IMITATION.format(data=data, lr='3e-3')}{_MODEL.format(stage='stage.')}"
    goal = '[[stage]]\nname = "grpo"\nrecipe = "grpo"\nmodel = { path = "stage:sft" }\n'
    return f"{head}\n{start}\n{goal}{_REWARD.format(data=data, stage='stage.')}"


def _rates(text: str) -> list[float]:
    """Rates of the arms. Raises ConfigError."""
    try:
        rates = [float(one) for one in text.split(",")]
    except ValueError:
        rates = []
    if len(rates) < 2 or not all(0 <= rate <= 1 for rate in rates):
        raise ConfigError(f"rates of arms are two numbers from 0 to 1 or more, by commas, got {text!r}")
    return rates


def _sums_rows(method: str) -> list[dict[str, str]]:
    """Rows of `sums.jsonl`, with the columns that a method and its start read."""
    rows: list[dict[str, str]] = []
    for a in range(10):
        for b in range(10):
            row = {"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)}
            if method == "dpo":
                row = {"prompt": row["prompt"], "chosen": row["completion"], "rejected": str(a + b + 1)}
            rows.append(row)
    return rows


def run(call: CommandCall) -> int:
    """Ask, and write the file; returns the exit code."""
    screen = standard_screen()
    target = Path(call.text("file") or "run.toml")
    asked: Callable[[str, str], str] | None = None
    if sys.stdin.isatty():
        asked = lambda question, default: input(f"{question} [{default}] ").strip() or default  # noqa: E731
    kind = _choice(call.text("what"), "--what", "What learns?", {k: one.words for k, one in KINDS.items()}, asked)
    chosen = KINDS[kind]
    method = _choice(call.text("by"), "--by", "From what does it learn?", chosen.methods, asked)
    default = chosen.subjects[method]
    subject = call.text("on") or (asked(f"On what? ({chosen.subject})", default) if asked else default)
    text = config_text(kind, method, subject)
    data = target.with_name(f"{SUMS}.jsonl") if kind == "language" and subject == SUMS else None
    if there := [str(path) for path in (target, data) if path is not None and path.exists()]:
        raise ConfigError(f"{' and '.join(there)} exists; name another file: hone init FILE")
    target.parent.mkdir(parents=True, exist_ok=True)
    if data is not None:
        text = text.replace(f'"{SUMS}.jsonl"', json.dumps(data.as_posix()))
        lines = [json.dumps(row) + "\n" for row in _sums_rows(method)]
        replace_file(data, "".join(lines).encode())
        screen.line(f"{data}: {len(lines)} rows")
    replace_file(target, text.replace("hone train FILE", f"hone train {target}").encode())
    screen.line(f"{target}: {chosen.words}, {method}, on {subject}")
    screen.line(f"check it with: hone plan {target}; train it with: hone train {target}")
    return 0


def _choice(
    option: str, flag: str, question: str, choices: Mapping[str, str], asked: Callable[[str, str], str] | None
) -> str:
    """One of `choices`: the option, the answer in the terminal, or the first. Raises ConfigError for another word."""
    first = next(iter(choices))
    answer = option or first
    if not option and asked is not None:
        listed = "\n".join(f"  {name:<16}{words}" for name, words in choices.items())
        answer = asked(f"{question}\n{listed}\n", first)
    if answer not in choices:
        raise ConfigError(
            f"{flag} {answer} is not known{did_you_mean(answer, list(choices))}; known: {', '.join(choices)}"
        )
    return answer
