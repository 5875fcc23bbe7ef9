"""The checkpoints of a run: which there are, whether one is intact, and the files of one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointError
from paceline.air.secrets import without_credentials
from paceline.view.facts import CheckpointFacts
from paceline.view.page.answers import Streamed, answering, problem_answer, state_of
from paceline.view.page.state import PageState
from paceline.view.page.tar import TarStream
from paceline.web.problem import RETRY, Problem

MOST_DOWNLOADS = 4
_MOST_DIGITS = 18


def checkpoints(state: PageState, request: Request) -> Any:
    return shown(state.facts(request.path_params["id"]).checkpoints)


def shown(found: list[CheckpointFacts]) -> list[CheckpointFacts]:
    """Without the credentials that the address of their storage may have."""
    return [msgspec.structs.replace(each, path=without_credentials(each.path)) for each in found]


def verify(state: PageState, request: Request) -> Any:
    """Reads the whole checkpoint and compares it with its manifest."""
    chosen = _chosen(state, request)
    try:
        Checkpoint(chosen.path, state.filesystem).verify()
    except CheckpointError as error:
        return {"ok": False, "problem": str(error)}
    return {"ok": True, "problem": ""}


async def download(request: Request) -> Response:
    state = state_of(request)
    if state.downloads >= MOST_DOWNLOADS:
        return problem_answer(Problem(503, f"{MOST_DOWNLOADS} downloads are under way already.", headers=RETRY))
    state.downloads += 1
    try:
        opened = await state.in_slow_thread(_opened, state, request)
    except BaseException:
        state.downloads -= 1
        raise
    if isinstance(opened, Problem):
        state.downloads -= 1
        return problem_answer(opened)
    tar, name = opened

    async def pieces() -> AsyncIterator[bytes]:
        while request.method != "HEAD" and (piece := await state.in_slow_thread(tar.read)):
            yield piece

    def end() -> None:
        state.downloads -= 1
        state.soon(tar.close)

    headers = {
        "content-length": str(tar.length),
        "content-disposition": f'attachment; filename="{name}.tar"',
        "cache-control": "no-store",
    }
    return Streamed(pieces(), end, media_type="application/x-tar", headers=headers)


def _opened(state: PageState, request: Request) -> tuple[TarStream, str] | Problem:
    """The file, and what it is called."""
    try:
        chosen, folder = _chosen(state, request), _folder(request)
        trial = state.line(request.path_params["id"]).trial_id
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{trial}-{folder}")
        return TarStream(chosen.path, state.filesystem, folder=folder), name
    except Problem as problem:
        return problem
    except (CheckpointError, OSError) as error:
        return Problem(422, str(error))


def _chosen(state: PageState, request: Request) -> CheckpointFacts:
    """The checkpoint of the run's records that has the number. Its path is not made from what the client sent."""
    number = _number(request)
    facts = state.facts(request.path_params["id"])
    found = next((each for each in facts.checkpoints if each.number == number and each.kept), None)
    if found is None:
        raise Problem(404, f"The run has no checkpoint {number}, or not any more.")
    return found


def _number(request: Request) -> int:
    """Not converted by the route, which fails for thousands of digits."""
    given = request.path_params["number"]
    if not given.isdecimal() or len(given) > _MOST_DIGITS:
        raise Problem(404, "This is not the number of a checkpoint.")
    return int(given)


def _folder(request: Request) -> str:
    return f"checkpoint_{_number(request):06d}"


ROUTES = [
    Route("/api/run/{id}/checkpoints", answering(checkpoints)),
    Route("/api/run/{id}/checkpoints/{number}/verify", answering(verify, slow=True), methods=["POST"]),
    Route("/api/run/{id}/checkpoints/{number}/download", download),
]
