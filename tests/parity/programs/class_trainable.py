"""A class Trainable that saves and loads, under HyperBand and in Tuner; all the methods people override."""

import json
import os

import ray
from ray import air, tune
from ray.tune.schedulers import HyperBandScheduler


class Descent(tune.Trainable):
    def setup(self, config, data=None):
        self.timestep = 0
        self.x = config["start"]
        self.lr = config["lr"]
        self.data = data

    def step(self):
        self.timestep += 1
        self.x -= self.lr * 2 * self.x
        return {"loss": self.x**2, "timestep": self.timestep, "rows": len(self.data), "at": self.iteration}

    def save_checkpoint(self, checkpoint_dir):
        path = os.path.join(checkpoint_dir, "checkpoint")
        with open(path, "w") as f:
            f.write(json.dumps({"timestep": self.timestep, "x": self.x}))
        return path

    def load_checkpoint(self, checkpoint_path):
        with open(checkpoint_path) as f:
            state = json.loads(f.read())
        self.timestep, self.x = state["timestep"], state["x"]

    def reset_config(self, new_config):
        self.lr = new_config["lr"]
        return True

    def cleanup(self):
        self.data = None


ray.init(num_cpus=2)
hyperband = HyperBandScheduler(time_attr="training_iteration", max_t=9, reduction_factor=3)
tuner = tune.Tuner(
    tune.with_resources(tune.with_parameters(Descent, data=list(range(100))), {"cpu": 1}),
    run_config=air.RunConfig(
        name="hyperband_test",
        stop={"training_iteration": 9},
        verbose=1,
        checkpoint_config=air.CheckpointConfig(checkpoint_frequency=3, checkpoint_at_end=True),
    ),
    tune_config=tune.TuneConfig(num_samples=3, metric="loss", mode="min", scheduler=hyperband),
    param_space={"start": 10, "lr": tune.loguniform(1e-3, 0.3)},
)
results = tuner.fit()
best = results.get_best_result()
print("Best hyperparameters found were:", best.config)
assert best.metrics["rows"] == 100
assert best.checkpoint is not None
with best.checkpoint.as_directory() as directory:
    with open(os.path.join(directory, "checkpoint")) as f:
        assert json.load(f)["timestep"] == best.metrics["timestep"]

# By hand, outside of a search
one = tune.with_parameters(Descent, data=[1])(config={"start": 4.0, "lr": 0.25})
print(one.train()["loss"])
path = one.save()
one.train()
one.restore(path)
assert one.timestep == 1
two = one.train()
one.stop()
print("by hand:", two["loss"], two["training_iteration"])
