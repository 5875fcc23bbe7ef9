from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline.air.errors import ConfigError, SessionMisuseError
from paceline.train import torch as train_torch
from paceline.train.torch import loop
from paceline.train.torch.accelerator import Accelerator
from tests.train.torch.conftest import InstallSession

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "call",
    [
        lambda: train_torch.accelerate(),
        lambda: train_torch.prepare_model(torch.nn.Linear(1, 1)),
        lambda: train_torch.prepare_optimizer(torch.optim.SGD([torch.ones(1)])),
        lambda: train_torch.backward(torch.ones(1)),
        lambda: train_torch.enable_reproducibility(),
    ],
)
def test_outside_a_train_function_they_are_refused(call: Any) -> None:
    with pytest.raises(SessionMisuseError, match=r"train function.*TorchTrainer"):
        call()


def test_accelerate_once_and_first(install_session: InstallSession) -> None:
    install_session()
    train_torch.accelerate(amp=True)
    with pytest.raises(RuntimeError, match=r"accelerate\(\)"):
        train_torch.accelerate()

    install_session()
    train_torch.prepare_model(torch.nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match=r"accelerate\(\).*prepared"):
        train_torch.accelerate()


def test_one_worker_gets_its_model_unwrapped(install_session: InstallSession) -> None:
    install_session()
    model = torch.nn.Linear(4, 1)
    assert train_torch.prepare_model(model) is model
    assert train_torch.prepare_model(model, wrap_ddp=True, ddp_kwargs={"bucket_cap_mb": 1}) is model
    assert train_torch.prepare_model(model, True, True) is model
    with pytest.raises(ConfigError, match=r"'dp'.*'ddp', 'fsdp2'"):
        train_torch.prepare_model(model, parallel_strategy="dp")
    with pytest.raises(ConfigError, match=r"parallel_strategy_kwargs.*ddp_kwargs"):
        train_torch.prepare_model(model, parallel_strategy_kwargs={"a": 1}, ddp_kwargs={"b": 1})


def test_workers_that_are_not_connected_are_sent_to_the_torch_trainer(
    install_session: InstallSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "are_connected", lambda: False)
    loader = DataLoader(TensorDataset(torch.arange(4)))
    install_session(0, 2)
    with pytest.raises(SessionMisuseError, match=r"prepare_model.*2 workers.*TorchTrainer"):
        train_torch.prepare_model(torch.nn.Linear(1, 1))
    with pytest.raises(SessionMisuseError, match=r"prepare_data_loader.*2 workers.*TorchTrainer"):
        train_torch.prepare_data_loader(loader)
    train_torch.prepare_model(torch.nn.Linear(1, 1), parallel_strategy=None)
    train_torch.prepare_data_loader(loader, add_dist_sampler=False)
    install_session()
    train_torch.prepare_model(torch.nn.Linear(1, 1))
    train_torch.prepare_data_loader(loader)


def test_a_model_moves_where_it_is_told(install_session: InstallSession) -> None:
    install_session()
    assert train_torch.prepare_model(torch.nn.Linear(1, 1), move_to_device=torch.device("meta")).weight.is_meta
    on_meta = torch.nn.Linear(1, 1, device="meta")
    assert train_torch.prepare_model(on_meta, move_to_device=False) is on_meta


def test_amp_on_cpu_is_bfloat16_for_both_ways_to_call(install_session: InstallSession) -> None:
    install_session()
    train_torch.accelerate(amp=True)
    model = train_torch.prepare_model(torch.nn.Linear(4, 1))
    rows = torch.randn(8, 4)
    assert model(rows).dtype is model.forward(rows).dtype is torch.bfloat16
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train_torch.prepare_optimizer(optimizer) is optimizer
    before = copy.deepcopy(model.state_dict())
    train_torch.backward(model(rows).sum())
    optimizer.step()
    assert model.weight.dtype is torch.float32
    assert not torch.equal(before["weight"], model.state_dict()["weight"])


class WithState(torch.nn.Linear):
    def __getstate__(self) -> Any:
        return {**self.__dict__, "pickled": True}


@pytest.mark.parametrize("kind", [torch.nn.Linear, WithState])
def test_amp_leaves_no_trace_in_what_is_saved(kind: type[torch.nn.Linear]) -> None:
    plain = kind(4, 1)
    model = Accelerator(CPU, 1, amp=True).prepare_model(kind(4, 1), CPU, "ddp", {})
    assert model.state_dict().keys() == plain.state_dict().keys()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies: tuple[Any, ...] = (
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(model),
    )
    for saved in copies:
        assert "forward" not in vars(saved)
        assert "__getstate__" not in vars(saved)
        assert torch.equal(saved.weight, model.state_dict()["weight"])
        assert saved(torch.ones(1, 4)).dtype is torch.float32
        assert vars(saved).get("pickled", False) == (kind is WithState)


def test_a_failing_forward_ends_autocast() -> None:
    model = Accelerator(CPU, 1, amp=True).prepare_model(torch.nn.Linear(4, 1), CPU, "ddp", {})
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 3))
    assert not torch.is_autocast_enabled("cpu")


def scaled_accelerator(scale: float = 1024.0) -> Accelerator:
    """As on a GPU: PyTorch's scaler works on CPU tensors too."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1)
    return Accelerator(CPU, 1, amp=True, scaler=scaler)


def test_a_scaled_loss_gives_the_same_step() -> None:
    results = []
    for accelerator in (Accelerator(CPU, 1), scaled_accelerator()):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        accelerator.prepare_optimizer(optimizer)
        accelerator.prepare_optimizer(optimizer)  # once more does no harm
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            accelerator.backward((weight * weight).sum())
            optimizer.step()
            scheduler.step()
        results.append(weight.detach())
        assert isinstance(optimizer, torch.optim.SGD)
        pickle.dumps(optimizer.state_dict())
    assert torch.equal(*results)


def test_the_scale_changes_only_after_all_optimizers_stepped() -> None:
    accelerator = scaled_accelerator()
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.5) for weight in weights]
    for optimizer in optimizers:
        accelerator.prepare_optimizer(optimizer)
    for expected in (0.5, 0.0):
        accelerator.backward(sum(weights))  # type: ignore[arg-type]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert [weight.item() for weight in weights] == [expected, expected]
    assert accelerator.scaler is not None
    assert accelerator.scaler.get_scale() == 2048.0


def test_a_step_with_infinite_gradients_is_skipped() -> None:
    accelerator = scaled_accelerator()
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    accelerator.prepare_optimizer(optimizer)
    accelerator.backward(weight * float("inf"))
    optimizer.step()
    assert weight.item() == 1.0
    optimizer.zero_grad()
    accelerator.backward(weight * 1.0)
    optimizer.step()
    assert weight.item() == 0.5
    assert accelerator.scaler is not None
    assert accelerator.scaler.get_scale() == 512.0
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_reproducibility_seeds_every_generator(install_session: InstallSession, monkeypatch: Any) -> None:
    import random

    import numpy

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    install_session()
    try:
        draws = []
        for _ in range(2):
            train_torch.enable_reproducibility(seed=3)
            draws.append((random.random(), numpy.random.random(), torch.rand(()).item()))
        assert draws[0] == draws[1]
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
