"""The Hugging Face model. Importing it registers its Auto classes and the "longfire" attention implementation."""

import warnings
from typing import Any

try:
    from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "longfire.model needs transformers: pip install 'longfire[model]'", name="transformers"
    ) from error

from longfire.model import inspection, retrofits
from longfire.model.attention import longfire_attention
from longfire.model.configuration import SIZES, LongfireConfig
from longfire.model.extension import extend
from longfire.model.heads import LongfireForCausalLM, LongfireForMaskedLM
from longfire.model.inputs import LONGFIRE
from longfire.model.modeling import LongfireModel
from longfire.model.retrofits import retrofit

__all__ = [
    "SIZES",
    "LongfireConfig",
    "LongfireForCausalLM",
    "LongfireForMaskedLM",
    "LongfireModel",
    "extend",
    "retrofit",
]

AttentionInterface.register(LONGFIRE, longfire_attention)  # masks come with `Layout`
AutoConfig.register("longfire", LongfireConfig)
AutoModel.register(LongfireConfig, LongfireModel)
AutoModelForCausalLM.register(LongfireConfig, LongfireForCausalLM)
AutoModelForMaskedLM.register(LongfireConfig, LongfireForMaskedLM)
retrofits.register()

_RENAMED = {"furthest": inspection.max_positions, "refuse_beyond": inspection.check_length}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        new = f"longfire.model.inspection.{_RENAMED[name].__name__}"
        warnings.warn(f"longfire.model.{name} is now {new}; the next release drops the old name.", FutureWarning, 2)
        return _RENAMED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
