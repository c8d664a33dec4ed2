"""Mutated recipes: each is refused in one line, or read; no other error, and no end of the program."""

import os
import re
from unittest import mock

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY
from tests.faults.memory import bounded_memory
from tests.faults.mutations import mutated_text, mutated_values
from tests.faults.tiers import in_campaign
from train.arguments.parse import parse_arguments
from train.optimization.parameter_groups import group_parameters


PEAK_MIB = 4000
SETTINGS = settings(database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
RECIPE = (REPOSITORY / "configuration" / "train" / "tinyworld" / "stage2.yaml").read_bytes()
VALUES = mutated_values(RECIPE, yaml.safe_load).map(lambda values: yaml.safe_dump(values).encode())


@pytest.mark.parametrize(("number", "count"), [(0, 4), *in_campaign([(1, 150)])])
def test_a_mutated_recipe_is_read_or_refused(number, count, checkpoint, tmp_path):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(checkpoint)
    recipe = tmp_path / "recipe.yaml"

    @seed(number)
    @settings(SETTINGS, max_examples=count)
    @given(VALUES | VALUES | mutated_text(RECIPE))
    def check(mutated: bytes) -> None:
        recipe.write_bytes(mutated)
        with mock.patch.dict(os.environ):  # TRL takes variables from a recipe
            try:
                command = ["--config", str(recipe), "--method", "norm", "--output_dir", str(tmp_path)]
                run, _ = parse_arguments(command)
                group_parameters(model, run.optimization.rates, run.optimization.frozen)
            except UserError as error:
                assert re.fullmatch(r".+", str(error)), error
            except SystemExit as error:
                assert error.code == 2  # argparse, which names the option

    with bounded_memory(PEAK_MIB):
        check()
