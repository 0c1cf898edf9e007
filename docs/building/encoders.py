"""What a pretrained encoder is worth: heads on it beside networks on words, sets of capsules beside one vector."""

from pathlib import Path

from building.gains import TEXT, TEXT_LINES, figures
from building.markdown import Cells, table

HEADS = {
    "capsules, dynamic": "capsules, dynamic",
    "capsules, K-Means": "capsules, K-Means",
    "attention": "attention over the tokens",
    "mean": "mean of the tokens",
    "mean, LR": "mean of the tokens, logistic regression",
    "first token": "first token",
}
SENTENCES = {"sst-phrases: ": "sst: "}  # an encoder is given the sentences, words are given their phrases, too


def encoder_gains(results: Path) -> str:
    """Heads on an encoder, frozen and fine-tuned, beside the network on words that has the fewest errors."""
    found = figures(results)
    rows: list[Cells] = []
    for line in TEXT_LINES:
        of_words = [
            (name, found.get((line.experiment, line.prefix + name, line.measured))) for (name,) in TEXT.values()
        ]
        best = min(((figure.mean, f"{figure}, {name}") for name, figure in of_words if figure), default=(0.0, "-"))[1]
        start = SENTENCES.get(line.prefix, line.prefix)
        for title, prefix in ((line.title, start), (f"{line.title}, fine-tuned", start.replace(":", ", fine-tuned:"))):
            cells = [found.get(("encoders", prefix + name, line.measured)) for name in HEADS.values()]
            if any(cells):
                rows.append((title, *(str(cell or "-") for cell in cells), best))
    return table(("error, %", *HEADS, "on words, best"), rows, numeric_from=1)


def similarity(results: Path) -> str:
    """Ways to compare texts, a column for each set of pairs."""
    found = {key[1:]: figure for key, figure in figures(results).items() if key[0] == "sts"}
    columns = list(dict.fromkeys(measured for _, measured in found))
    names = dict.fromkeys(name for name, _ in found)
    rows = [(name, *(f"{found[name, measured].mean:.1f}" for measured in columns)) for name in names]
    return table(("", *(column.partition(" of ")[0] for column in columns)), rows, numeric_from=1)
