"""Every command in the docs runs: trainings and benchmarks as dry runs, all others for real on tiny inputs."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from longfire.atomic_io import write_json
from longfire.cli import main, parser
from longfire.model import LongfireConfig
from tests.data.corpora import write as write_texts
from tests.model.checkpoints import save_checkpoint
from tests.report.records import compare_record, task_record
from tests.tasks.rows import EXPECTED, local_row
from tests.tasks.rows import write as write_rows

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = ("bench", "compare", "pretrain", "finetune", "reproduce", "retrofit")
ELSEWHERE = ("tokenize tokens/ --corpus hub:", "evaluate --harness", "bench attention --device cuda")
"""These are only parsed: they need the hub, a GPU, or are run by tests/commands/test_harness.py."""


def lines():
    """In fenced blocks without a language."""
    for page in PAGES:
        fenced = page.read_text().split("```")[1::2]  # the language, if any, and what is inside
        for block in [block for block in fenced if block.startswith("\n")]:
            yield from ((page.name, line) for line in block.replace("\\\n", " ").splitlines())


def in_blocks():
    for page, line in lines():
        if re.match(r"(torchrun .*-m )?longfire ", line):
            words = shlex.split(line, comments=True)
            yield page, shlex.join(words[words.index("longfire") + 1 :])


def in_sentences():
    """Those with options; others only name a command."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for found in re.findall(r"`longfire\s([^`]+)`", text):
            command = shlex.join(shlex.split(found.replace("TASK", "rte")))
            if " --" in command:
                yield page.name, command


COMMANDS = [*in_blocks(), *in_sentences()]


def test_commands_are_found():
    pages = [page for page, _ in COMMANDS]
    assert pages.count("results.md") >= 4
    assert {"choose.md", "claims.md", "cluster.md", "evaluate.md", "index.md", "model.md"} <= {*pages}
    assert {"reproduce.md", "tasks.md", "training.md"} <= {*pages}


def test_make_targets_and_extras_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page, line in lines():
        assert not re.match(r"(longfire|torchrun|pip|git|make|python) .*…", line), (
            f"{page}: not a runnable command: {line}"
        )
        assert set(re.findall(r"^make (\w+)", line)) <= targets
    for page in PAGES:
        assert set(re.findall(r"pip install '\.\[(\w+)\]'", page.read_text())) <= extras.keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with everything the commands name, as small as possible."""
    folder = tmp_path_factory.mktemp("place")
    put_checkpoints(folder)
    chapters = [f"Chapter {n}. " + f"It was {n} degrees in the shade. " * 300 for n in range(10)]
    for name in ("books", "held-out", "my-text", "papers", "src", "texts/latex", "texts/code", "tokens"):
        write_texts(folder / name / "texts.jsonl", chapters[:1] if name == "held-out" else chapters)
    (folder / "books-validation.jsonl.zst").touch()
    for name, record in {"compare": compare_record(), "copy": task_record()}.items():
        write_json(folder / name / "compare.json", record)
    (folder / "story.txt").write_text("There was once a fire.\n")
    for task in EXPECTED:
        for split in ("train", "validation"):
            rows = [local_row(task, i) for i in range(20 if split == "train" else 2)]
            rows = [{**row, "input": f"{row['input']} {split} {i}", "group": str(i)} for i, row in enumerate(rows)]
            write_rows(folder / "data" / task / f"{split}.jsonl", rows)
    return folder


def put_checkpoints(folder):
    """The RoPE run, which is only inspected, has the size of the recipe small."""
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 512}
    fire = {"position_encoding": {"name": "fire", "mlp_width": 2}}
    fine_tuned = "finetune/narrative_qa/runs/fire-1a2b3c4d/narrative_qa"
    for name in ("checkpoint", "runs/fire/model", "compare/runs/fire-0/model", fine_tuned):
        save_checkpoint(folder / name, **shape, **fire)
    save_checkpoint(folder / "runs/fire-s", **shape, **fire, share_position_encoding=True)
    save_checkpoint(folder / "my-model", "rope", **shape)
    save_checkpoint(folder / "fired", **shape, **fire)
    for name in ("alibi", "kerple_log", "t5", "nope", "rope/model"):
        save_checkpoint(folder / "runs" / name, name.removesuffix("/model"), **shape)
    config = LongfireConfig.of_size("small", position_encoding={"name": "rope"}, max_position_embeddings=512)
    config.save_pretrained(folder / "runs/rope/model")


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=str)
def test_it_runs(page, command, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path))
    words = shlex.split(command)
    if command.startswith(LONG) and not {"--dry-run", "--list"} & {*words}:
        words.append("--dry-run")
    assert status(words) == 0, f"{page}: {capsys.readouterr().err}"


def status(words):
    if shlex.join(words).startswith(ELSEWHERE):
        parser().parse_args(words)
        return 0
    try:
        return main(words)
    except SystemExit as end:  # from --help, or from argparse errors
        return end.code
