"""The Hugging Face model. Importing this registers it with transformers' Auto classes, and attention "longfire"."""

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "longfire.model needs transformers: pip install 'longfire[model]'", name="transformers"
    ) from error

from longfire.model import attention, retrofits
from longfire.model.configuration import SIZES, LongfireConfig
from longfire.model.extension import extend, furthest, refuse_beyond
from longfire.model.modeling import LongfireForCausalLM, LongfireModel
from longfire.model.retrofits import retrofit

__all__ = [
    "SIZES",
    "LongfireConfig",
    "LongfireForCausalLM",
    "LongfireModel",
    "extend",
    "furthest",
    "refuse_beyond",
    "retrofit",
]

attention.register()
AutoConfig.register("longfire", LongfireConfig)
AutoModel.register(LongfireConfig, LongfireModel)
AutoModelForCausalLM.register(LongfireConfig, LongfireForCausalLM)
retrofits.register()
