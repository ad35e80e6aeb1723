"""Inductive invariant of a model, proved with z3 for all real numbers: no grid, no rounding.

Belongs here: the claims and their proof. With the invariant I, the safety condition safe, the fallback action f, the
worst disturbance v (an extreme one), any other w within its bounds, and any time dt of at most a step:

    start       I(s) implies safe(s)
    kept        I(s) implies I(next(s, f, w, dt))
    order       I(s) implies that next(s, u, w, dt) is no more dangerous than next(s, u, v, dt), for every action u
    closed      a state that is no more dangerous than one of I is in I; so for safe
    between     I(s) and I(next(s, u, v, step)) imply safe(next(s, u, v, dt)), for every action u
    divisors    no divisor is 0 where its value is used: in I(s), in next(s, u, w, dt) and in safe

The first two say that the fallback keeps a state of I safe forever. The others say that an action u may be judged by
its outcome under v alone, one step later. A claim is proved by showing that its negation has no solution. "More
dangerous" is meant variable by variable, towards the side that the model calls worse.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias

from hone.core.clock import counted
from hone.core.errors import ConfigError, ErrorCollector, ResourceError
from hone.decide.shield.formulas import divisions, next_trees, safe_tree
from hone.decide.shield.game import describe_values
from hone.decide.shield.model import (
    DURATION,
    ControlModel,
    ExpressionNode,
    NameNode,
    NumberNode,
    OperationNode,
    ShieldExpression,
    parse_expression,
)

PROOF_TIMEOUT_S: Final = 30.0
"""Seconds after which z3 gives a claim up."""
Formula: TypeAlias = Any
"""A formula or a term of z3, which has no types of its own."""
Z3Module: TypeAlias = Any
"""The module `z3`, imported at use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantModel:
    """A model, the conditions that stay true, and the action that keeps them true."""

    model: ControlModel
    invariant: tuple[ShieldExpression, ...]
    fallback: int

    def prove(self, *, timeout_s: float = PROOF_TIMEOUT_S) -> "_InvariantProof":
        """Prove the claims one after another, up to the first that fails. Raises ResourceError without z3."""
        try:
            z3: Z3Module = import_module("z3")
        except ImportError as error:
            raise ResourceError("a proof of an invariant needs z3: pip install 'hone-rl[proof]'") from error
        results: list[ClaimResult] = []
        first = (*_claims_of_divisors(z3, self), *_claims_of_fallback(z3, self), *_claims_of_order(z3, self))
        for claim in counted(first, "claims proved"):
            results.append(_prove(z3, self, claim, timeout_s))
            if not results[-1].proved:
                return _InvariantProof(claims=tuple(results))
        failed = list[ClaimResult]()
        for corner in self.model.corners():
            claims = list(_claims_of_corner(z3, self, corner))
            tried = [_prove(z3, self, claim, timeout_s) for claim in counted(claims, "claims of a corner proved")]
            if all(result.proved for result in tried):
                return _InvariantProof(claims=(*results, *tried), worst=corner)
            failed += [result for result in tried if not result.proved][:1]
        return _InvariantProof(claims=(*results, failed[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """Outcome of one claim's proof."""

    claim: str
    """The claim in words."""
    proved: bool
    reason: str = ""
    """Why it was not proved, where z3 found no counterexample either."""
    state: Mapping[str, float] | None = None
    """Counterexample: the state ..."""
    action: int = 0
    disturbance: Mapping[str, float] | None = None
    duration_s: float = 0.0
    """... and what happens in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InvariantProof:
    """Outcome of the proof: its claims, of which only the last may have failed."""

    claims: tuple[ClaimResult, ...]
    worst: Mapping[str, float] | None = None
    """The worst disturbance; None where a claim failed."""


def invariant_model(model: ControlModel, invariant: Sequence[str], fallback: int) -> InvariantModel:
    """Parse the conditions of an invariant. Raises ConfigError with every fault."""
    faults = ErrorCollector(ConfigError)
    known = frozenset({*model.constants, *model.variables})
    parsed: list[ShieldExpression] = []
    for number, text in enumerate(invariant):
        try:
            parsed.append(parse_expression(text, place=f"invariant[{number}]", known=known, condition=True))
        except ConfigError as fault:
            faults.extend(fault.messages)
    faults.raise_if_any()
    return InvariantModel(model=model, invariant=tuple(parsed), fallback=fallback)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A claim: assumptions and a conclusion as formulas."""

    words: str
    assumptions: Sequence[Formula]
    conclusion: Formula
    action: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Symbols:
    """Unknowns of the claims."""

    state: Mapping[str, Formula]
    disturbance: Mapping[str, Formula]
    duration: Formula


def _symbols(z3: Z3Module, model: ControlModel) -> _Symbols:
    return _Symbols(
        state={name: z3.Real(name) for name in model.variables},
        disturbance={name: z3.Real(name) for name in model.disturbances},
        duration=z3.Real(DURATION),
    )


def _claims_of_divisors(z3: Z3Module, asked: InvariantModel) -> Iterator[_Claim]:
    """z3 gives x / 0 any value it likes, and a processor gives it an infinity: neither may decide."""
    model, of = asked.model, _symbols(z3, asked.model)
    values = {**_constants(z3, model), **of.state, **of.disturbance, DURATION: of.duration}
    places = [(f"invariant[{number}]", one.tree, 0, number) for number, one in enumerate(asked.invariant)]
    places.append(("safe", safe_tree(model), 0, len(asked.invariant)))
    for action, trees in enumerate(next_trees(model)):
        places += [(f"next.{name}", tree, action, len(asked.invariant)) for name, tree in trees.items()]
    seen = set[tuple[str, tuple[ExpressionNode, ...]]]()
    for place, tree, action, known in places:
        for division in divisions(tree):
            if (division.words, division.path) in seen:
                continue
            seen.add((division.words, division.path))
            formulas = [translate_expression(z3, one, values) for one in division.path]
            divisor = translate_expression(z3, division.divisor, values)
            yield _Claim(words=f"{place}: the divisor of {division.words} is not 0 where it is used", action=action,
                         assumptions=[*_invariant(z3, asked, of.state)[:known], *formulas],
                         conclusion=divisor != _number(z3, 0.0))  # fmt: skip


def _claims_of_fallback(z3: Z3Module, asked: InvariantModel) -> Iterator[_Claim]:
    model, of = asked.model, _symbols(z3, asked.model)
    inside = _invariant(z3, asked, of.state)
    yield _Claim(words="every state of the invariant is safe", assumptions=inside,
                 conclusion=_safe(z3, model, of.state))  # fmt: skip
    after = _after(z3, model, of.state, asked.fallback, of.disturbance, of.duration)
    yield _Claim(
        words=f"{model.actions[asked.fallback]} keeps the invariant, however long it is held",
        assumptions=inside, conclusion=z3.And(*_invariant(z3, asked, after)), action=asked.fallback,
    )  # fmt: skip


def _claims_of_order(z3: Z3Module, asked: InvariantModel) -> Iterator[_Claim]:
    model, of = asked.model, _symbols(z3, asked.model)
    moved = model.disturbed()
    other = {name: z3.Real(f"{name}'") if name in moved else term for name, term in of.state.items()}
    better = _no_worse(model, other, of.state)
    inside = [*_invariant(z3, asked, of.state), *better]
    yield _Claim(words="a state that is no more dangerous than one of the invariant is in it", assumptions=inside,
                 conclusion=z3.And(*_invariant(z3, asked, other)))  # fmt: skip
    yield _Claim(words="a state that is no more dangerous than a safe one is safe",
                 assumptions=[_safe(z3, model, of.state), *better], conclusion=_safe(z3, model, other))  # fmt: skip


def _claims_of_corner(z3: Z3Module, asked: InvariantModel, corner: Mapping[str, float]) -> Iterator[_Claim]:
    model, of = asked.model, _symbols(z3, asked.model)
    inside = _invariant(z3, asked, of.state)
    worst = {name: _number(z3, value) for name, value in corner.items()}
    step = _number(z3, model.config.step_s)
    for action, name in enumerate(model.actions):
        after = _after(z3, model, of.state, action, of.disturbance, of.duration)
        feared = _after(z3, model, of.state, action, worst, of.duration)
        yield _Claim(
            words=f"{name}: the outcome is never more dangerous than under {describe_values(corner)}",
            assumptions=inside, conclusion=z3.And(*_no_worse(model, after, feared)), action=action,
        )  # fmt: skip
        end = _invariant(z3, asked, _after(z3, model, of.state, action, worst, step))
        yield _Claim(words=f"{name}: a step that ends in the invariant is safe all the time",
                     assumptions=[*inside, *end], conclusion=_safe(z3, model, feared), action=action)  # fmt: skip


def _no_worse(model: ControlModel, state: Mapping[str, Formula], than: Mapping[str, Formula]) -> list[Formula]:
    """Formulas: `state` is no more dangerous than `than` in each disturbed variable."""
    formulas: list[Formula] = []
    for name in model.disturbed():
        side = model.config.variables[name].worse
        if side == "neither":
            formulas.append(state[name] == than[name])
        else:
            formulas.append(state[name] >= than[name] if side == "low" else state[name] <= than[name])
    return formulas


def _prove(z3: Z3Module, asked: InvariantModel, claim: _Claim, timeout_s: float) -> ClaimResult:
    model, of = asked.model, _symbols(z3, asked.model)
    solver = z3.SolverFor("QF_NRA")
    solver.set("timeout", round(1000 * timeout_s))
    for name in model.disturbances:
        bounds = model.config.disturbances[name]
        solver.add(of.disturbance[name] >= _number(z3, bounds.low), of.disturbance[name] <= _number(z3, bounds.high))
    solver.add(of.duration >= 0, of.duration <= _number(z3, model.config.step_s))
    solver.add(*claim.assumptions, z3.Not(claim.conclusion))
    verdict = solver.check()
    if verdict == z3.unsat:
        return ClaimResult(claim=claim.words, proved=True)
    if verdict == z3.unknown:
        return ClaimResult(claim=claim.words, proved=False, reason=f"z3 gave up: {solver.reason_unknown()}")
    solution = solver.model()
    return ClaimResult(
        claim=claim.words, proved=False, action=claim.action,
        state={name: _as_float(z3, solution, term) for name, term in of.state.items()},
        disturbance={name: _as_float(z3, solution, term) for name, term in of.disturbance.items()},
        duration_s=_as_float(z3, solution, of.duration),
    )  # fmt: skip


def _number(z3: Z3Module, value: float) -> Formula:
    return z3.RealVal(repr(float(value)))


def _as_float(z3: Z3Module, found: Formula, term: Formula) -> float:
    value = found.eval(term, model_completion=True)
    if z3.is_algebraic_value(value):
        value = value.approx(20)
    return float(value.as_fraction())


def _invariant(z3: Z3Module, asked: InvariantModel, state: Mapping[str, Formula]) -> list[Formula]:
    values = {**_constants(z3, asked.model), **state}
    return [translate_expression(z3, condition.tree, values) for condition in asked.invariant]


def _safe(z3: Z3Module, model: ControlModel, state: Mapping[str, Formula]) -> Formula:
    return translate_expression(z3, model.safe.tree, {**_constants(z3, model), **state})


def _constants(z3: Z3Module, model: ControlModel) -> dict[str, Formula]:
    return {name: _number(z3, value) for name, value in model.constants.items()}


def _after(
    z3: Z3Module,
    model: ControlModel,
    state: Mapping[str, Formula],
    action: int,
    disturbance: Mapping[str, Formula],
    duration: Formula,
) -> dict[str, Formula]:
    columns = {name: _number(z3, value) for name, value in model.columns[action].items()}
    values = {**_constants(z3, model), **columns, **state, **disturbance, DURATION: duration}
    for name, expression in model.let.items():
        values[name] = translate_expression(z3, expression.tree, values)
    return {name: translate_expression(z3, model.next[name].tree, values) for name in model.variables}


def translate_expression(z3: Z3Module, node: ExpressionNode, values: Mapping[str, Formula]) -> Formula:
    """The expression as a formula or a term of z3, over those of its names."""
    if isinstance(node, NumberNode):
        return _number(z3, node.value)
    if isinstance(node, NameNode):
        return values[node.name]
    operands = [translate_expression(z3, operand, values) for operand in node.operands]
    made = _operation(z3, node, operands)
    decided = all(z3.is_rational_value(one) for one in operands)
    decided = decided or any(z3.is_true(one) or z3.is_false(one) for one in operands)
    return z3.simplify(made) if decided else made


_BINARY: Final[Mapping[str, Callable[[Formula, Formula], Formula]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def _operation(z3: Z3Module, node: OperationNode, operands: Sequence[Formula]) -> Formula:
    first, rest = operands[0], operands[1:]
    match node.kind:
        case "**":
            return z3.Product([first] * int(rest[0].as_fraction())) if rest[0].as_fraction() else _number(z3, 1.0)
        case "and" | "or":
            return (z3.And if node.kind == "and" else z3.Or)(*operands)
        case "not":
            return z3.Not(first)
        case "if":
            return z3.If(*operands)
        case "abs":
            return z3.If(first >= 0, first, -first)
        case "min" | "max":
            better = operator.le if node.kind == "min" else operator.ge
            for other in rest:
                first = z3.If(better(first, other), first, other)
            return first
        case kind:
            return _BINARY[kind](first, rest[0])
