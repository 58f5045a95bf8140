"""The page of a checkpoint's learned biases: the file, and what a browser shows."""

import json
import re
from itertools import pairwise

import pytest
import torch

from longfire import ENCODINGS, FIRE, build_encoding
from longfire.cli import main
from longfire.evaluation.learned import bias_of, look_back
from longfire.report.explore_page import (
    bias_data,
    explore_page,
    explore_table,
    formula,
    is_plain,
    read_checkpoint,
    sample_distances,
)
from longfire.theorem import as_fire
from tests.model.models import small_model
from tests.report.browser import curves, looking_at, overflow, settle

TRAINED, FARTHEST = 128, 2048


def save(folder, name="fire", *, seed=0, **changes):
    model = small_model(name, seed=seed, **changes)
    if name == "fire":
        with torch.no_grad():
            for i, encoding in enumerate(model.model.encodings):
                encoding.linears[-1].weight.mul_(3)
                if encoding.log:
                    encoding.c.fill_(-0.1 * (i + 1))  # only |c| matters
                if encoding.threshold == "learned":
                    encoding.L_multiplier.fill_(0.1 * (i + 1))
    model.save_pretrained(folder)
    return model.model.encodings


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path / "trained")


@pytest.fixture
def path(saved, tmp_path):
    explore_page([tmp_path / "trained"], tmp_path / "page" / "explore.html")
    return tmp_path / "page" / "explore.html"


def in_the_page(page, layer, query, distances, model=0):
    found = page.evaluate("([m, l, q, d]) => longfire.bias(m, l, q, d)", [model, layer, query, distances])
    return torch.tensor(found, dtype=torch.float64)


def some_distances(query):
    return sorted({d for d in (0, 1, 2, 3, 7, 40, 127, 128, 1000, query // 2, query - 1) if d < query})


QUERIES = (1, 2, 13, 64, TRAINED, 129, 1000, FARTHEST)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden_layers": 1, "first_position": 0},
        {"hidden_layers": 0, "eps": 0.0},
        {"activation": "gelu", "final_activation": True, "mlp_width": 5},
        {"log": False, "threshold": None},
        {"threshold": "fixed", "init_L": 32.0},
        {"init_L": 32.0, "horizon": 128},
    ],
)
def test_fire_in_the_page_is_fire(browser, tmp_path, options):
    encodings = save(tmp_path / "m", position_encoding={"name": "fire", **options})
    explore_page([tmp_path / "m"], tmp_path / "explore.html")
    with looking_at(browser, tmp_path / "explore.html") as page:
        for layer, encoding in enumerate(encodings):
            for query in QUERIES:
                expected = bias_of(encoding, query, some_distances(query)).double()
                found = in_the_page(page, layer, query, some_distances(query))
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
                assert options or query == 1 or expected.std(1).max() > 0.1
                ratios = page.evaluate("([l, q]) => longfire.lookBack(0, l, q)", [layer, query])
                assert ratios == pytest.approx(look_back(encoding, query).tolist(), abs=0.02)


@pytest.mark.parametrize("name", [name for name, cls in ENCODINGS.items() if cls.distance_only and name != "sandwich"])
def test_other_encodings_in_the_page(browser, tmp_path, name):
    encodings = save(tmp_path / "m", name)
    explore_page([tmp_path / "m"], tmp_path / "explore.html")
    with looking_at(browser, tmp_path / "explore.html") as page:
        for query in QUERIES:
            expected = bias_of(encodings[0], query, some_distances(query)).double()
            found = in_the_page(page, 0, query, some_distances(query))
            # sampled: exact up to distance 256, then linear over 5 % of the distance
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-5)
            near = [d for d in some_distances(query) if d <= 256]
            torch.testing.assert_close(found[:, : len(near)], expected[:, : len(near)], rtol=1e-6, atol=1e-6)


def test_bias_data():
    shape = {"num_heads": 4, "head_dim": 8}
    assert bias_data(FIRE(4), 64)["kind"] == "fire"
    assert len(bias_data(build_encoding("t5", **shape), 64)["rows"]) == 1
    for name, plain in (("alibi", True), ("t5", True), ("kerple_log", False), ("kerple_power", False)):
        fire = as_fire(build_encoding(name, **shape), 64)
        assert is_plain(fire) is plain
        found = bias_data(fire, 64)
        assert found["kind"] == ("fire" if plain else "sampled")
        if not plain:
            assert [row["query"] for row in found["rows"]][:3] == [1, 2, 3]
            assert found["rows"][-1]["query"] == 64
            assert found["c"] is None


def test_sampled_distances():
    assert sample_distances(1, 1.05, 256) == [0]
    assert sample_distances(5, 1.05, 256) == [0, 1, 2, 3, 4]
    found = sample_distances(32768, 1.05, 256)
    assert found[:257] == list(range(257))
    assert found[-1] == 32767
    assert len(found) < 380
    assert all(b <= 1.06 * a for a, b in pairwise(found[256:]))


def test_look_back():
    alibi = build_encoding("alibi", num_heads=4)
    assert (look_back(alibi, 512) < 0.8).all()
    flipped = FIRE(2).init_as("kerple_log", slopes=[0.0, -2.0])
    even, far = look_back(flipped, 512).tolist()
    assert even == pytest.approx(1.0)
    assert far > 1.2
    assert look_back(alibi, 1).tolist() == [1.0] * 4


def test_the_file_is_self_contained(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert data["farthest"] == FARTHEST
    assert [(round(layer["c"], 6), round(layer["L"], 3)) for layer in data["models"][0]["layers"]] == [
        (0.1, 51.2),
        (0.2, 102.4),
    ]
    assert len(text) < 100_000


def test_curves_draw_and_the_slider_moves_them(browser, path):
    with looking_at(browser, path) as page:
        assert page.locator("#curves .panel").count() == 2
        before = curves(page, "#curves .panel:first-child")
        assert len(before) == 4
        assert all(d.count("L") > 20 for d in before.values())
        slider = page.locator("#query input[type=range]")
        slider.fill("1000")
        settle(page)
        assert page.locator("#query input[type=number]").input_value() == "2048"
        assert page.locator("#times").inner_text() == "16 × the training length"
        far = curves(page, "#curves .panel:first-child")
        assert sorted(far.values()) != sorted(before.values())
        assert page.locator("#curves .panel:first-child svg .mark").count() == 1  # the training length
        slider.fill("0")
        settle(page)
        assert page.locator("#query input[type=number]").input_value() == "1"
        assert len(curves(page, "#curves .panel:first-child")) == 4
        page.get_by_role("button", name="1 ×", exact=True).click()
        settle(page)
        assert curves(page, "#curves .panel:first-child") == before
        entry = page.locator("#query input[type=number]")
        for typed in ("99999", ""):
            entry.fill(typed)
            entry.blur()
            assert (entry.input_value(), slider.input_value()) == ("2048", "1000")


def test_choices_and_hovering(browser, path):
    with looking_at(browser, path) as page:
        by_distance = curves(page, "#curves")
        page.get_by_label("position", exact=True).check()
        settle(page)
        by_position = curves(page, "#curves")
        assert by_position != by_distance
        assert "key position" in page.locator("#curves .panel:first-child svg").text_content()
        page.get_by_label("raw").check()
        settle(page)
        assert curves(page, "#curves") != by_position
        page.locator("#curves .panel:first-child svg").hover()
        text = page.locator("#curves .panel:first-child .tip").inner_text()
        assert re.match(r"key \d+\s+head \d, (local|anti-local|even)", text)


def test_heads_are_marked_and_found(browser, path, saved):
    with looking_at(browser, path) as page:
        cells = page.locator("#heads .cells button")
        assert cells.count() == 8
        kinds = [kind.split()[0] for kind in cells.evaluate_all("nodes => nodes.map(node => node.className)")]
        ratios = [x for encoding in saved for x in look_back(encoding, TRAINED).tolist()]
        clear = [(kind, x) for kind, x in zip(kinds, ratios, strict=True) if min(abs(x - 0.8), abs(x - 1.2)) > 0.02]
        assert clear
        for kind, x in clear:
            assert kind == ("local" if x < 0.8 else "anti" if x > 1.2 else "even")
        assert "layer 1, head 1:" in cells.first.get_attribute("aria-label")
        assert page.locator("#curves path.strong").count() == 0
        cells.first.click()
        settle(page)
        assert page.locator("#curves path.strong").count() == 1
        assert page.locator("#curves path.faint").count() == 3
        cells.first.click()
        settle(page)
        assert page.locator("#curves path.strong, #curves path.faint").count() == 0


def test_two_side_by_side(browser, path, tmp_path):
    save(tmp_path / "t5", "t5", num_hidden_layers=3)
    explore_page([tmp_path / "trained", tmp_path / "t5"], tmp_path / "two.html")
    with looking_at(browser, tmp_path / "two.html") as page:
        titles = [" ".join(title.split()) for title in page.locator("#curves .panel h3").all_inner_texts()]
        assert titles[:3] == ["trained, layer 1 c = 0.1, L = 51.2", "t5, layer 1", "trained, layer 2 c = 0.2, L = 102"]
        assert titles[3:] == ["t5, layer 2", "t5, layer 3"]
        left, right = (page.locator(f"#curves .panel:nth-child({i}) svg").bounding_box() for i in (1, 2))
        assert left["y"] == right["y"]
        assert left["x"] < right["x"]
        page.set_viewport_size({"width": 360, "height": 740})
        settle(page)
        assert overflow(page) == 0


def test_a_phone(browser, tmp_path):
    save(tmp_path / "m", num_attention_heads=16, num_hidden_layers=3)
    explore_page([tmp_path / "m"], tmp_path / "explore.html")
    with looking_at(browser, tmp_path / "explore.html", width=360, height=740, scheme="dark") as page:
        assert overflow(page) == 0
        page.locator("#curves .panel:first-child svg").hover()
        assert overflow(page) == 0
        page.locator("#query input[type=range]").fill("1000")
        settle(page)
        assert overflow(page) == 0


def test_the_formula_is_that_of_the_model(tmp_path):
    published = formula(FIRE(2))
    assert "ψ(max(L, query)) ) with ψ(x) = log(c·x + 1). Queries up to L" in published
    assert published.endswith("beyond, it stretches with the query.")
    with_horizon = formula(FIRE(2, horizon=2048))
    assert "ψ(min(max(L, query), 2,048)) )" in with_horizon
    assert "up to L share one curve, and so do queries from the horizon, 2,048, on" in with_horizon
    linear = formula(FIRE(2, log=False, threshold=None))
    assert linear == "FIRE is f( ψ(distance) ÷ ψ(query) ) with ψ(x) = x. The curve stretches with the query."

    save(tmp_path / "m", position_encoding={"name": "fire", "init_L": 32.0, "horizon": 64})
    found = explore_page([tmp_path / "m"], tmp_path / "explore.html")
    assert "ψ(min(max(L, query), 64))" in (tmp_path / "explore.html").read_text(encoding="utf-8")
    assert "fire, trained at 128, horizon 64\n" in explore_table(found)


def test_one_encoding_for_all_layers(tmp_path):
    save(tmp_path / "shared", share_position_encoding=True)
    save(tmp_path / "alibi", "alibi")
    found = explore_page([tmp_path / "shared", tmp_path / "alibi"], tmp_path / "explore.html")
    assert [(model.per_layer, len(model.encodings)) for model in found] == [(False, 1), (False, 1)]
    assert explore_table(found).count("\nall  ") == 2


def test_a_runs_folder_is_a_checkpoint(tmp_path):
    save(tmp_path / "run" / "model")
    assert read_checkpoint(tmp_path / "run").encoding == "fire"


def test_command(tmp_path, saved, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["explore", str(tmp_path / "trained"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path / 'trained'}: fire, trained at 128" in shown
    assert re.search(r"^2 +0\.2 +102\.4 ", shown, flags=re.MULTILINE)
    page = tmp_path / "out" / "trained.html"
    assert shown.endswith(f"Open in a browser: {page}\n")
    save(tmp_path / "runs" / "other")
    before = page.read_bytes()
    assert main(["explore", "trained", str(tmp_path / "runs" / "other"), "--out", str(tmp_path / "out")]) == 0
    assert page.read_bytes() == before
    assert page.with_name("trained-runs-other.html").is_file()


def test_errors_are_readable(tmp_path, capsys):
    save(tmp_path / "rope", "rope")
    (tmp_path / "empty").mkdir()
    for names, message in (
        (["nowhere"], "there is no folder"),
        (["empty"], "has no config.json"),
        (["rope"], "its encoding is 'rope', which adds none"),
        (["a", "b", "c"], "one checkpoint, or two to compare, not 3"),
    ):
        assert main(["explore", *(str(tmp_path / name) for name in names), "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
