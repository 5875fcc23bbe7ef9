"""The variables that workers get are those that Accelerate's own launcher would set."""

from __future__ import annotations

import base64
import json
import os
import re
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.train.huggingface import backend
from paceline.train.huggingface.accelerate.launch import for_run, launch_variables, variables_or_problem


def variables(settings: dict[str, Any], use_gpu: bool = False) -> dict[str, str]:
    before = dict(os.environ)
    found = launch_variables(for_run(settings, 2, use_gpu), "accelerate_config")
    assert dict(os.environ) == before
    assert not {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"} & found.keys()
    return found


def test_precision_accumulation_and_compilation() -> None:
    found = variables(
        {
            "mixed_precision": "bf16",
            "gradient_accumulation_steps": 4,
            "dynamo_config": {"dynamo_backend": "INDUCTOR", "mode": "reduce-overhead", "dynamo_use_fullgraph": True},
            "debug": True,
            "gpu_ids": "3",
            "main_process_ip": "10.0.0.1",
        }
    )
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert found["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"
    assert found["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    assert found["ACCELERATE_DYNAMO_MODE"] == "reduce-overhead"
    assert found["ACCELERATE_DYNAMO_USE_FULLGRAPH"] == "True"
    assert found["ACCELERATE_DEBUG_MODE"] == "true"
    assert "ACCELERATE_USE_FSDP" not in found
    assert "ACCELERATE_USE_DEEPSPEED" not in found


@pytest.mark.parametrize("use_gpu", [False, True])
def test_fsdp(use_gpu: bool) -> None:
    found = variables(
        {
            "distributed_type": "FSDP",
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": "Block",
                "fsdp_offload_params": True,
                "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            },
        },
        use_gpu,
    )
    assert found["ACCELERATE_USE_FSDP"] == "true"
    assert found["FSDP_VERSION"] == "2"
    assert found["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    assert found["FSDP_TRANSFORMER_CLS_TO_WRAP"] == "Block"
    assert found["FSDP_OFFLOAD_PARAMS"] == "true"
    assert found["FSDP_STATE_DICT_TYPE"] == "SHARDED_STATE_DICT"
    assert found["FSDP_CPU_RAM_EFFICIENT_LOADING"] == str(use_gpu).lower()  # on CPUs every rank loads its weights


def test_gpus_without_anything_special() -> None:
    found = variables({"mixed_precision": "fp16", "num_processes": 1, "gpu_ids": "0"}, use_gpu=True)
    assert found["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert not {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"} & found.keys()


def test_deepspeed() -> None:
    found = variables(
        {
            "distributed_type": "DEEPSPEED",
            "mixed_precision": "bf16",
            "deepspeed_config": {
                "zero_stage": 3,
                "gradient_accumulation_steps": 2,
                "gradient_clipping": 1.0,
                "offload_optimizer_device": "cpu",
                "zero3_init_flag": True,
            },
        },
        use_gpu=True,
    )
    assert found["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert found["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert found["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "2"
    assert found["ACCELERATE_GRADIENT_CLIPPING"] == "1.0"
    assert found["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] == "cpu"
    assert found["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "true"
    fields = "zero_stage,gradient_accumulation_steps,gradient_clipping,offload_optimizer_device,zero3_init_flag"
    assert found["ACCELERATE_CONFIG_DS_FIELDS"] == f"{fields},mixed_precision"


def test_the_content_of_deepspeeds_file_needs_no_file_on_the_worker() -> None:
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    content = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    settings = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": content}}
    value = variables(settings, use_gpu=True)["ACCELERATE_DEEPSPEED_CONFIG_FILE"]
    assert json.loads(base64.urlsafe_b64decode(value)) == content
    assert HfDeepSpeedConfig(value).is_zero3()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fsdp_config": {"fsdp_versoin": 2}}, "fsdp_config.*'fsdp_versoin'.*fsdp_version"),
        ({"dynamo_config": {"mod": "x"}}, "dynamo_config.*'mod'.*dynamo_mode"),
        ({"deepspeed_config": {"zero_stag": 1}}, "deepspeed_config.*'zero_stag'.*zero_stage"),
        ({"dynamo_backend": "nonesuch"}, "Accelerate.*NONESUCH"),
    ],
)
def test_a_driver_is_told_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    found, problem = variables_or_problem(for_run(settings, 2, use_gpu=False), "accelerate_config")
    assert found == {}
    assert re.search(said, problem or "")
    with pytest.raises(ConfigError, match=said):
        variables(settings)


def test_accelerate_begins_anew_and_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states = (AcceleratorState._shared_state, PartialState._shared_state, GradientState._shared_state)
    for state in states:
        state.clear()  # of other tests
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    PartialState._shared_state["num_processes"] = 5  # the driver has an Accelerator of its own
    try:
        for _ in range(2):  # the first run does not get to leave
            backend.enter({"ACCELERATE_MIXED_PRECISION": "no"})
            assert os.environ["ACCELERATE_MIXED_PRECISION"] == "no"
            assert os.environ["OMP_NUM_THREADS"] == "3"
            assert not any(states)
            AcceleratorState._shared_state["device"] = "cpu"
        backend.leave()
        assert states == ({}, {"num_processes": 5}, {})
        backend.leave()  # there is nothing to put back
        assert states == ({}, {"num_processes": 5}, {})
    finally:
        PartialState._reset_state()
