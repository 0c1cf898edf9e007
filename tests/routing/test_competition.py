"""Couplings of logits: shares that do not depend on how large the logits are."""

import pytest
import torch

from cases import conv_case
from torchcaps.routing.competition import KINDS, Competition


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [-1e6, 1e6])
def test_large_logits_cost_no_digits(kind, shift):
    votes = conv_case().votes()
    competition = Competition(votes, kind)
    logits = torch.randint(-8, 9, votes.materialise().shape[:-1]).float() / 4  # 1e6 can be added without rounding
    torch.testing.assert_close(competition.softmax(logits + shift), competition.softmax(logits))


@pytest.mark.parametrize("kind", KINDS)
def test_a_leak_takes_what_others_do_not_want(kind):
    votes = conv_case().votes()
    competition = Competition(votes, kind, leaky=True)
    logits = torch.zeros(votes.materialise().shape[:-1])
    assert (competition.softmax(logits - 1e6) == 0).all()
    torch.testing.assert_close(competition.softmax(logits + 1e6), Competition(votes, kind).softmax(logits))
