"""Downloads against a server in this process that cuts, stalls, lies, redirects and forgets."""

import gzip
import hashlib
import os
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from torchcaps.data.catalogue import CATALOGUE, Distribution, RemoteFile
from torchcaps.data.fetch import fetch, is_right
from torchcaps.data.load import SOURCES

INSIDE = bytes(range(256)) * 400
CONTENT = gzip.compress(INSIDE)
HOME = Path(os.environ.get("TORCHCAPS_DATA") or "/nowhere")
NOISE = hashlib.shake_256(b"noise").digest(300_000)
OPTIONS = {"timeout": 20.0, "pause": 0.0}
IMPATIENT = {"timeout": 0.5, "pause": 0.0}


def remote(content: bytes, name: str = "pictures.bin", **options) -> RemoteFile:
    return RemoteFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest(), **options)


class Server(ThreadingHTTPServer):
    """Serves `content` under any name; the attributes say what goes wrong."""

    daemon_threads = False  # closing waits for the answers that are under way

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = NOISE
        self.cuts: list[int] = []  # the n-th answer ends after so many bytes
        self.stalls: list[int] = []  # the n-th answer goes silent after so many bytes
        self.statuses: list[int] = []  # of the first answers
        self.delay = 0.0  # before each block
        self.has_ranges = self.has_length = True
        self.requests: list[str | None] = []  # their Range headers

    def handle_error(self, request, client_address):
        """A client that went away is what these tests are about."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/files/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", f"/files/{self.path.removeprefix('/moved/')}")
            self.end_headers()
            return
        server.requests.append(wanted)
        if server.statuses and (status := server.statuses.pop(0)) != 200:
            self.send_error(status)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.has_ranges else 0
        if start and start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        if server.has_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        stall = server.stalls.pop(0) if server.stalls else None
        body = body[: server.cuts.pop(0) if server.cuts else stall]
        for place in range(0, len(body), 50_000):
            time.sleep(server.delay)
            self.wfile.write(body[place : place + 50_000])
        if stall is not None:
            self.wfile.flush()
            time.sleep(2 * OPTIONS["timeout"])


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def source(*files: RemoteFile, address: str = "http://nowhere.invalid/") -> Distribution:
    files = files or (remote(NOISE),)
    return Distribution(address=address, files=files, checksums="made here", copies="a copy is in the cupboard")


def test_files_arrive_and_progress_is_told(server, tmp_path):
    told = []
    files = (remote(NOISE, "a.bin"), remote(NOISE, "b.bin"))
    paths = fetch("set", source(*files, address=server.address), tmp_path / "new", progress=lambda *t: told.append(t))
    assert [path.name for path in paths] == ["a.bin", "b.bin"]
    assert all(path.read_bytes() == NOISE for path in paths)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.bin", "b.bin"]
    assert told[0] == ("a.bin", 0, len(NOISE))
    assert told[-1] == ("b.bin", len(NOISE), len(NOISE))
    assert [done for name, done, _ in told if name == "a.bin"] == sorted(
        done for name, done, _ in told if name == "a.bin"
    )


def test_what_is_there_and_right_is_not_fetched_again(server, tmp_path):
    fetch("set", source(), tmp_path, mirror=server.address)
    fetch("set", source(), tmp_path, mirror=server.address)
    assert len(server.requests) == 1
    (tmp_path / "pictures.bin").write_bytes(b"something else")
    fetch("set", source(), tmp_path, mirror=server.address.rstrip("/"))
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE


def test_interrupted_twice(server, tmp_path):
    server.cuts = [100_000, 70_000]
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE
    assert server.requests == [None, "bytes=100000-", "bytes=170000-"]


def test_interrupted_by_the_user_twice(server, tmp_path):
    for limit in (1, 150_000):

        def stop(name, done, total, limit=limit):
            if done >= limit:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch("set", source(), tmp_path, mirror=server.address, progress=stop, **OPTIONS)
        assert (tmp_path / "pictures.bin.part").exists()
        assert not (tmp_path / "pictures.bin").exists()
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE
    assert not (tmp_path / "pictures.bin.part").exists()
    assert server.requests[0] is None
    first, second = (int(wanted.strip("bytes=-")) for wanted in server.requests[1:])
    assert 1 <= first < second
    assert second >= 150_000


def test_truncation_without_end_is_described_and_what_came_stays(server, tmp_path):
    server.cuts = [1000] * 20
    with pytest.raises(OSError, match=r"set could not be fetched: .*pictures.bin ended after 8000 of 300000 bytes"):
        fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin.part").read_bytes() == NOISE[:8000]
    server.cuts = []
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE


def test_truncation_of_unknown_length_is_found_by_the_checksum(server, tmp_path):
    server.has_length, server.cuts = False, [1000]
    with pytest.raises(ValueError, match="pictures.bin has the wrong content"):
        fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.has_ranges, server.cuts = False, [100_000]
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE


def test_wrong_content_is_not_kept(server, tmp_path):
    server.content = NOISE[::-1]
    wrong, right = hashlib.sha256(NOISE[::-1]).hexdigest(), hashlib.sha256(NOISE).hexdigest()
    with pytest.raises(ValueError, match=f"wrong content: sha256 {wrong} where {right} was expected; nothing was kept"):
        fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_bytes", [5000, len(NOISE), len(NOISE) + 7])
def test_a_beginning_of_something_else_is_thrown_away(server, tmp_path, num_bytes):
    (tmp_path / "pictures.bin.part").write_bytes(b"x" * num_bytes)
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE
    assert len(server.requests) == 2


def test_a_complete_beginning_needs_no_more_bytes(server, tmp_path):
    (tmp_path / "pictures.bin.part").write_bytes(NOISE)
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE


def test_not_found(server, tmp_path):
    server.statuses = [404]
    with pytest.raises(OSError, match=r"pictures.bin answers 404 Not Found\. Run the command again") as raised:
        fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert f"put pictures.bin into {tmp_path} by other means; copies: a copy is in the cupboard" in str(raised.value)
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503]
    fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert len(server.requests) == 2
    (tmp_path / "pictures.bin").unlink()
    server.statuses = [503] * 20
    with pytest.raises(OSError, match="answers 503 Service Unavailable"):
        fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)


def test_slow_is_not_broken(server, tmp_path):
    server.delay = 0.5  # each block in time, all of them beyond the time limit of one
    fetch("set", source(), tmp_path, mirror=server.address, timeout=2.0, pause=0.0)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE
    assert len(server.requests) == 1


def test_silence_is_broken_and_goes_on(server, tmp_path):
    server.stalls = [60_000]
    fetch("set", source(), tmp_path, mirror=server.address, **IMPATIENT)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE
    assert server.requests == [None, "bytes=60000-"]


def test_redirects_are_followed_and_resumed(server, tmp_path):
    server.cuts = [100_000]
    fetch("set", source(), tmp_path, mirror=server.address.replace("/files/", "/moved/"), **OPTIONS)
    assert (tmp_path / "pictures.bin").read_bytes() == NOISE
    assert server.requests == [None, "bytes=100000-"]


def test_more_than_was_asked_for_is_cut_off(server, tmp_path):
    server.content = bytes(5_000_000)
    with pytest.raises(ValueError, match=r"pictures.bin is larger than \d+ bytes: it is not pictures.bin"):
        fetch("set", source(), tmp_path, mirror=server.address, **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_no_network(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/"  # taken, and nobody listens
        with pytest.raises(
            OSError, match=r"127.0.0.1:\d+ cannot be reached, or went silent .*copies: a copy is in the cup"
        ):
            fetch("set", source(), tmp_path, mirror=address, **OPTIONS)


@pytest.mark.parametrize("mirror", ["file:///etc/", "ftp://host/", "/a/folder", "host/folder"])
def test_mirrors_are_web_addresses(tmp_path, mirror):
    with pytest.raises(ValueError, match=r"a mirror must be an address that starts with http:// or https://, got"):
        fetch("set", source(), tmp_path, mirror=mirror)


def test_copies_packed_in_another_way_are_right_too(server, tmp_path):
    inside = hashlib.sha256(INSIDE).hexdigest()
    file = remote(CONTENT, "inside.gz", unpacked_sha256=inside)
    for content in (CONTENT, gzip.compress(INSIDE, 1), INSIDE):
        server.content = content
        fetch("set", source(file), tmp_path, mirror=server.address, **OPTIONS)
        assert (tmp_path / "inside.gz").read_bytes() == content
        (tmp_path / "inside.gz").unlink()
    (tmp_path / "inside").write_bytes(INSIDE)
    assert fetch("set", source(file), tmp_path, mirror="http://nowhere.invalid/") == [tmp_path / "inside"]
    (tmp_path / "inside").unlink()
    server.content = gzip.compress(INSIDE[:-1])
    with pytest.raises(ValueError, match="wrong content"):
        fetch("set", source(file), tmp_path, mirror=server.address, **OPTIONS)


def test_the_catalogue_is_complete():
    for name, distribution in CATALOGUE.items():
        assert name in SOURCES
        assert distribution.address.startswith("http")
        assert distribution.address.endswith("/")
        assert "published by" in distribution.checksums
        assert distribution.copies
        for file in distribution.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.unpacked_sha256 is None or re.fullmatch("[0-9a-f]{64}", file.unpacked_sha256)


@pytest.mark.skipif(not (HOME / "mnist").is_dir(), reason="needs the idx files of MNIST in $TORCHCAPS_DATA/mnist")
def test_the_checksums_of_mnist_are_those_of_the_real_digits():
    for file in CATALOGUE["mnist"].files:
        assert is_right(HOME / "mnist" / file.name, file)
