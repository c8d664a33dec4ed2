"""A finished run whose folder, models, answers and reasons hold tags."""

import json
from pathlib import Path

from tests.eval.report.stand_in import write_run


NAME = '"><img src=x onerror=document.title=1337>'
ANSWER = f"<script>document.title=1337</script>{NAME}"


def hostile_run(folder: Path, checkpoint: Path | None) -> Path:
    run = write_run(folder / NAME, checkpoint, names=("baseline", "norm"), norm=f"ValueError: {ANSWER}")
    for name in ("scores.json", "run.json"):
        text = (run / name).read_text().replace('"norm"', json.dumps(NAME))
        (run / name).write_text(text.replace('"toy"', json.dumps(f"toy {NAME}")))
    for sort in ("harness", "checkpoints"):
        (run / sort / "norm").rename(run / sort / NAME)
    for log in run.rglob("*samples*.jsonl"):
        log.write_text(log.read_text().replace("Question 0?", json.dumps(ANSWER)[1:-1]))
    return run
