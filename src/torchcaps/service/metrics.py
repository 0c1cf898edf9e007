"""What a service has done, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter, defaultdict

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """How many values are at most as large as each of the bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Cumulative counts, sum and count, with `labels` such as 'path="/"'."""
        before, total, found = labels and f"{labels},", 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append(f'{name}_bucket{{{before}le="{bound}"}} {total}')
        braces = labels and f"{{{labels}}}"
        return [*found, f"{name}_sum{braces} {self.sum:.6f}", f"{name}_count{braces} {total}"]


class Metrics:
    """Requests by path and status, how long they took, how many are under way, and how many shared a forward pass."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.batches = Histogram(SIZES)
        self.num_under_way = 0

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests[path, status] += 1
        self.seconds[path].add(seconds)

    def text(self) -> str:
        """All of them."""
        lines = describe("torchcaps_requests_total", "counter", "Requests answered.")
        for (path, status), count in sorted(self.requests.items()):
            lines.append(f'torchcaps_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += describe("torchcaps_requests_under_way", "gauge", "Requests that are not answered yet.")
        lines.append(f"torchcaps_requests_under_way {self.num_under_way}")
        lines += describe("torchcaps_request_seconds", "histogram", "From the first byte to the end of the answer.")
        for path, histogram in sorted(self.seconds.items()):
            lines += histogram.lines("torchcaps_request_seconds", f'path="{path}"')
        lines += describe("torchcaps_batch_size", "histogram", "Predictions that came from one forward pass.")
        lines += self.batches.lines("torchcaps_batch_size")
        return "\n".join(lines) + "\n"


def describe(name: str, kind: str, text: str) -> list[str]:
    """The two lines before a metric."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
