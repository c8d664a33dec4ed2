"""Does the model use vision? Repeats the multimodal benchmarks with a grey image of the same size for every image.

`python -m research.vision_check --run results/tinyworld --method baseline` prints both scores of each task and the
mean difference, and exits with status 1 if that is below `--minimum` points. Results that are missing or outdated are
made first, with true images too.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BENCHMARKS
from eval.options import Options
from eval.plan.evaluations import plan_evaluations
from eval.plan.models import Models, read_models
from eval.run.schedule import find_devices, only_writer, train_and_evaluate
from eval.score.results import collect
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.files import read_json, write_json


def recorded_run(run: Path, name: str) -> tuple[Options, Models]:
    """How model `name` of the run was evaluated, with the multimodal tasks, and the model.

    Raises:
        UserError: the run was not evaluated, or has no such model.
    """
    record = read_json(run / "run.json")
    if record is None:
        raise UserError(f"no {run / 'run.json'}; evaluate the run first (python -m eval.suite)")
    if name not in record["models"]:
        raise UserError(f"--method {name}: not in {run / 'run.json'} ({', '.join(record['models'])})")
    model, settings = record["models"][name], record["settings"]
    tasks = [benchmark.key for benchmark in BENCHMARKS if benchmark.harness == "lmms-eval"]
    own = argparse.Namespace(**settings)
    options = Options.of(own, run=run, data=Path(record["data"]["root"]), tasks=tasks)
    return options, read_models([f"{name}={model['path']}"], model["backbone"], model["seed"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.vision_check", description=__doc__.split("\n\n")[0])
    parser.add_argument("--run", required=True, type=Path, help="folder of an evaluated run, e.g. results/tinyworld")
    parser.add_argument("--method", default="baseline", help="model of the run to check (default: baseline)")
    parser.add_argument("--minimum", type=float, default=20, help="required fall of the mean, in points (default 20)")
    own = parser.parse_args()
    options, models = recorded_run(own.run, own.method)
    blank = own.run / "blank"

    true_jobs = plan_evaluations(options, models, output=own.run)
    blank_jobs = plan_evaluations(options, models, blank_images=True, output=blank)
    console = Console()
    for folder, jobs in ((own.run, true_jobs), (blank, blank_jobs)):
        with only_writer(folder):
            train_and_evaluate(jobs, [], folder / "logs", find_devices(1, options.device), console)
    true, without = collect(models, true_jobs)[own.method], collect(models, blank_jobs)[own.method]

    table = Table(title=f"{own.method}: true images against blank images")
    for column in ("benchmark", "true", "blank", "difference"):
        table.add_column(column, justify="left" if column == "benchmark" else "right")
    differences = {}
    for benchmark in BENCHMARKS:
        if benchmark.key not in options.tasks:
            continue
        for kind, result in (("true", true[benchmark.key]), ("blank", without[benchmark.key])):
            if result["status"] != "ok":
                raise UserError(f"{benchmark.key} with {kind} images: {result['status']} ({result['reason']})")
        seen, unseen = true[benchmark.key]["score"], without[benchmark.key]["score"]
        differences[benchmark.key] = seen - unseen
        table.add_row(benchmark.title, f"{seen:.1f}", f"{unseen:.1f}", f"{seen - unseen:+.1f}")
    mean = sum(differences.values()) / len(differences)
    table.add_row("mean", "", "", f"{mean:+.1f}")
    write_json(blank / "vision_check.json", {"method": own.method, "differences": differences, "mean": mean})
    console.print(table)
    console.print(f"mean difference {mean:.1f} points, at least {own.minimum:g} required")
    sys.exit(0 if mean >= own.minimum else 1)


if __name__ == "__main__":
    run_main(main)
