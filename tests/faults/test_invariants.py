"""The checker that every fault test ends with finds what it is there for."""

from __future__ import annotations

import pytest

from paceline.testing.invariants import CANARY, check_run
from tests.faults.laboratory import Laboratory


def test_bytes_that_belong_to_nothing_are_found(lab: Laboratory) -> None:
    """I7: a file that no run has may weigh a megabyte, not two."""
    result = lab.succeed(lab.plan(iterations=2))
    stranger = lab.trial_dir / "spill" / "chunk.bin"
    stranger.parent.mkdir()
    stranger.write_bytes(bytes(1 << 19))
    check_run(lab.trial_dir, result=result)
    stranger.write_bytes(bytes(1 << 21))
    with pytest.raises(AssertionError, match=r"belong to nothing: spill/chunk\.bin \(2,097,152 bytes\)"):
        check_run(lab.trial_dir, result=result)


@pytest.mark.parametrize("place", ["journal.jsonl", "logs/rank_0.log", "checkpoint_000001/state.json"])
def test_a_secret_in_any_file_is_found(lab: Laboratory, place: str) -> None:
    """I8: wherever it is, and also across the pieces in which a file is read."""
    lab.succeed(lab.plan(iterations=2))
    path = lab.trial_dir / place
    content = path.read_bytes()
    path.write_bytes(content + bytes((1 << 20) - len(content) - 5) + CANARY.encode())
    with pytest.raises(AssertionError, match=r"has the secret|has another size"):
        check_run(lab.trial_dir)


def test_a_secret_in_the_error_is_found(lab: Laboratory) -> None:
    """I8: in what the error says, too."""

    def loop() -> None:
        raise ValueError("cannot log in with pass" + "word-1")

    error = lab.failure_of(loop)
    with pytest.raises(AssertionError, match=r"has the secret|tells the secret"):
        check_run(lab.trial_dir, error=error, secrets=["password-1"])
