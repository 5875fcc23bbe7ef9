"""Programs that say `import ray`, run unchanged: here, in workers, and in whatever else they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RAY_ITSELF = """
__version__ = "1.2.3"
"""

HELPERS = """
import ray
from ray import tune
from ray.air import session


def loop(config):
    import ray.train as rt

    for step in range(2):
        session.report({"rank": rt.get_context().get_world_rank(), "same": ray.train is rt, "lr": config["lr"]})


def objective(config):
    tune.report({"score": config["x"] * 2})


def name_of_ray(_=None):
    return ray.__name__


class Doubles:
    def __call__(self, batch):
        return {"x": batch["x"] * 2, "version": [ray.__version__] * len(batch["x"])}
"""

PROGRAM = """
import multiprocessing
import subprocess
import sys

import helpers
import ray
from ray import air, train, tune
from ray.air.config import RunConfig, ScalingConfig
from ray.train.data_parallel_trainer import DataParallelTrainer


def main():
    import paceline

    assert ray.train is train is paceline.train is sys.modules["ray.train"]
    assert ray.air.ScalingConfig is ScalingConfig is paceline.air.ScalingConfig

    assert not ray.is_initialized()
    ray.init(num_cpus=2)
    assert ray.is_initialized()

    def loop(config):
        helpers.loop(config)  # pickled by reference to its module, this function by value
        ray.train.report({"same": ray.train is sys.modules["paceline.train"]})

    trainer = DataParallelTrainer(
        loop, train_loop_config={"lr": 0.1}, scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    )
    print("fit", trainer.fit().metrics["same"])

    tuner = tune.Tuner(
        helpers.objective, param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="score", mode="max"), run_config=air.RunConfig(verbose=0),
    )
    print("tune", tuner.fit().get_best_result().metrics["score"])

    dataset = ray.data.from_items([{"x": value} for value in range(4)])
    doubled = dataset.map_batches(helpers.Doubles, compute=ray.data.ActorPoolStrategy(size=2))
    print("data", [(row["x"], row["version"]) for row in doubled.take_all()])

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawn", pool.map(helpers.name_of_ray, [0]))
    code = "import ray; print('subprocess', ray.__name__)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    ray.shutdown()


if __name__ == "__main__":
    main()
"""

PRINTED = """\
fit True
tune 4
data [(0, '2.7.0'), (2, '2.7.0'), (4, '2.7.0'), (6, '2.7.0')]
spawn ['paceline.ray']
subprocess paceline.ray
"""


def python(folder: Path, *arguments: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)])), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture
def real_ray(tmp_path: Path) -> str:
    """A folder for PYTHONPATH with a package called ray that is not ours, as if Ray were installed."""
    package = tmp_path / "site" / "ray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(RAY_ITSELF)
    return str(package.parent)


def test_an_unchanged_program_runs_everywhere_on_paceline(tmp_path: Path, real_ray: str) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = python(tmp_path, "-m", "paceline.ray", "program.py", path=real_ray)
    assert (done.stdout, done.stderr, done.returncode) == (PRINTED, "", 0)


@pytest.mark.slow
def test_the_same_with_install_at_the_top_of_the_program(tmp_path: Path, real_ray: str) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "program.py").write_text("import paceline.ray\npaceline.ray.install()\n" + PROGRAM)
    done = python(tmp_path, "program.py", path=real_ray)
    assert (done.stdout, done.stderr, done.returncode) == (PRINTED, "", 0)


def test_without_the_alias_ray_is_ray(tmp_path: Path, real_ray: str) -> None:
    done = python(tmp_path, "-c", "import paceline, ray; print(ray.__version__)", path=real_ray)
    assert done.stdout == "1.2.3\n"


ENVIRONMENT = """
import sys

def broken():
    raise ValueError("as plain")

print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0], sys.flags.optimize)
if "fail" in sys.argv:
    broken()
sys.exit(7)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["script.py", "a", "-b"],
        ["script.py", "fail"],
        ["-m", "package.module", "-m"],
        ["-O", "script.py"],
        ["-c", "1/0"],
    ],
)
def test_everything_else_is_as_with_plain_python(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ENVIRONMENT)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("value = 1\n")
    (tmp_path / "package" / "module.py").write_text("from . import value\n" + ENVIRONMENT)
    plain = python(tmp_path, *arguments)
    aliased = python(tmp_path, "-m", "paceline.ray", *arguments)
    assert (aliased.stdout, aliased.stderr, aliased.returncode) == (plain.stdout, plain.stderr, plain.returncode)


@pytest.mark.parametrize(
    "options", [["-Om", "paceline.ray"], ["-O", "-mpaceline.ray"], ["-X", "utf8", "-Ompaceline.ray"]]
)
def test_options_of_the_interpreter_are_kept(options: list[str], tmp_path: Path) -> None:
    code = "import sys, ray; print(ray.__name__, sys.flags.optimize, sys.flags.utf8_mode)"
    done = python(tmp_path, *options, "-c", code, PYTHONUTF8="0")
    assert done.stdout == f"paceline.ray 1 {int('utf8' in options)}\n"


def test_an_interpreter_that_ignores_pythonpath_is_told_apart(tmp_path: Path) -> None:
    code = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("paceline.ray", run_name="__main__")
"""
    done = python(tmp_path, "-I", "-c", code, str(ROOT), "script.py")
    assert done.returncode == 1
    assert "PYTHONPATH" in done.stderr
    assert "install()" in done.stderr


def test_a_debugger_outside_is_told_where_to_go(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    done = python(tmp_path, "-m", "cProfile", "-m", "paceline.ray", "script.py")
    assert "python -m paceline.ray -m pdb" in done.stderr


def test_install_and_uninstall(tmp_path: Path, real_ray: str) -> None:
    code = """
import os, sys
before = [*sys.path], os.environ["PYTHONPATH"]
import paceline.ray
paceline.ray.install()
paceline.ray.install()
import ray, ray.train.torch
assert ray is paceline.ray and ray.train.torch is paceline.train.torch
held = ray.train
paceline.ray.uninstall()
assert ([*sys.path], os.environ["PYTHONPATH"]) == before
assert not any(name.partition(".")[0] == "ray" for name in sys.modules)
import ray
print(ray.__version__, held is paceline.train)
try:
    paceline.ray.install()
except paceline.air.errors.ConfigError as error:
    print(error)
"""
    done = python(tmp_path, "-c", code, path=real_ray)
    assert done.stderr == ""
    version, message = done.stdout.splitlines()
    assert version == "1.2.3 True"
    assert "already imported" in message


def test_an_interpreter_without_paceline_gets_its_own_ray(tmp_path: Path, real_ray: str) -> None:
    shim = python(tmp_path, "-c", "from paceline.compat.ray_alias import SHIM; print(SHIM)").stdout.strip()
    hidden = tmp_path / "hidden"
    (hidden / "paceline").mkdir(parents=True)
    (hidden / "paceline" / "__init__.py").write_text("raise ModuleNotFoundError(name='paceline')")
    paths = os.pathsep.join([shim, str(hidden), real_ray])
    done = python(tmp_path, "-c", "import ray; print(ray.__version__)", path=paths)
    assert (done.stdout, done.stderr) == ("1.2.3\n", "")


def test_the_ipython_extension(tmp_path: Path) -> None:
    code = """
import importlib
extension = importlib.import_module("paceline.ray")  # what %load_ext does
extension.load_ipython_extension(object())
import ray
print(ray.__name__)
extension.unload_ipython_extension(object())
import importlib.util
print(importlib.util.find_spec("ray"))
"""
    done = python(tmp_path, "-c", code)
    assert done.stdout.splitlines()[0] == "paceline.ray", done.stderr


def test_what_needs_ray_itself_is_rejected(tmp_path: Path) -> None:
    code = """
import ray
from paceline.air import ScalingConfig
try:
    import ray.train.rl
except ImportError as error:
    print(error)
try:
    ray.init(engine="ray")
except Exception as error:
    print(error)
"""
    done = python(tmp_path, "-m", "paceline.ray", "-c", code)
    trainer, engine = done.stdout.splitlines()
    assert "paceline.train.rl needs the real Ray" in trainer
    assert "engine 'ray' needs the real Ray" in engine
    assert "paceline port" in trainer
    assert "paceline port" in engine


def test_a_cluster_is_ignored_with_one_warning(tmp_path: Path) -> None:
    code = """
import ray
from ray.train import DataParallelTrainer, RunConfig, ScalingConfig
ray.init("auto", namespace="mine", runtime_env={})
trainer = DataParallelTrainer(
    lambda: None, scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(verbose=0)
)
trainer.fit()
"""
    variables = {"RAY_ADDRESS": "10.0.0.1:6379", "PACELINE_ENGINE": "inline", "PACELINE_RESULTS_DIR": str(tmp_path)}
    done = python(tmp_path, "-m", "paceline.ray", "-c", code, **variables)
    warning = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert len([line for line in warning if "Warning" in line]) == 1
    assert "address, namespace, runtime_env, RAY_ADDRESS" in warning[0]
