"""A shared map of tokens that is learned without labels: texts that belong together find each other in a batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from torchcaps.capsules import normalise
from torchcaps.checks import check_count
from torchcaps.encoders import EncoderFiles
from torchcaps.storage import whole_file
from torchcaps.text.forming import form_capsules
from torchcaps.text.matching import soft_matching

TEMPERATURE = 0.05  # of the cosines, before the softmax over the texts of a batch
RATE, WARMUP = 1e-3, 0.1
MAP = "map"  # in its file


class Tokens(NamedTuple):
    """Shapes: vectors (B, T, E); mask (B, T)."""

    vectors: Tensor
    mask: Tensor


class Comparison(NamedTuple):
    """How texts are compared; see `CapsuleSentenceEncoder`."""

    num_capsules: int
    routing: str
    num_iterations: int
    width: float
    whole: float


def random_map(size: int, mapped_size: int, seed: int = 0) -> Tensor:
    """A map that keeps cosines as far as a random one can: (E, D), normal entries of variance 1 / D."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, mapped_size, generator=generator) / mapped_size**0.5


def read_map(given: int | str | Path | None, encoder: EncoderFiles) -> Tensor | None:
    """The map that is asked for: none, a random one of so many entries, or that of a file."""
    if given is None:
        return None
    if isinstance(given, int):
        return random_map(encoder.size, check_count("shared_map", given))
    try:
        with safe_open(given, framework="pt") as file:
            found, digest = file.get_tensor(MAP), (file.metadata() or {}).get("encoder")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"shared_map is to be a file that save_map wrote, but {given} is none: {error}") from error
    if digest != encoder.digest or found.shape[0] != encoder.size:
        raise ValueError(f"{given} was learned on another encoder; learn the map anew on this one")
    return found


def save_map(path: str | Path, shared: Tensor, encoder: EncoderFiles) -> None:
    """Write a map with the digest of the encoder that it belongs to."""
    with whole_file(Path(path)) as temporary:
        save_file({MAP: shared.contiguous()}, temporary, {"encoder": encoder.digest})


def halves(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The first and the second half of the words of each text of at least two.

    Example:
        >>> halves(["one two three four five", "one"])
        (['one two'], ['three four five'])
    """
    cut = [words for text in texts if len(words := text.split()) > 1]
    return [" ".join(each[: len(each) // 2]) for each in cut], [" ".join(each[len(each) // 2 :]) for each in cut]


def similarities(first: Tokens, second: Tokens, shared: Tensor, how: Comparison) -> Tensor:
    r"""How alike each text of a batch is to each of another, with a gradient for the map.

    The plan P of the soft matching is a constant: by the envelope theorem the gradient of what it maximises,
    :math:`\sum P s - w \sum P \ln P`, is P itself.

    Shapes:
        vectors of first: (A, T, E), of second: (B, U, E); shared: (E, D) -> (A, B)
    """
    sets, wholes = [], []
    for vectors, mask in (first, second):
        mapped = vectors @ shared
        wholes.append(normalise((mapped * mask.unsqueeze(-1)).sum(1)))
        num_capsules = min(how.num_capsules, int(mask.sum(1).min()))
        sets.append(form_capsules(mapped, mask, num_capsules, routing=how.routing, num_iterations=how.num_iterations))
    one, other = sets
    similarity_ABKL = torch.einsum("akd,bld->abkl", one.poses, other.poses)
    shares = [each.shares.detach().double().numpy() for each in sets]
    plan = soft_matching(
        similarity_ABKL.detach().double().numpy(), shares[0][:, None], shares[1][None], width=how.width
    )
    matched = (similarity_ABKL * torch.from_numpy(plan).to(similarity_ABKL)).sum((2, 3))
    return how.whole * wholes[0] @ wholes[1].T + (1 - how.whole) * matched


def learn_map(
    shared: Tensor,
    num_pairs: int,
    read: Callable[[np.ndarray], tuple[Tokens, Tokens]],
    how: Comparison,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float = RATE,
    seed: int = 0,
) -> tuple[Tensor, list[float]]:
    """The map after training, and the mean loss of each epoch.

    Args:
        shared: the map to begin with.
        num_pairs: of texts.
        read: gives the tokens of the pairs with these numbers.
        how: texts are compared.
    """
    weight, rng = nn.Parameter(shared.clone()), np.random.default_rng(seed)
    optimizer = torch.optim.Adam([weight], lr=learning_rate)
    batches = max(1, num_pairs // batch_size)
    steps, losses = epochs * batches, []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rise_and_fall(step / steps))
    for _ in range(epochs):
        total = 0.0
        for chosen in np.array_split(rng.permutation(num_pairs), batches):
            first, second = read(chosen)
            logits = similarities(first, second, weight, how) / TEMPERATURE
            truth = torch.arange(len(chosen))
            loss = (nn.functional.cross_entropy(logits, truth) + nn.functional.cross_entropy(logits.T, truth)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        losses.append(total / batches)
    return weight.detach(), losses


def _rise_and_fall(done: float) -> float:
    return min(done / WARMUP, (1 - done) / (1 - WARMUP), 1.0) if done else 1e-3
