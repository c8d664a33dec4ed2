"""Runs the cells of a study, each as one step; what cells share is made once.

A cell is trained, evaluated if it should be, recorded, and its checkpoints are removed. Started again, finished cells
are left alone and an interrupted one resumes where its training stopped. Shared, in the work folder: the data of a
world, prepared rows, and the harnesses' datasets.
"""

import shlex
import shutil
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from eval.options import Options, read_recipe
from eval.plan.evaluations import plan_evaluations
from eval.plan.job import Job
from eval.plan.models import Model, Models, Training, checkpoint_name
from eval.run.evaluation import evaluate
from eval.run.processes import run_logged
from eval.run.schedule import Devices, Step, only_writer, run_steps
from eval.run.status import Status
from eval.run.training import ANSWER_TOKENS, make_world, train
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json
from research.information import measured
from research.study.cell_table import CellTable
from research.study.experiment import SETTINGS
from research.study.grid import INFORMATION, RATE, Cell, Study, stage_settings, words
from research.study.records import Records, final_loss, record_cell


ATTENTION_IMAGES = 48
DECODER = "language-model"  # the decoder before training; only the text benchmarks are for it
EVALUATION_STEPS = 500  # an evaluation takes as long as this many steps of stage 1 (tinyworld on a CPU)


class StudyRun:
    """The unfinished cells of a study, and how each is run.

    Args:
        folder: where the records of all studies are.
        work: where cells are trained; what all studies share is made here.
    """

    def __init__(self, study: Study, folder: Path, work: Path, device: str):
        self.study, self.records = with_chosen_rates(study, folder), Records(folder, study.name)
        self.work, self.shared, self.device = work.resolve() / study.name, work.resolve(), device
        self.data = self.shared / "data" / study.backbone
        self.decoder = Path(read_recipe(study.backbone, "stage1")["language_model"])
        self.settings = {
            cell.name: {stage: stage_settings(study.backbone, stage, cell.arm.settings) for stage in cell.arm.stages}
            for cell in self.study.cells
        }
        self.left = self.records.unfinished(self.study.cells, self.settings)
        self.jobs: dict[str, list[Job]] = {}

    def run(self, devices: Devices, console: Console) -> None:
        """Run the unfinished cells.

        Raises:
            UserError: a cell failed; the same command continues.
        """
        (self.work / "logs").mkdir(parents=True, exist_ok=True)
        with only_writer(self.work):
            for cell in self.study.cells:
                if cell not in self.left:
                    self.clean(cell)  # what a run leaves that ends between recording a cell and cleaning up
            self.data.parent.mkdir(parents=True, exist_ok=True)
            make_world(self.study.backbone, self.data, self.work / "logs")
            self.jobs = self.plan_jobs()
            costs = {cell.name: self.cost(cell) for cell in self.left}
            with CellTable(self.study, self.left, costs, self.jobs, console) as table:
                steps = [Step(cell.name, partial(self.run_cell, cell, table), costs[cell.name]) for cell in self.left]
                if DECODER in self.jobs:
                    steps.append(Step(DECODER, self.run_decoder, EVALUATION_STEPS / 4))
                if not run_steps(steps, devices, table.fail):
                    raise UserError(f"{self.study.name}: not every cell succeeded; the same command continues")

    def plan_jobs(self) -> dict[str, list[Job]]:
        """Evaluated cell -> its jobs; those of the decoder before training, unless it has a record."""
        evaluated = [cell for cell in self.left if cell.arm.evaluated]
        models: Models = {
            cell.name: Model(
                cell.name, self.study.backbone, cell.arm.label, cell.seed, self.stage(cell, cell.arm.stages[-1])
            )
            for cell in evaluated
        }
        cells = list(models)
        if self.study.evaluated and not self.records.decoder.exists():
            models[DECODER] = Model(
                DECODER, self.study.backbone, DECODER, None, self.decoder.resolve(), multimodal=False
            )
        if not models:
            return {}
        options = Options(run=self.work, data=self.data / "mirrors", device=self.device, max_new_tokens=ANSWER_TOKENS)
        jobs = plan_evaluations(options, models, untrained=cells)
        shared = self.shared / "cache"  # the harnesses' datasets, in a folder named after their content
        jobs = [replace(job, cache=str(shared / Path(job.cache).name)) for job in jobs]
        return {name: [job for job in jobs if job.name == name] for name in models}

    def root(self, cell: Cell) -> Path:
        """The folder in which a cell is trained."""
        return self.work / "cells" / cell.name

    def stage(self, cell: Cell, stage: str) -> Path:
        return self.root(cell) / "checkpoints" / checkpoint_name(cell.arm.method, cell.seed) / stage

    def training(self, cell: Cell, stage: str) -> Training:
        settings = {**self.settings[cell.name][stage], "data_cache": self.shared / "prepared"}
        command = ["bash", "train/run.sh", "--backbone", self.study.backbone, "--method", cell.arm.method]
        command += ["--seed", str(cell.seed), "--output-root", str(self.root(cell)), "--data", str(self.data)]
        changed = {name: settings.pop(name) for name in SETTINGS if name in settings}
        command += ["--stage", stage, "--", *words(settings)]
        if changed:
            program = [sys.executable, "-m", "research.study.experiment", *words(changed)]
            command = ["env", f"LAUNCH={shlex.join(program)}", *command]
        return Training(cell.name, stage, tuple(command), self.work / "logs" / f"{cell.name}.log")

    def cost(self, cell: Cell) -> float:
        """Its duration, in steps of stage 1."""
        settings = self.settings[cell.name]
        weights = {"stage1": 1.0, "stage2": 3.0}
        steps = sum(weights[stage] * settings[stage]["max_steps"] for stage in cell.arm.stages)
        return steps + (EVALUATION_STEPS if cell.arm.evaluated else 0)

    def run_cell(self, cell: Cell, table: CellTable) -> None:
        """Train, evaluate and record a cell, and remove its checkpoints."""
        status, start = table.begin(cell.name), time.monotonic()
        for stage in cell.arm.stages:
            train(self.training(cell, stage), status)
        results = self.evaluate(cell.name, status)
        attention = self.attention(cell) if cell.arm.evaluated else None
        stages = {stage: self.stage(cell, stage) for stage in cell.arm.stages}
        wanted = stages if cell.arm.measure == INFORMATION else {}
        information = {stage: measured(folder) for stage, folder in wanted.items()}
        settings, seconds = self.settings[cell.name], time.monotonic() - start
        record = record_cell(self.study, cell, settings, stages, results, attention, seconds, information)
        self.records.add(record, results)
        self.clean(cell)
        table.end(cell.name, final_loss(record))

    def run_decoder(self) -> None:
        """Record what the decoder knew before training."""
        status = Status(self.jobs[DECODER], set(), Console(quiet=True))
        self.records.add_decoder(self.evaluate(DECODER, status))

    def evaluate(self, name: str, status: Status) -> dict[str, Any]:
        """Run the jobs of a cell: benchmark -> its result.json.

        Raises:
            UserError: a task failed.
        """
        jobs = self.jobs.get(name, [])
        for job in jobs:
            evaluate(job, self.work / "logs", status)
        results = {task.key: read_json(job.result(task.key)) for job in jobs for task in job.tasks}
        if failed := [key for key, result in results.items() if result["status"] != "ok"]:
            raise UserError(f"{', '.join(failed)} failed; see {self.work / 'logs'}")
        return results

    def attention(self, cell: Cell) -> dict[str, Any]:
        """Where text attends in the image.

        Raises:
            UserError: the measurement failed.
        """
        folder, log = self.root(cell) / "attention", self.work / "logs" / f"{cell.name}.log"
        command = [sys.executable, "-m", "eval.diagnostics", "attention", str(self.stage(cell, cell.arm.stages[-1]))]
        command += ["--data", str(self.data / "mirrors"), "--limit", str(ATTENTION_IMAGES), "--out", str(folder)]
        run_logged(command, log)
        return read_json(folder / "attention.json")

    def clean(self, cell: Cell) -> None:
        """Remove the checkpoints and answers of a recorded cell."""
        for folder in (self.root(cell), self.work / "harness" / cell.name):
            shutil.rmtree(folder, ignore_errors=True)
        for log in (self.work / "answers").glob(f"{cell.name}.*"):
            log.unlink()


def with_chosen_rates(study: Study, folder: Path) -> Study:
    """The study with each arm at the rate of the lowest held-out loss in the study `rates_from`.

    Of that study's arms those count that have its method and, apart from the rate, only levels of its own: of these,
    those with the most. Arms that set a rate keep it.

    Raises:
        UserError: that study has no result for a method.
    """
    if study.rates_from is None:
        return study
    rates = best_rates(Records(folder, study.rates_from).read())
    arms = []
    for arm in study.arms:
        known = [own for own in rates if own[0] == arm.method and own[1] <= arm.levels.items()]
        if RATE not in arm.settings and not known:
            raise UserError(
                f"{study.name}: the rate of {arm.method} comes from {study.rates_from}, which has no result of it in "
                f"{folder}: run that first"
            )
        chosen = rates[max(known, key=lambda own: len(own[1]))] if known else None
        arms.append(replace(arm, settings={RATE: chosen, **arm.settings}))
    return replace(study, arms=arms)


def best_rates(records: list[dict[str, Any]]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(Method, levels but the rate) -> the level of the axis `rate` with the lowest mean held-out loss over seeds."""
    losses: dict[tuple[str, frozenset[tuple[str, str]]], dict[float, list[float]]] = {}
    for record in records:
        if RATE in record["levels"]:
            own = record["method"], frozenset((axis, each) for axis, each in record["levels"].items() if axis != RATE)
            losses.setdefault(own, {}).setdefault(float(record["levels"][RATE]), []).append(final_loss(record))
    return {
        own: min(by_rate, key=lambda rate: sum(by_rate[rate]) / len(by_rate[rate])) for own, by_rate in losses.items()
    }
