"""Computes importances in a process of its own: `python -m paceline.view.importance_process`, JSON in and out.

Optuna and scikit-learn take a hundred megabytes and keep Python busy for seconds; a server has other things to do.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from paceline.air.errors import PacelineError


class Question(msgspec.Struct):
    """What trials chose and reached."""

    mode: str
    most: int
    params: list[dict[str, Any]]
    values: list[float | None]


class Reply(msgspec.Struct):
    importances: dict[str, float] | None = None
    why: str = ""
    """Why there are none."""


def answer(question: Question) -> Reply:
    """The reply; whatever goes wrong is said in it."""
    try:
        from paceline.tune.plots import Observation, importances

        observations = [Observation(*each) for each in zip(question.params, question.values, strict=True)]
        return Reply(importances(observations, question.mode, question.most))
    except (PacelineError, ImportError) as error:
        return Reply(why=str(error))
    except Exception as error:
        return Reply(why=f"Optuna could not compute them: {type(error).__name__}: {error}")


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))


if __name__ == "__main__":
    main()
