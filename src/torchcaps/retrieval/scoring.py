"""How good a recommender is on people it has not seen, or on items that came later."""

import numpy as np

from torchcaps.data.interactions import HistorySet
from torchcaps.models import Recommender
from torchcaps.predictor import Predictor
from torchcaps.tasks.ranking import NO_ITEM


def score_recommender(model: Recommender, examples: HistorySet) -> dict[str, float]:
    """Recall, NDCG and hit rate at 20 and 50, coverage, and diversity where items have categories.

    Args:
        model: a trained recommender.
        examples: of any data whose items the model knows.
    """
    names = examples.interactions.item_names
    number = np.array([NO_ITEM, *map(model.preprocessing.number, names)])
    return model.task.score(Predictor(model).predict(examples.inputs), number[examples.labels])
