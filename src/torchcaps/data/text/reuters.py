"""Reuters-21578: trained on news with one topic, tested on news with several (Zhao et al. 2018)."""

from collections import Counter
from pathlib import Path

from torchcaps.data.text.sets import TextSet, label_texts
from torchcaps.data.text.tables import read_json_lines

FILE = "reuters21578-modapte.jsonl.gz"


def read_reuters(folder: Path, num_topics: int) -> tuple[TextSet, TextSet]:
    """News of the largest topics, with multi-hot labels.

    Training news have exactly one of the topics and nothing else; test news have at least two.

    Args:
        folder: of the file.
        num_topics: the topics with most training news.
    """
    rows = [row for _, row in read_json_lines(folder / FILE)]
    counts = Counter(topic for row in rows if row["split"] == "train" for topic in row["topics"])
    topics = tuple(sorted(topic for topic, _ in counts.most_common(num_topics)))
    chosen: dict[str, tuple[list[str], list[list[str]]]] = {"train": ([], []), "test": ([], [])}
    for row in rows:
        found = sorted(set(row["topics"]) & set(topics))
        if len(row["topics"]) == len(found) == 1 if row["split"] == "train" else len(found) > 1:
            texts, labels = chosen[row["split"]]
            texts.append(f"{row['title']}. {row['body']}")
            labels.append(found)
    train, test = (label_texts(*chosen[part], topics) for part in ("train", "test"))
    return train, test
