"""Capsules of tokens without labels: distinct starts, no influence of padding or other texts."""

import pytest
import torch

from torchcaps.text import FORMS, form_capsules, starts_of


def some(*lengths: int, size: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(lengths), max(lengths), size, generator=generator, dtype=torch.float64)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return vectors * mask[..., None], mask


def test_starts_are_distinct_tokens_of_the_text():
    vectors, mask = some(9, 4, 6)
    starts = starts_of(torch.nn.functional.normalize(vectors, dim=-1), mask, 4)
    for row, own in zip(starts.tolist(), mask, strict=True):
        assert len(set(row)) == 4
        assert all(own[place] for place in row)


@pytest.mark.parametrize("routing", FORMS)
def test_a_text_forms_the_same_capsules_in_every_batch(routing):
    vectors, mask = some(9, 5, 12)
    together = form_capsules(vectors, mask, 3, routing=routing)
    wider = form_capsules(
        torch.nn.functional.pad(vectors, (0, 0, 0, 5), value=3.0),
        torch.nn.functional.pad(mask, (0, 5)),
        3,
        routing=routing,
    )
    for index, length in enumerate((9, 5, 12)):
        alone = form_capsules(vectors[index : index + 1, :length], mask[index : index + 1, :length], 3, routing=routing)
        for found in (together, wider):
            torch.testing.assert_close(found.poses[index], alone.poses[0], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(found.shares[index], alone.shares[0], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(together.shares.sum(1), torch.ones(3, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_one_capsule_is_the_mean():
    vectors, mask = some(7, 7)
    formed = form_capsules(vectors, mask, 1)
    torch.testing.assert_close(formed.poses[:, 0], torch.nn.functional.normalize(vectors.mean(1), dim=-1))
    assert formed.shares.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("routing", ["kmeans", "em", "vb"])
def test_clusters_that_are_there_are_found(routing):
    generator = torch.Generator().manual_seed(1)
    centres = torch.eye(3, 12)
    labels = torch.tensor([0] * 6 + [1] * 3 + [2] * 5)
    vectors = centres[labels] + 0.05 * torch.randn(14, 12, generator=generator)
    formed = form_capsules(vectors[None], torch.ones(1, 14, dtype=torch.bool), 3, routing=routing)
    found = formed.coupling[0].argmax(1)
    assert len({(a, b) for a, b in zip(labels.tolist(), found.tolist(), strict=True)}) == 3
    assert (formed.coupling[0].amax(1) > 0.9).all()


def test_equal_tokens_and_too_few_are_handled():
    same = form_capsules(torch.ones(1, 5, 4), torch.ones(1, 5, dtype=torch.bool), 3)
    assert torch.isfinite(same.poses).all()
    assert torch.isfinite(same.shares).all()
    with pytest.raises(ValueError, match="a text of 2 tokens cannot form 3 capsules"):
        form_capsules(*some(4, 2), 3)
    with pytest.raises(ValueError, match="routing must be one of"):
        form_capsules(*some(4), 2, routing="k-means")
