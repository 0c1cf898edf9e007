"""Attack curves show accuracies with what n images can tell."""

import numpy as np
import pytest

from torchcaps.viz import AttackCurve, attack_curves
from torchcaps.viz.attack_curves import interval


def test_curves_are_per_cent_with_n():
    curves = [AttackCurve("capsules", (0.0, 0.1), (0.99, 0.5), 200), AttackCurve("CNN", (0.0, 0.1), (0.98, 0.1), 100)]
    axes = attack_curves(curves, title="FGSM on digits").axes[0]
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[99.0, 50.0], [98.0, 10.0]]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["capsules (n = 200)", "CNN (n = 100)"]
    assert len({line.get_marker() for line in axes.lines}) == len({line.get_linestyle() for line in axes.lines}) == 2
    assert "epsilon" in axes.get_xlabel()
    with pytest.raises(ValueError, match="between 1 and 5 curves"):
        attack_curves([], title="none")


def test_the_interval_is_wilsons():
    low, high = interval(np.array([0.5, 0.0, 1.0]), 100)
    assert low == pytest.approx([0.4038, 0.0, 0.9630], abs=1e-4)  # as tables have it
    assert high == pytest.approx([0.5962, 0.0370, 1.0], abs=1e-4)
