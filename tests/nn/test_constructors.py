"""Constructors: one scheme of names, the same options with the same defaults, and what is wrong is refused at once."""

import inspect

import pytest
import torch

from torchcaps import nn

ROUTED = (nn.DenseCaps, nn.ConvCaps1d, nn.ConvCaps2d, nn.ClassCaps)
GIVEN = {
    nn.DenseCaps: {"in_capsules": 5, "out_capsules": 3, "in_size": 4, "out_size": 9},
    nn.ConvCaps1d: {"in_types": 2, "out_types": 3, "in_size": 4, "out_size": 9, "kernel_size": 3, "stride": 2},
    nn.ConvCaps2d: {"in_types": 2, "out_types": 3, "in_size": 4, "out_size": 9, "kernel_size": 3},
    nn.ClassCaps: {"in_types": 2, "out_capsules": 3, "in_size": 4, "out_size": 9},
    nn.PrimaryCaps: {"in_channels": 6, "out_types": 3, "out_size": 4, "kernel_size": 3},
    nn.PrimaryMatrixCaps: {"in_channels": 6, "out_types": 3, "out_size": 16},
    nn.NgramCaps: {"in_channels": 6, "channels": 5, "out_types": 3, "out_size": 4, "ngram_size": 2},
    nn.FullyConnectedDecoder: {"in_capsules": 3, "in_size": 4, "image_shape": (1, 8, 8)},
    nn.ConvDecoder: {"in_capsules": 3, "in_size": 4, "image_shape": (1, 8, 8)},
}


def routed(layer_class):
    return {"routing": nn.DynamicRouting()} if layer_class in ROUTED else {}


@pytest.mark.parametrize("layer_class", ROUTED)
def test_options_and_defaults_are_those_of_the_base_layer(layer_class):
    base = inspect.signature(nn.CapsuleLayer.__init__).parameters
    own = inspect.signature(layer_class.__init__).parameters
    expected = {name: each for name, each in base.items() if each.kind is each.KEYWORD_ONLY}
    assert {name: own[name] for name in expected} == expected
    others = [each for name, each in own.items() if name not in expected]
    assert not any(each.kind is each.VAR_KEYWORD for each in others)


@pytest.mark.parametrize("layer_class", GIVEN)
def test_what_is_given_by_name_can_be_read_by_name(layer_class):
    layer = layer_class(**GIVEN[layer_class], **routed(layer_class))
    for name, value in GIVEN[layer_class].items():
        if hasattr(layer, name):
            found = getattr(layer, name)
            assert found == value or set(found) == {value}, name
        else:
            assert name == "channels"  # of the convolution within


@pytest.mark.parametrize(
    ("layer_class", "name"),
    [(layer, name) for layer, given in GIVEN.items() for name in given if name not in ("image_shape", "stride")],
)
def test_a_size_that_is_none_is_refused_at_construction(layer_class, name):
    for wrong, kind in ((0, ValueError), (2.5, (TypeError, ValueError))):
        with pytest.raises(kind, match=name):
            layer_class(**GIVEN[layer_class] | {name: wrong}, **routed(layer_class))


def test_other_mistakes_are_found_at_construction():
    with pytest.raises(ValueError, match="coordinates must be True, False or a finite scale, got 'yes'"):
        nn.ClassCaps(2, 3, 4, 4, routing=nn.DynamicRouting(), coordinates="yes")
    with pytest.raises(ValueError, match=r"norm must be CapsuleNorm\(3\), one type per parent type"):
        nn.PrimaryMatrixCaps(6, 3, norm=nn.CapsuleNorm(4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'wieght_std'"):
        nn.DenseCaps(5, 3, 4, 4, routing=nn.DynamicRouting(), wieght_std=0.1)
    with pytest.raises(TypeError, match="a size of image_shape must be an integer"):
        nn.ConvDecoder(3, 4, (1, 8.5, 8))
    with pytest.raises(ValueError, match="a width of hidden must be at least 1, got 0"):
        nn.FullyConnectedDecoder(3, 4, (1, 8, 8), hidden=(0,))


def test_a_layer_of_ones_own_passes_only_what_differs():
    class Plain(nn.CapsuleLayer):
        pass

    layer = Plain((5,), 5, 3, 4, 6, routing=nn.DynamicRouting())
    like = nn.DenseCaps(5, 3, 4, 6, routing=nn.DynamicRouting())
    assert layer.weight.shape == like.weight.shape == torch.Size([5, 3, 4, 6])
    assert (layer.pose, layer.sharing, layer.bias) == ("vector", "full", None)
