"""`longfire report` on the command line."""

import pytest

from longfire.atomic_io import write_json
from longfire.cli import main
from tests.report.records import compare_record, task_record


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "text" / "compare.json", compare_record())
    write_json(tmp_path / "copy" / "compare.json", task_record())
    write_json(tmp_path / "odd" / "compare.json", {"rows": []})
    (tmp_path / "empty").mkdir()
    for name in "abcdefg":
        (tmp_path / "full" / name).mkdir(parents=True)
    return tmp_path


def test_text_and_a_task(place, capsys):
    assert main(["report", "text", "copy", "--out", "new/both.html"]) == 0
    shown = capsys.readouterr().out
    assert "log perplexity at 16×" in shown
    assert "97 (95–99)*" in shown
    assert shown.endswith("\nReport: new/both.html\n")
    assert "Text: python-stdlib" in (place / "new" / "both.html").read_text(encoding="utf-8")
    assert main(["report", "copy"]) == 0
    assert (place / "report.html").exists()


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["gone"], "gone has no compare.json: there is no such folder."),
        (["text", "empty"], "empty has no compare.json: it is empty."),
        (["full"], "it contains a, b, c, d, e and 2 more."),
        (["text/compare.json"], "it is a file."),
        (["odd"], "is not the record of a comparison: it has rows."),
        (["text", "copy", "./text/"], "text: listed more than once."),
        (["text", "--out", "copy"], "--out copy is a folder"),
        (["text", "--out", "text/compare.json/report.html"], "Not a directory"),
    ],
)
def test_mistakes(folders, message, place, capsys):
    assert main(["report", *folders]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not (place / "report.html").exists()
