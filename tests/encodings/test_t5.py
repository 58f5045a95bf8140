"""T5's bias against Hugging Face's bucket function."""

import pytest
import torch

from longfire.encodings import T5
from longfire.encodings.t5 import bucket_of_distance


@pytest.mark.parametrize(
    ("buckets", "distance"), [(64, 128), (32, 128), (32, 1000), (8, 20), (2, 5), (7, 50), (128, 256)]
)
def test_buckets(buckets, distance):
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(3 * distance)
    theirs = T5Attention._relative_position_bucket(-distances, False, buckets, distance)
    ours = bucket_of_distance(buckets, distance)[distances.clamp(max=distance)]
    assert torch.equal(ours, theirs)


def test_bias_is_the_buckets_entry():
    from transformers.models.t5.modeling_t5 import T5Attention

    encoding = T5(5)
    q, k = torch.arange(40, 400), torch.arange(400)
    buckets = T5Attention._relative_position_bucket(k[None, :] - q[:, None], False, 64, 128)
    expected = torch.nn.functional.embedding(buckets, encoding.table).permute(2, 0, 1)
    assert torch.equal(encoding.bias(q, k), expected)


def test_formula_of_the_paper():
    """K + 1 = 8 buckets and L₁ = 32, by hand: four single distances, then 4·8^(m/4) for m = 0…3."""
    buckets = bucket_of_distance(8, 32).tolist()
    starts = [buckets.index(bucket) for bucket in range(8)]
    assert starts == [0, 1, 2, 3, 4, 7, 12, 20]


def test_constant_beyond_the_last_bucket():
    encoding = T5(2, num_buckets=8, max_distance=20)
    bias = encoding.bias(torch.tensor([10_000_000]), torch.arange(10_000_000 - encoding.smooth_beyond + 1))
    assert (bias == bias[..., :1]).all()


def test_a_last_bucket_that_begins_at_the_last_distance():
    encoding = T5(1, num_buckets=64, max_distance=33)
    encoding.table.data = torch.arange(64.0)[:, None]
    assert encoding.bias(torch.tensor([40]), torch.tensor([0, 7, 8])).flatten().tolist() == [63.0, 63.0, 32.0]


def test_bad_options():
    with pytest.raises(ValueError, match=r"max_distance \(above half of num_buckets=64\) must be at least 33, not 32"):
        T5(2, max_distance=32)
