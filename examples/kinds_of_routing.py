"""Where the routings differ in use: what they need of the children, what they learn, and what their numbers mean.

Each routing is a module that a layer takes; most need nothing but votes. Four things are worth knowing:

- self-routing decides by the poses of the children, which a layer shows it and plain votes do not;
- Heinsen's routing and self-attention learn a number per child and parent, per child type where children share their
  transformations, so that the number of children may vary;
- variational Bayes raises a bound of the evidence, which the trace tells;
- couplings of max-min and self-attention are no shares: they need not sum to 1.

    python examples/kinds_of_routing.py
"""

import torch

from torchcaps import Capsules, nn
from torchcaps.routing import self_routing, vb_routing

IN_CAPSULES, OUT_CAPSULES, IN_SIZE, OUT_SIZE = 12, 4, 8, 6


def layer(routing: nn.Routing, *, sharing: str = "full") -> nn.DenseCaps:
    """12 children of 8 entries that vote for 4 parents of 6."""
    fixed = None if sharing == "shared" else IN_CAPSULES
    return nn.DenseCaps(fixed, OUT_CAPSULES, IN_SIZE, OUT_SIZE, routing=routing, sharing=sharing)


def self_routing_needs_poses(children: Capsules) -> None:
    capsules = layer(nn.SelfRouting())(children)
    print(f"self-routing in a layer: shares of the children, they sum to {capsules.activations[0].sum():.2f}")
    votes = torch.randn(2, IN_CAPSULES, OUT_CAPSULES, OUT_SIZE)
    logits = torch.randn(2, IN_CAPSULES, OUT_CAPSULES)  # from wherever you decide
    self_routing(votes, children.activations, initial_logits=logits)
    try:
        nn.SelfRouting()(votes, activations=children.activations)
    except TypeError as error:
        print(f"self-routing of plain votes: {error}")


def numbers_per_child(children: Capsules) -> None:
    for sharing in ("full", "shared"):
        for kind, name in ((nn.HeinsenRouting, "beta_use"), (nn.SelfAttentionRouting, "bias")):
            made = layer(kind(), sharing=sharing)
            made(children)
            shape = tuple(made.routing.get_parameter(name).shape)
            print(f"{kind.__name__}, {sharing} transformations: {name} of {shape}")


def evidence_rises() -> None:
    """Votes for one parent lie together, those for the others are spread."""
    spread = torch.tensor([0.1, 1.0, 1.0, 1.0]).view(1, 1, -1, 1)
    votes = torch.randn(1, 1, OUT_CAPSULES, OUT_SIZE) + spread * torch.randn(1, IN_CAPSULES, OUT_CAPSULES, OUT_SIZE)
    result = vb_routing(votes, torch.ones(1, IN_CAPSULES), beta_a=0.0, beta_u=0.0, num_iterations=5, return_trace=True)
    bounds = [-step.objective.item() for step in result.trace]
    print("variational Bayes, bound of the evidence:", " <= ".join(f"{bound:.2f}" for bound in bounds))
    share = result.coupling[0, :, 0].mean()
    print(f"variational Bayes: the parent whose votes lie together gets {share:.2f} of each child")


def couplings_that_are_no_shares(children: Capsules) -> None:
    for name, routing in (("dynamic", nn.DynamicRouting()), ("max-min", nn.MaxMinRouting())):
        total = layer(routing).route(children).coupling[0].sum(-1)
        print(f"{name}: couplings of a child sum to {total.min():.2f} ... {total.max():.2f}")


def main() -> None:
    torch.manual_seed(0)
    children = Capsules.from_poses(nn.squash(torch.randn(2, IN_CAPSULES, IN_SIZE)))
    with torch.no_grad():
        self_routing_needs_poses(children)
        numbers_per_child(children)
        evidence_rises()
        couplings_that_are_no_shares(children)


if __name__ == "__main__":
    main()
