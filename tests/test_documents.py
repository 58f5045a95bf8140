"""README, docs and site: their code runs, links resolve, and every page opens."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longfire import ENCODINGS
from tests.report.browser import a_browser, overflow, settle

ROOT = Path(__file__).parents[1]
WITHOUT_CODE = {"api", "claims", "kernel", "log", "results", "speed", "tables"}


def code_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks("README.md")
    assert blocks
    exec(compile("\n".join(blocks), "README.md", "exec"), {})


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # Trainer's, on a CPU
def test_docs_run(page, tmp_path, monkeypatch):
    blocks = code_blocks(page)
    assert blocks or page.stem in WITHOUT_CODE
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    exec(compile("\n".join(blocks), page.name, "exec"), {})


def test_fused_readme_runs(capsys):
    (block,) = code_blocks("longfire/engines/fused/README.md")
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("fused: " if torch.cuda.is_available() else "chunked: ")


def test_new_encoding_takes_one_file(tmp_path):
    """CONTRIBUTING's example adds one file, passes contract tests and type checks, and works on the command line."""
    for name in ("longfire", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (block,) = code_blocks("CONTRIBUTING.md")
    (tmp_path / "longfire" / "encodings" / "recency.py").write_text(block)

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tested, explored, benched = run("-c", USE_AN_ENCODING, "recency").split("$ longfire")
    assert int(re.search(r"(\d+) passed", tested)[1]) >= 15
    assert "recency" in explored
    assert "recency n=16" in benched
    if importlib.util.find_spec("mypy"):
        run("-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), "longfire/encodings")  # half a minute without it


USE_AN_ENCODING = """
import sys
import pytest
from longfire.cli import main
assert pytest.main(["-q", "-p", "no:cacheprovider", "tests/encodings/test_contract.py", "-k", sys.argv[1]]) == 0
for command in (["explore", "--out", "."], ["bench", "bias", "--lengths", "16", "--dry-run"]):
    print("$ longfire", flush=True)
    assert main(command) == 0
"""
"""The contract tests of one encoding, and commands that show all. One process: importing takes longest."""


def test_readme_lists_every_encoding():
    readme = (ROOT / "README.md").read_text()
    for name, cls in ENCODINGS.items():
        assert f"`{name}`" in readme
        assert f"`{cls.__name__}`" in readme


def test_code_fits_the_page():
    """Longer lines are cut at a window width of 1280 px."""
    for page in [ROOT / "README.md", ROOT / "longfire/engines/fused/README.md", *(ROOT / "docs").glob("*.md")]:
        for block in page.read_text().split("```")[1::2]:
            assert [line for line in block.splitlines() if len(line) > 92] == [], page.name


def test_links_resolve():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("longfire/**/*.md")]:
        if ".venv" in page.parts:
            continue
        for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built strictly: pages missing from the navigation, broken links and unknown names are errors."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs mkdocs: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet defeats it
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_site_has_every_page_image_and_script(site):
    for page in (ROOT / "docs").glob("*.md"):
        text = (site / f"{page.stem}.html").read_text(encoding="utf-8")
        assert "--8&lt;--" not in text
        for image in re.findall(r'<img[^>]* src="([^"]+)"', text):
            assert image.startswith("data:") or (site / image).exists(), f"{page.name}: {image}"
        for script in re.findall(r'<script[^>]* src="([^"]+)"', text):
            assert (site / script).exists(), f"{page.name}: {script}"


BROKEN = """async () => {
    const broken = []
    for (const image of document.images)
        await image.decode().catch(() => broken.push(image.src))
    return broken
}"""
"""Images that fail to load."""


def test_site_pages_open_without_errors(site):
    with a_browser() as browser:
        page, said = browser.new_page(), []
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda request: said.append(request.url))
        for path in sorted((ROOT / "docs").glob("*.md")):
            page.set_viewport_size({"width": 1280, "height": 900})
            page.goto((site / f"{path.stem}.html").as_uri())
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 900})
                settle(page)
                titles = page.locator("article h1").filter(visible=True).count()
                found = {"titles": titles, "broken": page.evaluate(BROKEN), "overflow": overflow(page), "said": said}
                assert found == {"titles": 1, "broken": [], "overflow": 0, "said": []}, f"{path.name} at {width}"


def test_site_search_works_from_a_folder(site):
    with a_browser() as browser:
        page = browser.new_page()
        page.goto((site / "model.html").as_uri())
        box = page.get_by_placeholder("Search")
        box.click()
        page.get_by_text("Type to start searching").wait_for(timeout=10_000)
        box.press_sequentially("normaliser")
        found = page.locator(".md-search-result__link")
        found.first.wait_for(timeout=10_000)
        assert any("log.html" in link.get_attribute("href") for link in found.all())
