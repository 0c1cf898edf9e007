"""Reuters-21578: trained on news with one topic, tested on news with several (Zhao et al. 2018)."""

from collections import Counter
from pathlib import Path

from torchcaps.data.sets import DataSet
from torchcaps.data.text.sets import label_texts
from torchcaps.data.text.sources import find_home
from torchcaps.data.text.tables import read_json_lines

FILE = "reuters21578-modapte.jsonl.gz"


def load_reuters(num_topics: int = 8, *, several_only: bool = True, folder: Path | None = None) -> DataSet:
    """News of the largest topics: training news have exactly one of them and nothing else, labels are multi-hot.

    Args:
        num_topics: the topics with most training news.
        several_only: test news have at least two of the topics ("multi-label"); otherwise at least one ("full").
        folder: of the file; None is $TORCHCAPS_DATA/text/reuters21578.
    """
    folder = folder or find_home("reuters21578", f"the ModApte split as {FILE}")
    rows = [row for _, row in read_json_lines(folder / FILE)]
    counts = Counter(topic for row in rows if row["split"] == "train" for topic in row["topics"])
    topics = tuple(sorted(topic for topic, _ in counts.most_common(num_topics)))
    parts = {}
    for part in ("train", "test"):
        texts, labels = [], []
        for row in rows:
            found = sorted(set(row["topics"]) & set(topics))
            wanted = len(row["topics"]) == len(found) == 1 if part == "train" else len(found) > several_only
            if row["split"] == part and wanted:
                texts.append(f"{row['title']}. {row['body']}")
                labels.append(found)
        parts[part] = label_texts(texts, labels, topics)
    return DataSet(
        name=f"reuters-{num_topics}",
        train=parts["train"],
        test=parts["test"],
        origin="Reuters-21578, Distribution 1.0, ModApte split (D. D. Lewis)",
        terms="research only",
    )
