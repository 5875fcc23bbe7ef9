"""What the ranks of a run printed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from paceline.view.logs import LogLine, merged, merged_part, read_log
from paceline.view.page.answers import answering, text, whole
from paceline.view.page.state import PageState
from paceline.web.problem import Problem

MOST_BYTES = 4 << 20
MOST_HITS = 1_000
SEARCH_SECONDS = 10.0
"""A search through longer logs ends with what it has found by then, and says so."""
_LINES_AT_ONCE = 5_000
_LONGEST_HIT = 2_000


def part(state: PageState, request: Request) -> Any:
    query = request.query_params
    return read_log(
        state.place(text(request, "run")),
        whole(request, "rank", most=10**7),
        start=whole(request, "start", least=-MOST_BYTES) if query.get("start") else None,
        before=whole(request, "before") if query.get("before") else None,
        max_bytes=whole(request, "max", 65536, least=1, most=MOST_BYTES),
        filesystem=state.filesystem,
    )


def merged_ranks(state: PageState, request: Request) -> Any:
    before = text(request, "before", "", longest=20_000)
    found = merged_part(
        state.place(text(request, "run")),
        _ranks(request),
        before=_positions(before) if before else None,
        max_bytes=whole(request, "max", 262_144, least=1, most=MOST_BYTES),
        filesystem=state.filesystem,
    )
    return found


def search(state: PageState, request: Request) -> Any:
    """Lines that contain a text, or match a regular expression; upper and lower case are the same."""
    wanted, limit = text(request, "q", longest=500), whole(request, "limit", 200, least=1, most=MOST_HITS)
    is_pattern = text(request, "regex", "") == "1"
    if not wanted:
        raise Problem(400, "Say what to look for.")
    lines = merged(state.place(text(request, "run")), _ranks(request, "rank"), filesystem=state.filesystem)
    hits: list[dict[str, Any]] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    complete = False
    while len(hits) < limit and time.monotonic() < deadline and not complete:
        some = list(itertools.islice(lines, _LINES_AT_ONCE))
        complete = len(some) < _LINES_AT_ONCE
        hits += [
            {"rank": line.rank, "offset": line.start, "time": line.time, "text": line.text[:_LONGEST_HIT]}
            for line in _matching(some, wanted, is_pattern)
        ]
    return {"hits": hits[:limit], "complete": complete and len(hits) <= limit}


def _matching(lines: Sequence[LogLine], wanted: str, is_pattern: bool) -> list[LogLine]:
    """Arrow's regular expressions (RE2) take time in proportion to the text, whatever the pattern."""
    import pyarrow as pa  # which takes longer to load than the list may take to appear
    import pyarrow.compute as pc

    texts = pa.array([line.text for line in lines], pa.large_string())
    match = pc.match_substring_regex if is_pattern else pc.match_substring
    try:
        mask = match(texts, wanted, ignore_case=True)
    except pa.ArrowInvalid as error:
        raise Problem(400, f"The regular expression cannot be used: {str(error).partition(chr(10))[0]}") from None
    return [line for line, is_hit in zip(lines, mask.to_pylist(), strict=True) if is_hit]


def _ranks(request: Request, name: str = "ranks") -> list[int] | None:
    given = text(request, name, "", longest=10_000)
    if not given:
        return None
    if not all(each.isdecimal() and len(each) <= 7 for each in given.split(",")):
        raise Problem(400, f"{name} must be numbers with commas between them.")
    return [int(each) for each in given.split(",")]


def _positions(given: str) -> dict[int, int]:
    try:
        return msgspec.json.decode(given, type=dict[int, int], strict=False)
    except (msgspec.DecodeError, RecursionError):
        raise Problem(400, 'before must be an object of positions by rank, such as {"0": 1000}.') from None


ROUTES = [
    Route("/api/logs", answering(part)),
    Route("/api/logs/merged", answering(merged_ranks)),
    Route("/api/logs/search", answering(search, slow=True)),
]
