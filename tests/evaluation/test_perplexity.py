"""Perplexity by length: plain loops say the same, of any model, and the memory it takes does not grow with V · n."""

import json
import math
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from longfire.cli import main, parser
from longfire.data import TokenSplit, load_corpus
from longfire.data.splits import content_hash
from longfire.evaluation import perplexity as module
from longfire.evaluation import scoring
from longfire.evaluation.bootstrap import mean_interval, t_quantile
from longfire.evaluation.perplexity import default_lengths, perplexity_by_length
from longfire.evaluation.scoring import HEAD, REPLAY, WHOLE, Scorer, position_limit
from longfire.evaluation.sequences import find_sequences
from longfire.model import loss
from longfire.model.loss import IGNORED, logit_losses, token_losses
from longfire.report.perplexity import perplexity_table
from tests.model.checkpoints import byte_tokenizer, save_checkpoint
from tests.model.models import SHAPE, small_model, tokens

V = SHAPE["vocab_size"]
DOCUMENTS = (70, 5, 33, 64, 16, 100)


def split_of(*lengths, seed=3, bytes=0, vocabulary=V):
    """A split with documents so long."""
    starts = np.cumsum([0, *lengths])
    ids = np.random.default_rng(seed).integers(1, vocabulary, starts[-1]).astype(np.uint16)
    return TokenSplit("validation", ids, starts, bytes, 0)


def evaluate(model, split=None, lengths=(16, 32), **options):
    split = split_of(*DOCUMENTS) if split is None else split
    return perplexity_by_length(model, split, lengths, progress=False, **options)


def plain(model, windows, first=1):
    """Losses (M, n − first), one sequence after the other, of all logits at once."""
    rows = []
    with torch.no_grad():
        for window in windows:
            ids = torch.from_numpy(window.astype(np.int64))
            logits = model(ids[None]).logits[0, first - 1 : -1]
            rows.append(F.cross_entropy(logits.float(), ids[first:], reduction="none"))
    return torch.stack(rows)


def llama(**changes):
    config = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**{**config, **heads, **changes})).eval()


def gpt2(positions=32):
    config = GPT2Config(vocab_size=V, n_positions=positions, n_embd=32, n_layer=2, n_head=4)
    return GPT2LMHeadModel(config).eval()


def gemma(**changes):
    config = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Gemma2ForCausalLM(Gemma2Config(**config, **heads, **changes)).eval()


def cohere():
    config = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return CohereForCausalLM(CohereConfig(**config, num_attention_heads=4, logit_scale=0.25)).eval()


def opt():
    config = {"vocab_size": V, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return OPTForCausalLM(OPTConfig(**config, max_position_embeddings=64, word_embed_proj_dim=16)).eval()


def hooked():
    """A head whose outputs a hook changes, as an adapter's or a steering vector's does."""
    model = llama()
    model.lm_head.register_forward_hook(lambda module, inputs, output: 5 * output.flip(-1))
    return model


MODELS = {
    "fire": (small_model, HEAD),
    "rope": (lambda: small_model("rope"), HEAD),
    "llama": (llama, HEAD),
    "gpt2": (gpt2, HEAD),
    "opt": (opt, HEAD),
    "gemma2": (gemma, REPLAY),
    "cohere": (cohere, REPLAY),
    "hooked": (hooked, REPLAY),
}


@pytest.mark.parametrize("name", MODELS)
def test_as_a_plain_loop(name):
    make, way = MODELS[name]
    model, split = make(), split_of(*DOCUMENTS)
    record = evaluate(model, split)
    assert record["logits"] == way
    for row in record["rows"]:
        windows = split.cut(row["length"])
        assert row["sequences"] == len(windows)
        assert row["tokens"] == len(windows) * (row["length"] - 1)
        assert row["log_perplexity"] == pytest.approx(plain(model, windows).double().mean().item(), rel=2e-6)


def test_token_losses_are_cross_entropy_to_the_last_bit():
    hidden, weight, bias = torch.randn(37, 16), torch.randn(V, 16), torch.randn(V)
    labels = torch.randint(0, V, (37,))
    labels[3] = IGNORED
    expected = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="none")
    assert torch.equal(token_losses(hidden, weight, labels, bias), expected)
    assert token_losses(hidden.double(), weight.double(), labels).dtype == torch.float64
    assert token_losses(hidden.bfloat16(), weight.bfloat16(), labels).dtype == torch.float32
    assert token_losses(hidden[:0], weight, labels[:0]).shape == (0,)


def test_token_losses_in_blocks(monkeypatch):
    hidden, weight, labels = torch.randn(37, 16), torch.randn(V, 16), torch.randint(0, V, (37,))
    whole = token_losses(hidden, weight, labels)
    monkeypatch.setattr(loss, "BLOCK", 5 * V)
    torch.testing.assert_close(token_losses(hidden, weight, labels), whole)


def test_token_losses_by_the_kernel():
    """On a CPU, by Triton's interpreter."""
    pytest.importorskip("triton")
    from longfire.model.kernels.cross_entropy import losses_and_gradient

    if torch.cuda.is_available():
        pytest.skip("there is no interpreter beside a GPU; tests with a GPU run the kernel itself")
    logits, labels = torch.randn(7, V), torch.randint(0, V, (7,))
    labels[2] = IGNORED
    torch.testing.assert_close(losses_and_gradient(logits.clone(), labels, False), logit_losses(logits, labels))


@pytest.mark.parametrize("protocol", module.PROTOCOLS)
def test_a_model_that_knows_nothing(protocol):
    """All tokens alike: log V at every length and position, and an interval of no width."""
    model = small_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    for row in evaluate(model, lengths=(8, 16, 32), protocol=protocol)["rows"]:
        assert row["log_perplexity"] == pytest.approx(math.log(V), rel=1e-6)
        assert row["interval"] == pytest.approx([math.log(V)] * 2, rel=1e-6)
        assert all(part["loss"] == pytest.approx(math.log(V), rel=1e-6) for part in row["by_position"])


@pytest.mark.parametrize(("protocol", "scored"), [("paper", None), ("paired", None), ("paired", 15), ("paired", 1)])
def test_by_position_averages_back(protocol, scored):
    for row in evaluate(small_model(), lengths=(16, 33, 64), protocol=protocol, scored=scored)["rows"]:
        parts, first = row["by_position"], 1 if protocol == "paper" else row["length"] - (scored or 8)
        assert [parts[0]["from"], parts[-1]["to"]] == [first, row["length"]]
        assert all(before["to"] == after["from"] for before, after in pairwise(parts))
        assert all(part["from"] & (part["from"] - 1) == 0 for part in parts[1:])
        assert sum(part["tokens"] for part in parts) == row["tokens"]
        total = sum(part["loss"] * part["tokens"] for part in parts)
        assert total / row["tokens"] == pytest.approx(row["log_perplexity"], rel=1e-12)


def test_loss_by_position():
    model, split = small_model(), split_of(*DOCUMENTS)
    (row,) = evaluate(model, split, lengths=(32,))["rows"]
    losses = plain(model, split.cut(32))
    assert [(part["from"], part["to"]) for part in row["by_position"]] == [(1, 2), (2, 4), (4, 8), (8, 16), (16, 32)]
    for part in row["by_position"]:
        assert part["loss"] == pytest.approx(losses[:, part["from"] - 1 : part["to"] - 1].mean().item(), rel=1e-5)


def test_paired_scores_the_very_same_tokens(monkeypatch):
    model, split, seen = small_model(), split_of(*DOCUMENTS), {}
    score = Scorer.__call__

    def recorded(self, ids, first=1):
        seen.setdefault(ids.shape[1], []).append(ids[:, first:])
        return score(self, ids, first)

    monkeypatch.setattr(Scorer, "__call__", recorded)
    record = evaluate(model, split, lengths=(16, 24, 64), protocol="paired", scored=10, batch_tokens=64)
    scored = {n: torch.cat(batches) for n, batches in seen.items()}
    windows = split.paired((16, 24, 64), 10)
    assert set(scored) == {16, 24, 64}
    assert all(np.array_equal(ids, windows[:, -10:]) for ids in scored.values())
    assert len({row["digest"] for row in record["rows"]}) == 1
    first, *others = record["rows"]
    assert "difference" not in first
    for row in record["rows"]:
        losses = plain(model, windows[:, -row["length"] :], first=row["length"] - 10)
        assert row["log_perplexity"] == pytest.approx(losses.mean().item(), rel=1e-5)
        assert (row["sequences"], row["documents"], row["tokens"]) == (3, 3, 30)
    for row in others:
        change = row["difference"]
        assert change["from_length"] == 16
        assert change["loss"] == pytest.approx(row["log_perplexity"] - first["log_perplexity"], abs=1e-12)
        assert change["interval"][0] <= change["loss"] <= change["interval"][1]


def test_paper_scores_other_tokens_at_other_lengths():
    rows = evaluate(small_model(), lengths=(16, 32))["rows"]
    assert rows[0]["digest"] != rows[1]["digest"]


def test_pieces_are_the_papers():
    """Those of `cut`, and none twice."""
    split = split_of(*DOCUMENTS)
    sequences = find_sequences(split, 16)
    assert np.array_equal(sequences.ids(0, len(sequences)), split.cut(16))
    assert len(np.unique(sequences.positions)) == len(sequences) == sum(n // 16 for n in DOCUMENTS)


def test_a_cap_on_tokens():
    split = split_of(*[50] * 40)
    record = evaluate(small_model(), split, lengths=(10, 25), tokens=205)
    assert [row["sequences"] for row in record["rows"]] == [20, 8]
    again, other = (find_sequences(split, 10, 205, seed) for seed in (0, 1))
    assert again.digest() == record["rows"][0]["digest"] != other.digest()
    assert len(np.unique(again.positions)) == 20  # none twice
    assert (np.diff(again.positions) > 0).all()
    assert [row["sequences"] for row in evaluate(small_model(), split, lengths=(25,), tokens=1)["rows"]] == [1]
    paired = evaluate(small_model(), split, lengths=(10, 25), tokens=205, protocol="paired")
    assert [row["sequences"] for row in paired["rows"]] == [8, 8]


def test_the_same_seed_gives_the_same_record():
    model, split = small_model(), split_of(*[50] * 20)
    records = [evaluate(model, split, tokens=200, seed=seed) for seed in (4, 4, 5)]
    for record in records:
        for row in record["rows"]:
            del row["seconds"]
    assert records[0] == records[1] != records[2]


@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_batches_do_not_matter(batch_tokens):
    model = small_model()
    record, expected = evaluate(model, batch_tokens=batch_tokens), evaluate(model)
    for row, other in zip(record["rows"], expected["rows"], strict=True):
        assert row["log_perplexity"] == pytest.approx(other["log_perplexity"], rel=1e-5)
        assert row["batch"] == max(1, batch_tokens // row["length"])


def test_bits_per_byte():
    model = small_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    for row in evaluate(model, split_of(*DOCUMENTS, bytes=2 * sum(DOCUMENTS)))["rows"]:
        assert row["bits_per_byte"] == pytest.approx(math.log2(V) / 2, rel=1e-6)
    assert all("bits_per_byte" not in row for row in evaluate(model)["rows"])


def test_bfloat16():
    model, split = small_model(), split_of(*DOCUMENTS)
    exact = evaluate(model, split)["rows"]
    for row, other in zip(evaluate(model.bfloat16(), split)["rows"], exact, strict=True):
        assert row["log_perplexity"] == pytest.approx(other["log_perplexity"], rel=0.05)
        windows = split.cut(row["length"])
        assert row["log_perplexity"] == pytest.approx(plain(model, windows).mean().item(), rel=1e-2)


def test_a_model_in_training_goes_on_training():
    model = small_model(attention_dropout=0.5, resid_dropout=0.5)
    expected = evaluate(model)["rows"][0]["log_perplexity"]
    model.train()
    assert evaluate(model)["rows"][0]["log_perplexity"] == expected
    assert model.training
    model(tokens(1, 8), labels=tokens(1, 8)).loss.backward()


class Sizes(TorchDispatchMode):
    """The largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


@pytest.mark.parametrize("make", [small_model, gemma], ids=["head", "replay"])
def test_all_logits_are_never_there(make, monkeypatch):
    many, n = 50021, 256
    monkeypatch.setattr(loss, "BLOCK", 4 * many)
    model = small_model(vocab_size=many) if make is small_model else gemma()
    if make is gemma:
        model.resize_token_embeddings(many)
    split = split_of(2 * n)
    with Sizes() as sizes:
        (row,) = evaluate(model, split, lengths=(n,))["rows"]
    assert sizes.largest < n * many / 4
    assert row["log_perplexity"] == pytest.approx(plain(model, split.cut(n)).mean().item(), rel=1e-5)
    with Sizes() as sizes:
        plain(model, split.cut(n))
    assert sizes.largest >= n * many / 4  # it would be seen


def test_a_soft_cap_counts():
    """Also where the few tokens that are tried have logits far below it."""
    model = gemma(final_logit_softcapping=3.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e-3)
    assert Scorer(model).way == REPLAY
    assert Scorer(gemma(final_logit_softcapping=None)).way == HEAD


class NoDecoder(LlamaForCausalLM):
    def get_decoder(self):
        return self


class Closed(LlamaForCausalLM):
    """Its decoder must be its own."""

    def forward(self, input_ids=None, **options):
        if "forward" in vars(self.model):
            raise TypeError("a decoder of mine, please")
        return super().forward(input_ids, **options)


class Scaled(LlamaForCausalLM):
    """It gives its decoder other embeddings than that takes by itself."""

    def forward(self, input_ids=None, **options):
        embedded = self.model.embed_tokens(input_ids).clamp(min=0)
        return super().forward(inputs_embeds=embedded, **options)


@pytest.mark.parametrize("cls", [NoDecoder, Closed, Scaled])
def test_whole_logits_where_nothing_else_leads_to_them(cls, monkeypatch):
    model, split = cls(llama(initializer_range=0.5).config).eval(), split_of(*DOCUMENTS)
    record = evaluate(model, split)
    assert record["logits"] == WHOLE
    expected = plain(model, split.cut(16)).mean().item()
    assert record["rows"][0]["log_perplexity"] == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(loss, "BLOCK", 1)  # a sequence at a time
    assert evaluate(model, split)["rows"][0]["log_perplexity"] == pytest.approx(expected, rel=1e-5)


def test_replaying_leaves_the_decoder_as_it_was():
    model = llama()
    run, ids = model.model.forward, tokens(1, 4)

    def stopped():
        with scoring.answering(model.model, "an answer"):
            assert model.model(ids) == "an answer"
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert "forward" not in vars(model.model)
    model.model.forward = wrapped = lambda *args, **options: run(*args, **options)  # as accelerate does
    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert model.model.forward is wrapped


@pytest.mark.parametrize(
    ("make", "limit", "where"),
    [(gpt2, 32, "transformer.wpe"), (opt, 64, "embed_positions"), (lambda: small_model("learned"), None, "Learned")],
    ids=["gpt2", "opt", "ours"],
)
def test_learned_positions_end(make, limit, where):
    model = make()
    limit = limit or position_limit(model)[0]
    split = split_of(300, 300, 40)
    stands, fails = evaluate(model, split, lengths=(limit, limit + 1))["rows"]
    assert stands["log_perplexity"] > 0
    assert f"{limit} learned positions" in fails["failed"]
    assert where in fails["failed"]
    assert "log_perplexity" not in fails
    with torch.no_grad():
        model(torch.ones(1, limit, dtype=torch.long))
        with pytest.raises((IndexError, ValueError)):
            model(torch.ones(1, limit + 1, dtype=torch.long))


def test_relative_and_rotary_positions_do_not_end():
    assert position_limit(llama()) is None
    assert position_limit(small_model("fire")) is None
    assert position_limit(small_model("t5")) is None


def test_a_length_that_no_document_has():
    rows = evaluate(small_model(), lengths=(64, 101))["rows"]
    assert rows[0]["sequences"] == 3
    assert "no document of the validation split (6 documents) has 101 tokens; the longest has 100" in rows[1]["failed"]
    for row in evaluate(small_model(), lengths=(16, 101), protocol="paired")["rows"]:
        assert "has 101 tokens" in row["failed"]


def test_memory_that_does_not_suffice(monkeypatch):
    """The batch is embedded; where one sequence is too much, that length alone has failed."""
    score = Scorer.__call__

    def limited(self, ids, first=1):
        if ids.numel() > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GB.\nMore of it.")
        return score(self, ids, first)

    expected = evaluate(small_model())["rows"][0]["log_perplexity"]
    monkeypatch.setattr(Scorer, "__call__", limited)
    fits, fails = evaluate(small_model(), lengths=(16, 64))["rows"]
    assert fits["batch"] == 2
    assert fits["log_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert fails["failed"].startswith("out of memory with one sequence at a time: CUDA out of memory. Tried")
    assert "\n" not in fails["failed"]


def test_losses_that_are_no_numbers():
    model = small_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    row = evaluate(model)["rows"][0]
    assert "not a finite number in 17 of 17 sequences" in row["failed"]
    assert "log_perplexity" not in row


def test_other_errors_of_a_model_are_said(monkeypatch):
    def broken(self, ids, first=1):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Scorer, "__call__", broken)
    assert evaluate(small_model())["rows"][0]["failed"] == "RuntimeError: shapes do not fit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": ()}, "there are no lengths"),
        ({"lengths": (1,)}, "a length must be at least 2, not 1"),
        ({"protocol": "papr"}, "Did you mean 'paper'"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"scored": 4}, "scored=4 is for the protocol 'paired'"),
        ({"scored": 16, "protocol": "paired"}, "Score at most 15"),
        ({"split": split_of(90, vocabulary=5000)}, "the model knows 61 tokens"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(small_model(), **options)


def test_lengths_come_in_order_and_once():
    assert [row["length"] for row in evaluate(small_model(), lengths=[32, 16, 32])["rows"]] == [16, 32]


def test_default_lengths():
    assert default_lengths(None) == default_lengths(2048) == (512, 1024, 2048, 4096, 8192)
    assert default_lengths(64) == (64, 128, 256, 512, 1024)


def test_progress_is_a_bar_on_a_terminal_and_a_line_elsewhere(capsys, monkeypatch):
    rows = perplexity_by_length(small_model(), split_of(*DOCUMENTS), (16, 101))["rows"]
    done, failed = capsys.readouterr().err.splitlines()
    assert done.startswith(f"16 tokens: log perplexity {rows[0]['log_perplexity']:.4f}, ")
    assert failed.startswith("101 tokens: no document")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    perplexity_by_length(small_model(), split_of(*DOCUMENTS), (16,))
    assert "\r16 tokens:   0%|" in (shown := capsys.readouterr().err)
    assert "log perplexity" not in shown


@pytest.mark.parametrize("documents", [5, 40])
def test_intervals_cover_the_truth(documents):
    """Losses that share their document's level: 95 % of intervals over documents hold the true mean, or nearly."""
    random = np.random.default_rng(0)
    held, widths, runs, each = 0, [], 400, 8
    for run in range(runs):
        levels = 3 + 0.5 * random.standard_normal(documents)
        sums = (levels[:, None] + 0.1 * random.standard_normal((documents, each))).sum(1)
        low, high = mean_interval(sums, np.full(documents, float(each)), seed=run)
        held += low <= 3 <= high
        widths.append(high - low)
    assert 0.90 <= held / runs <= 0.985
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 0.5 / documents**0.5, rel=0.6 if documents == 5 else 0.1)


def test_intervals_weigh_units_by_their_tokens():
    sums, counts = np.array([3.0 * 1000, 9.0 * 1]), np.array([1000.0, 1.0])
    low, high = mean_interval(np.tile(sums, 50), np.tile(counts, 50))
    assert low <= sums.sum() / counts.sum() <= high < 3.1


def test_too_few_for_an_interval():
    assert mean_interval(np.ones(1), np.ones(1)) is None
    alone = evaluate(small_model(), split_of(40), lengths=(16, 40))["rows"]
    assert alone[0]["interval_over"] == "sequences"
    assert "interval" not in alone[1]
    assert evaluate(small_model(), split_of(40, 40), lengths=(16,))["rows"][0]["interval_over"] == "documents"


@pytest.mark.parametrize(("freedom", "t"), [(3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)])
def test_students_t(freedom, t):
    assert t_quantile(1.959964, freedom) == pytest.approx(t, rel=5e-3)


TEXT = "The king said that the road was long, and the road was long, and nobody knew where it went after the hill. "


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder of texts, some long, and a cache of its own."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"{i}. " + TEXT * (1 + i % 7))
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", max_position_embeddings=16)
    return tmp_path / "checkpoint"


def command(checkpoint, texts, *more):
    return main(["evaluate", "perplexity", str(checkpoint), "--corpus", str(texts), "--device", "cpu", *more])


def test_on_a_corpus(texts, checkpoint):
    model, _ = save_checkpoint(checkpoint)
    corpus = load_corpus(texts, tokenizer=checkpoint, progress=False)
    for row in evaluate(model, corpus.train, lengths=(32, 64))["rows"]:
        expected = plain(model, corpus.train.cut(row["length"])).mean().item()
        assert row["log_perplexity"] == pytest.approx(expected, rel=1e-5)
        per_byte = corpus.train.num_tokens / corpus.train.bytes
        assert row["bits_per_byte"] == pytest.approx(expected / math.log(2) * per_byte, rel=1e-5)


@pytest.mark.parametrize("protocol", module.PROTOCOLS)
def test_the_command(protocol, texts, checkpoint, tmp_path, capsys):
    out = tmp_path / "deep" / "found.json"
    options = ["--split", "all", "--lengths", "32", "64", "--protocol", protocol, "--out", str(out)]
    assert command(checkpoint, texts, *options) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["protocol"] == protocol
    assert [row["length"] for row in record["rows"]] == [32, 64]
    assert record["rows"][0]["documents"] == 40
    setting = record["setting"]
    assert (setting["encoding"], setting["dtype"], setting["split"]) == ("fire", "float32", "all")
    assert setting["corpus"]["fingerprint"]
    assert record["provenance"]["versions"]["torch"]
    shown = capsys.readouterr().out
    assert f"{record['rows'][1]['log_perplexity']:.4f}" in shown
    assert f"written to {out}" in shown
    assert ("longer − shortest" in shown) == (protocol == "paired")


def test_text_that_was_trained_on_is_called_so(texts, checkpoint, tmp_path, capsys):
    """By the split where it is the corpus of training; elsewhere by content, as far as that is known."""
    corpus = load_corpus(texts, tokenizer=checkpoint, progress=False)
    corpus.save_description(checkpoint)
    held_out, part = corpus.validation.num_documents + corpus.dev.num_documents, tmp_path / "part"
    part.mkdir()
    for name in ("00.txt", "01.txt", "02.txt", "03.txt"):
        (part / name).write_text((texts / name).read_text() + "\n")
    (part / "new.txt").write_text(TEXT)
    seen = np.isin([content_hash(file.read_bytes()) for file in part.iterdir()], corpus.train.contents).sum()
    assert seen > 0
    number = 0

    def found(source, split):
        nonlocal number
        number += 1
        out = tmp_path / f"{number}.json"
        assert command(checkpoint, source, "--split", split, "--lengths", "32", "--out", str(out)) == 0
        return json.loads(out.read_text()), " ".join(capsys.readouterr().out.split())

    for source, split, documents, of in (
        (texts, "all", 40 - held_out, 40),
        (texts, "train", 40 - held_out, 40 - held_out),
        (part, "all", seen, 5),
    ):
        record, shown = found(source, split)
        trained_on = record["trained_on"]
        assert (trained_on["documents"], trained_on["of_documents"]) == (documents, of)
        share = trained_on["tokens"] / trained_on["of_tokens"]
        said = f"the model was trained on {documents} of the {of} documents of this text ({share:.1%} of the tokens)."
        assert said in record["note"]
        assert said in shown
    record, shown = found(texts, "validation")
    assert record["trained_on"]["documents"] == 0
    assert "note" not in record
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "one.txt").write_text("".join(file.read_text() for file in sorted(texts.iterdir())))
    record, shown = found(tmp_path / "all", "all")  # all of it was trained on, as other documents
    assert record["trained_on"]["documents"] == 0
    assert "the same text divided otherwise, is not recognised" in shown
    (checkpoint / "corpus.npy").unlink()
    record, shown = found(part, "all")
    assert record["trained_on"] is None
    assert "whether the model has seen it is not known" in shown
    assert found(texts, "all")[0]["trained_on"]["documents"] == 40 - held_out


def test_the_command_with_a_model_of_the_users_own(texts, tmp_path):
    folder, out = tmp_path / "llama", tmp_path / "found.json"
    tokenizer = byte_tokenizer()
    llama(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert command(folder, texts, "--split", "train", "--lengths", "32", "--out", str(out)) == 0
    record = json.loads(out.read_text())
    assert (record["logits"], record["setting"]["encoding"]) == (HEAD, "llama's own")
    assert record["rows"][0]["log_perplexity"] > 0


def test_the_command_says_what_failed(texts, checkpoint, tmp_path, capsys):
    save_checkpoint(checkpoint, max_position_embeddings=64)
    out = tmp_path / "found.json"
    assert command(checkpoint, texts, "--split", "train", "--tokens", "64", "--out", str(out)) == 1
    assert "– length 1,024: no document of the train split (" in capsys.readouterr().out
    assert "log_perplexity" in json.loads(out.read_text())["rows"][0]


def test_the_command_refuses_a_length_that_no_document_has(texts, checkpoint, tmp_path, capsys):
    """Also one that nobody has memory for."""
    out = tmp_path / "found.json"
    assert command(checkpoint, texts, "--split", "all", "--lengths", "32", "99999999999", "--out", str(out)) == 2
    longest = len(f"6. {TEXT * 7}") + 2  # a digit more, and the token that ends it
    said = f"no document of the whole split (40 documents) has 99999999999 tokens; the longest has {longest}."
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_records_do_not_take_each_others_place(texts, checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, options = texts.relative_to(tmp_path), ["--split", "all", "--lengths", "32", "--tokens", "64"]
    for protocol in module.PROTOCOLS:
        assert command(checkpoint, texts, *options, "--protocol", protocol) == 0
        file = tmp_path / "evaluate" / f"perplexity-checkpoint-{protocol}.json"
        assert json.loads(file.read_text())["protocol"] == protocol
    before = file.read_bytes()
    assert command(checkpoint, texts, *options, "--protocol", "paired", "--batch-tokens", "32") == 0  # the same again
    assert file.read_bytes() != before
    before = file.read_bytes()
    again = [*options, "--protocol", "paired", "--seed", "1"]
    assert command(checkpoint, texts, *again, "--out", str(file)) == 2
    said = "holds another record (seed: 0 there, 1 here). Give another file by --out, or delete that one."
    assert said in capsys.readouterr().err
    second = file.with_stem(f"{file.stem}-2")
    for _ in range(2):  # the same again has the same place
        assert command(checkpoint, texts, *again) == 0
        assert json.loads(second.read_text())["seed"] == 1
    assert file.read_bytes() == before
    file.write_text("notes")
    assert command(checkpoint, texts, *options, "--protocol", "paired") == 0
    assert file.read_text() == "notes"
    assert file.with_stem(f"{file.stem}-3").exists()


def test_the_command_in_other_precision_and_lengths_of_its_own(texts, checkpoint, tmp_path):
    out = tmp_path / "found.json"
    options = ["--split", "train", "--dtype", "bfloat16", "--tokens", "512", "--out", str(out)]
    assert command(checkpoint, texts, *options) == 0
    record = json.loads(out.read_text())
    assert record["setting"]["dtype"] == "bfloat16"
    assert [row["length"] for row in record["rows"]] == [16, 32, 64, 128, 256]


def test_the_command_interrupted(texts, checkpoint, tmp_path, capsys, monkeypatch):
    score = Scorer.__call__

    def stopped(self, ids, first=1):
        if ids.shape[1] == 64:
            raise KeyboardInterrupt
        return score(self, ids, first)

    monkeypatch.setattr(Scorer, "__call__", stopped)
    out = tmp_path / "found.json"
    assert command(checkpoint, texts, "--split", "train", "--lengths", "32", "64", "--out", str(out)) == 130
    record = json.loads(out.read_text())
    assert record["interrupted"] is True
    assert [row["length"] for row in record["rows"]] == [32]
    assert "; interrupted" in capsys.readouterr().out


def test_the_command_dry(texts, checkpoint, tmp_path, capsys):
    out = tmp_path / "found.json"
    assert command(checkpoint, texts, "--dry-run", "--tokens", "5000", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    assert "at most 5,000 tokens" in shown
    assert "lengths 16, 32, 64, 128, 256" in shown
    assert not out.exists()
    assert not (tmp_path / "cache").exists()


def test_the_harness_takes_all_that_follows():
    given = ["run", "--model", "hf", "perplexity", "--tasks", "x"]
    assert parser().parse_args(["evaluate", "--harness", *given]).harness == given
    assert main(["evaluate"]) == 2


def test_the_command_without_a_checkpoint(texts, tmp_path, capsys):
    assert command(tmp_path / "nothing", texts) == 2
    assert f"there is no folder {tmp_path / 'nothing'}" in capsys.readouterr().err
    assert command(tmp_path, texts) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_a_table_without_a_setting():
    shown = perplexity_table(evaluate(small_model(), lengths=(16, 101)))
    assert shown.startswith("protocol paper\n")
    assert "– length 101: no document" in shown


@pytest.mark.gpu
@pytest.mark.parametrize("make", [small_model, llama, gemma], ids=["fire", "llama", "gemma2"])
def test_on_a_gpu(make):
    """As on the CPU; learned positions that end leave the device usable."""
    model, split = make(), split_of(*DOCUMENTS)
    expected = evaluate(model, split)["rows"]
    for row, other in zip(evaluate(model.cuda(), split)["rows"], expected, strict=True):
        assert row["log_perplexity"] == pytest.approx(other["log_perplexity"], rel=1e-2)
    assert "failed" in evaluate(gpt2().cuda(), split, lengths=(16, 64))["rows"][1]
    assert torch.ones(1, device="cuda").item() == 1


@pytest.mark.gpu
def test_long_sequences_on_a_gpu():
    """32,768 tokens of a large vocabulary: their logits alone would be 6.6 GB."""
    model = small_model(vocab_size=50304).bfloat16().cuda()
    torch.cuda.reset_peak_memory_stats()
    (row,) = evaluate(model, split_of(32768), lengths=(32768,))["rows"]
    assert row["tokens"] == 32767
    assert torch.cuda.max_memory_allocated() < 3e9


@pytest.mark.parametrize("units", [2, 3, 5, 8, 12])
def test_intervals_of_few_units_cover_the_truth(units):
    random = np.random.default_rng(units)
    covered = 0
    for trial in range(400):
        values = random.normal(3.0, 0.5, size=units)
        low, high = mean_interval(values, np.ones(units), seed=trial)
        covered += low <= 3.0 <= high
    assert 0.91 < covered / 400 <= 0.99
