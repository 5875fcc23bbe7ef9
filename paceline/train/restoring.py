"""Finds the run that a trainer shall continue, and says what is wrong if there is none or it does not fit."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checks import check_choice, reject_unknown, warn_at_users_line
from paceline.air.errors import ConfigError, RestoreError, StorageError
from paceline.air.secrets import masked
from paceline.air.settings import as_json, changes, fingerprint, plain_config
from paceline.engine.choose import choose_engine
from paceline.run.found_runs import (
    does_not_exist,
    find_remote_runs,
    find_run_dirs,
    line_for,
    search_line,
    search_of,
)
from paceline.run.records import Header, RunRecords
from paceline.run.run_files import storage_of
from paceline.storage.run_dir import resolve_storage, uri_below
from paceline.train.arguments import SETTINGS_ELSEWHERE, keyword_names

if TYPE_CHECKING:
    from paceline.run.spec import RunSpec
    from paceline.train.base_trainer import BaseTrainer

T = TypeVar("T", bound="BaseTrainer")

_NOT_COMPARED = ("num_workers", "resources_per_worker", "trainer_resources", "code", "again", "has_config")
"""Arguments of trainers in a run's settings that are no part of its configuration."""
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class FoundRun:
    """A run on disk or at a URI that can be continued."""

    place: str
    records: RunRecords

    @property
    def header(self) -> Header:
        return self.records.header

    @property
    def settings(self) -> dict[str, Any]:
        """Those it was started with. Where it began from matters only until it has a checkpoint of its own."""
        settings = dict(self.records.settings)
        settings["experiment_name"] = self.header.experiment_name
        settings["finished"] = self.records.ended_as == "finished"
        settings["resumed"] = settings["resumed"] and not self.records.has_checkpoints and not settings["finished"]
        return settings


def restore_arguments(
    trainer: type[Any], names: Sequence[str], given: Sequence[Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of restore() by name."""
    called = f"{trainer.__name__}.restore()"
    if len(given) > len(names):
        listed = ", ".join(["path", *names])
        raise TypeError(f"{called} takes only {listed} without their names; {len(given) + 1} values were given.")
    known = keyword_names(trainer)
    if known is not None:
        reject_unknown(called, arguments, [*known, "allow_changed_code", "storage_filesystem"], SETTINGS_ELSEWHERE)
    named = dict(zip(names, given, strict=False))
    if twice := [name for name in named if name in arguments]:
        raise TypeError(f"{called} got two values for {twice[0]}: one after the path, and {twice[0]}=.")
    return {**named, **arguments}


def run_to_restore(path: str | os.PathLike[str], filesystem: Any, trainer: str) -> FoundRun:
    """The newest run at a place, which must be one of this trainer."""
    text = os.fspath(path)
    problems: list[RestoreError | StorageError] = []
    run = next(find_runs(path, filesystem, problems), None)
    reasons = " ".join(str(problem) for problem in problems)
    if run is None:
        missing = does_not_exist(text, filesystem, "a run")
        search = _search_at(path, filesystem)
        if missing is None and search is not None:
            raise RestoreError(f"{text} belongs to a search. To continue the search: {search_line(search)}")
        raise missing or RestoreError(
            f"There is no run to continue at {text}: {reasons or 'no journal.jsonl in it or one level below.'}"
        )
    if problems:
        warn_at_users_line(f"Restoring {run.place}; other trials there cannot be read: {reasons}")
    if run.header.trainer != trainer:
        raise RestoreError(
            f"{run.place} was made by {run.header.trainer}, not by {trainer}. To continue it: "
            f"{line_for(run.header, run.place)}"
        )
    return run


def find_runs(
    path: str | os.PathLike[str], filesystem: Any, problems: list[RestoreError | StorageError]
) -> Iterator[FoundRun]:
    """The runs at a place that can be read, the newest first; what is wrong with others is added to `problems`.

    A run is read only when it is asked for: there may be many of one name.
    """
    for place, records in _trials(path, filesystem, problems):
        run = FoundRun(place, records)
        if search_of(run.place, run.header, filesystem) is None:
            yield run


def _trials(
    path: str | os.PathLike[str], filesystem: Any, problems: list[RestoreError | StorageError]
) -> Iterator[tuple[str, RunRecords]]:
    resolved = resolve_storage(path)
    if isinstance(resolved, str):
        found, unreadable = find_remote_runs(resolved, filesystem)
        problems += unreadable
        yield from found
        return
    for run_dir in find_run_dirs(resolved):
        try:
            yield str(run_dir.root), RunRecords.read(run_dir)
        except (RestoreError, StorageError) as error:
            problems.append(error)


def _search_at(path: str | os.PathLike[str], filesystem: Any) -> str | None:
    for place, records in _trials(path, filesystem, []):
        return search_of(place, records.header, filesystem)
    return None


def reject_changed_code(run: FoundRun, code: Any) -> None:
    """For allow_changed_code=False. Code of which nothing is known has not changed as far as anybody can tell."""
    earlier, now = run.records.code, fingerprint(code)
    if earlier is None or now is None:
        warn_at_users_line(f"Whether the code of {run.place} has changed is not known: it was or is not recorded.")
    elif changed := changes(earlier, now):
        raise RestoreError(
            f"The code of {run.place} has changed since it was last started ({changed}), and allow_changed_code is "
            "False. Use the same code, or leave allow_changed_code out."
        )


# -- the backend, which is code and may not be the one that the trainer has by itself --------


def check_backend(run: FoundRun, trainer: BaseTrainer) -> None:
    """Whether a trainer that is given no backend has the one of the run. Earlier versions did not record it."""
    there, here = run.settings.get("backend") or {}, trainer._described_backend()
    if not there.get("argument") or not here or here["argument"] is not None:
        return
    argument = there["argument"]
    if _class_name(there) != _class_name(here):
        raise RestoreError(
            f"{run.place} ran with {argument}={_class_name(there)}(...), and code is never read from disk: pass "
            f"{argument}=... to restore() again. Without it, its workers would not be connected as they were."
        )
    if changed := list(_differing("", there["settings"], here["settings"])):
        warn_at_users_line(
            f"{run.place} had other settings of the backend: {'; '.join(changed)}. Pass {argument}=... to restore() to "
            "keep them."
        )


def _class_name(described: Mapping[str, Any]) -> str:
    """Without its module: a script's own class is in `__main__` today, and in a module tomorrow."""
    return str(described["class"]).rpartition(".")[2]


def _differing_backend(spec: RunSpec, run: FoundRun) -> Iterator[str]:
    there, here = run.settings.get("backend") or {}, spec.backend_described
    if there and here and (there["argument"] or here["argument"]) and _class_name(there) != _class_name(here):
        argument = there["argument"] or here["argument"]
        yield f"{argument}=... ({_class_name(there)} there, {_class_name(here)} here)"


# -- fit(resume=...) ------------------------------------------------------------------------


def resumed(trainer: T, resume: Any) -> T:
    """The trainer, or one like it that continues the newest run of its name that did not finish."""
    check_choice(resume, "resume", ("auto", "must"))
    if trainer._restore_path is not None:
        return trainer
    if trainer.run_config.name is None:
        raise ConfigError(f"fit(resume={resume!r}) finds runs by their name: pass run_config=RunConfig(name=...).")
    spec = trainer.to_run_spec()
    directory, uri = storage_of(spec.run_config, choose_engine(spec.run_config.engine).capabilities)
    name = trainer.run_config.name
    place = uri_below(uri, name) if uri is not None else str(Path(directory, name))
    problems: list[RestoreError | StorageError] = []
    finished = 0
    unfinished = None
    for run in find_runs(place, spec.run_config.storage_filesystem, problems):
        if not run.settings["finished"]:
            unfinished = run
            break
        finished += 1
    for problem in problems:
        warn_at_users_line(f"A run named {spec.run_config.name!r} cannot be continued: {problem}")
    if unfinished is not None:
        return _continued(trainer, spec, unfinished)
    if resume == "must":
        what = f"all {finished} runs there have finished" if finished else "there is no run"
        raise RestoreError(f"fit(resume='must') has nothing to continue in {place}: {what}.")
    return trainer


def _continued(trainer: T, spec: RunSpec, run: FoundRun) -> T:
    differing = list(_differences(spec, run))
    if differing:
        raise RestoreError(
            f"{run.place} did not finish, but it is not continued, because this trainer differs from it in "
            f"{'; '.join(differing)}. Use the same settings, choose another RunConfig(name=...), or leave resume= out "
            "to start a new run."
        )
    again = copy.copy(trainer)
    again._continue(run.place, run.settings)
    return again


def _differences(spec: RunSpec, run: FoundRun) -> Iterator[str]:
    stored, header = run.settings, run.header
    if header.trainer != spec.trainer_name:
        yield f"the trainer class ({header.trainer} there, {spec.trainer_name} here)"
        return
    yield from _differing_backend(spec, run)
    if stored.get("had_validation") and spec.validation is None:
        yield "validation_config= (given there, missing here)"
    yield from _differing("datasets", sorted(stored["datasets"]), sorted(spec.dataset_names))
    earlier, now = run.records.config, plain_config(spec.config)
    if earlier is not None and now is not None:  # what is not plain is not stored, and cannot be compared
        yield from _differing("", earlier, now)
    before = {name: value for name, value in (stored.get("arguments") or {}).items() if name not in _NOT_COMPARED}
    here = {name: as_json(value) for name, value in masked(dict(spec.arguments)).items() if name not in _NOT_COMPARED}
    yield from _differing("", before, here)


def _differing(where: str, there: Any, here: Any) -> Iterator[str]:
    """The keys whose values differ, as they are written: ``train_loop_config['lr']``."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        if there != here:
            yield f"{where} ({_shown(there)} there, {_shown(here)} here)"
        return
    for name in dict.fromkeys([*there, *here]):
        key = f"{where}[{name!r}]" if where else str(name)
        if name not in here or name not in there:
            yield f"{key} (only {'there' if name in there else 'here'})"
        else:
            yield from _differing(key, there[name], here[name])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
