"""Claims on tasks: they hold on the paper's own scores, and what leaves them undecided."""

import pytest

from benchmarks.claims import CLAIMS
from benchmarks.claims_page import claims_markdown
from benchmarks.score_operators import seed_rows
from benchmarks.verdicts import FAILS, HOLDS, MISSING, OPEN
from longfire.report.task_rows import seed_count
from tests.benchmarks.test_claims import PAPERS, PROVENANCE, finding, line_of, verdict

ABOUT = ("size", "encoding", "label", "average", "extended_to")
BEST = CLAIMS["scrolls.best"]


def on_tasks(table, seeds=3, near=(), half=0.0001, size="base", change=lambda encoding, score: score):
    """Scores as if the paper had several seeds. Columns are tasks, or lengths of NarrativeQA."""

    def one(of, key, value, seed):
        score = change(of["encoding"], value) + seed / 1e3
        found = {"score": score, "interval": [score - half, score + half], "near_chance": of["encoding"] in near}
        by_length = key.isdigit()
        return {"task": "narrative_qa" if by_length else key, "length": int(key) if by_length else 8192, **found}

    rows = []
    for of in [row for row in PAPERS[table] if row["size"] == size]:
        columns = {k: v for k, v in of.items() if k not in ABOUT and v is not None}
        target = of.get("extended_to") or (8192 if of["encoding"] == "rope_pi" else None)
        about = {"encoding": of["encoding"], "extended_to": target and int(target), "finetuned_on": [table]}
        about["parameters"] = {"base": 125_000_000, "large": 350_000_000}[size]
        for seed in range(seeds) if columns else ():
            names = {"label": of["label"], "seed": seed, "checkpoint": f"runs/{of['encoding']}-{seed}"}
            rows.append({**about, **names, "scores": [one(of, key, value, seed) for key, value in columns.items()]})
    tasks = list(dict.fromkeys(one["task"] for one in rows[0]["scores"]))
    lengths = sorted({one["length"] for one in rows[0]["scores"]})
    return {"setting": {"tasks": tasks, "length": 8192, "lengths": lengths}, "rows": rows}


def rows_with(record, encoding):
    return [row for row in record["rows"] if row["encoding"] == encoding]


def lowered(*names, by=20):
    return lambda name, score: score - by * (name in names)


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("scrolls.best", "fire"),
        ("scrolls.by_a_point", "fire"),
        ("scrolls.most_tasks", "fire"),
        ("scrolls.rope_pi", "rope_pi"),
        ("scrolls.shared", "fire-s"),
        ("scrolls.shared_best", "fire-s"),
        ("contexts.best", "fire"),
        ("glue.on_a_par", "fire"),
        ("glue.weak_baselines", "fire"),
    ],
)
def test_papers_own_scores_support_its_claims(name, lower):
    claim = CLAIMS[name]
    table = claim.records[0].partition("/")[2].replace("-", "_")
    record = on_tasks(table)
    assert verdict(claim, record) == HOLDS
    assert verdict(claim, on_tasks(table, seeds=1)) == OPEN
    assert verdict(claim, on_tasks(table, change=lowered(lower))) == FAILS
    others = {row["encoding"] for row in record["rows"]} - {lower}
    assert verdict(claim, on_tasks(table, near=(lower,))) == OPEN
    assert verdict(claim, on_tasks(table, near=others)) == OPEN
    assert verdict(claim, on_tasks(table, half=50.0)) == OPEN
    assert verdict(claim, {**record, "rows": []}) == MISSING


def test_unpublished_fire_decides_nothing():
    record = on_tasks("scrolls")
    for row in record["rows"]:
        row |= {"start": "kerple_log" if row["encoding"] == "fire" else None, "horizon": None}
    found = finding(BEST, record)
    assert found.verdict == OPEN
    assert found.why.startswith("not as published: FIRE")


@pytest.mark.parametrize("keep", [lambda row: [], lambda row: [{**row, "scores": []}]], ids=["no row", "no scores"])
def test_missing_baseline(keep):
    """It leaves the claim undecided and does not affect other comparisons."""
    record = on_tasks("scrolls")
    record["rows"] = [one for row in record["rows"] for one in (keep(row) if row["encoding"] == "nope" else [row])]
    found = finding(BEST, record)
    assert (found.verdict, found.numbers) == (OPEN, ("8,192: NoPE was not measured",))
    assert verdict(CLAIMS["scrolls.rope_pi"], record) == HOLDS


def test_other_questions_might_reverse_it():
    """Intervals must be disjoint in every seed: FIRE is 1.5 points above T5, the best baseline."""
    assert verdict(BEST, on_tasks("scrolls", half=1.9)) == HOLDS  # ± 0.72 for the mean of seven tasks
    assert verdict(BEST, on_tasks("scrolls", half=2.1)) == OPEN  # ± 0.79
    record = on_tasks("scrolls")
    record["rows"][-1]["scores"][0]["interval"] = None  # FIRE-S
    assert verdict(BEST, record) == HOLDS
    rows_with(record, "fire")[2]["scores"][0]["interval"] = None
    assert verdict(BEST, record) == OPEN


def test_margins():
    """More than one point above; at most one below."""
    more = CLAIMS["scrolls.by_a_point"]
    assert verdict(more, on_tasks("scrolls", change=lowered("fire", by=0.7))) == FAILS
    assert verdict(more, on_tasks("scrolls", half=1.0)) == OPEN
    assert verdict(CLAIMS["scrolls.shared"], on_tasks("scrolls", change=lowered("fire-s", by=0.3))) == FAILS


@pytest.mark.parametrize(("count", "expected"), [(7, HOLDS), (8, OPEN)])
def test_mean_is_near_chance_if_half_of_its_tasks_are(count, expected):
    record = on_tasks("glue")
    for row in rows_with(record, "fire"):
        for one in row["scores"][:count]:
            one["near_chance"] = True
    assert verdict(CLAIMS["glue.weak_baselines"], record) == expected


def test_best_on_most_tasks():
    claim, record = CLAIMS["scrolls.most_tasks"], on_tasks("scrolls")
    assert finding(claim, record).numbers[0] == "best on `qasper`, `contract_nli`, `narrative_qa`, `summ_screen_fd`"
    for row in record["rows"]:
        row["scores"] = row["scores"][2:]  # two of the four are left; Qasper and ContractNLI may go either way
    assert verdict(claim, record) == OPEN
    assert finding(claim, record).numbers[-1] == "undecided on `qasper`, `contract_nli`"


@pytest.mark.parametrize(
    ("name", "by"), [("scrolls.large_by_a_point", 20), ("scrolls.large_most_tasks", 20), ("glue.large_on_a_par", 0.3)]
)
def test_large_models(name, by):
    claim, table = CLAIMS[name], name.partition(".")[0]
    assert verdict(claim, on_tasks(table, size="large")) == HOLDS
    assert verdict(claim, on_tasks(table, size="large", change=lowered("fire", by=by))) == FAILS
    assert (verdict(claim, on_tasks(table)), finding(claim, on_tasks(table)).why) == (MISSING, claim.needs)


def test_contexts_need_models_fine_tuned_on_narrative_qa():
    record = on_tasks("narrative_qa")
    for row in record["rows"]:
        row["finetuned_on"] = ["qasper", "quality"]
    for name in ("best", "fire_stays", "rope_pi_stays"):
        found = finding(CLAIMS[f"contexts.{name}"], record)
        assert (found.verdict, found.numbers, found.record) == (MISSING, (), "")
        assert found.why.endswith("ours were on `qasper` and `quality`")
    record["setting"]["mixtures"] = [{"tasks": ["narrative_qa"]}]
    assert verdict(CLAIMS["contexts.best"], record) == HOLDS


def test_every_rope_pi_is_a_baseline():
    """Above the one that is stretched least, but not above the other."""
    record = on_tasks("narrative_qa")
    for row in record["rows"]:
        for one in row["scores"] if row["extended_to"] == 32768 else ():
            one["score"], one["interval"] = one["score"] + 9, [20.0, 20.0]
    found = finding(CLAIMS["contexts.best"], record)
    assert found.verdict == FAILS
    assert "RoPE-PI 32768" in found.numbers[0]


def test_scores_that_drop():
    names = ("rope_pi_drops", "rope_pi_stays", "fire_stays", "stretching_costs")
    drop, steady, fire, worse = (CLAIMS[f"contexts.{name}"] for name in names)
    record = on_tasks("narrative_qa")
    assert [verdict(one, record) for one in (drop, steady, fire)] == [HOLDS, HOLDS, HOLDS]
    assert verdict(worse, record) == FAILS  # at 2,048 the paper's table contradicts its text
    assert verdict(drop, on_tasks("narrative_qa", change=lambda name, score: 5.0)) == FAILS
    for row in record["rows"]:
        for one in row["scores"] if row["encoding"] in ("fire", "rope_pi") else ():
            one |= {"score": 1e4 / one["length"], "interval": [1e4 / one["length"]] * 2}
        row["scores"][0]["score"] += 0.001 * int(row["checkpoint"][-1])
    assert [verdict(one, record) for one in (steady, fire)] == [FAILS, FAILS]


def test_lengths_are_multiples_of_the_fine_tuning_length():
    """Fine-tuned at 2,048, the row of 8,192 is stretched four times, and no comparison goes further."""
    record = on_tasks("narrative_qa")
    record["setting"]["length"] = 2048
    steady = finding(CLAIMS["contexts.rope_pi_stays"], record)
    assert [line.partition(":")[0] for line in steady.numbers] == ["2,048 and 4,096", "2,048 and 8,192"]
    assert all("RoPE-PI 8192" in line for line in steady.numbers)
    assert verdict(CLAIMS["contexts.rope_pi_drops"], record) == MISSING
    above = finding(CLAIMS["contexts.best"], record)
    assert [line.partition(":")[0] for line in above.numbers] == ["512", "2,048", "4,096", "8,192"]


def test_rows_with_another_label_are_not_seeds():
    """Such as checkpoints that were trained for longer."""
    record = on_tasks("scrolls")
    for row in rows_with(record, "fire"):
        row["label"] += f" ({row['checkpoint']})"
    assert [len(rows) for rows in seed_rows(record, "fire")] == [1]
    assert seed_count(record["rows"]) == "1 to 3"
    assert verdict(BEST, record) == OPEN


def test_variants_of_fire_on_glue():
    """Identified by the options in the record, and never counted as seeds of FIRE."""
    log, threshold, shared = (CLAIMS[f"glue.{name}"] for name in ("logarithm", "threshold", "shared"))
    record = on_tasks("glue")
    fire = rows_with(record, "fire")
    assert [verdict(one, record) for one in (log, threshold, shared)] == [MISSING] * 3
    assert verdict(shared, {**record, "rows": [*fire, *({**row, "encoding": "fire-s"} for row in fire)]}) == HOLDS
    added = []
    for options, less in (({"threshold": None}, 0.72), ({"threshold": None, "log": False}, 2.08)):
        for row in fire:
            scores = [one | {"score": one["score"] - less} for one in row["scores"]]
            scores = [one | {"interval": [one["score"] - 0.01, one["score"] + 0.01]} for one in scores]
            added.append({**row, "options": {"init_L": 512.0, **options}, "scores": scores})
    record["rows"] = [*added, *fire]
    assert [verdict(one, record) for one in (log, threshold)] == [HOLDS, HOLDS]
    assert {len(rows) for one in ("fire", "fire:threshold=None") for rows in seed_rows(record, one)} == {3}


@pytest.mark.parametrize("without", [None, "record"])
def test_averages_on_the_page(without):
    """The paper's average, stated or not; over our tasks if they are fewer."""
    record, claim = on_tasks("glue", seeds=1), CLAIMS["glue.on_a_par"]
    record["setting"] |= {"kind": "evaluate", "split": "validation", "data": "data", "limit": None, "missing": {}}
    for row in record["rows"]:
        row |= {"trained_length": 512, "tokens_seen": None, "finetuned_length": 8192}
        row["scores"] = [one for one in row["scores"] if one["task"] != without]
    line = line_of(claims_markdown({claim.records[0]: {**record, "provenance": PROVENANCE}}, PAPERS), claim)
    assert "RoPE 71.15; Kerple 70.20; T5 70.61; FIRE 71.14" in line
    assert "(`downstream/glue`, one seed)" in line
    if without:
        assert "<br>mean of the 14 tasks we have: RoPE 72.91; Kerple 71.80; T5 72.39; FIRE 72.88 |" in line
        assert "| 8,192, mean of the 14 tasks that all have: FIRE 72.8" in line
    else:
        assert "| 8,192: FIRE 71.15 (71.15 to 71.15); RoPE 71.15" in line
