"""``paceline doctor --model``: what is asked for, what is printed, and what is said if it cannot be estimated."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  (sets variables when it is imported, which no test shall be blamed for)

from tests.cli.conftest import Cli

MODELS = """
import torch
from torch import nn

from sizes_beside_it import WIDTH

print("importing")


class Net(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))


class Deep:
    @staticmethod
    def build():
        return Net(4)


def build():
    print("building")
    return Net()


def huge():
    return Net(1_000_000).to("cpu")


def with_optimizer():
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def real():
    return Net(int(torch.tensor(8).item()))


def picky():
    if torch.empty(1).is_meta:
        raise OSError("not today")
    return Net()


def with_argument(config):
    return Net()


def broken():
    return Net(width=1 / 0)


def leaves():
    raise SystemExit(3)


def a_dict():
    return {}


model = Net()
number = 3
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file with models, in the current directory; what it leaves in this process is removed."""
    (tmp_path / "models_of_test.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "sizes_beside_it.py").write_text("WIDTH = 8\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "models_of_test.py"
    for name in ("models_of_test", "sizes_beside_it", "misses_something"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["build", "Net", "model", "Deep.build", "with_optimizer", "real", "picky"])
def test_functions_classes_and_models(name: str, models: Path, cli: Cli) -> None:
    said = cli("doctor", "--model", f"models_of_test:{name}", "--json", "--world-sizes", "1,2")
    assert said.code == 0, said
    found = json.loads(said.out)
    width = 4 if name == "Deep.build" else 8
    assert found["parameters"] == 2 * (width * width + width)
    assert found["optimizer"] == ("SGD" if name == "with_optimizer" else "AdamW")
    assert [(each["strategy"], each["world_size"]) for each in found["ranks"]] == [
        *(("ddp", 1), ("ddp", 2), ("fsdp2", 1), ("fsdp2", 2))
    ]
    first = found["ranks"][0]
    assert first["total"] == first["parameters"] + first["gradients"] + first["optimizer"]
    assert ("needs real tensors" in said.err) == (name in ("real", "picky"))


def test_a_model_larger_than_the_machine_from_a_file(models: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = models.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = cli("doctor", "--model", f"{models}:huge", "--memory", "80GB", "--dtype", "bf16", "--optimizer", "sgd")
    assert (said.code, said.err) == (0, "importing\n")
    lines = said.out.splitlines()
    assert lines[0] == "Net: 2,000,002,000,000 parameters, SGD"
    assert " ".join(lines[1].split()) == "STRATEGY WORKERS PARAMETERS GRADIENTS WORKING TOTAL MEMORY HEADROOM FITS"
    assert lines[2].split() == ["ddp", "1", "4.0", "TB", "4.0", "TB", "8.0", "TB", "80", "GB", "-7.9", "TB", "no"]
    assert lines[-1].startswith("Does not fit with more workers either: a worker has 80 GB")


def test_options_change_the_estimate(models: Path, cli: Cli) -> None:
    def totals(*options: str) -> list[int]:
        said = cli("doctor", "--model", "models_of_test:build", "--world-sizes", "2", "--json", *options)
        return [each["total"] for each in json.loads(said.out)["ranks"]]

    plain = totals()
    assert totals("--optimizer", "sgd")[0] < plain[0]
    assert totals("--dtype", "bf16")[0] < plain[0]
    assert totals("--mixed-precision", "bf16")[0] > plain[0]
    assert totals("--gradient-as-bucket-view")[0] < plain[0]
    assert totals("--layers", "none")[1] > plain[1]
    assert totals("--layers", "Linear") == plain
    said = cli("doctor", "--model", "models_of_test:build", "--format", "csv")
    assert said.out.startswith("strategy,world_size,parameters,buffers,gradients,optimizer,working,total,memory,")
    assert len(said.out.splitlines()) == 9


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--model", "models_of_test"], 2, "module:function"),
        (["--model", "no_such_module:build"], 2, "there is no module no_such_module"),
        (["--model", "no_such_file.py:build"], 2, "there is no file no_such_file.py"),
        (["--model", "models_of_test:nothing"], 2, "has no nothing"),
        (["--model", "models_of_test:with_argument"], 2, "needs arguments (missing a required argument: 'config')"),
        (["--model", "models_of_test:a_dict"], 2, "returned a dict"),
        (["--model", "models_of_test:number"], 2, "is a int: name a function"),
        (["--model", "models_of_test:leaves"], 1, "raised SystemExit: 3"),
        (["--model", "models_of_test:broken"], 1, "raised ZeroDivisionError: division by zero (models_of_test.py:"),
        (["--model", "fails_at_import:build"], 1, "importing fails_at_import failed: NameError"),
        (["--model", "misses_something:build"], 1, "No module named 'something_else'"),
        (["--model", "models_of_test:build", "--optimizer", "adamv"], 2, "--optimizer 'adamv': choose one of"),
        (["--model", "models_of_test:build", "--memory", "much"], 2, "--memory 'much': "),
        (["--model", "models_of_test:build", "--world-sizes", "two"], 2, "--world-sizes two"),
        (["--model", "models_of_test:build", "--world-sizes", "0"], 2, "--world-sizes [0]"),
        (["--model", "models_of_test:build", "--mixed-precision", "int2"], 2, "--mixed-precision 'int2'"),
        (["--model", "models_of_test:build", "--fix"], 2, "one of them"),
        (["--memory", "24GiB"], 2, "--model module:function"),
    ],
)
def test_errors_are_one_sentence(options: list[str], code: int, words: str, models: Path, cli: Cli) -> None:
    (models.parent / "fails_at_import.py").write_text("undefined\n", encoding="utf-8")
    (models.parent / "misses_something.py").write_text("import something_else\n", encoding="utf-8")
    said = cli("doctor", *options)
    assert (said.code, said.out) == (code, ""), said
    errors = [line for line in said.err.splitlines() if line not in ("importing", "building")]
    assert len(errors) == 1
    assert words in errors[0]


def test_torch_is_imported_only_for_a_model() -> None:
    code = (
        "import sys\nfrom paceline.cli.main import main\n"
        "try:\n main(['doctor', '--help'])\nexcept SystemExit: pass\n"
        "main(['doctor', '--memory', '3'])\n"
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines()[-1] == "[]"
