"""The page of what runs: who may ask, what it answers, and that it holds what others do to it."""

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_log import batch_of, flow_row, random_columns, write_log

from parshall.errors import UsageError, printable
from parshall.host import cgroups
from parshall.instruments.tcp_log import read
from parshall.live import server as live_server
from parshall.live.listening import listening
from parshall.live.reporting import Reporter
from parshall.live.saved import Saved
from parshall.live.server import Server
from parshall.live.token import token_in
from parshall.live.view import View, unit_of
from parshall.live.watch import Watch

EVIL = '<img src=x onerror="alert(1)">\x1b[31m'


def established(flows: int, rows: int, seed: int = 7) -> dict[str, Any]:
    """Return rows of established connections, of which each moves forward."""
    columns = random_columns(rows, flows, seed)
    columns["state"] = ["ESTABLISHED"] * rows
    columns["direction"] = ["out"] * rows
    columns["snd_una"] = np.arange(rows) * 1000
    columns["rcv_nxt"] = np.arange(rows) * 10
    return columns


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 300 flows of three processes; one has a name that is markup."""
    path = tmp_path / "flows.arrow"
    names = ("curl", "nginx", EVIL)
    flows = [
        flow_row(flow, command=names[flow % 3], pid=100 + flow % 3, cgroup=f"/system.slice/unit{flow % 3}.service")
        for flow in range(1, 301)
    ]
    write_log(path, [batch_of(established(300, 6000))], flows)
    return path


class Client:
    """Asks a server as its page does."""

    def __init__(self, server: Server) -> None:
        self.port, self.token = server.port, server.token

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
        """Return status, body and headers of an answer."""
        names = {"X-Parshall-Token": self.token} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), names)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers

    def frame(self, **words: Any) -> Any:
        """Return a frame."""
        status, body, _ = self.ask("/api/frame?" + "&".join(f"{name}={value}" for name, value in words.items()))
        assert status == 200, body
        return json.loads(body)


@contextlib.contextmanager
def served(path: Path, saved: Path) -> Iterator[Client]:
    with contextlib.ExitStack() as stack:
        reporter = stack.enter_context(Reporter())
        listener = stack.enter_context(listening("127.0.0.1", 0))
        watch = stack.enter_context(Watch(path))
        client = Client(stack.enter_context(Server(watch, Saved(saved, reporter), listener)))
        while not watch.version:
            client.ask("/api/frame?after=0&count=0")
        yield client


@pytest.fixture
def client(log: Path, tmp_path: Path) -> Iterator[Client]:
    with served(log, tmp_path) as client:
        yield client


def test_the_page_shows_what_the_log_says(client: Client, log: Path) -> None:
    states = read(log).flow_states().table()
    frame = client.frame(count=500, sort="acked")
    rows = dict(zip(frame["columns"]["flow"], range(frame["lines"]), strict=True))
    assert frame["lines"] == len(rows) == states.height == 300
    for row in states.iter_rows(named=True):
        at = rows[row["flow"]]
        shown = {name: values[at] for name, values in frame["columns"].items()}
        assert (shown["acked"], shown["received"], shown["cwnd"], shown["rtt_ms"], shown["retr"]) == (
            *(row["acked_bytes"], row["received_bytes"], row["cwnd_segments"], row["srtt_ms"], row["retransmitted"]),
        )
        assert shown["retr_for"] == row["retransmitted_for"]
        assert shown["local"] == f"10.0.0.1:{row['local_port']}"
    assert frame["columns"]["acked"] == sorted(frame["columns"]["acked"], reverse=True)
    assert frame["has_ended"]


def test_before_anything_is_known_the_page_has_its_parts(log: Path) -> None:
    # Not entered: nothing is read.
    frame = json.loads(Watch(log).frame(View()))
    assert (frame["version"], frame["lines"], frame["listeners"], frame["ledger"]) == (0, 0, [], None)
    assert (frame["has_ended"], frame["kept_ms"]) == (False, [None, None])


def test_lines_are_filtered_grouped_sorted_and_cut(client: Client) -> None:
    frame = client.frame(words="nginx", count=10, offset=95, sort="flow", descending=0)
    assert frame["lines"] == 100
    assert frame["columns"]["flow"] == [286, 289, 292, 295, 298]
    # Each word must be found.
    assert client.frame(words="nginx%20curl")["lines"] == 0
    assert client.frame(words="10.0.0.1:5017")["columns"]["flow"] == [17]
    # Not a pattern.
    assert client.frame(words=".*")["lines"] == 0
    groups = client.frame(group="process", sort="flows")
    assert sorted(groups["columns"]["group"])[1:] == ["curl", "nginx"]
    assert groups["columns"]["flows"] == [100] * 3
    acked = client.frame(count=500)["columns"]["acked"]
    assert sum(groups["columns"]["acked"]) == sum(acked)
    assert client.frame(group="unit")["columns"]["group"] == [f"unit{number}.service" for number in range(3)]


def test_names_of_others_have_no_escapes(client: Client) -> None:
    names = set(client.frame(count=500)["columns"]["process"])
    assert len(names) == 3
    assert all("\x1b" not in name for name in names)


@pytest.mark.parametrize(
    "words",
    [
        *("sort=evil", "group=evil", "offset=-1", "count=501", "count=x", "after=1e3", "offset=99999999999999999999"),
        *("at_ms=nan", "at_ms=x", "at_ms=inf", "words=" + 201 * "x"),
    ],
)
def test_a_request_that_the_page_does_not_make_is_one_line(client: Client, words: str) -> None:
    status, body, _ = client.ask(f"/api/frame?{words}")
    assert status == 400
    assert body.count(b"\n") == 1 and b"Traceback" not in body


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {"X_Parshall_Token": "wrong"}),
        (401, {"X_Parshall_Token": ""}),
        (421, {"Host": "rebound.example"}),
        (421, {"Host": "127.0.0.1"}),
        (403, {"Origin": "http://other.example"}),
        (403, {"Origin": "null"}),
        (413, {"Content_Length": "10000000"}),
    ],
)
def test_who_is_not_the_page_gets_nothing(client: Client, status: int, headers: dict[str, str]) -> None:
    for path, method in (("/api/frame", "GET"), ("/api/curve", "GET"), ("/api/save", "POST")):
        found, body, _ = client.ask(path, method, **headers)
        assert (found, body.count(b"\n")) == (status, 1)


def test_the_page_needs_no_token_and_loads_nothing_from_elsewhere(client: Client) -> None:
    for path in ("/", "/live.js", "/live.css", "/uplot.js", "/uplot.css"):
        status, body, headers = client.ask(path, X_Parshall_Token="")
        assert status == 200
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert not re.search(rb"""(?:src|href|@import)\s*=?\s*["'(]?https?:""", body)
    # The token is behind the #, which no server sees.
    assert client.token.encode() not in client.ask("/")[1]


def test_a_span_is_saved_as_a_log_and_has_a_report(client: Client, log: Path) -> None:
    first, last = client.frame()["kept_ms"]
    status, body, _ = client.ask("/api/save", "POST", {"from_ms": first, "until_ms": last})
    assert status == 200, body
    answer = json.loads(body)
    assert answer["problem"] is None
    assert read(answer["path"]).records.num_rows == read(log).records.num_rows
    status, body, _ = client.ask("/api/report", "POST", {"key": answer["key"]})
    assert status == 200, body
    # Its address is a secret of its own; its scripts are kept from this server.
    status, body, headers = client.ask(json.loads(body)["url"], X_Parshall_Token="")
    assert (status, b"<!doctype html>" in body[:100].lower()) == (200, True)
    assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in headers["Content-Security-Policy"]


def test_a_link_among_the_files_of_a_log_is_not_saved(log: Path, tmp_path: Path) -> None:
    directory, secret, saved = tmp_path / "logs", tmp_path / "secret", tmp_path / "saved"
    directory.mkdir()
    saved.mkdir()
    log.rename(directory / "day.000001.arrow")
    secret.write_text("of another user")
    (directory / "day.000002.arrow").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        Saved(saved).save(directory, 0, 1 << 62)
    assert list(saved.iterdir()) == []


@pytest.mark.parametrize("body", [{}, [], "x", {"from_ms": "nan", "until_ms": 1}, {"from_ms": 1e300, "until_ms": 2}])
def test_a_span_that_is_none_is_refused(client: Client, body: Any, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    status, text, _ = client.ask("/api/save", "POST", body)
    assert (status, text.count(b"\n")) == (400, 1)
    assert sorted(tmp_path.iterdir()) == before
    assert client.ask("/api/report", "POST", {"key": "../../etc"})[0] == 400


def test_a_hundred_clients_and_some_that_never_read(client: Client) -> None:
    deaf = []
    for _ in range(20):
        connection = socket.create_connection(("127.0.0.1", client.port))
        request = (
            f"GET /api/frame?count=500 HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nX-Parshall-Token: {client.token}"
        )
        connection.sendall(f"{request}\r\n\r\n".encode() * 50)
        deaf.append(connection)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(client.ask("/api/frame")[0])) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in deaf:
        connection.close()
    assert answers == [200] * 100


def test_connections_without_a_request_do_not_lock_the_page_out(
    client: Client, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(live_server, "_REQUEST_S", 0.5)
    idle = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(300)]
    # Half a request is none.
    idle[0].sendall(b"GET / HTTP/1.1\r\n")
    until("they are ended, and the page answers again", lambda: client.ask("/api/frame")[0] == 200)
    for connection in idle:
        connection.settimeout(20)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b"" or connection is idle[0]
        connection.close()


def test_what_is_no_http_is_refused_and_the_server_stays(client: Client) -> None:
    for junk in (
        b"\x16\x03\x01\x02\x00" * 100,
        b"GET /\r\n" * 10,
        b"A" * 200_000,
        b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", client.port)) as connection, contextlib.suppress(OSError):
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert client.frame()["lines"] == 300


def test_a_port_that_is_taken_is_one_line() -> None:
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"--listen 127.0.0.1:{port}: Address already in use; name another"):
            listening("127.0.0.1", port)


def test_a_token_file_is_made_for_its_owner_only_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_in(path)
    assert (path.stat().st_mode & 0o777, token_in(path)) == (0o600, token)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others can read it"):
        token_in(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(UsageError, match="expected 32 to 128 letters"):
        token_in(path)
    link = tmp_path / "fifo"
    link.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="not a regular file"):
        token_in(link)
    for name, reason in ((tmp_path, "Is a directory"), (tmp_path / "no/such", "No such file or directory")):
        with pytest.raises(UsageError, match=f"^--token-file {name}: {reason}; name another file$"):
            token_in(name)


def test_control_groups_have_the_names_that_people_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_DOCKER", "_PODMAN", "_KUBERNETES"):
        monkeypatch.setattr(cgroups, name, tmp_path / name)
    number = "0123456789ab" + 52 * "c"

    def shown(cgroup: str) -> str:
        return unit_of(cgroup, cgroups.ContainerNames())

    assert shown("/system.slice/nginx.service") == "nginx.service"
    assert shown(f"/system.slice/docker-{number}.scope") == "0123456789ab"
    assert shown(f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{number}.scope") == "0123456789ab"
    assert shown(f"/docker/{number}") == "0123456789ab"
    # Below the group of a runtime may be those of the container itself, and of a service its workers.
    for inside in ("container", "init.scope", "system.slice/nginx.service"):
        assert shown(f"/machine.slice/libpod-{number}.scope/{inside}") == "0123456789ab"
    assert shown("/system.slice/web.service/supervise") == "web.service"
    assert shown("/user.slice/user-0.slice/session-1.scope") == "session-1.scope"
    assert shown("/mine/a") == "a"
    assert shown("") == shown("/") == ""
    # What a runtime calls it is better known.
    (tmp_path / "_KUBERNETES").mkdir()
    (tmp_path / "_KUBERNETES" / f"shop-7d4f_sales_till-{number}.log").touch()
    (tmp_path / "_KUBERNETES" / "notes.txt").touch()
    assert shown(f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{number}.scope") == "shop-7d4f/till"
    (tmp_path / "_DOCKER" / number).mkdir(parents=True)
    (tmp_path / "_DOCKER" / number / "config.v2.json").write_text(json.dumps({"Name": f"/{EVIL}"}))
    assert shown(f"/docker/{number}") == printable(EVIL)


def test_files_of_runtimes_are_not_read_at_each_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(cgroups, "_container_names", lambda: looks.append(1) or iter(()))
    names = cgroups.ContainerNames()
    assert {names.of_group(f"/docker/{flow:064x}") for flow in range(50)} == {12 * "0"}
    assert len(looks) == 1 and names.of_group("/system.slice/nginx.service") is None


def test_ctrl_c_amid_a_look_ends_the_thread_without_a_traceback(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars raises it in the thread that computes, where Python itself raises none."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    watch = Watch(log)
    monkeypatch.setattr(watch._history, "add", interrupted)
    with watch:
        watch._thread.join(20)
        assert not watch._thread.is_alive()
    assert said == []
