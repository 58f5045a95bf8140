"""A sequence split across two and four processes, against the same in one.

Four processes are started once and run every case, in one group of four and in two groups of two.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from longfire import PositionEncoding, attention, build_encoding, parallel, prepare_bias
from longfire.engines import chunked
from longfire.model import LongfireConfig, LongfireForCausalLM, LongfireForMaskedLM
from tests.engines.oracle import random
from tests.ranks import start_ranks
from tests.samples import ADDITIVE, HEADS, increasing, make, sides

B, L, D, WORLD = 2, 48, 8, 4
SIZES = [2, 4]


def token_arguments(seed):
    """Segments that cross the edges of chunks, a key mask, and positions with gaps."""
    torch.manual_seed(seed)
    ids = torch.tensor([[0] * 5 + [1] * 20 + [2] * 3 + [5] * 20, [0] * 30 + [1] * 18])
    mask = torch.rand(B, L) < 0.7
    return {"segment_ids": ids, "key_mask": mask, "positions": increasing(64, (B, L))}


def case(name=None, *, tokens=(), G=None, dtype=torch.float64, bias=None, **options):
    return {"name": name, "tokens": tokens, "G": G, "dtype": dtype, "bias": bias, "options": options}


CASES = {
    **{name: case(name) for name in ADDITIVE},
    **{f"{name}, all layouts": case(name, tokens=("segment_ids", "key_mask"), window=9, G=1) for name in ADDITIVE},
    "none": case(),
    "none, not causal": case(causal=False),
    "grouped heads": case("fire", G=1),
    "float32": case("fire", dtype=torch.float32),
    "bfloat16": case("fire", dtype=torch.bfloat16),
    "scale": case("fire", scale=0.3),
    "reference": case("fire", impl="reference", tokens=("segment_ids",)),
    "key mask": case("fire", tokens=("key_mask",)),
    "segments": case("fire", tokens=("segment_ids",)),
    "window": case("kerple_log", window=5),
    "positions": case("fire", tokens=("positions",)),
    "positions, mask and segments": case("fire", tokens=("positions", "key_mask", "segment_ids")),
    "not causal": case("fire", causal=False),
    "not causal, all layouts": case("t5", causal=False, tokens=("segment_ids", "key_mask"), window=9),
    "not causal, positions": case("alibi", causal=False, tokens=("positions", "segment_ids")),
    "tensor": case(bias=(B, HEADS, L, L)),
    "tensor, window": case(bias=(HEADS, L, L), window=5, tokens=("key_mask",)),
    "tensor of keys": case(bias=(1, L)),
    "tensor of queries": case(bias=(L, 1)),
    "one number": case(bias=()),
}


def inputs(case):
    q, k, v = random(B, HEADS, case["G"], L, dtype=case["dtype"])
    causal = case["options"].get("causal", True)
    name, dtype = case["name"], torch.promote_types(case["dtype"], torch.float32)
    bias = None if name is None else make(name, dtype, **sides(name, causal))
    if case["bias"]:
        bias = torch.randn(case["bias"], dtype=case["dtype"])
    given = {name: tensor for name, tensor in token_arguments(3).items() if name in case["tokens"]}
    if "positions" in given:
        given["q_positions"] = given["k_positions"] = given.pop("positions")
    torch.manual_seed(5)
    return (q, k, v), bias, given, torch.randn(B, HEADS, L, D, dtype=case["dtype"])


def result(attend, case, group=None):
    """Output and gradients; in a group, of all ranks' shares together."""
    torch.manual_seed(0)
    qkv, bias, tokens, weight = inputs(case)
    if group is not None:
        *qkv, weight = (parallel.shard(tensor, 2, group) for tensor in (*qkv, weight))
        tokens = {name: parallel.shard(tensor, -1, group) for name, tensor in tokens.items()}
        if isinstance(bias, torch.Tensor) and bias.ndim and bias.shape[-2] > 1:
            bias = parallel.shard(bias, -2, group)
    qkv = [tensor.requires_grad_() for tensor in qkv]
    learned = list(bias.parameters()) if isinstance(bias, PositionEncoding) else []
    out = attend(*qkv, bias, **tokens, **case["options"])
    found = torch.autograd.grad((out * weight).sum(), [*qkv, *learned])
    own = [out.detach(), *found[:3]]
    if group is not None:
        own = [parallel.unshard(tensor, 2, group) for tensor in own]
    return [*own, *found[3:]]


def grown(module):
    """Large weights, so that mistakes show."""
    torch.manual_seed(2)
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    return module.double().train()


MODELS = {
    **{name: {"position_encoding": name} for name in ("fire", "rope", "learned", "sinusoidal", "t5", "nope")},
    "fire-s": {"position_encoding": "fire", "share_position_encoding": True},
    "grouped": {"position_encoding": "fire", "num_key_value_heads": 1},
    "packed": {"position_encoding": "fire"},
    "packed, fire-s": {"position_encoding": "fire", "share_position_encoding": True, "sliding_window": 9},
    "padded": {"position_encoding": "kerple_log"},
    "checkpointed": {"position_encoding": "fire"},
    "encoder": {
        "position_encoding": {"name": "fire", "bidirectional": True},
        "is_causal": False,
        "sliding_window": 9,
    },
}

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 20}
KEPT = ["fire", "rope", "grouped"]
"""Models whose memory is counted."""


def model_result(name, group=None, items=None):
    """The loss, which sums over ranks, and the gradients, which do too."""
    config = LongfireConfig(max_position_embeddings=L, **SIZE, **MODELS[name])
    model = grown((LongfireForCausalLM if config.is_causal else LongfireForMaskedLM)(config))
    if name == "checkpointed":
        model.gradient_checkpointing_enable()
    torch.manual_seed(1)
    ids = torch.randint(20, (B, L))
    labels = ids.masked_fill(torch.rand(B, L) < 0.3, -100)
    batch = {"input_ids": ids}
    if name.startswith("packed"):
        batch["position_ids"] = torch.cat([torch.arange(n) for n in (7, 30, 11)]).expand(B, L)
    if name == "padded":
        batch["attention_mask"] = (torch.arange(L) >= torch.tensor([[0], [5]])).long()
        labels[1, :6] = -100
    if config.is_causal:
        batch["shift_labels"] = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    else:
        batch["labels"] = labels
    if group is not None:
        batch = {name: parallel.shard(tensor, 1, group) for name, tensor in batch.items()}
        batch["sequence_group"] = group
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # alive, so its address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(**batch, num_items_in_batch=items).loss
    loss.backward()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = sum(storage.nbytes() for address, storage in kept.items() if address not in parameters)
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    if group is not None:
        for tensor in found:
            dist.all_reduce(tensor, group=group)
    return found, saved


def work(rank, folder):
    """One of the processes: every case, in both groups."""
    torch.set_num_threads(1)
    chunked._rows = lambda request: 5
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    groups = {size: dist.new_subgroups(size)[0] for size in SIZES}
    found = {}
    for size, group in groups.items():
        for name, chosen in CASES.items():
            found[name, size] = result(partial(parallel.attention, group=group), chosen, group)
        own = result(partial(parallel.attention, group=group, sum_bias_grad=False), CASES["fire"], group)
        for tensor in own[4:]:
            dist.all_reduce(tensor, group=group)
        found["summed by the caller", size] = own
        for name in MODELS:
            found["model", name, size] = model_result(name, group)
        found["items", size] = model_result("fire", group, 7)
        whole = torch.arange(3 * L).view(3, L)
        found["shard", size] = parallel.shard(whole, 1, group)
        found["unshard", size] = parallel.unshard(found["shard", size].double().requires_grad_(), 1, group)
        share = torch.ones(2, 6, dtype=torch.float64, requires_grad=True)
        (parallel.unshard(share, 1, group) * torch.arange(6.0 * size) * (dist.get_rank(group) + 1)).sum().backward()
        found["gradient of unshard", size] = share.grad
    other = dist.new_group([0, 1])
    if rank == WORLD - 1:
        with pytest.raises(ValueError, match="rank 3 is not in the given group"):
            parallel.shard(torch.zeros(8), 0, other)
    ids = token_arguments(0)["segment_ids"].flip(1)  # only the last chunk's decrease: every rank must refuse
    ids[:, :-1] = 0
    ids[:, -1] = -1
    q, k, v = (parallel.shard(tensor, 2) for tensor in random(B, HEADS, None, L))
    with pytest.raises(ValueError, match="segment_ids must not decrease"):
        parallel.attention(q, k, v, segment_ids=parallel.shard(ids, 1))
    found |= {("memory", name): model_result(name)[1] for name in KEPT}
    q, k, v = random(B, HEADS, None, 12 if rank else 14)
    with pytest.raises(ValueError, match=r"rank 0 has q=\(2, 3, 14, 8\).* and rank 1 has q=\(2, 3, 12, 8\)"):
        parallel.attention(q, k, v)
    with pytest.raises(ValueError, match=r"same shapes and options.*window=None.*window=3"):
        parallel.attention(q[:, :, :6], k[:, :, :6], v[:, :, :6], window=3 if rank == 2 else None)
    positions = torch.arange(6).int() if rank == 1 else torch.arange(6)
    with pytest.raises(ValueError, match=r"same shapes and options.*torch.int64.*torch.int32"):
        parallel.attention(q[:, :, :6], k[:, :, :6], v[:, :, :6], q_positions=positions, k_positions=positions)
    model = LongfireForCausalLM(LongfireConfig(max_position_embeddings=L, **SIZE))
    mask = torch.ones(B, 6, dtype=torch.long) if rank == 3 else None
    with pytest.raises(ValueError, match=r"attention_mask=None.*rank 3 has .*attention_mask"):
        model(torch.zeros(B, 6, dtype=torch.long), attention_mask=mask, sequence_group=dist.group.WORLD)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each process found."""
    folder = tmp_path_factory.mktemp("ranks")
    start_ranks(work, (str(folder),), WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_attention(name, size, ranks):
    """Output and gradients of q, k, v and the encoding's parameters, the same on every rank."""
    expected = result(attention, CASES[name])
    low = {"rtol": 0.04, "atol": 0.06} if name == "bfloat16" else {}
    for rank in ranks:
        torch.testing.assert_close(rank[name, size], expected, **low)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_summed_by_the_caller(size, ranks):
    for rank in ranks:
        torch.testing.assert_close(rank["summed by the caller", size], result(attention, CASES["fire"]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_model(name, size, ranks):
    """Loss and gradients; labels belong to the next token of the sequence, on whichever rank it is."""
    expected, _ = model_result(name)
    for rank in ranks:
        torch.testing.assert_close(rank["model", name, size][0], expected)


@pytest.mark.parametrize("size", SIZES)
def test_a_given_number_of_labels(size, ranks):
    for rank in ranks:
        torch.testing.assert_close(rank["items", size][0], model_result("fire", items=7)[0])


@pytest.mark.parametrize("name", KEPT)
def test_memory_falls(name, ranks):
    """What a training step keeps, but for the keys and values that are gathered whole."""
    for rank in ranks:
        whole = rank["memory", name]
        heads = MODELS[name].get("num_key_value_heads", 4)
        keys = 2 * 2 * B * heads * L * 8 * 8  # layers, k and v, sizes, bytes of a number
        for size in SIZES:
            assert rank["model", name, size][1] < 1.1 * (whole - keys) / size + 1.5 * keys


@pytest.mark.parametrize("size", SIZES)
def test_shares(size, ranks):
    """An early and a late chunk on each rank; unshard undoes it, and its gradient sums over ranks."""
    whole = torch.arange(3 * L).view(3, L)
    chunks = whole.chunk(2 * size, 1)
    for number, rank in enumerate(ranks):
        r = number % size
        assert torch.equal(rank["shard", size], torch.cat([chunks[r], chunks[2 * size - 1 - r]], 1))
        assert torch.equal(rank["unshard", size], whole.double())
        gradient = torch.arange(6.0 * size, dtype=torch.float64) * sum(range(1, size + 1))
        parts = gradient.chunk(2 * size)
        assert torch.equal(
            rank["gradient of unshard", size], torch.cat([parts[r], parts[2 * size - 1 - r]]).expand(2, 6)
        )


# --- one rank, which splits nothing ---------------------------------------------------------------------------------


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dropout_p": 0.1}, ValueError, "dropout_p must be 0 where a sequence is split across ranks, not 0.1"),
        ({"window": 0}, ValueError, "window .* must be"),
        ({"scale": -1.0}, ValueError, "scale must be"),
        ({"impl": "fast"}, ValueError, "no attention engine named 'fast'"),
        ({"bias": make("rope")}, ValueError, "rope|RoPE"),
        ({"causal": False}, ValueError, "bidirectional"),
        ({"key_mask": torch.ones(B, L)}, TypeError, "key_mask must be bool"),
        ({"key_mask": torch.ones(B, L + 2, dtype=torch.bool)}, ValueError, r"key_mask must have shape"),
        ({"q_positions": torch.arange(L)}, ValueError, "pass both"),
        ({"bias": torch.zeros(L, 2 * L)}, ValueError, "does not broadcast"),
        ({"k": torch.zeros(B, HEADS, 50, D), "v": torch.zeros(B, HEADS, 50, D)}, ValueError, "q has 48 and k 50"),
    ],
)
def test_refused(change, error, message, alone):
    q, k, v = random(B, HEADS, None, L, dtype=torch.float32)
    arguments = {"q": q, "k": k, "v": v, "bias": make("fire"), **change}
    with pytest.raises(error, match=message):
        parallel.attention(**arguments)


def test_prepared_bias_is_refused(alone):
    positions = torch.arange(L)
    q, k, v = random(B, HEADS, None, L, dtype=torch.float32)
    with pytest.raises(TypeError, match="pass the encoding itself"):
        parallel.attention(q, k, v, prepare_bias(make("fire"), positions, positions))


@pytest.mark.parametrize("learned", [True, False])
def test_second_derivatives_are_refused(learned, alone):
    """Their sums over ranks would be missing."""
    q, k, v = (tensor.requires_grad_() for tensor in random(B, HEADS, None, L))
    fire = make("fire", torch.float64)
    out = parallel.attention(q, k, v, fire, impl="reference", sum_bias_grad=learned)
    wanted = next(iter(fire.parameters())) if learned else k
    (gradient,) = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.square().sum().backward()


def test_odd_lengths_are_refused(alone):
    with pytest.raises(ValueError, match=r"7 tokens cannot be cut into 2 equal chunks.*: pad it to 8"):
        parallel.shard(torch.zeros(7), 0)
    q, k, v = random(B, HEADS, None, 7)
    with pytest.raises(ValueError, match="must be even, not 7"):
        parallel.attention(q, k, v)


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match="there is no process group: start the program with torchrun"):
        parallel.shard(torch.zeros(8), 0)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"labels": True}, "pass shift_labels"),
        ({}, {"use_cache": True}, "pass use_cache=False"),
        (
            {},
            {"position_ids": torch.arange(2)[None]},
            r"position_ids must be this rank's share, \(2, 48\), not \(1, 2\)",
        ),
        (
            {},
            {"seq_idx": torch.zeros(B, L, dtype=torch.int)},
            "position_ids that restart in each document, not seq_idx",
        ),
        ({"attn_implementation": "sdpa"}, {}, "needs attn_implementation='longfire', not 'sdpa'"),
        ({"random_positions": 64}, {}, "pass position_ids: every rank its share"),
        ({"attention_dropout": 0.1}, {}, "dropout_p must be 0"),
        ({"resid_dropout": 0.1}, {}, "resid_dropout must be 0"),
        ({}, {"logits_to_keep": 1}, "logits_to_keep=1 would be of this rank's share"),
    ],
)
def test_refused_by_the_model(changes, arguments, message, alone):
    model = LongfireForCausalLM(LongfireConfig(max_position_embeddings=L, **SIZE, **changes)).train()
    ids = torch.randint(20, (B, L))
    arguments = {**arguments, **({"labels": ids} if "labels" in arguments else {})}
    with pytest.raises(ValueError, match=message):
        model(ids, sequence_group=alone, **arguments)


# --- on a GPU -------------------------------------------------------------------------------------------------------


def work_on_gpu(rank, folder):
    """Two processes share one GPU, over gloo."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for name in ("fire", "kerple_log"):
        for window in (None, 300):
            found[name, window] = gpu_result(parallel.attention, name, window, dist.group.WORLD)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def gpu_result(attend, name, window, group=None):
    torch.manual_seed(0)
    q, k, v, weight = torch.randn(4, 1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16)
    encoding = build_encoding(name, num_heads=4).cuda()
    own = [q, k, v, weight] if group is None else [parallel.shard(tensor, 2) for tensor in (q, k, v, weight)]
    *qkv, weight = (tensor.detach().requires_grad_() for tensor in own)
    out = attend(*qkv, encoding, window=window, impl="fused")
    found = torch.autograd.grad((out * weight).sum(), [*qkv, *encoding.parameters()])
    shares = [out.detach(), *found[:3]]
    shares = shares if group is None else [parallel.unshard(tensor, 2) for tensor in shares]
    return [tensor.float().cpu() for tensor in (*shares, *found[3:])]


@pytest.mark.gpu
def test_fused_on_a_shared_gpu(tmp_path):
    """Errors are relative to the result; those of the parameters' gradients to the largest, since some are 0."""
    start_ranks(work_on_gpu, (str(tmp_path),), 2)
    for rank in range(2):
        for (name, window), found in torch.load(tmp_path / f"{rank}.pt").items():
            expected = gpu_result(attention, name, window)
            learned = max(float(gradient.norm()) for gradient in expected[4:])
            for number, (tensor, other) in enumerate(zip(found, expected, strict=True)):
                scale = float(other.norm()) if number < 4 else learned
                assert float((tensor - other).norm()) < 0.02 * scale, (name, window, number)
