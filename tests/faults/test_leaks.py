"""Secrets that a run comes across do not reach its files, its output, or what others see of its processes."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import StorageError
from paceline.cli.main import main as paceline
from paceline.testing.processes import Driver, Marks, descendants
from paceline.train import DataParallelTrainer
from tests.faults.laboratory import Laboratory
from tests.storage.s3_server import s3_filesystem, s3_server
from tests.view.page.paging import Page, showing

CANARY = "canary5ong"
PROJECT = Path(__file__).parents[2]


def leaky(config: dict[str, Any]) -> None:
    """Uses its secrets, and fails with one of them in the message."""
    import os

    marks = Marks(config["marks"])
    session.report({"loss": 1.0})
    assert config["hub_token"] == CANARY
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == CANARY
    marks.say("working", rank=session.get_world_rank())
    marks.pass_gate("worker")
    raise ConnectionError(f"cannot reach https://user:{CANARY}@example.org/data")


def drive(storage: str, marks: str) -> None:
    """The program of the test."""
    DataParallelTrainer(
        leaky,
        train_loop_config={"hub_token": CANARY, "marks": marks},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="leaky", storage_path=storage),
    ).fit()


def test_no_secret_leaves_the_processes_of_a_run(lab: Laboratory, capsys: pytest.CaptureFixture[str]) -> None:
    """S10: in the environment, in the configuration, in the text of an exception."""
    results = lab.root / "results"
    with s3_server() as endpoint:
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="bucket")
        variables = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": CANARY,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "PACELINE_RESULTS_DIR": str(results),
        }
        arguments = ["-m", "tests.faults.test_leaks", "s3://bucket/runs", str(lab.marks.directory)]
        with Driver(arguments, output=lab.root / "driver.txt", env=variables, cwd=PROJECT) as driver:
            lab.marks.wait("working", 2)
            family = descendants(driver.pid)
            commands = [Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in family]
            lab.marks.open_gate("worker")
            assert driver.wait() == 1
            output = driver.text()
        objects = {name: s3_filesystem(endpoint).cat_file(name) for name in s3_filesystem(endpoint).find("bucket")}
    assert len(family) >= 3
    assert not [command for command in commands if CANARY.encode() in command]
    assert "ConnectionError: cannot reach https://***@example.org/data" in output
    shown = output.replace(source_line(), "")
    assert CANARY not in shown, [line for line in shown.splitlines() if CANARY in line]
    assert any(name.endswith("journal.jsonl") for name in objects)
    assert not [name for name, content in objects.items() if CANARY.encode() in content or CANARY in name]
    files = [path for path in results.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if CANARY.encode() in path.read_bytes() or CANARY in str(path)]
    (journal,) = results.rglob("journal.jsonl")
    for command in (["show", str(journal.parent)], ["logs", str(journal.parent)], ["ls", str(results)]):
        assert paceline(command) == 0
    assert CANARY not in capsys.readouterr().out
    with showing(results) as page:
        pages = shown_by(page)
    assert any("leaky" in content.decode(errors="replace") for content in pages.values())
    assert not [path for path, content in pages.items() if CANARY.encode() in content]


def shown_by(page: Page) -> dict[str, bytes]:
    """What every route of the page says of the run and of its search, if it has one."""
    ids = [entry["id"] for entry in page.entries().values()]
    app: Any = page.running._server.config.app
    found = {}
    for route in app.routes:
        if "GET" not in route.methods or route.path == "/api/live":  # which streams what the other routes give
            continue
        for id_ in ids:
            path = route.path.replace("{id}", id_).replace("{number}", "0").replace("{name}", "page.js")
            found[path] = page.ask("GET", path).body
    assert len(found) > 10
    return found


def test_no_secret_of_a_uri_is_in_the_error(lab: Laboratory) -> None:
    """S10: S3 takes no credentials in a URI. They are not shown when it says so."""
    with pytest.raises(StorageError) as caught:
        drive(f"s3://key:{CANARY}@bucket/runs", str(lab.marks.directory))
    shown = "".join(traceback.format_exception(caught.value))
    assert "bucket" in shown
    assert CANARY not in shown


def source_line() -> str:
    """A traceback quotes the line of the program: it has the name of the secret, not its value."""
    return 'raise ConnectionError(f"cannot reach https://user:{CANARY}@example.org/data")'


if __name__ == "__main__":
    drive(*sys.argv[1:])
