"""Pictures: functions that return matplotlib figures."""

from torchcaps.viz.couplings import coupling_strip
from torchcaps.viz.origins import vote_origins
from torchcaps.viz.parse_tree import ParseNode, parse_tree
from torchcaps.viz.reconstruction import capsule_dimensions, reconstructions
from torchcaps.viz.report import confusion_page, training_curves, training_report
from torchcaps.viz.routed import ClassRouting, route_classes
from torchcaps.viz.votes import vote_animation, vote_distances, vote_strip

__all__ = [
    "ClassRouting",
    "ParseNode",
    "capsule_dimensions",
    "confusion_page",
    "coupling_strip",
    "parse_tree",
    "reconstructions",
    "route_classes",
    "training_curves",
    "training_report",
    "vote_animation",
    "vote_distances",
    "vote_origins",
    "vote_strip",
]
