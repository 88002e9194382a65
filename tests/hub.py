"""A small Hugging Face hub on this machine: what the hub's own client asks for, and faults."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from sapo_edge.backends.hub.data import CONVERTED
from tests.directories import write_directory
from tests.models import SHAPES, write_model

FILE = "/{repo_id}/resolve/{revision}/{filename}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OWNER, TOKEN = "me", "hf_of_the_owner"
"""Who may upload."""


class Hub:
    """Serves the repositories below a directory, as "organisation/model" of it, and takes uploads with `TOKEN`.

    A data set has a directory for each of its branches: "datasets/owner/name/main", and for the hub's conversion
    "datasets/owner/name/refs/convert/parquet"; nobody has accepted the terms of `gated` ones. The owner's storage may
    be `full`. Contents of `damaged` files arrive changed, and a response in `cuts` ends after so many bytes, once.
    Requests are kept with method, path and range.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.full = directory, False
        self.private, self.damaged, self.gated = set[str](), set[str](), set[str]()
        self.cuts: dict[str, int] = {}
        self.requests: list[tuple[str, str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_POST(self) -> None:
                hub.take(self)

            do_PUT = do_POST

            def log_message(self, *_arguments: Any) -> None:
                """Nothing: the tests read `requests`."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(handler.path.partition("?")[0])
        self.requests.append((handler.command, path, handler.headers.get("Range", "")))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            self._describe(handler, self.directory / match[1])
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/main", path):
            files = [file for file in (self.directory / match[1]).rglob("*") if file.is_file()]
            names = [file.relative_to(self.directory / match[1]).as_posix() for file in files]
            self._json(handler, [{"type": "file", "path": name, "size": 1, "oid": "b" * 40} for name in names])
        elif match := re.fullmatch(r"/(?!datasets/)([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._send(handler, self.directory / match[1] / match[2], body=body)
        elif match := re.fullmatch(r"/api/(datasets/([^/]+/[^/]+))(?:/revision/(.+))?", path):
            if match[2] in self.gated:
                self._missing(handler, "GatedRepo", 403)
            elif (data := self.directory / match[1]).is_dir() and not (data / (match[3] or "main")).is_dir():
                self._missing(handler, "RevisionNotFound")
            else:
                self._describe(handler, data / (match[3] or "main"))
        elif match := re.fullmatch(r"/(datasets/[^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            branches = (self.directory / match[1] / branch for branch in (CONVERTED, "main"))
            self._send(handler, next(filter(Path.is_dir, branches)) / match[2], body=body)
        else:
            self._missing(handler, "EntryNotFound")

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer what the hub's client sends when it uploads files."""
        path = handler.path.partition("?")[0]
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.requests.append((handler.command, path, ""))
        if match := re.fullmatch(r"/objects/([^/]+/[^/]+)/([0-9a-f]{64})", path):
            # An address that is signed by itself.
            assert hashlib.sha256(body).hexdigest() == match[2]
            (self.directory / f".{match[2]}").write_bytes(body)
            self._json(handler, {})
        elif handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json(handler, {"error": "Invalid user token."}, 401)
        elif path == "/api/repos/create":
            self._create(handler, json.loads(body))
        elif path == "/api/validate-yaml":
            self._json(handler, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/main", path):
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {path: "lfs" if is_large(Path(path)) else "regular" for path in paths}
            files = [{"path": path, "shouldIgnore": False, "uploadMode": mode} for path, mode in modes.items()]
            self._json(handler, {"files": files})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            wanted, place = json.loads(body)["objects"], f"{self.url}/objects/{match[1]}"
            objects = [{**one, "actions": {"upload": {"href": f"{place}/{one['oid']}"}}} for one in wanted]
            self._json(handler, {"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(handler, match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._missing(handler, "EntryNotFound")

    def _create(self, handler: BaseHTTPRequestHandler, wanted: dict[str, Any]) -> None:
        name = f"{wanted.get('organization') or OWNER}/{wanted['name']}"
        url = {"url": f"{self.url}/{name}", "name": name}
        if not name.startswith(f"{OWNER}/"):
            self._json(handler, {"error": "You don't have the rights to create a model under this namespace"}, 403)
        elif (self.directory / name).exists():
            self._json(handler, {"error": "You already created this model repo", **url}, 409)
        else:
            (self.directory / name).mkdir(parents=True)
            if wanted.get("private") or wanted.get("visibility") == "private":
                self.private.add(name)
            self._json(handler, url)

    def _commit(self, handler: BaseHTTPRequestHandler, name: str, lines: list[dict[str, Any]]) -> None:
        if self.full:
            self._json(handler, {"error": "Private repository storage limit reached"}, 403)
            return
        for line in lines:
            value, target = line["value"], self.directory / name / line["value"].get("path", "")
            target.parent.mkdir(parents=True, exist_ok=True)
            if line["key"] == "file":
                target.write_bytes(base64.b64decode(value["content"]))
            elif line["key"] == "deletedFile":
                target.unlink()
            elif line["key"] == "lfsFile":
                (self.directory / f".{value['oid']}").rename(target)
        self._json(handler, {"commitUrl": f"{self.url}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})

    def _json(self, handler: BaseHTTPRequestHandler, record: dict[str, Any] | list[Any], status: int = 200) -> None:
        headers = {"Content-Type": "application/json"}
        if isinstance(record, dict) and "error" in record:
            headers["X-Error-Message"] = str(record["error"])
        self._reply(handler, status, json.dumps(record).encode(), headers)

    def _describe(self, handler: BaseHTTPRequestHandler, repository: Path) -> None:
        if not repository.is_dir():
            self._missing(handler, "RepoNotFound")
            return
        siblings = []
        for file in sorted(path for path in repository.rglob("*") if path.is_file()):
            content = file.read_bytes()
            sibling = {"rfilename": file.relative_to(repository).as_posix(), "size": len(content), "blobId": "b" * 40}
            if is_large(file):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        name = repository.relative_to(self.directory).as_posix()
        record = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
        self._json(handler, {**record, "private": name in self.private})

    def _send(self, handler: BaseHTTPRequestHandler, file: Path, *, body: bool) -> None:
        if not file.is_file():
            self._missing(handler, "EntryNotFound")
            return
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest() if is_large(file) else hashlib.sha1(content).hexdigest()
        if file.name in self.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        status, start = 200, 0
        if match := re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", "")):
            status, start = 206, int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        rest = content[start:]
        # The connection ends early, as on a bad network.
        cut = self.cuts.pop(file.name, None) if body else None
        self._reply(handler, status, rest if body else b"", headers | {"Content-Length": str(len(rest))}, cut)

    def _missing(self, handler: BaseHTTPRequestHandler, code: str, status: int = 404) -> None:
        self._reply(handler, status, b"{}", {"X-Error-Code": code, "X-Error-Message": "not here"})

    @staticmethod
    def _reply(
        handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body[:cut])
        if cut is not None:
            handler.close_connection = True


def is_large(file: Path) -> bool:
    """Whether the hub would keep a file apart, under its SHA-256."""
    return file.suffix in (".gguf", ".safetensors", ".parquet")


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    tiny = write_directory(root / "someone" / "tiny", SHAPES["llama"])
    (tiny / "original").mkdir()
    for file, text in {
        "README.md": "---\nlicense: apache-2.0\n---\n# Tiny\n", "original/weights.safetensors": "of another program",
        "pytorch_model.bin": "pickled", "consolidated.safetensors": "the same weights for another program",
    }.items():  # fmt: skip
        (tiny / file).write_text(text)
    (root / "someone" / "tiny-GGUF").mkdir()
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "tiny-F16-00001-of-00002.gguf"):
        write_model(root / "someone" / "tiny-GGUF" / name, SHAPES["llama"])
    (root / "someone" / "pickled").mkdir()
    (root / "someone" / "pickled" / "config.json").write_text("{}")
    return root


@pytest.fixture
def hub(repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    import huggingface_hub.constants

    hub = Hub(repositories)
    # The client writes what has arrived in steps of the chunk's size.
    for name, value in {
        "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": True, "DOWNLOAD_CHUNK_SIZE": 1000,
        "ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + FILE,
    }.items():  # fmt: skip
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    with hub.server, ThreadPoolExecutor(1) as pool:
        pool.submit(hub.server.serve_forever, 0.02)
        yield hub
        hub.server.shutdown()
