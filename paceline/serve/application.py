"""The ASGI application: routes, and the guard in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.routing import Route

from paceline import __version__
from paceline.air.errors import PacelineError
from paceline.serve.access import Guard
from paceline.serve.batcher import Batcher
from paceline.serve.body import read_body
from paceline.serve.limits import Limits
from paceline.serve.model import Model
from paceline.serve.predict import PredictEndpoint
from paceline.serve.problem import Problem
from paceline.serve.schema import page, predict_operation
from paceline.serve.served import ReloadUnderWayError, ServedModel

logger = logging.getLogger("paceline.serve")

FOLLOW_SECONDS = 5.0
LARGEST_RELOAD_BODY = 4096
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Application(FastAPI):
    """FastAPI, with the guard in front of everything and a direct way to predictions."""

    guard: Guard
    predict: PredictEndpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.guard(scope, receive, send)

    async def routed(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/predict" and scope["method"] == "POST":
            await self.predict(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def application(
    served: ServedModel,
    limits: Limits,
    *,
    token: str | None,
    loopback: bool,
    allowed_hosts: Iterable[str] = (),
    follow: bool = False,
    access_log: bool = False,
) -> Application:
    """The application that serves a model."""
    batcher = Batcher(served, limits)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(_follow(served)) if follow else None
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
            batcher.close()

    app = Application(title=served.name, version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.predict = PredictEndpoint(served, batcher, limits)
    app.router.routes.append(Route("/predict", app.predict, methods=["POST"]))
    _add_routes(app, served, limits)
    app.openapi = lambda: _openapi(app, served.current)  # type: ignore[method-assign]
    app.guard = Guard(app.routed, token=token, loopback=loopback, allowed_hosts=allowed_hosts, log=access_log)
    return app


def _add_routes(app: FastAPI, served: ServedModel, limits: Limits) -> None:
    @app.exception_handler(405)
    async def wrong_method(request: Request, error: HTTPException) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        problem = Problem(405, f"{request.url.path} takes {allowed}, not {request.method}.")
        return Response(problem.content(), 405, error.headers, media_type="application/json")

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Whether the server is up; needs no token")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="What is being served")
    async def model() -> dict[str, Any]:
        return _description(served.name, served.current)

    @app.post("/reload", summary='Load the run\'s checkpoint again: {"checkpoint": number}, or {} for the current one')
    async def reload(request: Request) -> Response:
        try:
            number = _wanted_number(await _body(request, limits))
            current = await asyncio.to_thread(served.reload, number)
        except Problem as problem:
            return Response(problem.content(), problem.status, media_type="application/json")
        except Exception as error:
            return _reload_failed(error)
        return Response(msgspec.json.encode(_description(served.name, current)), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        url = str(request.base_url).rstrip("/")
        text = page(app.openapi(), served.current, served.name, url)
        return Response(text, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)


def _openapi(app: FastAPI, model: Model) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schema["paths"] = {"/predict": {"post": predict_operation(model)}, **schema["paths"]}
    schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    return schema


def _description(name: str, model: Model) -> dict[str, Any]:
    return {
        "name": name,
        "predictor": type(model.predictor).__name__,
        "checkpoint": model.origin,
        "number": model.number,
        "columns": [{"name": column, "kind": kind} for column, kind in model.columns.kinds.items()],
        "only_these_columns": model.columns.complete,
        "loaded_since": datetime.fromtimestamp(model.loaded_at, UTC).isoformat(timespec="seconds"),
    }


async def _body(request: Request, limits: Limits) -> bytes:
    return await read_body(request.receive, None, LARGEST_RELOAD_BODY, limits.body_timeout_s)  # type: ignore[arg-type]


def _wanted_number(body: bytes) -> int | None:
    """A number and nothing else: a client must not be able to name a path."""
    try:
        document = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, f"The body cannot be read as JSON: {error}.") from None
    if not isinstance(document, dict) or document.keys() - {"checkpoint"}:
        raise Problem(422, 'Send {"checkpoint": number}, or nothing for the checkpoint that the run has now.')
    number = document.get("checkpoint")
    if number is not None and type(number) is not int:
        raise Problem(422, "checkpoint must be a number, as in checkpoint_000003.")
    return number


def _reload_failed(error: Exception) -> Response:
    status = 409 if isinstance(error, ReloadUnderWayError) else 422
    if not isinstance(error, PacelineError):
        logger.error("A checkpoint could not be loaded", exc_info=error)
    problem = Problem(status, f"The model that was served stays: {type(error).__name__}: {error}")
    return Response(problem.content(), status, media_type="application/json")


async def _follow(served: ServedModel) -> None:
    """Load what the run has now whenever its checkpoints change; what fails is told once."""
    seen = None  # what came while the first model was loaded is new too
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        before = seen
        try:
            seen = await asyncio.to_thread(served.sign)
            if seen != before:
                await asyncio.to_thread(served.follow)
        except ReloadUnderWayError:
            seen = before  # by request; it may have looked before the change
        except Exception as error:
            logger.warning("%s: the model that was served stays: %s: %s", served.name, type(error).__name__, error)
