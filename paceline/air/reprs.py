"""How a Result and a Checkpoint look in a notebook. Nothing is unpickled, and no file is read but a manifest."""

from __future__ import annotations

import os
import traceback
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.air import html
from paceline.air.checkpoint_sources import LocalDirectory, MemoryDict, Remote
from paceline.air.constants import TIME_TOTAL_S, TRAINING_ITERATION
from paceline.air.errors import CheckpointCorruptError, CheckpointError
from paceline.air.manifest import find_manifest
from paceline.air.metrics import flattened, number_in, reported
from paceline.air.secrets import without_credentials
from paceline.air.words import counted, duration_text, size_text

if TYPE_CHECKING:
    from paceline.air.checkpoint_sources import ContentSource
    from paceline.air.result import Result

_METRICS = 20
_FILES = 20
_WARNINGS = 20


def result_html(result: Result) -> str:
    metrics = result.metrics
    facts = [
        html.status(result.status),
        counted(int(number_in(metrics, TRAINING_ITERATION)), "iteration"),
        duration_text(number_in(metrics, TIME_TOTAL_S)),
    ]
    if result.attempts > 1:
        facts.append(counted(result.attempts, "attempt"))
    parts: list[object] = [html.heading("Result", *facts)]
    if result.error is not None:
        parts.append(html.element("div", html.coloured(_first_line(result.error), html.BAD)))
    values = flattened(reported(metrics))
    rows: list[tuple[object, object]] = [(name, html.short(value)) for name, value in islice(values.items(), _METRICS)]
    if len(values) > _METRICS:
        rows.append(("…", html.muted(f"and {counted(len(values) - _METRICS, 'more metric', 'more metrics')}")))
    if result.checkpoint is not None:
        rows.append(("checkpoint", result.checkpoint._where() or "in memory"))
    if len(result.best_checkpoints) > 1:
        rows.append(("kept", counted(len(result.best_checkpoints), "checkpoint")))
    rows.append(("files", without_credentials(result.path)))
    if result.how_to_continue:
        rows.append(("to continue", html.element("code", result.how_to_continue)))
    parts.append(html.pairs(rows))
    if result.warnings:
        shown = "\n".join(result.warnings[:_WARNINGS])
        if len(result.warnings) > _WARNINGS:
            shown += f"\n… and {len(result.warnings) - _WARNINGS} more"
        parts.append(html.details(counted(len(result.warnings), "warning"), html.scrolling(shown)))
    return html.whole(*parts)


def _first_line(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip().split("\n")[0]
    return text.removeprefix(f"{type(error).__module__}.")


def checkpoint_html(kind: str, source: ContentSource) -> str:
    """`kind` is the class of the checkpoint."""
    if isinstance(source, LocalDirectory):
        return html.whole(*_local_checkpoint(kind, source.path))
    if isinstance(source, Remote):
        return html.whole(html.heading(kind, "on remote storage"), html.pairs({"place": source.describe()}))
    if isinstance(source, MemoryDict):
        keys = ", ".join(map(repr, islice(source.data, _FILES)))
        more = f", and {len(source.data) - _FILES} more" if len(source.data) > _FILES else ""
        return html.whole(html.heading(kind, "a dict in memory"), html.pairs({"keys": keys + more}))
    return html.whole(html.heading(kind, "in memory"), html.pairs({"content": source.describe()}))


def _local_checkpoint(kind: str, path: str) -> list[html.Markup]:
    place: dict[str, object] = {"directory": path}
    try:
        manifest = find_manifest(Path(path))
    except CheckpointCorruptError as error:
        return [html.heading(kind, html.coloured("damaged", html.BAD)), html.pairs({**place, "problem": str(error)})]
    except (CheckpointError, OSError) as error:
        return [html.heading(kind, html.coloured("cannot be read", html.BAD)), html.pairs({**place, "problem": error})]
    if manifest is None:
        there = "not committed by a run" if os.path.isdir(path) else html.coloured("no longer there", html.BAD)
        return [html.heading(kind, there), html.pairs(place)]
    facts = manifest.facts
    known = [counted(len(manifest.files), "file"), size_text(manifest.size)]
    if isinstance(facts.get("iteration"), int):
        known.insert(0, f"iteration {facts['iteration']}")
    if isinstance(metrics := facts.get("metrics"), dict):
        values = flattened(reported(metrics))
        place |= {name: html.short(value) for name, value in islice(values.items(), _METRICS)}
    files = sorted(manifest.files.items(), key=lambda item: (-item[1].size, item[0]))
    rows = [(name.encode(errors="replace").decode(), size_text(entry.size)) for name, entry in files[:_FILES]]
    if len(files) > _FILES:
        rest = sum(entry.size for _, entry in files[_FILES:])
        rows.append((f"… and {counted(len(files) - _FILES, 'more file', 'more files')}", size_text(rest)))
    listing = html.details("files", html.table((), rows, right=[1]))
    return [html.heading(kind, *known), html.pairs(place), listing]
