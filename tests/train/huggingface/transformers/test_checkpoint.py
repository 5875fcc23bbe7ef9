"""TransformersCheckpoint and TransformersPredictor without a training."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch._dynamo  # sets variables when it is imported, which no test shall be blamed for
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, TextGenerationPipeline, TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import SaveStrategy

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError, CheckpointError, ConfigError
from paceline.data.preprocessors import BatchMapper
from paceline.train.huggingface import TransformersCheckpoint, TransformersPredictor
from paceline.train.huggingface.transformers.checkpoint import has_tokenizer
from paceline.train.predictor import predictor_for
from tests.air.damage import committed, flip
from tests.train.huggingface.tiny_language import language_model, tokenizer


@pytest.fixture
def saved(tmp_path: Path) -> TransformersCheckpoint:
    return TransformersCheckpoint.from_model(language_model(), tokenizer(), path=tmp_path / "saved")


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def test_a_model_comes_back_by_class_or_into_an_instance(saved: TransformersCheckpoint) -> None:
    model = language_model()
    assert same_weights(saved.get_model(GPT2LMHeadModel), model)
    packed = TransformersCheckpoint.from_bytes(saved.to_bytes())
    assert same_weights(packed.get_model(AutoModelForCausalLM), model)
    other = language_model(seed=1)
    assert not same_weights(other, model)
    assert saved.get_model(other) is other
    assert same_weights(other, model)
    assert saved.get_tokenizer()("the cat")["input_ids"] == tokenizer()("the cat")["input_ids"]


def test_weights_may_be_in_several_files(tmp_path: Path) -> None:
    model, other = language_model(), language_model(seed=1)
    model.save_pretrained(tmp_path, max_shard_size="1KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    checkpoint = TransformersCheckpoint.from_directory(tmp_path)
    assert same_weights(checkpoint.get_model(GPT2LMHeadModel), model)
    assert same_weights(checkpoint.get_model(other), model)


def test_files_may_be_in_the_folder_of_the_report_callback(saved: TransformersCheckpoint, tmp_path: Path) -> None:
    os.renames(tmp_path / "saved", tmp_path / "reported" / "checkpoint")
    reported = TransformersCheckpoint.from_directory(tmp_path / "reported")
    assert same_weights(reported.get_model(GPT2LMHeadModel), language_model())
    assert reported.get_tokenizer().pad_token == "<pad>"


def test_models_of_other_classes_are_loaded_into_an_instance(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    checkpoint = TransformersCheckpoint.from_model(model, path=tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    checkpoint.get_model(other)
    assert same_weights(model, other)


def test_what_is_not_there_is_told(saved: TransformersCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = TransformersCheckpoint.from_directory(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"empty.*model\.safetensors"):
        empty.get_model(GPT2LMHeadModel)
    with pytest.raises(CheckpointError, match=r"empty.*processing_class=tokenizer"):
        empty.get_tokenizer()
    with pytest.raises(CheckpointError, match=r"training_args\.bin"):
        saved.get_training_arguments()
    (tmp_path / "several").mkdir()
    (tmp_path / "several" / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*Linear"):
        TransformersCheckpoint.from_directory(tmp_path / "several").get_model(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r"get_model\(transformers\.AutoModelForSequenceClassification\)"):
        saved.get_model()
    with pytest.raises(ConfigError, match=r"AutoModelForCausalLM.*'gpt2'"):
        saved.get_model("gpt2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"from_model.*str"):
        TransformersCheckpoint.from_model("gpt2", path=tmp_path)  # type: ignore[arg-type]


def test_a_tokenizer_may_consist_of_its_vocabulary(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").touch()
    assert has_tokenizer(tmp_path)


class Dangerous:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


class CallsConstructor:
    """A constructor of Transformers does a lot: it looks for devices, reads files, resets Accelerate."""

    def __reduce__(self) -> Any:
        return TrainingArguments, ("out",)


def test_arguments_are_read_without_running_code(
    saved: TransformersCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "saved" / "training_args.bin"
    torch.save(TrainingArguments("out", use_cpu=True, learning_rate=0.25, weight_decay=0.5), path)
    calls: list[TrainingArguments] = []
    monkeypatch.setattr(TrainingArguments, "__post_init__", calls.append)
    arguments = saved.get_training_arguments()
    assert isinstance(arguments, TrainingArguments)
    assert arguments.save_strategy is SaveStrategy.STEPS
    assert isinstance(arguments.accelerator_config, AcceleratorConfig)
    assert (arguments.learning_rate, arguments.weight_decay, arguments.output_dir) == (0.25, 0.5, "out")
    torch.save(Dangerous(), path)
    with pytest.raises(CheckpointError, match=r"training_args\.bin.*mkdir.*code"):
        saved.get_training_arguments()
    assert not Path("harmed").exists()
    torch.save(CallsConstructor(), path)
    with pytest.raises(CheckpointError, match=r"training_args\.bin.*TrainingArguments"):
        saved.get_training_arguments()
    assert calls == []
    path.write_bytes(b"no such file")
    with pytest.raises(CheckpointError, match=r"training_args\.bin.*damaged"):
        saved.get_training_arguments()


def add_verb(texts: pd.DataFrame) -> pd.DataFrame:
    return texts.assign(text=texts["text"] + " sees")


def test_a_pipeline_answers_each_row(saved: TransformersCheckpoint) -> None:
    rows = pd.DataFrame({"text": ["the cat", "a dog"], "other": [1, 2]}, index=[5, 6])
    saved.set_preprocessor(BatchMapper(add_verb, batch_format="pandas"))
    predictor = TransformersPredictor.from_checkpoint(saved, task="text-generation")
    answers = predictor.predict(rows, feature_columns=["text"], max_new_tokens=2, do_sample=False)
    assert list(answers.index) == [5, 6]
    assert [text.startswith(("the cat sees", "a dog sees")) for text in answers["generated_text"]] == [True, True]
    several = predictor.predict(
        rows, feature_columns=["text"], max_new_tokens=2, num_return_sequences=2, do_sample=True
    )
    assert [len(answer) for answer in several["predictions"]] == [2, 2]
    by_class = TransformersPredictor.from_checkpoint(
        saved, pipeline_cls=TextGenerationPipeline, model_cls=AutoModelForCausalLM
    )
    assert by_class.predict(rows, feature_columns=["text"], max_new_tokens=2, do_sample=False).equals(answers)


def test_the_predictor_of_a_checkpoint_is_known(saved: TransformersCheckpoint) -> None:
    assert predictor_for(Checkpoint.from_directory(str(saved.path))) is TransformersPredictor
    with pytest.raises(ConfigError, match="task='text-generation'"):
        TransformersPredictor.from_checkpoint(saved)
    with pytest.raises(ConfigError, match=r"TextGenerationPipeline.*model_cls=AutoModelForCausalLM"):
        TransformersPredictor.from_checkpoint(saved, pipeline_cls=TextGenerationPipeline)
    with pytest.raises(ConfigError, match=r"pipeline.*None.*transformers\.pipeline\(\)"):
        TransformersPredictor()


def test_code_in_a_checkpoint_is_not_run_and_nobody_is_asked_for_it(
    saved: TransformersCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, Transformers asks on the terminal, and takes a piped "y" for the user's word."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    files = tmp_path / "saved"
    (files / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name, auto_map in (
        ("config.json", {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": [None, "evil.Tokenizer"]}),
    ):
        content = json.loads((files / name).read_text())
        content |= {"model_type": "evil", "tokenizer_class": "EvilTokenizer", "auto_map": auto_map}
        (files / name).write_text(json.dumps(content))
    for load in (
        lambda: saved.get_model(AutoModelForCausalLM),
        lambda: saved.get_tokenizer(),
        lambda: TransformersPredictor.from_checkpoint(saved, task="text-generation"),
        lambda: TransformersPredictor.from_checkpoint(
            saved, pipeline_cls=TextGenerationPipeline, model_cls=AutoModelForCausalLM
        ),
    ):
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            load()
    assert not (tmp_path / "ran").exists()


def test_damaged_files_of_a_run_are_noticed_by_those_who_read_them(
    saved: TransformersCheckpoint, tmp_path: Path
) -> None:
    (tmp_path / "saved" / "optimizer.pt").write_bytes(b"o" * 1000)
    path = committed(saved, tmp_path / "checkpoint")
    checkpoint = TransformersCheckpoint.from_directory(path)
    flip(path / "optimizer.pt")
    checkpoint.get_model(GPT2LMHeadModel)
    flip(path / "model.safetensors")
    checkpoint.get_tokenizer()
    with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors"):
        checkpoint.get_model(GPT2LMHeadModel)
    with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors"):
        TransformersPredictor.from_checkpoint(checkpoint, task="text-generation")
    flip(path / "tokenizer.json")
    with pytest.raises(CheckpointCorruptError, match=r"tokenizer\.json"):
        checkpoint.get_tokenizer()
