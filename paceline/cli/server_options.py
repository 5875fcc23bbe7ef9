"""What the commands share that start a server: options, the token, and messages that name options."""

from __future__ import annotations

import argparse
import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.air.errors import ConfigError

TOKEN_VARIABLE = "PACELINE_TOKEN"


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where the server listens, and what it asks of those who come."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-file", type=Path, metavar="FILE", help="holds the token; made if it is not there")
    token.add_argument("--no-token", action="store_true", help="ask for no token; on loopback only")
    parser.add_argument("--certfile", type=Path, metavar="FILE", help="certificate (PEM): serve over HTTPS")
    parser.add_argument("--keyfile", type=Path, metavar="FILE", help="its key, if that is not in the certfile")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="another name of this server")
    parser.add_argument("--access-log", action="store_true", help="write a line for each request")


def log_to_terminal() -> None:
    """What the server has to say goes to the terminal."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("paceline").setLevel(logging.INFO)


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


def token_of(given: argparse.Namespace) -> Any:
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
