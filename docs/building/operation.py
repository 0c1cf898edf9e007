"""Serving and training in several processes, from results/serving/*.json and results/scaling/*.json."""

from pathlib import Path

from building.markdown import Cells, read, table, without_repeats


def serving_load(results: Path) -> str:
    """What a service answers under load, in batches and one by one."""
    rows: list[Cells] = []
    for path in sorted(results.glob("serving/*.json")):
        found = read(path)
        for row in sorted(found["rows"], key=lambda row: row["clients"]):
            rate = f"{row['requests_per_second']:.0f}"
            latencies = [f"{row[name]:.1f}" for name in ("p50_milliseconds", "p99_milliseconds")]
            rows.append((f"{found['model']}, {row['clients']} clients", row["handler"], rate, *latencies))
    return table(("load", "predictions", "requests/s", "p50, ms", "p99, ms"), without_repeats(rows), numeric_from=2)


def process_scaling(results: Path) -> str:
    """Images per second of one and two processes."""
    rows: list[Cells] = []
    for path in sorted(results.glob("scaling/*.json")):
        for row in read(path)["rows"]:
            sent = f"{row['bytes_sent_by_each_process_per_step'] / 1e6:.1f}"
            rows.append((row["model"], row["layout"], f"{row['images_per_second']:.0f}", f"{row['ratio']:.2f}", sent))
    headings = ("model", "layout", "images/s", "against one process", "MB sent by each per step")
    return table(headings, without_repeats(rows), numeric_from=2)
