"""Token capsules pooled by routing instead of a mean, on a plain torch TransformerEncoder.

The task: the word after a marker says which of four classes a text is; the same words elsewhere mean nothing. Both
poolings stand on the same encoder, and padding is masked out of both.

    python examples/token_pooling.py --steps 150
"""

import argparse

import torch
from torch import Tensor

from torchcaps import Capsules, nn, squash
from torchcaps.losses import margin_loss

NUM_CLASSES, NUM_WORDS, MARKER, PAD = 4, 40, 1, 0


def texts(num_texts: int, longest: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, T), mask (B, T), classes (B,); words 2 to 5 name a class, only the one after the marker counts."""
    mask = torch.arange(longest) < torch.randint(10, longest + 1, (num_texts, 1))
    tokens = torch.randint(6, NUM_WORDS, (num_texts, longest))
    classes, rows = torch.randint(NUM_CLASSES, (num_texts,)), torch.arange(num_texts)
    places = torch.rand(num_texts, 4).argsort(1) * 2  # three pairs of neighbours that do not overlap
    for n in range(2):
        tokens[rows, places[:, n]] = 2 + torch.randint(NUM_CLASSES, (num_texts,))
    tokens[rows, places[:, 2]], tokens[rows, places[:, 2] + 1] = MARKER, 2 + classes
    return tokens.masked_fill(~mask, PAD), mask, classes


class Encoder(torch.nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(NUM_WORDS, size, padding_idx=PAD)
        self.places = torch.nn.Parameter(0.3 * torch.randn(64, size))
        layer = torch.nn.TransformerEncoderLayer(size, 4, 64, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.layers(self.words(tokens) + self.places[: tokens.shape[1]], src_key_padding_mask=~mask)


class MeanPooling(torch.nn.Linear):
    """A linear layer on the mean of the real tokens; class scores as activations in (0, 1)."""

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        mean = (features * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return super().forward(mean).sigmoid()


class CapsulePooling(torch.nn.Module):
    """Each token becomes two capsules of 8; they vote for class capsules of 16."""

    def __init__(self, size: int, num_classes: int, routing: nn.Routing) -> None:
        super().__init__()
        self.primary = torch.nn.Linear(size, 2 * 8)
        self.classes = nn.ClassCaps(2, num_classes, 8, 16, routing=routing, coordinates=False, weight_std=0.2)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        tokens = Capsules.from_poses(squash(self.primary(features).unflatten(-1, (2, 8))))  # (B, T, 2, 8)
        return self.classes(tokens, mask=mask).activations


def main(steps: int) -> None:
    for name in ("mean", "capsules"):
        torch.manual_seed(0)
        encoder = Encoder()
        pool = MeanPooling(32, 4) if name == "mean" else CapsulePooling(32, 4, nn.DynamicRouting())
        optimiser = torch.optim.Adam([*encoder.parameters(), *pool.parameters()], lr=0.003)
        for _ in range(steps):
            tokens, mask, classes = texts(64)
            loss = margin_loss(pool(encoder(tokens, mask), mask), classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            tokens, mask, classes = texts(1000)
            scores = pool(encoder(tokens, mask), mask)
            longer = [torch.nn.functional.pad(part, (0, 8)) for part in (tokens, mask)]
            change = (pool(encoder(*longer), longer[1]) - scores).abs().max()
        accuracy = (scores.argmax(-1) == classes).float().mean()
        print(f"{name:8s} pooling: accuracy {accuracy:.3f} (chance 0.25), more padding changes {change:.0e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    main(parser.parse_args().steps)
