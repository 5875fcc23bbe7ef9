"""Ranks that have unequally many rows, and still equally many steps: by padding, or by joining.

`uneven="pad_mask"`: every batch of every rank has `batch_size` rows, and every rank equally many batches. Rows that are
not there are filled in with copies, and a column says which rows are real.

`uneven="join"`: ranks that have no more batches take part in the collectives of the others (`Join` of torch). Models
are registered here by whoever wraps them; the pass over the batches is the context in which they join.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError
from paceline.data.ingest import ranges as rs

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.ingest.position import Shares

VALID_COLUMN = "__valid__"
"""True for the rows of the dataset, False for those that fill up a batch."""

_joinable: list[weakref.ref[Any]] = []


def check_form(called: str, dataset: str, uneven: str, workers: int) -> None:
    """Refuse a form of rows that cannot be had with unequally many of them."""
    if called == "iter_jax_batches":  # its arrays have the rows of all workers
        if uneven in ("all", "join") and workers > 1:
            raise DataError(
                f"dataset {dataset!r}: iter_jax_batches() needs equally many batches on every worker, which "
                f'uneven={uneven!r} does not give. Use uneven="equal", or "pad_mask" to miss no row.'
            )
    elif uneven == "pad_mask" or (uneven == "join" and called != "to_torch" and workers > 1):
        raise DataError(
            f"dataset {dataset!r}: {called}() cannot be used with uneven={uneven!r}. Use "
            'iter_torch_batches() or iter_batches(), or uneven="equal".'
        )


def batches_of_all(shares: Shares, batch_size: int) -> int:
    """How many batches the rank with the most rows has left."""
    yielded = shares.position.legs[-1].yielded
    left = [max(0, rs.length(part) - done) for part, done in zip(shares.parts, yielded, strict=True)]
    return -(-max(left, default=0) // batch_size)


def padded(chunks: Iterator[Chunk], rows: int, a_row: Callable[[], Chunk]) -> Iterator[Chunk]:
    """The chunks with a mask, filled up to so many rows by the last one. `a_row` is for ranks without any."""
    given, last = 0, None
    for chunk in chunks:
        if chunk.num_rows:
            given, last = given + chunk.num_rows, chunk
            yield _marked(chunk, is_real=True)
    if missing := rows - given:
        last = a_row() if last is None else last
        yield _marked(last.take(_numbers([last.num_rows - 1] * missing)), is_real=False)


def _marked(chunk: Chunk, *, is_real: bool) -> Chunk:
    import pyarrow as pa

    if VALID_COLUMN in chunk.schema.names:
        raise DataError(f'uneven="pad_mask" adds a column {VALID_COLUMN!r}, and the dataset has one: rename it.')
    mask = pa.array([is_real] * chunk.num_rows, pa.bool_())
    return pa.RecordBatch.from_arrays(
        [*chunk.columns, mask], schema=chunk.schema.append(pa.field(VALID_COLUMN, pa.bool_()))
    )


def _numbers(values: Sequence[int]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.int64())


def register(model: Any) -> None:
    """A model whose ranks can join: one that torch calls Joinable."""
    _joinable.append(weakref.ref(model))


@contextmanager
def joined(dataset: str) -> Iterator[Callable[[], None]]:
    """Around a pass: a rank that has ended its own takes part in what the others do until they have ended theirs.

    What it gives is called before each batch.
    """
    from torch.distributed.algorithms.join import Join, _JoinConfig

    model = _model_to_join(dataset)
    forwards = 0

    def starts_batch() -> None:
        nonlocal forwards
        forwards = 0

    def count_forward(module: Any, arguments: Any) -> None:
        nonlocal forwards
        forwards += 1
        if forwards > 1:
            raise DataError(
                f'dataset {dataset!r}: uneven="join" allows one call of the model and one backward() for each batch, '
                f"and {_name(model)} was called a second time. Give it all inputs in one call, or use "
                'uneven="equal" or "pad_mask". To evaluate within the loop, call the model without its wrapper: '
                "model.module(...)."
            )

    hook = model.register_forward_pre_hook(count_forward)
    try:
        with Join([model]):
            yield starts_batch
    finally:
        hook.remove()
        # Join leaves it switched on, and every later call of the model would wait for all ranks.
        model._join_config = _JoinConfig.construct_disabled_join_config()  # type: ignore[no-untyped-call]


def _model_to_join(dataset: str) -> Any:
    """The only one: a rank without batches can take part in the collectives of one model, called once per batch."""
    models = _models_alive()
    if len(models) > 1:
        del models
        gc.collect()  # Models that nobody uses any more may refer to themselves.
        models = _models_alive()
    if not models:
        raise DataError(
            f'dataset {dataset!r}: uneven="join" needs a model that prepare_model() has wrapped in '
            "DistributedDataParallel, and there is none. Call prepare_model() before the loop over batches, or use "
            'uneven="equal" or "pad_mask".'
        )
    if len(models) > 1:
        raise DataError(
            f'dataset {dataset!r}: uneven="join" works with one model, and prepare_model() has wrapped {len(models)}: '
            f'{", ".join(map(_name, models))}. Use uneven="equal" or "pad_mask". A model that is not trained '
            "needs no wrapper: prepare_model(model, parallel_strategy=None)."
        )
    return models[0]


def _models_alive() -> list[Any]:
    return [model for reference in _joinable if (model := reference()) is not None]


def _name(model: Any) -> str:
    return type(model.module).__name__
