"""A stand-in of the Hub's dataset API on this machine: info, file tree and files of the folders `ROOT/org/name/`.

Every file is a large one (LFS), with its sha256; ranges are answered, as the Hub does.
"""

import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.local_server import LocalServer, QuietHandler


class DatasetHub(LocalServer):
    """`with DatasetHub(root) as hub:` serves at `hub.endpoint`; `hub.asked` lists (method, path, range)."""

    commit = "a" * 40

    def __init__(self, root: Path) -> None:
        super().__init__(_Handler)
        self.root = root
        self.asked: list[tuple[str, str, str | None]] = []

    def sent(self, name: str) -> list[str | None]:
        """The ranges in which the content of a file was asked for."""
        return [span for method, path, span in self.asked if method == "GET" and path.endswith(f"/{name}")]


class _Handler(QuietHandler):
    hub: DatasetHub

    def do_GET(self) -> None:
        path, span = unquote(urlsplit(self.path).path), self.headers.get("Range")
        self.hub.asked.append((self.command, path, span))
        kind = self.in_trouble(f"{self.command} {path}")
        if path.startswith("/api/datasets/"):
            organisation, name = path.split("/")[3:5]
            folder = self.hub.root / organisation / name
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            commit = path.split("/")[6] if "/revision/" in path else self.hub.commit
            info = {"id": f"{organisation}/{name}", "sha": commit, "siblings": []}
            body = [_entry(file, folder) for file in files] if "/tree/" in path else info
            self.send(json.dumps(body).encode(), 200, {"Content-Type": "application/json"}, kind)
        else:  # /datasets/org/name/resolve/commit/path
            _, _, organisation, name, _, commit, *rest = path.split("/")
            content = (self.hub.root / organisation / name / "/".join(rest)).read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
            start = int(span.removeprefix("bytes=").split("-")[0]) if span else 0
            if span:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send(content[start:], 206 if span else 200, headers, kind)

    do_HEAD = do_GET


def _entry(file: Path, folder: Path) -> dict[str, object]:
    size = file.stat().st_size
    lfs = {"oid": hashlib.sha256(file.read_bytes()).hexdigest(), "size": size, "pointerSize": 134}
    return {"type": "file", "path": file.relative_to(folder).as_posix(), "size": size, "oid": "0" * 40, "lfs": lfs}
