"""The mathematics, transcribed loop by loop in float64: slow, plain, and without a line shared with the library.

Votes are arrays (B, S, N, J, D): S parent positions (one for dense votes) with N slots each; `child[s, n]` is the
child in slot n of position s. A link (s, n, j) leads from the child in that slot to parent type j at position s.
"""

import math
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

# --- votes --------------------------------------------------------------------------------------------------------


def apply(pose_entries, matrix, pose):
    """W u of a vector pose; M W, flattened row by row, of a matrix pose."""
    if pose == "vector":
        out = np.zeros(matrix.shape[1])
        for d in range(matrix.shape[1]):
            for k in range(matrix.shape[0]):
                out[d] += matrix[k, d] * pose_entries[k]
        return out
    side = matrix.shape[0]
    out = np.zeros(side * side)
    for row, column, inner in product(range(side), repeat=3):
        out[row * side + column] += pose_entries[row * side + inner] * matrix[inner, column]
    return out


def vote(pose_entries, owner, j, weight, bias, pose, sharing):
    """The vote of a child for parent j; `owner` is the index of what owns a transformation under full weights."""
    if sharing == "factorised":
        child_factor, parent_factor = weight
        out = apply(apply(pose_entries, child_factor[owner], pose), parent_factor[j], pose)
    else:
        out = apply(pose_entries, weight[(*owner, j)] if sharing == "full" else weight[j], pose)
    if bias is not None:
        out = out + (bias[(*owner, j)] if sharing == "full" else bias[j])
    return out


def num_parents(weight, sharing):
    return (weight[1] if sharing == "factorised" else weight).shape[-3]


def dense_votes(poses, weight, bias=None, pose="vector", sharing="full"):
    """poses (B, I, K) -> (B, 1, I, J, D), child (1, I)."""
    batch_size, num_children = poses.shape[:2]
    votes = [
        [[vote(poses[b, i], (i,), j, weight, bias, pose, sharing) for j in range(num_parents(weight, sharing))]
         for i in range(num_children)]
        for b in range(batch_size)
    ]  # fmt: skip
    return np.array(votes)[:, None], np.arange(num_children)[None]


def conv_votes(poses, weight, kernel, stride, bias=None, pose="vector", sharing="full"):
    """poses (B, *spatial, C, K) -> (B, S, N, J, D), child (S, N); slots in order (kernel row, kernel column, type)."""
    spatial, num_types = poses.shape[1:-2], poses.shape[-2]
    output = [len(range(0, size - k + 1, s)) for size, k, s in zip(spatial, kernel, stride)]
    numbers = np.arange(math.prod(spatial) * num_types).reshape(*spatial, num_types)
    votes, child = [], []
    for b in range(poses.shape[0]):
        for position in np.ndindex(*output):
            for offset in np.ndindex(*kernel):
                place = tuple(p * s + o for p, s, o in zip(position, stride, offset))
                for c in range(num_types):
                    child.append(numbers[(*place, c)])
                    for j in range(num_parents(weight, sharing)):
                        votes.append(vote(poses[(b, *place, c)], (*offset, c), j, weight, bias, pose, sharing))
    num_positions, num_slots = math.prod(output), math.prod(kernel) * num_types
    votes = np.array(votes).reshape(poses.shape[0], num_positions, num_slots, num_parents(weight, sharing), -1)
    return votes, np.array(child).reshape(poses.shape[0], num_positions, num_slots)[0]


def class_votes(poses, weight, bias=None, pose="vector", sharing="full", coordinates=True):
    """poses (B, *spatial, C, K) -> (B, 1, I, J, D), child (1, I); one transformation per type, coordinates added."""
    spatial, num_types = poses.shape[1:-2], poses.shape[-2]
    votes = []
    for b in range(poses.shape[0]):
        for place in np.ndindex(*spatial):
            for c in range(num_types):
                for j in range(num_parents(weight, sharing)):
                    out = vote(poses[(b, *place, c)], (c,), j, weight, bias, pose, sharing)
                    if coordinates:
                        for axis, (where, size) in enumerate(zip(place, spatial)):
                            side = math.isqrt(len(out))
                            entry = axis if pose == "vector" else axis * side + side - 1
                            out[entry] += (where + 0.5) / size
                    votes.append(out)
    num_children = math.prod(spatial) * num_types
    votes = np.array(votes).reshape(poses.shape[0], 1, num_children, num_parents(weight, sharing), -1)
    return votes, np.arange(num_children)[None]


# --- what all routings share --------------------------------------------------------------------------------------


@dataclass
class Field:
    """Votes and who competes for them."""

    votes: np.ndarray
    child: np.ndarray
    competition: str = "window"
    mask: np.ndarray | None = None  # (B, I)
    window_mask: np.ndarray | None = None  # (B, S)
    activations: np.ndarray | None = None  # (B, I)
    initial_logits: np.ndarray | None = None  # (B, S, N, J)
    partial: np.ndarray | None = None  # (J,)
    leaky: bool = False
    amend: bool = False
    sizes: tuple = field(init=False)

    def __post_init__(self):
        self.sizes = self.votes.shape
        assert self.competition in ("window", "global", "position")

    def exists(self, b, s, n, j):
        return (
            (self.mask is None or self.mask[b, self.child[s, n]])
            and (self.window_mask is None or self.window_mask[b, s])
            and (self.partial is None or self.partial[j])
        )

    def groups(self, b):
        """Links that compete with each other: those of one child, of one slot, or of one child to one type."""
        _, num_positions, num_slots, num_types, _ = self.sizes
        groups = {}
        for s, n, j in product(range(num_positions), range(num_slots), range(num_types)):
            if self.exists(b, s, n, j):
                key = {"global": self.child[s, n], "window": (s, n), "position": (self.child[s, n], j)}
                groups.setdefault(key[self.competition], []).append((s, n, j))
        return list(groups.values())

    def parents(self, b):
        """Parents that exist: (s, j) and the slots that vote for them."""
        _, num_positions, num_slots, num_types, _ = self.sizes
        for s, j in product(range(num_positions), range(num_types)):
            yield s, j, [n for n in range(num_slots) if self.exists(b, s, n, j)]

    def weight(self, b, s, n):
        return self.activations[b, self.child[s, n]]

    def start(self, b):
        return np.zeros(self.sizes[1:4]) if self.initial_logits is None else self.initial_logits[b].copy()

    def first(self, b):
        """Couplings at the start; without logits all equal, for positions that compete as if types did."""
        if self.competition != "position" or self.initial_logits is not None:
            return self.softmax(b, self.start(b))
        coupling = np.zeros(self.sizes[1:4])
        num_types = self.sizes[3] if self.partial is None else int(sum(self.partial))
        for s, n, j in np.ndindex(*coupling.shape):
            if self.exists(b, s, n, j):
                coupling[s, n, j] = 1 / (num_types + self.leaky)
        return self.amended(b, coupling)

    def softmax(self, b, logits):
        coupling = np.zeros(self.sizes[1:4])
        for group in self.groups(b):
            largest = max([logits[link] for link in group] + [0.0] * self.leaky)
            total = sum(math.exp(logits[link] - largest) for link in group) + self.leaky * math.exp(-largest)
            for link in group:
                coupling[link] = math.exp(logits[link] - largest) / total
        return self.amended(b, coupling)

    def assign(self, b, logits):
        coupling = np.zeros(self.sizes[1:4])
        for group in self.groups(b):
            best = max(logits[link] for link in group)
            first = min((s, j, n) for s, n, j in group if logits[s, n, j] == best)
            coupling[first[0], first[2], first[1]] = 1.0
        return self.amended(b, coupling)

    def amended(self, b, coupling):
        if self.amend:
            for s, n in np.ndindex(*coupling.shape[:2]):
                if self.mask is None or self.mask[b, self.child[s, n]]:
                    coupling[s, n] *= self.weight(b, s, n)
        return coupling

    def sums(self, b, coupling):
        sums = np.zeros((self.sizes[1], *self.sizes[3:]))
        for s, j, slots in self.parents(b):
            for n in slots:
                sums[s, j] += coupling[s, n, j] * self.votes[b, s, n, j]
        return sums


class Step(NamedTuple):
    """One iteration, or the final result (with the output poses)."""

    coupling: np.ndarray
    poses: np.ndarray
    activations: np.ndarray
    objective: float


def norm(vector):
    return math.sqrt(sum(entry * entry for entry in vector.tolist()))


def unit(vector):
    return vector / norm(vector) if norm(vector) > 0 else np.zeros_like(vector)


def squash(vector, squash_k=1.0):
    square = norm(vector) ** 2
    return square / (squash_k + square) * unit(vector)


def each(function, vectors):
    """`function` of every parent's vector (S, J, D)."""
    return np.array([[function(vector) for vector in row] for row in vectors])


def batch(solve, problem, *args):
    """Solve every example by itself: (final Step, [Step per iteration]) with a batch axis in front."""
    solved = [solve(problem, b, *args) for b in range(problem.sizes[0])]
    final = Step(*(np.array(values) for values in zip(*[final for final, _ in solved])))
    trace = [Step(*(np.array(values) for values in zip(*steps))) for steps in zip(*[trace for _, trace in solved])]
    return final, trace


# --- the routings -------------------------------------------------------------------------------------------------


def dynamic(problem, num_iterations=3, squash_k=1.0):
    return batch(_dynamic, problem, num_iterations, squash_k)


def _dynamic(problem, b, num_iterations, squash_k):
    logits, trace, root = problem.start(b), [], math.sqrt(squash_k)
    for iteration in range(num_iterations):
        coupling = problem.softmax(b, logits) if iteration else problem.first(b)
        sums = problem.sums(b, coupling)
        poses = each(lambda s: squash(s, squash_k), sums)
        phi = -sum(norm(s) - root * math.atan(norm(s) / root) for row in sums for s in row)
        trace.append(Step(coupling, poses, each(norm, poses), phi))
        for s, n, j in np.ndindex(*coupling.shape):
            logits[s, n, j] += float(problem.votes[b, s, n, j] @ poses[s, j])
    return trace[-1], trace


def kmeans(problem, num_iterations=3, metric="dot", inverse_temperature=1.0, hard=False, squash_k=1.0):
    return batch(_kmeans, problem, num_iterations, metric, inverse_temperature, hard, squash_k)


def _kmeans(problem, b, num_iterations, metric, temperature, hard, squash_k):
    def centres_of(coupling, old):
        centres = problem.sums(b, coupling)
        for s, j, slots in problem.parents(b):
            mass = sum(coupling[s, n, j] for n in slots)
            if metric == "euclidean" and mass > 0:
                centres[s, j] = centres[s, j] / mass
            if hard and old is not None and mass == 0:
                centres[s, j] = old[s, j]
        return centres

    def distance(s, n, j):
        if metric == "dot":
            return -float(problem.votes[b, s, n, j] @ unit(centres[s, j]))
        return norm(problem.votes[b, s, n, j] - centres[s, j]) ** 2

    def loss():
        total = 0.0
        for group in problem.groups(b):
            distances = [distance(*link) for link in group]
            if hard:
                share = min(distances)
            else:
                share = -math.log(sum(math.exp(-temperature * d) for d in distances)) / temperature
            total += share * (problem.weight(b, *group[0][:2]) if problem.amend else 1.0)
        return total

    coupling = problem.first(b)
    centres = centres_of(coupling, None)
    trace = [Step(coupling, centres, each(lambda v: norm(squash(v, squash_k)), centres), loss())]
    for _ in range(num_iterations):
        logits = np.zeros(coupling.shape)
        for link in np.ndindex(*coupling.shape):
            logits[link] = -temperature * distance(*link)
        coupling = problem.assign(b, logits) if hard else problem.softmax(b, logits)
        centres = centres_of(coupling, centres)
        trace.append(Step(coupling, centres, each(lambda v: norm(squash(v, squash_k)), centres), loss()))
    return trace[-1]._replace(poses=each(lambda v: squash(v, squash_k), centres)), trace


def entropy(problem, alpha=(0.1, 0.1, 0.1)):
    """One alpha for each iteration."""
    return batch(_entropy, problem, alpha)


def _entropy(problem, b, alphas):
    logits, trace = problem.start(b), []
    for iteration, alpha in enumerate(alphas):
        coupling = problem.softmax(b, logits) if iteration else problem.first(b)
        sums = problem.sums(b, coupling)
        directions = each(unit, sums)
        lengths = each(norm, sums)
        weights = np.array([[value / (1 + max(row)) for value in row] for row in lengths])
        energy = 0.0
        for s, n, j in np.ndindex(*coupling.shape):
            agreement = float(problem.votes[b, s, n, j] @ directions[s, j])
            logits[s, n, j] = agreement / alpha
            if (c := coupling[s, n, j]) > 0:
                energy += -c * agreement + alpha * c * math.log(c)
        trace.append(Step(coupling, sums, weights, energy))
    return trace[-1]._replace(poses=weights[..., None] * directions), trace


def em(
    problem, beta_a, beta_u, lambdas, temperatures=None, eps_var=1e-6, cost_scale="mass", activation="mdl", damping=0.0
):
    """betas (J,); one lambda and one inverse temperature for each iteration."""
    temperatures = temperatures or [1.0] * len(lambdas)
    return batch(_em, problem, beta_a, beta_u, lambdas, temperatures, eps_var, cost_scale, activation, damping)


def _em(problem, b, beta_a, beta_u, lambdas, temperatures, eps_var, cost_scale, activation, damping):
    _, num_positions, _, num_types, size = problem.sizes
    votes, trace = problem.votes[b], []
    coupling = problem.first(b)
    old = np.zeros((num_positions, num_types, size))
    here = [problem.window_mask is None or problem.window_mask[b, s] for s in range(num_positions)]
    mbar, kappa = (coupling.sum() / (sum(here) * num_types), 100.0) if cost_scale == "mass" else (1.0, 1.0)
    for lam, sharp in zip(lambdas, temperatures):
        mass = np.zeros((num_positions, num_types))
        mean, variance = np.zeros((num_positions, num_types, size)), np.ones((num_positions, num_types, size))
        for s, j, slots in problem.parents(b):
            for n in slots:
                mass[s, j] += coupling[s, n, j] * problem.weight(b, s, n)
            share = {n: coupling[s, n, j] * problem.weight(b, s, n) / max(mass[s, j], 1e-8) for n in slots}
            for h in range(size):
                mean[s, j, h] = sum(share[n] * votes[s, n, j, h] for n in slots)
                mean[s, j, h] = (1 - damping) * mean[s, j, h] + damping * old[s, j, h]
                variance[s, j, h] = sum(share[n] * (votes[s, n, j, h] - mean[s, j, h]) ** 2 for n in slots) + eps_var
        log_a = np.full((num_positions, num_types), -math.inf)
        for s, j in np.ndindex(num_positions, num_types):
            if not here[s]:
                continue
            half_logs = [0.5 * math.log(v) for v in variance[s, j]]
            if activation == "mixing":
                log_a[s, j] = math.log(mass[s, j] / mass.sum())
                continue
            if activation == "entropy":
                bracket = beta_a[j] - beta_u[j] - sum(half_logs)
            else:
                bracket = beta_a[j] - sum(beta_u[j] + half_log for half_log in half_logs) * mass[s, j] / mbar
            log_a[s, j] = -np.logaddexp(0.0, -lam * kappa * bracket)
        logits = np.full(coupling.shape, -math.inf)
        for s, j, slots in problem.parents(b):
            for n in slots:
                log_p = 0.0
                for h in range(size):
                    v = variance[s, j, h]
                    log_p -= 0.5 * ((votes[s, n, j, h] - mean[s, j, h]) ** 2 / v + math.log(2 * math.pi * v))
                logits[s, n, j] = sharp * (log_a[s, j] + log_p)
        likelihood = 0.0
        for group in problem.groups(b):
            likelihood += problem.weight(b, *group[0][:2]) * np.logaddexp.reduce([logits[k] for k in group]) / sharp
        trace.append(Step(coupling, mean, np.exp(log_a), -likelihood))
        coupling, old = problem.softmax(b, logits), mean
    return trace[-1], trace
