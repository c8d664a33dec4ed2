"""Monte-Carlo simulations of the equations in `closed_form.py`: does each statement hold under its assumptions?

Each function checks one part of the theory and returns `Check`s: a statement, its closed form, a simulated estimate.
A statement `holds` if the estimate is within 3 standard errors of the closed form. Some statements are simulated where
they should fail, because an assumption is violated; `Check.expected` tells which outcome is expected.

States are numpy arrays [pairs, d]: row i of a visual and of a text array is one pair.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from research.theory import closed_form as theory
from research.theory.closed_form import Array


LAYERS, UPDATE, ANGLE = 28, 1.0, 0.3  # LLaVA-1.5's decoder has 32 layers, those of Qwen2.5 and Llama-3.2-3B have 28
VISUAL, TEXT = 39.96, 1.08  # Table 2, LLaVA-1.5


@dataclass(frozen=True)
class Check:
    """One statement and its simulation.

    Attributes:
        equation: number in the paper.
        statement: in words.
        predicted: value of the closed form.
        estimate, error: mean of the simulation and its standard error.
        expected: whether the statement should hold in this simulation.
    """

    equation: str
    statement: str
    predicted: float
    estimate: float
    error: float
    expected: bool = True

    @property
    def holds(self) -> bool:
        return abs(self.estimate - self.predicted) <= 3 * self.error

    @property
    def as_expected(self) -> bool:
        return self.holds == self.expected


def _unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _cosine(a: Array, b: Array) -> Array:
    return (_unit(a) * _unit(b)).sum(-1)


class Simulation:
    """Pairs of a visual and a text state [pairs, d], moved by random updates."""

    def __init__(self, seed: int = 0, pairs: int = 4000, dim: int = 64):
        self.random = np.random.default_rng(seed)
        self.pairs, self.dim = pairs, dim

    def normal(self) -> Array:
        return self.random.standard_normal((self.pairs, self.dim))

    def states(self, visual_norm: float, text_norm: float, angle: float) -> tuple[Array, Array]:
        """Visual and text states of the given norms, at a given angle (radians), in random directions."""
        visual = _unit(self.normal())
        other = self._across(self.normal(), visual)
        return visual_norm * visual, text_norm * (math.cos(angle) * visual + math.sin(angle) * other)

    def move(
        self, visual: Array, text: Array, sizes: tuple[float, float], phi: float = math.pi / 2, coherence: float = 0.0
    ) -> tuple[Array, Array]:
        """Add one update of the given sizes to both states.

        Both directions are mixed with a shared one across both states, so that E[r_v . r_t] = coherence.
        """
        shared = self._across(self.normal(), visual, text)
        moved = []
        for state, size in ((visual, sizes[0]), (text, sizes[1])):
            own = self._across(self.normal(), state, shared)
            direction = math.sqrt(coherence) * shared + math.sqrt(1 - coherence) * own
            moved.append(state + size * (math.cos(phi) * _unit(state) + math.sin(phi) * direction))
        return moved[0], moved[1]

    def _across(self, x: Array, *others: Array) -> Array:
        """x without its parts along `others` (Gram-Schmidt), scaled to unit length."""
        basis: list[Array] = []
        for other in others:
            for earlier in basis:
                other = other - (other * earlier).sum(-1, keepdims=True) * earlier
            basis.append(_unit(other))
        for direction in basis:
            x = x - (x * direction).sum(-1, keepdims=True) * direction
        return _unit(x)

    def cosines(self, visual_norm: float, text_norm: float, coherence: float = 0.0) -> Array:
        """cos(Theta) after `LAYERS` layers, [pairs]."""
        visual, text = self.states(visual_norm, text_norm, ANGLE)
        for _ in range(LAYERS):
            visual, text = self.move(visual, text, (UPDATE, UPDATE), coherence=coherence)
        return _cosine(visual, text)


def _mean(values: Array) -> tuple[float, float]:
    """Mean and standard error. The error is at least 1e-12: identities vary by rounding alone."""
    return float(values.mean()), max(1e-12, float(values.std(ddof=1) / math.sqrt(len(values))))


def rotation(seed: int = 0) -> list[Check]:
    """Eq. 8-9, 13-14: how far one update rotates a state; update sizes vary around their mean."""
    simulation = Simulation(seed)
    visual, text = simulation.states(8.0, 1.0, 0.6)
    checks, tangents = [], {}
    for name, state in (("visual", visual), ("text", text)):
        sizes = simulation.random.uniform(0.4, 1.0, (simulation.pairs, 1))
        update = sizes * simulation._across(simulation.normal(), state)
        tangents[name] = np.tan(np.arccos(_cosine(state, state + update)))
    for name, norm in (("visual", 8.0), ("text", 1.0)):
        predicted = theory.paper_tangent(norm, 0.7, math.pi / 2)
        checks.append(Check("8, 13", f"tan(omega) = a / N at phi = 90°, {name}", predicted, *_mean(tangents[name])))
    difference = tangents["visual"] - theory.tangent_ratio(8.0, 1.0) * tangents["text"]
    checks.append(Check("9, 14", "tan(omega_v) - tan(omega_t) N_t / N_v = 0", 0.0, *_mean(difference)))
    for phi in (60, 120):
        radians = math.radians(phi)
        moved, _ = simulation.move(text, visual, (0.7, 0.7), radians)
        measured = _mean(np.tan(np.arccos(_cosine(text, moved))))
        exact, paper = (form(1.0, 0.7, radians) for form in (theory.exact_tangent, theory.paper_tangent))
        checks.append(Check("8, 13", f"exact tangent at phi = {phi}°, text", exact, *measured))
        checks.append(Check("8, 13", f"tan(omega) = a sin(phi) / N at phi = {phi}°, text", paper, *measured, False))
    return checks


def decay(seed: int = 0) -> list[Check]:
    """Eq. 15-16 in one layer, with the tangent of Eq. 8 and with the exact one, and with correlated updates."""
    checks = []
    for phi in (90, 60, 120):
        simulation, radians = Simulation(seed), math.radians(phi)
        pair = simulation.states(8.0, 1.0, 0.6)
        measured = _mean(_cosine(*simulation.move(*pair, (0.7, 0.7), radians)))
        for name, form in (("exact", theory.exact_tangent), ("Eq. 8's", theory.paper_tangent)):
            tangents = (form(norm, 0.7, radians) for norm in (8.0, 1.0))
            predicted = theory.expected_cosine(math.cos(0.6), *tangents)
            expected = phi == 90 or name == "exact"
            checks.append(
                Check("15, 16", f"E cos = gamma cos, {name} tangent, phi = {phi}°", predicted, *measured, expected)
            )
    for coherence in (0.3, 0.9):
        simulation = Simulation(seed)
        pair = simulation.states(2.0, 1.0, 0.6)
        measured = _mean(_cosine(*simulation.move(*pair, (0.7, 0.7), coherence=coherence)))
        for c, name in ((coherence, "with c"), (0.0, "Eq. 15 itself")):
            predicted = theory.expected_cosine(math.cos(0.6), 0.35, 0.7, c)
            checks.append(
                Check("15, 16", f"updates correlated by c = {coherence}, {name}", predicted, *measured, c > 0)
            )
    return checks


def all_layers(seed: int = 0) -> list[Check]:
    """Eq. 15-17 over all layers, for the balanced case of Lemma 1 and for the paper's intervention."""
    middle = math.sqrt(VISUAL * TEXT)
    cases = {
        "imbalanced, LLaVA-1.5": (VISUAL, TEXT),
        "both at their geometric mean": (middle, middle),
        "visual lowered to text": (TEXT, TEXT),
        "text raised to visual": (VISUAL, VISUAL),
    }
    checks, measured = [], {}
    for name, norms in cases.items():
        measured[name] = _mean(Simulation(seed, pairs=3000).cosines(*norms) / math.cos(ANGLE))
        predicted = theory.retention_over_layers(*norms, UPDATE, LAYERS)
        checks.append(Check("15, 16", f"retention over {LAYERS} layers, {name}", predicted, *measured[name]))
    for name, expected in (("both at their geometric mean", True), ("visual lowered to text", False)):
        # Eq. 10, E[S_imb] < E[S_bal], and Eq. 17; errors of the two cosines propagate to the angles
        (a, a_error), (b, b_error) = measured["imbalanced, LLaVA-1.5"], measured[name]
        delta = theory.lag_angle(math.cos(ANGLE), cases["imbalanced, LLaVA-1.5"], cases[name], UPDATE, LAYERS)
        angles = [math.acos(value * math.cos(ANGLE)) for value in (a, b)]
        slopes = [math.cos(ANGLE) / math.sin(angle) for angle in angles]
        error = math.hypot(a_error * slopes[0], b_error * slopes[1])
        checks.append(Check("17", f"lag angle against {name}, radians", delta, angles[0] - angles[1], error))
        worse = Check("10, 17", f"imbalanced keeps less than {name} (1: yes)", 1.0, float(a < b), 0.0, expected)
        checks.append(worse)
    for coherence in (0.1, 0.6):
        values = Simulation(seed, pairs=3000).cosines(TEXT, TEXT, coherence)
        predicted = theory.cosine_over_layers(math.cos(ANGLE), TEXT, TEXT, UPDATE, LAYERS, coherence)
        statement = f"visual lowered to text, updates correlated by {coherence}"
        checks.append(Check("15, 16", statement, predicted, *_mean(values)))
    return checks


def lemma() -> list[Check]:
    """Lemma 1 under two constraints; the optimum is searched on a grid, whose spacing is the error."""
    width = 1e-4
    cases = (("product", 0.09, True), ("sum", 0.5, True), ("sum", 1.9, True), ("sum", 3.0, False))
    return [
        Check("Lemma 1", f"best share, {kind} of tangents {total}", 0.5, theory.best_split(kind, total), width, holds)
        for kind, total, holds in cases
    ]


def attention(seed: int = 0) -> list[Check]:
    """Eq. 18-21: attention between correlated text and visual states [count, d], with a random or a common lag."""
    random, dim, count, delta = np.random.default_rng(seed), 8, 20000, 0.7
    # 1) Balanced states, and the same with a lag of delta in random directions
    mixing = [random.standard_normal((dim, dim)) / math.sqrt(dim) for _ in range(2)]
    latent = random.standard_normal((count, dim))
    text, visual = latent @ mixing[0].T, latent @ mixing[1].T
    balanced = mixing[0] @ mixing[1].T  # E[h_t h_v']
    lost = random.standard_normal((count, dim))
    lagged = math.cos(delta) * visual + math.sin(delta) * lost
    # 2) Eq. 18-19: the singular values of their covariance
    left, _, right = np.linalg.svd(balanced)
    predicted = theory.lagged_covariance(balanced, delta)
    checks = []
    for i in (0, dim // 2):
        samples = (text @ left[:, i]) * (lagged @ right[i])
        value = float(np.linalg.svd(predicted, compute_uv=False)[i])
        statement = f"singular value {i + 1} of C_imb = cos(delta) that of C_bal"
        checks.append(Check("18, 19", statement, value, *_mean(samples)))
    # 3) Eq. 20: the largest score, with a random lag, with the same lag for all, and with a larger radius
    best = theory.best_projection(balanced)
    scores = ((text @ best) * lagged).sum(-1)
    bound = theory.largest_score(predicted)
    checks.append(Check("20", "largest expected score, random lag", bound, *_mean(scores)))
    turned, _ = np.linalg.qr(random.standard_normal((dim, dim)))
    after = balanced @ turned.T
    recovered = _mean(((text @ theory.best_projection(after)) * (visual @ turned.T)).sum(-1))
    whole = theory.largest_score(balanced)
    checks.append(Check("20", "largest expected score, the same lag for all: none lost", whole, *recovered))
    checks.append(Check("20", "it falls by cos(delta), the same lag for all", bound, *recovered, False))
    wider = _mean(((text @ (best / math.cos(delta))) * lagged).sum(-1))
    checks.append(Check("20", "a radius larger by 1 / cos(delta) restores it", whole, *wider))
    # 4) Eq. 21: signal-to-noise
    noise = _unit(random.standard_normal((count, 64))) * _unit(random.standard_normal((count, 64)))
    checks.append(Check("21", "variance of the noise score = 1 / d", 1 / 64, *_mean(noise.sum(-1) ** 2)))
    ratio = _mean(scores / whole)
    noise_std = 1 / math.sqrt(64)
    snr = [theory.signal_to_noise(signal, 0.0, noise_std) for signal in (math.cos(delta), 1.0)]
    checks.append(Check("21", "signal-to-noise falls by cos(delta), random lag", snr[0] / snr[1], *ratio))
    return checks


GROUPS: dict[str, Callable[[], list[Check]]] = {
    "rotation": rotation,
    "decay": decay,
    "all layers": all_layers,
    "lemma": lemma,
    "attention": attention,
}
