"""Eq. 8-21: closed form against simulation, and the cases where the paper's statement fails."""

import math

import numpy as np
import pytest

from research.theory import closed_form as theory
from research.theory.simulation import GROUPS, LAYERS, TEXT, UPDATE, VISUAL


CHECKS = {f"{group}: {check.equation} {check.statement}": check for group in GROUPS for check in GROUPS[group]()}


@pytest.mark.parametrize("name", CHECKS)
def test_simulation_agrees_with_the_closed_form_or_refutes_the_statement(name):
    check = CHECKS[name]
    assert check.as_expected, f"{check.estimate} ± {check.error}, closed form {check.predicted}"


def test_every_equation_is_there():
    named = {part for check in CHECKS.values() for part in check.equation.split(", ")}
    assert named >= {str(number) for number in (8, 9, 10, *range(13, 22))}


def test_eq_8_is_off_for_text_where_it_is_used():
    phi = math.radians(60)
    text = theory.paper_tangent(TEXT, 0.7, phi) / theory.exact_tangent(TEXT, 0.7, phi)
    visual = theory.paper_tangent(VISUAL, 0.7, phi) / theory.exact_tangent(VISUAL, 0.7, phi)
    assert text > 1.3 and visual < 1.01


def test_the_intervention_makes_retention_five_times_worse_under_eq_15_and_16():
    baseline = theory.retention_over_layers(VISUAL, TEXT, UPDATE, LAYERS)
    aligned = theory.retention_over_layers(TEXT, TEXT, UPDATE, LAYERS)
    assert baseline == pytest.approx(0.198, abs=5e-4)
    assert aligned == pytest.approx(0.040, abs=5e-4)


def test_the_recursion_telescopes():
    straight = theory.cosine_over_layers(1.0, VISUAL, TEXT, UPDATE, LAYERS)
    assert straight == pytest.approx(theory.retention_over_layers(VISUAL, TEXT, UPDATE, LAYERS), rel=1e-12)


def test_given_their_product_equal_norms_keep_most():
    """Jensen: log(1 + a^2 exp(-2x)) is convex in x = log N."""
    middle = math.sqrt(VISUAL * TEXT)
    best = theory.retention_over_layers(middle, middle, UPDATE, LAYERS)
    for stretch in (1.1, 2.0, 10.0):
        assert theory.retention_over_layers(middle * stretch, middle / stretch, UPDATE, LAYERS) < best


def test_alignment_helps_once_updates_are_correlated():
    for c, better in ((0.17, False), (0.19, True)):
        aligned = theory.cosine_over_layers(math.cos(0.3), TEXT, TEXT, UPDATE, LAYERS, c)
        baseline = theory.cosine_over_layers(math.cos(0.3), VISUAL, TEXT, UPDATE, LAYERS, c)
        assert (aligned > baseline) == better


def test_the_lag_is_negative_against_the_intervention_that_is_made():
    middle = math.sqrt(VISUAL * TEXT)
    assert theory.lag_angle(0.95, (VISUAL, TEXT), (middle, middle), UPDATE, LAYERS) > 0.4
    assert theory.lag_angle(0.95, (VISUAL, TEXT), (TEXT, TEXT), UPDATE, LAYERS) < -0.1


def test_largest_score_is_reached_and_not_passed():
    random = np.random.default_rng(0)
    covariance = random.standard_normal((6, 6))
    best = theory.best_projection(covariance)
    assert np.trace(best.T @ covariance) == pytest.approx(theory.largest_score(covariance))
    for _ in range(20):
        other = random.standard_normal((6, 6))
        other /= np.linalg.norm(other, 2)
        assert np.trace(other.T @ covariance) <= theory.largest_score(covariance)
