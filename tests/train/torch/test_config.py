from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.train.torch import TorchConfig, TorchTrainer
from paceline.train.torch.backend import TorchBackend


def test_defaults() -> None:
    config = TorchConfig()
    assert (config.backend, config.init_method, config.timeout_s) == (None, "env", 1800)
    assert config.backend_cls is TorchBackend


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ({"backend": "glo"}, "'gloo'"),
        ({"backend": ""}, "'gloo'.*None"),
        ({"backend": 3}, "'gloo'"),
        ({"backend": "cpu:gloo,cuda:ncc"}, "cpu:gloo,cuda:nccl"),
        ({"init_method": "env://"}, "'env'.*'tcp'"),
        ({"timeout_s": 0}, r"timeout_s.*\b0\b"),
        ({"timeout_s": True}, "timeout_s.*True"),
        ({"timeout_s": "60"}, "timeout_s.*'60'"),
        ({"timeout_s": float("inf")}, "timeout_s.*inf"),
    ],
)
def test_what_cannot_work_is_refused(setting: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        TorchConfig(**setting)


def test_mixed_backends_are_accepted() -> None:
    assert TorchConfig(backend="cpu:gloo,cuda:nccl").backend == "cpu:gloo,cuda:nccl"


def test_torch_backend_is_another_name_for_torch_config() -> None:
    scaling = ScalingConfig(num_workers=1)
    config = TorchConfig(timeout_s=7)
    for name in ("torch_config", "torch_backend"):
        trainer = TorchTrainer(print, scaling_config=scaling, **{name: config})  # type: ignore[arg-type]
        assert trainer.to_run_spec().backend_config is config
        with pytest.raises(ConfigError, match=f"{name}.*TorchConfig.*str"):
            TorchTrainer(print, scaling_config=scaling, **{name: "gloo"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"torch_config.*torch_backend"):
        TorchTrainer(print, scaling_config=scaling, torch_config=config, torch_backend=config)


def test_the_driver_does_not_import_torch() -> None:
    script = "import sys, paceline.train.torch as t; t.TorchTrainer, t.prepare_model; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "False"


def test_without_torch_the_import_says_what_to_install() -> None:
    script = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "import paceline.train.torch"
    )
    ended = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert "pip install 'paceline[torch]'" in ended.stderr
