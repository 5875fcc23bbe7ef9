"""Fine-tuning with transformers.Trainer, as in the guide of Ray 2.7 and later; the model is tiny and made here."""

import os

import numpy as np
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """A sentence is ten words; it is of class 1 if it starts with a big word."""

    def __init__(self, n, seed):
        self.words = np.random.default_rng(seed).integers(2, 40, size=(n, 10))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        words = self.words[i]
        return {"input_ids": torch.tensor(words), "labels": int(words[0] > 20)}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def make_model():
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    return BertForSequenceClassification(config)


def train_func(config):
    training_args = TrainingArguments(
        output_dir="test_trainer",
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=config["lr"],
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=make_model(),
        args=training_args,
        train_dataset=Sentences(256, 0),
        eval_dataset=Sentences(64, 1),
        compute_metrics=compute_metrics,
    )
    trainer.add_callback(RayTrainReportCallback())
    trainer = prepare_trainer(trainer)
    trainer.train()


ray_trainer = TorchTrainer(
    train_func,
    train_loop_config={"lr": 5e-3},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(name="bert"),
)
result = ray_trainer.fit()
print(result.metrics["eval_loss"], result.metrics["eval_accuracy"])
with result.checkpoint.as_directory() as checkpoint_dir:
    checkpoint_path = os.path.join(checkpoint_dir, RayTrainReportCallback.CHECKPOINT_NAME)
    model = BertForSequenceClassification.from_pretrained(checkpoint_path)
print("epoch:", result.metrics["epoch"], "labels:", model.config.num_labels)
