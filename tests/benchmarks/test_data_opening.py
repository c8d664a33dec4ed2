"""The benchmark of opening data: it counts rows, and memory stays flat."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import data_opening
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer


def test_all_rows_are_opened_and_bad_ones_counted(tmp_path, capsys):
    data_opening.make_data(tmp_path, 2500)
    for _ in ("first", "cached"):
        data_opening.open_once(tmp_path, Path("tinyworld/backbones/language"))
    first, cached = map(json.loads, capsys.readouterr().out.split("\n")[-3:-1])
    assert (first["rows"], first["bad_rows"], cached["bad_rows"]) == (2500, 2, 2)
    assert cached["seconds"] < first["seconds"] and first["mean_length"] > 729
    assert first["rows_per_second"] == pytest.approx(2500 / first["seconds"])


def test_rows_have_the_text_tokens_asked_for(tmp_path, capsys):
    tokenizer = Path("tinyworld/backbones/language")
    data_opening.make_data(tmp_path, 2000, data_opening.words_for(100, SavedTokenizer.from_pretrained(tokenizer)))
    data_opening.open_once(tmp_path, tokenizer)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mean_text_tokens"] == pytest.approx(100, rel=0.1)


def test_the_cpu_time_of_workers_counts():
    before, own = data_opening.cpu_seconds(), time.process_time()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert data_opening.cpu_seconds() - before >= 0.45 > time.process_time() - own


@pytest.mark.slow
@pytest.mark.campaign
def test_a_hundred_thousand_rows_need_less_than_500_mb(tmp_path, call):
    call(data_opening.main, "--rows", "100000", "--out", tmp_path / "out.json")
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["first"]["rows"] == 100_000 and result["first"]["bad_rows"] == 50
    assert all(result[name]["memory_growth_mb"] < 500 for name in ("first", "cached"))
