"""What each word says for a class adds up to the class, and costs one forward."""

import pytest
import torch

from torchcaps.inputs.texts import TextEncoding
from torchcaps.inspection import WordRouting, word_reasons
from torchcaps.inspection.words import linear_classes
from torchcaps.models import create_model

SMALL = {"num_tokens": 40, "num_classes": 3, "embedding_size": 12}
SMALL_CAPSULES = SMALL | {"channels": 8, "types": (4, 3), "pose_size": 6}


def make_tokens(*lengths: int) -> torch.Tensor:
    tokens = torch.randint(1, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    return torch.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], tokens, 0)


def new_model(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model(name, **(SMALL_CAPSULES if "capsule" in name else SMALL), **options).double().eval()


@pytest.mark.parametrize("edges", [0, 2])
@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "entropy", "uniform"])
@pytest.mark.parametrize("name", ["text-capsule-a", "text-capsule-b"])
def test_reasons_add_up_to_the_activation(name, routing, edges):
    model, tokens = new_model(name, routing=routing, edges=edges), make_tokens(9, 4, 12)
    classes = torch.tensor([0, 2, 1])
    scores = model(tokens).scores[torch.arange(3), classes]
    torch.testing.assert_close(WordRouting(model, tokens).values(classes).sum(1), scores, rtol=1e-9, atol=1e-12)
    assert WordRouting(model, tokens).values(classes)[1, 4:].abs().max() == 0  # padding says nothing


def test_reasons_with_context_add_up_to_the_activation():
    model, tokens, classes = new_model("text-capsule-b", context=5), make_tokens(9, 5, 12), torch.tensor([0, 2, 1])
    values, scores = WordRouting(model, tokens).values(classes), model(tokens).scores[torch.arange(3), classes]
    torch.testing.assert_close(values.sum(1), scores, rtol=1e-9, atol=1e-12)
    assert values[1, 5:].abs().max() == 0


def test_reasons_and_biases_add_up_to_the_activation():
    model, tokens = new_model("text-capsule-a"), make_tokens(9, 4)
    with torch.no_grad():
        for branch in model.branches:
            branch.ngrams.conv.bias.normal_()
            branch.ngrams.to_poses.bias.normal_()
    words, lengths = model.embed(tokens)
    poses = linear_classes(model.branches[0], words.detach(), lengths, model.route(tokens), "branches.0")
    torch.testing.assert_close(poses, model(tokens).poses, rtol=1e-9, atol=1e-12)
    values, scores = WordRouting(model, tokens).values([0, 0]), model(tokens).scores[:, 0]
    assert (values.sum(1) - scores).abs().min() > 1e-3  # what is missing is what the biases say


def test_reasons_name_every_word_and_leaves_the_model_alone():
    model = new_model("text-capsule-a").float().train()
    model.preprocessing = TextEncoding.of(["a good film", "a bad one"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reasons = word_reasons(model, ["a very good film indeed, is it?", ""], [0, 1])
    assert [reason.word for reason in reasons[0]] == ["a", "very", "good", "film", "indeed", ",", "is", "it", "?"]
    assert reasons[1] == []
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ValueError, match="text-cnn has no capsules"):
        word_reasons(new_model("text-cnn"), ["a"])


def test_em_has_no_reasons():
    model = new_model("text-capsule-a", routing="em")
    with pytest.raises(ValueError, match="shares of the length of a class's pose"):
        word_reasons(model, ["a b"])
