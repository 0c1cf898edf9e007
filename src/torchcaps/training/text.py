"""A text model for the texts at hand: its vocabulary, and word vectors where there are any."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchcaps.data.text import TextOptions, vector_table
from torchcaps.models import TextModel, create_model

VECTOR_RATE = 0.5  # of word vectors that come from a file
# Vectors that start at random and learn remember the training texts and little else (tried on 3,200 snippets: 66 %
# right); what the words say for the classes is counted instead, and short vectors that hardly move tell words apart.
# Evidence of pairs, edges and wider vectors were chosen on held-out parts of training texts (TREC, waimai, snippets of
# reviews; right in %): 80.9, 85.1 and 75.1 with 32 entries alone; 84.8, 87.3 and 75.5 with pairs and edges; 84.0, 89.2
# and 75.1 with 200 entries, too. TF-IDF and logistic regression (C = 10) have 84.0, 88.5 and 74.9 there.
WITHOUT_VECTORS = {"embedding_size": 200, "embedding_rate": 0.1, "edges": 2}
PAIR_COUNTERS, MOST_COUNTS = 2**17, 2**21  # fewer where there are many classes
USUAL, USUAL_ON_ENCODER = "text-capsule-a", "text-capsules"
ENCODER_RATE = 0.02  # of the weights of an encoder that is fine-tuned


def new_text_model(
    name: str | None,
    texts: Sequence[str],
    *,
    class_names: tuple[str, ...],
    multi_label: bool = False,
    options: TextOptions | None = None,
    others: Sequence[str] = (),
    **model_options: Any,
) -> TextModel:
    """An untrained model that knows the words of the training texts; it has word evidence unless told otherwise.

    Args:
        name: of the model, see `torchcaps.models.list_models("text")`; None takes text-capsule-a, on an encoder
            text-capsules.
        texts: training texts.
        class_names: names of the classes.
        multi_label: a text may have several classes or none.
        options: how texts are encoded, and the file of word vectors to start from.
        others: texts without labels whose words are wanted too, where they have a vector.
        **model_options: arguments of the model.
    """
    options, encoder = options or TextOptions(), model_options.pop("encoder", None)
    if (encoder := encoder or options.encoder) is not None:
        if options.vectors is not None:
            raise ValueError("an encoder brings its own vectors; leave out either the encoder or the vectors")
        chosen: dict[str, Any] = {"encoder": encoder, "embedding_rate": ENCODER_RATE, **model_options}
        model = create_model(name or USUAL_ON_ENCODER, num_classes=len(class_names), multi_label=multi_label, **chosen)
        assert isinstance(model, TextModel)
        model.preprocessing = replace(model.preprocessing, max_length=options.max_length)
        model.labels = class_names
        return model
    encoding, vectors = options.encode(texts, others)
    pairs = min(PAIR_COUNTERS, MOST_COUNTS // len(class_names)) if model_options.get("word_evidence", True) else 0
    defaults = {"pair_evidence": pairs, **WITHOUT_VECTORS}
    if vectors is not None:
        defaults = {"embedding_size": vectors.size, "embedding_rate": VECTOR_RATE}
    chosen = {"word_evidence": True, **defaults, **model_options}
    model = create_model(
        name or USUAL,
        num_tokens=encoding.num_tokens,
        num_classes=len(class_names),
        multi_label=multi_label,
        **chosen,
    )
    assert isinstance(model, TextModel)
    if vectors is not None:
        model.set_vectors(*(torch.from_numpy(array) for array in vector_table(encoding, vectors)))
    model.preprocessing, model.labels = encoding, class_names
    return model
