"""LightningConfigBuilder: what LightningTrainer shall do, collected step by step."""

from __future__ import annotations

from typing import Any, Self

from paceline.air.errors import ConfigError
from paceline.train.lightning.settings import checked_settings


class LightningConfigBuilder:
    """Collects what a Lightning script would call, for every worker to call it.

        lightning_config = (
            LightningConfigBuilder()
            .module(MyModule, lr=1e-3)
            .trainer(max_epochs=10)
            .fit_params(datamodule=MyData())
            .checkpointing(monitor="val_loss", save_top_k=2)
            .build()
        )

    Each method may be called several times; later values win. What a search shall try goes the same way, into
    `Tuner(trainer, param_space={"lightning_config": LightningConfigBuilder().module(lr=tune.uniform(...)).build()})`.
    """

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}

    def module(self, cls: type[Any] | None = None, **kwargs: Any) -> Self:
        """The class of the LightningModule, and the arguments that workers make it with."""
        if cls is not None:
            self._config["module"] = cls
        return self._with("module_args", kwargs)

    def trainer(self, **kwargs: Any) -> Self:
        """Arguments of `lightning.pytorch.Trainer`."""
        return self._with("trainer_args", kwargs)

    def fit_params(self, **kwargs: Any) -> Self:
        """Arguments of `Trainer.fit`: `datamodule`, or `train_dataloaders` and `val_dataloaders`; `ckpt_path`."""
        return self._with("fit_args", kwargs)

    def strategy(self, name: str = "ddp", **kwargs: Any) -> Self:
        """How the workers train together: "ddp", "fsdp" or "deepspeed", with the arguments of Lightning's strategy."""
        earlier = self._config.setdefault("strategy", name)
        if earlier != name:
            raise ConfigError(f"The strategy is {earlier!r} already, and shall be {name!r} too: choose one.")
        return self._with("strategy_args", kwargs)

    def ddp_strategy(self, **kwargs: Any) -> Self:
        """Arguments of Lightning's DDPStrategy, e.g. find_unused_parameters=True."""
        return self.strategy("ddp", **kwargs)

    def checkpointing(self, **kwargs: Any) -> Self:
        """Arguments of Lightning's ModelCheckpoint, which decides when the run gets a checkpoint."""
        return self._with("checkpoint_args", kwargs)

    def build(self) -> dict[str, Any]:
        """What `LightningTrainer(lightning_config=...)` takes."""
        checked_settings(self._config)
        return {name: dict(value) if isinstance(value, dict) else value for name, value in self._config.items()}

    def _with(self, part: str, values: dict[str, Any]) -> Self:
        if values:
            self._config[part] = {**self._config.get(part, {}), **values}
        return self
