"""A worker's job: some tasks of one harness with one checkpoint. Sent as JSON."""

import json
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eval.data.benchmarks import BY_KEY
from eval.options import TRANSFORMERS
from modeling_aligned_llava.loading.files import read_json
from modeling_aligned_llava.loading.fingerprint import hash_code


# What is right, which items and groups are formed: a change scores finished answers again, without asking for them.
SCORING = ("eval.data.mirror", "eval.data.sample_lines", "eval.score.items", "eval.run.harnesses")
DIGESTS = ("weights", "data", "code", "scoring code")  # of a task's inputs; their digits say nothing to a reader


@dataclass(frozen=True)
class Task:
    """One benchmark of a job: its key, the number of scored rows, and the digest of its data."""

    key: str
    rows: int
    data: str

    @property
    def stock(self) -> str:
        """The harness's task. Benchmarks with the same task share an answer log."""
        return BY_KEY[self.key].task


@dataclass(frozen=True)
class Job:
    """Paths are absolute because a worker runs in its own folder. `weights` is the digest of the checkpoint, "" before
    it is trained; `producer` is what `modeling_aligned_llava.harness.provenance.producer` says of this machine;
    `engine` as in `Options`, an absolute path."""

    name: str
    checkpoint: str
    weights: str
    harness: str
    tasks: list[Task]
    root: str
    output: str
    answers: str
    cache: str
    batch_size: int
    max_new_tokens: int | None
    dtype: str
    device: str
    blank_images: bool
    trust_remote_code: bool
    shared_prefix: bool = True
    engine: str = TRANSFORMERS
    limit: int | None = None
    producer: dict[str, str] = field(default_factory=dict)

    def folder(self, key: str) -> Path:
        """Folder of the harness's files and the result of one task."""
        return Path(self.output) / self.name / key

    def answer_log(self, task: str) -> str:
        """Log of the answers to one stock task. It has a single writer, however tasks are spread over processes."""
        return str(Path(self.answers) / f"{self.name}.{task}.jsonl")

    def result(self, key: str) -> Path:
        return self.folder(key) / "result.json"

    def inputs(self, task: Task) -> dict[str, Any]:
        """Everything that a result depends on. A finished task is skipped while this stays the same."""
        program, *options = shlex.split(self.engine)
        settings = ("weights", "batch_size", "max_new_tokens", "dtype", "blank_images", "shared_prefix", "producer")
        return {
            "data": task.data,
            "rows": task.rows,
            "scoring code": hash_code(*SCORING),
            "engine": shlex.join([Path(program).name, *options]),
        } | {name: getattr(self, name) for name in settings}

    def changes(self, task: Task, earlier: dict[str, Any]) -> list[str]:
        """How the inputs of an earlier result differ from today's, in words."""
        before, now = (inputs | inputs.get("producer", {}) for inputs in (earlier, self.inputs(task)))
        return [
            f"other {name}" if name in DIGESTS else f"{name} {before.get(name)} -> {now.get(name)}"
            for name in sorted(before.keys() | now.keys())
            if name != "producer" and before.get(name) != now.get(name)
        ]

    def is_finished(self, task: Task) -> bool:
        result = read_json(self.result(task.key))
        return result is not None and result["status"] == "ok" and result["inputs"] == self.inputs(task)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        content = json.loads(text)
        return cls(**content | {"tasks": [Task(**task) for task in content["tasks"]]})
