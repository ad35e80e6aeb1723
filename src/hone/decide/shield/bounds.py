"""Proved bounds of expressions over boxes of their variables: interval arithmetic, derivatives and subdivision.

Belongs here: intervals with outward rounding, the range of an expression over many boxes at once, and the proof that a
divisor spares 0. A bound holds for all real numbers of a box; where it is not tight, it is on the safe side.

An operation whose operands share no variable has the exact range of their ranges. Where they share one, the box is cut
into halves until the bound is met by the value at a point (Moore, Kearfott & Cloud, "Introduction to Interval
Analysis", 2009). In each piece the bound is the better one of the plain range, of the range with every variable at an
end in which the expression is proved to be monotone, and of the mean value form f(m) + f'(X) (X - m).

A result that is not exact is moved to the next number outwards: the error of a sum or a product is a number itself
(Dekker, 1971), so that exact results stay exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.decide.shield.formulas import Division
from hone.decide.shield.model import ExpressionNode, NameNode, NumberNode, OperationNode

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
MAX_ROUNDS: Final = 20
"""Halvings of a piece."""
MAX_PIECES: Final = 50_000
"""Pieces of all boxes at a time, where there are not more boxes."""
GAP: Final = 1e-4
"""Distance of a bound from a value in its box that is small enough, as a share of the values' spread. A bound that a
value of a corner meets, as where the expression is monotone, has none."""
_ZERO: Final = NumberNode(0.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """Intervals `[...]`, one for each box; an end may be infinite, none is NaN."""

    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Truth:
    """Truth of a condition in each box."""

    must: Bools
    """It holds everywhere."""
    may: Bools
    """It may hold somewhere."""


Boxes: TypeAlias = Mapping[str, Interval]

# ------------------------------------------------------------------------------------------------- outward rounding


def _down(value: Floats, error: Floats) -> Floats:
    """Largest number known to be at most `value` + `error`, where error is exact, or NaN if it is unknown."""
    lower = np.where(error >= 0, value, np.nextafter(value, -np.inf))
    return np.where(np.isnan(lower), -np.inf, lower)


def _up(value: Floats, error: Floats) -> Floats:
    return -_down(-value, -error)


def _sum_error(first: Floats, second: Floats, total: Floats) -> Floats:
    part = total - first
    return (first - (total - part)) + (second - part)


def _product(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Rounded product and its exact error; NaN where that is not representable."""
    value = first * second
    value = np.where((first == 0) | (second == 0), 0.0, value)  # 0 times an end at infinity: numbers, none of them it
    a, b = (134217729.0 * one for one in (first, second))
    a_high, b_high = a - (a - first), b - (b - second)
    a_low, b_low = first - a_high, second - b_high
    error = a_low * b_low - (((value - a_high * b_high) - a_low * b_high) - a_high * b_low)
    large = (np.abs(value) > 1e-280) & (np.abs(value) < 1e280) & (np.abs(first) < 1e280) & (np.abs(second) < 1e280)
    return value, np.where((first == 0) | (second == 0), 0.0, np.where(large, error, np.nan))


def _outward(low: Floats, high: Floats) -> Interval:
    """Rounded ends moved outwards; NaN stands for an unknown end."""
    low, high = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
    return Interval(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def _add(a: Interval, b: Interval, *, exact: bool = False) -> Interval:
    low, high = a.low + b.low, a.high + b.high
    if not exact:
        return _outward(low, high)
    return Interval(_down(low, _sum_error(a.low, b.low, low)), _up(high, _sum_error(a.high, b.high, high)))


def _negate(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _multiply(a: Interval, b: Interval, *, exact: bool = False) -> Interval:
    first, second = _corners(a, b)
    if not exact:
        products = first * second
        products = np.where(np.isnan(products), 0.0, products)  # 0 times an end at infinity
        return _outward(products.min(axis=0), products.max(axis=0))
    value, error = _product(first, second)
    return Interval(_down(value, error).min(axis=0), _up(value, error).max(axis=0))


def _corners(a: Interval, b: Interval) -> tuple[Floats, Floats]:
    """The four pairs of ends of two intervals, `[4, ...]` each: one operation for all of them."""
    shape = np.broadcast_shapes(a.low.shape, a.high.shape, b.low.shape, b.high.shape)
    first, second = np.empty((4, *shape)), np.empty((4, *shape))
    first[:2], first[2:] = a.low, a.high
    second[::2], second[1::2] = b.low, b.high
    return first, second


def _divide(a: Interval, b: Interval, *, exact: bool = False) -> Interval:
    """Quotients for all divisors but 0."""
    first, second = _corners(a, b)
    value = np.where(first == 0, 0.0, first / second)
    rest = np.full(1, np.nan)
    if exact:
        product, error = _product(value, second)
        rest = np.where(first == 0, 0.0, ((first - product) - error) * np.sign(second))
    low, high = _down(value, rest).min(axis=0), _up(value, rest).max(axis=0)
    if not ((b.low <= 0) & (b.high >= 0)).any():
        return Interval(low, high)
    # a divisor that ends at 0: quotients reach infinity on one side
    zero = np.zeros(np.broadcast_shapes(low.shape, b.low.shape))
    from_zero, to_zero = (b.low == 0) & (b.high > 0), (b.high == 0) & (b.low < 0)
    over = Interval(np.where(from_zero, np.nextafter(1 / b.high, -np.inf), zero - np.inf),
                    np.where(to_zero, np.nextafter(1 / b.low, np.inf), zero + np.inf))  # fmt: skip
    over = Interval(np.where(to_zero, -np.inf, over.low), np.where(from_zero, np.inf, over.high))
    open_ended = _multiply(a, over)
    touches, inside = from_zero | to_zero, ((b.low < 0) & (b.high > 0)) | ((b.low == 0) & (b.high == 0))
    return Interval(
        np.where(inside, -np.inf, np.where(touches, open_ended.low, low)),
        np.where(inside, np.inf, np.where(touches, open_ended.high, high)),
    )


def _magnitude(a: Interval) -> Interval:
    low = np.where((a.low <= 0) & (a.high >= 0), 0.0, np.minimum(np.abs(a.low), np.abs(a.high)))
    return Interval(low, np.maximum(np.abs(a.low), np.abs(a.high)))


def _power(a: Interval, exponent: int, *, exact: bool = False) -> Interval:
    if exponent == 0:
        return Interval(np.ones_like(a.low), np.ones_like(a.high))

    def grown(sizes: Interval) -> Interval:
        result = sizes
        for _ in range(exponent - 1):
            result = _multiply(result, sizes, exact=exact)
        return result

    if exponent % 2 == 0:
        return grown(_magnitude(a))
    ends = [grown(Interval(np.abs(end), np.abs(end))) for end in (a.low, a.high)]
    low, high = ends
    return Interval(np.where(a.low < 0, -low.high, low.low), np.where(a.high < 0, -high.low, high.high))


def _hull(a: Interval, b: Interval) -> Interval:
    return Interval(np.minimum(a.low, b.low), np.maximum(a.high, b.high))


def _choose(pick: Bools, a: Interval, b: Interval) -> Interval:
    return Interval(np.where(pick, a.low, b.low), np.where(pick, a.high, b.high))


# -------------------------------------------------------------------------------------------------------- conditions


def _compare(kind: str, a: Interval, b: Interval) -> Truth:
    match kind:
        case "<":
            return Truth(a.high < b.low, a.low < b.high)
        case "<=":
            return Truth(a.high <= b.low, a.low <= b.high)
        case ">" | ">=":
            return _compare("<" if kind == ">" else "<=", b, a)
        case "==":
            same = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
            return Truth(same, (a.low <= b.high) & (b.low <= a.high))
        case _:
            return _opposite(_compare("==", a, b))


def _opposite(truth: Truth) -> Truth:
    return Truth(~truth.may, ~truth.must)


def _combine(kind: str, parts: Sequence[Truth]) -> Truth:
    must, may = parts[0].must, parts[0].may
    for part in parts[1:]:
        must, may = (must & part.must, may & part.may) if kind == "and" else (must | part.must, may | part.may)
    return Truth(must, may)


# ---------------------------------------------------------------------------------------------------- values, slopes


@dataclass(frozen=True, slots=True)
class _Value:
    """Range of an expression in each box, and of its derivative by each name that it reads (none: 0)."""

    range: Interval
    slopes: Mapping[str, Interval] = field(default_factory=dict[str, Interval])


@dataclass(slots=True)
class _Evaluation:
    """Plain ranges over boxes; each node once, as parts of a model are read in many places."""

    boxes: Boxes
    by: Sequence[str] = ()
    """Names by which derivatives are taken."""
    zeros: tuple[ExpressionNode, ...] = ()
    """Expressions that are known to be 0."""
    exact: bool = False
    """Exact results stay exact; derivatives need no such care."""
    _values: dict[int, _Value] = field(default_factory=dict[int, _Value])
    _truths: dict[int, Truth] = field(default_factory=dict[int, Truth])

    def value(self, node: ExpressionNode) -> _Value:
        known = self._values.get(id(node))
        if known is None:
            known = self._values[id(node)] = self._worked_out(node)
        return known

    def truth(self, node: ExpressionNode) -> Truth:
        known = self._truths.get(id(node))
        if known is not None:
            return known
        assert isinstance(node, OperationNode)
        match node.kind:
            case "and" | "or":
                known = _combine(node.kind, [self.truth(one) for one in node.operands])
            case "not":
                known = _opposite(self.truth(node.operands[0]))
            case "if":
                condition, then, otherwise = map(self.truth, node.operands)
                known = Truth(
                    np.where(condition.must, then.must, np.where(condition.may, then.must & otherwise.must,
                                                                 otherwise.must)),
                    (condition.may & then.may) | (~condition.must & otherwise.may),
                )  # fmt: skip
            case kind:
                first, second = node.operands
                apart = OperationNode("-", (first, second))
                if apart in self.zeros or OperationNode("-", (second, first)) in self.zeros:
                    zero = Interval(np.zeros(1), np.zeros(1))
                    known = _compare(kind, zero, zero)
                else:
                    known = _compare(kind, self.value(first).range, self.value(second).range)
        self._truths[id(node)] = known
        return known

    def _worked_out(self, node: ExpressionNode) -> _Value:
        if self.zeros and node in self.zeros:
            return _Value(Interval(np.zeros(1), np.zeros(1)))
        match node:
            case NumberNode(value=value):
                return _Value(Interval(np.array([value]), np.array([value])))
            case NameNode(name=name):
                one = Interval(np.ones(1), np.ones(1))
                return _Value(self.boxes[name], {name: one} if name in self.by else {})
            case OperationNode(kind="if", operands=(condition, then, otherwise)):
                return self._branch(self.truth(condition), self.value(then), self.value(otherwise))
            case OperationNode(kind=kind, operands=operands):
                first = self.value(operands[0])
                if kind == "abs":
                    turned = _Value(_negate(first.range), {name: _negate(one) for name, one in first.slopes.items()})
                    return _pick(_magnitude(first.range), first, turned, first.range.low >= 0, first.range.high <= 0)
                for other in operands[1:]:
                    first = _operate(kind, first, self.value(other), exact=self.exact)
                return first

    def _branch(self, condition: Truth, then: _Value, otherwise: _Value) -> _Value:
        never = ~condition.may
        chosen = _choose(
            condition.must, then.range, _choose(never, otherwise.range, _hull(then.range, otherwise.range))
        )
        unknown = Interval(np.full(1, -np.inf), np.full(1, np.inf))
        slopes = {
            name: _choose(
                condition.must, _slope(then, name), _choose(never, _slope(otherwise, name), unknown)
            )
            for name in self.by
        }  # fmt: skip
        return _Value(chosen, slopes)


def _slope(value: _Value, name: str) -> Interval:
    return value.slopes.get(name, Interval(np.zeros(1), np.zeros(1)))


def _pick(result: Interval, first: _Value, second: _Value, is_first: Bools, is_second: Bools) -> _Value:
    """A value that is one of two, each in a part of the boxes and either in the rest."""
    slopes: dict[str, Interval] = {}
    for name in first.slopes.keys() | second.slopes.keys():
        one, other = _slope(first, name), _slope(second, name)
        slopes[name] = _choose(is_first, one, _choose(is_second, other, _hull(one, other)))
    return _Value(result, slopes)


def _operate(kind: str, first: _Value, second: _Value, *, exact: bool) -> _Value:
    a, b = first.range, second.range
    names = first.slopes.keys() | second.slopes.keys()
    match kind:
        case "+":
            return _Value(
                _add(a, b, exact=exact), {name: _add(_slope(first, name), _slope(second, name)) for name in names}
            )
        case "-":
            turned = _Value(_negate(b), {name: _negate(one) for name, one in second.slopes.items()})
            return _operate("+", first, turned, exact=exact)
        case "*":
            slopes = {
                name: _add(_multiply(_slope(first, name), b), _multiply(a, _slope(second, name))) for name in names
            }
            return _Value(_multiply(a, b, exact=exact), slopes)
        case "/":
            quotient = _divide(a, b, exact=exact)
            slopes = {
                name: _divide(_add(_slope(first, name), _negate(_multiply(quotient, _slope(second, name)))), b)
                for name in names
            }
            return _Value(quotient, slopes)
        case "**":
            exponent = int(b.low.flat[0])
            inner = _multiply(b, _power(a, max(exponent - 1, 0)))
            return _Value(
                _power(a, exponent, exact=exact), {k: _multiply(inner, one) for k, one in first.slopes.items()}
            )
        case "min":
            result = Interval(np.minimum(a.low, b.low), np.minimum(a.high, b.high))
            return _pick(result, first, second, a.high <= b.low, b.high <= a.low)
        case _:
            result = Interval(np.maximum(a.low, b.low), np.maximum(a.high, b.high))
            return _pick(result, first, second, a.low >= b.high, b.low >= a.high)


# ------------------------------------------------------------------------------------------------------------ ranges


@dataclass(slots=True)
class RangeFinder:
    """Ranges of expressions over a grid of boxes.

    `boxes` has one axis for each name: intervals of all names broadcast to the shape of the grid. An expression's range
    has the axes of the names that it reads, and 1 elsewhere.
    """

    boxes: Boxes
    rounds: int = MAX_ROUNDS
    """Halvings of a box at most."""
    _names: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    _ends: dict[tuple[int, bool], Floats] = field(default_factory=dict[tuple[int, bool], Floats])
    _kept: list[ExpressionNode] = field(default_factory=list[ExpressionNode])
    """Nodes whose identities are keys above."""

    def names(self, node: ExpressionNode) -> frozenset[str]:
        """Names that an expression reads."""
        known = self._names.get(id(node))
        if known is None:
            match node:
                case NameNode(name=name):
                    known = frozenset({name})
                case OperationNode(operands=operands):
                    known = frozenset[str]().union(*map(self.names, operands))
                case _:
                    known = frozenset[str]()
            self._names[id(node)] = known
            self._kept.append(node)
        return known

    def end(self, node: ExpressionNode, *, upper: bool) -> Floats:
        """An upper or a lower bound of a number in each box."""
        known = self._ends.get((id(node), upper))
        if known is None:
            self.names(node)
            with np.errstate(all="ignore"):
                known = self._ends[id(node), upper] = self._end(node, upper=upper)
        return known

    def range(self, node: ExpressionNode) -> Interval:
        """Range of a number in each box."""
        return Interval(self.end(node, upper=False), self.end(node, upper=True))

    def truth(self, node: ExpressionNode) -> Truth:
        """Truth of a condition in each box; a comparison is judged by the range of the difference of its sides."""
        assert isinstance(node, OperationNode)
        match node.kind:
            case "and" | "or":
                return _combine(node.kind, [self.truth(one) for one in node.operands])
            case "not":
                return _opposite(self.truth(node.operands[0]))
            case "if":
                condition, then, otherwise = node.operands
                first, second = OperationNode("and", (condition, then)), OperationNode("not", (condition,))
                return self.truth(OperationNode("or", (first, OperationNode("and", (second, otherwise)))))
            case kind:
                zero = Interval(np.zeros(1), np.zeros(1))
                return _compare(kind, self.range(OperationNode("-", node.operands)), zero)

    def _end(self, node: ExpressionNode, *, upper: bool) -> Floats:
        if not isinstance(node, OperationNode):
            own = _Evaluation(self.boxes).value(node).range
            return own.high if upper else own.low
        parts = [self.names(one) for one in node.operands]
        if sum(map(len, parts)) > len(frozenset[str]().union(*parts)):
            return self._shared(node, upper=upper)
        match node.kind:
            case "+" | "min" | "max":
                ends = [self.end(one, upper=upper) for one in node.operands]
                values = [_Value(Interval(one, one)) for one in ends]
            case "-":
                values = [
                    _Value(Interval(one, one))
                    for one in (self.end(node.operands[0], upper=upper), self.end(node.operands[1], upper=not upper))
                ]
            case "if":
                condition = self.truth(node.operands[0])
                then, otherwise = (self.end(one, upper=upper) for one in node.operands[1:])
                either = np.maximum(then, otherwise) if upper else np.minimum(then, otherwise)
                return np.where(condition.must, then, np.where(condition.may, either, otherwise))
            case _:
                values = [_Value(self.range(one)) for one in node.operands]
        first = values[0]
        if node.kind == "abs":
            first = _Value(_magnitude(first.range))
        for other in values[1:]:
            first = _operate(node.kind, first, other, exact=True)
        return first.range.high if upper else first.range.low

    def _shared(self, node: OperationNode, *, upper: bool) -> Floats:
        names = sorted(self.names(node))
        shape = np.broadcast_shapes(*(self.boxes[name].low.shape for name in names))
        flat = {
            name: Interval(*(np.broadcast_to(end, shape).ravel() for end in (box.low, box.high)))
            for name, box in ((name, self.boxes[name]) for name in names)
        }  # fmt: skip
        turned = OperationNode("-", (_ZERO, node))
        least = _lower_bounds(turned if upper else node, flat, self.rounds)
        return (-least if upper else least).reshape(shape)


def _lower_bounds(node: ExpressionNode, boxes: Boxes, rounds: int) -> Floats:
    """Lower bound `[N]` of an expression in each of N boxes."""
    names = list(boxes)
    count = len(boxes[names[0]].low)
    owner = np.arange(count)
    least, most, result = np.full(count, np.inf), np.full(count, -np.inf), np.full(count, np.inf)
    for number in range(rounds + 1):
        bound, value, cut = _judge(node, boxes)
        np.minimum.at(least, owner, value)
        np.maximum.at(most, owner, value)
        aim = least[owner]
        met = (bound >= aim - GAP * np.minimum(most[owner] - aim, np.abs(aim) + 1)) | (bound >= result[owner])
        last = number == rounds or 2 * np.count_nonzero(~met) > max(MAX_PIECES, count)
        done = met | last
        np.minimum.at(result, owner[done], bound[done])
        left = ~done
        if not left.any():
            break
        boxes, owner = _halved(boxes, left, cut), np.concatenate([owner[left], owner[left]])
    return result


def _judge(node: ExpressionNode, boxes: Boxes) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Lower bound, an upper bound of the least value, and the name to cut by, in each box `[N]`."""
    names = list(boxes)
    count = len(boxes[names[0]].low)
    plain = _Evaluation(boxes, names).value(node)
    low = np.broadcast_to(plain.range.low, (count,)).copy()
    ends, points = dict[str, Interval](), dict[str, Interval]()
    centred = Interval(np.zeros(1), np.zeros(1))
    influence = np.zeros((len(names), count))
    for place, name in enumerate(names):
        box, slope = boxes[name], _slope(plain, name)
        rises, falls = slope.low >= 0, slope.high <= 0
        middle = _middle(box)
        ends[name] = Interval(np.where(falls & ~rises, box.high, box.low), np.where(rises, box.low, box.high))
        point = np.where(rises, box.low, np.where(falls, box.high, middle))
        points[name] = Interval(point, point)
        away = Interval(np.nextafter(box.low - point, -np.inf), np.nextafter(box.high - point, np.inf))
        centred = _add(centred, _multiply(slope, away))
        width = np.minimum(box.high - box.low, 1e150)
        steep = np.minimum(np.maximum(np.abs(slope.low), np.abs(slope.high)), 1e100)
        influence[place] = np.where(rises | falls, 0.0, width * np.maximum(steep, 1e-100))
        influence[place] += 1e-120 * width
    monotone = _Evaluation(ends, exact=True).value(node).range.low
    at = _Evaluation(points, exact=True).value(node).range
    mean_value = _add(at, centred).low
    low = np.maximum(low, np.maximum(np.broadcast_to(monotone, (count,)), np.broadcast_to(mean_value, (count,))))
    return low, np.broadcast_to(at.high, (count,)), influence.argmax(axis=0)


def _middle(box: Interval) -> Floats:
    """A number inside each box: 0, at which divisors and signs change, where it is inside; else the middle."""
    low, high = np.clip(box.low, -1e150, 1e150), np.clip(box.high, -1e150, 1e150)
    beyond = np.where(np.isfinite(box.low), low + np.maximum(1.0, np.abs(low)),
                      np.where(np.isfinite(box.high), high - np.maximum(1.0, np.abs(high)), 0.0))  # fmt: skip
    finite = np.isfinite(box.low) & np.isfinite(box.high)
    middle = np.where(finite, low / 2 + high / 2, beyond)
    return np.clip(np.where((low < 0) & (high > 0), 0.0, middle), box.low, box.high)


def _halved(boxes: Boxes, left: Bools, cut: NDArray[np.int64]) -> dict[str, Interval]:
    """The boxes that are `left`, each in two halves across the name `cut`: all first halves, then all second ones."""
    pieces: dict[str, Interval] = {}
    for place, (name, box) in enumerate(boxes.items()):
        low, high, across = box.low[left], box.high[left], cut[left] == place
        middle = _middle(Interval(low, high))
        pieces[name] = Interval(
            np.concatenate([low, np.where(across, middle, low)]), np.concatenate([np.where(across, middle, high), high])
        )
    return pieces


# ---------------------------------------------------------------------------------------------------------- divisions


def zero_division(division: Division, boxes: Boxes) -> dict[str, float] | None:
    """A point near which the divisor may be 0 where its value is used; None: it never is, which is proved.

    `boxes` has one box. It is halved where neither the divisor is shown to spare 0 nor its branch to be left out; in
    each piece the branch is judged where the divisor is 0 alone, too.
    """
    known = RangeFinder({})
    names = sorted(known.names(division.divisor).union(*map(known.names, division.path)))
    pieces: Boxes = {name: Interval(*map(np.ravel, (boxes[name].low, boxes[name].high))) for name in names}
    left = np.ones(1, np.bool_)
    with np.errstate(all="ignore"):
        for number in range(MAX_ROUNDS + 1):
            count = len(pieces[names[0]].low) if names else 1
            left = np.broadcast_to(_may_be_zero(division, pieces), (count,))
            if not left.any():
                return None
            if not names or number == MAX_ROUNDS or np.count_nonzero(left) > MAX_PIECES // 20:
                break
            widths = np.array([
                np.minimum(box.high - box.low, 1e150) / (1 + np.minimum(np.abs(_middle(box)), 1e150))
                for box in pieces.values()
            ])  # fmt: skip
            pieces = _halved(pieces, left, widths.argmax(axis=0))
    place = int(np.flatnonzero(left)[0])
    return {
        name: 0.0 if box.low[place] <= 0 <= box.high[place] else float(_middle(box)[place])
        for name, box in pieces.items()
    }  # fmt: skip


def _may_be_zero(division: Division, boxes: Boxes) -> Bools:
    plain = _Evaluation(boxes, exact=True)
    divisor = plain.value(division.divisor).range
    may = (divisor.low <= 0) & (divisor.high >= 0)
    for condition in division.path:
        may = may & plain.truth(condition).may
    if not may.any():
        return may
    narrowed = dict(boxes)
    empty = _narrow(division.divisor, Interval(np.zeros(1), np.zeros(1)), narrowed)
    at_zero = _Evaluation(narrowed, zeros=(division.divisor,), exact=True)
    for condition in division.path:
        may = may & at_zero.truth(condition).may
    return may & ~empty


def _narrow(node: ExpressionNode, aim: Interval, boxes: dict[str, Interval]) -> Bools:
    """Narrow boxes, in place, to where the expression can be within `aim` -> where it nowhere can.

    Sums, differences and products are turned around (HC4: Benhamou et al., 1999); other operations narrow nothing.
    """
    match node:
        case NameNode(name=name):
            box = boxes[name]
            low, high = np.maximum(box.low, aim.low), np.minimum(box.high, aim.high)
            empty = low > high
            boxes[name] = Interval(np.where(empty, box.low, low), np.where(empty, box.high, high))
            return empty
        case OperationNode(kind="+" | "-" | "*" as kind, operands=(first, second)):
            ranges = _Evaluation(dict(boxes), exact=True)
            one, other = ranges.value(first).range, ranges.value(second).range
            if kind == "*":
                aims = (_divide(aim, other, exact=True), _divide(aim, one, exact=True))
            elif kind == "+":
                aims = (_add(aim, _negate(other), exact=True), _add(aim, _negate(one), exact=True))
            else:
                aims = (_add(aim, other, exact=True), _add(one, _negate(aim), exact=True))
            return _narrow(first, aims[0], boxes) | _narrow(second, aims[1], boxes)
        case _:
            return np.zeros(1, np.bool_)
