"""Offline inference with a callable class in a pool of actors, in the styles of 2.6 and of today."""

from typing import Dict

import numpy as np
import ray
import torch


class TorchModel:
    def __init__(self, scale, bias=0.0):
        self.model = torch.nn.Identity()
        self.model.eval()
        self.scale = scale
        self.bias = bias
        self.calls = 0

    def __call__(self, batch: Dict[str, np.ndarray], power=1) -> Dict[str, np.ndarray]:
        self.calls += 1
        tensor = torch.as_tensor(batch["data"], dtype=torch.float32)
        with torch.inference_mode():
            batch["output"] = (self.model(tensor) * self.scale + self.bias).numpy() ** power
        batch["calls"] = np.full(len(tensor), self.calls)
        return batch


ray.init(num_cpus=2)
ds = ray.data.from_numpy(np.ones((200, 4)))

old = ds.map_batches(
    TorchModel,
    batch_size=20,
    batch_format="numpy",
    compute=ray.data.ActorPoolStrategy(size=2),
    fn_constructor_args=(3.0,),
    fn_constructor_kwargs={"bias": 1.0},
    num_cpus=1,
)
rows = old.take_all()
assert len(rows) == 200
assert rows[0]["output"].tolist() == [4.0] * 4
assert max(row["calls"] for row in rows) > 1  # one model served several batches

new = ds.map_batches(
    TorchModel, concurrency=2, fn_constructor_kwargs={"scale": 2.0}, fn_kwargs={"power": 3}, batch_size=32
)
total = new.map(lambda row: {"total": float(row["output"].sum())}).sum("total")
assert total == 200 * 4 * 8


class Tokens:
    def __call__(self, row):
        return {"n": len(row["item"].split())}


counted = ray.data.from_items(["one two", "three"]).map(
    Tokens, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=2)
)
print("rows:", len(rows), "words:", counted.sum("n"), "total:", total)
