"""Recommendations: people as interests, items that fit them, and which items formed an interest.

The layer is `torchcaps.nn.MultiInterest`, the models are `torchcaps.models.list_models("user")`, interactions are read
by `torchcaps.data.interactions`.
"""

from torchcaps.models.search import Found, search
from torchcaps.retrieval.estimator import InterestRecommender
from torchcaps.retrieval.index import ItemIndex
from torchcaps.retrieval.merging import merge_diverse
from torchcaps.retrieval.recommending import Interest, Recommended, Share, explain_interests, interests_of, recommend
from torchcaps.retrieval.recovery import interest_recovery
from torchcaps.retrieval.scoring import score_recommender

__all__ = [
    "Found",
    "Interest",
    "InterestRecommender",
    "ItemIndex",
    "Recommended",
    "Share",
    "explain_interests",
    "interest_recovery",
    "interests_of",
    "merge_diverse",
    "recommend",
    "score_recommender",
    "search",
]
