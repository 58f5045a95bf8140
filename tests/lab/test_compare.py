"""Comparing: what is done is not done again, what fails is said, and how many go at once makes no difference."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from longfire.cli import main
from longfire.encodings.labels import label_title
from longfire.lab.compare import compare
from longfire.lab.comparison import Comparison
from longfire.lab.one_run import bias_queries, text_for
from longfire.lab.progress import Bar, ended
from longfire.provenance import cpu_name, provenance, together
from longfire.report.compare import compare_table
from longfire.report.page import report_page
from longfire.training import RECIPES
from longfire.training.checkpoints import last_complete

RECIPE = RECIPES["tiny"].but(steps=3, batch_size=4, length=16, log_every=1, checkpoint_every=10)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name in ("argparse", "ast", "calendar", "csv", "dis", "enum"):
        source = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
        (folder / f"{name}.txt").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    cache = tmp_path_factory.mktemp("cache")
    return (("source", str(folder)), ("tokenizer", "bytes"), ("cache_dir", str(cache)))


def comparison(corpus, **changes):
    options = {"encodings": ("fire", "fire-s", "learned"), "seeds": (0,), "lengths": (16, 32), "tokens": 512, **changes}
    return Comparison(RECIPE, corpus=corpus, **options)


@pytest.fixture(scope="module")
def compared(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    saved = []
    record = compare(
        comparison(corpus), out, jobs=1, save=lambda r: saved.append(json.loads(json.dumps(r))), progress=False
    )
    return out, record, saved


def test_the_record(compared):
    out, record, saved = compared
    assert [run["encoding"] for run in record["runs"]] == ["fire", "fire-s", "learned"]
    assert [run["label"] for run in record["runs"]] == ["FIRE", "FIRE-S", "Learned"]
    assert "interrupted" not in record
    assert [len(one["runs"]) for one in saved] == [1, 2, 3, 3]
    assert all("interrupted" in one for one in saved[:3])
    setting = record["setting"]
    assert (setting["trained_length"], setting["lengths"]) == (16, [16, 32])
    assert setting["corpus"]["splits"]["validation"]["tokens"] > 0
    fire, shared, _ = record["runs"]
    assert fire["position_parameters"] == 2 * shared["position_parameters"]
    assert [step for step, _ in fire["losses"]] == [1, 2, 3]
    assert all(5 < row["log_perplexity"] < 6 for row in fire["perplexity"]["rows"])  # log 384 is 5.95
    assert (out / fire["checkpoint"] / "model.safetensors").exists()
    assert {row["query"] for row in record["biases"]["fire"]} == {15, 31}
    assert "learned" not in record["biases"]
    assert fire["commit"] == json.loads((out / "runs" / "fire-0" / "done.json").read_text())["provenance"]["commit"]


def test_biases_are_those_of_the_papers_query_the_last_of_training_and_the_last_of_all(corpus):
    of = {"paper": ("base", (512, 2048, 8192)), "small": ("small", ()), "tiny": ("tiny", (64, 96))}
    found = {
        name: bias_queries(Comparison(RECIPES[recipe], corpus=corpus, lengths=lengths))
        for name, (recipe, lengths) in of.items()
    }
    assert found == {"paper": [128, 2048, 8192], "small": [128, 512, 8192], "tiny": [64, 96]}


def test_what_fire_learned_is_recorded(compared):
    """c, L and where heads look, of each layer; where layers share one, once; of other encodings nothing."""
    fire, shared, learned = compared[1]["runs"]
    assert [row["layer"] for row in fire["learned"]] == [0, 1]
    assert all(0 < row["L"] < 16 and row["c"] > 0 for row in fire["learned"])  # it starts at a quarter of 16
    heads = [row["look_back"] for row in fire["learned"]]
    assert all(0 < head < 2 for layer in heads for head in layer)
    assert len(heads[0]) == len({row["head"] for row in compared[1]["biases"]["fire"]})
    assert len(shared["learned"]) == 1
    assert "learned" not in learned


def test_lengths_that_an_encoding_has_not(compared):
    """Learned positions end at the training length: that row says so, and the other stands."""
    learned = compared[1]["runs"][2]
    short, long = learned["perplexity"]["rows"]
    assert "log_perplexity" in short
    assert "position" in long["failed"]


def test_started_again(compared, corpus):
    """Nothing is trained or tested that was; another length is tested, and nothing trained."""
    out, record, _ = compared
    weights = out / "runs" / "fire-0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = compare(comparison(corpus), out, jobs=1, progress=False)
    assert [run["perplexity"] for run in again["runs"]] == [run["perplexity"] for run in record["runs"]]
    longer = compare(comparison(corpus, encodings=("fire",), lengths=(16, 64)), out, jobs=1, progress=False)
    assert [row["length"] for row in longer["runs"][0]["perplexity"]["rows"]] == [16, 64]
    assert weights.stat().st_mtime_ns == before


def test_runs_that_were_tested_elsewhere_need_no_weights(compared, corpus, tmp_path):
    """And the record says where that was."""
    out = compared[0]
    record = compare(comparison(corpus), out, jobs=1, progress=False)
    shutil.copytree(out, tmp_path / "out", ignore=shutil.ignore_patterns("*.safetensors"))
    for file in (tmp_path / "out").rglob("learned.json"):
        text = file.read_text()
        file.write_text(text.replace(f'"cpu": "{cpu_name()}"', '"cpu": "another"'))
    again = compare(comparison(corpus), tmp_path / "out", jobs=1, progress=False)
    assert again["provenance"] == {
        **record["provenance"],
        "hardware": {**record["provenance"]["hardware"], "cpu": "another"},
    }
    for one in (again, record):
        for run in one["runs"]:
            run.pop("took")
    assert (again["runs"], again["biases"]) == (record["runs"], record["biases"])
    longer = compare(comparison(corpus, lengths=(16, 48)), tmp_path / "out", jobs=1, progress=False)
    assert all("safetensors" in run["failed"] for run in longer["runs"])  # there is nothing to be tested at 48


def test_damaged_files(compared, corpus, tmp_path):
    """What was found is found again; what cannot be is named."""
    out, record, _ = compared
    shutil.copytree(out, tmp_path / "out")
    run = tmp_path / "out" / "runs" / "fire-0"
    for name in ("perplexity.json", "learned.json"):
        (run / name).write_text((run / name).read_text()[:50])
    again = compare(comparison(corpus), tmp_path / "out", jobs=1, progress=False)
    assert again["runs"][0]["perplexity"]["rows"][0]["log_perplexity"] == pytest.approx(
        record["runs"][0]["perplexity"]["rows"][0]["log_perplexity"]
    )
    (run / "done.json").write_text("{")
    failed = compare(comparison(corpus), tmp_path / "out", jobs=1, progress=False)["runs"][0]["failed"]
    assert f"{run / 'done.json'} is damaged: it should be a JSON object (" in failed
    (run / "recipe.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"recipe.json is damaged: .* begins with '\[1\]'.* Put it back from a copy"):
        compare(comparison(corpus), tmp_path / "out", jobs=1, progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lengths": (16, 10**6)},
            r"no document of the validation split \(\d+ documents?\) has 1000000 tokens; the longest has",
        ),
        ({"recipe": RECIPE.but(batch_size=10**6)}, "and a step takes 1000000. Give more text"),
    ],
)
def test_what_no_run_could_do_is_said_before_the_first(changes, message, corpus, tmp_path):
    asked = replace(comparison(corpus), **changes)
    with pytest.raises(ValueError, match=message):
        compare(asked, tmp_path / "out", jobs=1, progress=False)
    assert not list(tmp_path.rglob("losses.jsonl"))


def test_provenance_of_several_places():
    one, other = provenance(), provenance()
    assert together([one, one]) == one
    other["hardware"] = {**one["hardware"], "gpu": "H200"}
    other["commit"] = "abc"
    both = together([one, other])
    assert both["hardware"] == {**one["hardware"], "gpu": f"H200, {one['hardware']['gpu']}"}
    assert set(both["commit"].split(", ")) == {"abc", one["commit"]}
    assert both["versions"] == one["versions"]


@pytest.mark.parametrize(
    ("trained", "failed"),
    [("fire-0", None), ("fire-s-0", "a different run (share_position_encoding: True there")],
)
def test_what_another_command_is_training_is_waited_for(trained, failed, compared, corpus, tmp_path, caplog):
    """And taken as it is; unless it turns out to be something else."""
    out, record, _ = compared
    run = tmp_path / "runs" / "fire-0"
    run.mkdir(parents=True)
    asked = comparison(corpus, encodings=("fire",))
    with ThreadPoolExecutor() as pool, FileLock(run / ".lock"):
        waiting = pool.submit(compare, asked, tmp_path, jobs=1, progress=False)
        while "fire-0; waiting for it" not in caplog.text:
            assert not waiting.done()
            time.sleep(0.01)
        shutil.copytree(out / "runs" / trained, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        before = (run / "model" / "model.safetensors").stat().st_mtime_ns
    found = waiting.result()["runs"][0]
    assert (run / "model" / "model.safetensors").stat().st_mtime_ns == before
    if failed:
        assert failed in found["failed"]
    else:
        assert perplexities(found) == perplexities(record["runs"][0])


def perplexities(run):
    return [row.get("log_perplexity") for row in run["perplexity"]["rows"]]


def test_extensions_are_made_of_the_same_seeds_rope(corpus, tmp_path):
    """Whatever the order they are asked for in; extended to four times the length, and trained on there."""
    asked = comparison(corpus, encodings=("yarn", "rope_pi:target_length=32", "rope"), seeds=(3,))
    record = compare(asked, tmp_path, jobs=1, progress=False)
    assert [run.get("failed") for run in record["runs"]] == [None] * 3
    assert [run["encoding"] for run in record["runs"]] == list(asked.encodings)
    yarn, interpolated, rope = record["runs"]
    assert yarn["extended"] == {"from": "RoPE", "to": 64, "steps": 1}
    assert interpolated["extended"]["to"] == 32
    assert "extended" not in rope
    assert [len(run["losses"]) for run in (yarn, rope)] == [1, 3]
    assert yarn["losses"][0][1] < rope["losses"][0][1]  # it goes on, and does not begin
    done = json.loads((tmp_path / "runs" / "yarn-3" / "done.json").read_text())
    assert done["recipe"]["init_from"] == str(tmp_path / "runs" / "rope-3")
    config = json.loads((tmp_path / yarn["checkpoint"] / "config.json").read_text())
    assert config["position_encoding"] == {"name": "yarn", "trained_length": 16, "target_length": 64}
    said = " ".join(compare_table(record).split())
    assert f"{label_title('yarn')} is the model of RoPE, extended to 64 tokens and trained on for 1 step at" in said
    for weights in tmp_path.rglob("model/*"):
        weights.unlink()
    again = compare(asked, tmp_path, jobs=1, progress=False)
    assert [run.get("failed") for run in again["runs"]] == [None] * 3
    assert [perplexities(run) for run in again["runs"]] == [perplexities(run) for run in record["runs"]]


def test_a_bar_says_what_is_tested(tmp_path):
    """Of the runs that are under way: those that are trained already. The third waits for its turn."""
    folders = [tmp_path / name for name in ("fire-0", "nope-0", "rope-0")]
    for folder in (folders[1], folders[2]):
        folder.mkdir()
        (folder / "done.json").write_text("{}")
    with Bar(folders, 30, jobs=2) as bar:
        bar.tick(folders)
        assert bar.bar.postfix == "testing nope-0"
        bar.tick(folders[1:])
        assert bar.bar.postfix == "testing nope-0, rope-0"
        bar.tick(folders[:1])
        assert bar.bar.postfix == ""


def test_a_line_for_a_run_that_ended():
    rows = [
        {"length": 64, "log_perplexity": 2.5},
        {"length": 128, "log_perplexity": 2.25},
        {"length": 999, "failed": "no"},
    ]
    run = {"encoding": "fire", "seed": 3, "took": 12.34, "perplexity": {"rows": rows}}
    assert ended(run, 64) == "fire, seed 3: 12.3 s, log perplexity 2.500 at 64, 2.250 at 128"
    assert ended({"encoding": "fire", "seed": 3, "failed": "no memory"}, 64) == "fire, seed 3: failed: no memory"


def test_a_pool_has_extensions_after_their_source(corpus, tmp_path, monkeypatch):
    pools = []

    def pool(comparison, out, runs, *_):
        pools.append(runs)
        yield from ({"encoding": label, "seed": seed} for label, seed in runs)

    monkeypatch.setattr("longfire.lab.compare._in_a_pool", pool)
    compare(comparison(corpus, encodings=("yarn", "rope", "nope"), seeds=(0, 1)), tmp_path, jobs=2)
    assert pools == [[("rope", 0), ("nope", 0), ("rope", 1), ("nope", 1)], [("yarn", 0), ("yarn", 1)]]


def test_an_extension_needs_its_source(corpus, tmp_path):
    with pytest.raises(ValueError, match="yarn is made of the model with 'rope', which is not asked for"):
        comparison(corpus, encodings=("yarn", "fire"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "rope-0").write_text("in the way")
    record = compare(comparison(corpus, encodings=("rope", "yarn")), tmp_path, jobs=1, progress=False)
    assert "there is no folder" in record["runs"][1]["failed"]
    own = comparison(corpus, encodings=("yarn:trained_length=16,target_length=32",))
    assert [recipe.init_from for _, _, recipe in own.recipes()] == [None]  # from scratch, as it says


def test_two_at_a_time(compared, corpus, tmp_path):
    """The same numbers."""
    record = compare(comparison(corpus, encodings=("fire", "learned")), tmp_path, jobs=2)
    expected = {run["encoding"]: run for run in compared[1]["runs"]}
    for run in record["runs"]:
        assert run["losses"] == expected[run["encoding"]]["losses"]
        assert perplexities(run) == perplexities(expected[run["encoding"]])


def test_a_run_that_fails_costs_the_others_nothing(corpus, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "fire-0").write_text("in the way")
    record = compare(comparison(corpus, encodings=("fire", "nope")), tmp_path, jobs=1, progress=False)
    fire, nope = record["runs"]
    assert "File exists" in fire["failed"]
    assert "perplexity" in nope


def test_a_folder_with_other_runs_is_refused(compared, corpus, tmp_path):
    """Before anything is trained, and nothing is written: not even the record of the runs that would fit."""
    out = tmp_path / "out"
    shutil.copytree(compared[0], out, ignore=shutil.ignore_patterns("*.safetensors"))
    there, saved = sorted(out.rglob("*")), []
    other = tmp_path / "other"
    shutil.copytree(dict(corpus)["source"], other)
    (other / "more.txt").write_text("Another text. " * 900, encoding="utf-8")
    on_other = (("source", str(other)), *corpus[1:])
    name = Path(dict(corpus)["source"]).name
    everything = ("nope", "fire", "fire-s", "learned")
    for asked, said in (
        (
            comparison(on_other, encodings=everything),
            f"(fire-0, fire-s-0, learned-0: text '{name}' there, 'other' here)",
        ),
        (
            replace(comparison(corpus), recipe=RECIPE.but(max_grad_norm=0.5)),
            "learned-0: max_grad_norm 1.0 there, 0.5 here",
        ),
    ):
        with pytest.raises(ValueError, match="holds other runs than those asked for") as refused:
            compare(asked, out, jobs=1, save=saved.append, progress=False)
        assert said in str(refused.value)
        assert "Nothing was trained or written. Choose another folder with --out" in str(refused.value)
    assert (sorted(out.rglob("*")), saved) == (there, [])


def test_a_text_that_no_run_knows_by_name(compared, corpus, tmp_path):
    (tmp_path / "runs" / "fire-0").mkdir(parents=True)
    recipe = json.loads((compared[0] / "runs" / "fire-0" / "recipe.json").read_text())
    (tmp_path / "runs" / "fire-0" / "recipe.json").write_text(json.dumps({**recipe, "corpus": "0123"}))
    with pytest.raises(ValueError, match="fire-0: another text than 'text"):
        compare(comparison(corpus), tmp_path, jobs=1, progress=False)


def test_a_process_that_is_killed_costs_the_others_nothing(corpus, tmp_path):
    """And its run is begun again once. A worker is killed for real."""
    marker = tmp_path / "killed"

    def kill_one():
        while not marker.exists():
            workers = [p for p in multiprocessing.active_children() if "SpawnProcess" in type(p).__name__]
            if workers and (tmp_path / "runs" / "nope-0" / "recipe.json").exists():
                os.kill(workers[0].pid, signal.SIGKILL)
                marker.touch()
            time.sleep(0.01)

    threading.Thread(target=kill_one, daemon=True).start()
    record = compare(comparison(corpus, encodings=("nope", "rope"), lengths=(16,)), tmp_path, jobs=2)
    assert marker.exists()
    assert ["failed" in run for run in record["runs"]] == [False, False]


def test_processes_that_are_lost_before_they_begin(corpus, tmp_path, monkeypatch):
    """As where a script calls compare without `if __name__ == "__main__"`: an end, and no trying for ever."""
    tries = []

    def lost(*_):
        tries.append(1)
        assert len(tries) <= 2
        raise BrokenProcessPool

    monkeypatch.setattr("longfire.lab.compare._in_a_pool", lost)
    record = compare(comparison(corpus, encodings=("nope", "rope")), tmp_path, jobs=2)
    assert ["its process was lost" in run["failed"] for run in record["runs"]] == [True, True]


def test_not_under_torchrun(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="compare starts its runs itself"):
        compare(comparison(corpus), tmp_path)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ValueError, match="jobs must be at least 1, not 0"):
        compare(comparison(corpus), tmp_path, jobs=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encodings": ("fier",)}, r"Did you mean 'fire'.*, fire-s\."),
        ({"seeds": ()}, "at least one encoding and one seed"),
        ({"seeds": (1, 1)}, "seed 1: asked for more than once"),
        ({"lengths": (16, 0)}, "a length to test at must be at least 2, not 0"),
        ({"tokens": 0}, "tokens to test on must be at least 1, not 0"),
        ({"encodings": ("fire:horizon=far",)}, "fire:horizon=far: horizon must be a whole number, not 'far'"),
        ({"encodings": ("nope", "fire:horizon=-1")}, "fire:horizon=-1: horizon must be at least 1, not -1"),
        ({"encodings": ("rope", "yarn:target_length=x")}, "target_length must be a whole number, not 'x'"),
        ({"encodings": ("rope", "yarn:target_length=8")}, "yarn:target_length=8: .*8"),
        (
            {"encodings": ("nope", "fire", "fire:horizon=16")},  # as the recipe has it
            "fire and fire:horizon=16 are the same model by the recipe tiny: .* --set horizon=None init=None",
        ),
        ({"encodings": ("fire:hidden_layers=2", "fire")}, "fire:hidden_layers=2 and fire are the same model"),
        ({"encodings": ("fire:init=kerple_log", "fire:init=kerple_log")}, "asked for more than once"),
        ({"encodings": ("fire:init=kerple_log", "fire")}, "fire:init=kerple_log and fire are the same model"),
    ],
)
def test_bad_comparisons(corpus, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        comparison(corpus, **change)


def test_ctrl_c_is_quiet(corpus, tmp_path):
    """To all processes at once, as from a terminal: an end without tracebacks, and nobody left behind."""
    source = dict(corpus)["source"]
    command = [sys.executable, "-m", "longfire", "compare", "--corpus", source, "--tokenizer", "bytes", "--jobs", "2"]
    command += ["--out", str(tmp_path / "out"), "--steps", "100000", "--seeds", "0", "--encodings", "alibi", "nope"]
    environment = {**os.environ, "LONGFIRE_CACHE": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"}
    caught = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(command, env=environment, start_new_session=True, **caught)
    losses = tmp_path / "out" / "runs" / "alibi-0" / "losses.jsonl"
    deadline = time.monotonic() + 90
    while not losses.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(started.pid, signal.SIGINT)
    stdout, stderr = started.communicate(timeout=60)
    assert started.returncode == 130
    assert stdout == ""  # nothing has ended, so there is no table
    assert "longfire: stopped. Missing: alibi (seed 0), nope (seed 0).\nlongfire: to resume: longfire compare" in stderr
    assert last_complete(losses.parent) is not None  # each run saved one before it ended
    assert not (tmp_path / "out" / "compare.json").exists()
    assert "Traceback" not in stderr
    assert "leaked" not in stderr
    deadline = time.monotonic() + 20
    while (left := alive_in(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def alive_in(group):
    """Processes of a group that are not merely waiting to be buried."""
    states = [process / "stat" for process in Path("/proc").iterdir() if process.name.isdigit()]
    found = []
    for stat in states:
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.append(stat.parent.name)
    return found


def test_options_of_an_encoding_are_part_of_its_label(corpus, tmp_path):
    labels = ("fire", "fire:hidden_layers=1,threshold=None", "fire-s:activation=gelu,init_L=3.5")
    asked = replace(comparison(corpus), recipe=RECIPE.but(init=None), encodings=labels)
    _, plain, shared = (recipe for _, _, recipe in asked.recipes())
    assert (plain.encoding, plain.share_position_encoding, plain.encoding_options) == (
        "fire",
        False,
        {"hidden_layers": 1, "threshold": None},
    )
    assert (shared.encoding, shared.share_position_encoding, shared.encoding_options) == (
        "fire",
        True,
        {"activation": "gelu", "init_L": 3.5},
    )
    assert [label_title(label) for label in labels[1:]] == [
        "FIRE (hidden_layers=1, threshold=None)",
        "FIRE-S (activation=gelu, init_L=3.5)",
    ]
    record = compare(comparison(corpus, encodings=("fire:init=random,horizon=4",)), tmp_path, jobs=1, progress=False)
    (run,) = record["runs"]
    assert run["label"] == "FIRE (init=random, horizon=4)"
    done = tmp_path / "runs" / "fire-init-random-horizon-4-0" / "done.json"
    before = done.stat().st_mtime_ns
    again = compare(comparison(corpus, encodings=("fire:init=random,horizon=4",)), tmp_path, jobs=1, progress=False)
    assert again["runs"][0]["encoding"] == "fire:init=random,horizon=4"
    assert done.stat().st_mtime_ns == before  # found, and not trained again


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("fier",), "there is no encoding named 'fier'"),
        (("fire:horizn=4",), "fire has no option 'horizn'.*horizon"),
        (("fire:horizon",), "'horizon' has no value"),
        (("fire", "fire"), "fire: asked for more than once"),
    ],
)
def test_labels_that_cannot_be(corpus, labels, message):
    with pytest.raises(ValueError, match=message):
        comparison(corpus, encodings=labels)


def test_other_texts_are_tested_on(corpus, tmp_path, capsys):
    text = tmp_path / "other.txt"
    text.write_text("All work and no play. " * 400, encoding="utf-8")
    asked = comparison(corpus, encodings=("alibi", "nope"), also=(("play", str(text)),))
    record = compare(asked, tmp_path / "out", jobs=1, progress=False)
    for run in record["runs"]:
        own, other = run["perplexity"]["rows"], run["also"]["play"]["rows"]
        assert [row["length"] for row in other] == [16, 32]
        assert all(5 < row["log_perplexity"] < 6 for row in other)
        assert [row["log_perplexity"] for row in own] != [row["log_perplexity"] for row in other]
    table = compare_table(record)
    for run in record["runs"]:
        for rows in (run["perplexity"]["rows"], run["also"]["play"]["rows"]):
            assert all(f"{row['log_perplexity']:.3f}" in table for row in rows)
    assert "play:" in table
    again = compare(asked, tmp_path / "out", jobs=1, progress=False)
    assert [run["also"] for run in again["runs"]] == [run["also"] for run in record["runs"]]
    assert main(["compare", "--also", "play"]) == 2
    assert "--also takes NAME=PATH, such as latex=papers/, not 'play'" in capsys.readouterr().err
    assert main(["compare", "--also", f"gone={tmp_path / 'none'}", "--also", f"play={text}"]) == 2
    assert "which --also gone names" in capsys.readouterr().err  # all that are given count, and not the last alone
    assert main(["compare", "--also", f"play={text}", "--also", f"play={tmp_path}"]) == 2
    assert "play: asked for more than once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Short. " * 20, r"no document of the whole split \(3 documents\) has 999 tokens; the longest has 1"),
        (b"Short.", "too short to be divided"),
        (b" ", "holds no text"),
        (b"f\xfcr " * 900, "not UTF-8"),
    ],
)
def test_another_text_that_cannot_be_tested_on_is_refused_before_the_first_run(content, message, corpus, tmp_path):
    (tmp_path / "good.txt").write_text("All work and no play. " * 400)
    (tmp_path / "bad.txt").write_bytes(content)
    also = tuple((name, str(tmp_path / f"{name}.txt")) for name in ("good", "bad"))
    with pytest.raises(ValueError, match=f"bad, a text of --also, cannot be tested on: .*{message}"):
        compare(comparison(corpus, lengths=(16, 999), also=also), tmp_path / "out", jobs=1, progress=False)
    assert not (tmp_path / "out").exists()


def test_other_texts_are_read_as_the_corpus_is(corpus, tmp_path):
    """By the same field, as many documents, and without lines that cannot be read."""
    rows = [json.dumps({"body": f"{n}. All work and no play. " * 9}) for n in range(30)]
    (tmp_path / "other.jsonl").write_text("\n".join([*rows[:5], "{", *rows[5:]]))
    given = (*corpus, ("field", "body"), ("skip_bad", True), ("max_documents", 20))
    asked = comparison(given, also=(("play", str(tmp_path / "other.jsonl")),))
    text = text_for(asked, asked.also[0][1], asked.load_corpus()).describe()
    assert (sum(split["documents"] for split in text["splits"].values()), text["skipped"]) == (20, 1)


def test_a_dataset_with_a_field_of_its_own_keeps_it(corpus, monkeypatch):
    seen = []
    monkeypatch.setattr("longfire.lab.one_run.load_corpus", lambda source, **options: seen.append(options))
    asked = comparison((*corpus, ("field", "body")))
    for source in ("hub:arxiv@validation", "hub:owner/name"):
        text_for(asked, source, asked.load_corpus())
    assert [options.get("field") for options in seen] == [None, "body"]


def test_a_text_that_is_trained_on_is_no_other_text(corpus, tmp_path):
    source = Path(dict(corpus)["source"])
    (tmp_path / "link").symlink_to(source)
    for also, how in (
        (source, "is"),
        (tmp_path / "link", "is"),
        (source / "csv.txt", "lies within"),
        (source.parent, "holds"),
    ):
        with pytest.raises(ValueError, match=rf"own \(.*\), a text of --also, {how} what is trained on. Give a"):
            comparison(corpus, also=(("own", str(also)),))
    with pytest.raises(ValueError, match=r"own \(hub:c4\), a text of --also, is what is trained on"):
        comparison((("source", ["hub:c4"]),), also=(("own", "hub:c4"),))
    (tmp_path / f"{source.name}-2").mkdir()
    comparison(corpus, also=(("other", str(tmp_path / f"{source.name}-2")), ("c4", "hub:c4")))


def test_a_copy_of_the_corpus_is_no_other_text(corpus, tmp_path):
    """Wherever it lies, and whatever newlines it ends with; of a text that holds some of it, the rest is tested on."""
    source, copy = Path(dict(corpus)["source"]), tmp_path / "copy"
    copy.mkdir()
    for file in source.iterdir():
        (copy / file.name).write_text(file.read_text() + "\n")
    os.link(source / "csv.txt", tmp_path / "linked.txt")
    for also in (copy, tmp_path / "linked.txt"):
        with pytest.raises(
            ValueError, match="own, a text of --also, cannot be tested on: all its documents are in the c"
        ):
            compare(comparison(corpus, also=(("own", str(also)),)), tmp_path / "out", jobs=1, progress=False)
    (copy / "new.txt").write_text("All work and no play. " * 40)
    asked = comparison(corpus, encodings=("nope",), also=(("own", str(copy)),))
    record = compare(asked, tmp_path / "out", jobs=1, progress=False)
    assert {row["documents"] for row in record["runs"][0]["also"]["own"]["rows"]} == {1}
    note = "6 of the 7 documents of own are left out, since they are in the corpus too"
    assert note in record["notes"][-1]
    assert note in " ".join(compare_table(record).split())


def test_how_much_is_held_out(compared):
    """Six files leave one to test on: it is said, and that it is little."""
    out, record, _ = compared
    splits = record["setting"]["corpus"]["splits"]
    assert splits["validation"]["documents"] == 1
    amount = f"1 document with {splits['validation']['tokens']:,} tokens, of which 512 tokens are scored at each length"
    first, little = record["notes"]
    assert first.startswith(f"Held out for testing (validation): {amount}. Trained on: 4 documents with")
    assert little.startswith(f"{amount} is too little held-out text to tell encodings apart")
    for shown in (compare_table(record), report_page(record, out / "page.html").read_text()):
        assert all(note in " ".join(shown.split()) for note in record["notes"])


def test_what_was_found_on_one_split_is_not_taken_for_another(corpus, tmp_path):
    found = {}
    for split in ("validation", "dev", "validation"):
        record = compare(comparison(corpus, encodings=("nope",), split=split), tmp_path, jobs=1, progress=False)
        rows = [row["log_perplexity"] for row in record["runs"][0]["perplexity"]["rows"]]
        assert found.setdefault(split, rows) == rows
    assert found["dev"] != found["validation"]
