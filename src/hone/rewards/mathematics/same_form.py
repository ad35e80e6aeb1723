"""The form of an expression without the order of its terms and factors: `2x+1` as `1+x*2`, but not as `(4x+2)/2`."""

from fractions import Fraction

from hone.rewards.mathematics.monomials import rational
from hone.rewards.mathematics.tree import MathNode, MathOperation, NamedSymbol, NumberLiteral


def ordered(node: MathNode) -> str:
    """A text that two expressions share exactly when they differ in the order of terms and factors only."""
    value = rational(node)
    if value is not None:
        return str(value)
    match node:
        case NamedSymbol(name=name):
            return name
        case MathOperation(name="sum"):
            return _joined("+", _terms(node))
        case MathOperation(name="product" | "quotient" | "negation"):
            number, factors = _factors(node)
            return _joined("*", [*([] if number == 1 else [str(number)]), *factors])
        case MathOperation(name="root", operands=(radicand, degree)):
            inverse = MathOperation("quotient", (NumberLiteral(Fraction(1)), degree))
            return f"power({ordered(radicand)},{ordered(inverse)})"
        case MathOperation(name=name, operands=operands):
            return f"{name}({','.join(ordered(operand) for operand in operands)})"
        case _:
            return repr(node)


def _joined(sign: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({sign.join(sorted(parts))})"


def _terms(node: MathNode) -> list[str]:
    if isinstance(node, MathOperation) and node.name == "sum":
        return [term for one in node.operands for term in _terms(one)]
    return [ordered(node)]


def _factors(node: MathNode) -> tuple[Fraction, list[str]]:
    """The rational factor, and the others in words; a factor below the line as a power of -1."""
    value = rational(node)
    if value is not None:
        return value, []
    match node:
        case MathOperation(name="negation", operands=(inner,)):
            number, factors = _factors(inner)
            return -number, factors
        case MathOperation(name="product", operands=operands):
            parts = [_factors(one) for one in operands]
            number = Fraction(1)
            for part in parts:
                number *= part[0]
            return number, [factor for part in parts for factor in part[1]]
        case MathOperation(name="quotient", operands=(over, under)):
            (above, factors), (below, inverses) = _factors(over), _factors(under)
            if below:
                return above / below, [*factors, *(f"power({factor},-1)" for factor in inverses)]
            return Fraction(1), [ordered(over), f"power({ordered(under)},-1)"]
        case _:
            return Fraction(1), [ordered(node)]
