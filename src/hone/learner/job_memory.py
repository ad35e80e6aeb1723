"""Memory of the networks of a job that was built."""

from typing import Any

from torch import nn

from hone.learner.gradient import GradientLearner
from hone.run.job import TrainingJob
from hone.run.memory_plan import MemoryPlan


def job_memory(job: TrainingJob[Any], device: str) -> MemoryPlan | None:
    """The memory plan of a job, read off its tensors; None for a policy that is no network."""
    learner = job.recipe.learner
    policy = learner.policy
    if not isinstance(policy, nn.Module):
        return None
    parameters = list(policy.parameters())
    parts = {"weights": sum(one.numel() * one.element_size() for one in parameters)}
    if isinstance(learner, GradientLearner):
        owned = [tensor for phase in learner.phases for tensor in phase.parameters.owned]
        trained = sum(tensor.numel() * tensor.element_size() for tensor in owned)
        parts |= {"gradients": trained, "optimizer state": 2 * trained}
    return MemoryPlan(parameters=sum(one.numel() for one in parameters), parts=parts, device=device)
