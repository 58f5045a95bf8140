"""The paper's claims: they hold on the paper's own numbers, and every verdict can come out."""

import pytest
from longfire.lab.entry import LengthEntry, TaskEntry

from longfire.lab.reported import TABLES, reported
from longfire.lab.tables import ENTRIES
from longfire.report.claims import BEYOND, GROUPS
from longfire.report.claims.claim import FAILS, HOLDS, MISSING, OPEN, Step, decided, found
from longfire.report.claims.lengths import lower
from longfire.report.claims.names import OURS
from longfire.report.claims.page import claims_markdown
from longfire.report.claims.quote import Quote, quoted
from tests.report import downstream_records as downstream
from tests.report.records import record_of

PAPERS = {name: reported(name) for name in TABLES}
CLAIMS = {claim.says: claim for group in (*GROUPS.values(), *BEYOND.values()) for claim in group}
MADE = {"date": "2025-11-15", "commit": "0123456", "hardware": {"cpu": "a CPU"}, "versions": {"torch": "2.13"}}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


def named(start):
    """The one claim that begins so."""
    (claim,) = [claim for says, claim in CLAIMS.items() if says.startswith(start)]
    return claim


def compared(values, seeds=3, also=None, **run):
    """A record of log perplexity, encodings down and lengths across, as if trained at 2048; seeds differ a little."""

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
    return {"provenance": MADE, "setting": setting, "runs": runs}


def from_the_paper(table, **options):
    values = {row["encoding"]: {n: v for n, v in row.items() if n.isdigit()} for row in PAPERS[table]}
    return compared(values, **options)


def turned(record):
    """What was lower is higher, and by ten times as much."""
    for run in record["runs"]:
        for row in run["perplexity"]["rows"]:
            row["log_perplexity"] = 40 - 10 * row["log_perplexity"]
    return record


def of_lengths():
    """Claims with a table of log perplexity in the paper."""
    tables = {entry.reported for entry in ENTRIES.values() if isinstance(entry, LengthEntry)} - {""}
    return [claim for claim in CLAIMS.values() if isinstance(claim.paper, Quote) and claim.paper.table in tables]


def verdict(claim, record):
    return claim.judged({claim.records[0]: record}).verdict


@pytest.mark.parametrize("claim", of_lengths(), ids=lambda claim: claim.says)
def test_the_papers_own_numbers(claim):
    """Bear its claims out, unless they were one seed's, in which case nothing can be told."""
    table = claim.paper.table
    assert verdict(claim, from_the_paper(table)) == HOLDS
    assert verdict(claim, from_the_paper(table, seeds=1)) == OPEN
    if not claim.says.startswith(("Beyond the training length ReLU", "One encoding for all layers")):
        assert verdict(claim, turned(from_the_paper(table))) == FAILS


def test_the_first_tokens_stand_for_lengths_that_were_not_tested():
    """ReLU and GELU differ there in the paper; trained at 2048 and tested from there on, 512 and 1024 are parts."""
    claim = named("ReLU is better than GELU")
    values = {"fire": {"2048": 3.0}, "fire:activation=gelu": {"2048": 3.01}}
    record = compared(values)
    record["setting"]["lengths"] = [2048, 4096]
    finding = claim.judged({claim.records[0]: record})
    assert (finding.verdict, finding.why) == (OPEN, "not all measured")
    assert "first 512 tokens: not tested here" in finding.numbers
    for run in record["runs"]:
        (row,) = run["perplexity"]["rows"]
        worse = 0.2 * (run["encoding"] != "fire") + run["seed"] / 1e3
        row["by_position"] = [
            {"from": 1, "to": 512, "loss": 3.5 + worse, "tokens": 511},
            {"from": 512, "to": 1024, "loss": 3.1 + worse, "tokens": 512},
            {"from": 1024, "to": 2048, "loss": 2.8, "tokens": 1024},
        ]
        run["perplexity"]["protocol"] = "paper"
    finding = claim.judged({claim.records[0]: record})
    assert finding.verdict == HOLDS
    assert finding.numbers[1].startswith("first 1,024 tokens: FIRE 3.301 ± 0.001, GELU 3.501 ± 0.001 (+0.200; ")
    for run in record["runs"]:
        run["perplexity"]["protocol"] = "paired"  # there the last tokens of windows are scored
    assert verdict(claim, record) == OPEN


def test_a_lead_that_grows_must_be_one():
    """Less far behind is no lead; and without one of the others nobody knows who is best."""
    claim = named("FIRE leads the best baseline")
    others = {name: {"2048": 3.0, "8192": 3.0} for name in ("nope", "rope", "alibi", "kerple_log", "t5")}
    behind = compared({"fire": {"2048": 3.3, "8192": 3.1}, **others})
    finding = claim.judged({claim.records[0]: behind})
    assert finding.verdict == FAILS
    assert "the best of the others: -0.300 at 2,048 (-0.300 to -0.300), -0.100 at 8,192" in finding.numbers[0]
    assert verdict(claim, compared({"fire": {"2048": 3.0, "8192": 2.9}, **others})) == HOLDS
    del others["t5"]
    finding = claim.judged({claim.records[0]: compared({"fire": {"2048": 3.0, "8192": 2.9}, **others})})
    assert (finding.verdict, finding.numbers) == (OPEN, ("T5 was not measured",))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"recipe": {"start": "kerple_log"}}, "FIRE begins as kerple_log"),
        ({"recipe": {"horizon": 1.0, "length": 2048}}, "FIRE has its horizon at 2,048 tokens"),
        ({"recipe": {"share": True}}, "FIRE is shared by all layers"),
        ({"recipe": {"encoding_options": {"log": False}}}, "FIRE has log=False"),
        ({"split": "dev"}, "tested on dev"),
    ],
)
def test_what_is_not_as_published_decides_nothing(change, why):
    claim, record = named("At two and four"), from_the_paper("perplexity")
    record["setting"] |= change
    finding = claim.judged({claim.records[0]: record})
    assert (finding.verdict, finding.why) == (OPEN, why)
    fit = from_the_paper("perplexity", seeds=4)
    assert claim.judged({claim.records[0]: record, claim.records[1]: fit}).record == claim.records[1]


def test_which_record_decides():
    """That with most seeds; another that says otherwise is named, unless it is of the same runs."""
    claim = named("At two and four")
    three, four = from_the_paper("perplexity"), from_the_paper("perplexity", seeds=4)
    assert claim.judged({claim.records[0]: three, claim.records[1]: four}).record == claim.records[1]
    assert claim.judged({claim.records[0]: three, claim.records[1]: three}).record == claim.records[0]
    other = turned(from_the_paper("perplexity"))
    finding = claim.judged({claim.records[0]: other, claim.records[1]: four})
    assert (finding.verdict, finding.notes) == (HOLDS, (f"by `{claim.records[0]}` it does not hold",))
    other["runs"].append(four["runs"][0])
    assert claim.judged({claim.records[0]: other, claim.records[1]: four}).notes == ()


def test_records_taken_together():
    """The fixed threshold's runs are in one, the baselines' in the other: of one recipe, corpus and length."""
    claim = named("With a fixed threshold")
    fixed = compared({"fire:threshold=fixed": {str(n): 3.0 for n in LENGTHS}})
    records = {"compare/threshold": fixed, "compare/encodings": from_the_paper("perplexity")}
    assert claim.judged(records).record == "compare/threshold + compare/encodings"
    assert claim.judged(records).verdict == HOLDS
    assert "compare/threshold`, `compare/encodings`, 3 seeds" in claims_markdown(records, PAPERS)
    fixed["setting"]["recipe"] = {"steps": 10}
    records["compare/encodings"]["setting"]["recipe"] = {"steps": 20}
    assert claim.judged(records).verdict == MISSING


def test_why_nothing_can_be_told():
    claim = named("At two and four")

    def why(record):
        return claim.judged({claim.records[0]: record}).why

    assert [why(from_the_paper("perplexity", seeds=n)) for n in (1, 2, 3)] == [
        "not testable with one seed",
        "not testable with two seeds",
        "",
    ]
    record = from_the_paper("perplexity")
    record["runs"] = [run for run in record["runs"] if run["encoding"] != "t5"]
    assert why(record) == "not all measured"
    record = from_the_paper("perplexity")
    next(run for run in record["runs"] if run["encoding"] == "fire")["perplexity"]["rows"][4]["log_perplexity"] = 3.3
    assert "the seeds disagree" in why(record)
    assert Step.of("", "", [0.001, 0.9, 0.001], 3).why == ("not significant",)


def test_a_comparison_is_corrected_as_in_its_table():
    """Of two encodings alone it is significant, among eight that it is one of it is not."""
    fire, alibi, spread = [1.0, 1.0, 1.0], [1.1, 1.12, 1.15], [1.05, 1.2, 1.1]
    others = {f"fire:width={i}": [value + 0.01 * i for value in spread[i % 3 :] + spread[: i % 3]] for i in range(6)}
    steps = [lower(record_of({"fire": fire, "alibi": alibi} | more), "fire", ("alibi",), (1,)) for more in ({}, others)]
    assert [of[0].verdict for of in steps] == [HOLDS, OPEN]


def test_how_many_comparisons_are_against():
    steps = [Step(str(i), "", HOLDS) for i in range(9)]
    assert found([*steps, Step("a", "", FAILS)]).why == "9 of 10 comparisons for, 1 against"
    assert found([*steps, Step("a", "", FAILS), Step("b", "", OPEN)]).why.endswith("for, 1 against, 1 open")
    assert found([Step("a", "", FAILS)]).why == ""


def test_parameters():
    claim = named("FIRE takes nearly the same")
    runs = [{"encoding": name, "seed": 0, "parameters": n} for name, n in (("fire", 10_050), ("t5", 10_000))]
    record = {"setting": {"seeds": [0], "lengths": [8]}, "runs": runs}
    assert verdict(claim, record) == HOLDS
    runs[0]["parameters"] = 10_200
    assert claim.judged({claim.records[0]: record}).numbers == ("T5: 10,200 with FIRE, 10,000 with T5 (+2.00 %)",)
    assert verdict(claim, record) == FAILS


def test_quotations_have_the_papers_digits():
    """3.10 of a table with two places, and lengths once."""
    claim = named("FIRE-S is still")
    assert claim.quoted(PAPERS) == "FIRE-S 3.10; Kerple 3.158; at 8,192 tokens"
    all_five = Quote("sharing", ("fire",))
    assert (
        quoted([all_five], PAPERS) == "FIRE 3.15, 3.08, 3.05, 3.05, 3.06<br>at 512, 1,024, 2,048, 4,096, 8,192 tokens"
    )


def test_claims_with_a_margin():
    """Being alike, or not much worse, fails where the difference is more than that."""
    apart = compared({"fire": {"4096": 3.0, "8192": 3.0}, "fire:activation=gelu": {"4096": 3.0, "8192": 2.9}})
    assert verdict(named("Beyond the training length ReLU"), apart) == FAILS
    worse = compared({"fire": {"2048": 3.0}, "fire-s": {"2048": 3.2}})
    assert verdict(named("One encoding for all layers"), worse) == FAILS


def test_claims_without_numbers_in_the_paper():
    def at(value):
        return {str(length): value for length in LENGTHS}

    low = {"fire": at(3.0), "fire-s": at(3.05), "rope": at(3.1), "yarn": at(3.2), "nope": at(3.3), "t5": at(3.3)}
    low |= {"alibi": at(3.3), "kerple_log": at(3.3), "fire:threshold=fixed": at(3.1)}
    swapped = {**low, "fire": at(3.4), "fire-s": at(3.4), "rope": at(3.3)}
    for start in ("YaRN, although", "YaRN gives up", "FIRE-S is still", "At eight and sixteen", "A learned threshold"):
        assert verdict(named(start), compared(low)) == HOLDS
        assert verdict(named(start), compared(swapped)) == FAILS
        assert verdict(named(start), compared(low, seeds=1)) == OPEN
    for value, expected in ((3.0, FAILS), (4.0, HOLDS)):
        assert verdict(named("Absolute"), compared({"sinusoidal": {**at(value), "2048": 3.0}})) == expected


def test_seeds_that_disagree_tell_nothing():
    record = from_the_paper("perplexity")
    fire = [run for run in record["runs"] if run["encoding"] == "fire"]
    fire[1]["perplexity"]["rows"][4]["log_perplexity"] = 3.3  # of five lengths the last
    finding = named("At two and four").judged({"compare/encodings": record})
    assert finding.verdict == OPEN
    assert finding.record == "compare/encodings"
    assert any(line.startswith("8,192: FIRE 3.") for line in finding.numbers)


def test_what_is_missing_is_not_borne_out():
    """A baseline, or a seed of one, that was not run; without FIRE there is nothing to judge."""
    claim = named("At two and four")
    record = from_the_paper("perplexity")
    record["runs"] = [run for run in record["runs"] if run["encoding"] != "t5"]
    assert verdict(claim, record) == OPEN
    record = from_the_paper("perplexity")
    del record["runs"][-1]
    assert verdict(claim, record) == OPEN
    record["runs"] = [run for run in record["runs"] if run["encoding"] != "fire"]
    assert verdict(claim, record) == MISSING


def test_on_other_texts():
    claim = named("On texts of other kinds")
    values = {row["encoding"]: {n: v for n, v in row.items() if n.isdigit()} for row in PAPERS["perplexity"]}
    assert verdict(claim, compared(values)) == MISSING
    assert verdict(claim, compared(values, also=values)) == HOLDS
    finding = claim.judged({claim.records[0]: compared(values, also={**values, "fire": values["alibi"]})})
    assert finding.verdict == FAILS
    assert all(line.startswith("tex, ") for line in finding.numbers)


@pytest.mark.parametrize(("start", "size"), [("Trained at 512", "base"), ("Large models", "large")])
def test_of_other_models_of_the_paper(start, size):
    """Small models are judged once, by the claims on base ones."""
    claim, record = named(start), from_the_paper("perplexity")
    record["setting"]["recipe"] = {"size": "small"}
    finding = claim.judged({claim.records[0]: record})
    assert (finding.verdict, finding.why) == (MISSING, claim.needs)
    assert claim.judged({"compare/encodings": record}) == finding
    record["setting"]["recipe"]["size"] = size
    assert verdict(claim, record) == HOLDS


@pytest.mark.parametrize(("learned", "expected"), [(1400.0, HOLDS), (2000.0, FAILS)])
def test_learned_thresholds(learned, expected):
    claim = named("The learned thresholds")
    layers = [{"layer": i, "c": 0.1, "L": learned, "look_back": [0.5, 1.0]} for i in range(2)]
    values = {"fire": {"2048": 3.0}}
    assert verdict(claim, compared(values, learned=layers)) == expected
    assert verdict(claim, compared(values, learned=layers, seeds=1)) == OPEN
    assert verdict(claim, compared(values)) == MISSING


@pytest.mark.parametrize(("heads", "expected"), [([0.5, 1.5], HOLDS), ([0.5, 1.0], FAILS), ([1.0, 1.5], FAILS)])
def test_patterns(heads, expected):
    claim = named("FIRE learns heads")
    values, layers = {"fire": {"2048": 3.0}}, [{"layer": 0, "c": 0.1, "L": None, "look_back": heads}]
    record = compared(values, learned=layers)
    assert verdict(claim, record) == expected
    record["runs"][1]["learned"] = [{**layers[0], "look_back": [0.5, 1.5] if expected == FAILS else [0.5]}]
    assert verdict(claim, record) == OPEN


@pytest.mark.parametrize(("error", "expected"), [(1e-14, HOLDS), (1e-3, FAILS)])
def test_the_theorem(error, expected):
    rows = [{"encoding": name, "max_length": 64, "error": e} for name, e in (("alibi", 0.0), ("t5", error))]
    assert verdict(named("FIRE can be each"), {"rows": rows}) == expected


@pytest.mark.parametrize(("t5", "expected"), [((3.0, 3.2), HOLDS), ((1.0, 1.2), FAILS), ((1.9, 2.5), OPEN)])
def test_times(t5, expected):
    def row(encoding, fastest, slowest):
        times = {"ms": (fastest + slowest) / 2, "fastest": fastest, "slowest": slowest}
        return {"kind": "forward", "n": 2048, "encoding": encoding, **times}

    claim, fire = named("FIRE is faster than T5"), row("fire", 1.8, 2.2)
    assert verdict(claim, {"rows": [fire, row("t5", *t5)]}) == expected
    assert verdict(claim, {"rows": [fire]}) == MISSING
    failed = {"kind": "forward", "n": 2048, "encoding": "t5", "failed": "out of memory"}
    assert verdict(claim, {"rows": [fire, failed]}) == MISSING


def test_the_rule():
    """As `longfire compare` decides: all seeds, three or more, and a mean that is not chance."""
    assert decided([0.1, 0.12, 0.11], 3) == HOLDS
    assert decided([-0.1, -0.12, -0.11], 3) == FAILS
    assert decided([0.1, 0.12], 3) == OPEN
    assert decided([0.1], 1) == OPEN
    assert decided([0.001, 0.9, 0.001], 3) == OPEN
    assert found([]) is None
    steps = [Step("a", "one", HOLDS), Step("a", "two", OPEN), Step("b", "three", HOLDS)]
    assert found(steps).numbers == ("a: two", "b: three")
    assert found(steps).verdict == OPEN
    assert found([*steps, Step("b", "four", FAILS)]).verdict == FAILS


def test_names_of_records_are_those_of_commands():
    """So that what a command wrote is found where it is checked in."""
    names = {name for claim in CLAIMS.values() for name in claim.records}
    reproduced = {name.removeprefix("reproduce/") for name in names if name.startswith("reproduce/")}
    assert reproduced <= set(ENTRIES)
    downstream = {name.removeprefix("downstream/") for name in names if name.startswith("downstream/")}
    assert downstream == {entry.name for entry in ENTRIES.values() if isinstance(entry, TaskEntry)}


def test_the_page():
    record = from_the_paper("perplexity")
    record["setting"]["recipe"] = {"start": "kerple_log", "length": 2048}
    ours = from_the_paper("perplexity", seeds=4)
    page = claims_markdown({"compare/encodings": record, "reproduce/perplexity-base": ours}, PAPERS)
    line = next(line for line in page.splitlines() if line.startswith("| At two and four"))
    assert "Kerple 3.156, 3.158" in line
    assert "FIRE 3.046, 3.056<br>at 4,096, 8,192 tokens" in line
    assert "(`reproduce/perplexity-base`, 4 seeds)" in line
    assert line.endswith("| **holds** |")
    assert "| Absolute (sinusoidal) positions lose " in page
    assert f"| Section 2.1:<br>none | – | {MISSING}: no record has it |" in page
    assert f"| {MISSING}: it needs models of 350M parameters |" in page
    assert "- `reproduce/perplexity-base`: " in page
    assert len({len(line.split(" | ")) for line in page.splitlines() if line.startswith("| ")}) == 2


@pytest.mark.parametrize("start", ["Begun as Kerple-log", "In models of the paper's base shape"])
def test_fire_as_we_train_it(start):
    """Is judged against all that it is said to be ahead of, up to sixteen times, and by its own record."""
    claim, others = named(start), ("nope", "rope", "alibi", "kerple_log", "t5", "kerple_power", "fire")
    lengths = [2048 * 2**k for k in range(5)]
    values = {OURS: dict.fromkeys(map(str, lengths), 2.9), **{o: dict.fromkeys(map(str, lengths), 3.0) for o in others}}

    def judged(changed):
        record = compared({**values, **changed})
        record["setting"]["lengths"] = lengths
        return claim.judged({claim.records[0]: record})

    assert judged({}).verdict == HOLDS
    assert judged({}).numbers[-1].startswith("32,768: FIRE as we train it 2.900 ± 0.000, ")
    for other in ("kerple_power", "fire", "alibi"):
        assert judged({other: values[other] | {"32768": 2.8}}).verdict == FAILS
    assert claim.judged({"reproduce/perplexity-base": compared(values)}).verdict == MISSING


def test_what_is_counted():
    """Neither what is beyond the paper nor what is part of another claim; runs once."""
    record, less = from_the_paper("perplexity"), from_the_paper("perplexity")
    less["runs"] = [run for run in less["runs"] if run["encoding"] != "t5"]
    page = claims_markdown({"reproduce/perplexity-base": record, "reproduce/ablation-transform": less}, PAPERS)
    counts = [line.split(" | ")[1].rstrip(" |") for line in page.splitlines()[2:6]]
    claims = [claim for group in GROUPS.values() for claim in group]
    assert sum(map(int, counts)) == sum(not claim.part_of for claim in claims) == len(claims) - 1
    assert "what is part of another claim (1)." in page
    assert page.index("## Beyond the paper") > page.index("## Ablations")
    line = next(
        line for line in page.splitlines() if line.startswith("| At four times the training length FIRE is bel")
    )
    assert "perplexity 21.24 and 23.5" in line
    assert line.endswith("<br>(`reproduce/perplexity-base`, 3 seeds) | **holds**: part of another claim |")


def test_the_page_takes_records_of_every_kind():
    """And says of each what was done."""
    fire = {**downstream.row("FIRE", "fire", [downstream.one("rte", 60.0, 512)]), "finetuned_length": 512}
    nope = {**downstream.row("NoPE", "nope", [downstream.one("rte", 60.0, 512)]), "finetuned_length": 512}
    evaluated = downstream.record(["rte"], [fire, nope], lengths=(512,), provenance=MADE)
    evaluated["setting"] = {**evaluated["setting"], "kind": "evaluate", "length": None}
    records = {
        "downstream/glue": evaluated,
        "downstream/narrative-qa": {**downstream.record(["narrative_qa"], []), "provenance": MADE},
        "reproduce/theorem": {"provenance": MADE, "setting": {"dtype": "float64", "max_length": 8}, "rows": []},
    }
    page = claims_markdown(records, PAPERS)
    line = next(line for line in page.splitlines() if line.startswith("| On GLUE and SuperGLUE NoPE"))
    assert "512: ALiBi was not measured" in line
    assert line.endswith(f"| {OPEN}: not testable with one seed, other questions might turn it, not all measured |")
    assert "- `downstream/glue`: FIRE, NoPE: models of 23.1M parameters" in page
    assert "- `downstream/narrative-qa`" not in page
