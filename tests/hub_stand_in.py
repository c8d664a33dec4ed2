"""A stand-in of the Hub's HTTP API on this machine: create, branch, preupload, LFS batch, commit, resolve.

`with HubStandIn() as hub:` serves at `hub.endpoint`; processes started with `hub.env` talk to it alone. What was
committed is in `hub.files[revision][path]`; `hub.requests` lists what was asked.
"""

import base64
import hashlib
import json
import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.local_server import LocalServer, QuietHandler


TOKEN = "hf_" + "x" * 34


class HubStandIn(LocalServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.repositories: dict[str, dict[str, Any]] = {}  # id -> body of the create call
        self.files: dict[str, dict[str, bytes]] = {"main": {}}  # of the one repository that is pushed to
        self.datasets: dict[str, bytes] = {}  # owner/name/file -> content
        self.objects: dict[str, bytes] = {}  # LFS, by sha256
        self.requests: list[str] = []

    @property
    def env(self) -> dict[str, str]:
        settings = {"HF_ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        return os.environ | settings | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}

    def commit(self, revision: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[revision][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[revision][value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del self.files[revision][value["path"]]

    def oid(self, revision: str) -> str:
        return hashlib.sha1(repr(sorted(self.files[revision].items())).encode()).hexdigest()  # noqa: S324


class _Handler(QuietHandler):
    hub: HubStandIn

    def answer(self, content: Any = None, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        self.send(body, status, headers or {}, self.kind)

    def handle_request(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size + 2)[:-2]
            self.rfile.readline()
        request = f"{self.command} {path}"
        hub.requests.append(request)
        self.kind = self.in_trouble(request)
        if self.kind not in (None, "cut"):  # those are done, and only the answer suffers
            return self.answer()
        if not path.startswith("/lfs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "who are you?"}, 401)
        return self.route(request, body)

    def route(self, request: str, body: bytes) -> None:
        hub = self.hub
        if request == "POST /api/repos/create":
            created = json.loads(body)
            name = f"{created['organization']}/{created['name']}"
            known = hub.repositories.setdefault(name, created) is not created
            return self.answer({"url": f"{hub.endpoint}/{name}", "name": name}, 409 if known else 200)
        if request == "POST /api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if match := re.fullmatch(r"POST /api/models/.+/branch/(.+)", request):
            hub.files.setdefault(match[1], dict(hub.files["main"]))
            return self.answer({}, 201)
        if re.fullmatch(r"POST /api/(?:models|spaces)/.+/preupload/.+", request):
            modes = [{"path": f["path"], "shouldIgnore": False, "oid": None} for f in json.loads(body)["files"]]
            for mode in modes:
                mode["uploadMode"] = "lfs" if mode["path"].endswith(".safetensors") else "regular"
            return self.answer({"files": modes})
        if match := re.fullmatch(r"GET /api/(?:models|spaces)/.+/tree/([^/]+)", request):
            files = hub.files.get(match[1], {}).items()
            return self.answer([{"type": "file", "path": n, "size": len(c), "oid": ""} for n, c in files])
        if request.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for pointer in objects:
                if pointer["oid"] not in hub.objects:
                    pointer["actions"] = {"upload": {"href": f"{hub.endpoint}/lfs/{pointer['oid']}"}}
            return self.answer({"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"PUT /lfs/(\w+)", request):
            hub.objects[hashlib.sha256(body).hexdigest()] = body
            return self.answer({}, 200 if match[1] in hub.objects else 400)
        if match := re.fullmatch(r"POST /api/(?:models|spaces)/(.+)/commit/(.+)", request):
            hub.commit(match[2], [json.loads(line) for line in body.splitlines()])
            oid = hub.oid(match[2])
            return self.answer({"commitUrl": f"{hub.endpoint}/{match[1]}/commit/{oid}", "commitOid": oid})
        if match := re.fullmatch(r"(?:HEAD|GET) /[^/]+/[^/]+/resolve/([^/]+)/(.+)", request):
            return self.resolve(hub.files.get(match[1], {}).get(match[2]), match[1])
        if match := re.fullmatch(r"(?:HEAD|GET) /datasets/([^/]+/[^/]+)/resolve/main/(.+)", request):
            return self.resolve(hub.datasets.get(f"{match[1]}/{match[2]}"), "main")
        return self.answer({"error": f"no such address: {request}"}, 404)

    def resolve(self, content: bytes | None, revision: str) -> None:
        if content is None:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound"})
        etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.hub.oid(revision)}  # noqa: S324
        return self.answer(content, 200, etag)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request
