"""How large tensors are while something runs."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def elements(tensor: Tensor) -> int:
    """How many numbers its memory holds; a view has the memory of the whole."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


class Largest(TorchDispatchMode):
    """Note the elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        sizes = [elements(leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out
