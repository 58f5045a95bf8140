from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _narrow_zones(monkeypatch):
    """Allow W = 16: fewer keys and samples reach the middle and far zones."""
    monkeypatch.setattr("longfire.engines.fused.zones.LEAST_SMOOTH_BEYOND", 16)
