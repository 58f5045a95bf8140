"""Several comparisons on one page."""

from longfire.report.combined import combined_page, summary_table
from longfire.report.summary import with_titles
from tests.report.browser import curves, looking_at, overflow
from tests.report.records import EXACT, LABELS, compare_record, task_record, with_other_texts


def test_the_summary():
    """The best of each column is highlighted; encodings that a comparison does not have are dashes."""
    reverse = task_record({one: EXACT[one] for one in ("fire", "rope")}, name="reverse")
    table = summary_table({"a": compare_record(), "b": task_record(), "c": reverse})
    assert table.columns == ["", "log perplexity at 16×", "copy at 4×", "reverse at 4×"]
    assert table.rows == [
        ["FIRE", "2.207 ± 0.030", "97 (95–99)", "97 (95–99)"],
        ["ALiBi", "2.148 ± 0.032", "–", "–"],
        ["Kerple-log", "2.157 ± 0.029", "91 (89–93)", "–"],
        ["RoPE", "3.627 ± 0.030", "0", "0"],
        ["NoPE", "4.277 ± 0.030", "0", "–"],
    ]
    assert set(table.highlights) == {(1, 1), (0, 2), (0, 3)}
    assert table.notes[0].endswith("Bold: best; on text also what is not significantly behind it.")
    assert summary_table({"c": reverse}).notes[0].endswith("Bold: best.")
    assert not table.notes[1]


def test_different_fires_have_their_own_rows():
    """A recipe's FIRE is not the paper's, though both are typed `fire`."""
    recommended = task_record()
    recommended["setting"]["recipe"]["horizon"] = "length"
    table = summary_table({"a": compare_record(), "b": with_titles(recommended)})
    rows = {label: cells for label, *cells in table.rows}
    assert (rows["FIRE"][1], rows["FIRE (recommended)"][0]) == ("–", "–")
    assert table.notes[1].endswith(
        "In copy at 4×, FIRE (recommended) starts as Kerple-log, with its horizon at the training length."
    )


def test_equal_columns_have_their_folders_and_failures_are_dashes():
    failed = task_record() | {"runs": [{"encoding": "fire", "label": "FIRE", "seed": 0, "failed": "no memory"}]}
    table = summary_table({"x/a": task_record(), "x/b": task_record(seeds=(1,)), "c": failed})
    assert table.columns == ["", "copy at 4× (x/a)", "copy at 4× (x/b)", "copy"]
    assert table.rows[0] == ["FIRE", "97 (95–99)", "97", "–"]
    assert not table.notes[1]


def test_the_page(browser, tmp_path):
    records = {"books": with_other_texts(compare_record()), "copy": task_record(), "<b>": task_record(seeds=(1,))}
    with looking_at(browser, combined_page(records, tmp_path / "report.html"), 1280) as page:
        titles = page.locator("h2").all_inner_texts()
        assert titles == ["Text: python-stdlib", "Copy", "Copy"]
        assert page.locator("#numbers tbody tr").count() == 5
        assert page.locator("section .verdict").count() == 3
        assert page.locator("#chart-1 .panel").count() == 3
        assert set(curves(page, "#chart-1 .panel:first-child")) == set(LABELS.values())
        assert set(curves(page, "#chart-2")) == {LABELS[one] for one in EXACT}
        assert page.locator("#numbers-1-3").count() == page.locator("#numbers-2-1").count() == 1
        page.locator("#chart-2 .legend button", has_text="NoPE").click()  # hidden in every chart
        assert not any("NoPE" in curves(page, where) for where in ("#chart-1", "#chart-2", "#chart-3"))
        colors = page.locator("tr:has-text('Kerple-log') .swatch").evaluate_all(
            "nodes => nodes.map(node => getComputedStyle(node).backgroundColor)"
        )
        assert len(colors) == 6
        assert len(set(colors)) == 1
        assert overflow(page) == 0
        page.set_viewport_size({"width": 390, "height": 740})
        assert overflow(page) == 0
