"""What the page's server answers: the list, runs, curves, logs, checkpoints and searches."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from paceline.air import Checkpoint
from paceline.air.errors import ConfigError, RestoreError
from paceline.storage.run_dir import RunDir
from paceline.view import dash
from paceline.view.catalog import find, run_facts
from paceline.view.decimate import ema
from paceline.view.page.routes import checkpoints as checkpoint_routes
from paceline.view.page.routes import logs as log_routes
from tests.view.journals import attempt, header, row, write
from tests.view.page.conftest import HOSTILE
from tests.view.page.paging import Page, showing


def one(page: Page, kind: str, **more: Any) -> dict[str, Any]:
    """The only entry that looks so."""
    wanted = {"kind": kind, **more}
    (found,) = [each for each in page.entries().values() if wanted.items() <= each.items()]
    return found


class TestList:
    def test_every_kind(self, page: Page, made: Path) -> None:
        entries = page.entries()
        assert (
            sorted(entry["kind"] for entry in entries.values()) == ["damaged", "run", "run", "search"] + ["trial"] * 12
        )
        assert all(len(entry["id"]) == 12 for entry in entries.values())
        assert all((made / path).exists() for path in entries)
        assert page.get("about")["root"] == str(made)

    def test_a_run(self, page: Page) -> None:
        run = one(page, "run", name="good")
        assert (run["status"], run["alive"], run["workers"], run["attempts"]) == ("finished", False, 1, 1)
        assert run["iteration"] == 6
        assert run["metrics"] == {"loss": 1 / 6, HOSTILE: 6}, "flat numbers only"
        assert (run["metric"], run["mode"]) == ("loss", "max")
        assert (run["checkpoints"], run["size"] > 0) == (2, True) or run["checkpoints"] == 3
        assert run["started"] <= run["ended"]

    def test_a_failed_run_and_a_damaged_one(self, page: Page) -> None:
        failed = one(page, "run", name=HOSTILE)
        assert failed["status"] == "failed"
        assert "step 4 failed" in failed["error"]
        assert "\n" not in failed["error"]
        damaged = one(page, "damaged")
        assert (damaged["status"], damaged["path"]) == ("damaged", "bad/damaged")
        assert damaged["error"]

    def test_a_search_and_its_trials(self, page: Page) -> None:
        search = one(page, "search")
        trials = [entry for entry in page.entries().values() if entry["parent"] == search["id"]]
        assert sorted(trial["number"] for trial in trials) == list(range(12))
        assert trials[0]["params"].keys() == {"x", "deep/y", "lr"}
        assert search["counts"] == {"finished": 12}
        best = max(trials, key=lambda trial: float(trial["metrics"]["score"]))
        assert (search["best_trial"], search["best"]) == (best["id"], best["metrics"])
        assert (search["metric"], search["mode"], search["total"]) == ("score", "max", 12)

    def test_it_is_packed(self, page: Page) -> None:
        packed = page.ask("GET", "/api/list", headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert len(packed.body) < len(page.ask("GET", "/api/list").body) / 2

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        with showing(tmp_path) as page:
            assert page.entries() == {}

    def test_paths_that_cannot_be_shown(self, tmp_path: Path) -> None:
        with pytest.raises(RestoreError, match="does not exist"):
            dash(tmp_path / "gone", blocking=False)
        with pytest.raises(ConfigError, match="blocking"):
            dash(tmp_path, blocking="no")  # type: ignore[arg-type]


class TestRun:
    def test_facts(self, page: Page, made: Path) -> None:
        run = one(page, "run", name="good")
        facts = page.get(f"run/{run['id']}")
        assert (facts["id"], facts["kind"], facts["parent"]) == (run["id"], "run", None)
        assert facts["metrics"] == ["loss", HOSTILE]
        assert facts["rows"] == 6
        expected = run_facts(made / run["path"])
        assert facts["summary"]["path"] == expected.summary.path
        assert [each["number"] for each in facts["checkpoints"]] == [each.number for each in expected.checkpoints]

    def test_a_failure(self, page: Page) -> None:
        facts = page.get(f"run/{one(page, 'run', name=HOSTILE)['id']}")
        (failure,) = facts["failures"]
        assert failure["rank"] == 0
        assert "ValueError" in failure["traceback"]
        assert facts["how_to_continue"].startswith("DataParallelTrainer.restore(")

    def test_a_damaged_run(self, page: Page) -> None:
        assert "damaged" in page.refused(f"run/{one(page, 'damaged')['id']}", 422)

    def test_an_unknown_run(self, page: Page) -> None:
        for path in (
            "run/nosuchid",
            "search/nosuchid",
            "run/nosuchid/checkpoints",
            "run/nosuchid/checkpoints/1/download",
        ):
            assert "no such run" in page.refused(path, 404)

    def test_a_run_that_is_not_alive(self, page: Page) -> None:
        for action in ("stop", "stacks"):
            answer = page.ask("POST", f"/api/run/{one(page, 'run', name='good')['id']}/{action}")
            assert answer.status == 409
            assert answer.reason

    def test_a_report_in_one_file(self, page: Page) -> None:
        for entry in (one(page, "run", name=HOSTILE), one(page, "search")):
            answer = page.ask("GET", f"/api/run/{entry['id']}/report")
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/html")
            assert answer.headers["content-disposition"].startswith("attachment")
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert b"<img" not in answer.body
            assert b"<script" not in answer.body

    def test_comparing(self, page: Page) -> None:
        good, failed = one(page, "run", name="good")["id"], one(page, "run", name=HOSTILE)["id"]
        found = page.get("compare", ids=f"{good},{failed}")
        assert [run["id"] for run in found["runs"]] == [good, failed]
        assert found["differing"] == {"fails_at": {failed: 4}, HOSTILE: {failed: HOSTILE}}
        assert found["same"] > 1
        assert page.get("compare", ids=good)["differing"] == {}
        page.refused("compare", 404, ids="nosuchid")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose curve has more points than a screen has pixels."""
    random = np.random.default_rng(0)
    rows = (
        row(index, {"loss": float(random.normal()), **({"eval": 1.0} if index % 100 == 0 else {}), "nan": math.nan})
        for index in range(1, 5001)
    )
    root = tmp_path_factory.mktemp("long")
    write(root / "exp" / "run", [header(), attempt(0, 0, 1000.0), *rows])
    return root


@pytest.fixture(scope="module")
def curves(long: Path) -> Iterator[Page]:
    with showing(long) as page:
        yield page


class TestSeries:
    def test_decimated_and_smoothed_before(self, curves: Page) -> None:
        id = curves.id_of("exp/run")
        found = curves.get("series", run=id, metric=["loss", "eval", "missing"], pixels=50, smooth=0.9)
        assert found["series"].keys() == {"loss", "eval"}
        assert (found["rows"], found["x_min"], found["x_max"]) == (5000, 1, 5000)
        loss, evaluated = found["series"]["loss"], found["series"]["eval"]
        assert not loss["complete"]
        assert 100 < len(loss["x"]) <= 50 * 8
        whole = curves.get("series", run=id, metric="loss", pixels=10_000)["series"]["loss"]
        assert whole["complete"]
        assert whole["smooth"] is None
        smooth = ema(np.array(whole["y"]), 0.9)
        np.testing.assert_allclose(loss["smooth"], smooth[np.array(loss["x"], int) - 1])
        assert (min(loss["y"]), max(loss["y"])) == (min(whole["y"]), max(whole["y"]))
        assert (evaluated["complete"], evaluated["x"]) == (True, list(range(100, 5001, 100)))

    def test_what_is_not_finite(self, curves: Page) -> None:
        nan = curves.get("series", run=curves.id_of("exp/run"), metric="nan", pixels=9_000)["series"]["nan"]
        assert (nan["complete"], len(nan["x"]), set(nan["y"])) == (True, 5000, {None})

    def test_axes(self, curves: Page) -> None:
        id = curves.id_of("exp/run")
        assert curves.get("series", run=id, metric="eval", x="relative")["x_min"] == 1001.0
        assert curves.get("series", run=id, metric="eval", x="time")["x_min"] > 1e9

    def test_zooming_brings_finer_data(self, curves: Page) -> None:
        query = {"run": curves.id_of("exp/run"), "metric": "loss", "pixels": 50}
        part = curves.get("series", **query, **{"from": 1000, "to": 1100})["series"]["loss"]
        assert part["x"] == list(range(999, 1102))
        assert not part["complete"]
        assert len(curves.get("series", **query, log=1)["series"]["loss"]["x"]) > 50

    def test_sparks(self, curves: Page) -> None:
        id = curves.id_of("exp/run")
        found = curves.get("sparks", ids=f"{id},nosuchid", metric="loss", points=40)
        assert found["nosuchid"] is None
        x, y = found[id]
        assert len(x) == len(y) <= 44
        assert curves.get("sparks", ids=id, metric="missing") == {id: None}

    @pytest.mark.parametrize(
        "query",
        [{"run": ""}, {"metric": []}, {"x": "y"}, {"smooth": "1"}, {"smooth": "nan"}, {"pixels": "0"},
         {"pixels": "1e9"}, {"from": "x"}, {"metric": ["a"] * 101}, {"run": "x" * 2000}],
    )  # fmt: skip
    def test_requests_that_cannot_be_read(self, curves: Page, query: dict[str, Any]) -> None:
        query = {"run": curves.id_of("exp/run"), "metric": "loss", **query}
        answer = curves.ask("GET", f"/api/series?{urlencode(query, doseq=True)}")
        assert answer.status in (400, 404)
        assert answer.reason

    def test_too_many_runs(self, curves: Page) -> None:
        curves.refused("sparks", 400, ids=",".join(f"id{number}" for number in range(101)), metric="loss")
        curves.refused("sparks", 400, ids="", metric="loss")


class TestCheckpoints:
    def test_they_are_listed_and_verified(self, own_page: Page, results: Path) -> None:
        run = one(own_page, "run", name="good")
        listed = own_page.get(f"run/{run['id']}/checkpoints")
        kept = [each for each in listed if each["kept"]]
        assert len(kept) == run["checkpoints"]
        verify = f"/api/run/{run['id']}/checkpoints/{kept[0]['number']}/verify"
        assert own_page.ask("POST", verify).json == {"ok": True, "problem": ""}
        file = next(path for path in Path(kept[0]["path"]).iterdir() if path.name != "MANIFEST.json")
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        damaged = own_page.ask("POST", verify).json
        assert not damaged["ok"]
        assert file.name in damaged["problem"]
        assert own_page.ask("POST", f"/api/run/{run['id']}/checkpoints/99/verify").status == 404

    def test_a_download_is_the_checkpoint(self, own_page: Page, tmp_path: Path) -> None:
        run = one(own_page, "run", name="good")
        number = next(each["number"] for each in own_page.get(f"run/{run['id']}/checkpoints") if each["kept"])
        answer = own_page.ask("GET", f"/api/run/{run['id']}/checkpoints/{number}/download")
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/x-tar"
        assert answer.headers["content-disposition"].startswith("attachment; filename=")
        assert int(answer.headers["content-length"]) == len(answer.body)
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
            tar.extractall(tmp_path / "out", filter="data")
        copy = Checkpoint(str(tmp_path / "out" / f"checkpoint_{number:06d}"))
        copy.verify()
        assert copy.to_dict()["step"] > 0
        head = own_page.ask("HEAD", f"/api/run/{run['id']}/checkpoints/{number}/download")
        assert (head.status, head.body) == (200, b"")

    def test_links_and_odd_files_are_not_sent(self, own_page: Page, tmp_path: Path) -> None:
        """S7."""
        run = one(own_page, "run", name="good")
        kept = [each for each in own_page.get(f"run/{run['id']}/checkpoints") if each["kept"]]
        secret = tmp_path / "secret"
        secret.write_text("do not send")
        number, folder = kept[0]["number"], Path(kept[0]["path"])
        download = f"/api/run/{run['id']}/checkpoints/{number}/download"
        file = next(path for path in folder.iterdir() if path.name != "MANIFEST.json")
        content = file.read_bytes()

        def refused() -> None:
            answer = own_page.ask("GET", download)
            assert answer.status in (404, 422), answer.body
            assert b"do not send" not in answer.body

        (folder / "link").symlink_to(secret)
        refused()
        (folder / "link").unlink()
        (folder / "link").symlink_to(tmp_path)
        refused()
        (folder / "link").unlink()
        file.unlink()
        file.symlink_to(secret)
        refused()
        file.unlink()
        os.mkfifo(file)
        refused()
        file.unlink()
        file.write_bytes(content)
        assert own_page.ask("GET", download).status == 200
        elsewhere = tmp_path / "elsewhere"
        shutil.move(folder, elsewhere)
        folder.symlink_to(elsewhere)
        refused()

    def test_nobody_waits_for_large_ones(self, own_page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        go_on = threading.Event()
        monkeypatch.setattr(Checkpoint, "verify", lambda checkpoint: go_on.wait())
        run = one(own_page, "run", name="good")
        number = next(each["number"] for each in own_page.get(f"run/{run['id']}/checkpoints") if each["kept"])
        verify = f"/api/run/{run['id']}/checkpoints/{number}/verify"
        with ThreadPoolExecutor(20) as clients:
            asked = [clients.submit(own_page.ask, "POST", verify) for _ in range(20)]
            try:
                own_page.get("list")
                own_page.get(f"run/{run['id']}")
            finally:
                go_on.set()
            assert [each.result().json["ok"] for each in asked] == [True] * 20

    def test_numbers_that_are_none(self, own_page: Page) -> None:
        run = one(own_page, "run", name="good")
        for number in ("9" * 5000, "9" * 18, "-1", "x", "%C2%B2"):
            assert own_page.ask("GET", f"/api/run/{run['id']}/checkpoints/{number}/download").status == 404
            assert own_page.ask("POST", f"/api/run/{run['id']}/checkpoints/{number}/verify").status == 404

    def test_a_run_that_disappears_from_the_list(self, own_page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        state = own_page.running._server.config.app.state.page  # type: ignore[union-attr]
        run = one(own_page, "run", name="good")
        number = next(each["number"] for each in own_page.get(f"run/{run['id']}/checkpoints") if each["kept"])
        monkeypatch.setattr(state.listing, "line", {}.__getitem__)
        assert own_page.ask("GET", f"/api/run/{run['id']}/checkpoints/{number}/download").status == 404
        assert state.downloads == 0

    def test_few_at_a_time(self, own_page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkpoint_routes, "MOST_DOWNLOADS", 0)
        run = one(own_page, "run", name="good")
        assert own_page.ask("GET", f"/api/run/{run['id']}/checkpoints/1/download").status == 503


class TestLogs:
    @pytest.fixture
    def logged(self, results: Path) -> RunDir:
        run_dir = RunDir(Path(find(results / "good").runs[0].path))
        run_dir.logs_dir.mkdir(exist_ok=True)
        for rank in (0, 1):
            lines = [f"rank {rank} line {number} {HOSTILE}" for number in range(100)]
            run_dir.log(rank).write_text("\n".join(lines) + "\n")
        return run_dir

    def test_parts(self, own_page: Page, logged: RunDir) -> None:
        id = one(own_page, "run", name="good")["id"]
        assert own_page.get(f"run/{id}")["ranks"] == [0, 1]
        tail = own_page.get("logs", run=id, rank=0, max=500)
        assert tail["older"]
        assert tail["end"] == tail["size"] == logged.log(0).stat().st_size
        assert tail["text"].endswith(f"rank 0 line 99 {HOSTILE}\n")
        before = own_page.get("logs", run=id, rank=0, before=tail["start"], max=500)
        assert before["end"] == tail["start"]
        everything = own_page.get("logs", run=id, rank=0, start=0)
        assert everything["text"] == logged.log(0).read_text()

    def test_merged(self, own_page: Page, logged: RunDir) -> None:
        id = one(own_page, "run", name="good")["id"]
        found = own_page.get("logs/merged", run=id)
        assert len(found["lines"]) == 200
        assert found["ends"] == {"0": logged.log(0).stat().st_size, "1": logged.log(1).stat().st_size}
        only = own_page.get("logs/merged", run=id, ranks="1", max=4096)
        assert {line["rank"] for line in only["lines"]} == {1}
        assert only["older"]
        before = own_page.get("logs/merged", run=id, before=json.dumps(only["starts"]))
        assert before["ends"] == only["starts"]
        assert len(before["lines"]) + len(only["lines"]) == 100

    def test_search(self, own_page: Page, logged: RunDir) -> None:
        id = one(own_page, "run", name="good")["id"]
        hits = own_page.get("logs/search", run=id, q="LINE 7 <IMG")["hits"]
        assert [(hit["rank"], hit["text"]) for hit in hits] == [
            (rank, f"rank {rank} line 7 {HOSTILE}") for rank in (0, 1)
        ]
        jump = own_page.get("logs", run=id, rank=1, start=hits[1]["offset"])
        assert jump["text"].startswith("rank 1 line 7 ")
        some = own_page.get("logs/search", run=id, q="line", limit=5)
        assert (len(some["hits"]), some["complete"]) == (5, False)
        everything = own_page.get("logs/search", run=id, q="line [0-9]+5 ", regex=1, rank=0)
        assert (len(everything["hits"]), everything["complete"]) == (9, True)
        nothing = own_page.get("logs/search", run=id, q="(a+)+$" + "a" * 40, regex=1)
        assert nothing == {"hits": [], "complete": True}
        assert "regular expression" in own_page.refused("logs/search", 400, run=id, q="(", regex=1)
        own_page.refused("logs/search", 400, run=id, q="")

    def test_a_search_that_takes_too_long_says_so(
        self, own_page: Page, logged: RunDir, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_routes, "SEARCH_SECONDS", 0.0)
        id = one(own_page, "run", name="good")["id"]
        assert own_page.get("logs/search", run=id, q="line 7") == {"hits": [], "complete": False}

    def test_a_link_instead_of_a_log(self, own_page: Page, logged: RunDir, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("do not send\n")
        id = one(own_page, "run", name="good")["id"]
        logged.log(0).unlink()
        logged.log(0).symlink_to(secret)
        for path in (f"logs?run={id}&rank=0", f"logs/merged?run={id}", f"logs/search?run={id}&q=send"):
            answer = own_page.ask("GET", f"/api/{path}")
            assert b"do not send" not in answer.body
            assert answer.status == 422

    def test_no_such_log(self, own_page: Page, logged: RunDir) -> None:
        id = one(own_page, "run", name="good")["id"]
        assert "rank 7" in own_page.refused("logs", 422, run=id, rank=7)
        own_page.refused("logs", 400, run=id, rank="x")
        own_page.refused("logs", 400, run=id)
        own_page.refused("logs/merged", 400, run=id, before="[1]")
        own_page.refused("logs/merged", 400, run=id, ranks="0,x")

    def test_the_stream_follows_a_log(self, own_page: Page, logged: RunDir) -> None:
        id = one(own_page, "run", name="good")["id"]
        size = logged.log(0).stat().st_size
        with own_page.stream(logs=[{"run": id, "rank": 0, "offset": size}]) as events:
            with open(logged.log(0), "a") as log:
                log.write("one more line\n")
            event = events.next("logs")
            assert (event["run"], event["rank"], event["start"], event["text"]) == (id, 0, size, "one more line\n")


class TestSearch:
    def test_what_it_found_out(self, page: Page) -> None:
        entry = one(page, "search")
        found = page.get(f"search/{entry['id']}")
        while found["pending"]:
            found = page.get(f"search/{entry['id']}")
        assert found["space"] == {
            "x": {"kind": "float", "low": 0.0, "high": 4.0, "log": False},
            "deep/y": {"kind": "choice", "values": [1, 2], "log": False},
            "lr": {"kind": "float", "low": 1e-5, "high": 0.1, "log": True},
        }
        assert found["importance"].keys() == {"x", "deep/y", "lr"}
        assert sum(found["importance"].values()) == pytest.approx(1)
        assert (found["why"], found["continue"], found["pareto"]) == ("", "", [])
        values = [value for _, value, _ in found["best_so_far"]]
        assert values == sorted(values)
        assert found["best_so_far"][-1][2] == entry["best_trial"]

    def test_a_run_is_not_a_search(self, page: Page) -> None:
        assert page.refused(f"search/{one(page, 'run', name='good')['id']}", 404) == "This is not a search."
