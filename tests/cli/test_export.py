from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import HOSTILE, Cli, RemoteRuns, Runs, fit


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("kind", ["finished", "failed", "killed", "live", "rotten"])
@pytest.mark.parametrize("to", ["csv", "parquet", "html"])
def test_runs_of_every_kind(kind: str, to: str, runs: Runs, cli: Cli, folder: Path) -> None:
    told = json.loads(cli("export", runs.of_kind(kind), "--to", to, "--json").out)
    assert told["rows"] >= 2
    (file,) = folder.iterdir()
    assert (file.name, file.suffix) == (told["file"], f".{to}")
    if to == "html":
        check_report(file.read_text(encoding="utf-8"))
        return
    frame = pd.read_csv(file) if to == "csv" else pd.read_parquet(file)
    assert len(frame) == told["rows"]
    assert list(frame["training_iteration"][:2]) == [1, 2]
    assert list(frame["loss"][:2]) == [1.0, 0.5]


def test_damaged_runs(runs: Runs, cli: Cli, folder: Path) -> None:
    assert cli("export", runs.damaged, "--to", "csv").code == 3
    assert cli("export", runs.bitten, "--to", "csv").code == 3
    assert list(folder.iterdir()) == []


def test_rows_of_every_rank(runs: Runs, cli: Cli) -> None:
    said = cli("export", runs.finished, "--to", "csv", "--ranks", "-o", "ranks.csv")
    assert said.code == 0
    frame = pd.read_csv("ranks.csv")
    assert sorted(frame["rank"].unique()) == [0, 1]
    assert len(frame) == 6


def test_a_search_has_one_row_for_each_trial(runs: Runs, cli: Cli) -> None:
    assert cli("export", runs.search, "--to", "csv", "-o", "trials.csv").code == 0
    frame = pd.read_csv("trials.csv").set_index("config/x")
    assert dict(frame["loss"]) == {1: 2, 2: 5, 3: 10, 4: 17}
    assert frame["status"][3] == "failed"
    assert cli("export", runs.search, "--to", "html", "-o", "search.html").code == 0
    text = Path("search.html").read_text(encoding="utf-8")
    check_report(text)
    assert "Best so far" in text
    assert "x is three" in text
    assert cli("export", runs.search, "--to", "csv", "--ranks").code == 2


def test_a_remote_run(remote: RemoteRuns, cli: Cli) -> None:
    for to in ("csv", "parquet", "html"):
        assert cli("export", remote.finished, "--to", to, "-o", f"run.{to}").code == 0
    assert len(pd.read_csv("run.csv")) == 3
    check_report(Path("run.html").read_text(encoding="utf-8"))


def test_files_are_not_replaced_unless_that_is_asked_for(runs: Runs, cli: Cli, folder: Path) -> None:
    Path("there.csv").write_text("mine")
    said = cli("export", runs.finished, "--to", "csv", "-o", "there.csv")
    assert (said.code, Path("there.csv").read_text()) == (2, "mine")
    assert "--force" in said.err
    assert cli("export", runs.finished, "--to", "csv", "-o", "there.csv", "--force").code == 0
    assert len(pd.read_csv("there.csv")) == 3
    assert [path.name for path in folder.iterdir()] == ["there.csv"]


def test_standard_output(runs: Runs) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "export", runs.finished, "--to", "csv", "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert len(pd.read_csv(StringIO(done.stdout))) == 3


def test_columns_of_mixed_types_become_text_in_parquet(cli: Cli, tmp_path: Path) -> None:
    path = fit(tmp_path, "mixed", {"metrics": {"words": "a", "list": [1, 2]}})
    assert cli("export", path, "--to", "parquet", "-o", "x.parquet").code == 0
    assert list(pd.read_parquet("x.parquet")["words"]) == ["a", "a", "a"]


def test_bad_input(runs: Runs, cli: Cli, folder: Path) -> None:
    said = cli("export", runs.finished, "--to", "safetensors")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "checkpoint_000002" in said.err
    pickled = cli("export", f"{runs.finished}/checkpoint_000002", "--to", "safetensors")
    assert pickled.code == 1
    assert "holds no weights" in pickled.err
    assert cli("export", runs.finished, "--to", "xml").code == 2
    assert cli("export", runs.finished).code == 2
    assert cli("export", runs.finished, "--to", "html", "--ranks").code == 2
    assert cli("export", runs.finished, "--to", "csv", "-o", folder).code == 2
    assert cli("export", runs.finished, "--to", "csv", "-o", folder / "no" / "such" / "folder.csv").code == 2
    assert list(folder.iterdir()) == []


def test_files_of_several_models_are_not_mixed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "two"
    place.mkdir()
    for name in ("model", "model_1"):
        safetensors.save_file({"weight": torch.ones(1)}, place / f"{name}.safetensors")
    said = cli("export", place, "--to", "safetensors")
    assert said.code == 1
    assert "model.safetensors and model_1.safetensors both have weights named 'weight'" in said.err
    assert not Path("checkpoint.safetensors").exists()


@pytest.mark.parametrize("kind", ["sharded", "weights", "safetensors"])
def test_weights_of_a_checkpoint(kind: str, cli: Cli, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    from torch.distributed.checkpoint.state_dict_saver import save

    from paceline.train.torch import TorchCheckpoint

    place = tmp_path / "checkpoint"
    layer = torch.nn.Linear(3, 2)
    weights = {**layer.state_dict(), "tied": layer.weight.detach(), "turned": layer.weight.detach().t()}
    if kind == "sharded":
        with pytest.warns(UserWarning, match="single process"):
            save({"model": weights, "optimizer": {"moment": torch.ones(4)}}, checkpoint_id=place)
    elif kind == "weights":
        TorchCheckpoint.from_state_dict(weights).to_directory(place)
    else:
        place.mkdir()
        parts = [
            dict(list(weights.items())[:2]),
            {name: weights[name].clone().contiguous() for name in ("tied", "turned")},
        ]
        for number, part in enumerate(parts):
            safetensors.save_file(part, place / f"model-0000{number + 1}-of-00002.safetensors")
    assert cli("export", place, "--to", "safetensors").code == 0
    found = safetensors.load_file("checkpoint.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())


def test_a_report_shows_the_failure(runs: Runs, cli: Cli) -> None:
    cli("export", runs.failed, "--to", "html", "-o", "failed.html")
    text = Path("failed.html").read_text(encoding="utf-8")
    assert "Failure: rank 1" in text
    assert "the data has a hole" in text
    assert "To continue" in text


def test_a_report_escapes_everything(cli: Cli, tmp_path: Path) -> None:
    """S13."""
    path = fit(tmp_path, "hostile", {HOSTILE: HOSTILE, "metrics": {HOSTILE: 1.0, "text": HOSTILE}})
    cli("export", path, "--to", "html", "-o", "hostile.html")
    text = Path("hostile.html").read_text(encoding="utf-8")
    check_report(text)
    assert "&lt;img src=x" in text


ALLOWED = """
    html head meta title style body h1 h2 section table thead tbody tr th td span div strong small figure figcaption
    svg g path rect circle text pre ul li details summary footer
"""


def check_report(text: str) -> None:
    """It is one whole page that loads nothing, runs nothing and has no control characters."""
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open_elements == []
    assert reader.elements <= set(ALLOWED.split())
    assert not {name for name in reader.attributes if name.startswith("on") or name in ("src", "href", "action")}
    assert "default-src 'none'" in reader.policies[0]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.open_elements: list[str] = []
        self.policies: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag == "meta":
            self.policies += [str(dict(attrs)["content"])] if "http-equiv" in dict(attrs) else []
        else:
            self.open_elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_elements.pop() == tag


def test_a_directory_that_does_not_exist(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    said = cli("export", runs.finished, "--to", "csv", "-o", tmp_path / "no" / "out.csv")
    assert (said.code, said.out) == (2, "")
    assert said.err == f"paceline: The directory {tmp_path / 'no'} does not exist: make it, or name another file.\n"


def test_a_directory_that_is_missing_is_named_and_nothing_else(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    said = cli("export", runs.finished, "--to", "csv", "-o", tmp_path / "nope" / "x.csv")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert ".tmp" not in said.err


def test_the_name_of_the_file_says_the_format(runs: Runs, cli: Cli, tmp_path: Path) -> None:
    for name, beginning in (("x.csv", b"training_iteration"), ("x.parquet", b"PAR1"), ("x.HTML", b"<!")):
        told = json.loads(cli("export", runs.finished, "-o", tmp_path / name, "--json").out)
        assert told["to"] == name[2:].lower()
        assert (tmp_path / name).read_bytes().startswith(beginning)
    for options in ([], ["-o", tmp_path / "x.txt"], ["-o", "-"], ["-o", tmp_path / "csv"]):
        said = cli("export", runs.finished, *options)
        assert (said.code, len(said.err.splitlines())) == (2, 1)
        assert "--to csv, parquet, html, safetensors" in said.err
