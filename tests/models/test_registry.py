"""The registry of models: names, plug-ins, trained models by data set, code of one's own under the rules of trust."""

import json
import sys
import warnings
from textwrap import dedent

import pytest
import torch

import torchcaps
from torchcaps.cli import main
from torchcaps.models import (
    ImageModel,
    ModelOutput,
    create_model,
    list_models,
    list_pretrained,
    load_model,
    register_model,
    registry,
)
from torchcaps.models.registry import MODELS, find_model
from torchcaps.runs import RunConfig

SIZES = {"image_shape": (1, 8, 8), "num_classes": 2}
OWN = '''
import torch
from torchcaps.models import ImageModel, ModelOutput, register_model

class Own(ImageModel):
    """A model of one's own."""

    def __init__(self, *, width: int = 3, **options):
        super().__init__(width=width, **options)
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.LazyLinear(width) if width < 0 else torch.nn.Linear(64, width),
            torch.nn.Linear(width, self.num_classes),
        )

    def forward(self, images, classes=None):
        return ModelOutput(self.layers(images))
'''


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """What a test registers or loads is forgotten."""
    monkeypatch.setattr(registry, "_tried", {})
    known, modules = dict(MODELS), set(sys.modules)
    yield
    MODELS.clear()
    MODELS.update(known)
    for name in set(sys.modules) - modules:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Put a module on the Python path."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(name, code):
        (tmp_path / f"{name}.py").write_text(dedent(code))

    return put


def install(folder, **points):
    """A distribution with these entry points."""
    place = folder / "demo_plugins-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-plugins\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {value}" for name, value in points.items()]
    (place / "entry_points.txt").write_text("\n".join(["[torchcaps.models]", *lines]))


class Tiny(ImageModel):
    def __init__(self, *, width: int = 3, **options):
        super().__init__(width=width, **options)
        self.layer = torch.nn.Linear(64, self.num_classes)

    def forward(self, images, classes=None):
        return ModelOutput(self.layer(images.flatten(1)))


def test_a_registered_model_is_like_one_of_the_package():
    assert register_model("tiny")(Tiny) is Tiny
    assert "tiny" in list_models()
    assert "tiny" in list_models("image")
    assert "tiny" not in list_models("text")
    model = create_model("tiny", **SIZES, width=5)
    assert (type(model), model.name, model.options["width"]) == (Tiny, "tiny", 5)
    with pytest.raises(ValueError, match="an option of tiny must be one of .*, got 'widht'; did you mean 'width'"):
        create_model("tiny", **SIZES, widht=5)
    with pytest.raises(ValueError, match="did you mean 'tiny'"):
        create_model("tinny", **SIZES)
    with pytest.raises(ValueError, match="tiny does not take texts"):
        create_model("tiny", num_tokens=5, num_classes=2)


def test_without_a_name_the_class_has_its_own():
    @register_model
    class Plain(ImageModel):
        pass

    @register_model
    class Called(ImageModel):
        name = "called"

    assert find_model("Plain") is Plain
    assert find_model("called") is Called


def test_what_cannot_be_registered():
    with pytest.raises(ValueError, match="the name 'cnn-small' belongs to torchcaps.models.baselines:SmallCNN"):
        register_model("cnn-small")(Tiny)
    with pytest.raises(TypeError, match="a subclass of torchcaps.models.Model can be registered"):
        register_model("linear")(torch.nn.Linear)
    with pytest.raises(ValueError, match="a model's name has no colons"):
        register_model("a:b")(Tiny)
    register_model("tiny")(Tiny)
    assert register_model("tiny")(Tiny) is Tiny  # a cell runs again


def test_a_subclass_never_passes_for_what_it_is_derived_from(tmp_path):
    class Derived(Tiny):
        pass

    register_model("tiny")(Tiny)
    config = Derived(**SIZES).config()
    assert config["model"].endswith("Derived")
    assert Derived.name == "Derived"
    assert Tiny(**SIZES).config()["model"] == "tiny"
    assert "class" not in create_model("cnn-small", image_shape=(1, 20, 20), num_classes=2).config()


def test_code_of_ones_own_saves_and_loads_where_it_is_trusted(tmp_path, write, monkeypatch):
    write("own_saved", OWN)
    model = create_model("own_saved:Own", **SIZES, width=4).eval()
    model.save_pretrained(tmp_path / "saved")
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(load_model(tmp_path / "saved")(images).scores, model(images).scores)  # it is imported
    del sys.modules["own_saved"]
    with pytest.raises(ValueError, match="asks for the model 'own_saved:Own', .* set TORCHCAPS_TRUST=own_saved"):
        torchcaps.load(tmp_path / "saved")
    assert "own_saved" not in sys.modules
    monkeypatch.setenv("TORCHCAPS_TRUST", "other,own_saved")
    again = torchcaps.load(tmp_path / "saved")
    assert type(again.model).__name__ == "Own"
    assert torch.equal(again.model(images).scores, model(images).scores)


def test_a_registered_one_is_found_by_its_name_or_by_its_place(tmp_path, write, monkeypatch):
    write("own_named", OWN.replace("class Own", '@register_model("own-named")\nclass Own'))
    find_model("own_named:Own")
    create_model("own-named", **SIZES).save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["model"], config["class"]) == ("own-named", "own_named:Own")
    assert load_model(tmp_path / "saved").name == "own-named"
    del sys.modules["own_named"], MODELS["own-named"]
    with pytest.raises(ValueError, match="TORCHCAPS_TRUST=own_named"):
        load_model(tmp_path / "saved")
    monkeypatch.setenv("TORCHCAPS_TRUST", "own_named")
    assert load_model(tmp_path / "saved").name == "own-named"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"model": "json:JSONDecoder"}, "must be a subclass of torchcaps.models.Model"),
        ({"model": "json:nothing"}, "no model at 'json:nothing'"),
        ({"model": "unknown"}, "describes 'unknown', which is not a Model"),
        ({"model": "unknown", "class": "nocolon"}, "describes 'unknown', which is not a Model"),
        ({"model": "unknown", "class": 3}, "describes 'unknown', which is not a Model"),
        ({"model": None}, "describes None, which is not a Model"),
    ],
)
def test_what_a_file_may_not_name(entry, message, tmp_path):
    create_model("cnn-small", image_shape=(1, 20, 20), num_classes=2).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | entry))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_a_run_that_is_resumed_names_no_code_of_its_own(tmp_path, capsys):
    from dataclasses import asdict

    (tmp_path / "config.json").write_text(json.dumps(asdict(RunConfig(model="own_evil:Model"))))
    assert main(["train", "--resume", str(tmp_path)]) != 0
    said = capsys.readouterr()
    assert "asks for the model 'own_evil:Model'" in " ".join((said.out + said.err).split())


def test_plugins_are_loaded_when_they_are_wanted(tmp_path, write):
    write("own_good", OWN)
    write("own_broken", "raise RuntimeError('no such luck')")
    write("own_stranger", "Other = dict")
    install(tmp_path, good_model="own_good:Own", broken_model="own_broken:Own", stranger="own_stranger:Other")
    create_model("cnn-small", image_shape=(1, 20, 20), num_classes=2)
    assert "own_good" not in sys.modules
    with pytest.warns(RuntimeWarning) as said:
        names = list_models()
    assert sorted(str(each.message).split(" cannot")[0] for each in said) == [
        "the plug-in 'broken-model' (own_broken:Own)",
        "the plug-in 'stranger' (own_stranger:Other)",
    ]
    assert "good-model" in names
    assert "cnn-small" in names
    assert "broken-model" not in names
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert list_models() == names
    assert create_model("good-model", **SIZES).name == "good-model"
    with pytest.raises(ValueError, match="'broken-model' .* cannot be used: RuntimeError: no such luck"):
        create_model("broken-model", **SIZES)


def test_a_folder_loads_the_plugin_it_names_and_no_other(tmp_path, write):
    write("own_first", OWN)
    write("own_second", OWN)
    install(tmp_path, first="own_first:Own", second="own_second:Own")
    create_model("first", **SIZES).save_pretrained(tmp_path / "saved")
    for name in ("own_first", "own_second"):
        del sys.modules[name]
    for name in ("first", "second"):
        del MODELS[name]
    registry._tried.clear()
    assert load_model(tmp_path / "saved").name == "first"
    assert "own_second" not in sys.modules


def test_trained_models_by_data_set(tmp_path):
    assert list_pretrained("capsnet-small").keys() == {"mnist"}
    assert list_models("text", pretrained=True) == ["text-capsule-a"]
    trained = create_model("capsnet-small", pretrained="mnist", image_shape=(1, 28, 28), num_classes=10)
    shipped = torchcaps.load("capsnet-small-mnist").model
    assert trained.state_dict().keys() == shipped.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(trained.state_dict().values(), shipped.state_dict().values()))
    assert not trained.training
    assert create_model("cnn-small", pretrained=True).card["dataset"] == "mnist"
    trained.save_pretrained(tmp_path / "mine")
    assert create_model("capsnet-small", pretrained=tmp_path / "mine").card == trained.card


def test_trained_models_that_are_not_there(tmp_path):
    with pytest.raises(
        ValueError, match="pretrained of capsnet-small must be one of 'mnist', got 'mnst'; did you mean"
    ):
        create_model("capsnet-small", pretrained="mnst")
    with pytest.raises(ValueError, match="which matrix-capsnet-small: it ships trained on smallnorb, toys"):
        create_model("matrix-capsnet-small", pretrained=True)
    with pytest.raises(ValueError, match="no capsnet for 'mnist': it ships untrained; give pretrained a folder"):
        create_model("capsnet", pretrained="mnist")
    with pytest.raises(ValueError, match="holds a cnn-small, not a capsnet-small"):
        create_model("capsnet-small", pretrained=list_pretrained("cnn-small")["mnist"])
    with pytest.raises(ValueError, match="of mnist has routing='dynamic', not 'em'; leave routing out"):
        create_model("capsnet-small", pretrained="mnist", routing="em")
    with pytest.raises(ValueError, match="has num_classes=10, not 3"):
        create_model("capsnet-small", pretrained="mnist", num_classes=3)
    with pytest.raises(FileNotFoundError, match="no model at"):
        create_model("capsnet-small", pretrained=tmp_path / "nothing")
    with pytest.raises(TypeError, match="a new capsnet-small needs num_classes"):
        create_model("capsnet-small", image_shape=(1, 28, 28))
