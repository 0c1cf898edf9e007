"""The text classifier is a scikit-learn estimator like any other."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks

from torchcaps.estimators import CapsuleTextClassifier
from torchcaps.predictor import load

TEXTS = ["a good film", "good fun", "really good", "a bad film", "bad fun", "really bad"] * 6
LABELS = ["yes"] * 3 + ["no"] * 3
SMALL = {"channels": 16, "types": (8, 6), "pose_size": 8, "embedding_size": 16}


def classifier(**options) -> CapsuleTextClassifier:
    defaults = {"epochs": 12, "batch_size": 9, "random_state": 0, "learning_rate": 1e-2, "model_options": SMALL}
    return CapsuleTextClassifier(**(defaults | options))


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(TEXTS, LABELS * 6)


# scikit-learn's other checks feed tables of numbers; it cannot make texts (SkipTestWarning)
CHECKS = (
    checks.check_estimator_cloneable,
    checks.check_estimator_repr,
    checks.check_get_params_invariance,
    checks.check_no_attributes_set_in_init,
    checks.check_set_params,
    checks.check_valid_tag_types,
)


@pytest.mark.parametrize("check", CHECKS)
def test_scikit_learn_checks(check):
    check("CapsuleTextClassifier", CapsuleTextClassifier())


def test_it_learns_and_answers_in_the_labels_it_was_given(fitted):
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.predict(["good good one", "a bad one"]).tolist() == ["yes", "no"]
    assert fitted.score(TEXTS, LABELS * 6) == 1.0
    np.testing.assert_allclose(fitted.predict_proba(TEXTS).sum(1), 1)


def test_lists_arrays_and_tuples_are_the_same(fitted):
    expected = fitted.predict_proba(TEXTS)
    for texts in (np.array(TEXTS), np.array(TEXTS, dtype=object), tuple(TEXTS)):
        np.testing.assert_array_equal(fitted.predict_proba(texts), expected)


def test_same_seed_same_model_and_pickle_and_folder(fitted, tmp_path):
    again = clone(fitted).fit(TEXTS, LABELS * 6)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    fitted.model_.save_pretrained(tmp_path)
    assert load(tmp_path).labels == ("no", "yes")
    np.testing.assert_allclose(load(tmp_path).predict_proba(TEXTS), fitted.predict_proba(TEXTS), rtol=1e-5)


def test_several_labels():
    targets = np.array([["good" in text, "film" in text] for text in TEXTS]).astype(int)
    model = classifier(epochs=30).fit(TEXTS, targets)
    assert model.predict(TEXTS).shape == targets.shape
    assert (model.predict(TEXTS) == targets).mean() > 0.9


def test_pipelines_cross_validation_and_partial_fit():
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.upper() for text in texts]), classifier(epochs=4))
    assert len(cross_val_score(pipeline, TEXTS, LABELS * 6, cv=2)) == 2
    model = classifier()
    for _ in range(3):
        model.partial_fit(TEXTS, LABELS * 6, classes=["no", "yes"])
    assert model.n_iter_ == 3


def test_reasons(fitted):
    reasons = fitted.explain(["a good film"])[0]
    assert [reason.word for reason in reasons] == ["a", "good", "film"]
    assert max(reasons, key=lambda reason: reason.value).word == "good"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "X must be a list of texts, got str; put a single text in a list"),
        ([1, 2], r"X must hold texts, but number 0 is 1 \(int\)"),
        (["a", None], "number 1 is None"),
        ([], "X holds no texts"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(fitted, texts, message):
    with pytest.raises(ValueError, match=message):
        fitted.predict(texts)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier().fit(["a", "b"], ["x"])


def test_a_table_of_one_column(fitted):
    column = np.array(TEXTS, dtype=object)[:, None]
    assert fitted.predict(column).tolist() == fitted.predict(TEXTS).tolist()
    with pytest.raises(ValueError, match=r"one column of texts, got a table of shape \(36, 2\)"):
        fitted.predict(np.hstack([column, column]))


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_every_text_has_a_label(missing):
    with pytest.raises(ValueError, match="y must name a class for each input, but number 1 has none"):
        classifier().fit(["a", "b", "c"], np.array(["x", missing, "y"], dtype=object))


def test_options_of_training_are_heeded():
    options = {"early_stopping": 1, "learning_rate": 1e-9}
    assert classifier(epochs=30, training_options=options).fit(TEXTS, LABELS * 6).n_iter_ < 30
    for wrong in ({"epochs": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            classifier(**wrong).fit(TEXTS, LABELS * 6)


def test_chinese_is_cut_into_characters_unless_there_are_vectors_or_it_is_told_otherwise():
    texts = ["好看的电影", "难看的电影"] * 4
    fitted = classifier(epochs=1).fit(texts, [0, 1] * 4)
    assert fitted.model_.preprocessing.tokeniser == "characters"
    pytest.importorskip("rjieba")
    assert classifier(epochs=1, tokeniser="chinese").fit(texts, [0, 1] * 4).model_.preprocessing.tokeniser == "chinese"


def test_fewer_steps_where_words_are_counted(monkeypatch):
    config = classifier(epochs=None, batch_size=None).fit(TEXTS, LABELS * 6)._training_config(np.array(TEXTS * 100))
    assert (config.batch_size, config.epochs) == (64, 2)
