"""Decoders: what is masked, how large they are, what they give."""

import pytest
import torch

from torchcaps import nn
from torchcaps.capsules import Capsules


def capsules(batch_size=4):
    return Capsules.from_poses(torch.randn(batch_size, 3, 5))


def decoders(image_shape=(2, 9, 7)):
    return [nn.FullyConnectedDecoder(3, 5, image_shape, hidden=(8, 9)), nn.ConvDecoder(3, 5, image_shape, channels=4)]


def test_the_decoder_of_capsnet_has_the_published_size():
    decoder = nn.FullyConnectedDecoder(10, 16, (1, 28, 28))
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 1_411_344
    kinds = [type(module).__name__ for module in decoder.network]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear", "Sigmoid"]


@pytest.mark.parametrize("image_shape", [(1, 28, 28), (3, 33, 30), (2, 1, 5)])
def test_images_have_the_shape_asked_for_and_values_in_the_unit_interval(image_shape):
    for decoder in decoders(image_shape):
        images = decoder(capsules())
        assert images.shape == (4, *image_shape)
        assert ((images > 0) & (images < 1)).all()


def test_only_the_chosen_class_is_kept():
    classes, given = torch.tensor([2, 0, 1, 1]), capsules()
    for decoder in decoders():
        selected = decoder.select(given, classes)
        for b, chosen in enumerate(classes.tolist()):
            for j in range(3):
                assert selected[b, j].equal(given.poses[b, j] if j == chosen else torch.zeros(5))


def test_without_classes_the_most_active_one_is_kept():
    given = capsules()
    for decoder in decoders():
        assert decoder(given).equal(decoder(given, given.activations.argmax(-1)))
    quiet = Capsules(given.poses, torch.tensor([[0.1, 0.9, 0.2]]).expand(4, 3))  # activations decide, not lengths
    assert decoders()[0].select(quiet).count_nonzero(dim=(0, 2)).tolist() == [0, 20, 0]


def test_several_classes_are_decoded_one_at_a_time_and_the_stronger_counts():
    given, there = capsules(), torch.tensor([[True, False, True], [False, True, False], [False] * 3, [True] * 3])
    for decoder in decoders():
        images = decoder(given, there)
        alone = torch.stack([decoder(given, torch.full((4,), index)) for index in range(3)], dim=1)
        for image, pictures, chosen in zip(images, alone, there):
            expected = pictures[chosen].amax(0) if chosen.any() else torch.zeros_like(image)
            torch.testing.assert_close(image, expected)
        assert decoder(given, torch.zeros_like(there)).eq(0).all()


def test_the_gradient_of_several_classes_reaches_their_poses_only():
    there = torch.tensor([[True, False, True], [False, True, False]])
    for decoder in decoders():
        poses = torch.randn(2, 3, 5, requires_grad=True)
        decoder(Capsules(poses, poses.norm(dim=-1)), there).square().sum().backward()
        assert poses.grad.any(-1).equal(there)


def test_gradient_reaches_the_chosen_pose_and_every_parameter_only():
    for decoder in decoders():
        poses = torch.randn(4, 3, 5, requires_grad=True)
        decoder(Capsules(poses, poses.norm(dim=-1)), torch.tensor([0, 0, 2, 2])).square().sum().backward()
        assert poses.grad[:2, 0].any()
        assert poses.grad[2:, 2].any()
        assert not poses.grad[:, 1].any()
        assert not poses.grad[:2, 2].any()
        assert all(parameter.grad.any() for parameter in decoder.parameters())


def test_reset_state_and_dtype():
    for decoder, other in zip(decoders(), decoders()):
        given = capsules()
        other.load_state_dict(decoder.state_dict())
        assert other(given).equal(decoder(given))
        other.reset_parameters()
        assert not other(given).equal(decoder(given))
    assert nn.ConvDecoder(3, 5, (1, 8, 8), dtype=torch.float64).network[0].weight.dtype == torch.float64
    assert nn.FullyConnectedDecoder(3, 5, (1, 8, 8), device="meta").network[0].weight.is_meta


def test_errors():
    with pytest.raises(ValueError, match=r"image_shape must be \(channels, height, width\), got \(28, 28\)"):
        nn.FullyConnectedDecoder(3, 5, (28, 28))
    with pytest.raises(ValueError, match=r"poses must have shape \(B, 3, 5\), got \(4, 3, 6\)"):
        decoders()[0](Capsules.from_poses(torch.randn(4, 3, 6)))


@pytest.mark.parametrize("classes", [None, torch.tensor([0, 1]), torch.ones(2, 3, dtype=torch.bool)], ids=str)
def test_a_tensor_is_refused(classes):
    decoder = nn.FullyConnectedDecoder(3, 4, (1, 6, 5))
    with pytest.raises(TypeError, match=r"takes Capsules\(poses, activations\), got Tensor; of poses alone"):
        decoder(torch.randn(2, 3, 4), classes)
    with pytest.raises(TypeError, match=r"takes Capsules\(poses, activations\), got Tensor"):
        decoder.select(torch.randn(2, 3, 4))
