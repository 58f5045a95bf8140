"""Labels: parsing, canonical form, names of files and folders."""

import re

import pytest

from longfire.encodings.labels import (
    canonical_label,
    check_label,
    label_file_name,
    label_title,
    parse_label,
    run_folder,
)


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
def test_file_names_are_portable(label, name):
    assert label_file_name(label) == name
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", name)


@pytest.mark.parametrize(
    ("typed", "canonical", "title"),
    [
        (
            "fire:start=kerple_log,horizon=512",
            "fire:init=kerple_log,horizon=512",
            "FIRE (init=kerple_log, horizon=512)",
        ),
        ("fire-s:horizon=512, init = random", "fire-s:horizon=512,init=random", "FIRE-S (horizon=512)"),
        ("fire:start=None", "fire:init=random", "FIRE"),
        ("fire:init_L=3,init_c=0.5", "fire:init_L=3,init_c=0.5", "FIRE (init_L=3, init_c=0.5)"),
        ("fire:horizon=64, activation = gelu", "fire:horizon=64,activation=gelu", "FIRE (horizon=64, activation=gelu)"),
        ("alibi", "alibi", "ALiBi"),
    ],
)
def test_canonical_form_has_no_spaces_and_init_for_start(typed, canonical, title):
    check_label(typed)
    assert canonical_label(typed) == canonical_label(canonical) == canonical
    for of_label in (parse_label, label_file_name, label_title):
        assert of_label(typed) == of_label(canonical)
    assert label_title(typed) == title


@pytest.mark.parametrize(
    ("label", "old"),
    [("fire:init=alibi,log=False", "fire-start-alibi-log-False-3"), ("fire:init=random", "fire-start-None-3")],
)
def test_run_folders_of_earlier_releases_are_found(label, old, tmp_path):
    current = tmp_path / f"tiny-{label_file_name(label)}-3"
    assert run_folder(tmp_path, label, 3, "tiny-") == current
    (tmp_path / f"tiny-{old}").mkdir()
    assert run_folder(tmp_path, label, 3, "tiny-").name == f"tiny-{old}"
    current.mkdir()
    assert run_folder(tmp_path, label, 3, "tiny-") == current


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("fire:", "'fire:' ends without an option; write fire:option=value"),
        ("fire:horizon=64, ", "ends without an option"),
        ("fire:horizon=64,horizon=32", "sets 'horizon' twice"),
        ("fire:init=alibi,start=kerple_log", "sets 'init' twice"),
        ("fire:horizon", "'horizon' has no value"),
        ("alibi:init=kerple_log", "alibi has no option 'init'"),
        ("alibi:start=kerple_log", "alibi has no option 'start'"),
        ("fire,alibi", "no encoding named 'fire,alibi'. Pass encodings separately: fire or alibi"),
    ],
)
def test_bad_labels_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        check_label(label)
