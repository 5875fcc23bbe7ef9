"""The OpenAPI description of the server, and a page that shows it without scripts or anything from elsewhere."""

from __future__ import annotations

import html
import json
import shlex
from typing import Any

from paceline.air.version import version
from paceline.serve import arrow_body, json_body
from paceline.serve.model import Model

MEDIA_ARROW = arrow_body.MEDIA_TYPE.decode()
_RELOAD = 'Load the run\'s checkpoint again: {"checkpoint": number}, or {} for the current one'
STATUSES = {
    "400": "The body cannot be read",
    "401": "The token is missing or wrong",
    "408": "The body came too slowly",
    "413": "The body is too large, or has too many rows",
    "415": "The body is neither JSON nor Arrow",
    "422": "The rows do not fit the model",
    "500": "The model failed; the answer has an id under which the log says more",
    "503": "Too many requests are waiting; try again",
    "504": "There was no prediction in time",
}


def example(model: Model) -> dict[str, Any]:
    """A body that the model could be sent, with its real columns where they are known."""
    if not model.columns.kinds and model.nameless and (row := model.predictor._example_row()) is not None:
        return {"rows": [row]}
    kinds = model.columns.kinds or {"column": "any"}
    return {"rows": [{name: 0.0 if kind == "number" else "..." for name, kind in kinds.items()}]}


def openapi(name: str, model: Model) -> dict[str, Any]:
    """What /openapi.json says."""
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version()},
        "paths": {
            "/predict": {"post": _predict_operation(model)},
            "/healthz": {"get": _operation("Whether the server is up; needs no token")},
            "/model": {"get": _operation("What is being served")},
            "/reload": {"post": _operation(_RELOAD)},
            "/metrics": {"get": _operation("What the server has counted, for Prometheus", "text/plain")},
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(summary: str, media: str = "application/json") -> dict[str, Any]:
    answer = {"description": "Successful Response", "content": {media: {"schema": {}}}}
    return {"summary": summary, "responses": {"200": answer}}


def _predict_operation(model: Model) -> dict[str, Any]:
    columns = model.columns
    row: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value_schema(kind) for name, kind in columns.kinds.items()},
        "required": list(columns.kinds),
        "additionalProperties": not columns.complete,
    }
    rows = {"type": "array", "items": row, "minItems": 1}
    body = {
        "anyOf": [
            {"type": "object", "properties": {"rows": rows}, "required": ["rows"]},
            rows,
            {"type": "object", "properties": {"columns": {"type": "object"}}, "required": ["columns"]},
            {"type": "object", "required": ["columns", "data"]},
        ]
    }
    answer = {"type": "object", "additionalProperties": {"type": "array"}}
    stream = {"schema": {"type": "string", "format": "binary"}}
    return {
        "summary": "Predict",
        "description": f"{json_body.FORMS} Missing values are null. The answer has one list for each column of "
        f"predictions; NaN and infinite values are null there. An Arrow IPC stream ({MEDIA_ARROW}) is accepted "
        "and returned as well.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body, "example": example(model)}, MEDIA_ARROW: stream},
        },
        "responses": {
            "200": {
                "description": "The predictions, in the order of the rows",
                "content": {"application/json": {"schema": answer}, MEDIA_ARROW: stream},
            },
            **{status: {"description": text} for status, text in STATUSES.items()},
        },
    }


def _value_schema(kind: str) -> dict[str, Any]:
    return {"type": ["number", "null"]} if kind == "number" else {}


def page(name: str, model: Model, url: str) -> str:
    """The page at /docs."""
    body = shlex.quote(json.dumps(example(model)))  # names of columns are anybody's
    command = (
        f"curl {url}/predict -H 'Authorization: Bearer <token>' \\\n  -H 'Content-Type: application/json' -d {body}"
    )
    parts = [
        f"<h1>{html.escape(name)}</h1>",
        f"<p>{html.escape(model.origin)}</p>",
        f"<pre>{html.escape(command)}</pre>",
    ]
    if model.columns.kinds:
        cells = "".join(
            f"<tr><td>{html.escape(column)}</td><td>{kind}</td></tr>" for column, kind in model.columns.kinds.items()
        )
        parts.append(f"<h2>Columns</h2><table>{cells}</table>")
    for path, operations in openapi(name, model)["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2>")
            parts.append(f"<p>{html.escape(operation.get('description') or operation.get('summary', ''))}</p>")
            rows = "".join(
                f"<tr><td>{status}</td><td>{html.escape(response['description'])}</td></tr>"
                for status, response in operation["responses"].items()
            )
            parts.append(f"<table>{rows}</table>")
    parts.append('<p>The whole description: <a href="openapi.json">openapi.json</a></p>')
    title = html.escape(name)
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>{_STYLE}{''.join(parts)}</html>"


_STYLE = (
    "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
    "pre{background:#eee;padding:1em;overflow:auto}td{padding:0 1em 0 0;vertical-align:top}</style>"
)
