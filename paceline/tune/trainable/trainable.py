"""Trainable: the class API of a trial, and how such a class runs in its worker.

It also works by itself: `t = MyTrainable(config); t.train()`.
"""

from __future__ import annotations

import copy
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session as session_slot
from paceline.air.constants import ADDED_BY_TO_DICT, DONE
from paceline.air.errors import ConfigError, MetricError, RestoreError, StopTraining
from paceline.storage.run_dir import default_storage_root, experiment_dir_name

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.resources import PlacementGroupFactory
    from paceline.air.session import SessionProtocol
    from paceline.run.history import RowFiller

_NOTE = "trainable"
"""Among the notes of a checkpoint: what was saved, and at which iteration."""


class Trainable:
    """Derive from it, and define `setup` and `step`; `save_checkpoint` and `load_checkpoint` to be able to continue.

        class Quadratic(tune.Trainable):
            def setup(self, config):
                self.x = config["x"]

            def step(self):
                self.x *= 0.9
                return {"score": self.x**2}

            def save_checkpoint(self, checkpoint_dir):
                return {"x": self.x}

            def load_checkpoint(self, checkpoint):
                self.x = checkpoint["x"]

    A trial calls `step` until it is stopped, or until a result says {"done": True}.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config: dict[str, Any] = dict(config or {})
        self._iteration = 0
        self._time_s = 0.0
        """Spent in step(), in this object and those before it that it was restored from."""
        self._filler: RowFiller | None = None
        self._own_logdir: str | None = None
        self.setup(copy.deepcopy(self.config))

    # -- what a subclass defines ----------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare; called once, before everything else."""

    def step(self) -> dict[str, Any]:
        """One iteration; gives its metrics."""
        raise NotImplementedError(f"{type(self).__name__} must define step().")

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        """Write the state into the directory, or return it as a dict.

        `load_checkpoint` gets back what this returns: the dict, or the path of a file or directory in
        `checkpoint_dir`. None stands for `checkpoint_dir` itself.
        """
        raise NotImplementedError(
            f"{type(self).__name__} was to be saved, but defines no save_checkpoint(self, checkpoint_dir)."
        )

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Take up the state of `save_checkpoint`: the dict or the path that it returned, else the directory's path."""
        raise NotImplementedError(
            f"{type(self).__name__} was to continue from a checkpoint, but defines no load_checkpoint(self, "
            "checkpoint)."
        )

    def cleanup(self) -> None:
        """Give back what `setup` took; called once, at the end, however it came about."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up another configuration without being made anew; True if that was done."""
        return False

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | Mapping[str, float] | None:
        """What a trial with this configuration needs, also as a dict such as {"CPU": 2}; None: one CPU."""
        return None

    # -- what is called from outside ------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Do one step; gives its metrics with the iteration, the times and so on."""
        self._check_is_complete()
        filler = self._filler = self._filler or self._new_filler()
        metrics = self._advance()
        return filler.fill(self._iteration, metrics, time.time(), self._time_s - filler.attempt.start_time_s)

    def _check_is_complete(self) -> None:
        """An __init__ of the subclass may have forgotten that of this class."""
        if "_iteration" not in vars(self):
            name = type(self).__name__
            raise ConfigError(
                f"{name}.__init__() does not call super().__init__(config), without which {name} is no complete "
                "Trainable. Better: leave __init__ out, and prepare in setup(self, config)."
            )

    def _advance(self) -> dict[str, Any]:
        """Do one step and count it; gives the user's own metrics."""
        began = time.monotonic()
        metrics = self.step()
        self._time_s += time.monotonic() - began
        if not isinstance(metrics, Mapping):
            raise MetricError(f"{type(self).__name__}.step() returned {metrics!r}: return a dict of metrics.")
        self._iteration += 1
        return dict(metrics)

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint; gives its directory, by default one in `logdir`."""
        path = Path(checkpoint_dir or os.path.join(self.logdir, f"checkpoint_{self._iteration:06d}"))
        path.mkdir(parents=True, exist_ok=True)
        checkpoint = self._checkpoint_in(str(path))
        if checkpoint.kind != "local_path":
            checkpoint.to_directory(str(path))
        return str(path)

    def _checkpoint_in(self, directory: str) -> Checkpoint:
        """A checkpoint of the present state; files of it are in `directory`, which exists."""
        from paceline.air.checkpoint import Checkpoint

        state = self.save_checkpoint(directory)
        note: dict[str, Any] = {"iteration": self._iteration, "time_s": self._time_s, "dict": isinstance(state, dict)}
        if isinstance(state, dict):
            checkpoint = Checkpoint.from_dict(state)
        else:
            note["path"] = self._path_inside(state, directory)
            checkpoint = Checkpoint.from_directory(directory)
        checkpoint.set_metadata({_NOTE: note})
        return checkpoint

    def _path_inside(self, state: Any, directory: str) -> str:
        """What save_checkpoint() returned, relative to the directory that it was given. It need not be a file: some
        libraries save several files and return what their names begin with."""
        if state is None:
            return "."
        if isinstance(state, str | os.PathLike):
            root = os.path.realpath(directory)
            path = os.path.relpath(os.path.realpath(os.path.join(directory, state)), root)
            if _stays_inside(path):
                return path
        raise TypeError(
            f"{type(self).__name__}.save_checkpoint() returned {state!r}: return a dict, the path of a file or "
            f"directory in checkpoint_dir ({directory}), or None for all that was written there."
        )

    def restore(self, checkpoint: str | os.PathLike[str] | Checkpoint) -> None:
        """Go on from a checkpoint of `save`, or of a trial."""
        from paceline.air.checkpoint import Checkpoint

        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint.from_directory(checkpoint)
        note = checkpoint.get_metadata().get(_NOTE, {})
        if note.get("dict"):
            state = checkpoint.to_dict()
            self.load_checkpoint({name: value for name, value in state.items() if name not in ADDED_BY_TO_DICT})
        else:
            path = str(note.get("path") or ".")
            if not _stays_inside(path):
                raise RestoreError(f"The checkpoint names {path!r} as its file, which is not inside its directory.")
            with checkpoint.as_directory() as directory:
                self.load_checkpoint(os.path.normpath(os.path.join(directory, path)))
        self._continue_at(int(note.get("iteration") or 0), float(note.get("time_s") or 0.0))

    def _continue_at(self, iteration: int, time_s: float | None = None) -> None:
        """Count on from an iteration."""
        self._iteration = iteration
        self._time_s = self._time_s if time_s is None else time_s
        self._filler = None

    def stop(self) -> None:
        """The end: gives `cleanup` its turn."""
        self.cleanup()

    # -- what a subclass may ask ----------------------------------------------------------

    @property
    def iteration(self) -> int:
        """How many steps are done, those before a restore included."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        return self._iteration

    @property
    def trial_id(self) -> str:
        current = session_slot.current()
        return current.trial_id if current is not None else "default"

    @property
    def trial_name(self) -> str:
        current = session_slot.current()
        return current.trial_name if current is not None else type(self).__name__

    @property
    def trial_resources(self) -> PlacementGroupFactory | None:
        return session_slot.get_trial_resources() if session_slot.current() is not None else None

    @property
    def logdir(self) -> str:
        """The trial's directory; outside a trial one is made under the results directory."""
        current = session_slot.current()
        if current is not None:
            return current.trial_dir
        if self._own_logdir is None:
            self._own_logdir = _new_directory(type(self).__name__)
        return self._own_logdir

    def _new_filler(self) -> RowFiller:
        from paceline.run.history import RowFiller, node_ip
        from paceline.run.records import AttemptStarted
        from paceline.run.spec import TrialIdentity

        begun = AttemptStarted(
            attempt=0,
            start_index=self._iteration,
            start_time_s=self._time_s,
            hostname=socket.gethostname(),
            node_ip=node_ip(),
            pid=os.getpid(),
        )
        return RowFiller(TrialIdentity(self.trial_id, "default"), self.config, begun)


def _stays_inside(path: str) -> bool:
    """Whether a relative path leads nowhere above where it begins."""
    return not os.path.isabs(path) and os.path.normpath(path).split(os.sep)[0] != os.pardir


def _new_directory(name: str) -> str:
    root = default_storage_root()
    root.mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(prefix=f"{experiment_dir_name(name)}_", dir=root)


def subclass_with(trainable: Any, made_by: str, **members: Any) -> Any:
    """A class that stands for `trainable`, with other members."""
    described = {"__module__": trainable.__module__, "__doc__": trainable.__doc__}
    made = type(trainable)(trainable.__name__, (trainable,), {**members, **described})
    # It is not found under the name of the class that it stands for: pickle sends it whole.
    made.__qualname__ = f"{made_by}.<locals>.{trainable.__qualname__}"
    return made


class FunctionTrainable(Trainable):
    """Stands for a function: a Tuner runs this as it runs the function. See `wrap_function`."""

    function: ClassVar[Callable[..., Any]]

    def step(self) -> dict[str, Any]:
        raise ConfigError(
            f"{type(self).__name__} is a function, which is not run step by step: pass it to tune.Tuner(), or derive "
            "a class from tune.Trainable."
        )


def wrap_function(
    train_func: Callable[..., Any], warn: bool = True, name: str | None = None
) -> type[FunctionTrainable]:
    """A class that stands for the function; `name` is for directories, and `warn` changes nothing.

    Tuner, tune.run() and register_trainable() take the function itself as well.
    """
    from paceline.tune.trainable.session import function_name

    members = {"function": staticmethod(train_func), "__doc__": train_func.__doc__}
    return type(name or function_name(train_func), (FunctionTrainable,), members)


def unwrapped(trainable: Any) -> Any:
    """The function that a FunctionTrainable stands for; any other trainable as it is."""
    is_wrapped = isinstance(trainable, type) and issubclass(trainable, FunctionTrainable)
    return trainable.function if is_wrapped else trainable


SHOULD_CHECKPOINT = "should_checkpoint"
"""Key of a result by which a step asks to be saved now."""


@dataclass(frozen=True)
class ClassLoop:
    """Steps a Trainable until it is done or stopped, and sees to its checkpoints."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"make": "trainable", "config": "param_space"}

    make: Callable[[dict[str, Any]], Trainable]
    """The class."""
    config: Mapping[str, Any]
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = False

    def __call__(self) -> None:
        session = session_slot.required("A trial's loop runs in the worker that a Tuner started.")
        trainable = self.make(dict(self.config))
        trainable._check_is_complete()
        try:
            resumed = session.get_checkpoint()
            if resumed is not None:
                trainable.restore(resumed)
            trainable._continue_at(session.rows_before)  # the trial's own count, also after a donor's checkpoint
            self._train(trainable, session)
        except BaseException:
            _stop_after(trainable, session)
            raise
        trainable.stop()

    def _train(self, trainable: Trainable, session: SessionProtocol) -> None:
        done = False
        while not done:
            metrics = trainable._advance()
            done = bool(metrics.get(DONE))
            saves = self._is_due(trainable.iteration, metrics) or (done and self.checkpoint_at_end)
            try:
                with _checkpoint(trainable, session, wanted=saves) as checkpoint:
                    session.report(metrics, checkpoint)
            except StopTraining:
                # Only now is it known that this row is the last one.
                if self.checkpoint_at_end and not saves:
                    with _checkpoint(trainable, session) as checkpoint:
                        if checkpoint is not None:
                            session.add_checkpoint(checkpoint)
                raise

    def _is_due(self, iteration: int, metrics: Mapping[str, Any]) -> bool:
        by_count = self.checkpoint_frequency and iteration % self.checkpoint_frequency == 0
        return bool(by_count or metrics.get(SHOULD_CHECKPOINT))


def _stop_after(trainable: Trainable, session: SessionProtocol) -> None:
    """Clean up after an error or a stop. That is what the trial ends with, even if cleaning up fails as well."""
    try:
        trainable.stop()
    except Exception as problem:
        session.warn(f"{type(trainable).__name__}.cleanup() raised {problem!r}, after the trial had ended.")


@contextmanager
def _checkpoint(trainable: Trainable, session: SessionProtocol, *, wanted: bool = True) -> Iterator[Checkpoint | None]:
    """The trainable's state, in files that live until the run has them."""
    if not wanted:
        yield None
        return
    # In the trial's directory, so that the run can take the files over by a rename.
    directory = tempfile.mkdtemp(prefix=".checkpoint_", dir=session.trial_dir)
    try:
        yield trainable._checkpoint_in(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
