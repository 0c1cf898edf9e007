"""How an answer came about (routed layers, origins, parse tree, reasons of words), and what poses know."""

from torchcaps.inspection.decoding import MovedEntries, Reconstructions, move_entries, reconstruct
from torchcaps.inspection.directions import (
    Direction,
    PoseSpace,
    Sweeps,
    decode_poses,
    decoder_of,
    morph,
    pose_space,
    sweep,
    sweeps,
)
from torchcaps.inspection.equivariance import TRANSFORMATIONS, Followed, follow, straightness, transformed
from torchcaps.inspection.origins import origin_shares, seen_window
from torchcaps.inspection.parse_tree import ParseNode, ParseTree, parse_tree
from torchcaps.inspection.plane import VotePlane, vote_plane
from torchcaps.inspection.probes import PoseProbes, linear_r_squared, poses_of, probe_poses, read_features
from torchcaps.inspection.properties import PROPERTIES, UNITS, image_properties
from torchcaps.inspection.routed import ClassRouting, class_routing, remaining_descent
from torchcaps.inspection.routes import Routes, find_routes
from torchcaps.inspection.words import Reason, WordRouting, word_reasons
from torchcaps.inspection.yardsticks import class_means, class_principal_pictures, picture_errors
from torchcaps.windows import GridWindow

__all__ = [
    "PROPERTIES",
    "TRANSFORMATIONS",
    "UNITS",
    "ClassRouting",
    "Direction",
    "Followed",
    "GridWindow",
    "MovedEntries",
    "ParseNode",
    "ParseTree",
    "PoseProbes",
    "PoseSpace",
    "Reason",
    "Reconstructions",
    "Routes",
    "Sweeps",
    "VotePlane",
    "WordRouting",
    "class_means",
    "class_principal_pictures",
    "class_routing",
    "decode_poses",
    "decoder_of",
    "find_routes",
    "follow",
    "image_properties",
    "linear_r_squared",
    "morph",
    "move_entries",
    "origin_shares",
    "parse_tree",
    "picture_errors",
    "pose_space",
    "poses_of",
    "probe_poses",
    "read_features",
    "reconstruct",
    "remaining_descent",
    "seen_window",
    "straightness",
    "sweep",
    "sweeps",
    "transformed",
    "vote_plane",
    "word_reasons",
]
