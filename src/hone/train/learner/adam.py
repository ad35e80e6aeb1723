"""AdamW on the tensors of a parameter store.

torch's own optimizer class does the same arithmetic, but imports the compiler at its first step (two seconds), and on a
small network its wrapping costs more than the kernel.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import DataError
from hone.core.state import State, array, number
from hone.train.learner.parameter_store import ParameterStore


class Adam:
    """Adam with decoupled weight decay (Kingma & Ba, 2015; Loshchilov & Hutter, 2019), one fused kernel per step."""

    def __init__(
        self,
        parameters: ParameterStore,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = parameters
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps
        owned = parameters.owned
        self.means = [torch.zeros_like(data) for data in owned]
        """Running mean of the gradient of each tensor."""
        self.squares = [torch.zeros_like(data) for data in owned]
        """Running mean of its square."""
        self.steps = torch.zeros((), dtype=torch.float32, device=owned[0].device)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step of learning rate `rate` along `parameters.gradients`."""
        self.steps += 1
        # Moments of inactive units decay to subnormal numbers, on which a CPU is ten times as slow.
        torch.set_flush_denormal(True)
        try:
            self._kernel(rate)
        finally:
            torch.set_flush_denormal(False)

    def _kernel(self, rate: float) -> None:
        nothing: list[Tensor] = []
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage] - the kernel of torch.optim.AdamW(fused=True)
            list(self.parameters.owned),
            list(self.parameters.gradients),
            self.means,
            self.squares,
            nothing,
            [self.steps] * len(self.means),
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def reset(self) -> None:
        """Forget all steps: both moments and the count are 0 again."""
        for moment in (*self.means, *self.squares, self.steps):
            moment.zero_()

    def state(self) -> State:
        """Step count and both moments `[P]`, whole and in the order of the network, whatever the number of ranks."""
        moments = {"exp_avg": self.means, "exp_avg_sq": self.squares}
        return {"step": float(self.steps), **{name: self._whole(moment) for name, moment in moments.items()}}

    def restore(self, state: State) -> None:
        """Restore the state. Raises DataError for another number of parameters."""
        step = number(state, "step")
        for name, moment in (("exp_avg", self.means), ("exp_avg_sq", self.squares)):
            saved = torch.from_numpy(array(state, name).copy())
            sizes = {key: value.numel() for key, value in self.parameters.by_name(moment).items()}
            if saved.numel() != sum(sizes.values()):
                raise DataError(f"saved {name} has {saved.numel()} numbers, the policy has {sum(sizes.values())}")
            pieces = dict(zip(sizes, saved.split(list(sizes.values())), strict=True))
            for mine, value in zip(moment, self.parameters.shards(pieces), strict=True):
                mine.copy_(value)
        self.steps.fill_(step)

    def _whole(self, moment: list[Tensor]) -> NDArray[np.generic]:
        """A copy in a type that numpy knows: bfloat16 is widened, which loses nothing."""
        whole = torch.cat([value.flatten() for value in self.parameters.by_name(moment).values()])
        return (whole.float() if whole.dtype == torch.bfloat16 else whole).cpu().numpy()
