"""Runs on remote storage."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import JournalParts
from paceline.view.page import curves, state
from paceline.view.page.start import PageServer
from tests.view.journals import attempt, header, row, write
from tests.view.page.conftest import fit
from tests.view.page.paging import Page, showing


def routes(running: PageServer) -> list[str]:
    return [route.path for route in running._server.config.app.routes]  # type: ignore[union-attr]


BUCKET = "memory://page-bucket"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "_REMOTE_SECONDS", 0.2)
        patch.setattr(state, "_REMOTE_LOOK_SECONDS", 0.3)
        fit(BUCKET, "good")
        with showing(BUCKET) as page:
            yield page
    fsspec.filesystem("memory").rm("/page-bucket", recursive=True)


def test_a_finished_run(page: Page) -> None:
    (entry,) = page.entries().values()
    assert (entry["kind"], entry["name"], entry["status"]) == ("run", "good", "finished")
    facts = page.get(f"run/{entry['id']}")
    assert facts["summary"]["path"].startswith(BUCKET)
    assert facts["rows"] == 6
    found = page.get("series", run=entry["id"], metric="loss")
    assert found["series"]["loss"]["y"] == [1 / step for step in range(1, 7)]
    assert page.ask("POST", f"/api/run/{entry['id']}/stop").status == 409
    assert page.get(f"run/{entry['id']}/ranks") == []


def test_its_checkpoints(page: Page) -> None:
    (entry,) = page.entries().values()
    number = next(each["number"] for each in page.get(f"run/{entry['id']}/checkpoints") if each["kept"])
    assert page.ask("POST", f"/api/run/{entry['id']}/checkpoints/{number}/verify").json == {"ok": True, "problem": ""}
    answer = page.ask("GET", f"/api/run/{entry['id']}/checkpoints/{number}/download")
    assert answer.status == 200
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        assert f"checkpoint_{number:06d}/dict_checkpoint.pkl" in tar.getnames()


def test_a_run_that_grows(page: Page, tmp_path: Path) -> None:
    parts = JournalParts(FsspecFilesystem(f"{BUCKET}/exp/run"), tmp_path / "journal.jsonl")
    cursor = page.get("list")["cursor"]
    with page.stream(list=cursor) as events:
        write(tmp_path, [header(), attempt(), row(1, {"loss": 1.0})])
        parts.push()
        (entry,) = events.next("list")["entries"]
    with page.stream(series=[{"run": entry["id"], "metrics": ["loss"], "cursor": 1}]) as events:
        write(tmp_path, [row(2, {"loss": 0.5})])
        parts.push()
        assert events.next("rows")["series"]["loss"]["y"] == [0.5]


def test_credentials_in_the_address() -> None:
    address = "memory://someone:canary@other-bucket"
    fit(address, "good")
    try:
        with showing(address) as page:
            (entry,) = page.entries().values()
            number = next(each["number"] for each in page.get(f"run/{entry['id']}/checkpoints") if each["kept"])
            for route in routes(page.running):
                path = route.replace("{id}", entry["id"]).replace("{number}", str(number)).replace("{name}", "x")
                if path != "/api/live":
                    answer = page.ask("GET", path)
                    assert b"canary" not in answer.body, path
            assert page.ask("POST", f"/api/run/{entry['id']}/checkpoints/{number}/verify").json["ok"]
            assert entry["path"] == page.get(f"run/{entry['id']}")["summary"]["path"].partition("other-bucket/")[2]
            assert "canary" not in repr(page.running)
    finally:
        fsspec.filesystem("memory").rm("/someone:canary@other-bucket", recursive=True)
