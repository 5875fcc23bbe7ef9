"""How large and how tangled the package is: `python tools/metrics.py [FOLDER]`, where FOLDER holds a `paceline`.

Two kinds of figures. Some are read from the source: files, lines, classes, attributes. The others come from walks: a
small program is run with a profile function, which notes every file of the package in which a function was called.
Each walk runs once before it is measured, so that imports do not count. Nothing here judges; compare two folders:

    git worktree add ../before <commit>
    python tools/metrics.py ../before && python tools/metrics.py
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CENTRAL_CLASSES = ("Run", "ReportFlow", "Experiment")
LONGEST = 5


# -- figures from the source ------------------------------------------------------------------


def source_figures(package: Path) -> dict[str, Any]:
    texts = {str(path.relative_to(package.parent)): path.read_text() for path in sorted(package.rglob("*.py"))}
    lines = {name: text.count("\n") for name, text in texts.items()}
    classes = {f"{name}: {node.name}": node for name, text in texts.items() for node in classes_of(text)}
    extents = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in classes.items()}
    code = "\n".join(texts.values())
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "median lines of a file": statistics.median(lines.values()),
        "files over 400 lines": sum(count > 400 for count in lines.values()),
        "classes over 300 lines": sum(count > 300 for count in extents.values()),
        "uses of Any": len(re.findall(r"\bAny\b", code)),
        "uses of global": len(re.findall(r"^\s+global ", code, re.MULTILINE)),
        "files of at most 70 lines that one other file imports": len(thin_files(package, texts, lines)),
        "class names defined in several files": " ".join(repeated_names(classes)) or "-",
        "longest files": longest(lines),
        "longest classes": longest(extents),
        "attributes": {
            name: max((attributes(node) for node in classes.values() if node.name == name), default=0)
            for name in CENTRAL_CLASSES
        },
    }


def classes_of(text: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))


def longest(extents: dict[str, int]) -> dict[str, int]:
    return dict(Counter(extents).most_common(LONGEST))


def repeated_names(classes: dict[str, ast.ClassDef]) -> list[str]:
    counts = Counter(node.name for node in classes.values())
    return sorted(f"{name}({count})" for name, count in counts.items() if count > 1)


def attributes(node: ast.ClassDef) -> int:
    """How many attributes instances have: fields of the class body, and what methods assign to self."""
    fields = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    assigned = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    return len(fields | assigned)


def thin_files(package: Path, texts: dict[str, str], lines: dict[str, int]) -> list[str]:
    importers: Counter[str] = Counter()
    for name, text in texts.items():
        importers.update(imported_modules(text) - {module_of(name)})
    return [
        name
        for name, count in lines.items()
        if count <= 70 and not name.endswith("__init__.py") and importers[module_of(name)] == 1
    ]


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_modules(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


# -- walks ------------------------------------------------------------------------------------


def fit(engine: str) -> None:
    from paceline.air import RunConfig, ScalingConfig, session
    from paceline.train.data_parallel_trainer import DataParallelTrainer

    def loop() -> None:
        session.report({"loss": 2.0})
        session.report({"loss": 1.0})

    config = RunConfig(engine=engine, verbose=0, storage_path=tempfile.mkdtemp())
    DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()


def tuner_fit() -> None:
    from paceline import tune
    from paceline.air import RunConfig, session

    def trial(config: dict[str, float]) -> None:
        session.report({"loss": config["x"]})
        session.report({"loss": config["x"] / 2})

    tune.Tuner(
        trial,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            num_samples=2, metric="loss", mode="min", scheduler=tune.schedulers.ASHAScheduler(max_t=4)
        ),
        run_config=RunConfig(engine="inline", verbose=0, storage_path=tempfile.mkdtemp()),
    ).fit()


def parquet_to_batch() -> None:
    import pyarrow
    import pyarrow.parquet

    import paceline.data

    path = os.path.join(tempfile.mkdtemp(), "rows.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"x": list(range(100))}), path)
    for _ in paceline.data.read_parquet(path).iter_torch_batches(batch_size=50):
        pass


WALKS: dict[str, Callable[[], None]] = {
    "fit(), inline": lambda: fit("inline"),
    "fit(), local: driver, warden and worker": lambda: fit("local"),
    "Tuner.fit(), 2 trials, ASHA, inline": tuner_fit,
    "a Parquet row to a torch batch": parquet_to_batch,
}

NOTE_FILES = """
import os, sys, threading
_seen, _target = set(), os.environ.get("METRICS_TRACE")
def note_files(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and code.co_filename not in _seen:
        _seen.add(code.co_filename)
        if "/paceline/" in code.co_filename and os.path.exists(_target + ".on"):
            with open(_target, "a") as file:
                file.write(code.co_filename + chr(10))
        elif "/paceline/" in code.co_filename:
            _seen.discard(code.co_filename)
if _target:
    sys.setprofile(note_files)
    threading.setprofile(note_files)
"""
"""Every process of a walk runs this before anything else. What happens before the file `.on` exists is preparation."""


def walk(folder: Path, name: str) -> list[str]:
    """The files of the package that are entered, by all processes of the walk."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "sitecustomize.py").write_text(NOTE_FILES)
        target = Path(scratch) / "entered"
        target.touch()
        environment = {
            **os.environ,
            "PYTHONPATH": f"{scratch}:{folder}",
            "METRICS_TRACE": str(target),
            "TMPDIR": scratch,
            "XDG_RUNTIME_DIR": scratch,
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--walk", name]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd=scratch)
        return sorted({os.path.relpath(line, folder) for line in target.read_text().splitlines()})


def walk_here(name: str) -> None:
    """Twice: the first time loads what is needed. Threads of the first time have ended."""
    WALKS[name]()
    Path(os.environ["METRICS_TRACE"] + ".on").touch()
    WALKS[name]()


# -- output -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=inspect.cleandoc(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--json", action="store_true", help="everything, with the names of the entered files")
    parser.add_argument("--no-walks", action="store_true", help="only what is read from the source")
    parser.add_argument("--walk", choices=WALKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.walk:
        walk_here(options.walk)
        return
    folder = options.folder.resolve()
    figures = source_figures(folder / "paceline")
    entered = {} if options.no_walks else {name: walk(folder, name) for name in WALKS}
    if options.json:
        print(json.dumps({**figures, "entered": entered}, indent=1))
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count}" for key, count in value.items())
        print(f"{name}: {value}")
    for name, files in entered.items():
        print(f"files entered by {name}: {len(files)}")


if __name__ == "__main__":
    main()
