"""Tools that come with hone: `hone:calculator` and `hone:python`."""

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from hone.core.errors import ResourceError, UserCodeError
from hone.sandbox.policy import SandboxPolicy
from hone.sandbox.run import SandboxResult, close_shared, no_rung_message, run_python, shared_sandbox
from hone.text.tools.toolbox import ToolResult

_MAX_CHARACTERS = 200
_MAX_DIGITS = 1000
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = MappingProxyType(
    {
        ast.USub: operator.neg,
        ast.UAdd: operator.pos,
    }
)


def calculator(expression: str) -> str:
    """Compute a sum, difference, product, quotient or power of numbers.

    Args:
        expression: Numbers, parentheses and + - * / // % **, such as (3 + 4) * 2
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters, at most {_MAX_CHARACTERS} are read")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no expression of numbers") from None
    value = _value(tree.body)
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


class SandboxedPython:
    """A Python interpreter for programs of the policy: each call is a new program in the sandbox."""

    def __init__(
        self,
        *,
        cpu_s: float = 5.0,
        wall_s: float = 10.0,
        memory_bytes: int = 2**29,
        readable: list[str] | None = None,
        if_no_rung: str = "refuse",
    ) -> None:
        """Set the limits of a program, as in `SandboxPolicy`. Raises UserCodeError with all that are none."""
        limits: dict[str, Any] = {"cpu_s": cpu_s, "wall_s": wall_s, "memory_bytes": memory_bytes}
        limits |= {"readable": readable or [], "if_no_rung": if_no_rung}
        try:
            self._policy = SandboxPolicy(**limits)
        except ValidationError as error:
            faults = [
                f"tool 'hone:python': option {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
            ]
            raise UserCodeError(*faults) from None

    def python(self, code: str) -> ToolResult:
        """Run a Python program. The result is what it printed, and the value of its last line.

        Args:
            code: The program; nothing is kept from one call to the next.
        """
        result = run_python(code, self._policy)
        if result.verdict == "refused":
            raise ResourceError(f"hone:python: {result.error}")
        return ToolResult(name="python", text=_program_text(result), failed=result.verdict != "ok")


def check_sandbox(options: Mapping[str, Any]) -> None:
    """Check that programs can be run here. Raises ResourceError that says why they cannot."""
    unsafe = options.get("if_no_rung", "refuse")
    if unsafe != "refuse":
        return
    report = shared_sandbox(SandboxPolicy()).probe()
    close_shared()  # dialogues start their own
    if not report.rung:
        raise ResourceError(f"tool 'hone:python': {no_rung_message(report)}")


def _program_text(result: SandboxResult) -> str:
    """Output, value of the last line, standard error and the program's fault, in this order."""
    parts = [result.stdout, result.shown, result.stderr]
    if result.verdict != "ok":
        parts.append(f"Error ({result.verdict}): {result.error}")
    return "\n".join(part.rstrip("\n") for part in parts if part.strip())


def _value(node: ast.expr) -> float:
    """The value of an expression; a whole number stays one. Raises ValueError for any other kind of node."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not a number or one of + - * / // % **")


def _power(base: float, exponent: float) -> float:
    digits = abs(exponent) * len(str(abs(base)))
    if digits > _MAX_DIGITS:
        raise ValueError(f"{base}**{exponent} is too large")
    if base < 0 and not float(exponent).is_integer():
        raise ValueError(f"{base}**{exponent} is no real number")
    return base**exponent
