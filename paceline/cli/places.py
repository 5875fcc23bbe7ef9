"""What a path on the command line means: a run, a search, or a directory or URI that has some."""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

from paceline.air.errors import RunNotFoundError
from paceline.air.secrets import without_credentials
from paceline.cli.errors import DAMAGED, FAILED, USAGE, CommandError
from paceline.cli.output import note
from paceline.run.found_runs import RunSummary, summary_of
from paceline.storage import lock
from paceline.storage.run_dir import SEARCH_JOURNALS, default_storage_root, is_plain_name, search_journal
from paceline.tune.experiment.summary import ExperimentSummary, experiment_summary_of
from paceline.view.catalog import Found, find

PATH_HELP = "directory or URI, or a name as `paceline ls` shows it; SEARCH/TRIAL for a trial"

SEARCH_ID_LENGTH = 5
_SEARCH_ID = re.compile(r"[0-9a-z]{5}")
LEAST_OF_ID = 5
"""A name that is shorter is not taken for that of a trial."""


def add_path(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("path", metavar="PATH", help=f"{what}: {PATH_HELP}")


def place(given: str) -> str:
    """The path or URI that is meant. A name that is not found here is looked up in the results directory.

    A trial goes by its directory's name, or by its id, below its search. A search goes by its directory, or by its id
    below that: then this is the directory, and `found_at` leaves out the others in it.
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
        return str(parent) if _is_search_in(parent, name) else _trial_of(parent, above, name)
    return str(parent / name) if os.path.exists(parent / name) else given


def _is_search_in(directory: Path, name: str) -> bool:
    return is_plain_name(name) and (directory / search_journal(name)).is_file()


def _trial_of(directory: Path, shown: str, name: str) -> str:
    found = find(directory)
    if not found.searches:
        raise broken(found)
    trials = [trial for search in found.searches for trial in search.trials]
    for trial in trials:
        if name in (trial.trial_id, f"{trial.trainer}_{trial.trial_id}", os.path.basename(trial.path)):
            return trial.path
    example = f": name one as in {shown}/{os.path.basename(trials[0].path)}" if trials else ""
    raise CommandError(f"The search {shown} has no trial {name}{example}.", USAGE)


def _refuse_lone_trial(name: str) -> None:
    """A trial is only found with its search; the message names it in full."""
    for root in (Path.cwd(), default_storage_root()):
        for found in root.glob(f"*/*{glob.escape(name)}") if len(name) >= LEAST_OF_ID else ():
            if any(found.parent.glob(SEARCH_JOURNALS)):
                raise CommandError(
                    f"{name} is a trial of a search: name it with the search, as in {found.parent.name}/{found.name}.",
                    USAGE,
                )


def found_at(given: str) -> Found:
    """All that is there; only the search whose id was given, if its directory has several."""
    path = place(given)
    name = given.rstrip("/").rpartition("/")[2]
    if "://" in path:
        return _found_at_uri(path.rstrip("/"), name)
    found = find(path)
    is_named = not os.path.lexists(os.path.expanduser(given)) and os.path.basename(path) != name
    return _only(found, name) if is_named and _is_search_in(Path(path).expanduser(), name) else found


def _found_at_uri(uri: str, name: str) -> Found:
    try:
        return find(uri)
    except RunNotFoundError:
        above = uri.rpartition("/")[0]
        if not _SEARCH_ID.fullmatch(name) or above.endswith("/"):
            raise
        with contextlib.suppress(RunNotFoundError):
            if (found := _only(find(above), name)).searches:
                return found
        raise


def _only(found: Found, id: str) -> Found:
    return Found(searches=[search for search in found.searches if search.id[: len(id)] == id])


def full_name(each: RunSummary | ExperimentSummary, others: Iterable[RunSummary | ExperimentSummary]) -> str:
    """Its place; with its id, if a search shares its directory with others."""
    return f"{shown_place(each.path)}{suffix_of(each, others)}"


def suffix_of(each: RunSummary | ExperimentSummary, others: Iterable[RunSummary | ExperimentSummary]) -> str:
    """What tells a search from others in its directory; empty if it is alone there."""
    if not isinstance(each, ExperimentSummary):
        return ""
    is_shared = sum(isinstance(other, ExperimentSummary) and other.path == each.path for other in others) > 1
    return f"/{short_id(each)}" if is_shared else ""


def short_id(search: ExperimentSummary) -> str:
    """As in the names of its journal and its trials."""
    return search.id[:SEARCH_ID_LENGTH]


def opened_as(path: str, given: str) -> str:
    """What opens something that was found at a place that was given: summaries have paths without credentials."""
    uri = place(given).rstrip("/")
    if "://" in uri and not path.startswith(without_credentials(uri)):  # a search was named by its id
        uri = uri.rpartition("/")[0]
    label = without_credentials(uri)
    return uri + path.removeprefix(label) if "://" in uri and path.startswith(label) else path


def one_at(given: str, doing: str = "showing") -> RunSummary | ExperimentSummary:
    """The run or search at a path; of several, the newest, which is said."""
    found = found_at(given)
    everything = sorted(all_of(found), key=lambda each: each.started, reverse=True)
    if not everything:
        raise broken(found)
    if len(everything) > 1:
        newest = full_name(everything[0], everything)
        note(f"{shown_place(given)} contains {len(everything)} runs; {doing} the newest: {newest}")
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
        names = ", ".join(full_name(each, live) for each in live[:5]) + (", ..." if len(live) > 5 else "")
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
    if isinstance(found, RunSummary):
        return summary_of(found.path).alive
    if "://" in found.path:
        return experiment_summary_of(found.path).alive
    return lock.is_held(Path(driven_at(found)).with_suffix(".lock"))


def driven_at(found: RunSummary | ExperimentSummary) -> str:
    """Where its driver is asked: a search by its journal, because its directory may have several."""
    if isinstance(found, RunSummary) or "://" in found.path:
        return found.path
    return f"{found.path}/{search_journal(short_id(found))}"


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
