"""The image classifier is a scikit-learn estimator like any other, and learns without being told how."""

import pickle
import subprocess
import sys
import time

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from torchcaps.data import load_data
from torchcaps.estimators import EXPECTED_FAILED_CHECKS, CapsuleImageClassifier
from torchcaps.predictor import load

EXPECTED = EXPECTED_FAILED_CHECKS["CapsuleImageClassifier"]
LEARNING_CHECKS = ("check_classifiers_train", "check_class_weight_classifiers")  # need the default number of epochs


def stripes(num: int = 48, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (n, 8, 8) with horizontal (0) or vertical (1) stripes and noise."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num) % 2
    pattern = (np.arange(8) % 4 < 2) * 150
    images = np.where(labels[:, None, None] == 0, pattern[:, None], pattern[None, :])
    return (images + generator.integers(0, 100, (num, 8, 8))).astype(np.uint8), labels


def classifier(**options) -> CapsuleImageClassifier:
    return CapsuleImageClassifier(**{"epochs": 5, "random_state": 0, "learning_rate": 5e-3} | options)


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(*stripes())


def name_of(check) -> str:
    return getattr(check, "func", check).__name__


QUICK = CapsuleImageClassifier(epochs=2)
QUICK_CHECKS = [check for _, check in estimator_checks_generator(QUICK) if name_of(check) not in LEARNING_CHECKS]


@pytest.mark.parametrize("check", QUICK_CHECKS, ids=name_of)
def test_scikit_learn_checks(check):
    check(clone(QUICK))


@pytest.mark.slow
def test_scikit_learn_checks_of_the_defaults():
    results = check_estimator(CapsuleImageClassifier(), expected_failed_checks=EXPECTED, on_skip=None)
    status = [result["status"] for result in results]
    assert status.count("passed") >= 50
    assert len(EXPECTED) <= 3
    assert status.count("passed") + status.count("skipped") + status.count("xfail") == len(status)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("embedded", 0.975), ("8 x 8", 0.97)])
def test_defaults_are_good_within_two_minutes(name, least):
    if name == "embedded":
        data = load_data("digits")
        train, test = (data.train.images, data.train.labels), (data.test.images, data.test.labels)
    else:
        images, labels = load_digits(return_X_y=True)
        x_train, x_test, y_train, y_test = train_test_split(images, labels, random_state=0)
        train, test = (x_train, y_train), (x_test, y_test)
    started = time.monotonic()
    trained = CapsuleImageClassifier(random_state=0).fit(*train)
    assert time.monotonic() - started < 120
    assert trained.score(*test) >= least


def test_it_learns_and_keeps_labels():
    images, labels = stripes()
    names = np.array(["flat", "upright"])[labels]
    trained = classifier().fit(images, names)
    assert trained.classes_.tolist() == ["flat", "upright"]
    fresh, fresh_labels = stripes(seed=1)
    assert trained.score(fresh, np.array(["flat", "upright"])[fresh_labels]) > 0.9
    probabilities = trained.predict_proba(fresh)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    assert trained.model_.labels == ("flat", "upright")


def test_rows_stacks_and_channels_are_the_same_images(fitted):
    images, labels = stripes()
    expected = fitted.predict_proba(images)
    for form in (images.reshape(48, 64), images[..., None], torch.from_numpy(images), images.tolist()):
        np.testing.assert_array_equal(fitted.predict_proba(form), expected)
    np.testing.assert_allclose(fitted.predict_proba(images.astype(float)), expected, atol=1e-5)  # 0 to 255 all the same
    of_rows = classifier().fit(images.reshape(48, 64), labels)
    np.testing.assert_array_equal(of_rows.predict_proba(images), expected)
    assert of_rows.image_shape_ == (8, 8, 1)
    assert fitted.n_features_in_ == 64


@pytest.mark.parametrize(
    ("shape", "options", "expected"),
    [
        ((6, 5), {}, (1, 5, 1)),
        ((6, 12), {"image_shape": (2, 2, 3)}, (2, 2, 3)),
        ((6, 12), {"image_shape": (3, 4)}, (3, 4, 1)),
        ((6, 3, 4, 3), {}, (3, 4, 3)),
    ],
)
def test_shapes_of_images(shape, options, expected):
    images = np.random.default_rng(0).random(shape)
    trained = classifier(epochs=1, **options).fit(images, [0, 1] * 3)
    assert trained.image_shape_ == expected
    assert trained.predict(images).shape == (6,)


def test_values_beyond_the_training_range_count_as_the_nearest():
    images, labels = stripes()
    trained = classifier().fit(images / 7 - 3, labels)
    assert trained.pixel_range_ == (images.min() / 7 - 3, images.max() / 7 - 3)
    far = (images / 7 - 3).copy()
    far[far == far.max()] = 1e9
    np.testing.assert_array_equal(trained.predict_proba(far), trained.predict_proba(images / 7 - 3))


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"image_shape": (3, 3)}, lambda x, y: (x.reshape(48, 64), y), "does not describe rows of 64 values"),
        ({"class_weight": {7: 1}}, None, "class_weight names classes that y does not have"),
        ({"class_weight": "even"}, None, "class_weight must be None, 'balanced' or a dict"),
        ({"model": "capsnet-smal"}, None, "did you mean 'capsnet-small'"),
        ({"device": "abacus"}, None, "device 'abacus' is not here; choose one of auto, cpu"),
        ({}, lambda x, y: (x, np.stack([y, y + 1], 1)), "got several columns of labels"),
    ],
)
def test_errors_are_sentences(options, change, message):
    images, labels = stripes()
    if change is not None:
        images, labels = change(images, labels)
    with pytest.raises(ValueError, match=message):
        classifier(**options).fit(images, labels)


def test_images_of_another_shape_are_refused(fitted):
    with pytest.raises(ValueError, match=r"images must have shape \(8, 8, 1\) as in training, got \(4, 16\)"):
        fitted.predict(np.zeros((2, 4, 16), np.uint8))


def test_pickle_joblib_clone_and_save(fitted, tmp_path):
    images, _ = stripes(seed=1)
    expected = fitted.predict_proba(images)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(images), expected)
    joblib.dump(fitted, tmp_path / "classifier.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "classifier.joblib").predict_proba(images), expected)
    np.testing.assert_array_equal(clone(fitted).fit(*stripes()).predict_proba(images), expected)
    fitted.model_.save_pretrained(tmp_path / "model")
    np.testing.assert_allclose(load(tmp_path / "model").predict_proba(images), expected, atol=1e-6)


def test_seeds_and_the_callers_random_numbers(fitted):
    images, labels = stripes()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    again = classifier().fit(images, labels)
    assert torch.equal(torch.rand(1), expected)
    assert np.array_equal(again.predict_proba(images), fitted.predict_proba(images))
    other = classifier(random_state=1).fit(images, labels)
    assert not np.array_equal(other.predict_proba(images), fitted.predict_proba(images))


def test_in_pipelines_searches_and_calibration():
    images, labels = stripes()
    rows = images.reshape(48, 64)
    pipeline = make_pipeline(MinMaxScaler(), classifier(model="cnn-small"))
    assert cross_val_score(pipeline, rows, labels, cv=2).mean() > 0.9
    search = GridSearchCV(classifier(), {"routing": ["kmeans", "uniform"]}, cv=2).fit(images, labels)
    assert search.best_params_["routing"] in ("kmeans", "uniform")
    assert search.best_estimator_.model_.options["routing"] == search.best_params_["routing"]
    calibrated = CalibratedClassifierCV(classifier(), cv=2).fit(images, labels)
    assert calibrated.score(images, labels) > 0.9


def test_several_labels_at_once():
    images, labels = stripes(64)
    bright = np.arange(64) % 4 < 2
    images = np.where(bright[:, None, None], images, images // 3).astype(np.uint8)
    targets = np.stack([labels == 0, labels == 1, bright], 1).astype(int)
    trained = classifier(epochs=20).fit(images, targets)
    predicted = trained.predict(images)
    assert predicted.dtype == np.int64
    assert (predicted == targets).mean() > 0.9
    assert trained.classes_.tolist() == [0, 1, 2]


def test_partial_fit_goes_on_where_it_stood():
    images, labels = stripes()
    one, other = (classifier(epochs=None) for _ in range(2))
    for step in range(12):
        part = slice(8 * (step % 6), 8 * (step % 6 + 1))
        for each in (one, other):
            each.partial_fit(images[part], labels[part], classes=[0, 1])
    assert one.n_iter_ == 12
    assert one.score(*stripes(seed=1)) > 0.8
    np.testing.assert_array_equal(one.predict_proba(images), other.predict_proba(images))
    with pytest.raises(ValueError, match="labels that are not among the classes"):
        one.partial_fit(images, labels + 1)
    with pytest.raises(ValueError, match="are not those of the first call"):
        one.partial_fit(images, labels, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="classes must be given in the first call"):
        classifier().partial_fit(images, labels)


def test_class_weights_move_the_answers():
    generator = np.random.default_rng(0)
    images, labels = generator.random((60, 5)), np.arange(60) % 2  # nothing to learn but the weights
    shares = [
        classifier(class_weight=weights).fit(images, labels).predict(images).mean()
        for weights in ({0: 100, 1: 0.01}, {1: 100, 0: 0.01})
    ]
    assert shares[0] < 0.1
    assert shares[1] > 0.9
    uneven = np.arange(60) % 10 == 0
    plain, balanced = (
        classifier(class_weight=weights).fit(images, uneven).predict_proba(images)[:, 1].mean()
        for weights in (None, "balanced")
    )
    assert balanced > plain + 0.1


def test_early_stopping_takes_the_best():
    images, _ = stripes()
    noise = np.random.default_rng(0).integers(0, 2, 48)
    trained = classifier(epochs=60, early_stopping=2, validation_fraction=0.25).fit(images, noise)
    assert 3 <= trained.n_iter_ < 60


def test_verbose_shows_progress_and_silence_is_the_default(capsys):
    images, labels = stripes()
    classifier(epochs=2).fit(images, labels)
    assert capsys.readouterr().out == ""
    classifier(epochs=2, verbose=True).fit(images, labels)
    out = capsys.readouterr().out
    assert "epoch   1  loss" in out
    assert "epoch   2  loss" in out


def test_the_package_imports_nothing_heavy():
    code = "import sys, torchcaps.estimators; assert not {'torch', 'sklearn'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_range_than_in_training_is_refused(fitted):
    images, labels = stripes()
    with pytest.raises(ValueError, match="lie between 0 and 1 but lay between 0 and 255"):
        fitted.predict(images / 255)
    assert np.array_equal(fitted.predict(images.astype(float)), fitted.predict(images))
    with pytest.raises(ValueError, match="scale them in the same way"):
        classifier().fit(images / 255, labels).predict(images)


def test_channels_come_last():
    with pytest.raises(ValueError, match="channels come last"):
        classifier().fit(np.zeros((4, 3, 12, 12), np.uint8), [0, 1, 0, 1])


def test_dark_bytes_are_no_shares():
    dark = (stripes()[0] > 100).astype(np.uint8)
    fitted = classifier().fit(dark, stripes()[1])
    assert np.array_equal(fitted.predict_proba(dark), fitted.predict_proba(dark.astype(float)))


def test_models_and_options_that_do_not_fit():
    with pytest.raises(ValueError, match="text-capsule-a does not take images; choose one of backbone-capsules"):
        classifier(model="text-capsule-a").fit(*stripes())
    with pytest.raises(ValueError, match="a name in training_options must be one of .*, got 'lr'"):
        classifier(training_options={"lr": 1}).fit(*stripes())
