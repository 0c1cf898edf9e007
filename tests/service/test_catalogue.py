"""Which models there are, and what is said of each."""

import pytest

from torchcaps.models import create_model
from torchcaps.service import Refusal, Service, shipped_models


def test_the_list_of_models(service):
    found = service.models()
    cards = {card.id: card for card in found.models}
    assert cards["capsules"].abilities == ["predict", "explain", "trace", "reconstruct", "attack"]
    assert cards["matrix"].abilities == ["predict", "explain", "trace", "tree", "attack"]
    assert cards["cnn"].abilities == ["predict", "attack"]
    assert cards["bilstm"].abilities == ["predict"]
    assert cards["multi"].abilities == ["predict", "explain", "trace"]
    assert (cards["chinese"].language, cards["english"].language, cards["cnn"].language) == ("zh", "en", None)
    assert (cards["capsules"].scores, cards["cnn"].scores) == ("activations", "probabilities")
    assert (cards["matrix"].input.channels, cards["matrix"].input.width) == (2, 20)
    assert (cards["english"].input, cards["english"].kind) == (None, "text")
    assert (cards["capsules"].pose_size, cards["cnn"].pose_size, cards["cnn"].routing) == (16, None, None)
    assert dict(cards["capsules"].routing) == {"algorithm": "dynamic", "num_iterations": 3}
    assert [(missing.id, missing.reason) for missing in found.unavailable] == [("broken", "it is broken")]


def test_every_ability_is_one_that_can_be_asked(service, digit, pair):
    """What a card promises is answered, what it does not is refused."""
    asked = {
        "predict": {},
        "explain": {},
        "trace": {},
        "reconstruct": {},
        "attack": {"attack": "fgsm", "epsilon": 0.1},
    }
    for card in service.models().models:
        given = {"text": "a film"} if card.kind == "text" else {"image": digit}
        if card.id == "matrix":
            given = {"image": digit.reshape(14, 28, 2)}
        for ability, options in asked.items():
            if ability in card.abilities:
                assert getattr(service, ability)(card.id, **given, **options).model == card.id
            elif card.kind == "image":
                with pytest.raises(Refusal, match=f"{card.id} cannot {ability}"):
                    getattr(service, ability)(card.id, **given, **options)


def test_routings_that_are_offered_have_their_iterations(service):
    offers = {offer.algorithm: (offer.min_iterations, offer.max_iterations) for offer in service.models().routings}
    assert offers["kmeans"] == (0, 10)
    assert offers["dynamic"] == (1, 10)
    assert offers["uniform"] == (None, None)


def test_what_ships_can_be_asked():
    predictors, unavailable = shipped_models()
    assert "capsnet-small-mnist" in predictors
    assert not unavailable
    Service(predictors).warm_up()


def test_without_models():
    assert Service({}).models().models == []
    with pytest.raises(Refusal, match="there are: none"):
        Service({}).predict("capsules", text="a")


def test_a_run_comes_first_and_what_is_damaged_is_named(tmp_path, monkeypatch):
    model = create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10)
    model.save_pretrained(tmp_path / "mine" / "model")
    shipped = tmp_path / "shipped"
    (shipped / "torn").mkdir(parents=True)
    (shipped / "torn" / "config.json").write_text("{")
    monkeypatch.setattr("torchcaps.service.catalogue.SHIPPED", shipped)
    predictors, unavailable = shipped_models(tmp_path / "mine")
    assert list(predictors) == ["mine"]
    assert "is damaged" in unavailable["torn"]
