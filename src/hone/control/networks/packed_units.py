"""Recurrent units over packed sequences on a CPU, forward and backward written out: torch's numbers, no graph a step.

With 64 units and a few sequences, most of a pass of `torch.nn.GRU` is bookkeeping: autograd records a dozen operations
at every step. Here the products with the inputs, and all gradients of weights, are one product each over all steps; the
loop has what has to wait for the step before it. Gates as in torch:
GRU h' = n + z (h - n), n = tanh(a_n + r b_n), r, z = sigmoid(a + b); LSTM c' = f c + i g, h' = o tanh(c').
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class UnitTape:
    """What the backward pass needs of every decision."""

    sizes: list[int]
    """Sequences that have a decision at each step, never more than at the step before."""
    gates: Numbers
    """`[N, gates * units]` after their functions, in torch's order."""
    before: Numbers
    """`[N, units]` outputs before the decision."""
    kept: Numbers
    """`[N, units]`: of a GRU what the state adds to the new gate before it is reset, of an LSTM the cells before."""
    shown: Numbers
    """`[N, units]` of an LSTM tanh of the cells after; empty for a GRU."""


def gru_forward(fresh: Numbers, state: Numbers, weight: Numbers, bias: Numbers, sizes: list[int]) -> tuple[Any, ...]:
    """What the inputs add to the gates `[N, 3 * units]`, which is overwritten, states `[S, units]`, weight
    `[3 * units, units]` and bias of the states -> outputs `[N, units]`, states after, tape."""
    units, start = state.shape[1], 0
    before, kept, out = (np.empty((len(fresh), units), fresh.dtype) for _ in range(3))
    state, across, room = state.copy(), np.ascontiguousarray(weight.T), np.empty((len(state), 3 * units), fresh.dtype)
    for count in sizes:
        rows = slice(start, start := start + count)
        now, gates = state[:count], fresh[rows]
        before[rows] = now
        added = np.matmul(now, across, out=room[:count])
        added += bias
        kept[rows] = added[:, 2 * units :]
        opened, new = gates[:, : 2 * units], gates[:, 2 * units :]
        opened += added[:, : 2 * units]
        _sigmoid_in_place(opened)
        new += opened[:, :units] * kept[rows]
        np.tanh(new, out=new)
        now -= new
        now *= opened[:, units:]
        now += new
        out[rows] = now
    return out, state, UnitTape(sizes, fresh, before, kept, kept[:0])


def gru_backward(tape: UnitTape, slope: Numbers, after: Numbers, weight: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Derivatives by outputs `[N, units]` and by the states after `[S, units]` -> by what the inputs add to the gates
    and by what the states add `[N, 3 * units]`, and by the states before `[S, units]`."""
    units, start = slope.shape[1], len(slope)
    reset, update, new = (tape.gates[:, part * units : (part + 1) * units] for part in range(3))
    by_new = (1.0 - update) * (1.0 - new * new)
    by_update = (tape.before - new) * update * (1.0 - update)
    by_reset = tape.kept * reset * (1.0 - reset)
    by_inputs = np.empty_like(tape.gates)
    by_states = np.empty_like(tape.gates)
    state = after.copy()
    for count in reversed(tape.sizes):
        rows = slice(start - count, start)
        start -= count
        now = state[:count]
        now += slope[rows]
        inner, own = by_inputs[rows], by_states[rows]
        np.multiply(now, by_new[rows], out=inner[:, 2 * units :])
        np.multiply(inner[:, 2 * units :], by_reset[rows], out=inner[:, :units])
        np.multiply(now, by_update[rows], out=inner[:, units : 2 * units])
        own[:, : 2 * units] = inner[:, : 2 * units]
        np.multiply(inner[:, 2 * units :], reset[rows], out=own[:, 2 * units :])
        now *= update[rows]
        now += own @ weight
    return by_inputs, by_states, state


def lstm_forward(fresh: Numbers, state: Numbers, weight: Numbers, bias: Numbers, sizes: list[int]) -> tuple[Any, ...]:
    """As `gru_forward`, for gates `[N, 4 * units]` and states `[S, 2 * units]`: outputs, then cells."""
    units, start = state.shape[1] // 2, 0
    before, kept, shown, out = (np.empty((len(fresh), units), fresh.dtype) for _ in range(4))
    state, across, room = state.copy(), np.ascontiguousarray(weight.T), np.empty((len(state), 4 * units), fresh.dtype)
    fresh += bias
    for count in sizes:
        rows = slice(start, start := start + count)
        now, cells, gates = state[:count, :units], state[:count, units:], fresh[rows]
        before[rows], kept[rows] = now, cells
        gates += np.matmul(before[rows], across, out=room[:count])
        opened, new, last = gates[:, : 2 * units], gates[:, 2 * units : 3 * units], gates[:, 3 * units :]
        _sigmoid_in_place(opened)
        np.tanh(new, out=new)
        _sigmoid_in_place(last)
        cells *= opened[:, units:]
        cells += opened[:, :units] * new
        np.tanh(cells, out=shown[rows])
        np.multiply(last, shown[rows], out=now)
        out[rows] = now
    return out, state, UnitTape(sizes, fresh, before, kept, shown)


def lstm_backward(tape: UnitTape, slope: Numbers, after: Numbers, weight: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """As `gru_backward`, for states `[S, 2 * units]`."""
    units, start = slope.shape[1], len(slope)
    take, keep, new, last = (tape.gates[:, part * units : (part + 1) * units] for part in range(4))
    factors = (new * take * (1.0 - take), tape.kept * keep * (1.0 - keep), take * (1.0 - new * new))
    by_last = tape.shown * last * (1.0 - last)
    to_cells = last * (1.0 - tape.shown * tape.shown)
    by_gates = np.empty_like(tape.gates)
    state = after.copy()
    for count in reversed(tape.sizes):
        rows = slice(start - count, start)
        start -= count
        now, cells, own = state[:count, :units], state[:count, units:], by_gates[rows]
        now += slope[rows]
        cells += now * to_cells[rows]
        for part, factor in enumerate(factors):
            np.multiply(cells, factor[rows], out=own[:, part * units : (part + 1) * units])
        np.multiply(now, by_last[rows], out=own[:, 3 * units :])
        cells *= keep[rows]
        now[:] = own @ weight
    return by_gates, by_gates, state


PASSES = {"gru": (gru_forward, gru_backward), "lstm": (lstm_forward, lstm_backward)}


def _sigmoid_in_place(x: Numbers) -> None:
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1.0
    np.reciprocal(x, out=x)


class PackedUnit(torch.autograd.Function):
    """`kind`, sequences at each step, a torch cell of one layer and its four parameters, inputs `[N, inputs]` and
    states `[S, state_size]` -> outputs `[N, units]` and states after. Differentiable twice, by the cell itself."""

    @staticmethod
    def forward(ctx: Any, kind: str, sizes: Tensor, cell: nn.RNNBase, *given: Tensor) -> Any:  # noqa: ANN401 - torch's
        x, state, inputs, states, offset, bias = given
        fresh = F.linear(x, inputs, offset).numpy()
        before, weight, added = (one.detach().numpy() for one in (state, states, bias))
        with np.errstate(over="ignore"):  # an infinite exp is a gate that is shut
            out, after, ctx.tape = PASSES[kind][0](fresh, before, weight, added, sizes.tolist())
        ctx.kind, ctx.sizes, ctx.cell = kind, sizes, cell
        ctx.save_for_backward(*given)
        return torch.from_numpy(out), torch.from_numpy(after)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:  # noqa: ANN401 - torch's
        needed = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # somebody asks for a graph of the gradient
            leaves = [one for one, needs in zip(ctx.saved_tensors, needed, strict=True) if needs]
            x, state, *_ = ctx.saved_tensors
            again = cell_outputs(ctx.kind, ctx.cell, PackedSequence(x, ctx.sizes), state)
            gradients = iter(torch.autograd.grad(again, leaves, slopes, create_graph=True))
            return (None, None, None, *(next(gradients) if needs else None for needs in needed))
        x, _, inputs, states, *_ = ctx.saved_tensors
        slope, after = (one.contiguous().numpy() for one in slopes)
        parts = PASSES[ctx.kind][1](ctx.tape, slope, after, states.detach().numpy())
        by_inputs, by_states, state = (torch.from_numpy(one) for one in parts)
        by_x = by_inputs @ inputs if needed[0] else None
        by_weights = (by_inputs.T @ x, by_states.T @ torch.from_numpy(ctx.tape.before))
        return None, None, None, by_x, state, *by_weights, by_inputs.sum(dim=0), by_states.sum(dim=0)


def cell_outputs(kind: str, cell: nn.RNNBase, x: PackedSequence, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and states after by the torch cell itself."""
    parts = tuple(part[None].contiguous() for part in state.split(cell.hidden_size, dim=1))
    out, after = cell(x, parts[0] if kind == "gru" else parts)
    return out.data, (after if kind == "gru" else torch.cat(after, dim=2))[0]
