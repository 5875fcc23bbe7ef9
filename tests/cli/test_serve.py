"""``paceline serve`` as a program: what it prints, how it ends, where it keeps its token."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
import pytest
import xgboost
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import paceline
from paceline.air import RunConfig, ScalingConfig, session
from paceline.cli.main import main
from paceline.train import DataParallelTrainer
from paceline.train.sklearn import SklearnCheckpoint
from paceline.train.xgboost import XGBoostCheckpoint
from tests.serve.serving import TOKEN, Server
from tests.serve.test_tls import make_certificate
from tests.web.client import Answer, read_all, read_to_end, until

PREDICTOR = """
import os, sys, time
import pandas as pd
from paceline.train.predictor import Predictor

class Doubles(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls()

    def _predict_pandas(self, data):
        if (data["x"] == 99).any():
            print("predicting", flush=True)
            sys.stdin.readline()
        return pd.DataFrame({"predictions": data["x"] * 2, "token": os.environ.get("PACELINE_TOKEN")})
"""


class _Running:
    """What `Server` asks of a server, for one in another process."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "my_models.py").write_text(PREDICTOR)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("a checkpoint")
    return tmp_path


@contextlib.contextmanager
def command(place: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], Server, list[str]]]:
    """The command in a process of its own, once it serves; and the lines that it printed until then."""
    arguments = [sys.executable, "-m", "paceline.cli.main", "serve", "model", "--predictor", "my_models:Doubles"]
    process = subprocess.Popen(
        [*arguments, "--port", "0", *options],
        cwd=place,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = list(_until_ready(process))
        text = "".join(lines)
        address = re.search(r"at (https?://\S+)", text)
        assert address is not None, text
        token = re.search(r"^Token: (\S+)$", text, re.MULTILINE)
        yield process, Server(_Running(address[1], token[1] if token else TOKEN)), lines  # type: ignore[arg-type]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def _until_ready(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if line.startswith("Description:"):
            return
    raise AssertionError(f"it ended with {process.wait()}: {_rest(process.stderr)}")


def _rest(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.read()


def ready(server: Server) -> Answer:
    """The socket is open before the line is printed, so the first connection already gets an answer."""
    return server.predict([{"x": 1}])


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_signal_ends_it(place: Path, number: int, code: int) -> None:
    with command(place) as (process, server, _):
        assert ready(server).json["predictions"] == [2]
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(30) == code
        assert not any(child.is_running() for child in children)
        assert "Traceback" not in _rest(process.stderr)


@pytest.mark.slow  # tests/serve has the same within one process
def test_a_signal_lets_what_is_under_way_finish(place: Path) -> None:
    body = b'[{"x": 99}]'
    with command(place) as (process, server, _), server.connect() as connection:
        connection.sendall(server.head(len(body)) + body)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "predicting\n"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert b'"predictions":[198]' in read_all(connection)
        assert process.wait(30) == 0


def test_what_the_kernel_had_accepted_before_a_signal_is_answered(place: Path) -> None:
    body = b'[{"x": 3}]'
    with command(place) as (process, server, _), contextlib.ExitStack() as clients:
        used = clients.enter_context(server.connect())
        used.sendall(server.head(len(body)) + body)
        while not used.recv(65536).endswith(b"}"):
            pass
        process.send_signal(signal.SIGSTOP)
        waiting = [clients.enter_context(server.connect()) for _ in range(50)]
        late = [clients.enter_context(server.connect()) for _ in range(5)]
        for connection in (used, *waiting):
            connection.sendall(server.head(len(body)) + body)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        until(lambda: _is_refused(server))
        for connection in late:  # connected in time, and says only now what it wants
            connection.sendall(server.head(len(body)) + body)
        for connection in (used, *waiting, *late):
            assert read_to_end(connection).startswith(b"HTTP/1.1 200")
        assert process.wait(30) == 0


def _is_refused(server: Server) -> bool:
    with socket.socket() as another:
        return another.connect_ex(server.address) != 0


def test_a_token_is_made_and_printed_once(place: Path) -> None:
    with command(place) as (process, server, lines):
        (token,) = re.findall(r"^Token: (\S{43})$", "".join(lines), re.MULTILINE)
        assert server.ask("GET", "/model", token=token).status == 200
        assert server.ask("GET", "/model", token=None).status == 401
        process.terminate()
        process.wait(30)
        assert token not in _rest(process.stdout) + _rest(process.stderr)


def test_a_token_from_the_environment_is_not_printed_nor_passed_on(place: Path) -> None:
    with command(place, PACELINE_TOKEN=TOKEN) as (_, server, lines):
        assert TOKEN not in "".join(lines)
        assert server.ask("GET", "/model", token="x" * 43).status == 401
        assert server.predict([{"x": 1}]).json["token"] == [None]


def test_a_token_file_is_made_for_its_owner_and_read_again(place: Path) -> None:
    file = place / "token"
    for _ in range(2):
        with command(place, "--token-file", "token") as (_, server, lines):
            token = file.read_text().strip()
            assert len(token) == 43
            assert token not in "".join(lines)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert server.ask("GET", "/model", token=token).status == 200
            assert server.ask("GET", "/model", token=None).status == 401


def test_without_a_token_it_says_what_that_means(place: Path) -> None:
    with command(place, "--no-token") as (_, server, lines):
        assert "every process and user" in "".join(lines)
        assert "password" not in "".join(lines)
        assert server.ask("GET", "/model", token=None).status == 200


@pytest.mark.slow  # tests/serve has HTTPS within one process
def test_https(place: Path) -> None:
    certfile, keyfile = make_certificate(place, "server")
    options = ("--certfile", certfile.name, "--keyfile", keyfile.name)
    with command(place, *options) as (process, server, lines):
        assert f"Description: {server.running.url}/docs" in "".join(lines)
        context = ssl.create_default_context(cafile=certfile)
        with urllib.request.urlopen(f"{server.running.url}/healthz", timeout=30, context=context) as answer:
            assert answer.read() == b'{"status":"ok"}'
        process.terminate()
        assert process.wait(30) == 0
        assert _rest(process.stderr) == ""


def fails(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.err


def test_errors_have_a_message_and_a_code(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = place / "model"
    code, message = fails(capsys, "serve", place / "nowhere")
    assert (code, message.startswith("paceline: "), str(place / "nowhere") in message) == (2, True, True)
    code, message = fails(capsys, "serve", model)
    assert (code, message.startswith("paceline: "), str(model) in message) == (2, True, True)
    line = SklearnCheckpoint.from_estimator(LinearRegression().fit([[1.0]], [1.0]), path=place / "line").path
    message = fails(capsys, "serve", line, "--host", "0.0.0.0", "--no-token")[1]
    assert "loopback only" in message
    assert "Leave out --no-token" in message
    assert "--max-wait-ms is -1" in fails(capsys, "serve", line, "--max-wait-ms", "-1")[1]
    assert str(model) in fails(capsys, "serve", model, "--checkpoint", 3)[1]
    assert "module:Class" in fails(capsys, "serve", model, "--predictor", "Doubles")[1]
    nowhere = fails(capsys, "serve", model, "--predictor", "no_such_module:Doubles")[1]
    assert "--predictor no_such_module:Doubles" in nowhere
    assert "Nothing" in fails(capsys, "serve", model, "--predictor", "json:Nothing")[1]
    (model / "dict_checkpoint.pkl").write_bytes(b"")
    message = fails(capsys, "serve", model, "--predictor", "paceline.train.torch:TorchPredictor", "--port", 0)[1]
    assert "pass --trust" in message
    assert "trust=" not in message
    assert "--certfile" in fails(capsys, "serve", line, "--port", 0, "--keyfile", model / "notes.txt")[1]


def test_it_says_first_that_there_is_no_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def loop() -> None:
        session.report({"x": 1})

    run_config = RunConfig(verbose=0, engine="inline")
    run = DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
    (place / "folder").mkdir()
    (place / "folder" / "link").symlink_to("/nowhere")
    (place / "file").touch()
    for path, told in (
        (place / "nowhere", "does not exist"),
        (place / "file", "is a file"),
        (place / "folder", "neither a run nor a checkpoint"),
        (run.path, "no checkpoint"),
        ("memory://nowhere", "does not exist"),
    ):
        code, message = fails(capsys, "serve", path, "--token-file", place / "token")
        assert (code, message.startswith("paceline: There is no model: ")) == (
            1 if told == "no checkpoint" else 2,
            True,
        )
        assert str(path) in message
        assert told in message
    assert not (place / "token").exists()


def test_arguments_for_predict_are_checked_at_the_start(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.array([[1.0], [2.0]])
    tree = xgboost.train({}, xgboost.DMatrix(rows, [0, 1]), 1)
    XGBoostCheckpoint.from_model(tree, path=place / "tree")
    SklearnCheckpoint.from_estimator(LinearRegression().fit(rows, [0, 1]), path=place / "line")
    for name in ("tree", "line"):
        code, message = fails(capsys, "serve", place / name, "--port", 0, "--predict-kwargs", '{"foo": 1}')
        assert (code, "'foo'" in message) == (2, True)
    code, message = fails(capsys, "serve", place / "tree", "--predictor", "paceline.train.sklearn:SklearnPredictor")
    assert (code, "SklearnPredictor" in message, "XGBoostPredictor" in message) == (
        2,
        True,
        True,
    )


def test_types_that_must_be_trusted_are_named_by_option(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = make_pipeline(FunctionTransformer(os.path.basename), LinearRegression())
    SklearnCheckpoint.from_estimator(estimator, path=place / "estimator")
    code, message = fails(capsys, "serve", place / "estimator", "--port", 0)
    assert (code, "pass --trust-type posixpath.basename (or --trust " in message) == (1, True)
    assert "trust=" not in message
    assert "from_checkpoint" not in message


def test_escape_sequences_in_names_do_not_reach_the_terminal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S13."""
    code, message = fails(capsys, "serve", place / "evil\x1b[2Jname\x07")
    assert (code, "\x1b" in message, "\x07" in message) == (2, False, False)


def test_token_files_that_cannot_be_used(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SklearnCheckpoint.from_estimator(LinearRegression().fit([[1.0]], [1.0]), path=place / "line")

    def refusal(name: str) -> str:
        code, message = fails(capsys, "serve", place / "line", "--token-file", place / name)
        assert code == 2
        return message

    (place / "empty").touch(0o600)
    (place / "short").touch(0o600)
    (place / "short").write_text("short")
    (place / "open").write_text(TOKEN)
    (place / "open").chmod(0o644)
    assert f"{place / 'empty'}" in refusal("empty")
    assert "16 or more" in refusal("short")
    assert f"chmod 600 {place / 'open'}" in refusal("open")
    assert f"{place / 'no/such/folder'}" in refusal("no/such/folder")


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["serve"],
        ["train"],
        [],
        ["serve", "x", "--port", "y"],
        ["serve", "x", "--predict-kwargs", "[1]"],
    ):
        assert fails(capsys, *arguments)[0] == 2
    assert fails(capsys, "serve", "x", "--token-file", "a", "--no-token")[0] == 2


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"paceline {paceline.__version__}\n")
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    assert "--no-token" in capsys.readouterr().out
