"""Several interests of a person against one: generated people whose interests are known, and MovieLens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.interactions import InteractionOptions, generate_people
from torchcaps.data.interactions.load import NUM_PEOPLE, PEOPLE
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.models import Recommender
from torchcaps.predictor import load
from torchcaps.retrieval import interest_recovery
from torchcaps.runs import RunConfig, load_run_data
from torchcaps.tasks.ranking import DEPTHS, ranking_figures
from torchcaps.training import TrainingConfig

SPLITS = {"users": "other people", "last": "the last item of everybody"}
MODELS = {
    "MIND": ("mind", {}),
    "ComiRec-DR": ("comirec-dr", {}),
    "ComiRec-SA": ("comirec-sa", {}),
    "mean pooling": ("youtube-dnn", {}),
    "GRU4Rec": ("gru4rec", {}),
    "popularity": ("popularity", {}),
}
ROUTINGS = {
    "MIND, K-Means routing": ("mind", {"routing": "kmeans"}),
    "MIND, EM routing": ("mind", {"routing": "em"}),
    "MIND, no routing (random couplings)": ("mind", {"routing": "uniform"}),
    "MIND, one interest": ("mind", {"num_interests": 1}),
}
EPOCHS: Mapping[Scale, Mapping[str, int]] = {"full": {PEOPLE: 6}, "quick": {PEOPLE: 1}}
REAL_EPOCHS = 3
COLUMNS: Mapping[str, dict[str, Any]] = {PEOPLE: {}}
REAL_COLUMNS = {"title_column": "title", "feature_columns": ("genre",)}


def measure_ranking(folder: Path) -> dict[str, float]:
    """Figures of the test in per cent, how far recall may be off by chance, and which interests were recovered."""
    predictor, config = load(folder), RunConfig.read(folder)
    model, test = predictor.model, load_run_data(config).test
    assert isinstance(model, Recommender)
    assert test is not None
    answers = predictor.predict(test.inputs)
    found = {f"{name}, %": 100 * value for name, value in model.task.score(answers, test.labels).items()}
    recall = ranking_figures(answers, test.labels, DEPTHS[0])["recall"]
    found["standard error of recall@20 over people, %"] = 100 * float(recall.std(ddof=1) / np.sqrt(len(recall)))
    if config.data == PEOPLE:
        people = generate_people(NUM_PEOPLE)
        chosen = np.searchsorted(people.interactions.starts, test.starts)  # those who are tested
        recovered = interest_recovery(model, people, chosen)
        found |= {f"interests {name}, %": 100 * value for name, value in recovered.items()}
    return found


def run_of(data: str, split: str, model: str, options: Mapping[str, Any], scale: Scale) -> RunConfig:
    """One training; all of a group take equally many steps."""
    return RunConfig(
        data=data,
        task="recommend",
        model=model,
        model_options=dict(options),
        interactions=InteractionOptions(split=split, **COLUMNS.get(data, REAL_COLUMNS)),
        training=TrainingConfig(
            epochs=EPOCHS[scale].get(data, REAL_EPOCHS),
            batch_size=256 if data == PEOPLE else 512,
            learning_rate=5e-3,
        ),
    )


def rows(scale: Scale, data: str) -> list[Row]:
    """All models with both splits; other routings on the generated people, where it can be told what they find."""
    found = []
    for name in dict.fromkeys([PEOPLE, data]):
        for split, meaning in SPLITS.items():
            models = MODELS | (ROUTINGS if name == PEOPLE and split == "users" else {})
            group = f"{'generated people' if name == PEOPLE else name}, {meaning}"
            found += [
                Row(
                    name=f"{group}: {title}",
                    group=group,
                    config=run_of(name, split, model, options, scale),
                    measure=measure_ranking,
                )
                for title, (model, options) in models.items()
            ]
    return found


EXPERIMENT = Experiment(
    name="interests",
    title="several interests of a person against one",
    source="nothing published with these data, splits and figures",
    data={"quick": PEOPLE, "full": "movielens-100k"},
    takes={"quick": "about a minute", "full": "about 8 minutes of one core a seed"},
    rows=rows,
    remark="Higher is better, but for the standard error. Other people: a tenth of the people is tested on the last "
    "fifth of their items, given the others. What was used is left out of the lists. All models have 32 numbers for an "
    "item, read the latest 20 items, and take equally many steps with one learning rate; the best epoch is chosen on "
    "validation. Nothing was tuned.",
)
