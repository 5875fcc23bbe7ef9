"""Prepares datasets for workers, in the driver: fits the preprocessor, counts rows, stores what must be stored."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.data_config import DatasetConfig, Uneven
from paceline.air.errors import ConfigError, DataError
from paceline.air.words import counted
from paceline.data.ingest.prepared import PreparedDataset, Shuffle, origin_of
from paceline.data.plan import Plan
from paceline.data.preprocessor import Preprocess, Preprocessor
from paceline.data.sources.shuffled import BlockShuffled, RowShuffled
from paceline.data.store import stored

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


@dataclass(frozen=True)
class Prepared:
    """All datasets of a run, ready to travel."""

    datasets: dict[str, PreparedDataset]
    preprocessor: Preprocessor | None = None
    """Fitted, to be stored in checkpoints."""
    notes: list[str] = field(default_factory=list)
    """What the user should know: rows that are left out, or that could not be read."""


def prepare(
    datasets: Mapping[str, Dataset | Callable[[], Dataset]],
    configs: Mapping[str, DatasetConfig],
    preprocessor: Preprocessor | None,
    workers: int,
    *,
    in_step: bool = True,
) -> Prepared:
    """Do all that needs a look at all rows. `configs` has a complete entry for every dataset.

    `in_step`: the workers read batch by batch together, so that it matters if one of them has more.
    """
    given = {name: as_dataset(name, value) for name, value in datasets.items()}
    notes: list[str] = []
    if preprocessor is not None:
        note = fit_preprocessor(preprocessor, given, configs)
        notes += [note] if note else []
        preprocessor = preprocessor if given or is_ready(preprocessor) else None
    ready: dict[str, PreparedDataset] = {}
    for name, dataset in given.items():
        config = configs[name]
        if preprocessor is not None and config.transform:
            dataset = preprocessor.transform(dataset)
        if config.per_epoch_preprocessor is not None:
            dataset = dataset._then(Preprocess(config.per_epoch_preprocessor))
        uneven: Uneven = config.uneven or "all"
        ready[name] = prepared(
            name, dataset, split=bool(config.split), uneven=uneven, shuffle=_asked_shuffle(config), seed=config.seed
        )
        notes += _notes(ready[name], workers, in_step)
    return Prepared(ready, preprocessor, notes)


def as_dataset(name: str, value: Any) -> Dataset:
    """The dataset itself, or what a function without arguments makes."""
    from paceline.data.dataset import Dataset

    made = value
    if callable(value) and not isinstance(value, Dataset):
        try:
            made = value()
        except Exception as error:
            error.add_note(f"This was raised by the function given as datasets[{name!r}].")
            raise
    if not isinstance(made, Dataset):
        what = "what the function returned" if made is not value else "the value"
        raise ConfigError(
            f"datasets[{name!r}]: {what} must be a paceline.data Dataset, not {type(made).__name__}. Make one with "
            "paceline.data.read_parquet(...), from_pandas(...), from_items(...)."
        )
    return made


def is_ready(preprocessor: Preprocessor) -> bool:
    """True if it need not be fitted before it transforms."""
    return preprocessor.fit_status() in (Preprocessor.FitStatus.FITTED, Preprocessor.FitStatus.NOT_FITTABLE)


def fit_preprocessor(
    preprocessor: Preprocessor, datasets: Mapping[str, Dataset], configs: Mapping[str, DatasetConfig]
) -> str | None:
    """Fit it on the dataset that is marked for it, or on the only one, unless it is fitted already.

    Returns a note for the user if that was not the dataset they may expect.
    """
    if is_ready(preprocessor):
        return None
    if not datasets:
        return f"The preprocessor {preprocessor!r} is ignored: it is not fitted, and no dataset was given."
    marked = [name for name in datasets if configs[name].fit]
    if not marked and len(datasets) > 1:
        raise ConfigError(
            f"The preprocessor {preprocessor!r} is fitted on the dataset 'train', but the datasets are "
            f"{sorted(datasets)}: rename one, set DatasetConfig(fit=True) for one, or pass a fitted preprocessor."
        )
    (name,) = marked or datasets
    preprocessor.fit(datasets[name])
    return None if marked else f"The preprocessor was fitted on {name!r}, the only dataset."


def _asked_shuffle(config: DatasetConfig) -> Shuffle:
    if config.global_shuffle:
        return "rows"
    return "blocks" if config.randomize_block_order else "none"


def prepared(
    name: str,
    dataset: Dataset,
    *,
    split: bool = False,
    uneven: Uneven = "all",
    shuffle: Shuffle = "none",
    seed: int | None = None,
) -> PreparedDataset:
    """One dataset, ready to be read epoch by epoch.

    A shuffle at the end of the dataset's own plan becomes the order of epochs: it is made anew for each of them.
    """
    plan = dataset.plan
    source = plan.source
    if isinstance(source, RowShuffled | BlockShuffled):
        shuffle = "rows" if isinstance(source, RowShuffled) else shuffle if shuffle == "rows" else "blocks"
        seed = source.seed if seed is None else seed
        plan = Plan(source.child, plan.operations)
    if seed is None:
        seed = random.getrandbits(31) if shuffle != "none" else 0
    mark = _mark_of(plan.seeds())
    plan = plan.resolved()
    if shuffle == "rows":
        plan = _with_random_access(plan)
    if plan.for_epoch(1) is not plan and not plan.for_epoch(1).knows_counts:
        # The rows of each block would have to be counted in every epoch: its order is settled once instead.
        plan = Plan(stored(plan))
    try:
        plan.counted()
    except DataError as error:
        raise type(error)(f"dataset {name!r}: {error}") from error.__cause__
    return PreparedDataset(name, plan, split, uneven, shuffle, seed, mark, origin_of(dataset.plan))


def _mark_of(seeds: tuple[int, ...]) -> int:
    import xxhash

    return xxhash.xxh32_intdigest(repr(seeds).encode()) if seeds else 0


def _with_random_access(plan: Plan) -> Plan:
    """A plan whose source can be read row by row in any order; operations follow it where they keep rows in place."""
    if all(operation.keeps_row_count and operation.row_local for operation in plan.operations):
        source = plan.source if hasattr(plan.source, "take") else stored(Plan(plan.source))
        return Plan(source, plan.operations)
    return Plan(stored(plan))


def _notes(dataset: PreparedDataset, workers: int, in_step: bool) -> list[str]:
    """Refuse what cannot work with so many workers; tell what is left out."""
    notes = [f"dataset {dataset.name!r}: skipped {each}" for each in dataset.plan.skipped()]
    if not dataset.split:
        return notes
    rows = dataset.rows
    surplus = rows % workers
    does_not_divide = f"{counted(rows, 'row')} {'does' if rows == 1 else 'do'} not divide by {workers} workers"
    ways_out = (
        'Use fewer workers, or let ranks have unequally many rows: DatasetConfig(split=True, uneven="all") or '
        'DataConfig(uneven="all").'
    )
    if dataset.uneven == "error" and surplus:
        raise DataError(
            f'dataset {dataset.name!r}: {does_not_divide}, and uneven="error" asks to refuse that. {ways_out}'
        )
    if dataset.uneven == "all" and dataset.name == TRAIN_DATASET_KEY and surplus and in_step:
        notes.append(
            f"dataset {dataset.name!r}: {does_not_divide}, so some ranks get a row more "
            'than others (uneven="all"). If that makes a batch more, a collective in each batch (DDP) waits for ever '
            'at the last one: use uneven="equal", "join" or "pad_mask".'
        )
    if dataset.uneven == "equal":
        if rows < workers:
            raise DataError(
                f"dataset {dataset.name!r} has {counted(rows, 'row')} for {workers} workers: no worker would get any. "
                f"{ways_out}"
            )
        if surplus:
            notes.append(
                f"dataset {dataset.name!r}: {does_not_divide}; each epoch leaves out "
                f"{counted(surplus, 'row')}, so that all ranks get equally many; which ones changes from epoch to "
                'epoch (uneven="all" keeps them all).'
            )
    return notes
