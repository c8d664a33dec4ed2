"""Two runs at the same moment: in one folder the second waits or is refused; in two folders they share caches."""

import shutil

import pytest
from safetensors.torch import load_file

from tests.faults.small_run import PHASES, RUN, Phase, SmallRun


ROUNDS = 20
REFUSED = "another evaluation is running"

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture
def run(tmp_path) -> SmallRun:
    return SmallRun(tmp_path)


@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_in_one_folder_the_results_are_those_of_one_run(phase, straight_run, run):
    run.start_from(straight_run.run, phase)
    codes = [process.wait() for process in [run.start(phase) for _ in range(2)]]
    assert sorted(codes) in ([0, 0], [0, 1]) and (1 in codes) == (REFUSED in run.said()), run.said()[-1000:]
    assert not run.differences(phase, straight_run.run)
    run.finish(phase)


def test_two_methods_that_share_a_bare_home_both_train(straight_run, run):
    methods = [first_steps(method) for method in ("baseline", "norm")]
    run.start_from(straight_run.run, PHASES[1])
    for _ in range(ROUNDS):
        codes = [process.wait() for process in [run.start(method) for method in methods]]
        assert codes == [0, 0], run.said()[-1000:]
        baseline, norm = (load_file(run.clone / RUN / method.made[0] / "model.safetensors") for method in methods)
        assert baseline.keys() < norm.keys(), "the norm is missing"
        for folder in (run.home, *(run.clone / RUN / method.name for method in methods)):
            shutil.rmtree(folder)


def first_steps(method: str) -> Phase:
    """Two steps of stage 1, in a folder of their own."""
    command = f"bash train/run.sh --backbone tinyworld --method {method} --stage stage1 --output-root {RUN}/{method}"
    command += f" --data {RUN}/data -- --max_steps 2 --save_steps 2"
    return Phase(method, command, (f"{method}/checkpoints/{method}/stage1",))
