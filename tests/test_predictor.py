"""From raw inputs to answers: parts, crops, empty inputs, folders that hold no model."""

import json

import numpy as np
import pytest
import torch

from torchcaps import load
from torchcaps.inputs import Preprocessing, TextEncoding
from torchcaps.models import create_model
from torchcaps.predictor import Predictor

TEXTS = ["a fine film", "bad", "a film that is neither fine nor bad", "fine fine", "a bad bad film"]


@pytest.fixture(scope="module")
def images() -> Predictor:
    torch.manual_seed(0)
    model = create_model("cnn-small", image_shape=(1, 20, 20), num_classes=3)
    model.preprocessing = Preprocessing(image_size=(24, 24), scaling="standardise", crop=(20, 20))
    return Predictor(model)


@pytest.fixture(scope="module")
def texts() -> Predictor:
    torch.manual_seed(0)
    encoding = TextEncoding.of(TEXTS)
    model = create_model("text-capsule-a", num_tokens=encoding.num_tokens, num_classes=3, embedding_size=8)
    model.preprocessing, model.labels = encoding, ("down", "flat", "up")
    return Predictor(model)


def raw(num: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (num, 30, 30), dtype=np.uint8)


def test_how_inputs_are_cut_into_parts_does_not_matter(images, texts):
    for predictor, inputs in ((images, raw(7)), (texts, TEXTS)):
        whole = predictor.predict_proba(inputs)
        np.testing.assert_allclose(predictor.predict_proba(inputs, batch_size=2), whole, atol=1e-6)
        alone = np.concatenate([predictor.predict_proba(inputs[i : i + 1]) for i in range(len(inputs))])
        np.testing.assert_allclose(alone, whole, atol=1e-6)
        assert np.array_equal(predictor.predict(inputs), whole.argmax(1))


def test_nothing_gives_no_answers(images, texts):
    assert images.predict_proba(raw(0)).shape == (0, 3)
    assert images.predict(raw(0)).shape == (0,)
    assert texts.predict_proba([]).shape == (0, 3)


def test_scores_are_averaged_over_crops(images, texts):
    pictures = raw(2)
    views = images.model.preprocessing.crops(pictures, 5)
    with torch.inference_mode():
        scores = torch.stack([images.model(views[:, number]).scores for number in range(5)]).mean(0)
    np.testing.assert_allclose(images.predict_proba(pictures, crops=5), scores.softmax(-1), atol=1e-5)
    assert images.run(pictures).scores.shape == (2, 3)
    with pytest.raises(ValueError, match="crops are for images; a text is read as a whole"):
        texts.predict_proba(TEXTS, crops=5)


def test_it_says_what_it_is_asked_about(images, texts):
    assert (images.kind, texts.kind) == ("image", "text")
    assert repr(texts) == "Predictor(text-capsule-a, 3 classes: down, flat, up)"


def test_words_have_reasons_and_pixels_have_not(images, texts):
    (reasons,) = texts.explain(TEXTS[:1], ["up"])
    assert [word for word, _ in reasons] == ["a", "fine", "film"]
    with pytest.raises(ValueError, match="cnn-small"):
        images.explain(TEXTS[:1])


def test_a_run_folder_is_loaded_by_its_model(images, tmp_path):
    images.model.save_pretrained(tmp_path / "run" / "model")
    again = load(tmp_path / "run")
    assert np.array_equal(again.predict_proba(raw(3)), images.predict_proba(raw(3)))
    assert not again.model.training


@pytest.mark.parametrize(
    ("file", "message"),
    [("result.json", "its model was not kept"), ("environment.json", "is not finished; go on with")],
)
def test_a_run_without_a_model_says_why(file, message, tmp_path):
    (tmp_path / file).write_text(json.dumps({}))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_an_answer_is_the_output_without_the_reconstruction():
    predictor = Predictor(create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10))
    whole, answer = predictor.run(raw(2)), predictor.answer(raw(2))
    assert whole.reconstruction is not None
    assert answer.reconstruction is None
    assert torch.equal(whole.scores, answer.scores)
    assert torch.equal(whole.poses, answer.poses)


def test_texts_are_not_compiled(texts):
    with pytest.raises(ValueError, match="only models of images are compiled, and this is one of a text"):
        texts.compile()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's own making
def test_a_compiled_model_answers_one_image_and_leaves_batches_alone(monkeypatch):
    predictor = Predictor(create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10))
    expected = predictor.answer(raw(3))
    predictor.compile()
    sizes, compiled = [], predictor._answer_one
    monkeypatch.setattr(predictor, "_answer_one", lambda images: sizes.append(len(images)) or compiled(images))
    with torch._dynamo.config.patch(error_on_recompile=True):  # however the one channel of an image is told
        for one in (raw(3)[:1], raw(3)[:1, :, :, None], torch.from_numpy(raw(3)[:1])):
            torch.testing.assert_close(predictor.answer(one).scores, expected.scores[:1])
    assert torch.equal(predictor.answer(raw(3)).scores, expected.scores)
    assert sizes == [1, 1, 1]
