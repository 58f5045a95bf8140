"""Labels as they are typed, and what files are called after them."""

import re

import pytest

from longfire.lab.labels import file_name


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("fire", "fire"),
        ("fire-s", "fire-s"),
        ("kerple_log", "kerple_log"),
        ("fire:horizon=64,hidden_layers=1", "fire-horizon-64-hidden_layers-1"),
        ("fire-s:init_L=3.5", "fire-s-init_L-3.5"),
        ('fire:activation="a/b\\c? é*|<>', "fire-activation-a-b-c-"),
    ],
)
def test_names_of_files_are_portable(label, name):
    assert file_name(label) == name
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name)
