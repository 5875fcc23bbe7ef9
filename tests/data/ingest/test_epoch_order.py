"""The order of the rows of an epoch, and the pieces of blocks that are read for it."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.data.execution import Piece
from paceline.data.ingest.prepared import NEAR_ROWS, EpochOrder


@pytest.mark.parametrize("shuffle", ["none", "blocks", "rows"])
def test_an_epoch_has_every_row_once_and_its_own_order(shuffle: str) -> None:
    counts = (3, 0, 5, 1, 7, 4)
    orders = []
    for epoch in range(3):
        order = EpochOrder(counts, shuffle, 11, epoch)  # type: ignore[arg-type]
        rows = np.concatenate(list(order.row_numbers(((0, 20),), 6)))
        assert sorted(rows.tolist()) == list(range(20))
        orders.append(tuple(rows.tolist()))
        again = EpochOrder(counts, shuffle, 11, epoch)  # type: ignore[arg-type]
        pieces = np.concatenate(list(again.row_numbers(((0, 7), (7, 20)), 100)))
        assert tuple(pieces.tolist()) == orders[-1]
    assert len(set(orders)) == (1 if shuffle == "none" else 3)


def test_pieces_cover_what_was_asked_for() -> None:
    order = EpochOrder((3, 0, 5), "none", 0, 0)
    pieces = [(piece.block, piece.start, piece.stop) for piece in order.pieces(((1, 2), (2, 6)))]
    assert pieces == [(0, 1, 3), (2, 0, 3)]


def test_single_rows_near_each_other_are_read_together() -> None:
    order = EpochOrder((5000, 5000), "none", 0, 0)
    ranges = ((1, 2), (4, 5), (9, 12), (4990, 5003), (9000, 9001))
    pieces = order.pieces(ranges)
    assert pieces == [
        Piece(0, 1, 12, kept=((1, 2), (4, 5), (9, 12))),
        Piece(0, 4990, 5000),
        Piece(1, 0, 3),
        Piece(1, 4000, 4001),
    ]
    assert NEAR_ROWS < 4990 - 12
    rows = [row for numbers in order.row_numbers(ranges, 100) for row in numbers.tolist()]
    assert rows == [row for start, stop in ranges for row in range(start, stop)]
