"""From the sub-words of texts to their vectors, by a pretrained encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.encoders.files import EncoderFiles, known_digest, load_encoder, new_transformer
from torchcaps.encoders.store import key_of, store_of
from torchcaps.inputs.tokens import PAD

OVERLAP = 4  # a quarter of a part is read in the next one, too
BATCH = 32  # texts that are read at once where vectors are made beforehand
NUM_SAMPLED = 512  # training texts whose vectors are standardised by
LEAST_VARIANCE = 1e-6
BLOCK = 2**25  # entries of the vectors that are kept in one file


class EncoderWords(nn.Module):
    r"""Vectors of sub-words in their context.

    A text of T sub-words that is longer than the encoder reads at once, L, is read in parts that begin every
    :math:`S = L - \lfloor L / 4 \rfloor` sub-words; a sub-word's vector comes from the part in whose middle it is
    nearer. How a text is cut depends on its own length alone.

    All vectors of an encoder have much in common, which says nothing, and some entries that are far larger than others:
    they are standardised, entry by entry, with mean and deviation of the vectors of training texts (`settle`).

    Frozen, the encoder is no part of the model: it is loaded from its folder when it is first needed, all models of
    a process share it, and its vectors are rounded to 16 bits, whether they were kept or not. Fine-tuned, its weights
    are the model's.

    Args:
        name: folder, installed package or name on the hub of the encoder.
        files: what was read of it.
        fine_tune: train its weights, too.
        save_memory: compute its layers again for gradients instead of keeping what they gave.

    Shapes:
        tokens: (B, T) int64, 0 is padding -> vectors (B, T, E), of padding 0, and of the first special token (B, E)
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, name: str, files: EncoderFiles, *, fine_tune: bool = False, save_memory: bool = False) -> None:
        super().__init__()
        self.name, self.files, self.fine_tune, self.keeps = name, files, fine_tune, False
        # of the vectors of words, and of the first special token
        self.register_buffer("mean", torch.zeros(2, files.size))
        self.register_buffer("deviation", torch.ones(2, files.size))
        self.transformer = new_transformer(files.transformer) if fine_tune else None
        if save_memory and self.transformer is not None:
            transformer: Any = self.transformer
            # the name of transformers 5.20, and the one before
            switch_on = getattr(transformer, "activation_checkpointing_enable", None)
            (switch_on or transformer.gradient_checkpointing_enable)()

    def load_pretrained(self) -> None:
        """Begin with the weights of the encoder."""
        if self.transformer is not None:
            self.transformer.load_state_dict(load_encoder(self.name).state_dict())

    def include(self) -> None:
        """Make a frozen encoder part of the model, for a file that runs without its folder."""
        if self.transformer is None:
            self.transformer = self._pretrained()

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self.fine_tune:
            assert self.transformer is not None
            vectors = self.read(self.transformer, tokens)
        elif self.keeps and self.transformer is None:
            vectors = self._kept(tokens)
        else:
            vectors = self._frozen(tokens)
        vectors = vectors.to(self.mean.dtype)
        words = (vectors[:, 1:] - self.mean[0]) / self.deviation[0]
        return words.masked_fill((tokens == PAD)[..., None], 0), (vectors[:, 0] - self.mean[1]) / self.deviation[1]

    @torch.no_grad()
    def settle(self, rows: Sequence[np.ndarray]) -> None:
        """Standardise vectors from now on by those of some of these texts."""
        chosen = [rows[index] for index in np.linspace(0, len(rows) - 1, min(len(rows), NUM_SAMPLED)).astype(int)]
        sums = torch.zeros(2, 2, self.files.size, dtype=torch.float64, device=self.mean.device)
        counts = torch.zeros(2, 1, dtype=torch.float64, device=self.mean.device)
        was_training = self.training
        self.eval()
        self.mean.zero_()
        self.deviation.fill_(1.0)
        for start in range(0, len(chosen), BATCH):
            part = chosen[start : start + BATCH]
            tokens = _padded(part).to(self.mean.device)
            words, first = self(tokens)
            for kind, vectors in enumerate((words[tokens != PAD], first)):
                sums[0, kind] += vectors.double().sum(0)
                sums[1, kind] += vectors.double().square().sum(0)
                counts[kind] += len(vectors)
        mean = sums[0] / counts
        self.mean.copy_(mean)
        self.deviation.copy_((sums[1] / counts - mean.square()).clamp_min(LEAST_VARIANCE).sqrt())
        self.train(was_training)

    @torch.no_grad()
    def keep(self, rows: Sequence[np.ndarray]) -> None:
        """Compute the vectors of texts before they are asked for, and from now on keep those of all texts on disk."""
        self.keeps = not self.fine_tune
        if not self.keeps:
            return
        store = store_of(self.files.digest, self.files.part_length)
        store.scan()
        missing = {key: row for row in rows if (key := key_of(row)) not in store}
        waiting: dict[bytes, np.ndarray] = {}
        order = sorted(missing, key=lambda key: len(missing[key]))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            waiting |= zip(chosen, self._compute([missing[key] for key in chosen]), strict=True)
            if sum(each.size for each in waiting.values()) > BLOCK or start + BATCH >= len(order):
                store.add(list(waiting), list(waiting.values()))
                waiting = {}

    def read(self, transformer: nn.Module, tokens: Tensor) -> Tensor:
        """The vector of the first special token, and those of all tokens: (B, T) -> (B, 1 + T, E)."""
        lengths_B, width = (tokens != PAD).sum(1), tokens.shape[1]
        most, num_before = self.files.part_length, len(self.files.before)
        overlap = most // OVERLAP
        step = most - overlap
        num_parts = 1 if width <= most else 1 + -(-(width - most) // step)
        last_B = (lengths_B - most + step - 1).clamp_min(0) // step
        starts_P = step * torch.arange(num_parts, device=tokens.device)
        places_PL = starts_P[:, None] + torch.arange(min(most, width), device=tokens.device)
        parts_BPL = nn.functional.pad(tokens, (0, max(0, int(starts_P.numel() - 1) * step + most - width)))[
            :, places_PL
        ]
        is_there_BP = torch.arange(num_parts, device=tokens.device) <= last_B[:, None]
        states = self._states(transformer, parts_BPL * is_there_BP[..., None], is_there_BP)
        first = states[:, 0, 0]
        if num_parts == 1:
            vectors = states[:, 0, num_before : num_before + width]
        else:
            place_T = torch.arange(width, device=tokens.device)
            part_BT = ((place_T - overlap // 2).clamp_min(0) // step).minimum(last_B[:, None])
            flat_BT = part_BT * states.shape[2] + num_before + place_T - part_BT * step
            flat_BT = flat_BT.clamp_max(num_parts * states.shape[2] - 1)  # of padding
            vectors = states.flatten(1, 2).gather(1, flat_BT[..., None].expand(-1, -1, states.shape[-1]))
        vectors = vectors.masked_fill((tokens == PAD)[..., None], 0)
        return torch.cat([first[:, None], vectors], 1)

    def _states(self, transformer: nn.Module, parts_BPL: Tensor, is_there_BP: Tensor) -> Tensor:
        """What the encoder says of every sub-word of every part, special tokens around it: (B, P, S, E)."""
        files = self.files
        counts_BP1 = (parts_BPL != PAD).sum(-1, keepdim=True)
        ids = torch.where(parts_BPL == PAD, files.padding, parts_BPL - 1)
        ids = nn.functional.pad(ids, (len(files.before), len(files.after)), value=files.padding)
        row_S = torch.arange(ids.shape[-1], device=ids.device)
        for place, number in enumerate(files.before):
            ids = torch.where(row_S == place, number, ids)
        ends_BP1 = len(files.before) + counts_BP1
        for place, number in enumerate(files.after):
            ids = torch.where(row_S == ends_BP1 + place, number, ids)
        mask = (row_S < ends_BP1 + len(files.after)).long()
        if parts_BPL.shape[1] == 1 or torch.compiler.is_compiling():
            states = transformer(input_ids=ids.flatten(0, 1), attention_mask=mask.flatten(0, 1)).last_hidden_state
            return states.unflatten(0, (-1, parts_BPL.shape[1]))
        states = transformer(input_ids=ids[is_there_BP], attention_mask=mask[is_there_BP]).last_hidden_state
        found = states.new_zeros(*ids.shape, states.shape[-1])
        found[is_there_BP] = states
        return found

    def _pretrained(self) -> nn.Module:
        """The frozen encoder, where the model is, if it is still the one that the model was trained with."""
        try:
            transformer = load_encoder(self.name)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"the model needs its encoder, which it does not hold: {error}") from error
        if known_digest(transformer) != self.files.digest:
            raise ValueError(
                f"the encoder {self.name} has other weights than the one that the model was trained with; put the old "
                "one back, or train the model anew"
            )
        return transformer.to(self.mean.device)

    @torch.no_grad()
    def _frozen(self, tokens: Tensor) -> Tensor:
        transformer = self._pretrained() if self.transformer is None else self.transformer
        with torch.autocast(tokens.device.type, enabled=False):
            return self.read(transformer.eval(), tokens).half().to(torch.float32)

    def _compute(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Vectors of texts, one array each: (1 + T, E)."""
        vectors = self._frozen(_padded(rows).to(self.mean.device)).cpu().half().numpy()
        return [each[: 1 + len(row)] for each, row in zip(vectors, rows, strict=True)]

    def _kept(self, tokens: Tensor) -> Tensor:
        """What is kept of a batch; what is missing is computed and kept."""
        store = store_of(self.files.digest, self.files.part_length)
        rows = [row[row != PAD] for row in tokens.cpu().numpy()]
        keys = [key_of(row) for row in rows]
        found = [store.get(key) for key in keys]
        missing = [index for index, each in enumerate(found) if each is None]
        if missing:
            computed = self._compute([rows[index] for index in missing])
            store.add([keys[index] for index in missing], computed)
            for index, each in zip(missing, computed, strict=True):
                found[index] = each
        vectors = torch.zeros(len(rows), 1 + tokens.shape[1], self.files.size)
        for row, each in zip(vectors, found, strict=True):
            assert each is not None
            row[: len(each)] = torch.from_numpy(each.astype(np.float32))
        return vectors.to(tokens.device)

    def extra_repr(self) -> str:
        return f"name={self.name!r}, fine_tune={self.fine_tune}"


def _padded(rows: Sequence[np.ndarray]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
