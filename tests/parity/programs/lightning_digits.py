"""Lightning in a TorchTrainer, as in the guide of Ray 2.7 and later."""

import os

import lightning.pytorch as pl
import ray.train.lightning
import torch
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class DigitsClassifier(pl.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_accuracy", (self(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def loaders():
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train_part, valid_part = torch.utils.data.random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    return DataLoader(train_part, batch_size=64, shuffle=True), DataLoader(valid_part, batch_size=64)


def train_func(config):
    pl.seed_everything(0)
    train_loader, valid_loader = loaders()
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        devices="auto",
        accelerator="cpu",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    trainer.fit(DigitsClassifier(config["lr"]), train_dataloaders=train_loader, val_dataloaders=valid_loader)


trainer = TorchTrainer(
    train_func,
    train_loop_config={"lr": 1e-2, "epochs": 2},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2)),
)
result = trainer.fit()
with result.checkpoint.as_directory() as ckpt_dir:
    best_model = DigitsClassifier.load_from_checkpoint(os.path.join(ckpt_dir, "checkpoint.ckpt"))
x, y = next(iter(loaders()[1]))
print("val_accuracy" in result.metrics, result.metrics["epoch"], result.metrics["step"])
print("loaded model is good:", bool((best_model.eval()(x).argmax(1) == y).float().mean() > 0.8))
