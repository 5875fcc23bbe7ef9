"""What a path on the command line means: a run, a search, or a directory or URI that has some."""

from __future__ import annotations

import argparse
import glob
import os
from pathlib import Path

from paceline.air.secrets import without_credentials
from paceline.cli.errors import DAMAGED, FAILED, USAGE, CommandError
from paceline.cli.output import note
from paceline.run.found_runs import RunSummary, summary_of
from paceline.storage.run_dir import SEARCH_JOURNALS, default_storage_root
from paceline.tune.experiment.summary import ExperimentSummary, experiment_summary_of
from paceline.view.catalog import Found, find

PATH_HELP = "directory or URI, or a name as `paceline ls` shows it; SEARCH/TRIAL for a trial"

LEAST_OF_ID = 5
"""A name that is shorter is not taken for that of a trial."""


def add_path(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("path", metavar="PATH", help=f"{what}: {PATH_HELP}")


def place(given: str) -> str:
    """The path or URI that is meant. A name that is not found here is looked up in the results directory.

    A trial goes by its directory's name, or by its id, below its search.
    """
    if "://" in given or os.path.lexists(os.path.expanduser(given)):
        return given
    below = default_storage_root() / given
    if not os.path.isabs(given) and os.path.exists(below):
        return str(below)
    above, _, name = given.rstrip("/").rpartition("/")
    if not above:
        _refuse_lone_trial(name)
        return given
    parent = Path(place(above)).expanduser()
    if not os.path.isdir(parent):
        return given
    if any(parent.glob(SEARCH_JOURNALS)):
        return _trial_of(parent, above, name)
    return str(parent / name) if os.path.exists(parent / name) else given


def _trial_of(search: Path, shown: str, name: str) -> str:
    trials = experiment_summary_of(search).trials
    for trial in trials:
        if name in (trial.trial_id, f"{trial.trainer}_{trial.trial_id}", os.path.basename(trial.path)):
            return trial.path
    example = f": name one as in {shown}/{os.path.basename(trials[0].path)}" if trials else ""
    raise CommandError(f"The search {shown} has no trial {name}{example}.", USAGE)


def _refuse_lone_trial(name: str) -> None:
    """Without its search a trial is not looked for, but who writes so is told its full name."""
    for root in (Path.cwd(), default_storage_root()):
        for found in root.glob(f"*/*{glob.escape(name)}") if len(name) >= LEAST_OF_ID else ():
            if any(found.parent.glob(SEARCH_JOURNALS)):
                raise CommandError(
                    f"{name} is a trial of a search: name it with the search, as in {found.parent.name}/{found.name}.",
                    USAGE,
                )


def found_at(given: str) -> Found:
    """All that is there."""
    return find(place(given))


def opened_as(path: str, given: str) -> str:
    """What opens something that was found at a place that was given: summaries have paths without credentials."""
    uri = place(given).rstrip("/")
    label = without_credentials(uri)
    return uri + path.removeprefix(label) if "://" in uri and path.startswith(label) else path


def one_at(given: str) -> RunSummary | ExperimentSummary:
    """The run or search at a path; of several, the newest, which is said."""
    found = found_at(given)
    everything = sorted(all_of(found), key=lambda each: each.started, reverse=True)
    if not everything:
        raise broken(found)
    if len(everything) > 1:
        newest = shown_place(everything[0].path)
        note(f"{shown_place(given)} contains {len(everything)} runs; showing the newest: {newest}")
    return everything[0]


def all_of(found: Found) -> list[RunSummary | ExperimentSummary]:
    return [*found.runs, *found.searches]


def run_at(given: str, doing: str) -> RunSummary:
    """The same where only a run will do."""
    found = one_at(given)
    if not isinstance(found, RunSummary):
        message = f"{shown_place(found.path)} is a search; name one of its trials to {doing}, as ls lists them."
        raise CommandError(message, USAGE)
    return found


def live_at(given: str) -> RunSummary | ExperimentSummary:
    """The live run or search at a path; the only one there is, if none is live."""
    found = found_at(live_place(given) or given)
    everything = all_of(found)
    live = [each for each in everything if each.alive] or everything
    if not live:
        raise broken(found)
    if len(live) > 1:
        names = ", ".join(shown_place(each.path) for each in live[:5]) + (", ..." if len(live) > 5 else "")
        kind = "are live" if live[0].alive else "are there, none of them live"
        raise CommandError(f"Name one run or search: {len(live)} {kind} in {shown_place(given)}: {names}.", USAGE)
    return live[0]


def live_place(given: str) -> str | None:
    """The directory in which a driver of this machine works on what is mirrored to a URI."""
    from paceline.view.live import local_directory  # which a list of runs does not need

    path = place(given)
    return local_directory(path.rstrip("/")) if "://" in path else None


def is_alive(found: RunSummary | ExperimentSummary) -> bool:
    """Whether it still has a driver."""
    summary = summary_of(found.path) if isinstance(found, RunSummary) else experiment_summary_of(found.path)
    return summary.alive


def broken(found: Found) -> CommandError:
    """The error for a place where all that there is cannot be read."""
    problem = found.problems[0]
    return CommandError(problem.message, DAMAGED if problem.damaged else FAILED)


def shown_place(path: str) -> str:
    """A place without credentials, and short if it is below the working directory."""
    if "://" in path:
        return without_credentials(path)
    here = Path.cwd()
    return os.path.relpath(path, here) if Path(path).is_relative_to(here) and Path(path) != here else path


def name_below(path: str, root: str) -> str:
    """What is left of a path below another; its last part if they are the same."""
    inside = path.removeprefix(root.rstrip("/") + "/") if path != root else ""
    return inside if inside and inside != path else path.rstrip("/").rpartition("/")[2]
