"""Rows 8-10 and the growth of a search: trials per second, results per second, and what the 10,000th trial costs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, PEERS, Bench, MeasureError, alternate
from benchmarks.table import Row, Target, show, spread

RAY_V1 = {"RAY_TRAIN_V2_ENABLED": "0"}
"""The faster of Ray's two generations where a search runs a trainer."""
MINUTES = 900.0


def _data(bench: Bench, script: Path, *arguments: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What the script found. It does not count unless every trial gave its result."""
    with bench.start(script, *map(str, arguments), env=env) as running:
        data = running.finish(MINUTES).data
    if not data["complete"]:
        raise MeasureError(f"{script.name} {' '.join(map(str, arguments))}: some results did not arrive")
    return data


def _rate(bench: Bench, script: Path, *arguments: object, env: dict[str, str] | None = None) -> float:
    return float(_data(bench, script, *arguments, env=env)["rate"])


def _spread(values: list[float]) -> str:
    return f"spread {spread(values)}" if len(values) > 1 else "one value"


def noop_trials(bench: Bench) -> Iterator[Row]:
    """100 functions that report once, 2 at a time: against Ray's processes, and against Optuna, which starts none."""
    trials = 100
    values = alternate(
        bench.repeats(5, 2),
        ours=lambda: _rate(bench, OURS / "tune_trials.py", "noop", trials),
        tpe=lambda: _rate(bench, PEERS / "optuna_trials.py", "tpe", trials),
        ours_tpe=lambda: _rate(bench, OURS / "tune_trials.py", "noop-optuna", trials),
        random=lambda: _rate(bench, PEERS / "optuna_trials.py", "random", trials),
    )
    ours, ours_tpe, tpe = values["ours"], values["ours_tpe"], values["tpe"]
    what, note = "no-op trials, 2 at a time", _spread(ours)
    if bench.has_ray:
        theirs = [_rate(bench, PEERS / "ray_tune_trials.py", "noop", bench.repeats(trials, 6), env=RAY_V1)]
        yield Row("8", what, "1/s", ours, "Ray Tune", theirs, Target("ratio", "least", 100), "0.65/s", note)
    alone = "Optuna in its own process"
    yield Row("8", what, "1/s", ours, alone, tpe, Target("ratio", "least", 0.2), "433/s", f"{note}; its default, TPE")
    note_tpe = f"{_spread(ours_tpe)}; TPE on both sides"
    yield Row("8", f"{what}, OptunaSearch", "1/s", ours_tpe, alone, tpe, note=note_tpe)
    yield Row("8", what, "1/s", ours, alone, values["random"], note=f"{note}; random search on both sides")


def torch_trials(bench: Bench) -> Iterator[Row]:
    """20 TorchTrainers of one worker, 2 at a time."""
    ours = [_rate(bench, OURS / "tune_trials.py", "torch", 20) for _ in range(bench.repeats(5, 2))]
    theirs = []
    if bench.has_ray:
        theirs = [_rate(bench, PEERS / "ray_tune_trials.py", "torch", bench.repeats(20, 2), env=RAY_V1)]
    target, note = Target("ratio", "least", 50), _spread(ours)
    yield Row("9", "TorchTrainer trials, 2 at a time", "1/s", ours, "Ray V1 in Tune", theirs, target, "0.15/s", note)


def results(bench: Bench) -> Iterator[Row]:
    """4 trials that report as fast as they can, default logging on."""
    reports = bench.repeats(20_000, 5_000)
    ours = [_rate(bench, OURS / "tune_results.py", 4, reports) for _ in range(bench.repeats(3))]
    theirs = []
    if bench.has_ray:
        theirs = [_rate(bench, PEERS / "ray_tune_results.py", 4, bench.repeats(1000, 300), env=RAY_V1)]
    target, note = Target("figure", "least", 5_000), _spread(ours)
    yield Row("10", "results of 4 trials at once", "1/s", ours, "Ray Tune", theirs, target, "271/s", note)


@functools.cache
def _many(bench: Bench) -> dict[str, Any]:
    """Kept, because it takes minutes and two measures need it."""
    return _data(bench, OURS / "tune_many.py", _trials(bench))


def _trials(bench: Bench) -> int:
    return bench.repeats(10_000, 1_000)


def many_trials(bench: Bench) -> Iterator[Row]:
    """10,000 trials of one report: what each costs the driver, early and late."""
    data, trials = _many(bench), _trials(bench)
    note = f"event loop's CPU time in paceline.tune; the driver's whole CPU time is {show(data['cpu'], 's')} per trial"
    most = Target("figure", "most", 0.001)
    yield Row("G3", f"bookkeeping per trial of {trials:,}", "s", [data["bookkeeping"]], target=most, note=note)
    flat = Target("ratio", "most", 1.2)
    for what, key in (("bookkeeping per trial, last tenth", "kept"), ("time per trial, last tenth", "trial")):
        late, early = [data[key]["late"]], [data[key]["early"]]
        yield Row("G3", what, "s", late, f"the tenth after {trials // 20:,}", early, flat)
    before, after = data["memory"]
    what, note = "driver memory gained over the trials", f"from {before:.0f} MB after trial {trials // 20:,}"
    yield Row("G3", what, "MB", [max(0.0, after - before)], target=Target("figure", "most", 200), note=note)


def restore(bench: Bench) -> Iterator[Row]:
    """The same experiment taken up by a fresh driver for two trials more."""
    data = _many(bench)["restored"]
    if not data["complete"]:
        raise MeasureError("the restored experiment lost results")
    what = f"restore of {_trials(bench):,} trials"
    yield Row("G3", what, "s", [data["seconds"]], note="Tuner.restore(), replay and two new trials, cold")
