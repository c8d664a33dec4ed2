"""Files from elsewhere: pickles, code of checkpoints, YAML, chat templates, archives and names of images.

They run nothing, and reach nothing outside their folder.
"""

import io
import json
import os
import pickle
import random
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from eval.data import mirror
from eval.data.benchmarks import BY_KEY
from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.diagnostics.hooks import loading as diagnostics
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from tests.benchmark_stand_in import write_llava
from tests.faults.refusals import refused
from tests.faults.tiny import METHOD, tiny
from train.archive import extract_zip
from train.arguments.parse import parse_arguments
from train.data.conversations import BadRow, image_files
from train.data.sources import read_sources
from train.monitoring.log import LossLog
from train.optimization.saved_state import reading_state
from train.stage import run_stage


_ROUNDS = 200


class Touch:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class Execute(Touch):
    """The same through `exec`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


class Command(Touch):
    """The same through a shell."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.path}'",)


def pickles(path: Path) -> list[bytes]:
    """Files that create `path` when they are unpickled: bare, and as torch writes them now and wrote them once."""
    found = []
    for evil in (Touch(path), Execute(path), Command(path)):
        found += [pickle.dumps(evil, protocol) for protocol in (0, 2, 4)]
        for new in (True, False):
            file = io.BytesIO()
            torch.save({"weight": torch.zeros(2), "state": evil}, file, _use_new_zipfile_serialization=new)
            found.append(file.getvalue())
    return found


@contextmanager
def nothing_runs(path: Path) -> Iterator[None]:
    """`path` must not appear in the block."""
    assert not path.exists()
    yield
    assert not path.exists(), "code of a file has run"


def weights(rng: random.Random, folder: Path) -> dict[str, int]:
    """A pickle beside safetensors is not read; one in their place is refused."""
    ran, tried = folder / "ran", 0
    model = folder / "model"
    shutil.copytree(tiny().checkpoint, model)
    safe = (model / "model.safetensors").read_bytes()
    for content in pickles(ran):
        beside = model / rng.choice(["pytorch_model.bin", "training_args.bin", "model.pt", "weights.pth", "a.ckpt"])
        beside.write_bytes(content)
        with nothing_runs(ran):
            load_strict(AlignedLlavaForConditionalGeneration, model)
            (model / "model.safetensors").unlink()
            for name in (beside.name, "pytorch_model.bin"):
                (model / name).write_bytes(content)
                with refused("a pickle"):
                    load_strict(AlignedLlavaForConditionalGeneration, model)
                with suppress(Exception):  # in plain transformers, which reads it without running it
                    AutoModelForImageTextToText.from_pretrained(model)
                (model / name).unlink()
        (model / "model.safetensors").write_bytes(safe)
        tried += 1
    pickle.loads(pickles(ran)[0])  # noqa: S301  our own
    assert ran.exists(), "the trap does not work"
    return {"pickles": tried}


def _interrupt(self: LossLog, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    if state.global_step == 5:
        raise InterruptedError


def states(rng: random.Random, folder: Path) -> dict[str, int]:
    """A resumed stage reads its own checkpoint without running what somebody put into it."""
    ran, arguments = folder / "ran", tiny().stage2(folder)
    stage = folder / METHOD / "stage2"
    stop = mock.patch.object(LossLog, "on_step_end", _interrupt)
    with stop, suppress(InterruptedError):
        run_stage(arguments)
    checkpoint = max(stage.glob("checkpoint-*"))
    kept = {path: path.read_bytes() for path in checkpoint.glob("*") if path.suffix in (".pt", ".pth", ".bin")}
    assert {path.name for path in kept} >= {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"}
    tried = 0
    for path, content in kept.items():
        for evil in rng.sample(pickles(ran), 2):
            path.write_bytes(evil)
            with nothing_runs(ran), stop:
                try:
                    run_stage(arguments)
                except UserError as error:
                    assert checkpoint.name in str(error) and "would run code" in str(error), error
                    assert path.name != "training_args.bin"  # which nothing reads
                except InterruptedError:
                    assert path.name == "training_args.bin", f"{path.name} was not read"
            tried += 1
        path.write_bytes(content)
    index = checkpoint / "optimizer_0" / ".metadata"
    index.parent.mkdir()
    for evil in pickles(ran):
        index.write_bytes(evil)
        with nothing_runs(ran), suppress(UserError), reading_state(checkpoint):
            pickle.loads(evil)  # noqa: S301  as torch does after the check
        tried += 1
    return {"pickles": tried}


def remote_code(rng: random.Random, folder: Path) -> dict[str, int]:
    """Code of a checkpoint runs with the flag alone; from the Hub, at a pinned commit alone."""
    ran = folder / "ran"
    model = write_llava(folder / "model")
    code = f"open({str(ran)!r}, 'w').close()\nfrom transformers import LlavaConfig\nclass Evil(LlavaConfig): pass\n"
    (model / "evil.py").write_text(code)
    names = ("config.json", "processor_config.json", "tokenizer_config.json")
    before = {name: json.loads((model / name).read_text()) for name in names if (model / name).exists()}

    def name_code(reference: str) -> None:
        classes = {"AutoConfig": reference, "AutoProcessor": reference, "AutoTokenizer": [reference, reference]}
        for name, content in before.items():
            (model / name).write_text(json.dumps({**content, "auto_map": classes, "model_type": "evil"}))

    loaders: list[Callable[[str, bool], object]] = [
        lambda path, flag: load_generator(path, trust_remote_code=flag),
        lambda path, flag: diagnostics.load(path, flag),
        lambda path, flag: diagnostics.load_language(path, flag),
        lambda path, flag: diagnostics.load_encoder(path, flag),
        lambda path, flag: load_part(AutoTokenizer, path, trust_remote_code=flag),
    ]
    asked = mock.patch("builtins.input", side_effect=AssertionError("asked"))
    for load in loaders:
        name_code("evil.Evil")
        with nothing_runs(ran), asked, suppress(UserError):  # some can do without the code
            load(str(model), False)
        for source in ("someone/evil", "someone/evil@main", f"someone/evil@{'c' * 39}"):
            with nothing_runs(ran), refused("pinned commit"):
                load(source, True)
        name_code("someone/evil--evil.Evil")
        with nothing_runs(ran), refused("which is not pinned"):
            load(str(model), True)
    name_code("evil.Evil")
    with suppress(Exception):
        load_generator(str(model), trust_remote_code=True)
    assert ran.exists(), "the trap does not work"
    return {"loaders": len(loaders)}


def yaml_and_templates(rng: random.Random, folder: Path) -> dict[str, int]:
    """YAML makes no objects, and a chat template reaches no Python."""
    ran, tried = folder / "ran", 0
    recipe, mixture = folder / "recipe.yaml", folder / "mixture.yaml"
    dataset = folder / "mirror" / BY_KEY["pope"].folder
    dataset.mkdir(parents=True)
    readers: tuple[Callable[[], object], ...] = (
        lambda: parse_arguments(["--config", str(recipe), "--method", METHOD]),
        lambda: read_sources(str(mixture), None),
        lambda: mirror.count_rows(folder / "mirror", BY_KEY["pope"]),
    )
    for function in ("apply:os.system", "new:os.system", "apply:subprocess.call"):
        evil = f"!!python/object/{function} [\"touch '{ran}'\"]"
        recipe.write_text(f"output_dir: {evil}\n")
        mixture.write_text(f"- {evil}\n")
        (dataset / "README.md").write_text(f"---\nconfigs: {evil}\n---\n")
        for read in readers:
            with nothing_runs(ran), suppress(Exception):
                read()
            tried += 1
    generator = load_generator(str(write_llava(folder / "model")))
    for template in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__.__builtins__.open('" + str(ran) + "', 'w') }}",
        "{{ cycler.__init__.__globals__.os.system('touch " + str(ran) + "') }}",
    ):
        generator.processor.chat_template = template
        with nothing_runs(ran):
            try:
                text = generator.render("What?", images=1)
            except Exception:
                text = ""
            assert "class" not in text, text
        tried += 1
    return {"texts": tried}


def archives(rng: random.Random, folder: Path) -> dict[str, int]:
    """Names in a zip that leave its folder, in all spellings, and links."""
    target = folder / "deep" / "out"
    for number in range(_ROUNDS):
        parts = rng.choices(["..", "a", "b.jpg", ".", "c d"], k=rng.randrange(1, 5))
        parts.insert(rng.randrange(len(parts) + 1), "..")
        name = rng.choice(["/", "\\"]).join([*parts, f"evil{number}.jpg"])
        name = rng.choice([name, f"/{name}", f"C:\\{name}", f"{folder}/evil{number}.jpg"])
        member = zipfile.ZipInfo(name)
        member.filename = name  # ZipInfo tidies it
        if rng.random() < 0.3:
            member = zipfile.ZipInfo(f"fine/link{number}")
            member.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(folder / "evil.zip", "w") as zipped:
            zipped.writestr("fine.jpg", b"fine")
            zipped.writestr(member, str(folder))
        with refused("nothing was extracted"):
            extract_zip(folder / "evil.zip", target)
    outside = [path for path in folder.rglob("*") if path.name != "evil.zip" and path.is_file()]
    assert not outside, outside
    return {"archives": _ROUNDS}


def image_names(rng: random.Random, folder: Path) -> dict[str, int]:
    """Rows that name an image outside the image folder."""
    images, secret = folder / "images", folder / "secret.png"
    images.mkdir()
    secret.touch()
    (images / "in.png").touch()
    for _ in range(_ROUNDS):
        up = rng.choice(["..", "./..", "x/../..", "..\\", "images/../.."])
        names = [f"{up}/secret.png", str(secret), f"//{secret}", f"{up}/images/in.png", f"in.png\0/{secret}"]
        name = rng.choice(names)
        try:
            found = image_files(name, images)
        except BadRow:
            continue
        raise AssertionError(f"{name!r} gave {found}")
    assert image_files("in.png", images) == [f"{images}/in.png"]
    return {"names": _ROUNDS}
