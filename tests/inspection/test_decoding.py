"""What is decoded is what the model's decoder draws."""

import numpy as np
import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.inspection import move_entries, reconstruct
from torchcaps.inspection.decoding import decoded_offsets
from torchcaps.models import create_model


def new_model(**options):
    torch.manual_seed(0)
    return create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3, class_size=4, **options).eval()


def test_one_entry_moves_at_a_time():
    model = new_model()
    poses = 0.3 * torch.rand(1, 3, 4)
    decoded = decoded_offsets(model.decoder, poses, 1, (-0.2, 0.0, 0.2))
    assert decoded.shape == (4, 3, 1, 20, 20)
    moved = poses.clone()
    moved[0, 1, 3] -= 0.2
    expected = model.decoder(Capsules.from_poses(moved), torch.tensor([1])).detach().numpy()[0]
    assert np.allclose(decoded[3, 0], expected, atol=1e-6)
    assert np.allclose(decoded[:, 1], decoded[0, 1], atol=1e-6)
    assert not np.allclose(decoded[3, 0], decoded[3, 2], atol=1e-5)


def test_the_answer_is_drawn_and_the_model_left_as_it_was():
    model, images = new_model().train(), torch.rand(2, 1, 20, 20)
    found = reconstruct(model, images)
    assert model.training
    output = model.eval()(images)
    assert np.allclose(found.decoded, output.reconstruction.detach(), atol=1e-6)
    assert list(found.answers) == [model.labels[index] for index in output.scores.argmax(-1).tolist()]
    moved = move_entries(model, images[0], offsets=(0.0,))
    assert moved.label == found.answers[0]
    assert np.allclose(moved.decoded[2, 0], found.decoded[0], atol=1e-5)


def test_a_model_without_decoder():
    plain = new_model(reconstruct=False)
    for ask in (
        lambda: move_entries(plain, torch.rand(1, 20, 20)),
        lambda: reconstruct(plain, torch.rand(1, 1, 20, 20)),
    ):
        with pytest.raises(ValueError, match="no decoder"):
            ask()
