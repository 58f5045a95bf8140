"""A checkpoint belongs to one position encoding: loading it with another is an error, not a warning."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel

from longfire.encodings import ENCODINGS, position_parameters


def checkpoint_in(folder: Path) -> Path:
    """The checkpoint that a folder is, or that a training run has in it."""
    inner = folder / "model"
    own = (folder / "config.json").is_file() or not (inner / "config.json").is_file()
    return folder if own else inner


def found_checkpoint(folder: Path) -> Path:
    """The same, or an error that says what is not there."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}. A checkpoint is a folder that save_pretrained wrote.")
    found = checkpoint_in(folder)
    if not (found / "config.json").is_file():
        if (folder / "recipe.json").is_file():
            raise FileNotFoundError(
                f"{folder} holds a run that has not finished, so it has no model yet. The command that started it "
                f"resumes it."
            )
        raise FileNotFoundError(
            f"{folder} has no config.json, so it is no checkpoint. model.save_pretrained writes one."
        )
    return found


class RefusesOtherEncodings(PreTrainedModel):
    """A model that is loaded with the position encoding it was saved with, or not at all."""

    @classmethod
    def from_pretrained(cls, source: Any, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """As transformers does; a checkpoint of another position encoding than the one asked for is an error."""
        wants_info = options.pop("output_loading_info", False)
        any_shape = options.pop("ignore_mismatched_sizes", False)
        try:
            loaded: Any = super().from_pretrained(
                source, *arguments, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
        except SafetensorError as error:
            raise ValueError(
                f"the weights in {source} are damaged ({error}). Copy the checkpoint again, or train it again."
            ) from error
        model, info = loaded
        refuse_other_encodings(source, model, info, options)
        if not any_shape:
            refuse_other_shapes(source, info)
        return (model, info) if wants_info else model


def refuse_other_encodings(source: Any, model: PreTrainedModel, info: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse a checkpoint in `source` whose encoding is not the loaded model's."""
    config: Any = model.config
    hub = {key: options[key] for key in ("cache_dir", "revision", "subfolder", "token") if key in options}
    saved_config, _ = PreTrainedConfig.get_config_dict(source, **hub)
    saved = saved_config.get("position_encoding") or {}
    learned = bool(position_parameters(model))
    if saved and not will_do(saved, config.position_encoding, learned):
        raise ValueError(
            f"the checkpoint in {source} was trained with position_encoding={saved}, and "
            f"{config.position_encoding} was asked for. Leave position_encoding out, or train a model with it."
        )
    keys = {key for kind in ("missing_keys", "unexpected_keys") for key in info[kind] if "position_encoding" in key}
    shapes = {entry[0] for entry in info.get("mismatched_keys", ()) if "position_encoding" in entry[0]}
    if keys | shapes:
        raise ValueError(
            f"the parameters of the position encoding in {source} do not fit {_described(vars(config))}: "
            f"{', '.join(sorted(keys | shapes)[:4])}. Load it with the configuration it was saved with: "
            f"{_described(saved_config)}."
        )


def refuse_other_shapes(source: Any, info: dict[str, Any]) -> None:
    """Refuse a checkpoint in `source` some of whose tensors have other shapes than the model's."""
    if wrong := sorted(info.get("mismatched_keys", ())):
        shown = ", ".join(f"{key} {tuple(saved)} there, {tuple(own)} here" for key, saved, own in wrong[:4])
        raise ValueError(
            f"{len(wrong)} tensors in {source} have other shapes than the model's: {shown}. Load it with the "
            f"configuration it was saved with, or with ignore_mismatched_sizes=True to start these anew."
        )


def will_do(saved: dict[str, Any], asked: dict[str, Any], learned: bool) -> bool:
    """Whether one encoding may be loaded from another's checkpoint.

    One that has learned something, or that the theorem made, must be the same, options too but for those that are free.
    Otherwise a class will do where it is a kind of the saved one, as RoPE-PI and YaRN are of RoPE.
    """
    before, now = (ENCODINGS.get(encoding.get("name", "")) for encoding in (saved, asked))
    if learned or "theorem" in saved or "theorem" in asked:
        free = before.free if before is not None else ()
        fixed, wanted = ({key: one[key] for key in one if key not in free} for one in (saved, asked))
        return fixed == wanted
    return before is None or now is None or issubclass(now, before)


def _described(config: dict[str, Any]) -> str:
    shared = config.get("share_position_encoding")
    return f"{config.get('position_encoding')}{'' if shared is None else f' with share_position_encoding={shared}'}"
