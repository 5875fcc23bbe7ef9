"""What AccelerateTrainer takes as accelerate_config, and what it refuses, before any worker starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig, default_config_file
from accelerate.utils import write_basic_config
from accelerate.utils.dataclasses import DistributedType

from paceline.air.errors import ConfigError
from paceline.train.huggingface.accelerate import settings as settings_module
from paceline.train.huggingface.accelerate.launch import check_devices, for_run, overridden
from paceline.train.huggingface.accelerate.settings import default_file, read_settings

FOUND_BY_US = default_file()  # before a test changes variables: Accelerate has looked at its import


@pytest.fixture(autouse=True)
def hugging_face_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf"


def test_none_is_the_default_file_or_nothing(hugging_face_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings(None) == ({}, "accelerate_config")
    path = hugging_face_home / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("mixed_precision: bf16\n")
    settings, source = read_settings(None)
    assert settings == {"mixed_precision": "bf16"}
    assert str(path) in source
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(hugging_face_home))
    assert default_file() == hugging_face_home / "huggingface" / "accelerate" / "default_config.yaml"


def test_the_default_file_is_where_accelerate_looks() -> None:
    assert str(FOUND_BY_US) == default_config_file


def test_files_and_dicts_with_the_same_content_are_the_same(tmp_path: Path) -> None:
    content = {"distributed_type": "FSDP", "mixed_precision": "no", "fsdp_config": {"fsdp_version": 2}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "a.json").write_text(json.dumps(content))
    given = (
        content,
        tmp_path / "a.yaml",
        str(tmp_path / "a.json"),
        content | {"distributed_type": DistributedType.FSDP},
    )
    assert [read_settings(each)[0] for each in given] == [content] * 4


def test_a_file_of_accelerate_config_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "basic.json"
    write_basic_config(mixed_precision="bf16", save_location=str(path))
    assert read_settings(path)[0]["mixed_precision"] == "bf16"


def test_an_unquoted_no_means_no(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("distributed_type: NO\nmixed_precision: no\ndynamo_config: {dynamo_backend: no}\n")
    expected = {"distributed_type": "NO", "mixed_precision": "no", "dynamo_config": {"dynamo_backend": "no"}}
    assert read_settings(path)[0] == expected
    frozen = MappingProxyType(expected | {"dynamo_config": MappingProxyType({"dynamo_backend": False})})
    assert read_settings(frozen)[0] == expected


def test_every_setting_of_the_installed_accelerate_is_known() -> None:
    assert set(ClusterConfig.__dataclass_fields__) <= settings_module.KNOWN


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "`accelerate config --config_file a.yaml`"),
        ("a: [1", "YAML"),
        ("", "settings by name"),
        ("- 1", "settings by name"),
        ("mixed_precison: bf16", "'mixed_precison': did you mean mixed_precision?"),
        ("mixed_precision: half", "'no', 'fp16', 'bf16', 'fp8'"),
        ("fsdp_config: 3", "fsdp_config"),
        ("gradient_accumulation_steps: 0", "gradient_accumulation_steps"),
        ("compute_environment: AMAZON_SAGEMAKER", "paceline starts the workers"),
        ("distributed_type: XLA", "`accelerate launch`"),
        ("distributed_type: MULTI_NPU", "'MULTI_NPU'"),
    ],
)
def test_a_file_that_cannot_work_is_refused_by_name(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_settings(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_other_things_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"accelerate_config.*path.*dict.*None.*int"):
        read_settings(3)
    with pytest.raises(ConfigError, match=r"'debog'.*debug.*'use_cp'.*use_cpu"):
        read_settings({"debog": True, "use_cp": True})
    with pytest.raises(ConfigError, match=r"accelerate_config.*PosixPath"):
        read_settings({"fsdp_config": {"fsdp_version": Path("2")}})
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConfigError, match=r"a\.json.*JSON"):
        read_settings(tmp_path / "a.json")


def test_deepspeed_must_be_installed_and_its_file_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = {"zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(stage))
    config = tmp_path / "a.json"
    config.write_text(
        json.dumps({"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}})
    )
    monkeypatch.setattr(settings_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install deepspeed"):
        read_settings(config)
    monkeypatch.setattr(settings_module, "find_spec", lambda name: name)
    settings, _ = read_settings(config)
    assert settings["deepspeed_config"]["deepspeed_config_file"] == stage
    assert read_settings(settings)[0] == settings  # as a restored run gives it
    (tmp_path / "ds.json").write_text("{")
    with pytest.raises(ConfigError, match=r"deepspeed_config_file ds\.json.*JSON"):
        read_settings(config)
    (tmp_path / "ds.json").unlink()
    with pytest.raises(ConfigError, match=r"deepspeed_config_file ds\.json.*No such file"):
        read_settings(config)


def test_devices_must_not_contradict_each_other() -> None:
    check_devices({"use_cpu": True, "mixed_precision": "bf16"}, "it", use_gpu=False)
    check_devices({"mixed_precision": "fp16"}, "it", use_gpu=True)
    with pytest.raises(ConfigError, match=r"use_cpu.*use_gpu=True"):
        check_devices({"use_cpu": True}, "it", use_gpu=True)
    with pytest.raises(ConfigError, match=r"fp16.*GPUs.*bf16.*use_gpu=True"):
        check_devices({"mixed_precision": "fp16"}, "it", use_gpu=False)


def test_the_topology_is_that_of_the_run() -> None:
    theirs: dict[str, Any] = {
        "num_processes": 8,
        "num_machines": 2,
        "machine_rank": 1,
        "gpu_ids": "0,1",
        "main_process_ip": "10.0.0.1",
        "main_process_port": 29501,
        "rdzv_backend": "c10d",
        "distributed_type": "MULTI_GPU",
        "mixed_precision": "bf16",
    }
    said = "; ".join(overridden(theirs, 2, use_gpu=False))
    for text in ("num_processes 8 (the run has 2)", "num_machines 2", "machine_rank 1", "gpu_ids '0,1'"):
        assert text in said
    for text in ("main_process_ip '10.0.0.1'", "29501", "c10d", "MULTI_GPU (the workers have CPUs only)"):
        assert text in said
    ours = for_run(theirs, 2, use_gpu=False)
    assert (ours["num_processes"], ours["num_machines"], ours["machine_rank"]) == (2, 1, 0)
    assert (ours["distributed_type"], ours["use_cpu"], ours["mixed_precision"]) == ("MULTI_CPU", True, "bf16")
    assert not {"gpu_ids", "main_process_ip", "rdzv_backend"} & ours.keys()


def test_what_agrees_with_the_run_is_not_mentioned() -> None:
    same = {
        "num_processes": 2,
        "num_machines": 1,
        "machine_rank": 0,
        "gpu_ids": "all",
        "main_process_ip": None,
        "rdzv_backend": "static",
        "same_network": True,
        "distributed_type": "FSDP",
    }
    assert overridden(same, 2, use_gpu=True) == []
    assert overridden({"num_processes": -1, "distributed_type": "MULTI_CPU"}, 2, use_gpu=False) == []
    assert "DistributedDataParallel" in overridden(same, 2, use_gpu=False)[0]
    assert overridden(same | {"fsdp_config": {"fsdp_version": 2}, "deepspeed_config": {}}, 2, use_gpu=True) == []


def test_a_section_without_its_type_is_told() -> None:
    """Such a run would train with DistributedDataParallel, and nobody would notice."""
    (told,) = overridden({"deepspeed_config": {"zero_stage": 2}}, 2, use_gpu=True)
    assert told == "deepspeed_config (it needs distributed_type: DEEPSPEED)"
    (told,) = overridden({"distributed_type": "NO", "fsdp_config": {"fsdp_version": 2}}, 2, use_gpu=False)
    assert told == "fsdp_config (it needs distributed_type: FSDP)"


def test_importing_the_trainer_loads_no_framework_and_a_missing_one_is_named() -> None:
    program = """
import sys
from paceline.train.huggingface.accelerate import AccelerateTrainer
from paceline.train.huggingface import AccelerateTrainer as same
assert same is AccelerateTrainer
assert not {"torch", "accelerate", "transformers", "yaml"} & sys.modules.keys()

for name in [name for name in sys.modules if name.startswith("paceline.train.huggingface")]:
    del sys.modules[name]
sys.modules["accelerate"] = None
try:
    from paceline.train.huggingface import AccelerateTrainer
except ImportError as error:
    assert error.name == "accelerate" and "pip install 'paceline[huggingface]'" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
