"""What poses know: properties of images, linear maps that tell them, directions, and how poses follow a moved image."""

from torchcaps.inspection.directions import Direction, PoseSpace, decode_poses, decoder_of, morph, pose_space, sweep
from torchcaps.inspection.equivariance import TRANSFORMATIONS, Followed, follow, straightness, transformed
from torchcaps.inspection.probes import PoseProbes, linear_r_squared, poses_of, probe_poses, read_features
from torchcaps.inspection.properties import PROPERTIES, UNITS, image_properties
from torchcaps.inspection.routes import Routes, find_routes
from torchcaps.inspection.words import Reason, WordRouting, word_reasons
from torchcaps.inspection.yardsticks import class_means, class_principal_pictures, picture_errors

__all__ = [
    "PROPERTIES",
    "TRANSFORMATIONS",
    "UNITS",
    "Direction",
    "Followed",
    "PoseProbes",
    "PoseSpace",
    "Reason",
    "Routes",
    "WordRouting",
    "class_means",
    "class_principal_pictures",
    "decode_poses",
    "decoder_of",
    "find_routes",
    "follow",
    "image_properties",
    "linear_r_squared",
    "morph",
    "picture_errors",
    "pose_space",
    "poses_of",
    "probe_poses",
    "read_features",
    "straightness",
    "sweep",
    "transformed",
    "word_reasons",
]
