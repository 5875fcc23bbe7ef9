"""``paceline serve``: a run's model behind HTTP."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.air.errors import ConfigError, PacelineError
from paceline.cli.errors import CommandError, code_of

TOKEN_VARIABLE = "PACELINE_TOKEN"

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
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (default: %(default)s)")
    parser.add_argument("--name", help="what the model is called in its description")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-file", type=Path, metavar="FILE", help="holds the token; made if it is not there")
    token.add_argument("--no-token", action="store_true", help="ask for no token; on loopback only")
    parser.add_argument("--certfile", type=Path, metavar="FILE", help="certificate (PEM): serve over HTTPS")
    parser.add_argument("--keyfile", type=Path, metavar="FILE", help="its key, if that is not in the certfile")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="another name of this server")
    parser.add_argument("--max-batch-size", type=int, default=1024, metavar="ROWS", help="predicted together at most")
    parser.add_argument("--max-wait-ms", type=float, default=0.0, metavar="MS", help="wait so long for a fuller batch")
    parser.add_argument("--max-body-bytes", type=int, default=32 << 20, metavar="BYTES", help="of one request")
    parser.add_argument("--request-timeout-s", type=float, default=30.0, metavar="S", help="for one prediction")
    parser.add_argument("--trust", action="store_true", help="load what can run code: pickles, a SavedModel")
    parser.add_argument(
        "--trust-type", action="append", default=[], metavar="NAME", help="load this type, which the error asks for"
    )
    parser.add_argument("--follow", action="store_true", help="change to new checkpoints of the run as they come")
    parser.add_argument("--access-log", action="store_true", help="write a line for each request")


def run(given: argparse.Namespace) -> int:
    """Serve until a signal."""
    from paceline.serve.origin import RunOrigin, check_has_model, origin_of

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("paceline").setLevel(logging.INFO)
    place: Any = origin_of(given.path)
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
        token=_token(given),
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


_OPTIONS = "max_batch_size|max_wait_ms|max_body_bytes|request_timeout_s|predict_kwargs|certfile|keyfile|host|port"
_IN_OPTIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"trust=True", "--trust"),
    (r"trust=\[([^]]*)\]", lambda found: " ".join(f"--trust-type {name}" for name in re.findall(r"'(.+?)'", found[1]))),
    (r" to get_\w+\(\)(, get_\w+\(\))? or \w+Predictor\.from_checkpoint\(\)", ""),
    (r"Do not use token=False", "Leave out --no-token"),
    (r"\ballowed_hosts\b", "--allow-host"),
    (rf"\b({_OPTIONS})=", lambda found: f"--{found[1].replace('_', '-')} "),
    (rf"^({_OPTIONS}) is\b", lambda found: f"--{found[1].replace('_', '-')} is"),
    (r"\b(max_wait_ms|request_timeout_s)\b", lambda found: f"--{found[1].replace('_', '-')}"),
    (r"\b(give|The) (certfile|keyfile)\b", r"\1 --\2"),
    (r"give a class derived from Predictor", "give --predictor a class derived from Predictor"),
    (r"name the predictor that reads them as well", "name their predictor with --predictor"),
)
"""Arguments of the Python functions, and the options of this command that stand for them."""


def in_options(message: str) -> str:
    """A message for the users of the command, who know its options and not the arguments behind them."""
    for pattern, option in _IN_OPTIONS:
        message = re.sub(pattern, option, message)
    return message


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


def _token(given: argparse.Namespace) -> Any:
    """The token, False for none, or None: a new one is made and printed."""
    from_environment = os.environ.pop(TOKEN_VARIABLE, None)  # not for the processes that this one starts
    if given.no_token:
        return False
    if given.token_file is not None:
        return token_from(given.token_file)
    return from_environment


def token_from(path: Path) -> str:
    """The token in a file that only its owner can read; a file with a new one if there is none."""
    from paceline.web.access import new_token

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise ConfigError(f"The token file {path} cannot be made: {error.strerror}.") from error
    token = new_token()
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    print(f"The token is in {path}", flush=True)
    return token


def _read_token(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(f"Others than its owner can read the token file {path}: chmod 600 {path}")
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The token file {path} cannot be read: {error}.") from error
    if not token:
        raise ConfigError(f"The token file {path} is empty. Remove it, and a new one is made.")
    return token
