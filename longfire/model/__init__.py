"""The Hugging Face model. Importing this registers it with transformers' Auto classes, and attention "longfire"."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from longfire.model import attention
from longfire.model.configuration import SIZES, LongfireConfig
from longfire.model.modeling import LongfireForCausalLM, LongfireModel

__all__ = ["SIZES", "LongfireConfig", "LongfireForCausalLM", "LongfireModel"]

attention.register()
AutoConfig.register("longfire", LongfireConfig)
AutoModel.register(LongfireConfig, LongfireModel)
AutoModelForCausalLM.register(LongfireConfig, LongfireForCausalLM)
