import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: tiny operations stall on more
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("longfire", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("longfire")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
