"""Train a small language model with Hugging Face Transformers on two workers, go on with it, and let it write."""

import random
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline import data
from paceline.air import Checkpoint, CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.air.config import DataConfig
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.huggingface import TransformersPredictor, TransformersTrainer

FOOD = {"cat": "fish", "dog": "meat", "horse": "grass"}
"""What the model is to learn: who eats what."""


def make_texts(count: int) -> list[str]:
    chosen = random.Random(0)
    animals = chosen.choices(list(FOOD), k=count)
    return [f"{chosen.choice(('my', 'the', 'a'))} {animal} eats {FOOD[animal]} ." for animal in animals]


def make_tokenizer(texts: list[str]) -> Any:
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.ByteLevel()
    words.decoder = decoders.ByteLevel()  # puts the spaces back
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<end>"]))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<end>"
    )


def trainer_init_per_worker(train_dataset: Any, eval_dataset: Any, **config: Any) -> transformers.Trainer:
    """Called on every worker, each with its own part of the rows."""
    tokenizer = config["tokenizer"]
    transformers.set_seed(0)
    size = transformers.GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=16,
        n_embd=64,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(size),
        transformers.TrainingArguments(
            "output",  # below the worker's own directory; the run takes the checkpoints from there
            num_train_epochs=config["num_epochs"],
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            per_device_train_batch_size=8,
            logging_strategy="epoch",
            eval_strategy="epoch",
            save_strategy="epoch",
        ),
        # Pads the rows of a batch, and makes the labels.
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
    )


def fit(tokenizer: Any, rows: data.Dataset, num_epochs: int, start: Checkpoint | None = None) -> Result:
    train_rows, evaluation_rows = rows.train_test_split(0.2)
    trainer = TransformersTrainer(
        trainer_init_per_worker,
        trainer_init_config={"tokenizer": tokenizer, "num_epochs": num_epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            verbose=1,
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="eval_loss", checkpoint_score_order="min"
            ),
        ),
        datasets={"train": train_rows, "evaluation": evaluation_rows},
        dataset_config=DataConfig(shuffle="rows", seed=0),  # in another order in every epoch
        resume_from_checkpoint=start,
    )
    return trainer.fit()


if __name__ == "__main__":
    texts = make_texts(240)
    tokenizer = make_tokenizer(texts)
    rows = data.from_items([{"text": text} for text in texts]).map_batches(
        lambda batch: {"input_ids": tokenizer(list(batch["text"]))["input_ids"]}
    )

    first = fit(tokenizer, rows, num_epochs=2)
    print(f"2 epochs: step {first.metrics['step']}, evaluation loss {first.metrics['eval_loss']:.2f}")
    second = fit(tokenizer, rows, num_epochs=8, start=first.checkpoint)
    steps = second.metrics_dataframe["step"].tolist()
    print(f"went on with steps {steps}, evaluation loss {second.metrics['eval_loss']:.2f}")

    # Anything that the checkpoint's model can be used for is a pipeline of Transformers.
    predictor = BatchPredictor(second.checkpoint, TransformersPredictor, task="text-generation")
    beginnings = data.from_items([{"text": f"my {animal} eats"} for animal in FOOD])
    for answer in predictor.predict(beginnings, max_new_tokens=1, do_sample=False).take_all():
        print(answer["generated_text"])
