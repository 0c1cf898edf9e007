"""Tables of the pages, from the files in results/ alone: what was not measured has no row."""

from pathlib import Path

from building.accuracy import routing_accuracy, trained_models
from building.encoders import encoder_gains, similarity
from building.estimators import text_estimator
from building.experiments import experiment_tables, reproducible
from building.gains import matrix_gains, text_gains, vector_gains
from building.operation import process_scaling, serving_load
from building.recommend import interests, recommend_scaling
from building.speed import latency, layers, neighbours, routing_speed, training


def write_tables(results: Path, folder: Path) -> None:
    """Write one Markdown file for each table; a file that is already right is left alone, so that builds stay short."""
    tables = {
        "routing-speed": routing_speed(results),
        "routing-accuracy": routing_accuracy(results),
        "layers": layers(results),
        "latency": latency(results),
        "neighbour": neighbours(results),
        "training": training(results),
        "models": trained_models(results),
        "serving-load": serving_load(results),
        "process-scaling": process_scaling(results),
        "experiments": experiment_tables(results),
        "reproducible": reproducible(),
        "vector-gains": vector_gains(results),
        "matrix-gains": matrix_gains(results),
        "text-gains": text_gains(results),
        "encoder-gains": encoder_gains(results),
        "similarity": similarity(results),
        "text-estimator": text_estimator(results),
        "interests": interests(results),
        "recommend-scaling": recommend_scaling(results),
    }
    folder.mkdir(exist_ok=True)
    for name, text in tables.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
