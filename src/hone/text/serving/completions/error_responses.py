"""Errors as responses of HTTP; apart, because sessions of agents know the errors without a web server."""

from starlette.responses import JSONResponse

from hone.text.serving.completions.api_errors import ApiError


def error_response(error: ApiError) -> JSONResponse:
    """The response with the error's status, headers and body."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)
