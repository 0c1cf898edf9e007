"""One door to all data: a name, or a path."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from torchcaps.checks import check_count
from torchcaps.data.cifar import read_cifar
from torchcaps.data.formats import find_format, read_format
from torchcaps.data.home import folder_of, home
from torchcaps.data.idx import read_idx_folder
from torchcaps.data.labelled import Parts
from torchcaps.data.made import make_sets
from torchcaps.data.made_pairs import PAIRS, make_pairs
from torchcaps.data.norb import read_norb_folder
from torchcaps.data.npz import read_npz
from torchcaps.data.sets import DataSet, ImageSet
from torchcaps.data.text import SOURCES as TEXT_SOURCES
from torchcaps.data.text import Columns, is_text, load_texts

EMBEDDED = Path(__file__).parent / "embedded"
DIGITS = tuple("0123456789")
CLOTHES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A set that is known by name.

    Attributes:
        description: What it holds.
        origin: Who made it.
        terms: Under which terms.
        read: Reads its training and test images from the place where it lies.
        place: The embedded file; None for a set that is looked up as a folder of its name in `home()`.
        takes_size: Whether `read` takes an image size as well.
    """

    description: str
    origin: str
    terms: str
    read: Callable[..., tuple[ImageSet, ImageSet | None]]
    place: Path | None = None
    takes_size: bool = False


FROM_DIGITS = "MNIST where it is at hand, else the embedded digits"
SOURCES = {
    "digits": Source(
        description="5,000 training and 1,000 test digits of MNIST, embedded in the package",
        origin="A stratified choice from MNIST (Y. LeCun, C. Cortes, C. J. C. Burges): training digits from its "
        "training images, test digits from its test images",
        terms="CC BY-SA 3.0, as stated by the distributors of MNIST",
        read=read_npz,
        place=EMBEDDED / "digits.npz",
    ),
    "mnist": Source(
        description="60,000 training and 10,000 test images of handwritten digits, 28 x 28, the four idx files",
        origin="MNIST database of handwritten digits (Y. LeCun, C. Cortes, C. J. C. Burges)",
        terms="CC BY-SA 3.0, as stated by its distributors",
        read=lambda folder: read_idx_folder(folder, DIGITS),
    ),
    "fashion-mnist": Source(
        description="60,000 training and 10,000 test images of clothes, 28 x 28, the four idx files",
        origin="Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf, 2017; Zalando Research)",
        terms="MIT",
        read=lambda folder: read_idx_folder(folder, CLOTHES),
    ),
    "cifar10": Source(
        description="50,000 training and 10,000 test photographs of ten classes, 32 x 32, the binary or Python "
        "archive or PNG sheets",
        origin="CIFAR-10 (A. Krizhevsky, V. Nair, G. Hinton, 2009; University of Toronto)",
        terms="not stated; its authors ask to be cited",
        read=read_cifar,
    ),
    "smallnorb": Source(
        description="24,300 training and 24,300 test pairs of pictures of toys, 96 x 96, the six .mat files",
        origin="small NORB object dataset, v1.0 (F. J. Huang, Y. LeCun, 2005; New York University)",
        terms="research only, not to be redistributed",
        read=read_norb_folder,
        takes_size=True,
    ),
    "toys": Source(
        description="24,300 training and 24,300 test pairs of pictures of rendered toys with known viewpoints, 48 x 48 "
        "or 96 x 96 (`torchcaps data fetch toys` makes them)",
        origin="Rendered by torchcaps: five categories, ten instances each, in the format of smallNORB",
        terms="MIT, as torchcaps",
        read=read_norb_folder,
        takes_size=True,
    ),
    "multimnist": Source(
        description="two different digits, one over the other, each shifted by up to 4 pixels, 36 x 36, new in "
        "every epoch",
        origin=f"Made as by S. Sabour, N. Frosst and G. Hinton (2017) from {FROM_DIGITS}",
        terms="CC BY-SA 3.0, as the digits",
        read=lambda embedded: _read_made("multimnist", embedded),
        place=EMBEDDED / "digits.npz",
    ),
    "side-by-side": Source(
        description="two different digits next to each other, 28 x 56, new in every epoch",
        origin=f"Made as in J. Su's test of transfer (2018) from {FROM_DIGITS}",
        terms="CC BY-SA 3.0, as the digits",
        read=lambda embedded: _read_made("side-by-side", embedded),
        place=EMBEDDED / "digits.npz",
    ),
    "affnist": Source(
        description="training digits anywhere on 40 x 40 pixels, new in every epoch; test digits also turned, "
        "sheared and stretched",
        origin=f"Made in the style of affNIST (T. Tieleman, 2013) from {FROM_DIGITS}",
        terms="CC BY-SA 3.0, as the digits",
        read=lambda embedded: _read_made("affnist", embedded),
        place=EMBEDDED / "digits.npz",
    ),
    **{
        f"pairs-{num}": Source(
            description=f"a digit beside a garment, 28 x 56, new in every epoch: {num} classes, made of {words}",
            origin=f"Made from Fashion-MNIST and the digits of {FROM_DIGITS}",
            terms="CC BY-SA 3.0 and MIT, as the digits and the garments",
            read=lambda embedded, num=num: _read_pairs(num, embedded),
            place=EMBEDDED / "digits.npz",
        )
        for num, words in PAIRS.items()
    },
}


def load_data(
    name_or_path: str | Path = "digits",
    *,
    image_size: tuple[int, int] | None = None,
    columns: Columns | None = None,
) -> DataSet:
    """Load images or texts with labels, by name or from a path.

    Args:
        name_or_path: "digits" (embedded); "multimnist", "side-by-side" or "affnist" (made from digits);
            "pairs-100" (digits beside garments; -10, -25, -50 and -200, too); "mnist",
            "fashion-mnist", "cifar10", "smallnorb" or "toys" (a folder of that name in $TORCHCAPS_DATA, or in data/
            without that variable); a folder of idx files, of smallNORB's .mat files or of CIFAR-10; a folder with one
            folder of PNG or JPEG images per class, perhaps inside train/, validation/ and test/; an .npz file with
            x_train, y_train and perhaps x_test, y_test, or images, labels; an archive of CIFAR-10. A name wins over a
            path; write ./mnist for the path.
        image_size: (height, width) at which to keep pictures that are too large. A folder of images is stretched to
            it (to the median of the training images when not given); smallNORB is reduced by means of blocks (left
            as it is when not given, and then mapped into memory).
        columns: where texts and labels are in a table; `torchcaps.data.text.load_texts`, which reads texts,
            tells their names and formats.

    Example:
        >>> data = load_data("digits")
        >>> data.train.images.shape, len(data.test), data.class_names[3]
        ((5000, 28, 28), 1000, '3')
    """
    source, image_size = SOURCES.get(str(name_or_path)), _checked_size(image_size)
    if str(name_or_path) in TEXT_SOURCES or (source is None and is_text(Path(name_or_path).expanduser())):
        if image_size is not None:
            raise ValueError(f"image_size is for images; {name_or_path} holds texts")
        return load_texts(name_or_path, columns)
    if columns is not None and columns != Columns():
        raise ValueError(f"text and label columns are for tables of texts; {name_or_path} is none")
    if source is None:
        path = Path(name_or_path).expanduser()
        parts = _read_path(path, image_size)
        name = path.resolve().name
        return DataSet(name=name, origin=f"files in {name}", terms="not stated", **parts._asdict())
    if image_size is not None and not source.takes_size:
        raise ValueError(f"image_size is for folders of images and smallNORB; {name_or_path} has a size of its own")
    place = source.place or folder_of(str(name_or_path), source.description, can_be_fetched=True)
    train, test = source.read(place, image_size) if source.takes_size else source.read(place)
    return DataSet(name=str(name_or_path), train=train, test=test, origin=source.origin, terms=source.terms)


def is_image_folder(name_or_path: str | Path) -> bool:
    """Whether these are folders of PNG or JPEG images, which can be read at any size."""
    path = Path(name_or_path).expanduser()
    if str(name_or_path) in {**SOURCES, **TEXT_SOURCES} or not path.is_dir() or is_text(path):
        return False
    return find_format(path).takes_any_size


def _read_path(path: Path, image_size: tuple[int, int] | None) -> Parts[ImageSet]:
    if not path.exists():
        names = (*SOURCES, *TEXT_SOURCES)
        near = get_close_matches(str(path), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise FileNotFoundError(
            f"no data called {str(path)!r}: {hint}It is neither one of {', '.join(names)} nor a folder or file; "
            f"give a path, or put the files of a named set into {home() / 'NAME'}"
        )
    return read_format(path, image_size)


def _read_made(name: str, embedded: Path) -> tuple[ImageSet, ImageSet | None]:
    """Examples made from MNIST where it is at hand, else from the embedded digits."""
    mnist = home() / "mnist"
    return make_sets(name, *(read_idx_folder(mnist, DIGITS) if mnist.is_dir() else read_npz(embedded)))


def _read_pairs(num_classes: int, embedded: Path) -> tuple[ImageSet, ImageSet | None]:
    """Digits beside garments; digits are those of MNIST where it is at hand, else the embedded ones."""
    mnist = home() / "mnist"
    digits = read_idx_folder(mnist, DIGITS) if mnist.is_dir() else read_npz(embedded)
    clothes = folder_of("fashion-mnist", SOURCES["fashion-mnist"].description, can_be_fetched=True)
    return make_pairs(num_classes, digits, read_idx_folder(clothes, CLOTHES))


def _checked_size(image_size: tuple[int, int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    height, width = image_size
    return check_count("height of image_size", height), check_count("width of image_size", width)
