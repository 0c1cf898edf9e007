"""What is answered, for Python and for JSON alike: there pictures are base64 of PNG files and arrays nested lists."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, PlainSerializer, PlainValidator, WithJsonSchema

from torchcaps.service.images import to_base64
from torchcaps.service.requests import Algorithm

DECIMALS = 6

Ability = Literal["predict", "explain", "trace", "reconstruct", "attack", "tree", "recommend", "interests", "match"]


def _listed(array: np.ndarray) -> Any:
    return np.asarray(array, dtype=np.float64).round(DECIMALS).tolist()


_TO_LIST = PlainSerializer(_listed)
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_TABLE = {"type": "array", "items": _NUMBERS}
Numbers = Annotated[np.ndarray, PlainValidator(np.asarray), _TO_LIST, WithJsonSchema(_NUMBERS)]
Table = Annotated[np.ndarray, PlainValidator(np.asarray), _TO_LIST, WithJsonSchema(_TABLE)]
Block = Annotated[np.ndarray, PlainValidator(np.asarray), _TO_LIST, WithJsonSchema({"type": "array", "items": _TABLE})]
Picture = Annotated[
    np.ndarray,
    PlainValidator(np.asarray),
    PlainSerializer(to_base64),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}),
]


class Answer(BaseModel):
    """What a model says: `scores` are activations of capsules or else the probabilities again."""

    scores: Numbers
    probabilities: Numbers
    best: int
    label: str


class Result(BaseModel):
    """Of a request; `milliseconds` is how long the work on it took."""

    model: str
    milliseconds: float = 0.0


class Prediction(Result, Answer):
    """The answer to a PredictRequest."""


class Window(BaseModel):
    """What the first place of a grid sees, and how far the next is, in pixels of the image as the model sees it."""

    top: int
    left: int
    height: int
    width: int
    row_step: int
    column_step: int


class Places(BaseModel):
    """Per cent of the pose of a class that come from each place of the grid of capsules."""

    shares: Table
    window: Window
    image_height: int
    image_width: int


class Box(BaseModel):
    """A part of the image as the model sees it, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Node(BaseModel):
    """A capsule of a parse tree; a class has a label, the others a place and a window of the image."""

    layer: int
    row: int | None
    column: int | None
    type: int
    label: str | None
    activation: float
    window: Box | None


class Edge(BaseModel):
    """From a capsule to a part of it: numbers of nodes, coupling, and share of the parent's mass."""

    parent: int
    child: int
    coupling: float
    share: float


class Tree(BaseModel):
    """Which parts make up the class, layer by layer; node 0 is the class."""

    layers: list[str]
    nodes: list[Node]
    edges: list[Edge]


class Word(BaseModel):
    """A word and its part in the length of the class's pose."""

    word: str
    value: float


class Explanation(Result):
    """The answer to an ExplainRequest: places of an image, with a tree of a matrix network, or words of a text."""

    class_index: int
    label: str
    score: float
    places: Places | None = None
    tree: Tree | None = None
    words: list[Word] | None = None


class RoutingUsed(BaseModel):
    """Name of an algorithm, and how many iterations where that can be chosen."""

    algorithm: str
    num_iterations: int | None


class Step(BaseModel):
    """An iteration: of all classes, of the couplings by place and by type, and of what the plane shows."""

    activations: Numbers
    poses: Table
    objective: float | None
    by_place: Block
    by_type: Table
    point_couplings: Table
    centres: Table


class Plane(BaseModel):
    """Votes of the shown children for the shown classes along the two main directions of the votes."""

    classes: list[int]
    points: Block
    places: list[tuple[int, int, int]]
    variance_shares: Numbers


class Trace(Result):
    """The answer to a TraceRequest."""

    routing: RoutingUsed
    steps: list[Step]
    plane: Plane
    best: int
    label: str


class Reconstruction(Result):
    """The answer to a ReconstructRequest."""

    class_index: int
    label: str
    pose: Numbers
    length: float
    reconstruction: Picture


class DirectionFound(BaseModel):
    """A direction of the poses of a class: what it changes most, and from where to where real things lie along it.

    Of single entries `number` says which, from 0.
    """

    name: str
    number: int | None
    vector: Numbers
    low: float
    high: float
    change: float


class Member(BaseModel):
    """A real thing of a class and its pose."""

    image: Picture
    pose: Numbers


class PoseDirections(Result):
    """The answer to a PosesRequest; of principal directions and entries, those that change most come first."""

    class_index: int
    label: str
    mean: Numbers
    told: list[DirectionFound]
    principal: list[DirectionFound]
    entries: list[DirectionFound]
    members: list[Member]


class Attacked(Result):
    """The answer to an AttackRequest; `difference` is grey where nothing changed."""

    attack: str
    epsilon: float
    class_index: int
    before: Answer
    after: Answer
    succeeded: bool
    perturbed: Picture
    difference: Picture


class TextPart(BaseModel):
    """Words of a text that one capsule holds, and its share of the text."""

    words: list[str]
    share: float


class MatchedParts(BaseModel):
    """Parts of the first and the second text, by number; how much of the texts goes there, how alike they are."""

    first: int
    second: int
    share: float
    similarity: float


class Matched(Result):
    """The answer to a MatchRequest: the parts of both texts, and which belong together, what counts most first."""

    similarity: float
    first: list[TextPart]
    second: list[TextPart]
    matches: list[MatchedParts]


class KnownItem(BaseModel):
    """An item that can be recommended."""

    item: str
    title: str


class ItemList(Result):
    """Items of a recommender, the most used first."""

    items: list[KnownItem]


class RecommendedItem(KnownItem):
    """An item for a person, how well it fits, and the interest that likes it best, from 0 on."""

    score: float
    interest: int


class Recommendations(Result):
    """The answer to a RecommendRequest, the best first."""

    recommended: list[RecommendedItem]


class FormingStep(BaseModel):
    """An iteration: what each item gave to each interest, and how active the interests were."""

    couplings: Table
    activations: Numbers


class InterestFormed(BaseModel):
    """An interest, and what it recommends by itself."""

    number: int
    recommended: list[RecommendedItem]


class Recommending(Result):
    """The answer to an InterestsRequest: rows of couplings are the used items, columns the interests."""

    used: list[str]
    steps: list[FormingStep]
    interests: list[InterestFormed]


class ImageSize(BaseModel):
    """Of the raw images of a model."""

    channels: int
    height: int
    width: int


class ModelCard(BaseModel):
    """What is known of a model."""

    id: str
    title: str
    kind: Literal["image", "text", "user"]
    architecture: str
    labels: list[str]
    multi_label: bool
    threshold: float
    num_parameters: int
    dataset: str | None
    accuracy: float | None
    input: ImageSize | None
    language: Literal["en", "zh"] | None
    scores: Literal["activations", "probabilities"]
    routing: RoutingUsed | None
    pose_size: int | None
    abilities: list[Ability]


class Label(BaseModel):
    """A name for people."""

    en: str
    zh: str


class RoutingOffer(BaseModel):
    """A routing that can be chosen: by any network, or by those alone that were trained with it."""

    algorithm: Algorithm
    label: Label
    by_any_network: bool
    min_iterations: int | None
    max_iterations: int | None


class MissingModel(BaseModel):
    """A model that is there and cannot be used."""

    id: str
    reason: str


class LimitValues(BaseModel):
    """How much is taken, in bytes, pixels, characters, seconds and requests."""

    body_bytes: int
    png_bytes: int
    image_side: int
    text_characters: int
    seconds: float
    waiting: int


class ModelList(BaseModel):
    """All models, and what can be asked of them."""

    version: str
    models: list[ModelCard]
    routings: list[RoutingOffer]
    unavailable: list[MissingModel]
    limits: LimitValues | None = None


class Problem(BaseModel):
    """Why something was refused."""

    detail: str


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok"] = "ok"
