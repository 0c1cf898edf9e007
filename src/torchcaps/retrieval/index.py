"""An index of items, for so many of them that looking at each would take too long; needs faiss."""

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_count
from torchcaps.models import Recommender
from torchcaps.models.search import Found

NEIGHBOURS, BUILD_EFFORT = 32, 80


class ItemIndex:
    """The items of a recommender in a graph of neighbours (HNSW), searched approximately.

    Every interest asks for its own candidates, more than are wanted by as many as are left out; they are merged by
    their best score.

    Args:
        model: a trained recommender; the index must be built again when its items change.
        effort: candidates that a search looks at, at least k; more find more of the true best and take longer.
    """

    def __init__(self, model: Recommender, *, effort: int = 128) -> None:
        try:
            import faiss  # pyrefly: ignore[missing-import]
        except ImportError as error:
            raise ValueError("an index of items needs faiss: pip install 'torchcaps[retrieval]'") from error
        self.effort = check_count("effort", effort)
        with torch.inference_mode():
            vectors = model.item_vectors()[1:].float().cpu().numpy()
        self.vectors = np.ascontiguousarray(vectors)
        self.index = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        self.index.hnsw.efConstruction = BUILD_EFFORT
        self.index.add(self.vectors)

    def __len__(self) -> int:
        return len(self.vectors)

    def search(
        self, interests: Tensor, k: int, *, present: Tensor | None = None, leave_out: Tensor | None = None
    ) -> Found:
        """As `torchcaps.models.search.search`, but approximately, and without the sum over all items (NaN)."""
        check_count("k", k)
        batch_size, num_interests, size = interests.shape
        num_out = 0 if leave_out is None else leave_out.shape[1]
        wanted = min(len(self), k + num_out)
        self.index.hnsw.efSearch = max(self.effort, wanted)
        queries = np.ascontiguousarray(interests.detach().float().cpu().numpy().reshape(-1, size))
        scores, places = self.index.search(queries, wanted)
        scores = scores.reshape(batch_size, num_interests, wanted)
        numbers = places.reshape(batch_size, num_interests, wanted) + 1
        items = np.zeros((batch_size, k), np.int64)
        best = np.full((batch_size, k), -np.inf, np.float32)
        whose = np.zeros((batch_size, k), np.int64)
        for person in range(batch_size):
            out = set() if leave_out is None else set(leave_out[person].tolist())
            found: dict[int, tuple[float, int]] = {}
            for interest in range(num_interests):
                if present is not None and not present[person, interest]:
                    continue
                for score, number in zip(scores[person, interest].tolist(), numbers[person, interest].tolist()):
                    if number > 0 and number not in out and (number not in found or found[number][0] < score):
                        found[number] = score, interest
            ranked = sorted(found.items(), key=lambda entry: (-entry[1][0], entry[0]))[:k]
            for place, (number, (score, interest)) in enumerate(ranked):
                items[person, place], best[person, place], whose[person, place] = number, score, interest
        nothing_summed = torch.full((batch_size,), torch.nan)
        return Found(torch.from_numpy(items), torch.from_numpy(best), torch.from_numpy(whose), nothing_summed)
