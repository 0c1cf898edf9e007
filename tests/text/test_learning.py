"""A shared map that is learned without labels: what belongs together comes nearer, and the file carries it."""

import numpy as np
import pytest
import torch

from support.encoders import save_encoder
from torchcaps.capsules import normalise
from torchcaps.text import CapsuleSentenceEncoder, halves
from torchcaps.text.learning import Comparison, Tokens, similarities
from torchcaps.text.matching import soft_matching

TEXT = "a very good film it is fun and great like one two three cat dog sad the this bad boring plot of wonder"
WORDS = TEXT.split()


def pairs(number: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts of the same five words in another order, with three words of their own."""
    rng, first, second = np.random.default_rng(seed), [], []
    for _ in range(number):
        drawn = rng.permutation(WORDS)
        for texts, own in ((first, drawn[5:8]), (second, drawn[8:11])):
            texts.append(" ".join(rng.permutation([*drawn[:5], *own])))
    return first, second


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


def ranks(encoder: CapsuleSentenceEncoder, first: list[str], second: list[str]) -> float:
    """How many others are more like a text than the one it belongs to, on average."""
    table = encoder.compare_all(encoder.encode(first), encoder.encode(second))
    return float((table > np.diag(table)[:, None]).sum(1).mean())


def test_texts_that_belong_together_come_nearer(folder, tmp_path):
    encoder = CapsuleSentenceEncoder(folder, num_capsules=3)
    unseen = pairs(40, seed=1)
    before = ranks(encoder, *unseen)
    losses = encoder.learn_map(*pairs(64, seed=0), epochs=15, batch_size=16, learning_rate=2e-2)
    assert losses[-1] < 0.9 * losses[0]
    assert ranks(encoder, *unseen) < 0.9 * before
    encoder.save_map(tmp_path / "map.safetensors")
    again = CapsuleSentenceEncoder(folder, num_capsules=3, shared_map=tmp_path / "map.safetensors")
    assert again.similarity("a good film", "bad fun") == encoder.similarity("a good film", "bad fun")
    other = save_encoder(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match="was learned on another encoder"):
        CapsuleSentenceEncoder(other, shared_map=tmp_path / "map.safetensors")


def test_random_maps_are_the_same_each_time_and_keep_cosines_about(folder):
    mapped, own = CapsuleSentenceEncoder(folder, shared_map=256), CapsuleSentenceEncoder(folder)
    assert mapped.similarity("a good film", "bad fun") == pytest.approx(
        own.similarity("a good film", "bad fun"), abs=0.2
    )
    again = CapsuleSentenceEncoder(folder, shared_map=256)
    assert torch.equal(again.shared_map, mapped.shared_map)
    assert mapped.encode(["a good film"])[0].poses.shape == (3, 256)


@pytest.mark.parametrize("routing", ["kmeans", "em", "vb", "uniform"])
def test_gradients_of_the_map_are_those_of_the_similarities(routing):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 3, 6, 5, generator=generator, dtype=torch.float64)
    tokens = [Tokens(each, torch.arange(6) < torch.tensor([[6], [4], [5]])) for each in vectors]
    shared = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    how = Comparison(num_capsules=1, routing=routing, num_iterations=2, width=0.1, whole=0.3)
    assert torch.autograd.gradcheck(lambda weight: similarities(*tokens, weight, how), (shared,))


def test_a_batch_is_compared_as_single_texts_are(folder):
    encoder = CapsuleSentenceEncoder(folder, num_capsules=3)
    first, second = pairs(4, seed=2)
    rows = [encoder.inputs.encode(texts) for texts in (first, second)]
    tokens = [Tokens(encoder.words(stacked := encoder.inputs.stack(each))[0], stacked != 0) for each in rows]
    how = Comparison(num_capsules=3, routing="kmeans", num_iterations=3, width=0.1, whole=0.5)
    found = similarities(*tokens, torch.eye(encoder.words.files.size), how)
    expected = encoder.compare_all(encoder.encode(first), encoder.encode(second))
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-4)
    one, other = (normalise(each.vectors.sum(1)) for each in tokens)
    plan = soft_matching(np.ones((3, 3)), np.full(3, 1 / 3), np.full(3, 1 / 3))
    assert plan.sum() == pytest.approx(1)
    single = Comparison(num_capsules=1, routing="kmeans", num_iterations=3, width=0.1, whole=0.5)
    torch.testing.assert_close(similarities(*tokens, torch.eye(16), single), one @ other.T, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_learned_is_told(folder, tmp_path):
    encoder = CapsuleSentenceEncoder(folder)
    assert halves(["one two three", "one"]) == (["one"], ["two three"])
    with pytest.raises(ValueError, match="two or more pairs of texts; got 1 and 2"):
        encoder.learn_map(["a"], ["b", "c"])
    with pytest.raises(ValueError, match="there is no shared map"):
        encoder.save_map(tmp_path / "map.safetensors")
    with pytest.raises(ValueError, match="is to be a file that save_map wrote"):
        CapsuleSentenceEncoder(folder, shared_map=tmp_path / "nothing")
    with pytest.raises(ValueError, match="shared_map must be at least 1"):
        CapsuleSentenceEncoder(folder, shared_map=0)
    with pytest.raises(ValueError, match="must be the name of an encoder, or a text model on one"):
        CapsuleSentenceEncoder(3)  # pyrefly: ignore
