"""The paper's claims: they hold on the paper's own numbers, and every verdict is possible."""

import pytest

from benchmarks.claims import BEYOND, CLAIMS, Quote
from benchmarks.claims_page import claims_markdown
from benchmarks.judge import OPERATORS, judge
from benchmarks.perplexity_operators import lower
from benchmarks.verdicts import FAILS, HOLDS, MISSING, OPEN, Comparison, decide, summarise
from longfire.lab.reported import TABLES, reported
from longfire.lab.tables import ENTRIES, LengthEntry, TaskEntry
from tests.report import downstream_records as downstream
from tests.report.records import record_of

PAPERS = {name: reported(name) for name in TABLES}
PROVENANCE = {"date": "2025-11-15", "commit": "0123456", "hardware": {"cpu": "a CPU"}, "versions": {"torch": "2.13"}}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
LONG = CLAIMS["by_length.fire_long"]


def compared(values, seeds=3, also=None, **run):
    """Log perplexity by encoding and length, as if trained at 2048; seeds differ a little."""

    def rows(by_length, seed):
        return {"rows": [{"length": int(n), "log_perplexity": v + seed / 1e4} for n, v in by_length.items() if v]}

    runs = [
        {
            "encoding": encoding,
            "label": encoding.upper(),
            "seed": seed,
            "perplexity": rows(by_length, seed * (1 + i % 3)),
            **({"also": {"tex": rows(also[encoding], seed * (1 + i % 3))}} if also else {}),
            **run,
        }
        for seed in range(seeds)
        for i, (encoding, by_length) in enumerate(values.items())
    ]
    setting = {"trained_length": 2048, "lengths": list(LENGTHS), "seeds": list(range(seeds))}
    return {"provenance": PROVENANCE, "setting": setting, "runs": runs}


def papers_values(table):
    return {row["encoding"]: {n: v for n, v in row.items() if n.isdigit()} for row in PAPERS[table]}


def from_paper(table="perplexity", **options):
    return compared(papers_values(table), **options)


def flat(value):
    return {str(length): value for length in LENGTHS}


def reversed_order(record):
    """The opposite order, with differences ten times as large."""
    for run in record["runs"]:
        for row in run["perplexity"]["rows"]:
            row["log_perplexity"] = 40 - 10 * row["log_perplexity"]
    return record


def finding(claim, record):
    return judge(claim, {claim.records[0]: record})


def verdict(claim, record):
    return finding(claim, record).verdict


def with_length_tables():
    tables = {entry.reported for entry in ENTRIES.values() if isinstance(entry, LengthEntry)} - {""}
    return [
        name
        for name, claim in CLAIMS.items()
        if len(claim.paper) == 1 and isinstance(claim.paper[0], Quote) and claim.paper[0].table in tables
    ]


@pytest.mark.parametrize("name", with_length_tables())
def test_papers_own_numbers_support_its_claims(name):
    """With a single seed, they decide nothing."""
    claim = CLAIMS[name]
    table = claim.paper[0].table
    assert verdict(claim, from_paper(table)) == HOLDS
    assert verdict(claim, from_paper(table, seeds=1)) == OPEN
    if name not in ("ablations.relu_gelu", "ablations.sharing"):
        assert verdict(claim, reversed_order(from_paper(table))) == FAILS


def test_table_of_claims():
    assert len(CLAIMS) == 64
    assert {claim.test["is"] for claim in CLAIMS.values()} == set(OPERATORS)
    for name, claim in CLAIMS.items():  # a margin in the test is the margin in the sentence
        margin = claim.test.get("margin")
        assert (
            margin is None or margin < 1e-6 or f"{abs(margin):g}" in claim.says or f"{100 * margin:g} %" in claim.says
        )
        assert not claim.part_of or f"{name.partition('.')[0]}.{claim.part_of}" in CLAIMS


def test_records_are_named_like_commands():
    """So that a command's output is found where it is checked in."""
    names = {name for claim in CLAIMS.values() for name in claim.records}
    assert {name.removeprefix("reproduce/") for name in names if name.startswith("reproduce/")} <= set(ENTRIES)
    tasks = {name.removeprefix("downstream/") for name in names if name.startswith("downstream/")}
    assert tasks == {entry.name for entry in ENTRIES.values() if isinstance(entry, TaskEntry)}


def test_prefixes_stand_in_for_untested_lengths():
    claim = CLAIMS["ablations.relu"]
    record = compared({"fire": {"2048": 3.0}, "fire:activation=gelu": {"2048": 3.01}})
    record["setting"]["lengths"] = [2048, 4096]
    found = finding(claim, record)
    assert (found.verdict, found.why) == (OPEN, "incomplete")
    assert "first 512 tokens: not tested here" in found.numbers
    for run in record["runs"]:
        (row,) = run["perplexity"]["rows"]
        worse = 0.2 * (run["encoding"] != "fire") + run["seed"] / 1e3
        row["by_position"] = [
            {"from": 1, "to": 512, "loss": 3.5 + worse, "tokens": 511},
            {"from": 512, "to": 1024, "loss": 3.1 + worse, "tokens": 512},
            {"from": 1024, "to": 2048, "loss": 2.8, "tokens": 1024},
        ]
        run["perplexity"]["protocol"] = "paper"
    found = finding(claim, record)
    assert found.verdict == HOLDS
    assert found.numbers[1].startswith("first 1,024 tokens: FIRE 3.301 ± 0.001, FIRE with GELU 3.501 ± 0.001 (+0.200; ")
    for run in record["runs"]:
        run["perplexity"]["protocol"] = "paired"  # which scores the last tokens of windows
    assert verdict(claim, record) == OPEN


def test_growing_lead_must_be_a_lead():
    """Falling behind less is not a lead; and with a baseline missing, the best is unknown."""
    claim = CLAIMS["by_length.lead"]
    others = {name: {"2048": 3.0, "8192": 3.0} for name in ("nope", "rope", "alibi", "kerple_log", "t5")}
    found = finding(claim, compared({"fire": {"2048": 3.3, "8192": 3.1}, **others}))
    assert found.verdict == FAILS
    assert "the best of the others: -0.300 at 2,048 (-0.300 to -0.300), -0.100 at 8,192" in found.numbers[0]
    assert verdict(claim, compared({"fire": {"2048": 3.0, "8192": 2.9}, **others})) == HOLDS
    del others["t5"]
    found = finding(claim, compared({"fire": {"2048": 3.0, "8192": 2.9}, **others}))
    assert (found.verdict, found.numbers) == (OPEN, ("T5 was not measured",))


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"init": "kerple_log"}},
        {"recipe": {"horizon": "length", "length": 2048}},
        {"recipe": {"share_position_encoding": True}},
        {"recipe": {"encoding_options": {"log": False}}},
        {"split": "dev"},
    ],
    ids=str,
)
def test_unpublished_fire_decides_nothing(change):
    record = from_paper()
    record["setting"] |= change
    found = finding(LONG, record)
    assert found.verdict == OPEN
    assert found.why.startswith("FIRE " if "recipe" in change else "tested on dev")
    fit = from_paper(seeds=4)
    assert judge(LONG, {LONG.records[0]: record, LONG.records[1]: fit}).record == LONG.records[1]


def test_record_with_most_seeds_decides():
    """A record that disagrees is named, unless it shares runs."""
    three, four = from_paper(), from_paper(seeds=4)
    first, second = LONG.records[:2]
    assert judge(LONG, {first: three, second: four}).record == second
    assert judge(LONG, {first: three, second: three}).record == first
    other = reversed_order(from_paper())
    found = judge(LONG, {first: other, second: four})
    assert (found.verdict, found.notes) == (HOLDS, (f"in `{first}` it does not hold",))
    other["runs"].append(four["runs"][0])
    assert judge(LONG, {first: other, second: four}).notes == ()


def test_records_taken_together():
    """One has the fixed threshold's runs, the other the baselines', with the same recipe, corpus and length."""
    claim = CLAIMS["ablations.fixed_threshold"]
    fixed = compared({"fire:threshold=fixed": flat(3.0)})
    records = {"compare/threshold": fixed, "compare/encodings": from_paper()}
    found = judge(claim, records)
    assert (found.verdict, found.record) == (HOLDS, "compare/threshold + compare/encodings")
    assert "compare/threshold`, `compare/encodings`, 3 seeds" in claims_markdown(records, PAPERS)
    fixed["setting"]["recipe"] = {"steps": 10}
    records["compare/encodings"]["setting"]["recipe"] = {"steps": 20}
    assert judge(claim, records).verdict == MISSING


def test_why_undecided():
    assert [finding(LONG, from_paper(seeds=n)).why for n in (1, 2, 3)] == [
        "not testable with one seed",
        "not testable with two seeds",
        "",
    ]
    record = from_paper()
    next(run for run in record["runs"] if run["encoding"] == "fire")["perplexity"]["rows"][4]["log_perplexity"] = 3.3
    found = judge(LONG, {"compare/encodings": record})
    assert found.verdict == OPEN
    assert "seeds disagree" in found.why
    assert any(line.startswith("8,192: FIRE 3.") for line in found.numbers)
    assert Comparison.of_seeds("", "", [0.001, 0.9, 0.001], 3).why == ("not significant",)


def test_missing_runs():
    """A missing baseline, or one of its seeds, leaves a claim undecided; without FIRE there is nothing to judge."""
    without = from_paper()
    without["runs"] = [run for run in without["runs"] if run["encoding"] != "t5"]
    assert (finding(LONG, without).verdict, finding(LONG, without).why) == (OPEN, "incomplete")
    record = from_paper()
    del record["runs"][-1]
    assert verdict(LONG, record) == OPEN
    record["runs"] = [run for run in record["runs"] if run["encoding"] != "fire"]
    assert verdict(LONG, record) == MISSING


def test_comparison_is_corrected_as_in_its_table():
    """Significant between two encodings alone, not among eight."""
    fire, alibi, spread = [1.0, 1.0, 1.0], [1.1, 1.12, 1.15], [1.05, 1.2, 1.1]
    others = {f"fire:width={i}": [value + 0.01 * i for value in spread[i % 3 :] + spread[: i % 3]] for i in range(6)}
    both = [lower(record_of({"fire": fire, "alibi": alibi} | more), "fire", ("alibi",), (1,)) for more in ({}, others)]
    assert [found[0].verdict for found in both] == [HOLDS, OPEN]


def test_from_comparisons_to_a_verdict():
    assert decide([0.1, 0.12, 0.11], 3) == HOLDS
    assert decide([-0.1, -0.12, -0.11], 3) == FAILS
    assert decide([0.1, 0.12], 3) == decide([0.1], 1) == decide([0.001, 0.9, 0.001], 3) == OPEN
    assert summarise([]) is None
    three = [Comparison("a", "one", HOLDS), Comparison("a", "two", OPEN), Comparison("b", "three", HOLDS)]
    assert (summarise(three).verdict, summarise(three).numbers) == (OPEN, ("a: two", "b: three"))
    nine, against = [Comparison(str(i), "", HOLDS) for i in range(9)], Comparison("x", "", FAILS)
    assert summarise([*nine, against]).why == "9 of 10 comparisons for, 1 against"
    assert summarise([*nine, against, Comparison("y", "", OPEN)]).why.endswith("1 against, 1 undecided")
    assert summarise([against]).why == ""


def test_margins():
    """Being alike, or not much worse, fails if the difference is larger."""
    apart = compared({"fire": {"4096": 3.0, "8192": 3.0}, "fire:activation=gelu": {"4096": 3.0, "8192": 2.9}})
    assert verdict(CLAIMS["ablations.relu_gelu"], apart) == FAILS
    worse = compared({"fire": {"2048": 3.0}, "fire-s": {"2048": 3.2}})
    assert verdict(CLAIMS["ablations.sharing"], worse) == FAILS


@pytest.mark.parametrize(
    "name",
    [
        "by_length.yarn_long",
        "by_length.yarn_short",
        "ablations.shared_baselines",
        "beyond.fire_far",
        "ablations.learned_threshold",
    ],
)
def test_claims_without_a_table_in_the_paper(name):
    low = {"fire": 3.0, "fire-s": 3.05, "rope": 3.1, "yarn": 3.2, "nope": 3.3, "t5": 3.3, "alibi": 3.3}
    low = {
        encoding: flat(value) for encoding, value in (low | {"kerple_log": 3.3, "fire:threshold=fixed": 3.1}).items()
    }
    assert verdict(CLAIMS[name], compared(low)) == HOLDS
    assert verdict(CLAIMS[name], compared({**low, "fire": flat(3.4), "fire-s": flat(3.4), "rope": flat(3.3)})) == FAILS
    assert verdict(CLAIMS[name], compared(low, seeds=1)) == OPEN


@pytest.mark.parametrize(("value", "expected"), [(3.0, FAILS), (4.0, HOLDS)])
def test_sinusoids(value, expected):
    record = compared({"sinusoidal": {**flat(value), "2048": 3.0}})
    assert verdict(CLAIMS["by_length.sinusoidal_rises"], record) == expected


def test_other_texts():
    claim, values = CLAIMS["by_length.other_texts"], papers_values("perplexity")
    assert verdict(claim, compared(values)) == MISSING
    assert verdict(claim, compared(values, also=values)) == HOLDS
    found = finding(claim, compared(values, also={**values, "fire": values["alibi"]}))
    assert found.verdict == FAILS
    assert all(line.startswith("tex, ") for line in found.numbers)


@pytest.mark.parametrize(("name", "size"), [("by_length.trained_at_512", "base"), ("by_length.large", "large")])
def test_models_of_the_papers_size(name, size):
    claim, record = CLAIMS[name], from_paper()
    record["setting"]["recipe"] = {"size": "small"}
    assert (verdict(claim, record), finding(claim, record).why) == (MISSING, claim.needs)
    record["setting"]["recipe"]["size"] = size
    assert verdict(claim, record) == HOLDS


def layers(L=None, heads=(0.5, 1.0)):
    return [{"layer": i, "c": 0.1, "L": L, "look_back": list(heads)} for i in range(2)]


@pytest.mark.parametrize(
    ("name", "learned", "expected"),
    [
        ("learned.thresholds", layers(1400.0), HOLDS),
        ("learned.thresholds", layers(2000.0), FAILS),
        ("learned.patterns", layers(heads=(0.5, 1.5)), HOLDS),
        ("learned.patterns", layers(heads=(0.5, 1.0)), FAILS),
        ("learned.patterns", layers(heads=(1.0, 1.5)), FAILS),
    ],
)
def test_what_fire_learned(name, learned, expected):
    claim, values = CLAIMS[name], {"fire": {"2048": 3.0}}
    record = compared(values, learned=learned)
    assert verdict(claim, record) == expected
    assert verdict(claim, compared(values, learned=learned, seeds=1)) == OPEN
    assert verdict(claim, compared(values)) == MISSING
    record["runs"][1]["learned"] = layers(1400.0, (0.5, 1.5)) if expected == FAILS else layers(1.0, (0.5,))
    assert verdict(claim, record) == OPEN


@pytest.mark.parametrize(("error", "expected"), [(1e-14, HOLDS), (1e-3, FAILS)])
def test_theorem(error, expected):
    rows = [{"encoding": name, "max_length": 64, "error": e} for name, e in (("alibi", 0.0), ("t5", error))]
    assert verdict(CLAIMS["theorem.equality"], {"rows": rows}) == expected


@pytest.mark.parametrize(("parameters", "expected"), [(10_050, HOLDS), (10_200, FAILS)])
def test_parameters(parameters, expected):
    runs = [{"encoding": name, "seed": 0, "parameters": n} for name, n in (("fire", parameters), ("t5", 10_000))]
    record = {"setting": {"seeds": [0], "lengths": [8]}, "runs": runs}
    assert verdict(CLAIMS["theorem.parameters"], record) == expected


@pytest.mark.parametrize(("t5", "expected"), [((3.0, 3.2), HOLDS), ((1.0, 1.2), FAILS), ((1.9, 2.5), OPEN)])
def test_times(t5, expected):
    def row(encoding, fastest, slowest):
        times = {"ms": (fastest + slowest) / 2, "fastest": fastest, "slowest": slowest}
        return {"kind": "forward", "n": 2048, "encoding": encoding, **times}

    claim, fire = CLAIMS["speed.fire_t5"], row("fire", 1.8, 2.2)
    assert verdict(claim, {"rows": [fire, row("t5", *t5)]}) == expected
    failed = {"kind": "forward", "n": 2048, "encoding": "t5", "failed": "out of memory"}
    assert verdict(claim, {"rows": [fire]}) == verdict(claim, {"rows": [fire, failed]}) == MISSING


@pytest.mark.parametrize("name", ["beyond.recommended", "beyond.recommended_base"])
def test_fire_as_recommended(name):
    """Against all that it is said to be ahead of, to sixteen times, by its own record."""
    claim, lengths = CLAIMS[name], [2048 * 2**k for k in range(5)]
    values = {other: dict.fromkeys(map(str, lengths), 3.0) for other in ("nope", "rope", *claim.test["others"])}
    values[claim.test["one"]] = dict.fromkeys(map(str, lengths), 2.9)

    def judged(changed):
        record = compared({**values, **changed})
        record["setting"]["lengths"] = lengths
        return finding(claim, record)

    assert judged({}).verdict == HOLDS
    assert judged({}).numbers[-1].startswith(f"32,768: {claim.test['one'].upper()} 2.900 ± 0.000, ")
    for other in ("kerple_power", "fire", "alibi"):
        assert judged({other: values[other] | {"32768": 2.8}}).verdict == FAILS
    assert judge(claim, {"reproduce/perplexity-base": compared(values)}).verdict == MISSING


def test_quotes_keep_the_papers_digits():
    """3.10 from a table with two decimals; lengths are named once."""
    assert CLAIMS["ablations.shared_baselines"].quoted(PAPERS) == "FIRE-S 3.10; Kerple 3.158; at 8,192 tokens"
    shown = CLAIMS["ablations.sharing"].quoted(PAPERS)
    assert shown.startswith("FIRE 3.15, 3.08, 3.05, 3.05, 3.06<br>")
    assert shown.endswith("<br>at 512, 1,024, 2,048, 4,096, 8,192 tokens")


def line_of(page, claim):
    return next(line for line in page.splitlines() if line.startswith(f"| {claim.says} |"))


def test_page():
    """Opens with counts, without claims beyond the paper and parts of other claims."""
    record, less = from_paper(), from_paper()
    less["runs"] = [run for run in less["runs"] if run["encoding"] != "t5"]
    page = claims_markdown({"reproduce/perplexity-base": record, "reproduce/ablation-transform": less}, PAPERS)
    counted = [claim for claim in CLAIMS.values() if claim.section != BEYOND and not claim.part_of]
    assert page.startswith(f"**Of the paper's {len(counted)} claims, ")
    total = next(line for line in page.splitlines() if line.startswith("| **all** |"))
    assert sum(int(cell.strip("* ")) for cell in total.split("|")[2:-1]) == len(counted)
    line = line_of(page, LONG)
    assert "| **holds** |" in line
    assert "Kerple 3.156, 3.158" in line
    assert line.endswith("<br>(`reproduce/perplexity-base`, 3 seeds) |")
    part = line_of(page, CLAIMS["by_length.fire_kerple"])
    assert "| **holds**: part of another claim |" in part
    assert "perplexity 21.24 and 23.5" in part
    assert f"| {MISSING}: no record has it | Section 2.1:<br>no numbers | – |" in page
    assert "- `reproduce/perplexity-base`: " in page
    assert page.index(f"## {BEYOND}") > page.index("## Ablations")


def test_page_describes_records_of_every_kind():
    fire = {**downstream.row("FIRE", "fire", [downstream.one("rte", 60.0, 512)]), "finetuned_length": 512}
    nope = {**downstream.row("NoPE", "nope", [downstream.one("rte", 60.0, 512)]), "finetuned_length": 512}
    evaluated = downstream.record(["rte"], [fire, nope], lengths=(512,), provenance=PROVENANCE)
    evaluated["setting"] = {**evaluated["setting"], "kind": "evaluate", "length": None}
    records = {
        "downstream/glue": evaluated,
        "downstream/narrative-qa": {**downstream.record(["narrative_qa"], []), "provenance": PROVENANCE},
        "reproduce/theorem": {"provenance": PROVENANCE, "setting": {"dtype": "float64", "max_length": 8}, "rows": []},
    }
    page = claims_markdown(records, PAPERS)
    line = line_of(page, CLAIMS["glue.weak_baselines"])
    assert "512: ALiBi was not measured" in line
    assert f"| {OPEN}: not testable with one seed, other questions might reverse it, incomplete |" in line
    assert "- `downstream/glue`: FIRE, NoPE: " in page
    assert "- `downstream/narrative-qa`" not in page
