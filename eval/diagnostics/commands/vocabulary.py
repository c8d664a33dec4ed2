"""`vocabulary MODEL --images DIR | --data ROOT`: visual vocabularies such as Ovis's (Table 3), rows and real tokens.

What the decoder sees is a mixture of rows with probabilities p, of norm about |row| / sqrt(N_eff), where N_eff is
1 / sum p^2: the norm of the rows alone, which the paper reports, says little.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.progress import track

from eval.diagnostics.command_line import add_model, add_pictures, readable_pictures
from eval.diagnostics.hooks.loading import inputs_of, load, special_ids
from eval.diagnostics.measure.vocabulary import check_vocabulary, vocabulary
from eval.diagnostics.output.tables import number, paper_row, show, spread
from eval.run.files import write_json
from modeling_aligned_llava.inspection.model_parts import model_parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--out", type=Path, help="folder for vocabulary.json and the table")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    parts = model_parts(model, arguments.connector)
    check_vocabulary(parts, arguments.model)
    special = special_ids(processor)
    with readable_pictures(arguments) as sample:
        inputs = (inputs_of(processor, picture, model.device) for picture in track(sample))
        found = vocabulary(model, parts, inputs, special)
        show_vocabulary(arguments.model, found, arguments.out and arguments.out / "vocabulary.md")
        if arguments.out is not None:
            write_json(arguments.out / "vocabulary.json", found)


def show_vocabulary(model: str, found: dict[str, Any], out: Path | None = None) -> None:
    paper = paper_row("vocabulary", model)
    beside = {"rows": paper.get("visual"), "text rows": paper.get("text")}
    rows = []
    for name in ("rows", "tokens at layer 0", "N_eff", "text rows"):
        norms, theirs = found[name], beside.get(name)
        cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
        rows.append([name, *cells, spread(theirs["mean"], theirs["std"], 2) if theirs else "-"])
    show(f"{model}: visual vocabulary (Table 3)", ["", "mean ± std", "median", "count", "paper"], rows, out)
    if found["looks_untrained"]:
        print("warning: the table looks untrained: its rows have the norms of a random start")  # noqa: T201
