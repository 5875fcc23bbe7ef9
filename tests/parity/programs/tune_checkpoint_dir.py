"""The function API with checkpoint_dir, PyTorch on digits with ASHA, in the style of Ray 1.x and 2.0."""

import os
from functools import partial

import torch
import torch.nn as nn
import torch.optim as optim
from ray import tune
from ray.tune import CLIReporter
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits


class Net(nn.Module):
    def __init__(self, l1=32):
        super().__init__()
        self.fc1 = nn.Linear(64, l1)
        self.fc2 = nn.Linear(l1, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(data_dir=None):
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def train_digits(config, checkpoint_dir=None, data_dir=None):
    net = Net(config["l1"])
    optimizer = optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    if checkpoint_dir:
        model_state, optimizer_state = torch.load(os.path.join(checkpoint_dir, "checkpoint"))
        net.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
    images, labels = load_data(data_dir)
    for epoch in range(4):
        for start in range(0, 1200, int(config["batch_size"])):
            part = slice(start, start + int(config["batch_size"]))
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[part]), labels[part]).backward()
            optimizer.step()
        with torch.no_grad():
            outputs = net(images[1200:1500])
            val_loss = nn.functional.cross_entropy(outputs, labels[1200:1500]).item()
            accuracy = (outputs.argmax(1) == labels[1200:1500]).float().mean().item()
        with tune.checkpoint_dir(epoch) as checkpoint_dir:
            torch.save((net.state_dict(), optimizer.state_dict()), os.path.join(checkpoint_dir, "checkpoint"))
        tune.report(loss=val_loss, accuracy=accuracy)


def main(num_samples=3, max_num_epochs=4):
    data_dir = os.path.abspath("./data")
    config = {
        "l1": tune.sample_from(lambda _: 2**5),
        "lr": tune.loguniform(1e-2, 1e-1),
        "batch_size": tune.choice([20, 50]),
    }
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=max_num_epochs, grace_period=1, reduction_factor=2)
    reporter = CLIReporter(parameter_columns=["l1", "lr"], metric_columns=["loss", "accuracy", "training_iteration"])
    result = tune.run(
        partial(train_digits, data_dir=data_dir),
        resources_per_trial={"cpu": 1},
        config=config,
        num_samples=num_samples,
        scheduler=scheduler,
        progress_reporter=reporter,
    )
    best_trial = result.get_best_trial("loss", "min", "last")
    print("Best trial final validation loss:", best_trial.last_result["loss"])
    best_net = Net(best_trial.config["l1"])
    best_checkpoint = result.get_best_checkpoint(best_trial, metric="loss", mode="min")
    with best_checkpoint.as_directory() as best_checkpoint_dir:
        model_state, _ = torch.load(os.path.join(best_checkpoint_dir, "checkpoint"))
    best_net.load_state_dict(model_state)
    images, labels = load_data()
    test_acc = (best_net(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    print("Best trial test set accuracy is good:", test_acc > 0.7)


if __name__ == "__main__":
    main()
