from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.train.torch import TorchWorkerProfiler
from tests.train.torch.conftest import InstallSession


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_traces_are_files_and_metrics_carry_their_paths(
    install_session: InstallSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install_session(world_rank=1, world_size=2)
    worker_profiler = TorchWorkerProfiler()
    assert worker_profiler.get_and_clear_profile_traces() == {}
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2),
        on_trace_ready=worker_profiler.trace_handler,
    ) as profiler:
        for step in range(4):
            torch.ones(4) @ torch.ones(4)
            profiler.step()
            if step % 2 == 0:
                assert worker_profiler.get_and_clear_profile_traces() == {}
                continue
            (path,) = worker_profiler.get_and_clear_profile_traces()["profiler_traces"]
            assert Path(path) == tmp_path / "pytorch_profiler" / f"rank_1_{step // 2:06d}.pt.trace.json"
            assert json.loads(Path(path).read_text())["traceEvents"]


def test_trace_dir_can_be_chosen(tmp_path: Path) -> None:
    assert TorchWorkerProfiler(str(tmp_path / "a" / "b")).trace_dir.is_dir()
