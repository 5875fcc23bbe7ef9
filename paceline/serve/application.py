"""The ASGI application: routes, and the guard in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.air.errors import PacelineError
from paceline.serve.batcher import Batcher
from paceline.serve.limits import Limits
from paceline.serve.metrics import model_metrics
from paceline.serve.model import Model, ReloadUnderWayError, ServedModel
from paceline.serve.predict import PredictEndpoint
from paceline.serve.schema import openapi, page
from paceline.web.access import Guard
from paceline.web.body import read_body
from paceline.web.problem import Problem
from paceline.web.prometheus import metrics_route
from paceline.web.traffic import Traffic

logger = logging.getLogger("paceline.serve")

FOLLOW_SECONDS = 5.0
LARGEST_RELOAD_BODY = 4096
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Application(Starlette):
    """Starlette, with the guard in front of everything and a direct way to predictions."""

    traffic: Traffic
    guard: Guard
    predict: PredictEndpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.guard(scope, receive, self.traffic.counted(scope, send))

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
    predict = PredictEndpoint(served, batcher, limits)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        following = asyncio.create_task(_follow(served)) if follow else None
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
            batcher.close()

    traffic = Traffic()
    metrics = metrics_route(traffic, lambda: model_metrics(served, batcher))
    routes = [Route("/predict", predict, methods=["POST"]), *_routes(served, limits), metrics]
    traffic.know(routes)
    app = Application(routes=routes, lifespan=lifespan, exception_handlers={404: _not_found, 405: _wrong_method})
    app.router.redirect_slashes = False
    app.traffic = traffic
    app.predict = predict
    app.guard = Guard(app.routed, token=token, loopback=loopback, allowed_hosts=allowed_hosts, log=access_log)
    return app


def _routes(served: ServedModel, limits: Limits) -> list[Route]:
    """Everything but predictions. What each route is for is said in schema.py."""

    async def healthz(request: Request) -> Response:
        return _json({"status": "ok"})

    async def model(request: Request) -> Response:
        return _json(_description(served.name, served.current))

    async def reload(request: Request) -> Response:
        try:
            number = _wanted_number(await _body(request, limits))
            current = await asyncio.to_thread(served.reload, number)
        except Problem as problem:
            return _answer(problem)
        except Exception as error:
            return _reload_failed(error)
        return _json(_description(served.name, current))

    async def description(request: Request) -> Response:
        return _json(openapi(served.name, served.current))

    async def docs(request: Request) -> Response:
        url = str(request.base_url).rstrip("/")
        text = page(served.name, served.current, url)
        return Response(text, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)

    return [
        Route("/healthz", healthz),
        Route("/model", model),
        Route("/reload", reload, methods=["POST"]),
        Route("/openapi.json", description),
        Route("/docs", docs),
    ]


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


def _answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem.content(), problem.status, headers, media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    return _answer(Problem(404, f"There is no {request.url.path} here; /docs says what there is."))


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = (error.headers if isinstance(error, HTTPException) else None) or {}
    problem = Problem(405, f"{request.url.path} takes {headers.get('Allow', '')}, not {request.method}.")
    return _answer(problem, headers)


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
    return _answer(Problem(status, f"The model that was served stays: {type(error).__name__}: {error}"))


async def _follow(served: ServedModel) -> None:
    """Load what the run has now whenever its checkpoints change; what fails is logged once."""
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
