"""`hf://` against a server of our own that answers as the Hugging Face Hub does."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse

import pytest
from checkpoint_models import make

from keras_bert_ref.checkpoints import hub
from keras_bert_ref.errors import ConfigError

pytest.importorskip("huggingface_hub")

COMMIT = hashlib.sha1(b"main").hexdigest()
OPEN = """
import sys
from keras_bert_ref.checkpoints.opening import open_checkpoint
from keras_bert_ref.errors import BertError
try:
    checkpoint = open_checkpoint(sys.argv[1])
except BertError as error:
    sys.exit(f"{type(error).__name__}: {error}")
values = {path: stored.read().sum() for path, stored in checkpoint.weights.items()}
print(checkpoint.model, checkpoint.tokenizer.vocab_size, len(values))
assert "tensorflow" not in sys.modules
"""


class Hub(http.server.ThreadingHTTPServer):
    """Repositories as folders: `repositories` maps owner/name to one."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.fetched = {}, []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        if path.startswith("/api/models/"):
            name, *revision = re.split("/revision/|/tree/", path.removeprefix("/api/models/"))
            return self._list(name, *revision)
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        return self._file(name, revision, file)

    do_HEAD = do_GET  # noqa: N815  the name http.server calls

    def _list(self, name, revision="main"):
        folder = self.server.repositories.get(name)
        if folder is None or revision not in ("main", "v1", COMMIT):
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        names = [str(p.relative_to(folder)) for p in files]
        if "/tree/" in self.path:
            tree = [
                {"type": "file", "path": n, "size": p.stat().st_size, "oid": _etag(p)}
                for n, p in zip(names, files, strict=True)
            ]
            return self._answer(200, json.dumps(tree).encode())
        listing = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}
        return self._answer(200, json.dumps(listing).encode())

    def _file(self, name, revision, file):
        path = self.server.repositories.get(name, self.server.root) / file
        if not path.is_file():
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        if self.command == "GET":
            self.server.fetched.append(file)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_etag(path)}"'}
        return self._answer(200, path.read_bytes(), headers)

    def _answer(self, code, content, headers=()):
        self.send_response(code)
        for key, value in {"Content-Length": len(content), **dict(headers)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def _etag(path):
    return hashlib.sha1(path.read_bytes()).hexdigest()


@pytest.fixture
def server(tmp_path):
    with Hub() as server:
        server.root = tmp_path / "nowhere"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def run(server, address, home):
    """Opens an address in a fresh process, whose Hub is `server` and whose cache is at `home`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": server.address, "HF_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", OPEN, address],
        env={**environment, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_a_repository_is_fetched_once_and_read_offline(server, tmp_path):
    folder = tmp_path / "repository"
    make("classifier").save_pretrained(folder, format="hf")
    (folder / "README.md").write_text("not fetched")
    (folder / "pytorch_model.bin").write_bytes(b"not fetched")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"not fetched")
    server.repositories["owner/name"] = folder
    expected = "BertClassifier 99 89\n"
    for address in ("hf://owner/name", "hf://owner/name@v1", "hf://owner/name"):
        done = run(server, address, tmp_path / "home")
        assert done.stdout == expected, done.stderr
    assert sorted(server.fetched) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    server.shutdown()
    server.server_close()
    assert run(server, "hf://owner/name", tmp_path / "home").stdout == expected


def test_a_tensorflow_checkpoint_is_fetched(server, tmp_path):
    folder = tmp_path / "repository"
    make("pretrainer").save_pretrained(folder, format="tf1")
    server.repositories["bert"] = folder
    assert run(server, "hf://bert", tmp_path / "home").stdout == "BertPretrainer 99 94\n"


def test_what_cannot_be_fetched_is_said(server, tmp_path):
    pickles = tmp_path / "pickles"
    pickles.mkdir()
    for file in ("pytorch_model.bin", "config.json"):
        (pickles / file).write_text("{}")
    server.repositories["owner/pickles"] = pickles
    for address, message in (
        ("hf://owner/absent", "CheckpointError: hf://owner/absent cannot be fetched: "),
        ("hf://owner/pickles@v9", "CheckpointError: hf://owner/pickles@v9 cannot be fetched: "),
        ("hf://owner/pickles", "pytorch_model.bin is a pickle"),
    ):
        done = run(server, address, tmp_path / "home")
        assert done.returncode == 1
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["hf://", "hf://a/b/c", "hf://../x", "hf://a b", "hf://a@"])
def test_addresses_that_are_none(address):
    with pytest.raises(ConfigError, match="is not an address"):
        hub.fetch(address)


def test_without_huggingface_hub_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'keras-bert-ref\[hub\]'"):
        hub.fetch("hf://owner/name")
