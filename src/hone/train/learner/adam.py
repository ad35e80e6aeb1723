"""AdamW on a flat buffer.

Belongs here: the update rule and its state. torch's own optimizer class does the same arithmetic, but brings in the
compiler at its first step (two seconds of imports), and on a small network its wrapping costs more than the kernel.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import DataError
from hone.core.state import State, array
from hone.train.learner.flat_parameters import FlatParameters


class Adam:
    """Adam with decoupled weight decay (Kingma & Ba, 2015; Loshchilov & Hutter, 2019), one fused kernel a step."""

    def __init__(
        self,
        parameters: FlatParameters,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = parameters
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps
        data = parameters.data.detach()
        self.mean = torch.zeros_like(data)
        """Running mean of the gradient `[P]`."""
        self.square = torch.zeros_like(data)
        """Running mean of its square `[P]`."""
        self.steps = torch.zeros((), dtype=torch.float32, device=data.device)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step of learning rate `rate` along `parameters.gradient`."""
        self.steps += 1
        # Moments of units that stay silent fade into subnormal numbers, on which a CPU is ten times as slow.
        torch.set_flush_denormal(True)
        try:
            self._kernel(rate)
        finally:
            torch.set_flush_denormal(False)

    def _kernel(self, rate: float) -> None:
        nothing: list[Tensor] = []
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage] - the kernel of torch.optim.AdamW(fused=True)
            [self.parameters.data.detach()],
            [self.parameters.gradient],
            [self.mean],
            [self.square],
            nothing,
            [self.steps],
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> State:
        return {
            "step": float(self.steps),
            "exp_avg": _readable(self.mean),
            "exp_avg_sq": _readable(self.square),
        }

    def restore(self, state: State) -> None:
        """Raises DataError when the state belongs to another number of parameters."""
        step = state.get("step")
        if not isinstance(step, float):
            raise DataError(f"the saved optimizer state has no step count, but {step!r}")
        for name, moment in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
            saved = torch.from_numpy(array(state, name).copy())
            if saved.shape != moment.shape:
                raise DataError(f"saved {name} has {saved.numel()} numbers, the policy has {moment.numel()}")
            moment.copy_(saved)
        self.steps.fill_(step)


def _readable(moment: Tensor) -> NDArray[np.generic]:
    """A copy in a type that numpy knows: bfloat16 is widened, which loses nothing."""
    known = moment.float() if moment.dtype == torch.bfloat16 else moment
    return known.cpu().numpy().copy()
