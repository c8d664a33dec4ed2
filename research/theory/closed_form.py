"""The paper's theory, Eq. 8-21 (section 3 and Appendix B): each statement in closed form, with its assumptions.

The theory in four steps, in the order of the file: a layer rotates a long state less (Eq. 8-9); rotations in random
directions shrink the expected cosine between visual and text states (Eq. 15-16, Lemma 1); with unequal norms it
shrinks more, which is the lag (Eq. 17); attention then scores visual tokens lower (Eq. 18-21). `simulation.py` checks
every step.

The equations are reconstructed, because our text of the paper has lost its symbols. A public note on a later version
prints Eq. 8 with the parallel term of `exact_tangent`.

Notation:
    h, N, u     hidden state, its norm |h| and its direction
    D, a, phi   update that a layer adds to h, its size |D| and its angle to h
    r           direction of the part of D across h, random
    omega       angle by which a layer rotates a state: tan(omega) is the `tangent` below
    Theta       angle between a visual and a text state
    gamma       retention: the factor by which a layer reduces the expected cos Theta
    c           coherence: mean cosine between the rotations r of visual and text states
"""

import math

import numpy as np


Array = np.ndarray


def paper_tangent(norm: float, update: float, phi: float) -> float:
    """Eq. 8 = 13 as reconstructed here: tan(omega) = a sin(phi) / N.

    Assumes uniform update size and angle. Only at phi = 90 degrees is it the tangent of the rotation.
    """
    return update * math.sin(phi) / norm


def exact_tangent(norm: float, update: float, phi: float) -> float:
    """The tangent of the angle between h and h + D: a sin(phi) / (N + a cos(phi)); no assumption."""
    return update * math.sin(phi) / (norm + update * math.cos(phi))


def tangent_ratio(visual_norm: float, text_norm: float) -> float:
    """Eq. 9 = 14: tan(omega_v) / tan(omega_t) = N_t / N_v, below 1 if visual tokens are longer.

    Assumes the same update size and angle in both modalities.
    """
    return text_norm / visual_norm


def retention(tangent_v: float, tangent_t: float) -> float:
    """Eq. 16: gamma = cos(omega_v) cos(omega_t), from the two tangents."""
    return 1 / math.sqrt((1 + tangent_v**2) * (1 + tangent_t**2))


def expected_cosine(cosine: float, tangent_v: float, tangent_t: float, coherence: float = 0.0) -> float:
    """Eq. 15 and the term that it omits: E[cos Theta'] = gamma (cos Theta + tan(omega_v) tan(omega_t) c).

    Eq. 15 is the case c = 0. Assumes E[r | u_v, u_t] = 0 for both (the paper's symmetric distribution) and that
    c = E[r_v . r_t] is known; the paper tacitly needs c = 0. In a transformer attention creates c.
    """
    return retention(tangent_v, tangent_t) * (cosine + tangent_v * tangent_t * coherence)


def grown_norm(norm: float, update: float, layers: int) -> float:
    """Norm after `layers` updates across the state: N_L^2 = N_0^2 + L a^2."""
    return math.sqrt(norm**2 + layers * update**2)


def retention_over_layers(visual_norm: float, text_norm: float, update: float, layers: int) -> float:
    """Eq. 15-16 over all layers, in closed form: prod gamma = (N_v / N_v,L) (N_t / N_t,L).

    Assumes phi = 90 degrees, uniform update size and c = 0: cos(omega) = N_l / N_(l+1), so the product telescopes.
    """
    return math.prod(norm / grown_norm(norm, update, layers) for norm in (visual_norm, text_norm))


def cosine_over_layers(
    cosine: float, visual_norm: float, text_norm: float, update: float, layers: int, coherence: float = 0.0
) -> float:
    """E[cos Theta] after all layers: the recursion of `expected_cosine` at phi = 90 degrees, with growing norms."""
    for layer in range(layers):
        visual, text = (update / grown_norm(norm, update, layer) for norm in (visual_norm, text_norm))
        cosine = expected_cosine(cosine, visual, text, coherence)
    return cosine


def best_split(constraint: str, total: float, points: int = 9999) -> float:
    """Lemma 1: the share of the visual tangent (of its logarithm for "product") at which gamma is largest.

    The lemma states one half. This holds for a fixed product of the tangents, and for a fixed sum only up to 2. The
    paper's intervention fixes neither: it lowers N_v and leaves N_t.

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

    Positive if the balanced case has both norms at their geometric mean; negative if it is the paper's intervention,
    which lowers the visual norm to that of text.
    """
    kept = [retention_over_layers(visual, text, update, layers) for visual, text in (imbalanced, balanced)]
    return math.acos(cosine * kept[0]) - math.acos(cosine * kept[1])


def lagged_covariance(covariance: Array, delta: float) -> Array:
    """Eq. 18-19: C_imb = cos(delta) C_bal, so sigma_i(C_imb) = cos(delta) sigma_i(C_bal).

    Assumes that what replaces the lost part of the visual state is uncorrelated with text: E[h_t h_perp'] = 0.
    """
    return math.cos(delta) * covariance


def largest_score(covariance: Array, radius: float = 1.0) -> float:
    """Eq. 20: max over |M|_2 <= R of Tr(M' C) = R sum_i sigma_i(C) (von Neumann), reached at M = R U V'.

    The text does not show which norm of M is meant; here it is the spectral norm. Rotating all visual states alike
    leaves the score unchanged, and a radius larger by 1 / cos(delta) restores it.
    """
    return radius * float(np.linalg.svd(covariance, compute_uv=False).sum())


def best_projection(covariance: Array) -> Array:
    """The M of spectral norm 1 that reaches `largest_score`."""
    left, _, right = np.linalg.svd(covariance)
    return left @ right


def signal_to_noise(signal: float, noise_mean: float, noise_std: float) -> float:
    """Eq. 21, read as (E[S_sig] - E[S_noise]) / std(S_noise); Eq. 10 is its first term.

    Assumes noise of mean zero that the lag does not change: for unit vectors its deviation is 1 / sqrt(d).
    """
    return (signal - noise_mean) / noise_std
