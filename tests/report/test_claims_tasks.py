"""Claims on tasks: what the paper's own scores say of them, and what keeps one from being decided."""

import pytest

from longfire.report.claims.claim import FAILS, HOLDS, MISSING, OPEN
from longfire.report.claims.page import claims_markdown
from longfire.report.claims.rows import rows_of, seeds_in
from longfire.report.claims.tasks import BASELINES
from tests.report.test_claims import CLAIMS, MADE, PAPERS, named, verdict

ABOUT = ("size", "encoding", "label", "average", "extended_to")


def on_tasks(table, seeds=3, near=(), half=0.0001, size="base", change=lambda encoding, score: score):
    """A record of scores, as if the paper had several seeds. Columns are tasks, or lengths of NarrativeQA."""

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
            names = {"label": f"{of['label']} (runs/{seed})", "checkpoint": f"runs/{of['encoding']}-{seed}"}
            rows.append({**about, **names, "scores": [one(of, key, value, seed) for key, value in columns.items()]})
    tasks = list(dict.fromkeys(one["task"] for one in rows[0]["scores"]))
    lengths = sorted({one["length"] for one in rows[0]["scores"]})
    return {"setting": {"tasks": tasks, "length": 8192, "lengths": lengths}, "rows": rows}


def lowered(*names, by=20):
    return lambda name, score: score - by * (name in names)


@pytest.mark.parametrize(
    ("start", "lower"),
    [
        ("Fine-tuned on SCROLLS", "fire"),
        ("FIRE's average on SCROLLS is above the best baseline's by", "fire"),
        ("FIRE is above every baseline on 4", "fire"),
        ("RoPE-PI is clearly better", "rope_pi"),
        ("On SCROLLS FIRE-S's", "fire-s"),
        ("FIRE-S's average on SCROLLS", "fire-s"),
        ("On NarrativeQA FIRE", "fire"),
        ("On GLUE and SuperGLUE FIRE's", "fire"),
        ("On GLUE and SuperGLUE NoPE", "fire"),
    ],
)
def test_the_papers_own_scores(start, lower):
    claim = named(start)
    table = claim.records[0].partition("/")[2].replace("-", "_")
    assert verdict(claim, on_tasks(table)) == HOLDS
    assert verdict(claim, on_tasks(table, seeds=1)) == OPEN
    assert verdict(claim, on_tasks(table, change=lowered(lower))) == FAILS
    record = on_tasks(table)
    others = {row["encoding"] for row in record["rows"]} - {lower}
    assert verdict(claim, on_tasks(table, near=(lower,))) == OPEN
    assert verdict(claim, on_tasks(table, near=others)) == OPEN
    assert verdict(claim, on_tasks(table, half=50.0)) == OPEN
    assert verdict(claim, {**record, "rows": []}) == MISSING


def test_a_fire_that_is_not_the_published_one_decides_nothing():
    claim, record = named("Fine-tuned on SCROLLS"), on_tasks("scrolls")
    for row in record["rows"]:
        row |= {"start": "kerple_log" if row["encoding"] == "fire" else None, "horizon": None}
    finding = claim.judged({claim.records[0]: record})
    assert finding.verdict == OPEN
    assert finding.why.startswith("not as published: FIRE (runs/0) (begins as kerple_log)")


@pytest.mark.parametrize("keep", [lambda row: [], lambda row: [{**row, "scores": []}]])
def test_a_baseline_that_is_missing(keep):
    """Or whose run failed: it keeps the claim open, and spoils no other comparison."""
    claim, record = named("Fine-tuned on SCROLLS"), on_tasks("scrolls")
    record["rows"] = [one for row in record["rows"] for one in (keep(row) if row["encoding"] == "nope" else [row])]
    finding = claim.judged({claim.records[0]: record})
    assert (finding.verdict, finding.numbers) == (OPEN, ("8,192: NoPE was not measured",))
    assert verdict(named("RoPE-PI is clearly better"), record) == HOLDS


def test_other_questions_might_turn_it():
    """The intervals of every seed must be apart: FIRE is 1.5 points above T5, the best baseline."""
    claim = named("Fine-tuned on SCROLLS")
    assert verdict(claim, on_tasks("scrolls", half=1.9)) == HOLDS  # ± 0.72 of the mean over seven tasks
    assert verdict(claim, on_tasks("scrolls", half=2.1)) == OPEN  # ± 0.79
    record = on_tasks("scrolls")
    record["rows"][-1]["scores"][0]["interval"] = None  # FIRE-S
    assert verdict(claim, record) == HOLDS
    fire = [row for row in record["rows"] if row["encoding"] == "fire"]
    fire[2]["scores"][0]["interval"] = None
    assert verdict(claim, record) == OPEN


def test_a_margin_counts():
    """By over a point; on a par within one."""
    more, par = named("FIRE's average on SCROLLS is above the best baseline's by"), named("On SCROLLS FIRE-S's")
    assert verdict(more, on_tasks("scrolls", change=lowered("fire", by=0.7))) == FAILS
    assert verdict(more, on_tasks("scrolls", half=1.0)) == OPEN
    assert verdict(par, on_tasks("scrolls", change=lowered("fire-s", by=0.3))) == FAILS


def test_what_is_near_chance():
    """A mean is, if half of its tasks are; either of two decides nothing."""
    record = on_tasks("glue")
    fire = [row for row in record["rows"] if row["encoding"] == "fire"]
    claim = named("On GLUE and SuperGLUE NoPE")
    for count, expected in ((7, HOLDS), (8, OPEN)):
        for row in fire:
            for one in row["scores"][:count]:
                one["near_chance"] = True
        assert verdict(claim, record) == expected


def test_best_on_most_tasks():
    claim = named("FIRE is above every baseline on 4")
    record = on_tasks("scrolls")
    finding = claim.judged({claim.records[0]: record})
    assert finding.numbers[0] == "best on `qasper`, `contract_nli`, `narrative_qa`, `summ_screen_fd`"
    assert claim.paper == "on Qasper, ContractNLI, NarrativeQA and SummScreenFD"
    for row in record["rows"]:
        row["scores"] = row["scores"][1:]  # without Qasper three are left, and it may be the fourth
    assert verdict(claim, record) == OPEN
    for row in record["rows"]:
        row["scores"] = row["scores"][1:]
    assert claim.judged({claim.records[0]: record}).numbers[-1] == "cannot be told on `qasper`, `contract_nli`"


def test_large_models():
    for start in ("With large models (350M), too, FIRE's average on SCROLLS", "With large models (350M) FIRE"):
        claim = named(start)
        assert claim.records == ("downstream/scrolls-large",)
        assert verdict(claim, on_tasks("scrolls", size="large")) == HOLDS
        assert verdict(claim, on_tasks("scrolls", size="large", change=lowered("fire"))) == FAILS
        assert verdict(claim, on_tasks("scrolls")) == MISSING
    glue = named("With large models (350M), too, FIRE's average on GLUE")
    assert verdict(glue, on_tasks("glue", size="large")) == HOLDS
    assert verdict(glue, on_tasks("glue", size="large", change=lowered("fire", by=0.3))) == FAILS


def test_narrative_qa_by_context_is_of_models_fine_tuned_on_it():
    record = on_tasks("narrative_qa")
    for row in record["rows"]:
        row["finetuned_on"] = ["qasper", "quality"]
    for start in ("On NarrativeQA FIRE", "FIRE goes on well", "RoPE-PI stretched to four"):
        finding = named(start).judged({"downstream/narrative-qa": record})
        assert (finding.verdict, finding.numbers, finding.record) == (MISSING, (), "")
        assert finding.why.endswith("fine-tuned on NarrativeQA; those tested were on `qasper` and `quality`")
    record["setting"]["mixtures"] = [{"tasks": ["narrative_qa"]}]
    assert verdict(named("On NarrativeQA FIRE"), record) == HOLDS


def test_every_row_of_rope_pi_is_a_baseline():
    """Above the one that is stretched least, and not above the other."""
    claim, record = named("On NarrativeQA FIRE"), on_tasks("narrative_qa")
    for row in record["rows"]:
        for one in row["scores"] if row["extended_to"] == 32768 else ():
            one["score"], one["interval"] = one["score"] + 9, [20.0, 20.0]
    assert verdict(claim, record) == FAILS
    assert "RoPE-PI 32768" in claim.judged({claim.records[0]: record}).numbers[0]


def test_scores_that_drop():
    record = on_tasks("narrative_qa")
    drop, steady, worse = (
        named(start) for start in ("RoPE-PI stretched to the", "RoPE-PI stretched to four", "But up to")
    )
    fire = named("FIRE goes on well")
    assert [verdict(one, record) for one in (drop, steady, fire)] == [HOLDS, HOLDS, HOLDS]
    assert verdict(worse, record) == FAILS  # at 2,048 the paper's table contradicts its text
    even = on_tasks("narrative_qa", change=lambda name, score: 5.0)
    assert verdict(drop, even) == FAILS
    for row in record["rows"]:
        for one in row["scores"] if row["encoding"] in ("fire", "rope_pi") else ():
            one |= {"score": 1e4 / one["length"], "interval": [1e4 / one["length"]] * 2}
        row["scores"][0]["score"] += 0.001 * int(row["checkpoint"][-1])
    assert [verdict(one, record) for one in (steady, fire)] == [FAILS, FAILS]


def test_lengths_are_multiples_of_the_fine_tuning_length():
    """Fine-tuned at 2,048, the row of 8,192 is the one stretched to four times that, and no test goes farther."""
    record = on_tasks("narrative_qa")
    record["setting"]["length"] = 2048
    steady = named("RoPE-PI stretched to four").judged({"downstream/narrative-qa": record})
    assert [line.partition(":")[0] for line in steady.numbers] == ["2,048 and 4,096", "2,048 and 8,192"]
    assert all("RoPE-PI 8192" in line for line in steady.numbers)
    assert verdict(named("RoPE-PI stretched to the"), record) == MISSING
    above = named("On NarrativeQA FIRE").judged({"downstream/narrative-qa": record})
    assert [line.partition(":")[0] for line in above.numbers] == ["512", "2,048", "4,096", "8,192"]


@pytest.mark.parametrize(
    "same",
    [
        lambda row: row | {"checkpoint": "runs/one"},  # as it is told, one run
        lambda row: row | {"checkpoint": None},
        lambda row: row | {"key": "fire-88d2c880"},  # the same weights in several folders
        lambda row: row | {"scores": [one | {"score": 50.0} for one in row["scores"]]},  # the same to the last digit
        lambda row: row | {"tokens_seen": row["checkpoint"][-1]},  # trained on for longer
        lambda row: row | {"label": f"FIRE (horizon={row['checkpoint'][-1]})"},
    ],
)
def test_rows_that_are_no_seeds(same):
    record = on_tasks("scrolls")
    assert seeds_in(record) == "3 seeds"
    record["rows"] = [same(row) if row["encoding"] == "fire" else row for row in record["rows"]]
    assert [len(rows) for rows in rows_of(record, "fire")] == [1]
    assert seeds_in(record) == "1 to 3 seeds"
    assert verdict(named("Fine-tuned on SCROLLS"), record) == OPEN


def test_seeds_of_a_run_tell():
    record = on_tasks("scrolls")
    for row in record["rows"]:
        row |= {"seed": row["checkpoint"][-1], "checkpoint": "runs/one"}
    assert verdict(named("Fine-tuned on SCROLLS"), record) == HOLDS
    for row in record["rows"]:
        row |= {"finetuned": {"seed": row.pop("seed")}}
    assert verdict(named("Fine-tuned on SCROLLS"), record) == HOLDS


def test_parts_of_fire_on_glue():
    """Judged by the options that a record has, and never taken for seeds of FIRE."""
    log, threshold = (named(f"On GLUE and SuperGLUE the {part}") for part in ("logarithm", "threshold"))
    record = on_tasks("glue")
    fire = [row for row in record["rows"] if row["encoding"] == "fire"]
    added = []
    for options, less in (({"threshold": None}, 0.72), ({"threshold": None, "log": False}, 2.08)):
        for row in fire:
            scores = [one | {key: one[key] - less for key in ["score"]} for one in row["scores"]]
            scores = [one | {"interval": [one["score"] - 0.01, one["score"] + 0.01]} for one in scores]
            added.append({**row, "options": {"init_L": 512.0, **options}, "scores": scores})
    assert [verdict(one, record) for one in (log, threshold)] == [MISSING, MISSING]
    record["rows"] = [*added, *fire]
    assert [verdict(one, record) for one in (log, threshold)] == [HOLDS, HOLDS]
    assert seeds_in(record) == "3 seeds"
    record["rows"] = [*added[:3], *({**row, "scores": fire[0]["scores"]} for row in fire)]
    assert verdict(threshold, record) == OPEN


def test_shared_on_glue():
    claim, record = named("On GLUE and SuperGLUE FIRE-S"), on_tasks("glue")
    assert verdict(claim, record) == MISSING
    fire = [row for row in record["rows"] if row["encoding"] == "fire"]
    record["rows"] += [{**row, "encoding": "fire-s"} for row in fire]
    assert verdict(claim, record) == HOLDS


def shown(start, record):
    name = named(start).records[0]
    page = claims_markdown({name: {**record, "provenance": MADE}}, PAPERS)
    return next(line for line in page.splitlines() if line.startswith(f"| {start}"))


def described(record):
    """With what a page says of it."""
    record["setting"] |= {"kind": "evaluate", "split": "validation", "data": "data", "limit": None, "missing": {}}
    known = {"trained_length": 512, "tokens_seen": None, "finetuned_length": 8192}
    record["rows"] = [{**row, **known} for row in record["rows"]]
    return record


def test_averages_that_the_paper_does_not_state():
    line = shown("On GLUE and SuperGLUE FIRE's", described(on_tasks("glue", seeds=1)))
    assert "RoPE 71.15; Kerple 70.20; T5 70.61; FIRE 71.14 |" in line
    assert "| 8,192: FIRE (runs/0) 71.15 (71.15 to 71.15); RoPE (runs/0) 71.15" in line
    assert "(`downstream/glue`, one seed)" in line
    assert "(`downstream/glue`, 3 seeds)" in shown("On GLUE and SuperGLUE FIRE's", described(on_tasks("glue")))


def test_tasks_that_are_missing_are_no_average():
    """Ours is the mean of those that all have, beside the paper's over the same."""
    record = described(on_tasks("glue"))
    for row in record["rows"]:
        row["scores"] = [one for one in row["scores"] if one["task"] != "record"]
    line = shown("On GLUE and SuperGLUE FIRE's", record)
    assert "<br>mean of the 14 tasks of ours: RoPE 72.91; Kerple 71.80; T5 72.39; FIRE 72.88 |" in line
    assert "| 8,192, mean of the 14 tasks that all have: FIRE 72.8" in line


def test_claims_are_the_papers():
    """A cell of a table alone is none."""
    assert not [says for says in CLAIMS if says.startswith("On QMSum")]
    assert set(BASELINES) <= {row["encoding"] for row in PAPERS["scrolls"]}
