"""The RoPE family against Hugging Face's rotary embeddings."""

import pytest
import torch

from longfire.encodings import RoPE, RoPEPI, YaRN


def hugging_face(x, positions, head_dim, trained_length, base=10000.0, **rope):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=trained_length * int(rope.get("factor", 1)),
        rope_parameters={"rope_theta": base, **rope},
    )
    cos, sin = LlamaRotaryEmbedding(config)(x, positions.expand(x.shape[0], -1))
    return x * cos.unsqueeze(1) + rotate_half(x) * sin.unsqueeze(1)


POSITIONS = torch.cat([torch.arange(100), torch.tensor([511, 2048, 8191, 100_000])])


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
def test_default(head_dim):
    x = torch.randn(2, 4, len(POSITIONS), head_dim)
    theirs = hugging_face(x, POSITIONS, head_dim, 2048, rope_type="default")
    torch.testing.assert_close(RoPE(head_dim).rotate(x, POSITIONS), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 4.0, 16.0])
def test_interpolation(factor):
    x = torch.randn(2, 4, len(POSITIONS), 64)
    theirs = hugging_face(x, POSITIONS, 64, 2048, rope_type="linear", factor=factor)
    ours = RoPEPI(64, trained_length=2048, target_length=int(2048 * factor))
    torch.testing.assert_close(ours.rotate(x, POSITIONS), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("trained", "factor"), [(2048, 4.0), (512, 16.0), (128, 64.0)])
def test_yarn(head_dim, trained, factor):
    x = torch.randn(2, 4, len(POSITIONS), head_dim)
    rope = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
    theirs = hugging_face(x, POSITIONS, head_dim, trained, **rope)
    ours = YaRN(head_dim, trained_length=trained, target_length=int(trained * factor))
    torch.testing.assert_close(ours.rotate(x, POSITIONS), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("base", [100.0, 500000.0])
def test_other_bases(base):
    x, lengths = torch.randn(1, 4, len(POSITIONS), 64), {"trained_length": 512, "target_length": 2048}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    for ours, rope in [
        (RoPE(64, base=base), {"rope_type": "default"}),
        (RoPEPI(64, base=base, **lengths), {"rope_type": "linear", "factor": 4.0}),
        (YaRN(64, base=base, **lengths), yarn),
    ]:
        theirs = hugging_face(x, POSITIONS, 64, 512, base, **rope)
        torch.testing.assert_close(ours.rotate(x, POSITIONS), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("head_dim", "trained"), [(8, 4), (8, 16), (16, 7), (8, 100_000)])
def test_yarn_at_the_ends_of_its_range(head_dim, trained):
    """Lengths at which all frequencies, or none, are fast."""
    x = torch.randn(1, 4, len(POSITIONS), head_dim)
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": trained}
    theirs = hugging_face(x, POSITIONS, head_dim, trained, **rope)
    ours = YaRN(head_dim, trained_length=trained, target_length=2 * trained)
    torch.testing.assert_close(ours.rotate(x, POSITIONS), theirs, rtol=1e-6, atol=1e-6)


def test_interpolation_maps_the_target_onto_the_trained_length():
    x = torch.randn(1, 1, 1, 16)
    stretched = RoPEPI(16, trained_length=64, target_length=256).rotate(x, torch.tensor([200]))
    torch.testing.assert_close(stretched, RoPE(16).rotate(x, torch.tensor([50])))


def test_rotation_keeps_norms_and_dtype():
    x = torch.randn(2, 3, 7, 16)
    rotated = RoPE(16).rotate(x, torch.arange(7))
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    assert RoPE(16).rotate(x.bfloat16(), torch.arange(7)).dtype == torch.bfloat16


def test_bfloat16_is_rotated_in_float32():
    x = torch.randn(1, 1, 400, 16).bfloat16()
    positions = torch.arange(8000, 8400)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rotated = RoPE(16).rotate(x, positions)
    assert torch.equal(rotated, RoPE(16).rotate(x.float(), positions).bfloat16())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoPE(7), r"head_dim must be even .* not 7"),
        (lambda: RoPE(8, base=0.5), "base must be above 1"),
        (lambda: RoPEPI(8, trained_length=64, target_length=32), "target_length must be at least 64, not 32"),
        (lambda: YaRN(8, trained_length=64, target_length=128, fast=1.0, slow=2.0), "fast > slow > 0"),
        (lambda: RoPE(8).rotate(torch.zeros(1, 1, 2, 16), torch.arange(2)), "head size 16, but RoPE has 8"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
