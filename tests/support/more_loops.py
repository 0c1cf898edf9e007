"""More routings, transcribed loop by loop like those in `loops`; betas and biases are (N, J), one for each slot."""

import math

import numpy as np
from scipy.special import digamma

from support.loops import Step, batch, each, norm, squash, unit


def max_min(problem, num_iterations=3, squash_k=1.0):
    return batch(_max_min, problem, num_iterations, squash_k)


def _max_min(problem, b, num_iterations, squash_k):
    logits, trace, root = problem.start(b), [], math.sqrt(squash_k)
    for _ in range(num_iterations):
        coupling = np.zeros(problem.sizes[1:4])
        for group in problem.groups(b):
            low, high = min(logits[link] for link in group), max(logits[link] for link in group)
            for link in group:
                coupling[link] = 1.0 if high == low else (logits[link] - low) / (high - low)
        coupling = problem.amended(b, coupling)
        sums = problem.sums(b, coupling)
        poses = each(lambda s: squash(s, squash_k), sums)
        phi = -sum(norm(s) - root * math.atan(norm(s) / root) for row in sums for s in row)
        trace.append(Step(coupling, poses, each(norm, poses), phi))
        for s, n, j in np.ndindex(*coupling.shape):
            logits[s, n, j] += float(problem.votes[b, s, n, j] @ poses[s, j])
    return trace[-1], trace


def attention(problem, num_iterations=3, squash_k=1.0, eps=1e-5, scale=None, shift=None):
    return batch(_attention, problem, num_iterations, squash_k, eps, scale, shift)


def _attention(problem, b, num_iterations, squash_k, eps, scale, shift):
    size, trace = problem.sizes[-1], []

    def layer_norm(vector):
        mean = sum(vector.tolist()) / size
        variance = sum((entry - mean) ** 2 for entry in vector.tolist()) / size
        out = (vector - mean) / math.sqrt(variance + eps)
        return (out if scale is None else out * scale) + (0.0 if shift is None else shift)

    coupling = problem.first(b)
    for _ in range(num_iterations):
        sums = problem.sums(b, coupling)
        poses = each(layer_norm, sums)
        for s in range(problem.sizes[1]):
            if problem.window_mask is not None and not problem.window_mask[b, s]:
                poses[s] = 0.0
        logits = np.zeros(coupling.shape)
        for s, n, j in np.ndindex(*coupling.shape):
            logits[s, n, j] = float(problem.votes[b, s, n, j] @ poses[s, j]) / math.sqrt(size)
        partition = sum(np.logaddexp.reduce([logits[link] for link in group]) for group in problem.groups(b))
        trace.append(Step(coupling, poses, each(lambda v: norm(squash(v, squash_k)), sums), -partition))
        coupling = problem.softmax(b, logits)
    return trace[-1], trace


def self_attention(problem, bias=None):
    return batch(_self_attention, problem, bias)


def _self_attention(problem, b, bias):
    size = problem.sizes[-1]
    logits = problem.start(b)
    for s, j, slots in problem.parents(b):
        for n in slots:
            for k in slots:
                logits[s, n, j] += float(problem.votes[b, s, n, j] @ problem.votes[b, s, k, j]) / math.sqrt(size)
    amend, problem.amend = problem.amend, False
    coupling = problem.softmax(b, logits)
    problem.amend = amend
    for s, n, j in np.ndindex(*coupling.shape):
        if bias is not None and problem.exists(b, s, n, j):
            coupling[s, n, j] += bias[n, j]
    coupling = problem.amended(b, coupling)
    sums = problem.sums(b, coupling)
    poses = each(lambda s: (1 - math.exp(-norm(s))) * unit(s), sums)
    final = Step(coupling, poses, each(norm, poses), -sum(norm(s) for row in sums for s in row))
    return final, [final]


def self_routing(problem):
    return batch(_self_routing, problem)


def _self_routing(problem, b):
    _, num_positions, num_slots, num_types, size = problem.sizes
    coupling = problem.first(b)
    poses, activations = np.zeros((num_positions, num_types, size)), np.zeros((num_positions, num_types))
    objective = 0.0
    for s, j, slots in problem.parents(b):
        here = problem.window_mask is None or problem.window_mask[b, s]
        present = [n for n in range(num_slots) if problem.mask is None or problem.mask[b, problem.child[s, n]]]
        mass = sum(coupling[s, n, j] * problem.weight(b, s, n) for n in slots)
        activations[s, j] = here * mass / max(sum(problem.weight(b, s, n) for n in present), 1e-8)
        for n in slots:
            poses[s, j] += coupling[s, n, j] * problem.weight(b, s, n) / max(mass, 1e-8) * problem.votes[b, s, n, j]
        for n in slots:
            distance = norm(problem.votes[b, s, n, j] - poses[s, j]) ** 2
            objective += coupling[s, n, j] * problem.weight(b, s, n) * distance
    final = Step(coupling, poses, activations, objective)
    return final, [final]


def heinsen(problem, beta_use, beta_ignore, num_iterations=3, eps_var=1e-6):
    return batch(_heinsen, problem, beta_use, beta_ignore, num_iterations, eps_var)


def _heinsen(problem, b, beta_use, beta_ignore, num_iterations, eps_var):
    _, num_positions, _, num_types, size = problem.sizes
    votes, trace = problem.votes[b], []
    coupling = problem.first(b)
    for _ in range(num_iterations):
        score = np.full((num_positions, num_types), -math.inf)
        mean = np.zeros((num_positions, num_types, size))
        variance = np.full((num_positions, num_types, size), eps_var)
        for s, j, slots in problem.parents(b):
            if problem.window_mask is not None and not problem.window_mask[b, s]:
                continue
            use = {n: problem.weight(b, s, n) * coupling[s, n, j] for n in slots}
            score[s, j] = sum(
                beta_use[n, j] * use[n] - beta_ignore[n, j] * (problem.weight(b, s, n) - use[n]) for n in slots
            )
            mass = max(sum(use.values()), 1e-8)
            for h in range(size):
                mean[s, j, h] = sum(use[n] * votes[s, n, j, h] for n in slots) / mass
                variance[s, j, h] += sum(use[n] * (votes[s, n, j, h] - mean[s, j, h]) ** 2 for n in slots) / mass
        logits = np.full(coupling.shape, -math.inf)
        for s, j, slots in problem.parents(b):
            for n in slots:
                log_p = 0.0
                for h in range(size):
                    v = variance[s, j, h]
                    log_p -= 0.5 * ((votes[s, n, j, h] - mean[s, j, h]) ** 2 / v + math.log(2 * math.pi * v))
                logits[s, n, j] = -np.logaddexp(0.0, -score[s, j]) + log_p
        likelihood = sum(
            problem.weight(b, *group[0][:2]) * np.logaddexp.reduce([logits[k] for k in group])
            for group in problem.groups(b)
        )
        with np.errstate(over="ignore"):
            trace.append(Step(coupling, mean, 1 / (1 + np.exp(-score)), -likelihood))
        coupling = problem.softmax(b, logits)
    return trace[-1], trace


def vb(problem, beta_a, beta_u, num_iterations=3, alpha0=1.0, kappa0=1.0, psi0=1.0, nu0=None):
    """betas (J,). The objective is left out: what it promises is tested by itself."""
    return batch(_vb, problem, beta_a, beta_u, num_iterations, alpha0, kappa0, psi0, nu0)


def _vb(problem, b, beta_a, beta_u, num_iterations, alpha0, kappa0, psi0, nu0):
    _, num_positions, _, num_types, size = problem.sizes
    votes, trace = problem.votes[b], []
    nu0 = size + 1.0 if nu0 is None else nu0
    here = [problem.window_mask is None or problem.window_mask[b, s] for s in range(num_positions)]
    coupling = problem.first(b)
    for _ in range(num_iterations):
        mass = np.zeros((num_positions, num_types))
        mean, scale = np.zeros((num_positions, num_types, size)), np.full((num_positions, num_types, size), psi0)
        for s, j, slots in problem.parents(b):
            weight = {n: coupling[s, n, j] * problem.weight(b, s, n) for n in slots}
            mass[s, j] = sum(weight.values())
            for h in range(size) if mass[s, j] else ():
                centre = sum(weight[n] * votes[s, n, j, h] for n in slots) / mass[s, j]
                spread = sum(weight[n] * (votes[s, n, j, h] - centre) ** 2 for n in slots) / mass[s, j]
                mean[s, j, h] = mass[s, j] * centre / (kappa0 + mass[s, j])
                scale[s, j, h] += mass[s, j] * spread + kappa0 * mass[s, j] / (kappa0 + mass[s, j]) * centre**2
        log_pi, log_det = np.zeros((num_positions, num_types)), np.zeros((num_positions, num_types))
        score = np.full((num_positions, num_types), -math.inf)
        for s, j in np.ndindex(num_positions, num_types):
            if not here[s]:
                continue
            sharing = {
                "window": [(s, k) for k in range(num_types)],
                "global": [(p, k) for p in range(num_positions) for k in range(num_types) if here[p]],
                "position": [(p, j) for p in range(num_positions) if here[p]],
            }[problem.competition]
            log_pi[s, j] = digamma(alpha0 + mass[s, j]) - digamma(sum(alpha0 + mass[k] for k in sharing))
            nu = nu0 + mass[s, j]
            log_det[s, j] = size * math.log(2) - sum(math.log(value) for value in scale[s, j])
            log_det[s, j] += sum(digamma((nu - d) / 2) for d in range(size))
            entropy = size / 2 * math.log(2 * math.pi * math.e) - log_det[s, j] / 2
            score[s, j] = beta_a[j] - beta_u[j] - math.exp(log_pi[s, j]) * entropy
        logits = np.full(coupling.shape, -math.inf)
        for s, j, slots in problem.parents(b):
            for n in slots:
                distance = sum((votes[s, n, j, h] - mean[s, j, h]) ** 2 / scale[s, j, h] for h in range(size))
                bracket = size / (kappa0 + mass[s, j]) + (nu0 + mass[s, j]) * distance
                logits[s, n, j] = log_pi[s, j] + log_det[s, j] / 2 - bracket / 2
        with np.errstate(over="ignore"):
            trace.append(Step(coupling, mean, 1 / (1 + np.exp(-score)), math.nan))
        coupling = problem.softmax(b, logits)
    return trace[-1], trace
