"""A language of a few words, a tokenizer for it, and a causal language model that learns it in seconds."""

from __future__ import annotations

import random
from typing import Any

SUBJECTS = ("the cat", "a dog", "the bird", "my horse")
VERBS = ("sees", "likes", "follows", "hears")
OBJECTS = ("the river", "a tree", "the old house", "my garden")
LENGTH = 8


def sentences(count: int, seed: int = 0) -> list[str]:
    chosen = random.Random(seed)
    return [f"{chosen.choice(SUBJECTS)} {chosen.choice(VERBS)} {chosen.choice(OBJECTS)}" for _ in range(count)]


def training_text() -> list[str]:
    """Each word once more than the one before: equally frequent ones would be numbered differently each time."""
    words = sorted({word for part in (*SUBJECTS, *VERBS, *OBJECTS) for word in part.split()})
    return [" ".join([word] * times) for times, word in enumerate(words, start=1)]


def tokenizer() -> Any:
    """Trained on text that is made here; nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(training_text(), trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "<end>"]))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<end>")


def tokenized(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with input_ids, attention_mask and labels, all of one length."""
    encoded = tokenizer()(sentences(count, seed), padding="max_length", max_length=LENGTH)
    return [
        {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": [token if kept else -100 for token, kept in zip(ids, mask, strict=True)],
        }
        for ids, mask in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)
    ]


def language_model(seed: int = 0, dropout: float = 0.0) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=2,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


def token_accuracy(predicted: Any) -> dict[str, float]:
    """A metric that needs the predictions of every row, in their order."""
    guessed, wanted = predicted.predictions[:, :-1].argmax(-1), predicted.label_ids[:, 1:]
    return {"accuracy": float((guessed == wanted)[wanted != -100].mean())}


def small_trainer(train_dataset: Any, eval_dataset: Any, **config: Any) -> Any:
    """What trainer_init_per_worker makes in most tests; `config` are arguments of the training, and `callbacks`."""
    import transformers

    callbacks, dropout = config.pop("callbacks", ()), config.pop("dropout", 0.0)
    arguments = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "learning_rate": 1e-2, **config}
    return transformers.Trainer(
        language_model(dropout=dropout),
        transformers.TrainingArguments("out", **arguments),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer(),
        compute_metrics=token_accuracy,
        callbacks=[make() for make in callbacks],
    )
