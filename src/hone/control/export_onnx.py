"""A control policy as an ONNX file: normalisation, network, heads and the scaling to the box in one graph.

Belongs here: the graph's inputs, outputs and metadata, and its comparison with the policy. Input `observation` is
`[batch, numbers]` float32, `[batch]` int64 for numbered states, images as the environment shows them, or stacks of
observations `[batch, frames, ...]`, oldest first. Outputs are `action` (the policy's mode, in the
environment's units and within the bounds of a box), and by kind of policy `logits`, `q_values`, `mean` and `log_std`,
and `value`. A recurrent policy has a further input `state` `[batch, units]` and output `next_state`, and a policy of
legal actions a further input `mask` `[batch, bits]` of flags. Observations of several parts are an input for each part,
by its path; actions of several factors are a row of numbers, in the order of the space.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone import __version__
from hone.control.environments.layout import Leaf
from hone.control.environments.masks import random_masks
from hone.control.networks.actor_critic import (
    ActorCritic,
    ChoiceScorer,
    ControlPolicy,
    DeterministicActorCritic,
    QNetworkPolicy,
    SoftActorCritic,
    as_mlps,
)
from hone.control.networks.box_gaussian import gaussian_mode, within_box
from hone.control.networks.encoders import MINIGRID_VALUES
from hone.control.networks.factored import head_places
from hone.control.networks.intrinsic_reward import CuriousActorCritic
from hone.control.networks.memory import MemoryActorCritic, RecurrentDqnPolicy, RecurrentUnit
from hone.control.networks.mlp import BoxActions, FactoredActions, Mlp, ObservationInputs
from hone.control.networks.multitask import MultitaskActorCritic
from hone.control.networks.numpy_memory import NumpyFramePolicy, NumpyMemoryPolicy
from hone.control.networks.numpy_policies import LOG_STD_RANGE, HasNumpyPolicy
from hone.control.networks.offline import BcqPolicy, BearPolicy, DiscreteBcqPolicy, IqlPolicy
from hone.control.networks.q_networks import DiscreteSacPolicy, DqnPolicy
from hone.control.networks.recurrent import RecurrentActorCritic
from hone.control.predict import SavedPolicy, open_saved_policy, within_bounds
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.random import generator

Array = NDArray[np.generic]
Outputs = dict[str, Tensor]
ROWS: Final = 1000
"""Random observations that an export is compared on."""
OPSET: Final = 17
TOLERANCE: Final = 1e-4
"""Largest difference of an output, as a share of its scale; and of the scores of two actions of which either is right,
because rounding decides between them."""
_INPUT, _STATE, _MASK, _NEXT_STATE = "observation", "state", "mask", "next_state"

# ------------------------------------------------------------------------------------------------------------ graphs


class _PolicyGraph(nn.Module):
    """The mode of a policy, as a module for the exporter: tensors in, a tuple of tensors out."""

    names: tuple[str, ...] = ()
    """Names of the outputs, known after the first call."""

    def __init__(self, policy: ControlPolicy) -> None:
        super().__init__()
        self.policy = copy.deepcopy(policy).to("cpu").eval()
        for module in self.policy.modules():
            if isinstance(module, Mlp):
                module.kernels = None  # compiled code, which the exporter cannot look into

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        leaves, actions = self.policy.spaces.inputs.leaves, self.policy.spaces.actions
        if leaves:  # the first inputs are the parts of an observation
            flat = [part.to(torch.float32).flatten(1) if part.dim() > 1 else part[:, None].to(torch.float32)
                    for part in inputs[: len(leaves)]]  # fmt: skip
            inputs = (torch.cat(flat, dim=1), *inputs[len(leaves) :])
        masked = _takes_mask(self.policy)  # then the mask is the last input
        mask = inputs[-1] if masked else None
        outputs = _outputs(self.policy, *(inputs[:-1] if masked else inputs), mask=mask)
        if isinstance(actions, FactoredActions):
            logits, kind = outputs["logits"], torch.float32 if actions.gaussian_size else torch.int64
            modes = [
                place.head.mode(logits[:, place.outputs], None if mask is None else mask[:, place.bits])
                for place in head_places(actions)
            ]
            outputs = {**outputs, "action": torch.cat([mode.to(kind) for mode in modes], dim=1)}
        elif masked:
            scores = next(name for name in ("logits", "q_values") if name in outputs)
            legal = torch.where(inputs[-1], outputs[scores], torch.full_like(outputs[scores], -torch.inf))
            outputs = {**outputs, "action": legal.argmax(dim=1) + self.policy.spaces.choices.start, scores: legal}
        self.names = tuple(outputs)
        return tuple(outputs.values())


def _takes_mask(policy: HasNumpyPolicy) -> bool:
    if not isinstance(policy, ControlPolicy):
        return False
    actions = policy.spaces.actions
    return not isinstance(actions, BoxActions) and actions.masked


class _TableGraph(nn.Module):
    """Greedy actions of a table of numbered states."""

    names = ("action", "q_values")

    def __init__(self, table: ActionTable) -> None:
        super().__init__()
        assert isinstance(table.features, StateFeatures)
        self.register_buffer("q", torch.from_numpy(table.q.astype(np.float32)))
        self.first, self.first_action = table.features.first, table.first_action

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        values = self.get_buffer("q")[observation - self.first]
        return values.argmax(dim=1) + self.first_action, values


def _outputs(
    policy: ControlPolicy, observation: Tensor, state: Tensor | None = None, *, mask: Tensor | None = None
) -> Outputs:
    """The policy's mode and what it comes from, in torch. `mask` is for policies that compare the legal actions with
    each other; the caller sees to it that others are not taken. Raises ConfigError for kinds that plan or draw options.
    """
    x = policy.encode(observation)
    match policy:
        case MemoryActorCritic():
            assert state is not None
            return _memory_outputs(policy, x, state)
        case ActorCritic():
            critic = policy.critic
            value = None if critic is None else critic(x).squeeze(1)
            outputs = policy.scores(x) if isinstance(policy, ChoiceScorer) else policy.actor(x)
            return _actor_outputs(policy, outputs, policy.log_std, value)
        case CuriousActorCritic():
            return _actor_outputs(policy, policy.actor(x), policy.log_std, policy.critic(x).squeeze(1))
        case MultitaskActorCritic():
            return _actor_outputs(policy, *policy.own_head_outputs(observation))
        case RecurrentActorCritic():
            assert state is not None
            fresh = torch.where(x[:, :1] != 0.0, torch.zeros_like(state), state)
            held = gru_step(policy.gru, x, fresh)
            return {
                **_actor_outputs(policy, policy.actor(held), None, policy.critic(held).squeeze(1)),
                _NEXT_STATE: held,
            }
        case IqlPolicy() if not isinstance(policy.spaces.actions, BoxActions):
            return _actor_outputs(policy, policy.actor(x), None, policy.value(x).squeeze(1))
        case DiscreteSacPolicy():
            return _actor_outputs(policy, policy.actor(x), None, None)
        case RecurrentDqnPolicy():
            assert state is not None
            network = policy.average
            after = _unit_step(network.unit, x if network.encoder is None else network.encoder(x), state)
            values = network.q_values(after[:, : network.unit.units], mask)
            action = values.argmax(dim=1) + policy.spaces.choices.start
            return {"action": action, "q_values": values, _NEXT_STATE: after}
        case QNetworkPolicy() | DqnPolicy() | DiscreteBcqPolicy():
            return _greedy_outputs(policy, observation, mask)
        case _:
            return _box_outputs(policy, x)


def _memory_outputs(policy: MemoryActorCritic, x: Tensor, state: Tensor) -> Outputs:
    """Outputs of an actor-critic behind recurrent units, one step on."""
    units = [unit for unit in policy.units if isinstance(unit, RecurrentUnit)]
    parts = state.split(policy.state_sizes, dim=1)
    after = [_unit_step(unit, x, part) for unit, part in zip(units, parts, strict=True)]
    shown = [part[:, : unit.units] for unit, part in zip(units, after, strict=True)]
    value = None if policy.critic is None else policy.critic(shown[1]).squeeze(1)
    outputs = _actor_outputs(policy, policy.actor(shown[0]), policy.log_std, value)
    return {**outputs, _NEXT_STATE: torch.cat(after, dim=1)}


def _unit_step(unit: RecurrentUnit, x: Tensor, state: Tensor) -> Tensor:
    """State `[n, state_size]` after one observation."""
    return gru_step(unit.cell, x, state) if isinstance(unit.cell, nn.GRU) else _lstm_step(unit.cell, x, state)


def _box_outputs(policy: ControlPolicy, x: Tensor) -> Outputs:
    """Outputs of policies whose actions are points of a finite box."""
    match policy:
        case SoftActorCritic():
            mean, log_std = policy.actor(x).chunk(2, dim=1)
            unit = torch.tanh(mean)
            return {"action": _to_box(policy, unit), "mean": mean, "log_std": log_std.clamp(*LOG_STD_RANGE)}
        case DeterministicActorCritic():
            return {"action": _to_box(policy, torch.tanh(policy.actor(x)))}
        case IqlPolicy():
            return {"action": _to_box(policy, torch.tanh(policy.actor(x))), "value": policy.value(x).squeeze(1)}
        case BcqPolicy() | BearPolicy():
            return {"action": _to_box(policy, _best_of_samples(policy, x))}
        case _:
            raise ConfigError(
                f"a policy of the kind {policy.kind} has no ONNX form: it plans, or its options remember by drawing "
                "random numbers; use hone.api.load, or hone serve"
            )


def _actor_outputs(policy: ControlPolicy, outputs: Tensor, log_std: Tensor | None, value: Tensor | None) -> Outputs:
    """Outputs of a softmax over choices, or of a Gaussian in the form of its box."""
    actions = policy.spaces.actions
    valued = {} if value is None else {"value": value}
    if isinstance(actions, FactoredActions):
        deviations = {} if log_std is None else {"log_std": log_std[None] + torch.zeros_like(outputs[:, :1])}
        return {"action": outputs, "logits": outputs, **deviations, **valued}
    if not isinstance(actions, BoxActions):
        return {"action": outputs.argmax(dim=1) + actions.start, "logits": outputs, **valued}
    assert log_std is not None
    chosen = within_box(gaussian_mode(outputs, actions), actions)
    return {"action": chosen, "mean": outputs, "log_std": log_std.expand_as(outputs), **valued}


def _greedy_outputs(
    policy: QNetworkPolicy | DqnPolicy | DiscreteBcqPolicy, observation: Tensor, mask: Tensor | None
) -> Outputs:
    """Outputs of policies that take the action of the highest value."""
    match policy:
        case QNetworkPolicy():
            values = policy.q_values(observation)
        case DqnPolicy():
            values = policy.q_values(policy.average_return_outputs(observation))
        case DiscreteBcqPolicy():
            x = policy.spaces.inputs.tensor(observation)
            logits, values = policy.behaviour(x), policy.values(x)
            if mask is not None:
                logits = torch.where(mask, logits, torch.full_like(logits, -torch.inf))
            allowed = (logits - logits.amax(dim=1, keepdim=True)).exp() >= policy.threshold
            values = torch.where(allowed, values, torch.full_like(values, -torch.inf))
    return {"action": values.argmax(dim=1) + policy.spaces.choices.start, "q_values": values}


def _to_box(policy: ControlPolicy, unit: Tensor) -> Tensor:
    """Points in [-1, 1] `[n, a]` -> actions `[n, *action]`."""
    actions = policy.spaces.box
    low, high = (torch.tensor(side, dtype=torch.float32) for side in (actions.low, actions.high))
    return within_box(low + 0.5 * (high - low) * (unit + 1.0), actions)


def gru_step(gru: nn.GRU, x: Tensor, state: Tensor) -> Tensor:
    """One step of a layer of gated recurrent units, written out, because exporters have got `nn.GRU` wrong without a
    word: `[n, inputs]`, `[n, units]` -> `[n, units]`."""
    by_input, by_state = _weights(gru)
    fresh, kept = nn.functional.linear(x, *by_input), nn.functional.linear(state, *by_state)
    units = state.shape[1]
    reset, update = torch.sigmoid(fresh[:, : 2 * units] + kept[:, : 2 * units]).chunk(2, dim=1)
    new = torch.tanh(fresh[:, 2 * units :] + reset * kept[:, 2 * units :])
    return new + update * (state - new)


def _weights(cell: nn.RNNBase) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Weight and bias by the input, and by the state."""
    held = dict(cell.named_parameters())
    return (held["weight_ih_l0"], held["bias_ih_l0"]), (held["weight_hh_l0"], held["bias_hh_l0"])


def _lstm_step(lstm: nn.LSTM, x: Tensor, state: Tensor) -> Tensor:
    """One step of a layer of long short-term memory: `[n, inputs]`, outputs and cells `[n, 2 * units]` -> the next."""
    hidden, cells = state.chunk(2, dim=1)
    by_input, by_state = _weights(lstm)
    raw = nn.functional.linear(x, *by_input) + nn.functional.linear(hidden, *by_state)
    opened, forgotten, fresh, shown = raw.chunk(4, dim=1)
    cells = torch.sigmoid(forgotten) * cells + torch.sigmoid(opened) * torch.tanh(fresh)
    return torch.cat((torch.sigmoid(shown) * torch.tanh(cells), cells), dim=1)


def _best_of_samples(policy: BcqPolicy | BearPolicy, x: Tensor) -> Tensor:
    """The best of the candidates with the fixed noise of the acting policy, on the scale [-1, 1]."""
    size = policy.latent_size if isinstance(policy, BcqPolicy) else policy.action_size
    draws = generator(0, "best of", policy.samples).standard_normal((policy.samples, size), dtype=np.float32)
    noise = torch.from_numpy(draws)
    critic, values, candidates = as_mlps(policy.critics)[0], [], []
    for row in noise:
        if isinstance(policy, BcqPolicy):
            unit = policy.perturb_actions(x, policy.generate_actions(x, row + torch.zeros_like(x[:, :1])))
        else:
            unit = torch.tanh(policy.sample_pre_tanh(x, row[None, None])).squeeze(1)
        candidates.append(unit)
        values.append(critic(torch.cat((x, unit), dim=1)))
    best = torch.cat(values, dim=1).argmax(dim=1)
    return torch.stack(candidates, dim=1).gather(1, best[:, None, None].expand(-1, 1, policy.action_size)).squeeze(1)


# ------------------------------------------------------------------------------------------------------------ export


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnnxExport:
    """A written file, and its comparison with the policy."""

    path: Path
    inputs: Mapping[str, Sequence[int | str | None]]
    """Names and shapes."""
    outputs: Mapping[str, Sequence[int | str | None]]
    rows: int
    """Observations that it was compared on."""
    equal: int
    """Rows with the same action: equal numbers, or points of a box within `TOLERANCE` of its reach. In the others two
    actions have the same score to rounding."""
    greatest_difference: float
    """Greatest difference of actions in a box, as a share of its reach; 0 for numbered actions."""

    def describe(self) -> str:
        """A line for the user."""
        inputs, outputs = (
            ", ".join(f"{name} {list(shape)}" for name, shape in side.items()) for side in (self.inputs, self.outputs)
        )
        ties = ", the others are ties to rounding" if self.equal < self.rows else ""
        off = f" to {self.greatest_difference:.1g} of the box" if self.greatest_difference else ""
        return f"wrote {self.path}: {inputs} -> {outputs}; {self.equal} of {self.rows} actions are equal{off}{ties}"


def export_onnx(folder: Path, target: Path) -> _OnnxExport:
    """Write the control policy of `folder` as `target`, compare its actions on `ROWS` random observations by
    onnxruntime, and remove it again if they differ.

    The file's metadata have `policy.json` and the version of hone. Raises ConfigError for a target that is there and
    for kinds without an ONNX form, DataError for other actions, ResourceError without onnx or onnxruntime.
    """
    onnx, runtime = (_library(name) for name in ("onnx", "onnxruntime"))
    if target.exists():
        raise ConfigError(f"{target} is there already; remove it, or give another name")
    saved = open_saved_policy(folder)
    graph, example = _graph(saved)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        names = [*_observed(saved, random_observations(saved, 1)), *_further_inputs(saved, 1)]
        _write(graph, names, example, target)
        model = onnx.load(str(target))
        description = (folder / "policy.json").read_text(encoding="utf-8")
        onnx.helper.set_model_props(model, {"policy.json": description, "hone": __version__})
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(target))
        return _compared(saved, runtime.InferenceSession(str(target), providers=["CPUExecutionProvider"]), target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _library(name: str) -> Any:  # noqa: ANN401 - an optional library
    try:
        return import_module(name)
    except ImportError as error:
        raise ResourceError(f"hone export --onnx needs {name}: pip install 'hone-rl[onnx]'") from error


def _graph(saved: SavedPolicy) -> tuple[_PolicyGraph | _TableGraph, tuple[Tensor, ...]]:
    """Module for the exporter, and inputs of two rows. Raises ConfigError for kinds without an ONNX form."""
    policy = saved.policy
    if saved.observation.layout is not None and isinstance(saved.acting, NumpyFramePolicy):
        raise ConfigError(
            f"{saved.folder}: stacks of observations of several parts have no ONNX form; use hone.api.load, or hone "
            "serve, which take them"
        )
    seen = random_observations(saved, 2)
    if isinstance(policy, ControlPolicy):
        graph = _PolicyGraph(policy)
        arrays = {**_observed(saved, seen), **_further_inputs(saved, 2)}
        example = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays.values())
    elif isinstance(policy, ActionTable) and isinstance(policy.features, StateFeatures):
        graph, example = _TableGraph(policy), (torch.from_numpy(seen),)
    else:
        raise ConfigError(
            f"{saved.folder}: only networks and tables of action values of numbered states have an ONNX form"
        )
    with torch.no_grad():
        graph(*example)
    return graph, example


def _write(graph: _PolicyGraph | _TableGraph, inputs: Sequence[str], example: tuple[Tensor, ...], target: Path) -> None:
    """Trace the module into a file. The exporter by TorchScript is taken: it writes one file, in a tenth of a second,
    and needs no further package."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # constants of the policy are meant to be constants of the graph
        torch.onnx.export(
            graph,
            example,
            str(target),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(graph.names),
            dynamic_axes={name: {0: "batch"} for name in (*inputs, *graph.names)},
        )


def random_observations(saved: SavedPolicy, count: int, seed: int = 0) -> Array:
    """Observations `[count, ...]` for comparisons: random states, pixels, or numbers about where the policy was
    trained; of a policy of frames stacks of them `[count, frames, ...]`."""
    draws, form = generator(seed, "onnx"), saved.observation
    if form.is_state:
        return draws.integers(form.first, form.first + form.count, count)
    if form.layout is not None:
        rows = np.zeros((count, form.layout.row_bytes), np.uint8)
        for leaf in form.layout.leaves:
            form.layout.view(rows, leaf)[...] = _random_part(leaf, count, draws)
        return rows
    inputs = saved.policy.spaces.inputs if isinstance(saved.policy, ControlPolicy) else None
    if inputs is not None and inputs.encoder is not None:
        return _random_images(inputs, count, draws)
    shape = (count, form.count) if inputs is None or inputs.frames == 1 else (count, inputs.frames, form.count)
    numbers = draws.normal(0.0, 2.0, shape)
    if isinstance(saved.policy, ControlPolicy):
        assert inputs is not None
        if inputs.mean:
            numbers = np.array(inputs.mean) + np.array(inputs.scale) * numbers
        if isinstance(saved.policy, MultitaskActorCritic):
            tasks = saved.policy.tasks
            numbers[:, -tasks:] = np.eye(tasks)[draws.integers(0, tasks, count)]
    return numbers.astype(np.float32)


def _random_images(inputs: ObservationInputs, count: int, draws: np.random.Generator) -> Array:
    encoder, image = inputs.encoder, inputs.image
    assert encoder is not None
    stacked = (count, *([inputs.frames] if inputs.frames > 1 else []), *encoder.shape)
    if encoder.kind == "minigrid":
        values = np.array(MINIGRID_VALUES)
        most = values if encoder.channels == "last" else values[:, None, None]
        return (draws.random(stacked) * most).astype(np.uint8)
    if image is not None and image.is_bytes:
        return draws.integers(0, int(image.divisor) + 1, stacked, np.uint8)
    return draws.random(stacked).astype(np.float32)


def _random_part(leaf: Leaf, count: int, draws: np.random.Generator) -> Array:
    """Random values `[count, *shape]` of a part of an observation."""
    if leaf.kind == "one_hots":
        values = [
            draws.integers(start, start + size, count) for start, size in zip(leaf.starts, leaf.sizes, strict=True)
        ]
        return np.stack(values, axis=1).reshape(count, *leaf.shape)
    if leaf.kind == "bits" or np.dtype(leaf.dtype).kind not in "f":
        most = leaf.high[0] if leaf.kind == "box" and leaf.high else 1.0
        return draws.integers(0, int(min(most, 255.0)) + 1, (count, *leaf.shape))
    return draws.normal(0.0, 2.0, (count, *leaf.shape))


def _observed(saved: SavedPolicy, seen: Array) -> dict[str, Array]:
    """Observations by the names of the inputs: of several parts, each part by its path."""
    layout = saved.observation.layout
    if layout is None:
        return {_INPUT: seen}
    return {leaf.path or _INPUT: np.ascontiguousarray(layout.view(seen, leaf)) for leaf in layout.leaves}


def _further_inputs(saved: SavedPolicy, count: int) -> dict[str, Array]:
    """Random states and masks `[count, ...]` of a policy that has them, by the names of the inputs."""
    draws, policy = generator(1, "onnx inputs"), saved.policy
    further: dict[str, Array] = {}
    if isinstance(policy, RecurrentActorCritic):
        further[_STATE] = draws.uniform(-1.0, 1.0, (count, policy.gru.hidden_size)).astype(np.float32)
    if isinstance(policy, MemoryActorCritic | RecurrentDqnPolicy):
        further[_STATE] = draws.uniform(-1.0, 1.0, (count, sum(policy.state_sizes))).astype(np.float32)
    if _takes_mask(policy):
        further[_MASK] = random_masks(saved.actions.choices, count, draws)
    return further


def _compared(saved: SavedPolicy, session: Any, target: Path) -> _OnnxExport:  # noqa: ANN401 - onnxruntime has no types
    """Actions of the file and of the policy on the same observations. Raises DataError where they differ."""
    seen = random_observations(saved, ROWS, seed=1)
    names = [one.name for one in session.get_outputs()]
    further = _further_inputs(saved, ROWS)
    expected = _expected_actions(saved, seen, further)
    outputs = dict(zip(names, session.run(None, {**_observed(saved, seen), **further}), strict=True))
    equal, tied, greatest = _same_actions(saved, outputs, np.asarray(expected))
    if not (equal | tied).all():
        row = int(np.flatnonzero(~(equal | tied))[0])
        raise DataError(
            f"{target}: {int((~(equal | tied)).sum())} of {ROWS} actions differ from the policy's, so the file was "
            f"removed; the first is of {seen[row].tolist()}: {outputs['action'][row].tolist()}, and the policy takes "
            f"{expected[row].tolist()}"
        )
    return _OnnxExport(
        path=target,
        inputs={side.name: side.shape for side in session.get_inputs()},
        outputs={side.name: side.shape for side in session.get_outputs()},
        rows=ROWS,
        equal=int(equal.sum()),
        greatest_difference=greatest,
    )


def _expected_actions(saved: SavedPolicy, seen: Array, further: Mapping[str, Array]) -> Array:
    """The policy's modes; of a policy of frames for whole stacks."""
    if saved.observation.layout is not None:
        mask = further.get(_MASK)
        if isinstance(saved.acting, NumpyMemoryPolicy):
            saved.acting.memory = further[_STATE].astype(np.float32)
        return within_bounds(saved.actions, saved.acting.best(seen, None if mask is None else mask.astype(np.bool_)))
    if not isinstance(saved.acting, NumpyFramePolicy):
        return np.asarray(saved.predict(seen, further.get(_STATE), mask=further.get(_MASK))[0])
    mask = further.get(_MASK)
    chosen = saved.acting.head.best(seen, None if mask is None else mask.astype(np.bool_))
    if isinstance(saved.actions, BoxActions):
        low, high = (np.reshape(side, saved.actions.shape) for side in (saved.actions.low, saved.actions.high))
        return np.clip(chosen, low, high)
    return chosen


def _same_actions(
    saved: SavedPolicy, outputs: Mapping[str, Array], expected: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], float]:
    """Flags `[n]` of equal actions and of ties to rounding, and the greatest difference as a share of the box."""
    chosen: NDArray[Any] = np.asarray(outputs["action"])
    if isinstance(saved.actions, BoxActions):
        off = np.abs(chosen - expected).reshape(len(chosen), -1) / saved.actions.reach
        return off.max(axis=1) <= TOLERANCE, np.zeros(len(chosen), np.bool_), float(off.max())
    if isinstance(saved.actions, FactoredActions):
        return _same_factors(saved.actions, outputs, expected)
    scores = np.asarray(outputs["logits"] if "logits" in outputs else outputs["q_values"], np.float64)
    rows, start = np.arange(len(chosen)), saved.actions.start
    gap = np.abs(scores[rows, chosen - start] - scores[rows, expected - start])
    gap = np.where(np.isnan(gap), np.inf, gap)  # of two that are not allowed
    scale = np.maximum(np.abs(np.where(np.isfinite(scores), scores, 0.0)).max(axis=1), 1.0)
    return chosen == expected, gap <= TOLERANCE * scale, 0.0


def _same_factors(
    actions: FactoredActions, outputs: Mapping[str, Array], expected: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], float]:
    """`_same_actions` of several factors: a row is a tie where each factor is equal or a tie."""
    chosen, logits = (np.asarray(outputs[name], np.float64) for name in ("action", "logits"))
    equal, tied, greatest = np.ones(len(chosen), np.bool_), np.ones(len(chosen), np.bool_), 0.0
    for place in head_places(actions):
        both = chosen[:, place.numbers], expected[:, place.numbers]
        same, close, off = place.head.compare(logits[:, place.outputs], *both, tolerance=TOLERANCE)
        greatest = max(greatest, off)
        equal, tied = equal & same, tied & (same | close)
    return equal, tied, greatest
