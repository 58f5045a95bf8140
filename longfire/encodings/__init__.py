"""Position encodings: one paper, one file. Importing a file of this folder registers its encodings."""

from importlib import import_module
from pkgutil import iter_modules

from longfire.encodings.absolute import Learned, Sinusoidal
from longfire.encodings.alibi import ALiBi
from longfire.encodings.base import DistanceBias, PositionEncoding, parameter_groups, position_parameters
from longfire.encodings.fire import FIRE
from longfire.encodings.kerple import KerpleLog, KerplePower
from longfire.encodings.nope import NoPE
from longfire.encodings.positions import random_positions
from longfire.encodings.registry import ENCODINGS, build_encoding, register
from longfire.encodings.rope import RoPE, RoPEPI, YaRN
from longfire.encodings.sandwich import Sandwich
from longfire.encodings.t5 import T5

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ENCODINGS",
    "FIRE",
    "T5",
    "ALiBi",
    "DistanceBias",
    "KerpleLog",
    "KerplePower",
    "Learned",
    "NoPE",
    "PositionEncoding",
    "RoPE",
    "RoPEPI",
    "Sandwich",
    "Sinusoidal",
    "YaRN",
    "build_encoding",
    "parameter_groups",
    "position_parameters",
    "random_positions",
    "register",
]
