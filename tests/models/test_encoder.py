"""Text models on a pretrained encoder: answers, reasons, training, saving, resuming, export, serving."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import torchcaps
from support.encoders import save_encoder
from torchcaps.cli import main
from torchcaps.data import TextSet
from torchcaps.data.text import TextOptions
from torchcaps.estimators import CapsuleTextClassifier
from torchcaps.export import export_model, load_onnx
from torchcaps.inspection import WordRouting
from torchcaps.models import create_model, load_model
from torchcaps.predictor import Predictor
from torchcaps.runs import RunConfig, run
from torchcaps.service import Service
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.text import new_text_model

GOOD = ["a very good film", "great fun", "this movie is wonderful , very good", "a brilliant plot , good fun"]
BAD = ["a very bad film", "dull , sad", "this movie is unbearable , very poor", "a boring plot , poor"]
TEXTS = [*GOOD, *BAD] * 3
LABELS = np.array([0] * 4 + [1] * 4).repeat(1).tolist() * 3
POOLINGS = [{"pooling": pooling} for pooling in ("mean", "attention", "first")]
EVERY = [("text-capsules", {}), ("text-capsule-a", {}), *(("text-pooling", options) for options in POOLINGS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))


def new_model(name: str, folder: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model(name, encoder=folder, num_classes=2, **options).eval()


def text_set() -> TextSet:
    return TextSet(texts=TEXTS, labels=np.array(LABELS), class_names=("good", "bad"))


@pytest.mark.parametrize("fine_tune", [False, True])
@pytest.mark.parametrize(("name", "options"), EVERY)
def test_answers_do_not_depend_on_padding_and_survive_saving(name, options, fine_tune, folder, tmp_path):
    model = new_model(name, folder, fine_tune=fine_tune, **options)
    tokens = model.preprocessing(TEXTS[:8])
    together = model(tokens).scores
    alone = torch.cat([model(row[row != 0][None]).scores for row in tokens])
    torch.testing.assert_close(alone, together, rtol=2e-3, atol=1e-4)
    model.save_pretrained(tmp_path / "saved")
    loaded = load_model(tmp_path / "saved")
    torch.testing.assert_close(loaded(tokens).scores, together, rtol=1e-5, atol=1e-6)
    assert loaded.preprocessing == model.preprocessing
    is_inside = any(name.startswith("encoder.transformer") for name in loaded.state_dict())
    assert is_inside == fine_tune


@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "entropy", "uniform"])
def test_reasons_of_words_add_up_to_the_class(routing, folder):
    model = new_model("text-capsules", folder, routing=routing)
    tokens = model.preprocessing(TEXTS[:4])
    routed = WordRouting(model, tokens)
    scores = routed.output.scores[:, 1]
    torch.testing.assert_close(routed.values([1] * 4).sum(1), scores, rtol=1e-4, atol=1e-5)
    reasons = Predictor(model).explain(["an unbearable film"], [1])[0]
    assert [reason.word for reason in reasons] == ["an", "unbearable", "film"]
    score = model(model.preprocessing(["an unbearable film"])).scores[0, 1].item()
    assert sum(reason.value for reason in reasons) == pytest.approx(score, rel=1e-4)


def test_every_routing_gives_finite_gradients(folder):
    for routing in ("dynamic", "kmeans", "em", "vb", "entropy", "uniform", "self", "attention", "max_min", "heinsen"):
        model = new_model("text-capsules", folder, routing=routing).train()
        model(model.preprocessing(TEXTS[:3])).scores.sum().backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters()), routing


def test_frozen_and_fine_tuned_learn(folder):
    for fine_tune, rate in ((False, 5e-3), (True, 1e-2)):
        options = TextOptions(encoder=folder)
        torch.manual_seed(0)
        model = new_text_model(None, TEXTS, class_names=("good", "bad"), options=options, fine_tune=fine_tune)
        for module in model.modules():  # random vectors say too little to lose more
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        assert model.name == "text-capsules"
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        fit(model, text_set(), config=TrainingConfig(epochs=12, batch_size=4, learning_rate=rate, ema=None))
        assert (Predictor(model).predict(TEXTS) == LABELS).mean() > 0.8
        moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
        assert any(name.startswith("encoder.transformer") for name in moved) == fine_tune


def test_the_encoder_learns_at_its_own_rate(folder):
    model = new_text_model(None, TEXTS, class_names=("a", "b"), options=TextOptions(encoder=folder), fine_tune=True)
    rates = {model.learning_rates[name] for name, _ in model.named_parameters() if name.startswith("encoder.")}
    assert rates == {0.02}
    assert all(model.learning_rates[name] > 1 for name, _ in model.named_parameters() if name.startswith("branches."))


@pytest.mark.parametrize("fine_tune", [False, True])
def test_a_run_that_is_resumed_ends_the_same(fine_tune, folder, tmp_path):
    lines = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, LABELS, strict=True))
    data = tmp_path / "reviews.tsv"
    data.write_text("text\tlabel\n" + lines)

    def config():
        return RunConfig(
            data=str(data),
            model_options={"fine_tune": fine_tune},
            text=TextOptions(encoder=folder),
            validation=0.25,
            folds=4,
            training=TrainingConfig(epochs=2, batch_size=4),
        )

    class Stop(Exception):
        pass

    def stop(event):
        if event.is_epoch_end:
            raise Stop

    whole = run(config(), tmp_path / "whole")
    with pytest.raises(Stop):
        run(config(), tmp_path / "cut", stop)
    again = run(RunConfig.read(tmp_path / "cut"), tmp_path / "cut")
    keys = ("accuracy", "validation_accuracy", "steps")
    assert [whole[key] for key in keys] == [again[key] for key in keys]
    models = [load_model(tmp_path / name / "model") for name in ("whole", "cut")]
    for first, second in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(first, second)
    assert (tmp_path / "whole" / "model").stat().st_size > 0


def test_several_labels_at_once_and_the_estimator(folder):
    several = np.array([[1, 0], [1, 1]] * 12)
    classifier = CapsuleTextClassifier(encoder=folder, epochs=1, random_state=0, device="cpu").fit(TEXTS, several)
    assert classifier.predict(TEXTS).shape == (24, 2)
    assert classifier.model_.name == "text-capsules"
    assert classifier.explain(["a wonderful film"])[0][1].word == "wonderful"
    with pytest.raises(ValueError, match="leave out either the encoder or the vectors"):
        CapsuleTextClassifier(encoder=folder, vectors="some.npz").fit(TEXTS, LABELS)


@pytest.mark.slow  # the exporter takes its time
@pytest.mark.parametrize("fine_tune", [False, True])
def test_an_exported_file_holds_the_encoder(fine_tune, folder, tmp_path, capsys):
    model = new_model("text-capsules", folder, fine_tune=fine_tune)
    model.preprocessing = replace(model.preprocessing, max_length=40)  # two parts
    done = export_model(model, tmp_path / "model.onnx")
    assert done.difference < 1e-4
    assert done.description.preprocessing["first_subword"] == 1
    tokens = torch.nn.functional.pad(model.preprocessing(TEXTS[:2]), (0, 40))[:, :40]
    found = load_onnx(tmp_path / "model.onnx")(tokens.numpy())[1]
    np.testing.assert_allclose(found, model(tokens).scores.detach().numpy(), rtol=2e-3, atol=1e-4)
    assert not any(name.startswith("encoder.transformer") for name in model.state_dict()) or fine_tune
    model.save_pretrained(tmp_path / "saved")
    assert main(["export", str(tmp_path / "saved"), "--out", str(tmp_path / "again.onnx")]) == 0
    told = capsys.readouterr().out
    assert "tokenizer of the encoder inside the file, max_length 40" in told
    assert len(told) < 1000


def test_the_service_answers_and_explains(folder):
    service = Service({"reviews": Predictor(new_model("text-capsules", folder))})
    (card,) = service.models().models
    assert (card.kind, card.language) == ("text", "en")
    assert len(service.predict("reviews", text="an unwatchable film").probabilities) == 2
    explained = service.explain("reviews", text="an unwatchable film")
    assert [word.word for word in explained.words] == ["an", "unwatchable", "film"]


def test_wrong_options_are_told(folder):
    with pytest.raises(ValueError, match="are about an encoder"):
        create_model("text-capsules", num_tokens=10, num_classes=2, fine_tune=True)
    with pytest.raises(TypeError, match="num_tokens, the rows of its embedding, or an encoder"):
        create_model("text-capsules", num_classes=2)
    with pytest.raises(ValueError, match="reads the special token of an encoder"):
        create_model("text-pooling", num_tokens=10, num_classes=2, pooling="first")
    with pytest.raises(ValueError, match="pooling must be one of"):
        new_model("text-pooling", folder, pooling="last")
    with pytest.raises(ValueError, match="has no encoder"):
        create_model("text-capsules", num_tokens=10, num_classes=2).vectors(torch.ones(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="others cannot be set"):
        new_model("text-capsules", folder).set_vectors(torch.tensor([1]), torch.zeros(1, 16))


def test_a_moved_encoder_is_told(folder, tmp_path):
    moved = save_encoder(tmp_path / "here")
    model = new_model("text-capsules", moved)
    model.save_pretrained(tmp_path / "saved")
    Path(moved).rename(tmp_path / "there")
    from torchcaps.encoders.files import load_encoder

    load_encoder.cache_clear()
    with pytest.raises(FileNotFoundError, match="needs its encoder, which it does not hold: no encoder at"):
        torchcaps.load(tmp_path / "saved").predict(["a film"])
