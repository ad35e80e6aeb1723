"""Warm buffers of a language model: collected answers that are mixed into every batch, with their log-probabilities."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import ranges
from hone.models.language.token_policy import TokenPolicy
from hone.sources.logged import LogSource, informative_groups
from hone.text.answer_data import AnswerTaskConfig, encode_answers
from hone.text.loss_adapters import ClipConfig
from hone.text.open_text import is_to_come
from hone.text.ratio import Denominator
from hone.text.reference_policies import TextPolicies
from hone.text.rl import NotesOnce, TextGradientRunConfig, TextRunConfig, require_groups
from hone.text.tasks.collection import read_collection


class WarmBufferConfig(Config):
    """Collected answers that are learnt from beside the policy's own."""

    source: str = Field(min_length=1)
    """`stage:NAME` of a stage that collected, or such a folder. Groups of unequal scores are used: those to which a
    demonstration belongs (`collect.branch`) are."""
    share: float = Field(default=0.25, gt=0, lt=1)
    """Share of a batch's groups that are the buffer's."""

    def groups(self, prompts_per_step: int) -> int:
        """Groups of the buffer beside those of the prompts of a step, at least 1."""
        return max(1, round(prompts_per_step * self.share / (1 - self.share)))


def _require_recorded_ratio(config: TextRunConfig) -> None:
    """Answers of the buffer were written by others, whose log-probabilities the ratio is taken against."""
    assert isinstance(config, WarmRunConfig)
    asked = config.learner.ratio.denominator
    if asked not in ("auto", "recorded"):
        raise ValueError(
            f'learner.ratio.denominator = "{asked}": answers of the warm buffer need a ratio against the recorded '
            'log-probabilities; leave it out, or set "recorded"'
        )


class WarmAlgorithm(ClipConfig):
    """The buffer and the clip widths."""

    warm: WarmBufferConfig
    """The buffer."""


class WarmRunConfig(TextGradientRunConfig):
    """Config shared by the recipes with a warm buffer."""

    requires = (require_groups, _require_recorded_ratio)
    auto_denominator: ClassVar[Denominator] = "recorded"
    algorithm: WarmAlgorithm
    """The buffer and the loss."""

    def more_checks(self) -> Mapping[str, Callable[[], Sequence[str]]]:
        return {"warm buffer": partial(_check_warm, self.algorithm.warm)}

    def derive_updates(self) -> dict[str, str]:
        chosen, prompts = self.algorithm.warm, self.rollout.prompts_per_step
        return {**super().derive_updates(), "warm buffer": f"{chosen.groups(prompts)} groups beside {prompts} prompts"}

    def warm_log(self, policies: TextPolicies) -> tuple[LogSource[TokenPolicy], NotesOnce]:
        """The buffer, drawn group by group, and a note on it. Raises DataError."""
        warm = self.algorithm.warm
        log, note = _open_warm_log(warm, policies, context=policies.policy.decoder.config.max_positions)
        groups = warm.groups(self.rollout.prompts_per_step)
        return LogSource(log=log, batch_size=groups, seed=self.seed, unit="group"), NotesOnce([note])


def _check_warm(warm: WarmBufferConfig) -> Sequence[str]:
    """None; raises DataError for a folder without collected answers."""
    if not is_to_come(warm.source):
        read_collection(warm.source)
    return []


def _open_warm_log(warm: WarmBufferConfig, policies: TextPolicies, *, context: int) -> tuple[Episodes, str]:
    """Groups of unequal scores of the collected answers, and a note on them.

    An answer without log-probabilities, a demonstration, gets those of the policy that the run starts from, as an
    estimate of who wrote it. Raises DataError for another vocabulary, and where no group is left.
    """
    task = AnswerTaskConfig(source=warm.source)
    collected = read_collection(warm.source)
    scored = [
        replace(example, answers=tuple(one for one in example.answers if not np.isnan(one.score)))
        for example in collected.rows
    ]
    examples = replace(collected, rows=tuple(example for example in scored if example.answers))
    if not len(examples):
        raise DataError(f"{warm.source}: none of its answers has a score, so that none is better than another")
    log, _ = encode_answers(examples, task, policies.policy.tokenizer, context=context, kind="imitation")
    useful = np.isin(log.episodes.group, informative_groups(log.episodes))
    if not useful.any():
        raise DataError(
            f"{warm.source}: the answers of each prompt have one score, so that none is better than another; collect "
            "several answers to each prompt, or demonstrations with their branches (collect.branch)"
        )
    chosen = log.episodes.take(np.flatnonzero(useful))
    kept, groups = _with_start_logp(chosen, policies), len(np.unique(chosen.group))
    estimated = int((np.add.reduceat(np.isnan(chosen.logp), chosen.offsets[:-1]) > 0).sum())
    return kept, (
        f"{warm.source}: {len(kept)} answers to {groups} prompts are the warm buffer; {estimated} of them, which nobody"
        " drew, have the log-probabilities of the policy that the run starts from; "
        f"{int((~useful).sum())} answers to prompts with one score are left out"
    )


def _with_start_logp(episodes: Episodes, policies: TextPolicies) -> Episodes:
    """The same episodes with the policy's log-probabilities where none were recorded; asked before the first step."""
    unknown = np.flatnonzero(np.add.reduceat(np.isnan(episodes.logp), episodes.offsets[:-1]) > 0)
    if not len(unknown):
        return episodes
    where = ranges(episodes.offsets[:-1][unknown], episodes.lengths[unknown])
    logp = episodes.logp.copy()
    asked = policies.logp_of(policies.policy, episodes.take(unknown)).astype(np.float32)
    logp[where] = np.where(np.isnan(logp[where]), asked, logp[where])
    return replace(episodes, logp=logp)
