"""LightGBMCheckpoint: a booster as a checkpoint."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint_files import LIGHTGBM_DETAILS, LIGHTGBM_MODEL
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, ConfigError
from paceline.air.words import counted
from paceline.train.model_checkpoint import ModelCheckpoint, ModelSource

if TYPE_CHECKING:
    import lightgbm as lgb

    from paceline.air.packing import FileSink
    from paceline.train.lightgbm.features import Features

MODEL_FILE = "model.txt"
DETAILS_FILE = "model_details.json"

C = TypeVar("C", bound="LightGBMCheckpoint")


@dataclass(frozen=True)
class Details:
    """What a model file does not hold."""

    best_iteration: int = -1
    """As in the booster: that with the best score, where training stopped early."""
    features: Features | None = None
    """From which columns the model's features come, where the trainer made them."""
    evaluations: list[list[list[Any]]] = field(default_factory=list)
    """For each round, what was evaluated: [dataset, metric, value, whether higher is better]. With it callbacks such
    as early stopping go on as if there had been no break."""
    rounds: int | None = None
    """How many rounds were trained. Those in which nothing could be split have left no tree. None: not known."""

    def encode(self) -> bytes:
        stored = {
            "best_iteration": self.best_iteration,
            "features": None if self.features is None else self.features.to_json(),
            "evaluations": self.evaluations,
            "rounds": self.rounds,
        }
        return json.dumps(stored).encode()

    @classmethod
    def decode(cls, content: bytes | None) -> Details:
        from paceline.train.lightgbm.features import Features

        if content is None:
            return cls()
        stored = json.loads(content)
        features = None if stored["features"] is None else Features.from_json(stored["features"])
        return cls(stored["best_iteration"], features, stored["evaluations"], stored["rounds"])


@dataclass(frozen=True)
class BoosterObject(ModelSource):
    """A booster in this process; written as LightGBM's text file."""

    booster: Any
    details: Details
    file_name: str = MODEL_FILE

    def describe(self) -> str:
        return f"Booster of {counted(self.booster.num_trees(), 'tree')}"

    def read_file(self, name: str) -> bytes | None:
        return self.details.encode() if name == DETAILS_FILE else None

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        with sink.open(self.file_name) as file:
            file.write(self.booster.model_to_string(num_iteration=-1).encode())
        with sink.open(DETAILS_FILE) as file:
            file.write(self.details.encode())

    def load_dict(self) -> dict[str, Any]:
        return {MODEL_KEY: self.booster}


class LightGBMCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a LightGBM booster, in LightGBM's own text format: loading it runs no code."""

    @classmethod
    def from_model(
        cls: type[C],
        booster: Any,
        *,
        path: str | os.PathLike[str] | None = None,
        preprocessor: Any = None,
    ) -> C:
        """A checkpoint of a booster; with `path` it is written to that directory at once."""
        from lightgbm import Booster

        if not isinstance(booster, Booster):
            advice = " Pass its booster_ attribute." if hasattr(booster, "booster_") else ""
            raise ConfigError(f"from_model() takes a lightgbm.Booster, not {type(booster).__name__}.{advice}")
        return cls._of(BoosterObject(booster, Details(booster.best_iteration)), preprocessor, path)

    def get_model(self, filename: str = MODEL_FILE) -> lgb.Booster:
        """The booster, with all its trees; it predicts with those up to the best iteration, if there is one."""
        from lightgbm import Booster
        from lightgbm.basic import LightGBMError

        held = self._source.booster if isinstance(self._source, BoosterObject) else self.peek(MODEL_KEY)
        if isinstance(held, Booster):
            return held
        content = self.read_file(filename)
        if content is None and filename == MODEL_FILE:
            content = self.read_file(LIGHTGBM_MODEL)
        if content is None:
            raise CheckpointError(
                f"{self!r} holds no LightGBM model: it has no file {filename}. Save one with "
                "LightGBMCheckpoint.from_model(booster). One that was stored in a dict by an earlier version is "
                f"checkpoint.to_dict()[{MODEL_KEY!r}]; that unpickles, so do so only if you know where it comes from."
            )
        try:
            booster = Booster(model_str=content.decode())
        except (LightGBMError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self!r}: {filename} is damaged, or not a LightGBM model: {error}") from error
        booster.best_iteration = self.details().best_iteration
        return booster

    def details(self) -> Details:
        """What is kept beside the model; nothing for one that was saved by other means."""
        return Details.decode(self.read_file(DETAILS_FILE) or self.read_file(LIGHTGBM_DETAILS))
