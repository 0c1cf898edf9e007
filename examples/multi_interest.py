"""Multi-interest extraction as in recommendation, after MIND (Li et al. 2019): a user is several capsules.

A history of items is routed into interests with **one** map shared by all items and all interests. Such votes do not
tell interests apart, so routing starts from random logits. Padding is masked. A user with a short history has fewer
interests: those a user does not have start at a logit so low that their couplings are exactly 0, in every iteration
(dynamic routing adds to its logits and keeps that; other routings replace them).

    python examples/multi_interest.py --steps 200
"""

import argparse

import torch
from torch import Tensor

from torchcaps import Capsules
from torchcaps.routing import dynamic_routing
from torchcaps.votes import DenseVotes

NUM_GROUPS, GROUP_SIZE, SIZE = 20, 10, 16  # items come in groups; an interest is a group
ABSENT = -1e4


def users(num_users: int, longest: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Histories (B, T) of users with one to three interests, their mask (B, T), and the item they take next (B,)."""
    num_interests = torch.randint(1, 4, (num_users,))
    interests = torch.rand(num_users, NUM_GROUPS).topk(3).indices
    picks = torch.randint(10**6, (num_users, longest + 1)) % num_interests[:, None]
    items = interests.gather(1, picks) * GROUP_SIZE + torch.randint(GROUP_SIZE, (num_users, longest + 1))
    lengths = torch.randint(4, longest + 1, (num_users,))
    return items[:, :-1], torch.arange(longest) < lengths[:, None], items[:, -1]


class MultiInterest(torch.nn.Module):
    """Item histories to interest capsules."""

    def __init__(self, num_items: int, max_interests: int) -> None:
        super().__init__()
        self.max_interests = max_interests
        self.items = torch.nn.Embedding(num_items, SIZE)
        self.map = torch.nn.Parameter(torch.eye(SIZE) + 0.1 * torch.randn(SIZE, SIZE))

    def interests(self, history: Tensor, mask: Tensor) -> Capsules:
        poses = self.items(history)
        per_user = mask.sum(1).log2().long().clamp(1, self.max_interests)  # as in MIND: log2 of the length
        has = torch.arange(self.max_interests) < per_user[:, None]
        logits = torch.randn(*mask.shape, self.max_interests)
        logits = torch.where(has.unsqueeze(1), logits, ABSENT)
        votes = DenseVotes(poses, self.map.expand(self.max_interests, SIZE, SIZE), sharing="shared", mask=mask)
        return dynamic_routing(votes, initial_logits=logits).capsules

    def forward(self, history: Tensor, mask: Tensor, target: Tensor | None = None) -> Tensor:
        """Scores of all items: of each item's best interest, or in training those of the target's best interest."""
        scores = 4 * self.interests(history, mask).poses @ self.items.weight.T  # (B, interests, items)
        if target is None:
            return scores.amax(1)
        users = torch.arange(len(target))
        return scores[users, scores[users, :, target].argmax(1)]


def hit_rate(model: MultiInterest, at: int = 30) -> float:
    """How often the next item is among the best `at` of all."""
    with torch.no_grad():
        history, mask, target = users(1000)
        return (model(history, mask).topk(at).indices == target[:, None]).any(1).float().mean().item()


def main(steps: int) -> None:
    for max_interests in (1, 3):
        torch.manual_seed(0)
        model = MultiInterest(NUM_GROUPS * GROUP_SIZE, max_interests)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(steps):
            history, mask, target = users(128)
            loss = torch.nn.functional.cross_entropy(model(history, mask, target), target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"at most {max_interests} interests: next item in the best 30 of 200 for {hit_rate(model):.2f} of users")
    history, mask, _ = users(4)
    activations = model.interests(history, mask).activations
    for length, lengths in zip(mask.sum(1).tolist(), activations.tolist(), strict=True):
        print(f"history of {length:2d}: interests of length {', '.join(f'{value:.2f}' for value in lengths)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)
