"""The direct method alone: a reward model's own interval knows nothing of the model's error."""

import numpy as np

from hone.core.decisions import Floats
from hone.decide.estimators.estimate import EstimateSettings, EstimatorName, estimate_values
from hone.decide.evaluate.off_policy import logged_feedback
from hone.decide.simulators.logged_choices import logged_choice_world
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot

_NAMES: tuple[EstimatorName, ...] = ("dm", "ips", "snips", "dr", "switch")
_WORDS = {"dm": "direct method", "ips": "IPS", "snips": "SNIPS", "dr": "doubly robust", "switch": "switch-DR"}
_WORLD, _ROWS = 1, 2_000


def _estimates_on_logs(*, seed: int, logs: int) -> tuple[dict[str, Floats], dict[str, float], dict[str, float]]:
    """Relative errors `[logs]`, the coverage of 95% intervals, and their mean width relative to the value."""
    world = logged_choice_world(_WORLD)
    truth = world.value(world.target)
    errors = {name: np.empty(logs) for name in _NAMES}
    covered, width = dict.fromkeys(_NAMES, 0.0), dict.fromkeys(_NAMES, 0.0)
    for number in range(logs):
        logged = logged_feedback(world.log(_ROWS, seed=1000 * (seed + 1) + number), world.target)
        for name, measured in estimate_values(logged, _NAMES, EstimateSettings(seed=number)).items():
            one = measured.estimate
            errors[name][number] = one.value / truth - 1
            covered[name] += (one.low <= truth <= one.high) / logs
            width[name] += (one.high - one.low) / truth / logs
    return {**errors}, {**covered}, {**width}


def claims_of(errors: dict[str, Floats], covered: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the coverage of both methods, and on the bias of the direct one."""
    return [
        at_most("coverage of the direct method's 95% interval", covered["dm"], 0.3),
        at_least("coverage of doubly robust 95% intervals", covered["dr"], 0.85),
        at_least("bias of the direct method, relative", abs(float(errors["dm"].mean())), 0.015),
        at_most("bias of doubly robust, relative", abs(float(errors["dr"].mean())), 0.01),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    logs = 120 if quick else 400
    errors, covered, width = _estimates_on_logs(seed=seed, logs=logs)
    bias = {name: float(values.mean()) for name, values in errors.items()}
    size = {name: float(np.sqrt((values**2).mean())) for name, values in errors.items()}
    return ExperimentResult(
        header=("estimator", "bias", "root mean square error", "interval's width", "coverage of 95% intervals"),
        rows=[
            (_WORDS[name], f"{bias[name]:+.1%}", f"{size[name]:.1%}", f"{width[name]:.1%}", f"{covered[name]:.0%}")
            for name in _NAMES
        ],
        panels=[
            bar_plot("relative error of the estimated value", {_WORDS[name]: errors[name] for name in _NAMES}),
            bar_plot("coverage of intervals that claim 95%", {_WORDS[name]: covered[name] for name in _NAMES}),
        ],
        verdict=(
            f"On {logs} logs of {_ROWS:,} decisions the direct method misses by {bias['dm']:+.1%} on average, with "
            f"intervals {width['dm']:.1%} wide: those that claim 95% hold the true value in {covered['dm']:.0%} of the "
            f"logs. Doubly robust estimates from the same model hold it in {covered['dr']:.0%}, {width['dr']:.1%} wide."
        ),
        claims=claims_of(errors, covered),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="The direct method alone",
    question="Can a model of the reward replace importance weights?",
    run=_run,
    source="Dudik, Langford and Li, 2011",
)
