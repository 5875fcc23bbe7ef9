"""``paceline serve``: a run's model behind HTTP."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any

from paceline.air.errors import ConfigError, PacelineError
from paceline.cli.errors import CommandError, code_of
from paceline.cli.places import place as place_of
from paceline.cli.server_options import add_server_options, in_options, log_to_terminal, token_of

DESCRIPTION = """\
Answers POST /predict with the predictions of a run's model, in JSON or Arrow. Of a run, the best checkpoint by its
score attribute is served, without one the newest; of an experiment, that of the newest run that has any.

Every request needs a token ("Authorization: Bearer <token>"). It is read from --token-file or PACELINE_TOKEN; if
there is neither, a new one is made and printed.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="directory or URI of a run, an experiment or a checkpoint")
    parser.add_argument("--checkpoint", type=int, metavar="N", help="serve checkpoint_00000N of the run")
    parser.add_argument("--predictor", metavar="MODULE:CLASS", help="a predictor class of your own")
    parser.add_argument(
        "--predict-kwargs", type=_json_object, default={}, metavar="JSON", help="arguments for each call of predict()"
    )
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (default: %(default)s)")
    parser.add_argument("--name", help="what the model is called in its description")
    add_server_options(parser)
    parser.add_argument("--max-batch-size", type=int, default=1024, metavar="ROWS", help="predicted together at most")
    parser.add_argument("--max-wait-ms", type=float, default=0.0, metavar="MS", help="wait so long for a fuller batch")
    parser.add_argument("--max-body-bytes", type=int, default=32 << 20, metavar="BYTES", help="of one request")
    parser.add_argument("--request-timeout-s", type=float, default=30.0, metavar="S", help="for one prediction")
    parser.add_argument("--trust", action="store_true", help="load what can run code: pickles, a SavedModel")
    parser.add_argument(
        "--trust-type", action="append", default=[], metavar="NAME", help="load this type, which the error asks for"
    )
    parser.add_argument("--follow", action="store_true", help="change to new checkpoints of the run as they come")


def run(given: argparse.Namespace) -> int:
    """Serve until a signal."""
    from paceline.serve.origin import RunOrigin, check_has_model, origin_of

    log_to_terminal()
    place: Any = origin_of(place_of(given.path))
    if given.checkpoint is not None:
        if not isinstance(place, RunOrigin):
            raise ConfigError(f"--checkpoint chooses one of a run's checkpoints, but {given.path} is not a run.")
        place = RunOrigin(place.path, given.checkpoint)
    try:
        check_has_model(place, given.path, own_predictor=given.predictor is not None)
        _serve(given, place)
    except PacelineError as error:
        raise CommandError(in_options(str(error)), code_of(error)) from error
    return 0


def _serve(given: argparse.Namespace, place: Any) -> None:
    from paceline import serve

    serve.run(
        _predictor(given.predictor) if given.predictor else None,
        place,
        host=given.host,
        port=given.port,
        token=token_of(given),
        certfile=given.certfile,
        keyfile=given.keyfile,
        name=given.name,
        max_batch_size=given.max_batch_size,
        max_wait_ms=given.max_wait_ms,
        max_body_bytes=given.max_body_bytes,
        request_timeout_s=given.request_timeout_s,
        trust=given.trust or given.trust_type or False,
        follow=given.follow,
        predict_kwargs=given.predict_kwargs,
        allowed_hosts=given.allow_host,
        access_log=given.access_log,
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('write an object, as in {"method": "predict_proba"}')
    return value


def _predictor(named: str) -> Any:
    """The class that the user names on the command line; modules of the current directory are found."""
    module, _, name = named.partition(":")
    if not module or not name:
        raise ConfigError(f"--predictor {named}: write it as module:Class, for example my_models:MyPredictor.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"--predictor {named}: importing {module} failed: {error}.") from error
    if not hasattr(found, name):
        raise ConfigError(f"--predictor {named}: the module {module} has no {name}.")
    return getattr(found, name)
