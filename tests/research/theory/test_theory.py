"""Eq. 8-21: closed form against simulation, and the cases where the paper's statement fails."""

import numpy as np
import pytest

from research.theory import closed_form as theory
from research.theory.simulation import GROUPS, LAYERS, TEXT, UPDATE, VISUAL


CHECKS = {f"{group}: {check.equation} {check.statement}": check for group in GROUPS for check in GROUPS[group]()}


@pytest.mark.parametrize("name", CHECKS)
def test_simulation_agrees_with_the_closed_form_or_refutes_the_statement(name):
    check = CHECKS[name]
    assert check.as_expected, f"{check.estimate} ± {check.error}, closed form {check.predicted}"


def test_the_intervention_makes_retention_five_times_worse_under_eq_15_and_16():
    baseline = theory.retention_over_layers(VISUAL, TEXT, UPDATE, LAYERS)
    aligned = theory.retention_over_layers(TEXT, TEXT, UPDATE, LAYERS)
    assert baseline == pytest.approx(0.198, abs=5e-4)
    assert aligned == pytest.approx(0.040, abs=5e-4)


def test_largest_score_is_reached_and_not_passed():
    random = np.random.default_rng(0)
    covariance = random.standard_normal((6, 6))
    best = theory.best_projection(covariance)
    assert np.trace(best.T @ covariance) == pytest.approx(theory.largest_score(covariance))
    for _ in range(20):
        other = random.standard_normal((6, 6))
        other /= np.linalg.norm(other, 2)
        assert np.trace(other.T @ covariance) <= theory.largest_score(covariance)
