"""A trainer of the user's own, in a module whose annotations are objects, not text."""

import inspect
from dataclasses import dataclass
from typing import Any, Unpack

import pytest

from paceline.air.errors import ConfigError
from paceline.train import BackendConfig, DataParallelTrainer
from paceline.train.arguments import DataParallelArguments, chosen_config


@dataclass
class ChoirConfig(BackendConfig):
    word: str = "la"


class ChoirTrainer(DataParallelTrainer):
    def __init__(
        self,
        train_loop_per_worker: Any,
        *,
        choir_config: ChoirConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        config = chosen_config("ChoirTrainer", ChoirConfig, choir_config=choir_config)
        super().__init__(train_loop_per_worker, backend_config=config, **common)


class WrittenTrainer(DataParallelTrainer):
    """The same, with its annotation as text."""

    def __init__(
        self,
        train_loop_per_worker: Any,
        *,
        choir_config: ChoirConfig | None = None,
        **common: "Unpack[DataParallelArguments]",
    ) -> None:
        config = chosen_config("WrittenTrainer", ChoirConfig, choir_config=choir_config)
        super().__init__(train_loop_per_worker, backend_config=config, **common)


def sing() -> None: ...


@pytest.mark.parametrize("trainer", [ChoirTrainer, WrittenTrainer])
def test_the_common_arguments_are_shown_by_their_names(trainer: type[DataParallelTrainer]) -> None:
    shown = inspect.signature(trainer).parameters
    assert list(shown)[:2] == ["train_loop_per_worker", "choir_config"]
    assert {"scaling_config", "run_config", "datasets", "dataset_config", "metadata"} <= set(shown)
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in shown.values())


@pytest.mark.parametrize("trainer", [ChoirTrainer, WrittenTrainer])
def test_a_backend_under_the_wrong_name_is_answered(trainer: Any) -> None:
    with pytest.raises(ConfigError, match=r"has no argument 'backend_config': did you mean choir_config\?"):
        trainer(sing, backend_config=ChoirConfig())
    with pytest.raises(ConfigError, match=r"'run_confg'.*run_config\?"):
        trainer(sing, run_confg=None)
