"""Text models: padding, switches, routings, saving."""

import pytest
import torch

from torchcaps.capsules import length
from torchcaps.inputs.texts import TextEncoding
from torchcaps.models import TextCapsuleA, TextCapsuleB, create_model, list_models, load_model
from torchcaps.models.text import PAPER_SIZES
from torchcaps.nn.text import window_mask
from torchcaps.routing import use_backend
from torchcaps.training.text import new_text_model

SMALL = {"num_tokens": 40, "num_classes": 3, "embedding_size": 12}
SMALL_CAPSULES = SMALL | {"channels": 8, "types": (4, 3), "pose_size": 6}
ROUTINGS = ("dynamic", "kmeans", "entropy", "em", "uniform")
EVERY = [*((name, {}) for name in list_models("text")), ("text-capsule-b", {"context": 5})]


def make_tokens(*lengths: int, seed: int = 0) -> torch.Tensor:
    tokens = torch.randint(1, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], tokens, 0)


def new_model(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model(name, **(SMALL_CAPSULES if "capsule" in name else SMALL), **options).double().eval()


@pytest.mark.parametrize("edges", [0, 1, 4])
@pytest.mark.parametrize(("name", "options"), EVERY)
def test_padding_does_not_change_the_answer(name, options, edges):
    model, tokens = new_model(name, edges=edges, **options), make_tokens(9, 4, 1, 12, 7)
    together = model(tokens).scores
    for index, row in enumerate(tokens):
        alone = model(row[row != 0].unsqueeze(0)).scores[0]
        torch.testing.assert_close(alone, together[index], rtol=1e-12, atol=1e-14)
    wider = torch.nn.functional.pad(tokens, (0, 6))
    torch.testing.assert_close(model(wider).scores, together, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("sharing", ["full", "shared"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_padding_with_every_routing_and_backend(routing, sharing, backend):
    model, tokens = new_model("text-capsule-b", routing=routing, sharing=sharing), make_tokens(9, 3, 12)
    with use_backend(backend):
        together = model(tokens).scores
        alone = torch.cat([model(row[row != 0].unsqueeze(0)).scores for row in tokens])
    torch.testing.assert_close(alone, together, rtol=1e-11, atol=1e-13)


def test_padding_gets_no_gradient_and_words_do():
    model, tokens = new_model("text-capsule-a"), make_tokens(9, 6)
    words, lengths = model.embed(tokens)
    words = words.detach().requires_grad_()
    model.branches[0].route(words, lengths)["classes"].capsules.activations.sum().backward()
    assert words.grad[1, 6:].abs().max() == 0
    assert (words.grad[1, :6].abs().amax(-1) > 0).all()


def test_edges_show_where_a_text_begins_and_ends():
    texts = [torch.tensor([[7] * before + [3] + [7] * (8 - before)]) for before in (2, 6)]  # the same n-grams of three
    inside, with_edges = new_model("text-capsule-a"), new_model("text-capsule-a", edges=2)
    torch.testing.assert_close(*(inside(text).scores for text in texts), rtol=1e-12, atol=1e-14)
    first, last = (with_edges(torch.tensor([text])).scores for text in ([3, 7, 7, 7, 7], [7, 7, 7, 7, 3]))
    assert (first - last).abs().max() > 1e-4
    with pytest.raises(ValueError, match="edges must be"):
        new_model("text-capsule-a", edges=-1)


def test_context_brings_what_stands_elsewhere():
    """Words far from an n-gram change its capsules only where there is context."""
    tokens = make_tokens(12)
    other = tokens.clone()
    other[0, 11] = tokens[0, 11] % 39 + 1
    for context in (0, 5):
        model = new_model("text-capsule-a", context=context)
        ngrams = [model.branches[0].ngrams(model.embed(each)[0]).poses[0, 0] for each in (tokens, other)]
        assert torch.equal(*ngrams) == (context == 0)
    with pytest.raises(ValueError, match="context must be"):
        new_model("text-capsule-a", context=-1)


def test_short_texts_are_extended_with_padding_that_counts():
    model, tokens = new_model("text-capsule-a", window=3), make_tokens(2)
    words, lengths = model.embed(tokens)
    assert words.shape[1] == 5
    assert lengths.tolist() == [5]
    assert window_mask(lengths, 3, 3).tolist() == [[True, True, True]]
    assert window_mask(torch.tensor([5, 7]), 5, 3).tolist() == [[True] * 3 + [False] * 2, [True] * 5]


@pytest.mark.parametrize("switch", ["noise_class", "leaky", "amend"])
@pytest.mark.parametrize("name", ["text-capsule-a", "text-capsule-b"])
def test_every_switch_changes_the_answer(name, switch):
    tokens = make_tokens(9, 4)
    plain, switched = new_model(name), new_model(name, **{switch: True})
    if switch == "noise_class":  # one class more: the others keep their weights, so that the noise class alone differs
        for mine, theirs in zip(switched.branches, plain.branches, strict=True):
            state = {k: v for k, v in theirs.state_dict().items() if k != "classes.weight"}
            mine.load_state_dict(state, strict=False)
            with torch.no_grad():
                mine.classes.weight[:, :3] = theirs.classes.weight
        switched.embedding.load_state_dict(plain.embedding.state_dict())
    else:
        switched.load_state_dict(plain.state_dict())
    scores = switched(tokens).scores
    assert scores.shape == (2, 3)
    assert (scores - plain(tokens).scores).abs().max() > 1e-6


def test_partial_normalisation_is_for_training_only():
    plain, partial = (
        new_model("text-capsule-a", word_dropout=0.0),
        new_model("text-capsule-a", word_dropout=0.0, partial=True),
    )
    partial.load_state_dict(plain.state_dict())
    tokens = make_tokens(9, 4)
    torch.testing.assert_close(partial(tokens).scores, plain(tokens).scores)
    partial.train()
    draws = [partial(tokens).scores for _ in range(4)]
    assert any((draw - plain(tokens).scores).abs().max() > 1e-6 for draw in draws)


def test_switches_are_independent():
    tokens, answers = make_tokens(9, 4), []
    for leaky in (False, True):
        for amend in (False, True):
            answers.append(new_model("text-capsule-a", leaky=leaky, amend=amend)(tokens).scores)
    for index, answer in enumerate(answers):
        assert all((answer - other).abs().max() > 1e-7 for other in answers[:index])


def test_noise_class_is_outside_the_answer_but_takes_its_share():
    model = new_model("text-capsule-a", noise_class=True)
    words, lengths = model.embed(make_tokens(9, 4))
    classes = model.branches[0].route(words, lengths)["classes"]
    assert classes.capsules.poses.shape[1] == 4
    assert classes.coupling[..., 3].max() > 0
    assert model(make_tokens(9, 4)).poses.shape[1] == 3


@pytest.mark.parametrize("routing", ROUTINGS)
def test_auto_takes_the_kernels(routing):
    model = new_model("text-capsule-a", routing=routing).float()
    with use_backend("fused"):
        scores = model(make_tokens(9, 4)).scores
    with use_backend("reference"):
        torch.testing.assert_close(model(make_tokens(9, 4)).scores, scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"routing": "em"}, {"routing": "kmeans", "metric": "euclidean"}])
def test_means_do_not_shrink_with_the_length_of_a_text(options):
    routing, tokens = options.pop("routing"), make_tokens(10)
    model = new_model("text-capsule-a", routing=routing, routing_options=options)
    with torch.no_grad():
        short, long = (model(tokens.repeat(1, times)) for times in (1, 20))
    ratio = length(long.poses) / length(short.poses)
    assert 0.5 < float(ratio.min()) <= float(ratio.max()) < 2


def test_branches_of_em_are_averaged_as_activations():
    model, tokens = new_model("text-capsule-b", routing="em"), make_tokens(9, 12)
    branches = [result.capsules for name, result in model.route(tokens).items() if name.endswith("classes")]
    torch.testing.assert_close(model(tokens).scores, sum(branch.activations for branch in branches) / 3)


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_bfloat16(name, options):
    assert new_model(name, **options).bfloat16()(make_tokens(9, 4)).scores.isfinite().all()


def test_branches_are_averaged_as_poses():
    model, tokens = new_model("text-capsule-b"), make_tokens(9, 4)
    results = model.route(tokens)
    assert list(results) == [f"branches.{number}.{name}" for number in range(3) for name in ("windows", "classes")]
    poses = torch.stack([results[f"branches.{number}.classes"].capsules.poses for number in range(3)]).mean(0)
    torch.testing.assert_close(model(tokens).scores, length(poses))


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_saved_and_loaded(name, options, tmp_path):
    model = new_model(name, **options).float()
    model.preprocessing = TextEncoding(tokeniser="characters", vocabulary=("好", "书", "'"), max_length=7)
    model.labels, model.task.threshold, model.task.at_least_one = ("坏", "好", "?"), 0.3, True
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert again.preprocessing == model.preprocessing
    assert (again.labels, again.task.threshold, again.task.at_least_one) == (model.labels, 0.3, True)
    torch.testing.assert_close(again(make_tokens(9, 4)).scores, model(make_tokens(9, 4)).scores, rtol=0, atol=0)


def test_wrong_tokens_are_refused():
    model = new_model("text-capsule-a")
    with pytest.raises(ValueError, match=r"tokens must be int64 of shape \(B, T\), got torch.float32"):
        model(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="ngram_sizes must name at least one size"):
        TextCapsuleB(**SMALL, ngram_sizes=())


def test_sizes_of_the_paper():
    model = TextCapsuleA(num_tokens=100, num_classes=6, sharing="shared", **PAPER_SIZES)
    branch = model.branches[0]
    assert branch.ngrams.conv.weight.shape == (32, 100, 3)
    assert branch.windows.weight.shape == (16, 16, 16)
    assert branch.classes.weight.shape == (6, 16, 16)


def test_texts_without_vectors_are_given_pairs_and_edges():
    texts, few, many = ["a good film", "a bad film"], ("good", "bad"), tuple(map(str, range(64)))
    model = new_text_model(None, texts, class_names=few)
    assert (model.name, model.edges, len(model.evidence_of_pairs.total)) == ("text-capsule-a", 2, 2**17)
    assert len(new_text_model(None, texts, class_names=many).evidence_of_pairs.total) == 2**15
    assert new_text_model(None, texts, class_names=few, word_evidence=False).evidence_of_pairs is None
