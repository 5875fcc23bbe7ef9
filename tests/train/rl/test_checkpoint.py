"""Policies from RLlib's checkpoints: they act as RLlib does, without Ray, and only if they are trusted."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from paceline.air import Checkpoint, RunConfig, ScalingConfig, session
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError, DataError
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.rl.checkpoint import RLCheckpoint
from paceline.train.rl.policy import Policy
from tests.air.damage import committed, flip

pytestmark = pytest.mark.rl

MODULE = "learner_group/learner/rl_module/default_policy"


@pytest.fixture(autouse=True)
def no_ray(saved_runs: Path) -> Any:
    """Nothing here may start Ray."""
    yield
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


def policy(saved_runs: Path, name: str, policy_id: str | None = None) -> Policy:
    return RLCheckpoint.from_directory(saved_runs / name / "saved").get_policy(policy_id=policy_id, trust=True)


def seen(saved_runs: Path, name: str) -> tuple[list[Any], list[Any], list[bool]]:
    """What RLlib's own env runner was shown, what it did, and where episodes began."""
    observations, actions, first = zip(*pickle.loads((saved_runs / name / "seen.pkl").read_bytes()), strict=True)
    return list(observations), list(actions), list(first)


def assert_same(actions: Any, expected: list[Any]) -> None:
    if isinstance(actions, dict):
        for name, part in actions.items():
            assert_same(part, [each[name] for each in expected])
    else:
        np.testing.assert_allclose(actions, np.stack(expected), rtol=1e-4, atol=1e-5)


def copied(saved_runs: Path, target: Path, name: str = "cartpole") -> Path:
    shutil.copytree(saved_runs / name / "saved", target)
    return target


# -- acting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "dqn", "filter", "own", "dict", "discrete"])
def test_acts_as_rllib_does(saved_runs: Path, name: str) -> None:
    observations, expected, _ = seen(saved_runs, name)
    found = policy(saved_runs, name)
    assert_same(found.compute_actions(observations), expected)
    one_by_one = [found.compute_single_action(observation) for observation in observations]
    assert all(found.action_space.contains(action) for action in one_by_one)
    assert_same(found.compute_actions(observations), one_by_one)


@pytest.mark.parametrize("name", ["near", "far"])
def test_each_policy_of_several(saved_runs: Path, name: str) -> None:
    observations, expected, _ = seen(saved_runs, "agents")
    actions = policy(saved_runs, "agents", name).compute_actions([each[name] for each in observations])
    assert_same(actions, [each[name] for each in expected])


def test_one_of_several_policies_must_be_named(saved_runs: Path) -> None:
    with pytest.raises(ConfigError, match=r"several policies: far, near\. Choose one with policy_id"):
        policy(saved_runs, "agents")
    with pytest.raises(ConfigError, match="no policy 'fat': did you mean far"):
        policy(saved_runs, "agents", "fat")


def test_continuous_actions_fill_the_action_space(saved_runs: Path) -> None:
    found = policy(saved_runs, "pendulum")
    actions = found.compute_actions(np.zeros((2000, 3)), explore=True)
    assert actions.shape == (2000, 1)
    assert actions.dtype == np.float32
    assert -2.0 <= actions.min() < -1.0  # beyond the network's own [-1, 1]
    assert 1.0 < actions.max() <= 2.0


@pytest.mark.parametrize("name", ["lstm", "filter_lstm"])
def test_a_memory_is_handed_from_step_to_step(saved_runs: Path, name: str) -> None:
    found = policy(saved_runs, name)
    observations, expected, firsts = seen(saved_runs, name)
    state, states = None, []
    for observation, action, first in zip(observations, expected, firsts, strict=True):
        chosen, state = found.compute_single_action(observation, state=None if first else state)
        states.append(state["h"])
        np.testing.assert_allclose(chosen, action, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(states[0], states[1])
    with pytest.raises(ConfigError, match=r"has a memory.*compute_single_action\(obs, state=state\)"):
        found.compute_actions(observations)
    with pytest.raises(ConfigError, match="state must be what"):
        found.compute_single_action(observations[0], state={"x": 1})


def test_state_is_refused_without_a_memory(saved_runs: Path) -> None:
    with pytest.raises(ConfigError, match="has no memory"):
        policy(saved_runs, "cartpole").compute_single_action(np.zeros(4), state={"h": np.zeros(1)})


def test_a_policy_that_looks_back_is_refused(saved_runs: Path) -> None:
    found = policy(saved_runs, "history")
    with pytest.raises(ConfigError, match="PrevActionsPrevRewards looks at earlier steps"):
        found.compute_single_action(np.zeros(4))
    assert found.model is not None


def test_the_filter_uses_what_it_learnt_and_learns_no_more(saved_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = policy(saved_runs, "filter")
    rows = np.stack(seen(saved_runs, "filter")[0])
    filtered: list[Any] = []
    forward = found.model.forward_inference

    def observed(batch: Any) -> Any:
        filtered.append(batch["obs"])
        return forward(batch)

    monkeypatch.setattr(found.model, "forward_inference", observed)
    found.compute_actions(rows)
    found.compute_actions(np.full((500, 4), 1e6))
    found.compute_actions(rows)
    assert not np.allclose(filtered[0], rows, atol=0.1)
    assert np.array_equal(filtered[0], filtered[2])


@pytest.mark.parametrize("name", ["cartpole", "dqn"])
def test_exploring_samples(saved_runs: Path, name: str) -> None:
    found = policy(saved_runs, name)
    rows = np.tile(seen(saved_runs, name)[0][0], (500, 1))
    assert len(set(found.compute_actions(rows))) == 1
    assert set(found.compute_actions(rows, explore=True)) == {0, 1}


def test_large_batches_are_quick(saved_runs: Path) -> None:
    found, rows = policy(saved_runs, "cartpole"), np.random.default_rng(0).normal(size=(4096, 4)).astype(np.float32)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        found.compute_actions(rows)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.05


def test_no_rows_give_no_actions_of_the_right_type(saved_runs: Path) -> None:
    assert policy(saved_runs, "cartpole").compute_actions([]).dtype == np.int64
    actions = policy(saved_runs, "dict").compute_actions({"where": np.zeros((0, 2)), "mode": np.zeros(0)})
    assert policy(saved_runs, "dict").compute_actions([]).keys() == actions.keys()
    assert actions["push"].shape == (0, 2)
    assert actions["turn"].shape == (0,)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("cartpole", np.zeros((2, 3)), r"space Box\(.*\(4,\), float32\), but an array of shape \(2, 3\) was given"),
        ("cartpole", np.zeros(4), r"single observation call compute_single_action\(\)"),
        ("cartpole", [[0, 0, 0, "x"]], r"Box\(.*but an array of type <U"),
        ("cartpole", [[0, 0, 0], [0, 0, 0, 0]], r"Box\("),
        ("cartpole", [[0, 0, 0, float("nan")]], "missing values"),
        ("cartpole", None, r"Box\("),
        ("discrete", [0, 5], r"space Discrete\(5\), but some of the given values are out of its range"),
        ("discrete", [0.5], "do not fit int64"),
        ("dict", np.zeros((2, 3)), r"space Dict\("),
        ("dict", {"where": np.zeros((1, 2))}, r"Dict\(.*\['where'\] were given"),
        ("dict", {"where": np.zeros((1, 3)), "mode": [0]}, r"observation \['where'\] is Box\("),
        ("dict", {"where": np.zeros((1, 2)), "mode": [0, 1]}, r"its parts differ in their rows: \{.*\}"),
    ],
)
def test_observations_that_do_not_fit(saved_runs: Path, name: str, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        policy(saved_runs, name).compute_actions(rows)


def test_a_single_observation_that_does_not_fit(saved_runs: Path) -> None:
    with pytest.raises(DataError, match=r"Box\(.*an observation of shape \(1, 4\) was given"):
        policy(saved_runs, "cartpole").compute_single_action(np.zeros((1, 4)))


# -- reading --------------------------------------------------------------------------------


def test_the_model_is_the_trained_network(saved_runs: Path) -> None:
    import torch

    checkpoint = RLCheckpoint.from_directory(saved_runs / "cartpole" / "saved")
    model = checkpoint.get_model(trust=True)
    stored = pickle.loads((saved_runs / "cartpole" / "saved" / MODULE / "module_state.pkl").read_bytes())
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    for name, values in model.state_dict().items():
        assert np.array_equal(values, stored[name])
    assert checkpoint.get_policy("CartPole-v1", trust=True).action_space.n == 2  # where the environment was given


def test_every_form_gives_the_same_policy(saved_runs: Path) -> None:
    checkpoint = RLCheckpoint.from_directory(saved_runs / "filter" / "saved")
    observations, expected, _ = seen(saved_runs, "filter")
    packed = Checkpoint.from_bytes(checkpoint.to_bytes())
    remote = Checkpoint.from_uri(checkpoint.to_uri(f"memory://{uuid.uuid4().hex}"))
    items = RLCheckpoint.from_checkpoint(Checkpoint.from_dict(checkpoint.to_dict()))
    for each in (packed, remote, items):
        assert isinstance(each, RLCheckpoint)
        assert_same(each.get_policy(trust=True).compute_actions(observations), expected)


@pytest.mark.parametrize("place", [".", "eval_env_runner", None])
def test_connectors_may_be_elsewhere_or_missing(saved_runs: Path, tmp_path: Path, place: str | None) -> None:
    """An algorithm that learns from stored data, or has no env runner of its own, stores them so."""
    folder = copied(saved_runs, tmp_path / "copy", "pendulum")
    if place is not None:
        for name in ("env_to_module_connector", "module_to_env_connector"):
            (folder / place).mkdir(exist_ok=True)
            (folder / "env_runner" / name).rename(folder / place / name)
    shutil.rmtree(folder / "env_runner")
    observations, expected, _ = seen(saved_runs, "pendulum")
    found = RLCheckpoint.from_directory(folder).get_policy(trust=True)
    assert_same(found.compute_actions(observations), expected)


def test_a_run_gives_back_what_was_reported(saved_runs: Path) -> None:
    def loop(config: dict[str, str]) -> None:
        session.report({"x": 1}, checkpoint=RLCheckpoint.from_directory(config["folder"]))

    result = DataParallelTrainer(
        loop,
        train_loop_config={"folder": str(saved_runs / "cartpole" / "saved")},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run"),
    ).fit()
    assert isinstance(result.checkpoint, RLCheckpoint)
    observations, expected, _ = seen(saved_runs, "cartpole")
    assert_same(result.checkpoint.get_policy(trust=True).compute_actions(observations), expected)


# -- trust ----------------------------------------------------------------------------------


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_without_trust(saved_runs: Path, tmp_path: Path) -> None:
    folder = copied(saved_runs, tmp_path / "copy")
    for file in folder.rglob("*.pkl"):
        file.write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    checkpoint = RLCheckpoint.from_directory(folder)
    for read in (checkpoint.get_policy, checkpoint.get_model):
        with pytest.raises(CheckpointError, match=r"pickles \(algorithm_state\.pkl, .* 13 more\).*trust=True"):
            read()
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        checkpoint.get_policy(trust=True)
    assert (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match=r"trust is \['a.Type'\]"):
        checkpoint.get_policy(trust=["a.Type"])  # type: ignore[arg-type]


def test_what_was_trained_here_is_trusted(saved_runs: Path) -> None:
    checkpoint = RLCheckpoint.from_directory(saved_runs / "cartpole" / "saved")
    checkpoint.made_here = True
    RLCheckpoint.from_checkpoint(checkpoint).get_policy()
    with pytest.raises(CheckpointError, match="is not loaded"):
        RLCheckpoint.from_directory(saved_runs / "cartpole" / "saved").get_policy()


def test_refusing_needs_neither_ray_nor_torch(saved_runs: Path) -> None:
    script = (
        "import sys\n"
        "from paceline.train.rl.checkpoint import RLCheckpoint\n"
        f"try: RLCheckpoint.from_directory({str(saved_runs / 'cartpole' / 'saved')!r}).get_policy()\n"
        "except Exception as error: print(type(error).__name__, {'ray', 'torch', 'gymnasium'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "CheckpointError set()", done.stderr


# -- what is not a checkpoint ---------------------------------------------------------------


def test_another_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no policy")
    with pytest.raises(CheckpointError, match=r"is not an RLlib checkpoint: it has no file rllib_checkpoint\.json"):
        RLCheckpoint.from_directory(tmp_path).get_policy()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"is damaged: rllib_checkpoint\.json cannot be read"),
        ("[]", r"is damaged: rllib_checkpoint\.json cannot be read"),
        (
            '{"checkpoint_version": "1.1", "ray_version": "2.6.3"}',
            r"old API stack \(checkpoint format 1\.1, Ray 2\.6\.3\)",
        ),
        (
            '{"checkpoint_version": "3.0", "ray_version": "9.0"}',
            r"format 3\.0, written by Ray 9\.0.*install the version",
        ),
        ('{"checkpoint_version": "2.1"}', "there is no policy in learner_group/learner/rl_module"),
    ],
)
def test_a_directory_that_cannot_be_read(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rllib_checkpoint.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        RLCheckpoint.from_directory(tmp_path).get_policy(trust=True)


@pytest.mark.parametrize("file", [f"{MODULE}/module_state.pkl", f"{MODULE}/class_and_ctor_args.pkl"])
def test_a_damaged_file_is_named(saved_runs: Path, tmp_path: Path, file: str) -> None:
    folder = copied(saved_runs, tmp_path / "copy")
    (folder / file).write_bytes((folder / file).read_bytes()[:100])
    info = json.loads((folder / "rllib_checkpoint.json").read_text())
    (folder / "rllib_checkpoint.json").write_text(json.dumps({**info, "ray_version": "2.99.0"}))
    with pytest.raises(
        CheckpointError, match=rf"cannot be loaded: {re.escape(MODULE)}.*damaged.*Ray 2\.99\.0 wrote it"
    ):
        RLCheckpoint.from_directory(folder).get_policy(trust=True)


def test_a_policy_of_missing_code_is_not_replaced_by_another(saved_runs: Path, tmp_path: Path) -> None:
    """RLlib itself would take its base class then, and only log it."""
    folder = copied(saved_runs, tmp_path / "copy")
    place = folder / "env_runner" / "env_to_module_connector" / "class_and_ctor_args.pkl"
    place.write_bytes(place.read_bytes().replace(b"add_observations_from", b"add_observatiens_from"))
    with pytest.raises(CheckpointError, match=r"ModuleNotFoundError.*needs modules that are not installed"):
        RLCheckpoint.from_directory(folder).get_policy(trust=True)


def test_a_committed_checkpoint_is_verified(saved_runs: Path, tmp_path: Path) -> None:
    folder = committed(RLCheckpoint.from_directory(saved_runs / "cartpole" / "saved"), tmp_path / "stored")
    flip(Path(folder, MODULE, "module_state.pkl"))
    with pytest.raises(CheckpointCorruptError):
        RLCheckpoint.from_directory(folder).get_policy(trust=True)
