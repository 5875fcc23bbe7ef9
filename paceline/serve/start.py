"""serve.run and serve.app: a model behind HTTP, from a predictor class and a checkpoint."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import check_bool
from paceline.air.errors import ConfigError
from paceline.air.result import Result

if TYPE_CHECKING:
    from paceline.serve.application import Application
    from paceline.serve.model import ServedModel
    from paceline.serve.server import RunningServer
    from paceline.train.predictor import Predictor

Token = str | None | Literal[False]


def run(
    predictor_cls: type[Predictor] | Predictor | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: Token = None,
    certfile: str | os.PathLike[str] | None = None,
    keyfile: str | os.PathLike[str] | None = None,
    blocking: bool = True,
    name: str | None = None,
    max_batch_size: int = 1024,
    max_wait_ms: float = 0.0,
    max_body_bytes: int = 32 << 20,
    request_timeout_s: float = 30.0,
    trust: bool | list[str] = False,
    follow: bool = False,
    predict_kwargs: Mapping[str, Any] | None = None,
    allowed_hosts: Iterable[str] = (),
    access_log: bool = False,
    **predictor_kwargs: Any,
) -> RunningServer | None:
    """Serve a model over HTTP.

    Without `predictor_cls`, the predictor that belongs to the checkpoint is used. `checkpoint` is a Checkpoint, or
    the directory or URI of one, or of a run, whose best or newest one is served. With `blocking=False` the server runs
    in a thread and is returned: `.url`, `.token`, `.reload(checkpoint)`, `.stop()`.

    With `certfile`, a PEM file with the server's certificate, it speaks HTTPS; the key is in that file or in `keyfile`.

    Every request needs the token: `token` is one of your own, None makes one, False needs none and is allowed on
    loopback only. What can run code (pickles, a SavedModel, Lambda layers) is loaded only with `trust=True`.
    `predictor_kwargs` go to `predictor_cls.from_checkpoint`, `predict_kwargs` to every call of its `predict`.
    """
    from paceline.serve.application import application
    from paceline.serve.limits import Limits
    from paceline.serve.server import RunningServer
    from paceline.web.door import bind, checked_hosts, open_door, url_of
    from paceline.web.server import run_here
    from paceline.web.tls import tls_context

    check_bool(blocking, "blocking")
    if blocking and asyncio._get_running_loop() is not None:
        raise ConfigError("In a notebook, or inside of a coroutine, use serve.run(..., blocking=False).")
    limits = Limits(
        max_batch_size=max_batch_size,
        max_wait_ms=max_wait_ms,
        max_body_bytes=max_body_bytes,
        request_timeout_s=request_timeout_s,
    )
    door = open_door(host, port, token)
    tls = tls_context(certfile, keyfile)
    listening = bind(door.address, door.port)  # before a large model is loaded in vain
    try:
        served = _served_model(predictor_cls, checkpoint, name, trust, follow, predict_kwargs, predictor_kwargs)
        app = application(
            served,
            limits,
            token=door.token,
            loopback=door.loopback,
            allowed_hosts=[*checked_hosts(allowed_hosts), host],
            follow=follow,
            access_log=access_log,
        )
        if not blocking:
            return RunningServer(app, served, limits, listening, door.token, tls)
        _announce(url_of(listening, tls), served, door.token, told=token is not None)
        run_here(app, limits, listening, tls)
    except BaseException:
        listening.close()
        raise
    return None


def app(
    predictor_cls: type[Predictor] | Predictor | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    *,
    token: str | Literal[False],
    allowed_hosts: Iterable[str] = (),
    name: str | None = None,
    max_batch_size: int = 1024,
    max_wait_ms: float = 0.0,
    max_body_bytes: int = 32 << 20,
    request_timeout_s: float = 30.0,
    trust: bool | list[str] = False,
    follow: bool = False,
    predict_kwargs: Mapping[str, Any] | None = None,
    access_log: bool = False,
    **predictor_kwargs: Any,
) -> Application:
    """The ASGI application that `run` serves, for a server of your own.

    It answers to the names of loopback and to `allowed_hosts`. How slow or how many clients may be is then up to
    that server. `token=False` leaves it open to everyone who reaches it.
    """
    from paceline.serve.application import application
    from paceline.serve.limits import Limits
    from paceline.web.access import checked_token
    from paceline.web.door import checked_hosts

    limits = Limits(
        max_batch_size=max_batch_size,
        max_wait_ms=max_wait_ms,
        max_body_bytes=max_body_bytes,
        request_timeout_s=request_timeout_s,
    )
    return application(
        _served_model(predictor_cls, checkpoint, name, trust, follow, predict_kwargs, predictor_kwargs),
        limits,
        token=None if token is False else checked_token(token),
        loopback=True,
        allowed_hosts=checked_hosts(allowed_hosts),
        follow=follow,
        access_log=access_log,
    )


def _served_model(
    predictor_cls: Any,
    checkpoint: Any,
    name: str | None,
    trust: bool | list[str],
    follow: bool,
    predict_kwargs: Mapping[str, Any] | None,
    arguments: dict[str, Any],
) -> ServedModel:
    """The model, loaded and tried."""
    from paceline.serve.model import Recipe, ServedModel, loaded_model
    from paceline.serve.origin import origin_of
    from paceline.train.predictor import Predictor

    if not isinstance(trust, list):
        check_bool(trust, "trust", "For scikit-learn it may also be a list of types.")
    check_bool(follow, "follow")
    if checkpoint is None and isinstance(predictor_cls, Checkpoint | Result | str | os.PathLike):
        predictor_cls, checkpoint = None, predictor_cls  # run(checkpoint)
    if isinstance(predictor_cls, Predictor):
        if checkpoint is not None or arguments or follow:
            raise ConfigError("A predictor that is made already needs no checkpoint: give its class, or it alone.")
        model = loaded_model(predictor_cls, "a predictor in memory", predict_kwargs=predict_kwargs)
        return ServedModel(name or type(predictor_cls).__name__, model)
    if predictor_cls is not None and not (isinstance(predictor_cls, type) and issubclass(predictor_cls, Predictor)):
        raise ConfigError(f"predictor_cls is {predictor_cls!r}: give a class derived from Predictor.")
    if checkpoint is None:
        raise ConfigError("Say what to serve: serve.run(PredictorClass, checkpoint).")
    place = origin_of(checkpoint)
    if follow and place.sign() is None:
        raise ConfigError("Only a run in a local directory can be followed, not a single checkpoint or a URI.")
    recipe = Recipe(predictor_cls, trust, arguments, predict_kwargs or {})
    model = recipe.load(place.checkpoint(None))
    return ServedModel(name or type(model.predictor).__name__, model, place, recipe)


def _announce(url: str, served: ServedModel, token: str | None, *, told: bool) -> None:
    """Print where the server is, and the token if it was made here."""
    from paceline.run.display import GuardedWriter, printable

    lines = [f"Serving {served.name} from {served.current.origin} at {url}"]
    if token is None:
        lines.append("No token is needed: every process and user of this machine can use the model.")
    elif not told:
        lines.append(f"Token: {token}")
    password = "" if token is None else " (in a browser, the token is the password)"
    lines.append(f"Description: {url}/docs{password}. Ctrl-C ends the server.")
    GuardedWriter(sys.stdout).write("".join(f"{printable(line)}\n" for line in lines))
