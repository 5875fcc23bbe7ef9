"""RLTrainer: trains a policy with an algorithm of RLlib."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from paceline.air.checks import check_bool, warn_at_users_line
from paceline.air.config import ScalingConfig
from paceline.air.errors import CheckpointError, ConfigError, RestoreError
from paceline.air.secrets import secret_paths
from paceline.air.settings import as_json
from paceline.engine.choose import choose_engine
from paceline.run.attempt import modules_to_preload
from paceline.run.history import load_result
from paceline.train.arguments import continued_preprocessor, make_ingest
from paceline.train.base_trainer import BaseTrainer
from paceline.train.rl.backend import RLConfig
from paceline.train.rl.checkpoint import RLCheckpoint
from paceline.train.rl.loop import RLLoop

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.config import RunConfig
    from paceline.air.result import Result
    from paceline.run.spec import RunSpec


_PICKLES = (
    "RLlib's checkpoints are pickles, and reading a pickle runs whatever code is in it. If you know where this one "
    "comes from, say so:"
)


class RLTrainer(BaseTrainer):
    """Trains a policy with RLlib. One process learns; `num_workers` others play.

        trainer = RLTrainer(
            algorithm="PPO",
            config={"env": "CartPole-v1", "lr": 3e-4, "train_batch_size": 2000},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(stop={"episode_reward_mean": 150}),
        )
        result = trainer.fit()
        policy = result.checkpoint.get_policy()
        action = policy.compute_single_action(observation)

    - `algorithm`: the name of an algorithm of RLlib, such as "PPO", or its class.
    - `config`: an AlgorithmConfig, or a dictionary of its settings. Names of Ray 2.6 and before are translated; what
      has no counterpart in RLlib's new API stack is an error that says what to write instead.
    - `scaling_config`: `num_workers` is the number of env runners, processes that collect episodes. With `use_gpu`
      the process that learns has a GPU. It uses one thread, or as many as `trainer_resources={"CPU": n}` says.
    - `run_config`: `stop` says when to end, because reinforcement learning has no end of its own.
      CheckpointConfig(checkpoint_frequency=n) saves a checkpoint every n iterations. The last iteration is saved
      anyway, unless checkpoint_at_end=False.
    - `datasets`: {"train": rows} for algorithms that learn from recorded steps: BC, MARWIL, CQL, IQL.
    - `trust`: RLlib's checkpoints are pickles. With True, the trainer continues from one that this program did not
      make, given as `resume_from_checkpoint` or by `restore()`.

    Each training iteration of RLlib is one row of the result.
    """

    _handles_checkpoint_freq: ClassVar[bool] = True
    _handles_checkpoint_at_end: ClassVar[bool] = True
    _reports_by_itself: ClassVar[bool] = True
    _not_elastic: ClassVar[str] = "RLlib keeps the number of its env runners"

    def __init__(
        self,
        algorithm: str | type,
        config: Any = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        preprocessor: Any = None,
        resume_from_checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        trust: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        check_bool(trust, "trust", advice="True: the checkpoint to continue from is one that you trust.")
        self.trust = trust
        super().__init__(
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
        )
        # The worker's imports begin while the user's own program continues.
        choose_engine(self.run_config.engine).warm(modules_to_preload(RLConfig(), with_data=bool(self.datasets)), 1)
        self._algorithm_config = self._translated()
        if self.scaling_config.num_workers is None and self._algorithm_config.num_env_runners:
            # A search counts what its trials need.
            self.scaling_config = replace(self.scaling_config, num_workers=self._algorithm_config.num_env_runners)

    # -- arguments --------------------------------------------------------------------------

    def _check_arguments(self) -> None:
        super()._check_arguments()
        resumed = self.resume_from_checkpoint
        if resumed is not None and not self.trust and not (isinstance(resumed, RLCheckpoint) and resumed.made_here):
            raise CheckpointError(f"resume_from_checkpoint={resumed!r}: {_PICKLES} RLTrainer(..., trust=True).")
        given = self.config if isinstance(self.config, Mapping) else {}
        if secrets := secret_paths(dict(given)):
            warn_at_users_line(
                f"config holds a secret, {'.'.join(map(str, secrets[0]))}. RLlib writes the config into each "
                "checkpoint as it is. Let the environment read the secret from a file or a variable instead."
            )

    def _translated(self) -> Any:
        """The AlgorithmConfig for all arguments."""
        from paceline.train.rl.config import (
            algorithm_class,
            algorithm_config,
            check_together,
            with_env_runners,
            with_failures_reported,
        )
        from paceline.train.rl.offline import check_dataset

        algorithm = algorithm_class(self.algorithm)
        config = algorithm_config(algorithm, self.config)
        check_dataset(self.datasets, algorithm, config.input_)
        if self.resume_from_checkpoint is not None:
            RLCheckpoint.from_checkpoint(self.resume_from_checkpoint).check_continued_by(algorithm.__name__)
        scaling = self.scaling_config
        self._warn_about_another_number()
        asked = scaling.resources_per_worker or {}
        with_env_runners(config, scaling.max_workers, asked.get("CPU"), asked.get("GPU"), scaling.use_gpu)
        if own := (scaling.trainer_resources or {}).get("CPU"):
            config.resources(num_cpus_for_main_process=max(1, int(own)))
        with_failures_reported(config, self.config)
        if not self.datasets:  # the worker adds what comes from them
            check_together(config)
        return config

    def _warn_about_another_number(self) -> None:
        wanted = self.scaling_config.num_workers
        given = self.config if isinstance(self.config, Mapping) and wanted is not None else {}
        for name in ("num_workers", "num_rollout_workers", "num_env_runners"):
            if name in given and given[name] != wanted:
                warn_at_users_line(
                    f"config[{name!r}] is {given[name]!r}, but ScalingConfig(num_workers={wanted}) sets the number of "
                    "env runners. Leave one of the two out."
                )

    def with_overrides(self, overrides: Mapping[str, Any], run_config: RunConfig | None = None) -> Self:
        """A search's settings are laid over an AlgorithmConfig as over a dictionary."""
        settings = overrides.get("config")
        if isinstance(settings, Mapping) and self.config is not None and not isinstance(self.config, Mapping):
            from paceline.train.rl.config import fill

            together = self.config.copy(copy_frozen=False)
            fill(together, settings, explicit=True)
            overrides = {**overrides, "config": together}
        return super().with_overrides(overrides, run_config)

    # -- running ----------------------------------------------------------------------------

    def fit(self, *, raise_on_error: bool = True, resume: Literal["auto", "must"] | None = None) -> Result:
        if self.run_config.stop is None:
            self._check_without_stop()
        return super().fit(raise_on_error=raise_on_error, resume=resume)

    def _check_without_stop(self) -> None:
        raise ConfigError(
            "When does the training end? Reinforcement learning has no end of its own: pass "
            'run_config=RunConfig(stop={"training_iteration": 100}), for example, or stop={"episode_reward_mean": 150}.'
        )

    def _check_search_continued(self) -> None:
        if not self.trust:
            raise CheckpointError(
                f"The search is not continued: {_PICKLES} Tuner.restore(path, RLTrainer(..., trust=True))."
            )

    def to_run_spec(self) -> RunSpec:
        from paceline.train.rl.config_envs import shipped_registrations

        checkpoints = self.run_config.checkpoint_config
        loop = RLLoop(
            config=self._algorithm_config,
            environments=shipped_registrations(self._algorithm_config),
            is_offline=bool(self.datasets),
            checkpoint_frequency=checkpoints.checkpoint_frequency,
            checkpoint_at_end=checkpoints.checkpoint_at_end is not False,
        )
        spec = self._run_spec(
            loop,
            {"config": self._plain_config() or {}},
            backend_config=RLConfig(),
            ingest=make_ingest(self.datasets, None, self.preprocessor, self.resume_from_checkpoint),
            numbers_by_iteration=True,
            arguments=self._stored_arguments(),
        )
        return replace(spec, scaling=self._one_worker(), room=self._room())

    def _room(self) -> tuple[Mapping[str, float], ...]:
        from paceline.train.rl.cluster import bundles

        return bundles(self._algorithm_config, use_gpu=self.scaling_config.use_gpu)

    def _one_worker(self) -> ScalingConfig:
        """For the run: one worker, whose children are env runners and, if there are any, learners."""
        config, asked = self._algorithm_config, self.scaling_config
        runners = config.num_env_runners + (config.evaluation_num_env_runners if config.evaluation_interval else 0)
        cpus = config.num_cpus_for_main_process + runners * config.num_cpus_per_env_runner + config.num_learners
        gpus = {"GPU": 1.0} if asked.use_gpu else {}
        return ScalingConfig(
            num_workers=1,
            resources_per_worker={"CPU": float(cpus), **gpus},
            use_gpu=asked.use_gpu,
            placement_strategy=asked.placement_strategy,
            accelerator_type=asked.accelerator_type,
        )

    def _plain_config(self) -> dict[str, Any] | None:
        """The configuration if it is plain data, which can be stored."""
        plain = isinstance(self.config, Mapping) and as_json(dict(self.config)) is not None
        return dict(self.config) if plain else None

    def _stored_arguments(self) -> dict[str, Any]:
        scaling = self.scaling_config
        config = self._plain_config()
        return {
            "algorithm": self.algorithm if isinstance(self.algorithm, str) else None,
            "config": None if config is None or secret_paths({"config": config}) else config,
            "has_config": self.config is not None,
            "num_workers": scaling.num_workers,
            "resources_per_worker": scaling.resources_per_worker,
            "trainer_resources": scaling.trainer_resources,
        }

    # -- continuing an earlier run ----------------------------------------------------------

    def _again(self) -> list[str]:
        stored = self._stored_arguments()
        names = [name for name in ("algorithm", "config") if stored[name] is None and getattr(self, name) is not None]
        return ["trust=True", *names, *super()._again()]

    @classmethod
    def _restored_arguments(cls, settings: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        stored = settings["arguments"]
        again = dict(arguments)
        for name, needed in (("algorithm", True), ("config", stored["has_config"])):
            if again.get(name) is None and needed:
                if stored[name] is None:
                    raise RestoreError(
                        f"RLTrainer.restore() needs {name}= again: code and secrets are not stored with a run."
                    )
                again[name] = stored[name]
        scaling = {  # the run itself had one worker
            **settings["scaling_config"],
            "num_workers": stored["num_workers"],
            "resources_per_worker": stored["resources_per_worker"],
            "trainer_resources": stored.get("trainer_resources"),  # earlier versions did not keep it
        }
        return super()._restored_arguments({**settings, "scaling_config": scaling}, again)

    def _continue(self, path: str, settings: Mapping[str, Any]) -> None:
        super()._continue(path, settings)
        filesystem = self.run_config.storage_filesystem
        if not self.trust and load_result(path, filesystem).checkpoint is not None:
            raise CheckpointError(f"{path} is not restored: {_PICKLES} RLTrainer.restore(path, trust=True).")
        self.preprocessor = continued_preprocessor(path, filesystem, self.preprocessor)
