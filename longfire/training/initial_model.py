"""Build the model that training starts from: random weights or a checkpoint's, possibly with RoPE extended."""

import hashlib
import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from transformers import set_seed

from longfire.atomic_io import read_json
from longfire.encodings import ENCODINGS
from longfire.encodings.registry import option_names
from longfire.model import SIZES, LongfireConfig, LongfireForCausalLM
from longfire.model.extension import EXTENSIONS, extended_encoding
from longfire.model.inspection import check_length
from longfire.model.loading import checkpoint_in, find_checkpoint
from longfire.training.base_recipe import BaseRecipe, translate_fields
from longfire.training.finetune_recipes import FinetuneRecipe
from longfire.training.recipes import Recipe

if TYPE_CHECKING:
    from longfire.data import Corpus
    from longfire.training.task_data import TaskData

Source = str | Path | LongfireForCausalLM
"""A checkpoint folder, a training run's folder, or a model."""


def pretraining_config(recipe: Recipe, vocab_size: int = 1, **special_tokens: Any) -> LongfireConfig:
    """The configuration of the model that a recipe trains: a new one, or the checkpoint's with the recipe's encoding.

    Refuses recipes that cannot be built.
    """
    if recipe.init_from is not None:
        return _continued_config(recipe, find_checkpoint(recipe.init_from))
    return recipe.config(vocab_size, **special_tokens)


def pretraining_model(recipe: Recipe, corpus: "Corpus | TaskData") -> LongfireForCausalLM:
    """The model that pretraining starts from, with weights from the seed or from the recipe's checkpoint."""
    set_seed(recipe.seed)
    config = pretraining_config(recipe, corpus.vocab_size, **corpus.special_tokens)
    if recipe.init_from is None:
        return LongfireForCausalLM(config)
    folder = find_checkpoint(recipe.init_from)
    _refuse_other_tokenizer(folder, corpus.tokenizer)
    model = _load(folder, recipe, position_encoding=config.position_encoding)
    if model.model.encodings[0].max_length is None:
        model.config.max_position_embeddings = recipe.sequence_length  # its training length from now on
    return model


def finetuning_model(recipe: FinetuneRecipe, source: Source) -> LongfireForCausalLM:
    """The checkpoint's model, or a copy of the model passed, with the recipe's dropout."""
    if not isinstance(source, LongfireForCausalLM):
        return _load(find_checkpoint(source), recipe)
    return _prepare(deepcopy(source).float(), recipe)


def _load(folder: Path, recipe: BaseRecipe, **changes: Any) -> LongfireForCausalLM:
    return _prepare(LongfireForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes), recipe)


def _prepare(model: LongfireForCausalLM, recipe: BaseRecipe) -> LongfireForCausalLM:
    """Set the recipe's dropout in the model and its configuration. Refuses a model with too few positions."""
    check_length(model, recipe.sequence_length)
    model.config.resid_dropout, model.config.attention_dropout = recipe.dropout, recipe.attention_dropout
    layers: Any = model.model.layers
    for layer in layers:
        layer.dropout.p = recipe.dropout
    return model


def _continued_config(recipe: Recipe, folder: Path) -> LongfireConfig:
    """A checkpoint's configuration, with RoPE extended if requested. Refuses one that contradicts the recipe."""
    config: LongfireConfig = LongfireConfig.from_pretrained(folder)
    shape = {key: getattr(config, key) for key in SIZES[recipe.size]}
    if shape != SIZES[recipe.size]:
        own = next((name for name, size in SIZES.items() if size == shape), None)
        remedy = f"use a recipe of size {own!r} (--set size={own})" if own else "no recipe has this size"
        raise ValueError(
            f"the checkpoint in {folder} has {shape}, but the recipe's size, {recipe.size!r}, is "
            f"{SIZES[recipe.size]}: {remedy}."
        )
    for name in ("share_position_encoding", "random_positions"):
        own, asked = getattr(config, name), getattr(recipe, name)
        if own != asked:
            raise ValueError(f"the checkpoint in {folder} has {name}={own}, but the recipe has {asked}. Use {own}.")
    options = dict(recipe.encoding_options)
    if recipe.extend_to is not None:
        encoding = extended_encoding(config, recipe.encoding, recipe.extend_to, options.pop("trained_length", None))
        config.position_encoding = {**encoding, **options}
        return config
    saved: dict[str, Any] = dict(config.position_encoding or {})  # type: ignore[arg-type]
    if recipe.encoding != saved["name"]:
        extendable = recipe.encoding in EXTENSIONS and saved["name"] == "rope"
        remedy = "pass a target length (--extend-to N)" if extendable else f"use encoding={saved['name']!r}"
        raise ValueError(
            f"the checkpoint in {folder} was trained with {saved['name']!r}, but the recipe has {recipe.encoding!r}: "
            f"{remedy}."
        )
    encoding_class = ENCODINGS[recipe.encoding]
    trained = {key: option.default for key, option in option_names(encoding_class).items()} | saved
    free = {key: value for key, value in options.items() if key in encoding_class.free}
    if different := {key: value for key, value in options.items() if key not in free and trained.get(key) != value}:
        raise ValueError(
            f"the checkpoint in {folder} was trained with {saved}, but encoding_options are {different}. Omit them."
        )
    config.position_encoding = {**saved, **free}
    return config


def _refuse_other_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Refuse a corpus that was not tokenised with the checkpoint's tokenizer."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{folder} has no tokenizer.json, so it cannot be compared with the corpus's tokenizer.")
    if token_rules(Tokenizer.from_file(str(file))) != token_rules(tokenizer.backend_tokenizer):
        raise ValueError(f"the corpus was not tokenised with {folder}'s tokenizer. Use --tokenizer {folder}.")


def token_rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that determines a text's tokens; not how batches are truncated or padded."""
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    return {key: value for key, value in parts.items() if key not in ("truncation", "padding")}


def digest(source: Source) -> str:
    """A hash of weights and configuration, independent of where they are stored.

    If a finished run's weights were deleted, the hash that it recorded.
    """
    whole = hashlib.blake2b(digest_size=16)
    if isinstance(source, LongfireForCausalLM):
        config, files = source.config.to_dict(), []
        for name, tensor in sorted(source.state_dict().items()):
            whole.update(name.encode())
            whole.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    else:
        files = _weight_files(checkpoint_in(Path(source)))
        if not files and (recorded := read_json(Path(source) / "done.json").get("digest")):
            return str(recorded)
        config = json.loads((find_checkpoint(source) / "config.json").read_text(encoding="utf-8"))
    settings = {key: value for key, value in config.items() if "version" not in key and not key.startswith("_")}
    for name in ("random_positions", "sliding_window"):
        if settings.get(name) is None:
            settings.pop(name, None)  # earlier releases did not write it
    whole.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 22):
                whole.update(block)
    return whole.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])


def run_record(folder: Path) -> dict[str, Any]:
    """done.json of the run that produced a checkpoint; empty if there is none."""
    done = read_json(folder.parent / "done.json") if folder.name == "model" else {}
    recipes = {name: translate_fields(done[name]) for name in ("recipe", "pretrained_by") if done.get(name)}
    return {**done, **recipes}


def pretrained_by(source: Source) -> dict[str, Any]:
    """The recipe that a checkpoint was pretrained with, even if fine-tuned since; empty if unknown."""
    own = {} if isinstance(source, LongfireForCausalLM) else run_record(find_checkpoint(source))
    recipe: dict[str, Any] | None = own.get("pretrained_by" if "chosen_by" in own else "recipe")
    return recipe or {}
