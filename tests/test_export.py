"""Exported files compute what the model does, say what they are, and need no torchcaps."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from models.test_models import COMBINATIONS, small
from torchcaps import export
from torchcaps.cli import main
from torchcaps.export import METADATA, ExportError, export_model
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.texts import TextEncoding
from torchcaps.models import create_model, list_models
from torchcaps.routing import routing_names

SMALL = ("capsnet-small", "matrix-capsnet-small")  # with every routing
TEXTS = [("text-cnn", {}), ("text-no-routing", {})]
TEXTS += [(name, {"routing": routing}) for name in ("text-capsule-a", "text-capsule-b") for routing in routing_names()]

ALONE = """
import sys
sys.modules["torchcaps"] = None  # as if it were not installed
import numpy as np, torch
images = np.load({images!r})
{code}
np.save({out!r}, np.asarray(probabilities))
"""
CODE = {
    "onnx": "import onnxruntime as o; probabilities, _ = o.InferenceSession({path!r}).run(None, {{'images': images}})",
    "torch-export": "probabilities = torch.export.load({path!r}).module()(torch.from_numpy(images))[0]",
    "aoti": "probabilities = torch._inductor.aoti_load_package({path!r})(torch.from_numpy(images))[0]",
}


def run_alone(format: str, path, images: np.ndarray, folder) -> np.ndarray:
    """What a file answers in a process that has no torchcaps."""
    np.save(folder / "images.npy", images)
    names = {"images": str(folder / "images.npy"), "out": str(folder / "out.npy")}
    code = ALONE.format(code=CODE[format].format(path=str(path)), **names)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return np.load(folder / "out.npy")


def eager(model, images: np.ndarray, *, raw: bool) -> np.ndarray:
    with torch.inference_mode():
        prepared = model.preprocessing(images) if raw else torch.from_numpy(images)
        return model.task.estimate(model(prepared)).numpy()


def standardising(name: str = "cnn-small", **options):
    """A small model for crops of 18 x 17 from standardised images of 20 x 20."""
    torch.manual_seed(0)
    model = create_model(name, image_shape=(2, 18, 17), num_classes=3, **options).eval()
    model.preprocessing = Preprocessing(image_size=(20, 20), channels=2, scaling="standardise", crop=(18, 17))
    model.labels = ("cat", "dog", "owl")
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("name", "routing"), COMBINATIONS)
def test_every_model_and_routing_as_onnx(name, routing, tmp_path):
    model = small(name, routing).eval()
    export_model(model, tmp_path / "model.onnx")
    images = np.random.default_rng(5).random((5, *model.image_shape), dtype=np.float32)
    answers, _ = export.load_onnx(tmp_path / "model.onnx")(images)
    np.testing.assert_allclose(answers, eager(model, images, raw=False), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "routing"), [c for c in COMBINATIONS if c[0] in SMALL or c[1] in (None, "dynamic", "em")]
)
def test_more_models_by_torch_export(name, routing, tmp_path):
    assert export_model(small(name, routing).eval(), tmp_path / "model.pt2", format="torch-export").difference <= 1e-5


def text_model(name: str, **options):
    """A text model with a small vocabulary, and the tokens of three texts."""
    torch.manual_seed(0)
    encoding = TextEncoding(tokeniser="words", vocabulary=tuple("abcdefgh"), max_length=12)
    model = create_model(name, num_tokens=encoding.num_tokens, num_classes=3, embedding_size=6, **options).eval()
    model.preprocessing = encoding
    return model, np.array([[2, 3, 4, 5, 6] + 7 * [0], [9, 8, 7, 1] * 3, [4] + 11 * [0]])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), TEXTS)
def test_every_text_model_as_onnx(name, options, tmp_path):
    model, tokens = text_model(name, **options)
    exported = export_model(model, tmp_path / "model.onnx")
    assert exported.description.input_name == "tokens"
    assert exported.description.input_shape == (12,)
    answers, _ = export.load_onnx(tmp_path / "model.onnx")(tokens)
    np.testing.assert_allclose(answers, eager(model, tokens, raw=False), atol=1e-4)


def test_digamma_of_positive_numbers():
    values = torch.logspace(-6, 7, 1000, dtype=torch.float64)
    torch.testing.assert_close(export.digamma_of_positive(values), values.digamma(), rtol=1e-9, atol=1e-9)


def test_every_text_model_is_exported_or_says_why_not(tmp_path):
    on_encoders = {"text-capsules", "text-pooling"}  # tests/models/test_encoder.py exports them
    assert {name for name, _ in TEXTS} | {"text-bilstm"} | on_encoders == set(list_models("text"))
    with pytest.raises(ExportError, match="text-bilstm packs its sequences, which torch.export cannot follow"):
        export_model(text_model("text-bilstm")[0], tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="text-capsule-a packs its sequences"):
        export_model(text_model("text-capsule-a", context=3)[0], tmp_path / "model.onnx")


def test_texts_come_as_tokens(tmp_path):
    model, tokens = text_model("text-cnn")
    with pytest.raises(ValueError, match="preprocessing of texts cannot be inside a file"):
        export_model(model, tmp_path / "model.pt2", format="torch-export", include_preprocessing=True)
    exported = export_model(model, tmp_path / "model.pt2", format="torch-export")
    assert TextEncoding.from_dict(exported.description.preprocessing) == model.preprocessing
    answers, _ = export.FORMATS["torch-export"].load(tmp_path / "model.pt2")(tokens)
    np.testing.assert_allclose(answers, eager(model, tokens, raw=False), atol=1e-5)


@pytest.mark.parametrize("format", ["onnx", "torch-export", pytest.param("aoti", marks=pytest.mark.slow)])
def test_a_file_with_preprocessing_runs_alone(format, tmp_path):
    model, path = (
        standardising("capsnet-small", multi_label=format == "onnx"),
        tmp_path / f"model{export.FORMATS[format].suffix}",
    )
    exported = export_model(model, path, format=format, include_preprocessing=True, input_size=(40, 40))
    assert exported.description.input_shape == (40, 40, 2)
    assert exported.description.preprocessing is None
    images = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 2), dtype=np.uint8)
    answers = run_alone(format, path, images, tmp_path)
    np.testing.assert_allclose(answers, eager(model, images, raw=True), atol=1e-4)


def test_a_file_says_what_it_is(tmp_path):
    model = standardising()
    export_model(model, tmp_path / "model.pt2", format="torch-export")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(METADATA)]
        stored = json.loads(archive.read(name))
    assert stored["labels"] == ["cat", "dog", "owl"]
    assert stored["input_shape"] == [2, 18, 17]
    assert Preprocessing.from_dict(stored["preprocessing"]) == model.preprocessing
    assert not [path for path in tmp_path.iterdir() if path.name != "model.pt2"]


def test_onnx_keeps_the_description(tmp_path):
    import onnx

    export_model(standardising(), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    stored = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(stored[METADATA])["labels"] == ["cat", "dog", "owl"]
    assert not model.graph.input[0].type.tensor_type.shape.dim[0].dim_value  # any number of images


def test_a_wrong_file_is_not_left_behind(tmp_path, monkeypatch):
    kind = export.FORMATS["torch-export"]
    wrong = export.Format(
        kind.suffix, kind.why_not, kind.write, lambda path: lambda images: [np.zeros((len(images), 3))] * 2
    )
    monkeypatch.setitem(export.FORMATS, "torch-export", wrong)
    with pytest.raises(ExportError, match="differs from the model by .* it was not written"):
        export_model(standardising(), tmp_path / "model.pt2", format="torch-export")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("model.onnx", {"format": "onxx"}, "did you mean 'onnx'"),
        ("model.onnx", {"format": "aoti"}, "a file of format aoti is called something.pt2, got model.onnx"),
        ("model.onnx", {"input_size": (9, 9)}, "it goes together with include_preprocessing"),
        ("nowhere/model.onnx", {}, "nowhere/model.onnx does not exist"),
    ],
)
def test_errors_are_sentences(name, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_model(standardising(), tmp_path / name, **options)


def test_missing_parts_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"ONNX needs onnxruntime: pip install 'torchcaps\[onnx\]'"):
        export_model(standardising(), tmp_path / "model.onnx")


def test_command(tmp_path, monkeypatch, capsys):
    standardising().save_pretrained(tmp_path / "animals")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "animals", "--format", "torch-export"]) == 0
    out = capsys.readouterr().out
    assert "input:         images, float32 (batch, 2, 18, 17)" in out
    assert "preprocessing: yours to do: image_size [20, 20], channels 2, scaling standardise, crop [18, 17]" in out
    assert "outputs:       probabilities and scores, (batch, 3)" in out
    assert (tmp_path / "animals.pt2").exists()
    text_model("text-cnn")[0].save_pretrained(tmp_path / "letters")
    assert main(["export", "letters", "--format", "torch-export"]) == 0
    out = capsys.readouterr().out
    assert "input:         tokens, int64 (batch, 12)" in out
    assert "vocabulary of 8 words inside the file" in out
    assert main(["export", "nothing"]) == 2
    assert "no model at 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("mind", "comirec-sa") else pytest.param(name, marks=pytest.mark.slow)
        for name in list_models("user")
    ],
)
def test_recommenders_run_in_onnxruntime_alone(name, tmp_path):
    torch.manual_seed(0)
    features = {"num_features": 4, "features_per_item": 1}
    model = create_model(name, num_classes=40, item_size=8, max_length=6, **features).eval()
    model.set_features([[1 + number % 4] for number in range(40)])
    model.counts[1:] = torch.arange(40)
    exported = export_model(model, tmp_path / "model.onnx")
    assert exported.difference < 1e-5
    assert exported.description.outputs == ("items", "scores", "interests")
    assert exported.description.preprocessing["items"][:2] == ["1", "2"]
    rows = np.array([[3, 5, 7, 0, 0, 0], [1, 2, 3, 4, 5, 6], [9, 0, 0, 0, 0, 0]])
    items, _, interests = export.load_onnx(tmp_path / "model.onnx")(rows)
    assert items.shape == (3, 40)  # as many as there are; 0 after the last
    output = model(torch.from_numpy(rows))
    np.testing.assert_allclose(interests, output.poses.detach().numpy(), rtol=1e-4, atol=1e-5)
    for used, row in zip(rows, items):
        assert not set(used[used > 0]) & set(row)
        assert (row > 0).sum() == 40 - (used > 0).sum()


def test_an_exported_list_that_differs_is_noticed():
    description = export.Description(
        model="mind", version="", input_name="used", input_shape=(2,), input_type="int64", preprocessing=None,
        labels=(), multi_label=False, threshold=0.0, at_least_one=False, outputs=export.RANKED, input_largest=3,
    )  # fmt: skip

    def head(inputs):
        shape = (len(inputs), 3)
        return torch.arange(1, 4).expand(shape), torch.tensor([3.0, 2.0, 1.0]).expand(shape), torch.zeros(shape)

    def other(order):
        def run(inputs):
            items, scores, interests = (output.numpy() for output in head(inputs))
            return [items[:, order], scores, interests]

        return run

    assert export._difference(head, other([0, 1, 2]), description) == 0
    assert np.isnan(export._difference(head, other([1, 0, 2]), description))
    assert export._tied(np.array([[3.0, 3.0, 1.0, 0.5]])).tolist() == [[True, True, False, True]]
