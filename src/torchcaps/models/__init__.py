"""Capsule networks and their baselines, by name."""

from torchcaps.models.base import ImageModel, ModelOutput
from torchcaps.models.baselines import BaselineCNN, NoRouting, SmallCNN
from torchcaps.models.capsnet import CapsNet, CapsNetSmall
from torchcaps.models.matrix import MatrixCapsNet, MatrixCapsNetSmall
from torchcaps.models.registry import create_model, list_models, load_model

__all__ = [
    "BaselineCNN",
    "CapsNet",
    "CapsNetSmall",
    "ImageModel",
    "MatrixCapsNet",
    "MatrixCapsNetSmall",
    "ModelOutput",
    "NoRouting",
    "SmallCNN",
    "create_model",
    "list_models",
    "load_model",
]
