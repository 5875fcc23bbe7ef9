"""A DataParallelTrainer with a backend of one's own: environment, ports, start-up and shutdown on each worker."""

import os
from dataclasses import dataclass

import ray
from ray.air import ScalingConfig, session
from ray.train._internal.utils import get_address_and_port
from ray.train._internal.worker_group import WorkerGroup
from ray.train.backend import Backend, BackendConfig
from ray.train.data_parallel_trainer import DataParallelTrainer


@dataclass
class MeshConfig(BackendConfig):
    """Tells the workers where the first of them can be found."""

    prefix: str = "MESH"

    @property
    def backend_cls(self):
        return MeshBackend


def setup_mesh(prefix, address, rank, size):
    os.environ[f"{prefix}_ADDRESS"] = address
    os.environ[f"{prefix}_RANK"] = str(rank)
    os.environ[f"{prefix}_SIZE"] = str(size)
    return rank


class MeshBackend(Backend):
    share_cuda_visible_devices: bool = True

    def on_start(self, worker_group: WorkerGroup, backend_config: MeshConfig):
        host, port = worker_group.execute_single(0, get_address_and_port)
        size = len(worker_group)
        for rank in range(size):
            worker_group.execute_single(rank, setup_mesh, backend_config.prefix, f"{host}:{port}", rank, size)
        assert len(worker_group.execute(os.getpid)) == size

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: MeshConfig):
        worker_group.execute(lambda: os.environ.pop(f"{backend_config.prefix}_ADDRESS", None))


class MeshTrainer(DataParallelTrainer):
    def __init__(self, train_loop_per_worker, *, mesh_config=None, **kwargs):
        super().__init__(train_loop_per_worker, backend_config=mesh_config or MeshConfig(), **kwargs)


def train_func(config):
    assert os.environ["RING_RANK"] == str(session.get_world_rank())
    total = 0
    for row in session.get_dataset_shard("train").iter_rows():
        total += row["id"]
    session.report(
        {"size": int(os.environ["RING_SIZE"]), "port": int(os.environ["RING_ADDRESS"].split(":")[-1]), "sum": total}
    )


trainer = MeshTrainer(
    train_func,
    train_loop_config={},
    mesh_config=MeshConfig(prefix="RING"),
    scaling_config=ScalingConfig(num_workers=2),
    datasets={"train": ray.data.range(10)},
)
result = trainer.fit()
print("size:", result.metrics["size"], "has a port:", 0 < result.metrics["port"] < 65536)
assert "RING_RANK" not in os.environ
