"""Capsule networks, recommenders and their baselines, by name."""

from torchcaps.models.backbone_capsules import BackboneCapsules
from torchcaps.models.backbones import register_backbone
from torchcaps.models.base import ImageModel, Model, ModelOutput
from torchcaps.models.baselines import BaselineCNN, NoRouting, SmallCNN
from torchcaps.models.capsnet import CapsNet, CapsNetShared, CapsNetSmall
from torchcaps.models.efficient import EfficientCapsNet
from torchcaps.models.interests import ComiRecDR, ComiRecSA, Mind
from torchcaps.models.matrix import MatrixCapsNet, MatrixCapsNetSmall, MatrixNoRouting
from torchcaps.models.recommender import Recommender
from torchcaps.models.recommender_baselines import GRU4Rec, MeanPooling, Popularity
from torchcaps.models.registry import create_model, list_models, list_pretrained, load_model, register_model
from torchcaps.models.text import TextCapsuleA, TextCapsuleB, TokenCapsules
from torchcaps.models.text_base import TextModel
from torchcaps.models.text_baselines import BiLSTM, KimCNN, TextNoRouting, TextPooling

__all__ = [
    "BackboneCapsules",
    "BaselineCNN",
    "BiLSTM",
    "CapsNet",
    "CapsNetShared",
    "CapsNetSmall",
    "ComiRecDR",
    "ComiRecSA",
    "EfficientCapsNet",
    "GRU4Rec",
    "ImageModel",
    "KimCNN",
    "MatrixCapsNet",
    "MatrixCapsNetSmall",
    "MatrixNoRouting",
    "MeanPooling",
    "Mind",
    "Model",
    "ModelOutput",
    "NoRouting",
    "Popularity",
    "Recommender",
    "SmallCNN",
    "TextCapsuleA",
    "TextCapsuleB",
    "TextModel",
    "TextNoRouting",
    "TextPooling",
    "TokenCapsules",
    "create_model",
    "list_models",
    "list_pretrained",
    "load_model",
    "register_backbone",
    "register_model",
]
