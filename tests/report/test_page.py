"""report.html: the file, and what a browser shows."""

import json
import math
import re
from itertools import pairwise

import pytest

from longfire.report.html import display, write_page
from longfire.report.page import report_page
from longfire.report.verdict import verdict
from tests.report.browser import curves, looking_at, overflow, settle
from tests.report.records import LABELS, compare_record, with_other_texts

EVIL = "</script><img src=x onerror=alert(1)>&\u2028"


def data_of(path):
    """The JSON for the page's scripts."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), flags=re.DOTALL)[1])


@pytest.fixture
def report(tmp_path):
    return report_page(compare_record(), tmp_path / "new" / "report.html")


def test_the_file_is_self_contained(report):
    text = report.read_text(encoding="utf-8")
    assert not re.search(r"\b(src|href)\s*=\s*(?![\"']?data:)", text)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in text
    assert len(text) < 200_000
    assert [path.name for path in report.parent.iterdir()] == ["report.html"]


def test_the_answer_comes_first(report):
    """Verdict, chart, table, method, in this order."""
    text = report.read_text(encoding="utf-8")
    parts = (verdict(compare_record()), 'id="perplexity"', 'id="numbers"', "Scored: 30 documents", "Models with 820k")
    assert sorted(parts, key=text.index) == list(parts)
    assert '<strong>2.127</strong> <span class="spread">± 0.030</span>' in text
    assert text.count("<strong>") == 6
    for name, value in {"commit": "0123456789ab+", "hardware.gpu": "–", "splits.train.tokens": "1,900,000"}.items():
        assert f"<th>{name}</th><td>{value}</td>" in text
    assert 'id="failed"' not in text


def test_data_for_the_charts(report, tmp_path):
    data = data_of(report)
    assert data["trained"] == 64
    assert [one["label"] for one in data["series"]] == list(LABELS.values())
    n, mean, low, high, tip = data["texts"][0]["perplexity"]["FIRE"][-1]
    assert (n, tip) == (1024, "2.207 ± 0.030")
    assert low < mean < high
    assert len(data["series"][0]["losses"]) == 60
    assert data["series"][0]["positions"]["64"][0][:2] == [0, 8]
    (bias,) = data["biases"]
    assert (bias["label"], bias["queries"]) == ("FIRE", [63, 1023])
    assert [len(layer["heads"]) for layer in bias["layers"]] == [4, 4]
    data = data_of(report_page(compare_record(seeds=(0,)), tmp_path / "report.html"))
    assert data["texts"][0]["perplexity"]["FIRE"][0][4] == "2.097 (95 % over the text: 2.077 to 2.117)"


def test_extended_models_and_several_biases(tmp_path):
    """Losses are of training from scratch; biases are in the order of the table."""
    record = compare_record()
    for run in record["runs"]:
        if run["encoding"] == "nope":
            run["extended"] = {"from": "RoPE", "to": 256, "steps": 3}
    record["biases"] = dict.fromkeys(("odd", "alibi", "fire"), record["biases"]["fire"]) | {"rope": []}
    path = report_page(record, tmp_path / "report.html")
    assert [one["label"] for one in data_of(path)["series"] if not one["losses"]] == ["NoPE"]
    assert "<h2>Training loss from scratch</h2>" in path.read_text(encoding="utf-8")
    assert [one["label"] for one in data_of(path)["biases"]] == ["FIRE", "ALiBi", "odd"]


def test_missing_parts_are_left_out(tmp_path):
    record = compare_record(seeds=(0,)) | {"biases": {}, "provenance": {}}
    for run in record["runs"]:
        run["losses"] = []
        run["perplexity"]["rows"] = [
            {"length": 64, "log_perplexity": 2.0, "by_position": [{"from": 0, "to": 8, "loss": math.nan}]},
            {"length": 128, "failed": "no memory"},
        ]
    text = report_page(record, tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("losses", "positions", "biases"):
        assert f'id="{name}"' not in text
    assert "<li>FIRE at 128: no memory</li>" in text


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_page(tmp_path / "page.html", title="", body="", data=math.nan, scripts=())
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OSError, match=r"folder\.html"):
        write_page(tmp_path / "folder.html", title="", body="", data=0, scripts=())
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_facts_are_readable():
    values = (None, True, False, 12345, 0.5, [1, 2], "a", {})
    assert [display(value) for value in values] == ["–", "yes", "no", "12,345", "0.5", "1, 2", "a", "–"]


def test_charts_draw(browser, report):
    with looking_at(browser, report) as page:
        for name in ("perplexity", "losses", "positions"):
            drawn = curves(page, f"#{name}")
            assert set(drawn) == set(LABELS.values())
            assert all(d.count("L") >= 4 for d in drawn.values())
            assert "NaN" not in str(drawn)
        ends = {label: float(d.rsplit(",", 1)[1]) for label, d in curves(page, "#perplexity").items()}
        assert ends["NoPE"] < ends["RoPE"] < ends["FIRE"]  # pixels count from the top
        assert page.locator("#perplexity path.band").count() == 5
        assert page.locator("#perplexity path.dot").count() == 25
        assert "training length" in page.locator("#perplexity svg").text_content()
        assert page.get_by_role("img", name="Log perplexity by length").count() == 1


def test_curves_are_labelled_at_their_ends(browser, report):
    """In order and without overlap; not on a phone, which has no room."""
    with looking_at(browser, report) as page:
        labels = page.locator("#perplexity text.end")
        assert labels.all_text_contents() == ["NoPE", "RoPE", "FIRE", "Kerple-log", "ALiBi"]
        tops = [label.bounding_box()["y"] for label in labels.all()]
        assert all(after - before >= 13 for before, after in pairwise(tops))
        assert overflow(page) == 0
        page.set_viewport_size({"width": 390, "height": 740})
        settle(page)
        assert labels.count() == 0


@pytest.mark.parametrize("width", [1200, 800])
def test_labels_at_the_ends_are_whole(browser, tmp_path, width):
    """And unlike each other. Where they do not fit, there are none."""
    record = compare_record()
    for run in record["runs"]:
        run["label"] += " (WWWWWW), before recovery"
    with looking_at(browser, report_page(record, tmp_path / "report.html"), width=width) as page:
        labels, right = page.locator("#perplexity text.end"), page.locator("#perplexity svg").bounding_box()
        assert len(set(labels.all_text_contents())) == labels.count() == (5 if width == 1200 else 0)
        for box in (label.bounding_box() for label in labels.all()):
            assert box["x"] + box["width"] <= right["x"] + right["width"]


def test_the_training_loss_of_a_short_run_is_whole(browser, tmp_path):
    """A curve of 60 points may begin above the plot, as the page says; one of 7 may not."""
    record = compare_record(("alibi",))
    long = report_page(record, tmp_path / "long.html").read_text()
    for run in record["runs"]:
        run["losses"] = [[1, 5.9], *([step, 3.0 - step / 60] for step in range(10, 61, 10))]
    path = report_page(record, tmp_path / "short.html")
    assert ["The first steps may lie above" in text for text in (long, path.read_text())] == [True, False]
    with looking_at(browser, path) as page:
        (curve,) = curves(page, "#losses").values()
        assert float(curve.split("L")[0].split(",")[1]) >= 14  # the top of the plot


def test_labels_in_tables_break_between_words(browser, tmp_path):
    record = compare_record()
    for run in record["runs"]:
        run["label"] = f"{run['label']} (init=kerple_log, recommended)"
    with looking_at(browser, report_page(record, tmp_path / "report.html"), width=390) as page:
        lines = page.locator("#numbers th[scope=row]").evaluate_all("""heads => heads.map(head => {
            const text = head.lastChild, range = document.createRange(), start = text.data.indexOf("(");
            range.setStart(text, start);
            range.setEnd(text, text.data.indexOf(",", start));
            return range.getClientRects().length;
        })""")
        assert lines == [1] * 5


def test_each_text_has_a_chart_and_a_table(browser, tmp_path):
    """One legend hides a line in all charts."""
    path = report_page(with_other_texts(compare_record()), tmp_path / "report.html")
    with looking_at(browser, path) as page:
        assert page.locator("#perplexity .panel h3").all_inner_texts() == ["python-stdlib", "latex", "code"]
        panels = [f"#perplexity .panel:nth-child({i})" for i in (1, 2, 3)]
        assert all(set(curves(page, panel)) == set(LABELS.values()) for panel in panels)
        assert curves(page, panels[0])["RoPE"] != curves(page, panels[1])["RoPE"]
        assert page.get_by_role("img", name="Log perplexity by length on latex").count() == 1
        page.locator("#perplexity .legend button", has_text="NoPE").click()
        assert not any("NoPE" in curves(page, panel) for panel in panels)
        assert page.locator("#numbers-2 tbody tr").first.locator("td").first.inner_text().startswith("2.5")
        assert page.locator("th", has_text="log perplexity on code at").count() == 1
        assert "of python-stdlib" in page.locator("#positions p").first.inner_text()
        assert overflow(page) == 0


def test_the_legend_hides_a_line_in_every_chart(browser, report):
    with looking_at(browser, report) as page:
        before = curves(page, "#perplexity")["FIRE"]
        page.locator("#perplexity .legend button", has_text="NoPE").click()
        for name in ("perplexity", "losses", "positions"):
            assert set(curves(page, f"#{name}")) == set(LABELS.values()) - {"NoPE"}
            button = page.locator(f"#{name} .legend button", has_text="NoPE")
            assert button.get_attribute("aria-pressed") == "false"
        assert curves(page, "#perplexity")["FIRE"] != before  # the axis is rescaled
        page.locator("#losses .legend button", has_text="NoPE").click()
        assert curves(page, "#perplexity")["FIRE"] == before
        for one in page.locator("#perplexity .legend button").all():
            one.click()
        assert curves(page, "#perplexity") == {}


def test_pointer_and_keys_show_values(browser, report):
    with looking_at(browser, report) as page:
        svg, tip = page.locator("#perplexity svg"), page.locator("#perplexity .tip")
        assert not tip.is_visible()
        box = svg.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 100, box["y"] + 100)
        text = " ".join(tip.inner_text().split())
        assert text.startswith("1,024 tokens")
        assert "ALiBi 2.148 ± 0.032" in text
        assert text.index("NoPE") < text.index("RoPE") < text.index("ALiBi")
        page.mouse.move(5, 5)
        assert not tip.is_visible()
        svg.focus()
        for expected in ("64 tokens (training length)", "128 tokens"):
            page.keyboard.press("ArrowRight")
            assert expected in tip.inner_text()
        page.keyboard.press("Escape")
        assert not tip.is_visible()


def test_choices(browser, tmp_path):
    """The length for positions; encoding, query and axis for biases."""
    record = compare_record()
    record["biases"]["alibi"] = [row for row in record["biases"]["fire"] if row["query"] == 63 and row["layer"] == 0]
    with looking_at(browser, report_page(record, tmp_path / "report.html")) as page:
        long = curves(page, "#positions")
        page.locator("#positions select").select_option("64")
        assert curves(page, "#positions") != long
        panels = page.locator("#biases .panel")
        assert panels.count() == 2
        first = "#biases .panel:first-child"
        assert set(curves(page, first)) == {"head 1", "head 2"}
        assert "for the query at 1024" in page.locator(f"{first} svg").get_attribute("aria-label")
        near = curves(page, first)
        page.get_by_label("position", exact=True).check()
        assert curves(page, first) != near
        page.get_by_label("64", exact=True).check()
        assert "for the query at 64" in page.locator(f"{first} svg").get_attribute("aria-label")
        page.locator("#biases").get_by_label("ALiBi").check()
        assert panels.count() == 1
        assert len(curves(page, "#biases")) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(browser, report, scheme):
    with looking_at(browser, report, width=360, height=740, scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert overflow(page) == 0
        assert page.locator("#perplexity svg").bounding_box()["width"] <= 360
        page.locator("#perplexity svg").hover()
        assert overflow(page) == 0
        background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is (scheme == "light")
        page.set_viewport_size({"width": 900, "height": 740})
        settle(page)
        assert page.locator("#perplexity svg").bounding_box()["width"] > 700


def test_long_labels_leave_room_for_numbers(browser, tmp_path):
    """On a desktop all columns are visible; on a phone they scroll while the labels stay."""
    record = compare_record()
    for run in record["runs"]:
        run["label"] += " (horizon=32, hidden_layers=1, activation=gelu)"
    with looking_at(browser, report_page(record, tmp_path / "report.html"), width=1280) as page:
        box = page.locator("#numbers .scroll")
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
        page.set_viewport_size({"width": 390, "height": 740})
        settle(page)
        assert overflow(page) == 0
        assert box.evaluate("box => box.scrollWidth - box.clientWidth") > 100
        box.evaluate("box => box.scrollLeft = box.scrollWidth")
        label, last = (box.locator(f"tbody tr:first-child {one}").bounding_box() for one in ("th", "td:last-child"))
        assert label["x"] >= 0
        assert label["x"] + label["width"] < last["x"]
        assert last["x"] + last["width"] <= 390


def evil_record():
    record = compare_record(encodings=("fire", "alibi"), seeds=(0,))
    for run in record["runs"]:
        run["label"] = EVIL + run["encoding"]
    record["runs"].append({"encoding": "rope", "label": EVIL, "seed": 0, "failed": EVIL})
    record["setting"]["corpus"] |= {"name": EVIL, EVIL: EVIL}
    record["provenance"]["commit"] = EVIL
    record["biases"] = {EVIL: record["biases"]["fire"]}
    return record


def test_data_is_escaped(tmp_path):
    text = report_page(evil_record(), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 2


def test_a_browser_treats_data_as_text(browser, tmp_path):
    with looking_at(browser, report_page(evil_record(), tmp_path / "report.html")) as page:
        assert page.locator("img").count() == 0
        assert EVIL + "fire" in curves(page, "#perplexity")
        assert page.locator("#perplexity .legend button").first.inner_text().startswith("</script>")
        assert overflow(page) <= 0


def test_nothing_to_draw(browser, tmp_path):
    record = compare_record() | {"runs": [], "biases": {}}
    with looking_at(browser, report_page(record, tmp_path / "report.html")) as page:
        assert curves(page, "body") == {}
