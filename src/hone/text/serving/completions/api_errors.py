"""Errors in OpenAI's shape: clients turn status and code into typed exceptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hone.core.errors import ConfigError, DataError, DivergedError, HoneError

_KINDS = {401: "authentication_error", 404: "not_found_error", 408: "timeout_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is not answered: status, message, the field at fault, and a code for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """The `type` of OpenAI's errors."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unsupported(param: str, message: str) -> ApiError:
    """An error for a field that this server knows and does not have."""
    return ApiError(400, message, param=param, code="unsupported")


def error_of(error: Exception) -> ApiError:
    """The error of HTTP for a failure: faults of the request are 400, the model's and the server's 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, DivergedError):
        return ApiError(500, str(error), code="model_diverged")
    if isinstance(error, ConfigError | DataError):
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, HoneError):
        return ApiError(503, str(error), code="unavailable")
    return ApiError(500, f"the server failed: {type(error).__name__}: {error}", code="internal_error")


def faults_of(error: ValidationError) -> ApiError:
    """Every fault of a body in one message; `param` is the first field at fault."""
    faults = [(_path(fault["loc"]), fault["msg"]) for fault in error.errors(include_url=False, include_input=False)]
    message = "; ".join(f"{path}: {text}" for path, text in dict.fromkeys(faults))
    missing = all(fault["type"] == "missing" for fault in error.errors(include_input=False))
    return ApiError(400, message, param=faults[0][0], code="missing_required_parameter" if missing else "invalid_value")


def _path(loc: Sequence[str | int]) -> str:
    """`messages[0].content`, without the names of alternatives that pydantic adds."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "list"):
            path += f".{part}" if path else part
    return path or "body"
