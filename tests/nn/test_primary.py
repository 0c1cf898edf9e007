"""Primary capsules: cut along the right axis."""

import pytest
import torch

from torchcaps import nn


def features_and_layer():
    """A 1 x 1 convolution that passes its 3 * 4 channels through: poses are the features, squashed."""
    layer = nn.PrimaryCaps(12, 3, 4, kernel_size=1)
    with torch.no_grad():
        layer.conv.weight.copy_(torch.eye(12)[..., None, None])
        layer.conv.bias.zero_()
    return torch.randn(2, 12, 4, 6), layer


def assert_cut_right(poses, features):
    """A capsule is the K channels of one type at one position."""
    for row in range(4):
        for column in range(6):
            for kind in range(3):
                expected = nn.squash(features[:, 4 * kind : 4 * kind + 4, row, column])
                torch.testing.assert_close(poses[:, row, column, kind], expected)


def test_a_capsule_is_the_channels_of_one_type_at_one_position():
    features, layer = features_and_layer()
    capsules = layer(features)
    assert_cut_right(capsules.poses, features)
    torch.testing.assert_close(capsules.activations, capsules.poses.norm(dim=-1))


def test_neighbouring_pixels_of_one_channel_are_no_capsule():
    """The common mistake, written out: a plain view of the convolution's output. The test above catches it."""
    features, layer = features_and_layer()
    wrong_poses = nn.squash(layer.conv(features).view(2, -1, 4)).view(2, 4, 6, 3, 4)
    with pytest.raises(AssertionError):
        assert_cut_right(wrong_poses, features)


@pytest.mark.parametrize("channel", [0, 5, 11])
def test_one_hot_pixel_wakes_one_capsule(channel):
    _, layer = features_and_layer()
    features = torch.zeros(1, 12, 4, 6)
    features[0, channel, 2, 5] = 1.0
    capsules = layer(features)
    assert capsules.activations.nonzero().tolist() == [[0, 2, 5, channel // 4]]
    assert capsules.poses.nonzero().tolist() == [[0, 2, 5, channel // 4, channel % 4]]


def test_capsnet_sizes():
    layer = nn.PrimaryCaps(256, 32, 8, kernel_size=9, stride=2)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 5_308_672
    capsules = layer(torch.randn(1, 256, 20, 20))
    assert capsules.flatten().poses.shape == (1, 1152, 8)


@pytest.mark.parametrize(("height", "width"), [(5, 5), (7, 12), (32, 9)])
def test_any_image_size(height, width):
    assert nn.PrimaryCaps(3, 2, 4, 3, padding="same")(torch.randn(1, 3, height, width)).poses.shape == (
        1, height, width, 2, 4,
    )  # fmt: skip


def test_squash_k_matters():
    features, layer = features_and_layer()
    layer.squash_k = 0.5
    torch.testing.assert_close(layer(features).poses[:, 1, 2, 0], nn.squash(features[:, :4, 1, 2], 0.5))


@pytest.mark.parametrize(("kernel", "stride"), [((4, 6), 1), (3, 1), (2, (2, 3))])
def test_depthwise_capsules_against_loops(kernel, stride):
    """An entry of a pose looks at one channel with a kernel of its own; a short vector keeps its length."""
    layer = nn.DepthwisePrimaryCaps(3, 2, kernel, stride, dtype=torch.float64)
    features = torch.randn(2, 6, 4, 6, dtype=torch.float64)
    capsules, weight, bias = layer(features), layer.conv.weight, layer.conv.bias
    assert weight.shape[:2] == (6, 1)
    height, width = layer.kernel_size
    _, rows, columns, _, _ = capsules.poses.shape
    assert (rows, columns) == ((4 - height) // layer.stride[0] + 1, (6 - width) // layer.stride[1] + 1)
    for row in range(rows):
        for column in range(columns):
            top, left = row * layer.stride[0], column * layer.stride[1]
            for kind in range(3):
                entries = []
                for entry in range(2):
                    channel, total = 2 * kind + entry, bias[2 * kind + entry].expand(2)
                    for y in range(height):
                        for x in range(width):
                            total = total + weight[channel, 0, y, x] * features[:, channel, top + y, left + x]
                    entries.append(total)
                raw = torch.stack(entries, -1)
                norm = sum(entry**2 for entry in entries).sqrt()
                expected = ((1 - torch.exp(-norm)) / norm)[:, None] * raw
                torch.testing.assert_close(capsules.poses[:, row, column, kind], expected)
    torch.testing.assert_close(capsules.activations, capsules.poses.norm(dim=-1))


def test_matrix_capsules_have_poses_first_then_one_activation_per_type():
    layer = nn.PrimaryMatrixCaps(12, 2, out_size=4)
    features = torch.randn(2, 12, 3, 5)
    raw, capsules = layer.conv(features), layer(features)
    assert capsules.poses.shape == (2, 3, 5, 2, 4)
    for kind in range(2):
        expected = raw[:, 4 * kind : 4 * kind + 4].permute(0, 2, 3, 1)
        torch.testing.assert_close(capsules.poses[..., kind, :], expected)
        torch.testing.assert_close(capsules.activations[..., kind], raw[:, 8 + kind].sigmoid())


def test_matrix_capsules_count_their_parameters():
    layer = nn.PrimaryMatrixCaps(32, 32)
    assert sum(parameter.numel() for parameter in layer.parameters()) == 32 * 32 * 17 + 32 * 17


@pytest.mark.parametrize(
    "layer", [nn.PrimaryCaps(3, 2, 4, 3), nn.DepthwisePrimaryCaps(2, 4, 3), nn.PrimaryMatrixCaps(3, 2)]
)
def test_gradient_reset_and_repr(layer):
    capsules = layer(torch.randn(2, layer.in_channels, 6, 6))
    (capsules.poses.sin().sum() + capsules.activations.sum()).backward()
    assert all((parameter.grad != 0).all() for parameter in layer.parameters())
    before = layer.conv.weight.clone()
    layer.reset_parameters()
    assert not before.equal(layer.conv.weight)
    assert "out_types=2" in repr(layer)


def test_device_and_dtype():
    assert nn.PrimaryCaps(3, 2, 4, 3, dtype=torch.float64).conv.weight.dtype == torch.float64
    assert nn.PrimaryMatrixCaps(3, 2, device="meta").conv.weight.device.type == "meta"


def test_errors():
    with pytest.raises(ValueError, match="out_types must be at least 1, got 0"):
        nn.PrimaryCaps(3, 0, 4, 3)
    with pytest.raises(ValueError, match="out_types must be at least 1, got 0"):
        nn.DepthwisePrimaryCaps(0, 4, 3)
    with pytest.raises(TypeError, match="out_size must be an integer"):
        nn.PrimaryMatrixCaps(3, 2, out_size=16.0)
