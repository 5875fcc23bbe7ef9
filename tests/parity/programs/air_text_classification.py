"""Text classification with datasets and a preprocessor, in the style of Ray AIR (2.0 to 2.6)."""

import random

import numpy as np
import ray
import torch
from ray.air import session
from ray.air.config import DatasetConfig, RunConfig, ScalingConfig
from ray.data.preprocessors import BatchMapper, Chain, Concatenator, CountVectorizer, LabelEncoder
from ray.train.batch_predictor import BatchPredictor
from ray.train.torch import TorchCheckpoint, TorchPredictor, TorchTrainer

random.seed(0)
GOOD, BAD, OTHER = ["great", "fine", "lovely"], ["awful", "boring", "bad"], ["the", "film", "was", "a", "very"]


def sentence(words):
    return " ".join([*random.choices(OTHER, k=4), random.choice(words)])


rows = [{"text": sentence(GOOD), "label": "pos"} for _ in range(150)]
rows += [{"text": sentence(BAD), "label": "neg"} for _ in range(150)]
dataset = ray.data.from_items(rows).random_shuffle(seed=1)
train_ds, valid_ds = dataset.train_test_split(test_size=0.2)

preprocessor = Chain(
    BatchMapper(lambda df: df.assign(text=df["text"].str.lower()), batch_format="pandas"),
    LabelEncoder(label_column="label"),
    CountVectorizer(columns=["text"], max_features=11),
    Concatenator(exclude=["label"], dtype=np.float32, output_column_name="features"),
)


def train_loop_per_worker(config):
    train_shard = session.get_dataset_shard("train")
    valid_shard = session.get_dataset_shard("valid")
    model = torch.nn.Linear(11, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(config["num_epochs"]):
        for batch in train_shard.iter_torch_batches(batch_size=32):
            loss = torch.nn.functional.cross_entropy(model(batch["features"]), batch["label"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = total = 0
        for batch in valid_shard.iter_torch_batches(batch_size=32):
            right += int((model(batch["features"]).argmax(1) == batch["label"]).sum())
            total += len(batch["label"])
        session.report({"accuracy": right / total}, checkpoint=TorchCheckpoint.from_model(model))


trainer = TorchTrainer(
    train_loop_per_worker=train_loop_per_worker,
    train_loop_config={"lr": 0.5, "num_epochs": 5},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="reviews", verbose=1),
    datasets={"train": train_ds, "valid": valid_ds},
    dataset_config={"valid": DatasetConfig(split=False)},
    preprocessor=preprocessor,
)
result = trainer.fit()

predictor = BatchPredictor.from_checkpoint(result.checkpoint, TorchPredictor)
predictions = predictor.predict(valid_ds, batch_size=16, keep_columns=["label"], feature_columns=["features"])
print(predictions.take(1))
assert predictions.count() == valid_ds.count() == 60
print("accuracy at the end:", round(result.metrics["accuracy"], 1))
