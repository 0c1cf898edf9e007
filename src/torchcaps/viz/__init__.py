"""Pictures: functions that draw what `torchcaps.inspection` and training tell, as matplotlib figures."""

from torchcaps.viz.attack_curves import AttackCurve, attack_curves
from torchcaps.viz.couplings import coupling_strip
from torchcaps.viz.fonts import legible
from torchcaps.viz.origins import vote_origins
from torchcaps.viz.parse_page import parse_tree_page
from torchcaps.viz.poses import direction_page, probe_page
from torchcaps.viz.reconstruction import capsule_dimensions, reconstructions
from torchcaps.viz.report import confusion_page, training_curves, training_report
from torchcaps.viz.votes import vote_animation, vote_distances, vote_strip
from torchcaps.viz.words import word_page

__all__ = [
    "AttackCurve",
    "attack_curves",
    "capsule_dimensions",
    "confusion_page",
    "coupling_strip",
    "direction_page",
    "legible",
    "parse_tree_page",
    "probe_page",
    "reconstructions",
    "training_curves",
    "training_report",
    "vote_animation",
    "vote_distances",
    "vote_origins",
    "vote_strip",
    "word_page",
]
