"""The other deep learning trainers against each framework's own launcher: steps per second, and start to finish."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.framework_workload import FAILING
from benchmarks.harness import OURS, PEERS, TORCHRUN, Bench, Outcome, alternate
from benchmarks.table import Row, Target

WINDOWS = 15
HOROVODRUN = ("-c", "from horovod.runner.launch import run_commandline; run_commandline()")
ACCELERATE = ("-m", "accelerate.commands.accelerate_cli", "launch")

TWO_PROCESSES = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1")
"""Accelerate's command line starts several processes for GPUs only; ACCELERATE_USE_CPU then says otherwise."""


@dataclass(frozen=True)
class Framework:
    """How a framework is launched without us."""

    name: str
    launcher_name: str
    launcher: tuple[str, ...]
    """Arguments of the interpreter before the worker's script."""
    variables: tuple[tuple[str, str], ...] = (("OMP_NUM_THREADS", "1"), ("ACCELERATE_USE_CPU", "true"))
    """torchrun and accelerate give their workers one thread; horovodrun and Lightning leave two on each core."""


TENSORFLOW = Framework("tensorflow", "TF_CONFIG processes", (str(PEERS / "tf_config_pair.py"),))
# As somebody starts them by hand: each process has a thread for each core, as JAX wants it.
JAX = Framework("jax", "two JAX processes", (str(PEERS / "jax_pair.py"),), variables=())
HOROVOD = Framework(
    "horovod", "horovodrun", (*HOROVODRUN, "-np", "2", "--gloo", "--network-interfaces", "lo", sys.executable)
)
TRANSFORMERS = Framework("transformers", "torchrun + HF Trainer", TORCHRUN)
ACCELERATED = Framework(
    "accelerate",
    "accelerate launch",
    (*ACCELERATE, *TWO_PROCESSES, "--mixed_precision", "no", "--dynamo_backend", "no"),
)
LIGHTNING = Framework("lightning", "Lightning's ddp", ())
ALL = (TENSORFLOW, JAX, HOROVOD, TRANSFORMERS, ACCELERATED, LIGHTNING)


def launchers(bench: Bench) -> Iterator[Row]:
    """All of them, one after the other."""
    for framework in ALL:
        yield from _rows(bench, framework)


def causes(bench: Bench) -> Iterator[Row]:
    """Rank 1 raises while rank 0 is inside a collective operation: until fit() raises with rank 1 as the cause."""
    for name in ("torch", *(framework.name for framework in ALL)):
        runs = [
            bench.run(OURS / "framework_fit.py", name, str(WINDOWS), env={FAILING: "1"})
            for _ in range(bench.repeats(5, 2))
        ]
        seconds = [float(run.data["seconds"]) for run in runs]
        yield Row("-", f"{name}: rank 1 raises to fit() raises", "s", seconds, target=Target("worst", "most", 2.0))


def _rows(bench: Bench, framework: Framework) -> Iterator[Row]:
    alone = dict(framework.variables)
    windows = str(WINDOWS)
    outcomes: dict[str, list[Outcome]] = {"ours": [], "theirs": []}

    def run(side: str) -> float:
        script = OURS / "framework_fit.py" if side == "ours" else PEERS / "framework_worker.py"
        launcher = () if side == "ours" else framework.launcher
        outcome = bench.run(script, framework.name, windows, launcher=launcher, env=alone)
        outcomes[side].append(outcome)
        return outcome.seconds

    seconds = alternate(bench.repeats(5, 2), ours=lambda: run("ours"), theirs=lambda: run("theirs"))
    rates = {side: [float(each.data["rate"]) for each in values] for side, values in outcomes.items()}
    what, peer = f"{framework.name}, 2 workers", framework.launcher_name
    yield Row(
        "-", f"{what}: steps", "1/s", rates["ours"], peer, rates["theirs"], Target("ratio", "least", 0.98), paired=True
    )
    yield Row(
        "-", f"{what}: start to finish", "s", seconds["ours"], peer, seconds["theirs"], Target("ratio", "most", 1.0)
    )
