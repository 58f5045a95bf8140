"""Running a comparison: completed work is skipped, failures are recorded, and the number of jobs changes nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from longfire.lab.compare import LOST, compare
from longfire.lab.comparison_plan import plan_comparison
from longfire.lab.progress import ProgressBar, describe_finished
from longfire.provenance import cpu_name
from longfire.report.compare import compare_table
from longfire.report.page import report_page
from longfire.training.checkpoints import last_complete
from tests.lab.comparisons import RECIPE, comparison


def run(asked, out, save=lambda record: None, **options):
    return compare(plan_comparison(asked, out, **{"jobs": 1, "progress": False, **options}), save)


def perplexities(found):
    return [row.get("log_perplexity") for row in found["perplexity"]["rows"]]


@pytest.fixture(scope="module")
def compared(corpus, tmp_path_factory):
    """fire, fire-s, learned and nope, trained once for all tests: the folder, the record and every saved record."""
    out, saved = tmp_path_factory.mktemp("out"), []
    record = run(comparison(corpus), out, save=lambda record: saved.append(json.loads(json.dumps(record))))
    return out, record, saved


@pytest.fixture
def trained(compared, tmp_path):
    """A copy of the trained runs."""
    return shutil.copytree(compared[0], tmp_path / "trained")


def test_the_record(compared):
    out, record, saved = compared
    assert [run["encoding"] for run in record["runs"]] == ["fire", "fire-s", "learned", "nope"]
    assert [run["label"] for run in record["runs"]] == ["FIRE (recommended)", "FIRE-S (recommended)", "Learned", "NoPE"]
    assert [len(one["runs"]) for one in saved] == [1, 2, 3, 4, 4]
    assert ["interrupted" in one for one in saved] == [True] * 4 + [False]
    setting = record["setting"]
    assert (setting["trained_length"], setting["lengths"]) == (16, [16, 32])
    assert setting["corpus"]["splits"]["validation"]["tokens"] > 0
    fire, shared, learned, _ = record["runs"]
    assert fire["position_parameters"] == 2 * shared["position_parameters"]
    assert [step for step, _ in fire["losses"]] == [1, 2, 3]
    assert all(5 < value < 6 for value in perplexities(fire))  # log 384 is 5.95
    assert (out / fire["checkpoint"] / "model.safetensors").exists()
    assert fire["commit"] == json.loads((out / "runs" / "fire-0" / "done.json").read_text())["provenance"]["commit"]
    short, long = learned["perplexity"]["rows"]  # learned positions end at the training length
    assert "log_perplexity" in short
    assert "position" in long["failed"]


def test_what_fire_learned_is_recorded(compared):
    """c, L and the look-back of each layer, once if layers share an encoding; biases of the first seed."""
    record = compared[1]
    fire, shared, learned, _ = record["runs"]
    assert [row["layer"] for row in fire["learned"]] == [0, 1]
    assert all(0 < row["L"] < 16 and row["c"] > 0 for row in fire["learned"])  # L starts at a quarter of 16
    heads = [row["look_back"] for row in fire["learned"]]
    assert all(0 < head < 2 for layer in heads for head in layer)
    assert len(heads[0]) == len({row["head"] for row in record["biases"]["fire"]})
    assert {row["query"] for row in record["biases"]["fire"]} == {15, 31}
    assert len(shared["learned"]) == 1
    assert "learned" not in learned
    assert "learned" not in record["biases"]


def test_how_much_is_held_out(compared):
    """Six files leave one to test on, and the record warns that this is too little."""
    out, record, _ = compared
    tokens = record["setting"]["corpus"]["splits"]["validation"]["tokens"]
    amount = f"1 document with {tokens:,} tokens"
    first, little = record["notes"]
    assert first.startswith(f"Held-out text (validation): {amount}. Training text: 4 documents with")
    assert little.startswith(f"{amount}, of which up to 512 tokens are scored at each length: too little")
    for shown in (compare_table(record), report_page(record, out / "page.html").read_text()):
        assert all(note in " ".join(shown.split()) for note in record["notes"])


def test_completed_work_is_skipped(compared, trained, corpus):
    """Other lengths, another split and old labels are tested with the same models."""
    record = compared[1]
    weights = trained / "runs" / "nope-0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = run(comparison(corpus), trained)
    assert [run["perplexity"] for run in again["runs"]] == [run["perplexity"] for run in record["runs"]]
    for changes in ({"lengths": (16, 64)}, {"split": "dev"}, {}):
        (found,) = run(comparison(corpus, encodings=("nope",), **changes), trained)["runs"]
        same = perplexities(found) == perplexities(record["runs"][3])
        assert same == (not changes)
        assert [row["length"] for row in found["perplexity"]["rows"]] == list(changes.get("lengths", (16, 32)))
    assert weights.stat().st_mtime_ns == before


def test_runs_tested_elsewhere_need_no_weights(compared, trained, corpus):
    """The record names the machine that tested them."""
    for weights in trained.rglob("*.safetensors"):
        weights.unlink()
    for file in trained.rglob("learned.json"):
        file.write_text(file.read_text().replace(f'"cpu": "{cpu_name()}"', '"cpu": "another"'))
    record, again = compared[1], run(comparison(corpus), trained)
    assert again["provenance"]["hardware"] == {**record["provenance"]["hardware"], "cpu": "another"}
    times = {"took"}
    for one, other in zip(again["runs"], record["runs"], strict=True):
        assert {key: one[key] for key in one.keys() - times} == {key: other[key] for key in other.keys() - times}
    assert again["biases"] == record["biases"]
    longer = run(comparison(corpus, lengths=(16, 48)), trained)
    assert all("safetensors" in one["failed"] for one in longer["runs"])


def test_damaged_files(compared, trained, corpus):
    """Damaged results are measured again; a damaged recipe is an error."""
    fire = trained / "runs" / "fire-0"
    for name in ("perplexity.json", "learned.json"):
        (fire / name).write_text((fire / name).read_text()[:50])
    asked = comparison(corpus, encodings=("fire",))
    assert perplexities(run(asked, trained)["runs"][0]) == pytest.approx(perplexities(compared[1]["runs"][0]))
    (fire / "done.json").write_text("{")
    assert f"{fire / 'done.json'} is damaged" in run(asked, trained)["runs"][0]["failed"]
    (fire / "recipe.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"recipe.json is damaged: .* begins with '\[1\]'"):
        run(asked, trained)


def test_different_runs_in_the_folder_are_refused(trained, corpus, tmp_path):
    """Before anything is trained or written."""
    there, saved, other = sorted(trained.rglob("*")), [], tmp_path / "other"
    shutil.copytree(corpus["source"], other)
    (other / "more.txt").write_text("Another text. " * 900, encoding="utf-8")
    name = Path(corpus["source"]).name
    on_other = {**corpus, "source": str(other)}
    for asked, said in (
        (comparison(on_other), f"learned-0, 1 more: corpus name '{name}' there, 'other' here"),
        (comparison(corpus, recipe=RECIPE.but(max_grad_norm=0.5)), "max_grad_norm 1.0 there, 0.5 here"),
    ):
        with pytest.raises(ValueError, match="already contains different runs") as refused:
            run(asked, trained, save=saved.append)
        assert said in str(refused.value)
        assert "Nothing was trained or written. Choose another folder with --out" in str(refused.value)
    assert (sorted(trained.rglob("*")), saved) == (there, [])
    recipe = trained / "runs" / "fire-0" / "recipe.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "corpus": "0123"}))
    for said in (f"the text '{name}' has changed", f"a text other than '{name}'"):
        with pytest.raises(ValueError, match=f"fire-0: {said}"):
            run(comparison(corpus), trained)
        recipe.with_name("done.json").unlink(missing_ok=True)


@pytest.mark.parametrize(("other", "failed"), [("fire-0", None), ("fire-s-0", "share_position_encoding: True there")])
def test_a_run_that_another_command_trains_is_waited_for(other, failed, compared, corpus, tmp_path, caplog):
    """Then it is used, or refused if its recipe is different."""
    fire = tmp_path / "runs" / "fire-0"
    fire.mkdir(parents=True)
    with ThreadPoolExecutor() as pool, FileLock(fire / ".lock"):
        waiting = pool.submit(run, comparison(corpus, encodings=("fire",)), tmp_path)
        while "fire-0; waiting for it" not in caplog.text:
            assert not waiting.done()
            time.sleep(0.01)
        shutil.copytree(compared[0] / "runs" / other, fire, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        before = (fire / "model" / "model.safetensors").stat().st_mtime_ns
    (found,) = waiting.result()["runs"]
    assert (fire / "model" / "model.safetensors").stat().st_mtime_ns == before
    if failed:
        assert failed in found["failed"]
    else:
        assert perplexities(found) == perplexities(compared[1]["runs"][0])


def test_extensions(corpus, tmp_path):
    """YaRN and RoPE-PI continue from RoPE's run, in any order; once tested, they need no weights."""
    asked = comparison(corpus, encodings=("yarn", "rope_pi:target_length=32", "rope"), seeds=(3,))
    record = run(asked, tmp_path)
    assert [(one["encoding"], one.get("failed")) for one in record["runs"]] == [(it, None) for it in asked.encodings]
    yarn, interpolated, rope = record["runs"]
    assert yarn["extended"] == {"from": "RoPE", "to": 64, "steps": 1}
    assert interpolated["extended"]["to"] == 32
    assert "extended" not in rope
    assert [len(one["losses"]) for one in (yarn, rope)] == [1, 3]
    assert yarn["losses"][0][1] < rope["losses"][0][1]  # continued, not restarted
    done = json.loads((tmp_path / "runs" / "yarn-3" / "done.json").read_text())
    assert done["recipe"]["init_from"] == str(tmp_path / "runs" / "rope-3")
    config = json.loads((tmp_path / yarn["checkpoint"] / "config.json").read_text())
    assert config["position_encoding"] == {"name": "yarn", "trained_length": 16, "target_length": 64}
    for weights in tmp_path.rglob("model/*"):
        weights.unlink()
    again = run(asked, tmp_path)
    assert [perplexities(one) for one in again["runs"]] == [perplexities(one) for one in record["runs"]]


def test_a_failed_run_does_not_affect_the_others(trained, corpus):
    (trained / "runs" / "rope-0").write_text("in the way")
    rope, yarn, nope = run(comparison(corpus, encodings=("rope", "yarn", "nope")), trained)["runs"]
    assert "File exists" in rope["failed"]
    assert "there is no folder" in yarn["failed"]
    assert "perplexity" in nope


def test_two_jobs_give_the_same_numbers(compared, corpus, tmp_path):
    record = run(comparison(corpus, encodings=("fire", "learned")), tmp_path, jobs=2)
    expected = {one["encoding"]: one for one in compared[1]["runs"]}
    for one in record["runs"]:
        assert one["losses"] == expected[one["encoding"]]["losses"]
        assert perplexities(one) == perplexities(expected[one["encoding"]])


def test_stages_of_a_pool(corpus, tmp_path, monkeypatch):
    """Extensions start after their source; a run whose process dies twice has failed."""
    stages = []

    def run_in_processes(work, plan, runs, jobs, **_):
        stages.append([(run.label, run.seed) for run in runs])
        yield from ((run, None) for run in runs)

    monkeypatch.setattr("longfire.lab.compare.run_in_processes", run_in_processes)
    record = run(comparison(corpus, encodings=("yarn", "rope", "nope"), seeds=(0, 1)), tmp_path, jobs=2)
    assert stages == [[("rope", 0), ("nope", 0), ("rope", 1), ("nope", 1)], [("yarn", 0), ("yarn", 1)]]
    assert [one["failed"] for one in record["runs"]] == [LOST] * 6


def test_other_texts_are_tested_on(trained, corpus, tmp_path):
    text = tmp_path / "other.txt"
    text.write_text("All work and no play. " * 400, encoding="utf-8")
    asked = comparison(corpus, encodings=("fire", "nope"), also=(("play", str(text)),))
    record = run(asked, trained)
    table = compare_table(record)
    assert "on play" in table
    for one in record["runs"]:
        own, other = one["perplexity"]["rows"], one["also"]["play"]["rows"]
        assert [row["length"] for row in other] == [16, 32]
        assert [row["log_perplexity"] for row in own] != [row["log_perplexity"] for row in other]
        assert all(f"{row['log_perplexity']:.3f}" in table for row in (*own, *other))
    again = run(asked, trained)
    assert [one["also"] for one in again["runs"]] == [one["also"] for one in record["runs"]]


def test_runs_of_an_earlier_release_are_found(corpus, tmp_path):
    """Labels and folders with `start` instead of `init`."""
    asked = comparison(corpus, encodings=("fire:start=None,horizon=4",))
    (found,) = run(asked, tmp_path)["runs"]
    assert (found["encoding"], found["label"]) == ("fire:init=random,horizon=4", "FIRE (horizon=4)")
    old = tmp_path / "runs" / "fire-start-None-horizon-4-0"
    (tmp_path / "runs" / "fire-init-random-horizon-4-0").rename(old)
    before = (old / "done.json").stat().st_mtime_ns
    (again,) = run(asked, tmp_path)["runs"]
    assert perplexities(again) == perplexities(found)
    assert (old / "done.json").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [old.name]


def test_the_bar_names_the_models_that_are_being_tested(tmp_path):
    """Only among the running ones; the third has not started."""
    folders = [tmp_path / name for name in ("fire-0", "nope-0", "rope-0")]
    for folder in (folders[1], folders[2]):
        folder.mkdir()
        (folder / "done.json").write_text("{}")
    with ProgressBar(folders, 30, jobs=2) as bar:
        for unfinished, postfix in (
            (folders, "testing nope-0"),
            (folders[1:], "testing nope-0, rope-0"),
            (folders[:1], ""),
        ):
            bar.update(unfinished)
            assert bar.bar.postfix == postfix


def test_steps_of_an_interrupted_command_do_not_count_as_speed(tmp_path):
    (tmp_path / "losses.jsonl").write_text('{"step": 20, "loss": 1.0}\n')
    with ProgressBar([tmp_path], 30, jobs=1) as bar:
        assert bar.bar.n == 20


def test_the_line_for_a_finished_run():
    rows = [{"length": 64, "log_perplexity": 2.5}, {"length": 128, "log_perplexity": 2.25}, {"length": 999}]
    found = {"encoding": "fire", "seed": 3, "took": 12.34, "perplexity": {"rows": rows}}
    assert describe_finished(found, 64) == "fire, seed 3: 12.3 s, log perplexity 2.500 at 64, 2.250 at 128"
    failed = {"encoding": "fire", "seed": 3, "failed": "no memory"}
    assert describe_finished(failed, 64) == "fire, seed 3: failed: no memory"
    rows = [{"length": 40, "exact_match": 98.4}, {"length": 160, "exact_match": 0.0}, {"length": 320, "failed": "no"}]
    task = {"encoding": "fire", "seed": 3, "took": 1.0, "accuracy": {"task": "copy", "rows": rows}}
    assert describe_finished(task, 40) == "fire, seed 3: 1.0 s, copy: exact match 98 % at 40, 0 % at 160"


def test_ctrl_c(corpus, tmp_path):
    """Sent to all processes, as by a terminal: runs save a checkpoint, without tracebacks or leftover processes."""
    out, source = tmp_path / "out", corpus["source"]
    command = [sys.executable, "-m", "longfire", "compare", "--corpus", source, "--tokenizer", "bytes", "--jobs", "2"]
    command += ["--out", str(out), "--steps", "100000", "--seeds", "0", "--encodings", "alibi", "nope"]
    environment = {**os.environ, "LONGFIRE_CACHE": str(tmp_path / "cache"), "TRITON_INTERPRET": "0"}
    caught = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(command, env=environment, start_new_session=True, **caught)
    losses = out / "runs" / "alibi-0" / "losses.jsonl"
    deadline = time.monotonic() + 90
    while not losses.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(started.pid, signal.SIGINT)
    stdout, stderr = started.communicate(timeout=60)
    assert started.returncode == 130
    assert stdout == ""  # no run has finished, so there is no table
    assert "Not finished: alibi-0, nope-0.\nlongfire: to resume: longfire compare" in stderr
    assert last_complete(losses.parent) is not None
    assert not (out / "compare.json").exists()
    assert "Traceback" not in stderr
    assert "leaked" not in stderr
    deadline = time.monotonic() + 20
    while (left := alive_in(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def alive_in(group):
    """Processes of a group, except zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.append(stat.parent.name)
    return found
