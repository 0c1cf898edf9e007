"""Capsule layers: they own parameters, the routing functions own the maths."""

from torchcaps.nn.class_caps import ClassCaps
from torchcaps.nn.conv import ConvCaps1d, ConvCaps2d
from torchcaps.nn.decoder import ConvDecoder, FullyConnectedDecoder
from torchcaps.nn.dense import DenseCaps, DigitCaps
from torchcaps.nn.interests import MultiInterest, label_aware_attention
from torchcaps.nn.layer import CapsuleLayer
from torchcaps.nn.noise import CapsuleNoise
from torchcaps.nn.norm import BatchNorm2d, CapsuleNorm
from torchcaps.nn.pool import CapsulePool2d
from torchcaps.nn.primary import DepthwisePrimaryCaps, PrimaryCaps, PrimaryMatrixCaps
from torchcaps.nn.residual import ResidualCaps
from torchcaps.nn.squash import Squash, squash, squash_exponentially
from torchcaps.nn.text import NgramCaps, PairEvidence, WordEvidence
from torchcaps.routing import (
    AttentionRouting,
    DynamicRouting,
    EMRouting,
    EntropyRouting,
    FunctionRouting,
    HeinsenRouting,
    KMeansRouting,
    LearningRouting,
    MaxMinRouting,
    Routing,
    SelfAttentionRouting,
    SelfRouting,
    UniformRouting,
    VBRouting,
    create_routing,
)

__all__ = [
    "AttentionRouting",
    "BatchNorm2d",
    "CapsuleLayer",
    "CapsuleNoise",
    "CapsuleNorm",
    "CapsulePool2d",
    "ClassCaps",
    "ConvCaps1d",
    "ConvCaps2d",
    "ConvDecoder",
    "DenseCaps",
    "DepthwisePrimaryCaps",
    "DigitCaps",
    "DynamicRouting",
    "EMRouting",
    "EntropyRouting",
    "FullyConnectedDecoder",
    "FunctionRouting",
    "HeinsenRouting",
    "KMeansRouting",
    "LearningRouting",
    "MaxMinRouting",
    "MultiInterest",
    "NgramCaps",
    "PairEvidence",
    "PrimaryCaps",
    "PrimaryMatrixCaps",
    "ResidualCaps",
    "Routing",
    "SelfAttentionRouting",
    "SelfRouting",
    "Squash",
    "UniformRouting",
    "VBRouting",
    "WordEvidence",
    "create_routing",
    "label_aware_attention",
    "squash",
    "squash_exponentially",
]
