"""What the service answers is what the models compute."""

import numpy as np
import pytest
import torch

from support.routed import routed_image
from torchcaps.capsules import Capsules
from torchcaps.inspection import origin_shares
from torchcaps.models import create_model
from torchcaps.nn import create_routing
from torchcaps.predictor import Predictor
from torchcaps.routing import kmeans_routing
from torchcaps.service import Refusal, RoutingChoice, Service
from torchcaps.service.images import to_png
from torchcaps.service.tracing import new_routing


def prepared(service, name, image):
    return service.predictors[name].model.preprocessing(image[None])[0]


@pytest.mark.parametrize("name", ["capsules", "cnn", "multi"])
def test_predictions_are_those_of_the_model(service, digit, name):
    predictor = service.predictors[name]
    found = service.predict(name, image=digit)
    output = predictor.run(digit[None])
    assert np.allclose(found.probabilities, predictor.model.task.estimate(output)[0], atol=1e-6)
    expected = output.scores[0] if predictor.model.gives_activations else output.scores[0].softmax(-1)
    assert np.allclose(found.scores, expected, atol=1e-6)
    assert found.best == int(expected.argmax())
    assert found.label == str(found.best)
    assert found.milliseconds > 0
    assert np.array_equal(found.scores, service.predict(name, image=to_png(digit)).scores)


def test_texts_and_their_words(service):
    text = "a fine film"
    found = service.predict("english", text=text)
    assert np.allclose(found.probabilities, service.predictors["english"].predict_proba([text])[0], atol=1e-6)
    explained = service.explain("english", text=text, class_index=0)
    reasons = service.predictors["english"].explain([text], [0])[0]
    assert [word.word for word in explained.words] == ["a", "fine", "film"]
    assert [word.value for word in explained.words] == pytest.approx([value for _, value in reasons], abs=1e-6)
    assert (explained.label, explained.places, explained.tree) == ("negative", None, None)
    assert service.explain("english", text=text).class_index == found.best
    assert [word.word for word in service.explain("chinese", text="好看").words] == ["好", "看"]


def test_places_add_up_and_are_those_of_the_picture(service, digit):
    found = service.explain("capsules", image=digit)
    routed = routed_image(service.predictors["capsules"].model, prepared(service, "capsules", digit))
    assert found.class_index == routed.strongest[0]
    assert np.allclose(found.places.shares, origin_shares(routed, found.class_index))
    assert found.places.shares.sum() == pytest.approx(100, abs=0.01)
    assert (found.places.window.height, found.places.window.row_step, found.places.image_width) == (19, 4, 28)
    other = service.explain("capsules", image=digit, class_index=7)
    assert (other.label, other.tree) == ("7", None)
    assert other.score == pytest.approx(float(routed.activations[-1, 7]), abs=1e-5)


def test_a_tree_of_a_matrix_network(service):
    image = np.random.default_rng(2).integers(0, 256, (20, 20, 2), dtype=np.uint8)
    found = service.explain("matrix", image=image, class_index=3)
    nodes, edges = found.tree.nodes, found.tree.edges
    assert (nodes[0].layer, nodes[0].label, nodes[0].window) == (3, "truck", None)
    assert sorted(edge.child for edge in edges) == list(range(1, len(nodes)))  # a tree: one parent each
    for edge in edges:
        assert nodes[edge.child].layer == nodes[edge.parent].layer - 1
        assert 0 <= edge.share <= 1
        window = nodes[edge.child].window
        assert 0 <= window.top <= window.top + window.height <= 20
    assert {node.layer for node in nodes} == {0, 1, 2, 3}


def test_a_trace_tells_every_iteration(service, digit):
    found = service.trace("capsules", image=digit, num_points=10)
    routed = routed_image(service.predictors["capsules"].model, prepared(service, "capsules", digit))
    assert (found.routing.algorithm, found.routing.num_iterations, len(found.steps)) == ("dynamic", 3, 3)
    assert found.plane.classes == routed.strongest[:3]
    assert (found.best, found.label) == (routed.strongest[0], str(routed.strongest[0]))
    couplings = routed.couplings.reshape(3, 3, 3, 16, 10)
    for step, told in enumerate(found.steps):
        assert np.allclose(told.activations, routed.activations[step])
        assert np.allclose(told.poses, routed.poses[step])
        assert np.allclose(told.by_place, couplings[step].mean(2))
        assert np.allclose(told.by_type, couplings[step].mean((0, 1)))
        assert told.point_couplings.shape == (10, 3)
        for point, (row, column, kind) in enumerate(found.plane.places):
            assert np.allclose(
                told.point_couplings[point], couplings[step, row, column, kind, found.plane.classes], atol=1e-6
            )
    assert found.plane.points.shape == (10, 3, 2)
    assert 0 < found.plane.variance_shares.sum() <= 1.0001
    assert np.allclose(service.predict("capsules", image=digit).scores, found.steps[-1].activations, atol=1e-5)


def test_two_routings_share_points_and_axes(service, digit):
    first = service.trace("capsules", image=digit, classes=[4, 2])
    second = service.trace(
        "capsules", image=digit, classes=[4, 2], routing=RoutingChoice(algorithm="kmeans", num_iterations=2)
    )
    assert np.array_equal(first.plane.points, second.plane.points)
    assert first.plane.places == second.plane.places
    votes = routed_image(service.predictors["capsules"].model, prepared(service, "capsules", digit)).votes
    expected = kmeans_routing(torch.from_numpy(votes)[None], num_iterations=2)
    assert np.allclose(second.steps[-1].activations, expected.capsules.activations[0], atol=1e-5)


@pytest.mark.parametrize("name", ["capsules", "matrix"])
@pytest.mark.parametrize("algorithm", ["dynamic", "em", "entropy", "kmeans", "uniform"])
def test_every_routing_on_every_network(service, name, algorithm):
    channels = service.predictors[name].model.preprocessing.channels
    image = np.random.default_rng(3).integers(0, 256, (28, 28, channels), dtype=np.uint8)
    num_iterations = None if algorithm == "uniform" else 2
    choice = RoutingChoice(algorithm=algorithm, num_iterations=num_iterations)
    found = service.trace(name, image=image, routing=choice)
    assert (found.routing.algorithm, found.routing.num_iterations) == (algorithm, num_iterations)
    assert len(found.steps) == {"kmeans": 3, "uniform": 1}.get(algorithm, 2)
    assert all(np.isfinite(step.activations).all() and np.isfinite(step.poses).all() for step in found.steps)


def test_a_routing_of_the_same_kind_keeps_options_and_costs(service):
    own = service.predictors["matrix"].model.class_capsules.routing
    again = new_routing(own, RoutingChoice(algorithm="em", num_iterations=5))
    assert torch.equal(again.beta_a, own.beta_a)
    assert again.options == own.options | {"num_iterations": 5}
    leaky = new_routing(create_routing("dynamic", leaky=True), RoutingChoice(algorithm="dynamic", num_iterations=1))
    defaults = create_routing("dynamic").options
    assert leaky.options == defaults | {"leaky": True, "num_iterations": 1}
    assert new_routing(own, RoutingChoice(algorithm="dynamic")).options == defaults


def test_reconstructions_follow_the_pose(service, digit):
    found = service.reconstruct("capsules", image=digit)
    model = service.predictors["capsules"].model
    with torch.no_grad():
        output = model(prepared(service, "capsules", digit)[None])
    assert found.class_index == int(output.scores.argmax())
    assert np.allclose(found.pose, output.poses[0, found.class_index], atol=1e-6)
    assert found.length == pytest.approx(float(output.scores.max()), abs=1e-5)
    expected = output.reconstruction[0].permute(1, 2, 0).numpy()
    assert abs(found.reconstruction / 255 - expected).max() <= 0.5 / 255 + 1e-6
    again = service.reconstruct("capsules", pose=found.pose.tolist(), class_index=found.class_index)
    assert np.array_equal(again.reconstruction, found.reconstruction)
    moved = service.reconstruct("capsules", pose=[2.0] * 16, class_index=3)
    poses = torch.zeros(1, 10, 16)
    poses[0, 3] = 2.0
    decoded = model.decoder(Capsules.from_poses(poses), torch.tensor([3]))[0, 0].detach().numpy()
    assert abs(moved.reconstruction[..., 0] / 255 - decoded).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("name", ["capsules", "cnn", "matrix"])
@pytest.mark.parametrize("attack", ["fgsm", "bim"])
def test_attacks_stay_within_epsilon_and_are_what_is_shown(service, name, attack):
    preprocessing = service.predictors[name].model.preprocessing
    shape = (*preprocessing.image_size, preprocessing.channels)
    image = np.random.default_rng(4).integers(0, 256, shape, dtype=np.uint8)
    found = service.attack(name, image=image, attack=attack, epsilon=0.2, num_steps=3)
    change = found.perturbed.astype(int) - image
    assert 0 < abs(change).max() <= 51
    again = service.predict(name, image=found.perturbed)
    assert np.array_equal(again.scores, found.after.scores)
    assert found.succeeded == (found.after.best != found.before.best)
    assert found.class_index == found.before.best
    assert np.array_equal(np.sign(found.difference.astype(int) - 128), np.sign(change))
    nothing = service.attack(name, image=image, attack=attack, epsilon=0.0)
    assert np.array_equal(nothing.perturbed, image)
    assert (nothing.difference == 128).all()


def test_an_attack_makes_the_true_class_less_likely(service, digit):
    found = service.attack("cnn", image=digit, attack="bim", epsilon=0.1, class_index=6)
    assert found.after.probabilities[6] < found.before.probabilities[6]
    assert found.class_index == 6


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("predict", {"model": "nobody", "text": "a"}, "there is no model of that name; there are: capsules, cnn"),
        ("predict", {"model": "capsules", "text": "a"}, "takes an image, not a text"),
        ("predict", {"model": "english", "image": b""}, "takes a text, not an image"),
        ("predict", {"model": "english"}, "exactly one of image and text"),
        ("predict", {"model": "english", "text": " \n"}, "the text has no words"),
        ("predict", {"model": "english", "text": "a " * 21}, "at most 20 words and signs, got 21"),
        ("predict", {"model": "english", "text": "a" * 2001}, "at most 2000 characters, got 2001"),
        ("explain", {"model": "cnn", "image": b""}, "cnn cannot explain; models that can: capsules, matrix, english"),
        ("explain", {"model": "english", "text": "a", "class_index": 2}, "between 0 and 1, got 2"),
        ("trace", {"model": "english", "image": b""}, "english cannot trace"),
        ("trace", {"model": "capsules", "image": b"", "classes": [1, 1]}, "different ones"),
        ("trace", {"model": "capsules", "image": b"", "classes": [10]}, "between 0 and 9, got 10"),
        ("reconstruct", {"model": "matrix", "image": b""}, "matrix cannot reconstruct"),
        ("reconstruct", {"model": "capsules", "pose": [0.0] * 16}, "needs the class_index"),
        ("reconstruct", {"model": "capsules", "pose": [0.0], "class_index": 1}, "16 entries, got 1"),
        ("reconstruct", {"model": "capsules"}, "exactly one of image and pose"),
        ("attack", {"model": "multi", "image": b"", "attack": "fgsm", "epsilon": 0.1}, "multi cannot attack"),
    ],
)
def test_wrong_questions_are_refused(service, method, options, reason):
    with pytest.raises(Refusal, match=reason):
        getattr(service, method)(**options)


@pytest.mark.parametrize(
    ("algorithm", "num_iterations", "reason"),
    [("uniform", 3, "uniform routing has no iterations"), ("em", 0, "em routing needs at least 1 iteration")],
)
def test_routings_that_cannot_be(service, digit, algorithm, num_iterations, reason):
    choice = RoutingChoice(algorithm=algorithm, num_iterations=num_iterations)
    with pytest.raises(Refusal, match=reason):
        service.trace("capsules", image=digit, routing=choice)


def test_iterations_that_the_trained_options_do_not_allow(digit):
    options = {"alpha": [1.0, 0.5, 0.2]}
    model = create_model(
        "capsnet-small", image_shape=(1, 28, 28), num_classes=3, routing="entropy", routing_options=options
    )
    service = Service({"entropy": Predictor(model)})
    with pytest.raises(Refusal, match="alpha needs one number for each of the 4 iterations"):
        service.trace("entropy", image=digit, routing=RoutingChoice(algorithm="entropy", num_iterations=4))
