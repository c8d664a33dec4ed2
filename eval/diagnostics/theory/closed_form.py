"""The paper's theory, Eq. 8-21 (section 3 and Appendix B): each statement in closed form with its assumption.

The equations are a reconstruction: the paper's text is unambiguous about what they say, not about every symbol.
`theory_checks.py` draws from the model that each one assumes and compares.

Notation: a hidden state h of norm N = |h| and direction u; an update D of size a = |D| at the angle phi to h; its part
across h has the random direction r; omega is the rotation that a layer gives to a state, Theta the angle between a
visual and a text state.
"""

import math
from collections.abc import Sequence

import numpy as np


Array = np.ndarray


def paper_tangent(norm: float, update: float, phi: float) -> float:
    """Eq. 8 = 13: tan(omega) = a sin(phi) / N.

    Assumes uniform update size and angle. It is the tangent of the rotation only at phi = 90 degrees.
    """
    return update * math.sin(phi) / norm


def exact_tangent(norm: float, update: float, phi: float) -> float:
    """The tangent of the angle between h and h + D: a sin(phi) / (N + a cos(phi)); no assumption."""
    return update * math.sin(phi) / (norm + update * math.cos(phi))


def tangent_ratio(visual_norm: float, text_norm: float) -> float:
    """Eq. 9 = 14: tan(omega_v) / tan(omega_t) = N_t / N_v, below 1 where visual tokens are the longer ones.

    Assumes that both modalities have the same update size and angle.
    """
    return text_norm / visual_norm


def retention(tangent_v: float, tangent_t: float) -> float:
    """Eq. 16: gamma = cos(omega_v) cos(omega_t), from the two tangents."""
    return 1 / math.sqrt((1 + tangent_v**2) * (1 + tangent_t**2))


def expected_cosine(cosine: float, tangent_v: float, tangent_t: float, coherence: float = 0.0) -> float:
    """Eq. 15, and what it leaves out: E[cos Theta'] = gamma (cos Theta + tan(omega_v) tan(omega_t) c).

    Eq. 15 is the case c = 0. Assumes E[r | u_v, u_t] = 0 for both (the paper's symmetric distribution) and that
    c = E[r_v . r_t] is known; the paper needs c = 0 without saying so. In a transformer c is what attention does.
    """
    return retention(tangent_v, tangent_t) * (cosine + tangent_v * tangent_t * coherence)


def grown_norm(norm: float, update: float, layers: int) -> float:
    """Norm behind `layers` updates across the state: N_L^2 = N_0^2 + L a^2."""
    return math.sqrt(norm**2 + layers * update**2)


def retention_over_layers(visual_norm: float, text_norm: float, update: float, layers: int) -> float:
    """Eq. 15-16 over all layers, in closed form: prod gamma = (N_v / N_v,L) (N_t / N_t,L).

    Assumes phi = 90 degrees, uniform update size and c = 0: cos(omega) = N_l / N_(l+1), so the product telescopes.
    """
    return math.prod(norm / grown_norm(norm, update, layers) for norm in (visual_norm, text_norm))


def cosine_over_layers(
    cosine: float, visual_norm: float, text_norm: float, update: float, layers: int, coherence: float = 0.0
) -> float:
    """The recursion of `expected_cosine` at phi = 90 degrees, with the norms as they grow."""
    for layer in range(layers):
        visual, text = (update / grown_norm(norm, update, layer) for norm in (visual_norm, text_norm))
        cosine = expected_cosine(cosine, visual, text, coherence)
    return cosine


def break_even_coherence(visual_norm: float, text_norm: float, update: float, layers: int, cosine: float) -> float:
    """The c above which lowering the visual norm to the text norm ends closer to text than leaving it; 1 if none."""
    low, high = 0.0, 1.0
    gain = lambda c: (  # noqa: E731
        cosine_over_layers(cosine, text_norm, text_norm, update, layers, c)
        - cosine_over_layers(cosine, visual_norm, text_norm, update, layers, c)
    )
    if gain(high) < 0:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return high


def best_split(constraint: str, total: float, points: int = 9999) -> float:
    """Lemma 1: the share of the visual tangent (of its logarithm for "product") at which gamma is largest.

    The lemma says one half. It is so at a fixed product of tangents, and at a fixed sum only up to a sum of 2. The
    intervention of the paper fixes neither: it lowers N_v and leaves N_t.

    Args:
        constraint: "product": T_v T_t = total; "sum": T_v + T_t = total.
    """
    if constraint == "sum":
        shares = np.linspace(0, 1, points + 2)[1:-1]
        visual, text = shares * total, (1 - shares) * total
    else:
        shares = np.linspace(0, 1, points + 2)[1:-1]
        stretch = np.exp(12 * (shares - 0.5))
        visual, text = math.sqrt(total) * stretch, math.sqrt(total) / stretch
    return float(shares[np.argmin((1 + visual**2) * (1 + text**2))])


def lag_angle(
    cosine: float, imbalanced: tuple[float, float], balanced: tuple[float, float], update: float, layers: int
) -> float:
    """Eq. 17: delta = arccos(E cos Theta_imb) - arccos(E cos Theta_bal), radians; norms (visual, text) at layer 0.

    Positive against both norms at their geometric mean; negative against the intervention that is made, which lowers
    the visual norm to that of text.
    """
    kept = [retention_over_layers(visual, text, update, layers) for visual, text in (imbalanced, balanced)]
    return math.acos(cosine * kept[0]) - math.acos(cosine * kept[1])


def lagged_covariance(covariance: Array, delta: float) -> Array:
    """Eq. 18-19: C_imb = cos(delta) C_bal, so sigma_i(C_imb) = cos(delta) sigma_i(C_bal).

    Assumes that what the visual state lost is uncorrelated with text: E[h_t h_perp'] = 0.
    """
    return math.cos(delta) * covariance


def largest_score(covariance: Array, radius: float = 1.0) -> float:
    """Eq. 20: max over |M|_2 <= R of Tr(M' C) = R sum_i sigma_i(C) (von Neumann), reached at M = R U V'.

    The paper's norm of M is lost in its text; spectral is meant here. Any rotation of the visual states that is the
    same for all of them leaves it unchanged, and a radius larger by 1 / cos(delta) restores it.
    """
    return radius * float(np.linalg.svd(covariance, compute_uv=False).sum())


def best_projection(covariance: Array) -> Array:
    """The M of spectral norm 1 that reaches `largest_score`."""
    left, _, right = np.linalg.svd(covariance)
    return left @ right


def signal_to_noise(signal: float, noise_mean: float, noise_std: float) -> float:
    """Eq. 21, read as (E[S_sig] - E[S_noise]) / std(S_noise); Eq. 10 is its first term.

    Assumes noise of mean zero that the lag does not touch: for unit vectors its deviation is 1 / sqrt(d).
    """
    return (signal - noise_mean) / noise_std


def log_tangent_fit(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """How much of the measured log tan ratio over layers Eq. 9 explains: share of the total, and R^2 about zero.

    R^2 is of the prediction itself, nothing is fitted: below zero it is worse than predicting no asymmetry.
    """
    theory, data = np.asarray(predicted), np.asarray(measured)
    return {
        "share": float(theory.sum() / data.sum()),
        "r_squared": float(1 - np.square(data - theory).sum() / np.square(data).sum()),
    }
