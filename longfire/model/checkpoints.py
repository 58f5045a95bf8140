"""A checkpoint belongs to one position encoding: loading it with another is an error, not a warning."""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from longfire.encodings import ENCODINGS


def refuse_other_encodings(source: Any, model: PreTrainedModel, info: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse a checkpoint in `source` whose encoding is not the loaded model's.

    Another class will do where it is a kind of the saved one, as RoPE-PI and YaRN are of RoPE.
    """
    config: Any = model.config
    hub = {key: options[key] for key in ("cache_dir", "revision", "subfolder", "token") if key in options}
    saved_config, _ = PreTrainedConfig.get_config_dict(source, **hub)
    saved = saved_config.get("position_encoding") or {}
    before, now = (ENCODINGS.get(encoding.get("name", "")) for encoding in (saved, config.position_encoding))
    if before is not None and now is not None and not issubclass(now, before):
        raise ValueError(
            f"the checkpoint in {source} was trained with position_encoding={saved}, and "
            f"{config.position_encoding} was asked for. Leave position_encoding out, or train a model with it."
        )
    keys = {key for kind in ("missing_keys", "unexpected_keys") for key in info[kind] if "position_encoding" in key}
    shapes = {entry[0] for entry in info.get("mismatched_keys", ()) if "position_encoding" in entry[0]}
    if keys | shapes:
        raise ValueError(
            f"the parameters of the position encoding in {source} do not fit {config.position_encoding} with "
            f"share_position_encoding={config.share_position_encoding}: {', '.join(sorted(keys | shapes)[:4])}. Load "
            f"it with the configuration it was saved with: {saved}, "
            f"share_position_encoding={saved_config.get('share_position_encoding', False)}."
        )
