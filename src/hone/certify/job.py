"""The certificate of a job: the probes of its wing, checked."""

from typing import Any

from torch import nn

from hone.certify.check import GradientProbe, build_certificate
from hone.learner.round_source import RoundLearner
from hone.learner.share import SharedStatistics
from hone.run.job import RunConfig, TrainingJob
from hone.run.store.records import GradientCertificate


def certify_job(job: TrainingJob[Any], config: RunConfig, config_hash: str) -> GradientCertificate | None:
    """Certificate of a job's loss on synthetic credit, which leaves the job as it is; None without a gradient
    learner."""
    probes = job_gradient_probes(job, config, own_credit=False)
    return build_certificate(probes, recipe=config.recipe, config_hash=config_hash) if probes else None


def job_gradient_probes(
    job: TrainingJob[Any], config: RunConfig, *, own_credit: bool, seed: int = 0
) -> list[GradientProbe]:
    """Probes of a job; empty without a gradient learner.

    `own_credit`: advantages come from the config's credit; otherwise they are synthetic, because a credit may keep
    state, which synthetic answers must not change before a run.
    """
    learner = job.recipe.learner
    learner = learner.learner if isinstance(learner, RoundLearner) else learner
    if isinstance(learner.policy, SharedStatistics):
        from hone.certify.control_probes import control_probes  # noqa: PLC0415 - the wing that the run has open

        return control_probes(learner, job, own_credit=own_credit, seed=seed)
    if isinstance(learner.policy, nn.Module):
        from hone.certify.token_probes import token_probes  # noqa: PLC0415 - as above

        return token_probes(learner, job, config, own_credit=own_credit, seed=seed)
    return []
