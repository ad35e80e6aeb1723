"""AdamW on the tensors of a parameter store.

torch's own optimizer class does the same arithmetic, but imports the compiler at its first step (two seconds), and on a
small network its wrapping costs more than the kernel.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hone.core.errors import DataError
from hone.core.state import State, array, has_part, number, substate
from hone.learner.share import ParameterStore

# ------------------------------------------------------------------------------------------------------- stored weights


def _named_arrays(parameters: ParameterStore, values: Sequence[Tensor]) -> State:
    """Copies of values shaped like `owned`, whole and by parameter name, in a type that numpy knows: bfloat16 is
    widened, which loses nothing. All ranks call it; those that save nothing get empty arrays."""
    return {
        name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy().copy()
        for name, value in parameters.by_name(values).items()
    }


def stored_weights(parameters: ParameterStore) -> State:
    """All trained weights by name."""
    return _named_arrays(parameters, parameters.owned)


@torch.no_grad()
def restore_weights(parameters: ParameterStore, state: State, *, what: str, remedy: str) -> None:
    """Load the weights of `state`, in place. Raises DataError, which names `what` was saved and the `remedy`, for those
    of another network."""
    named: dict[str, Tensor] = {}
    for name, shape in parameters.shapes.items():
        saved = array(state, name)
        if saved.shape != tuple(shape):
            shapes = f"of shape {list(saved.shape)}, this one {list(shape)}"
            raise DataError(f"the saved {what} has {name} {shapes}: {remedy}")
        named[name] = torch.from_numpy(saved.copy())
    for own, value in zip(parameters.owned, parameters.shards(named), strict=True):
        own.copy_(value)


# ----------------------------------------------------------------------------------------------------------------- adam


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
        tensors = (list(self.parameters.owned), list(self.parameters.gradients), self.means, self.squares)
        whole = self.parameters.step_multiple == 1  # then nothing is padded, and the rows are stepped where they are
        padded = list(tensors) if whole else [[self._padded(one) for one in row] for row in tensors]
        data, gradients, means, squares = padded
        nothing: list[Tensor] = []
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage] - the kernel of torch.optim.AdamW(fused=True)
            data,
            gradients,
            means,
            squares,
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
        for row, stepped in () if whole else zip(tensors, padded, strict=True):
            for one, value in zip(row, stepped, strict=True):
                if one is not value:
                    one.copy_(value[: one.numel()].view_as(one))

    def _padded(self, tensor: Tensor) -> Tensor:
        """`tensor`, or a flat copy with zeros up to a multiple that the kernel steps without a tail."""
        missing = -tensor.numel() % self.parameters.step_multiple
        return torch.nn.functional.pad(tensor.flatten(), (0, missing)) if missing else tensor

    def reset(self) -> None:
        """Forget all steps: both moments and the count are 0 again."""
        for moment in (*self.means, *self.squares, self.steps):
            moment.zero_()

    def state(self) -> State:
        """Step count and both moments of each parameter by name, whole whatever the number of ranks."""
        moments = {"exp_avg": self.means, "exp_avg_sq": self.squares}
        named = {name: _named_arrays(self.parameters, moment) for name, moment in moments.items()}
        return {"step": float(self.steps), **named}

    def restore(self, state: State) -> None:
        """Restore the state, also one whose moments are flat `[P]` in the order of the network.

        Raises DataError for other parameters.
        """
        step, shapes = number(state, "step"), self.parameters.shapes
        for name, moment in (("exp_avg", self.means), ("exp_avg_sq", self.squares)):
            named = _saved_moments(state, name, shapes) if has_part(state, name) else _split(state, name, shapes)
            for mine, value in zip(moment, self.parameters.shards(named), strict=True):
                mine.copy_(value)
        self.steps.fill_(step)


def _saved_moments(state: State, name: str, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Moments that were saved by parameter. Raises DataError with the names that are missing or of another shape."""
    saved = substate(state, name)
    tensors = {key: torch.from_numpy(array(saved, key).copy()) for key in shapes if key in saved}
    wrong = [
        f"{key} ({tuple(tensors[key].shape) if key in tensors else 'missing'} instead of {tuple(shape)})"
        for key, shape in shapes.items()
        if key not in tensors or tensors[key].shape != shape
    ]
    wrong += [f"{key} (not a parameter of the policy)" for key in saved if key not in shapes]
    if wrong:
        raise DataError(f"saved {name} does not fit the policy: {', '.join(wrong[:5])}; {len(wrong)} in all")
    return tensors


def _split(state: State, name: str, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Moments that were saved flat, by the names of the parameters."""
    saved, sizes = torch.from_numpy(array(state, name).copy()), [shape.numel() for shape in shapes.values()]
    if saved.numel() != sum(sizes):
        raise DataError(f"saved {name} has {saved.numel()} numbers, the policy has {sum(sizes)}")
    pieces = zip(shapes.items(), saved.split(sizes), strict=True)
    return {key: piece.view(shape) for (key, shape), piece in pieces}
