"""A capsule head on a plain torch CNN: two layers in place of the usual linear classifier.

The task: bars of four orientations, anywhere in a noisy image. The head takes any feature map (B, channels, H, W), so
a pretrained backbone would do as well.

    python examples/capsule_head_on_cnn.py --routing em
"""

import argparse
import math

import torch

from torchcaps import nn
from torchcaps.losses import margin_loss


def bars(num_images: int, size: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, 1, size, size) with one bar of length 9 each, and which of 4 orientations it has."""
    classes = torch.randint(4, (num_images,))
    angle = classes * math.pi / 4
    centre = torch.rand(num_images, 2) * (size - 8) + 4
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    y, x = rows - centre[:, :1, None], columns - centre[:, 1:, None]
    along = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
    across = y * angle.cos()[:, None, None] - x * angle.sin()[:, None, None]
    images = ((along.abs() < 4.5) & (across.abs() < 1)).float()
    return (images + 0.3 * torch.randn_like(images)).unsqueeze(1), classes


class CapsuleHead(torch.nn.Sequential):
    """Feature map -> class capsules; a vector pose of 8 per type, 16 per class."""

    def __init__(self, channels: int, num_classes: int, routing: nn.Routing, num_types: int = 4) -> None:
        super().__init__(
            nn.PrimaryCaps(channels, num_types, 8, kernel_size=3, stride=2),
            # any image size: W is shared over places. Many children add up, so weights start small, and their
            # coordinates, which would add up too, stay out
            nn.ClassCaps(num_types, num_classes, 8, 16, routing=routing, weight_std=0.1, coordinates=False),
        )


def main(routing: str, steps: int) -> None:
    torch.manual_seed(0)
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU(),
    )  # fmt: skip
    network = torch.nn.Sequential(cnn, CapsuleHead(16, 4, nn.create_routing(routing)))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.003)
    for step in range(steps):
        images, classes = bars(64)
        loss = margin_loss(network(images).activations, classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step:3d}: margin loss {loss:.3f}")
    with torch.no_grad():
        images, classes = bars(500)
        capsules = network(images)
        accuracy = (capsules.activations.argmax(-1) == classes).float().mean()
        larger, classes = bars(500, size=28)  # trained on 20 x 20
        accuracy_larger = (network(larger).activations.argmax(-1) == classes).float().mean()
    print(f"{routing} routing: accuracy {accuracy:.3f} on new images, {accuracy_larger:.3f} on larger ones")
    print(f"class poses {tuple(capsules.poses.shape)}, mean activation of the winner "
          f"{capsules.activations.amax(-1).mean():.2f}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routing", default="dynamic", help="a name such as em, or package.module:Class")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    main(arguments.routing, arguments.steps)
