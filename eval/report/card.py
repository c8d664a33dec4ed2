"""The model card of a checkpoint, from the run that evaluated it: metadata for the Hub, tables, recipe, limits.

A pure function of files: `results/RUN/{run,scores}.json`, those of the checkpoint, and `model_cards/`. The card states
what is not recorded. A score belongs to the checkpoint only if the run evaluated exactly these weights.
"""

from inspect import get_annotations
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCard
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eval.data.benchmarks import BY_KEY
from eval.report.finished_run import is_official, read_scores
from eval.tables.table4 import Table4, markdown, plain
from modeling_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.hub_folder import LOADING, card_data, is_hub_id
from modeling_aligned_llava.loading.files import read_json
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint
from modeling_aligned_llava.modeling_aligned_llava import NORM


TEMPLATES = Path(__file__).resolve().parents[2] / "model_cards"
HARNESS_PAGES = {
    "lmms-eval": "https://github.com/EvolvingLMMs-Lab/lmms-eval",
    "lm-eval": "https://github.com/EleutherAI/lm-evaluation-harness",
}
OURS = AlignedLlavaConfig.model_type
_OTHER_FIELDS = ("vision_config", "text_config", "method")
FIELDS = [name for name in get_annotations(AlignedLlavaConfig) if name not in _OTHER_FIELDS]
SETTINGS = (
    "dataset",
    "prompt_format",
    "num_train_epochs",
    "max_steps",
    "global_batch_size",
    "learning_rates",
    "frozen",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "max_length",
    "bf16",
    "seed",
)
UNKNOWN = "not known here"


class _Markdown(str):
    """Markdown that is put into the card as it is."""


class MeasuredScores(NamedTuple):
    """What the run `name` has of a checkpoint's weights: run.json, its entry of them, all rows of the scores, those of
    the weights, and whether the data can be the official ones."""

    name: str
    record: dict[str, Any]
    model: dict[str, Any]
    rows: list[Any]
    cells: list[Any]
    official: bool


def model_card(checkpoint: Path, scores: MeasuredScores, repository: str) -> ModelCard:
    """The card of `checkpoint`, to be published as `repository`, with its scores."""
    config = read_json(checkpoint / "config.json")
    kind, fields = config["model_type"], _norm_fields(config)
    run, record, model, rows, cells, official = scores
    combined = any(row.get("seeds") and row["method"] == model["method"] for row in rows)
    stages = stage_settings(checkpoint)
    parts = _parts(config, stages)
    models = [part["name"] for part in parts if part["role"] != "data" and is_hub_id(part["name"])]
    datasets = list(dict.fromkeys(part["name"] for part in parts if part["role"] == "data" and "/" in part["name"]))
    norm = read_json(checkpoint / "norm_parameters.json") or {"gain": None}
    metadata = card_data(
        base_model=models or None,
        datasets=datasets or None,
        model_name=repository.rpartition("/")[2],
        eval_results=_eval_results(cells, official, run, record["versions"]) or None,
        **_licence([part["licence"] for part in parts if part["role"] != "data"], repository),
    )
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,  # it is Markdown, and `finalize` escapes  # noqa: S701  # nosec B701
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    text = environment.get_template("model_card.md.jinja").render(
        metadata=_Markdown(metadata),
        title=f"{model['backbone']} {model['method']}",
        official=official,
        method=model["method"],
        seed=model["seed"],
        kind="LLaVA" if kind == OURS else kind,
        norm=fields,
        fields={name: _shown(fields.get(name)) for name in FIELDS},
        loading=_Markdown(LOADING.format(name=repository)),
        scored=any(cell["status"] == "ok" for cell in cells),
        table=_Markdown(markdown(Table4.of(rows))),
        own_table=_Markdown(markdown(Table4.of(cells)) if combined else ""),
        parts=parts,
        recipe=list(stages),
        settings={name: list(map(_shown, values)) for name, values in setting_rows(stages).items()},
        gain=norm["gain"],
        gain_collapsed=norm.get("gain_collapsed", False),
        profile=read_json(checkpoint / "norm_profile.json"),
        limits=_limits(cells, combined, kind),
        versions=", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        hardware=", ".join(record["hardware"]["gpus"]) or record["hardware"]["cpu"] or "Hardware not recorded",
    )
    return ModelCard(text)


def measured_scores(checkpoint: Path, run: Path) -> MeasuredScores:
    """The scores of a checkpoint in a run.

    Raises:
        UserError: a file is missing, the model has no method, or the run did not evaluate these weights.
    """
    config = _required(checkpoint / "config.json", "no checkpoint there")
    if _norm_fields(config) is None:
        kind = config.get("model_type")
        raise UserError(f"{checkpoint} is a {kind} model saved without {NORM}: there is no method to describe")
    record = _required(run / "run.json", "evaluate the run first (python -m eval.suite)")
    rows: list[Any] = read_scores(run)
    model = _evaluated(checkpoint, record, run)
    # An error message may contain paths of the machine; its class is enough here.
    rows = [row | {"reason": row["reason"].partition(":")[0]} if row["reason"] else row for row in rows]
    key = {"source": "measured", **{name: model[name] for name in ("backbone", "method", "seed")}}
    cells = [row for row in rows if key.items() <= row.items() and not row.get("seeds")]
    return MeasuredScores(run.name, record, model, rows, cells, is_official(cells, Path(record["data"]["root"])))


def _norm_fields(config: dict[str, Any]) -> Any:
    """The fields of the norm in a configuration; None if it has none."""
    return config if config.get("model_type") == OURS else config.get(NORM)


def _required(path: Path, hint: str) -> Any:
    content = read_json(path)
    if content is None:
        raise UserError(f"there is no {path}: {hint}")
    return content


def _evaluated(checkpoint: Path, record: dict[str, Any], run: Path) -> dict[str, Any]:
    """The entry of run.json for exactly these weights; a name or a path may refer to others by now."""
    weights = hash_checkpoint(checkpoint)
    for model in record["models"].values():
        if model["sha256"] == weights:
            return model
    evaluated = ", ".join(record["models"])
    raise UserError(f"{checkpoint}: its weights are not among those that {run} evaluated ({evaluated})")


def stage_folders(checkpoint: Path) -> list[Path]:
    """Folders of the training stages that led to a checkpoint, in their order, with settings and logs."""
    return [checkpoint.resolve().parent / "stage1", checkpoint.resolve()]


def stage_settings(checkpoint: Path) -> dict[str, dict[str, Any]]:
    """Folder name -> settings of the training stages that led here; empty for checkpoints trained elsewhere."""
    return {
        folder.name: settings | (read_json(folder / "training_complete.json") or {})
        for folder in stage_folders(checkpoint)
        if (settings := read_json(folder / "settings.json")) is not None
    }


def setting_rows(stages: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """Setting -> its value in each stage; without settings that none of them has."""
    return {
        name: [stage.get(name) for stage in stages.values()]
        for name in SETTINGS
        if any(name in stage for stage in stages.values())
    }


def _parts(config: dict[str, Any], stages: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Backbones and data with their licences. A path on a machine is not a name; its `source.json` may tell one."""
    licences = yaml.safe_load((TEMPLATES / "licences.yaml").read_text(encoding="utf-8"))
    parts = []
    roles = {"vision tower": ("vision_tower", "vision_config"), "language model": ("language_model", "text_config")}
    if config.get("model_type") != OURS:
        roles = {"model": ("model_name_or_path", "")}
    for role, (setting, part) in roles.items():
        recorded = [(config.get(part) or {}).get("_name_or_path", "")]
        recorded += [stage.get(setting, "") for stage in stages.values()]
        name = next((name for name in recorded if name in licences["models"] or is_hub_id(name)), "not recorded")
        key = f"{setting}_source"
        source = {"name": name, "license": licences["models"].get(name, UNKNOWN), "precision": ""}
        source = next((stage[key] for stage in stages.values() if stage.get(key)), source)
        parts.append({"role": role, "name": source["name"], "licence": source["license"], "note": source["precision"]})
    data = dict.fromkeys(stage["dataset"] for stage in stages.values() if "dataset" in stage)
    for name in data or ("not recorded",):
        parts.append({"role": "data", "name": name, "licence": licences["datasets"].get(name, UNKNOWN), "note": ""})
    return parts


def _licence(of_models: list[str], repository: str) -> dict[str, str]:
    """The strictest of the backbones' licences for the Hub's `license`, or `other` if that is not known."""
    strict = {licence for licence in of_models if licence != "apache-2.0"}
    if UNKNOWN in strict or len(strict) > 1:
        link = f"https://huggingface.co/{repository}#parts-data-and-licences"
        return {"license": "other", "license_name": "inherited", "license_link": link}
    return {"license": strict.pop() if strict else "apache-2.0"}


def _eval_results(cells: list[dict[str, Any]], official: bool, run: str, versions: dict[str, str]) -> list[EvalResult]:
    """The entries of the model-index. Data other than the official set never carries its id."""
    results = []
    for cell in cells:
        if cell["status"] != "ok" or cell["benchmark"] not in BY_KEY:
            continue
        b = BY_KEY[cell["benchmark"]]
        results.append(
            EvalResult(
                task_type="image-text-to-text" if b.harness == "lmms-eval" else "text-generation",
                dataset_type=b.folder if official else f"{run}-{b.key}",
                dataset_name=b.title if official else f"{b.title} as in {run}, not the official data",
                dataset_config=b.config if b.config != "*" else None,
                dataset_split=b.split,
                metric_type="accuracy",
                metric_name=f"{b.task} {b.metric}, percent",
                metric_value=round(cell["score"], 2),
                source_name=f"{b.harness} {versions.get(b.harness, '')}".strip(),
                source_url=HARNESS_PAGES[b.harness],
            )
        )
    return results


def _limits(cells: list[dict[str, Any]], combined: bool, kind: str) -> list[str]:
    """What the scores of a model type leave out; `combined`: the table has the mean over seeds of this method."""
    limits = [f"{cell['benchmark']}: {cell['status']} ({cell['reason']})" for cell in cells if cell["status"] != "ok"]
    for cell in cells:
        if cell["unparseable"]:
            limits.append(f"{cell['benchmark']}: {cell['unparseable']:.1%} of the answers could not be read")
    if not combined:
        limits.append("One training seed: the intervals cover the questions, not another training.")
    if kind == OURS:
        limits.append("Images are resized to a square, so small print and extreme aspect ratios suffer.")
    limits.append("A research checkpoint: not tuned for safety, and it can describe images wrongly.")
    return limits


def _shown(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
