"""Delayed rewards: a new version looks worse than it is while its rewards are still on their way."""

import math

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome
from hone.core.random import generator
from hone.decide.joins.join import build_view
from hone.decide.joins.view import DecisionView, JoinConfig
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot

RATES = (0.30, 0.36)
"""Rates of clicks under the old version and under the new one."""
SECONDS, NEW_FROM_S = 4000, 2800
"""Length of the log, one decision a second; the new version serves half of the decisions from here on."""
DELAY_S, WINDOW_S = 600.0, 1000.0
"""Mean of the exponential delay of a click, and the window of the join."""
ZERO, CLOSED, WEIGHTED = "open windows count as 0", "closed windows only", "open windows, weighted"
WAYS = (ZERO, CLOSED, WEIGHTED)
TRUTH = RATES[1] * (1 - math.exp(-WINDOW_S / DELAY_S))
"""Reward of the new version: a click within the window."""
_ACTIONS = ActionSet(names=("old", "new"))


def click_log(seed: int, run: int) -> list[DecisionRecord]:
    """Decisions of two versions with the clicks on them, each at its own time."""
    chance = generator(seed, "delayed rewards", run)
    new = (np.arange(SECONDS) >= NEW_FROM_S) & (chance.random(SECONDS) < 0.5)
    clicked = chance.random(SECONDS) < np.where(new, RATES[1], RATES[0])
    delay_s = chance.exponential(DELAY_S, SECONDS)
    records: list[DecisionRecord] = []
    for number in range(SECONDS):
        arm, name = int(new[number]), f"d{number}"
        logp = 0.0 if number < NEW_FROM_S else math.log(0.5)
        records.append(
            Decision(
                id=name, tenant="shop", unit=f"u{number}", at_s=float(number), context=np.zeros(0), actions=_ACTIONS,
                choice=Choice(action=arm, logp=logp), executed=arm, executed_logp=logp, version=_ACTIONS.names[arm],
                source="gateway", seq=number,
            )
        )  # fmt: skip
        if clicked[number]:
            at_s = number + float(delay_s[number])
            records.append(Outcome(decision_id=name, tenant="shop", value=1.0, at_s=at_s, source="clicks", seq=number))
    return records


def version_means(view: DecisionView) -> dict[str, tuple[float, float]]:
    """Mean reward of the old and the new version by each way of treating open windows."""
    new, known = view.table.executed == 1, view.table.known
    rewards = {
        ZERO: np.nan_to_num(view.reward_so_far),
        CLOSED: np.where(known, view.table.reward, np.nan),
        WEIGHTED: view.with_open_rows().reward,
    }
    return {way: (float(np.nanmean(each[~new])), float(np.nanmean(each[new]))) for way, each in rewards.items()}


def claims_of(errors: dict[str, Floats], preferred: dict[str, float]) -> list[BoundedClaim]:
    """Claims on errors of the new version's mean `[runs]`, and on the share of runs in which it looks better."""
    noise = np.sqrt(np.mean(errors[WEIGHTED] ** 2)), np.sqrt(np.mean(errors[CLOSED] ** 2))
    return [
        at_most("error of the mean, open windows as 0", float(errors[ZERO].mean()), -0.05),
        at_most("error of the mean, closed windows", abs(float(errors[CLOSED].mean())), 0.02),
        at_most("error of the mean, weighted open windows", abs(float(errors[WEIGHTED].mean())), 0.02),
        at_most("error of one estimate, weighted over closed", float(noise[0] / noise[1]), 1.0),
        at_most("share of runs that prefer the better version, open windows as 0", preferred[ZERO], 0.25),
        at_least("share of runs that prefer the better version, weighted", preferred[WEIGHTED], 0.7),
    ]


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    runs = 20 if quick else 150
    means: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(runs):
        view = build_view(click_log(seed, number), as_of_s=float(SECONDS), join=JoinConfig(window_s=WINDOW_S))
        for way, pair in version_means(view).items():
            means[way].append(pair)
    new = {way: np.array([pair[1] for pair in pairs]) for way, pairs in means.items()}
    errors = {way: values - TRUTH for way, values in new.items()}
    preferred = {way: float(np.mean([after > before for before, after in pairs])) for way, pairs in means.items()}
    noise = {way: float(np.sqrt(np.mean(each**2))) for way, each in errors.items()}
    return ExperimentResult(
        header=("way", "mean of the new version", "error of one estimate", "prefers the better version"),
        rows=[(way, f"{new[way].mean():.3f}", f"{noise[way]:.3f}", f"{preferred[way]:.0%}") for way in WAYS],
        panels=[bar_plot(f"estimated reward of the new version, in truth {TRUTH:.3f}", new)],
        verdict=(
            f"A new version with reward {TRUTH:.3f} seems to have {new[ZERO].mean():.3f} where open windows count as "
            f"0, and is preferred to the worse old one in {preferred[ZERO]:.0%} of the runs. Closed windows alone give "
            f"{new[CLOSED].mean():.3f} with an error of {noise[CLOSED]:.3f}; open ones weighted by the delay curve "
            f"give {new[WEIGHTED].mean():.3f} with {noise[WEIGHTED]:.3f}, and prefer it in {preferred[WEIGHTED]:.0%}."
        ),
        claims=claims_of(errors, preferred),
        figures={"true reward": TRUTH},
    )


EXPERIMENT = Experiment(
    title="Delayed rewards",
    question="What does a policy seem to be worth while its rewards are still on their way?",
    run=run,
    source="Chapelle, 2014",
)
