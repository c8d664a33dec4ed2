"""docs/tour.ipynb runs from its first cell to its last, and shows what it says."""

import json
import os

import pytest

from tests import REPOSITORY


nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (extra `dev`)")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra `dev`)")

TOUR = REPOSITORY / "docs" / "tour.ipynb"
SHOWN = """json.dumps({
    "text": model.config.text_norm,
    "visual": {method: profile["norms"]["visual tokens at layer 0"]["mean"] for method, profile in profiles.items()},
    "decoder": real_decoder["layers"]["text"]["norm"]["mean"][:2],
    "losses": losses,
    "pope": {row["method"]: row["n"] for row in scores if row["source"] == "measured" and row["status"] == "ok"},
})"""


def test_no_output_and_no_path_of_a_machine_is_kept():
    notebook = nbformat.read(TOUR, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert "sys.path" not in cell.source and "/home" not in cell.source and "/tmp" not in cell.source  # noqa: S108


@pytest.mark.slow
def test_every_cell_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TOUR.parents[1]), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(TOUR, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(SHOWN))
    nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    (shown,) = cells[-1].outputs
    numbers = json.loads(shown.data["text/plain"].strip("'"))
    assert numbers["visual"]["norm"] == pytest.approx(numbers["text"], rel=0.01)
    assert numbers["visual"]["baseline"] > 5 * numbers["text"]
    before, after = numbers["decoder"]
    assert after > 5 * before  # the first layer of a real decoder lifts text
    for losses in numbers["losses"].values():
        assert len(losses) == 10 and sum(losses[-3:]) < sum(losses[1:4])  # the first step has the longest captions
    assert numbers["pope"] == {"baseline": 360, "norm": 360}
    nbformat.write(notebook, tmp_path / "executed.ipynb")
