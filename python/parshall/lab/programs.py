"""Programs that studies use: instruments of Parshall, iperf3, tcpdump."""

import sys
from collections.abc import Sequence
from typing import Any

from parshall.lab.study import INSTRUMENT, SERVER, WORKLOAD, Program

PARSHALL = (sys.executable, "-P", "-m", "parshall")
PORT = 5201
_STARTED = r"^parshall: .*started"
_ANSWERS = r"^parshall: echo: started"
_SERVES = r"^parshall: flows: started"
# iperf3 says this when its peer ends first, which is how its server ends.
_SERVER_STATUSES = (0, 1)
# Seconds that a workload may take longer than asked.
_SPARE_S = 60.0


def parshall(host: str, command: str, *arguments: object, name: str = "", **options: Any) -> Program:
    """Return an instrument: ``parshall COMMAND ... --json``; its result is what it prints.

    Parameters
    ----------
    host : str
        Its host.
    command : str
        Such as ``tcp`` or ``capture``.
    *arguments
        Further arguments.
    name : str
        Name of its results. Default: the command.
    **options
        Further arguments of `Program`.
    """
    words = [*PARSHALL, command, *map(str, arguments), "--json"]
    return Program(name or command, host, words, INSTRUMENT, **{"ready": _STARTED, **options})


def tcp_log(host: str, *arguments: object, name: str = "log", is_kept: bool = False, **options: Any) -> Program:
    """Return a TCP log of the sockets of a host; `is_kept`: the bundle keeps it as ``NAME.arrow``."""
    # The namespace of the command itself: the host's.
    own = ("--netns", "/proc/self/ns/net", "-o", f"{{directory}}/{name}.arrow" if is_kept else "/dev/null")
    return parshall(host, "tcp", *own, *arguments, name=name, **options)


def capture(host: str, *arguments: object, name: str = "capture", **options: Any) -> Program:
    """Return a capture at the first interface of a host, to ``/dev/null`` unless arguments say otherwise."""
    where = () if "--join" in arguments else ("-i", f"{{{host}.interface}}")
    file = () if "-w" in arguments else ("-w", "/dev/null")
    return parshall(host, "capture", *where, *file, *arguments, name=name, **options)


def tcpdump(host: str, *arguments: object, name: str = "tcpdump", **options: Any) -> Program:
    """Return a tcpdump at the first interface of a host, to ``/dev/null`` unless arguments say otherwise."""
    file = () if "-w" in arguments else ("-w", "/dev/null")
    # It gives its output to a user of its own otherwise: the host's /dev/null, too.
    words = ["tcpdump", "-Z", "root", "-n", "-i", f"{{{host}.interface}}", *file, *map(str, arguments)]
    return Program(
        name, host, words, INSTRUMENT, **{"ready": "listening on", "is_json": False, "is_drained": True, **options}
    )


def tcpdump_counts(errors: str) -> dict[str, int]:
    """Return what tcpdump says at its end: ``captured``, ``received`` and ``dropped`` packets."""
    found = {}
    for line in errors.splitlines():
        words = line.split()
        if words and words[0].isdigit():
            found["dropped" if "dropped by kernel" in line else words[2]] = int(words[0])
    return found


def iperf3(
    sender: str, receiver: str, duration_s: float, *arguments: object, flows: int = 1, port: int = PORT, name: str = ""
) -> list[Program]:
    """Return server and client of iperf3: TCP flows from a sender to a receiver.

    Parameters
    ----------
    sender, receiver : str
        The hosts.
    duration_s : float
        Seconds to send; rounded to whole ones, at least 1.
    *arguments
        Further arguments of the client.
    flows : int
        Number of parallel flows.
    port : int
        TCP port.
    name : str
        Name of the client's results; the server's has ``-server`` appended. Default: ``iperf3``.
    """
    name = name or "iperf3"
    # It takes whole seconds; 0 would be for ever.
    seconds = max(1, round(duration_s))
    server = ["iperf3", "--server", "--one-off", "--port", str(port), "--json"]
    client = ["iperf3", "--client", f"{{{receiver}.address}}", "--port", str(port), "--time", str(seconds)]
    more = ["--parallel", str(flows), "--interval", "0", "--json", *map(str, arguments)]
    return [
        Program(f"{name}-server", receiver, server, SERVER, ready=f"tcp:{port}", statuses=_SERVER_STATUSES),
        Program(name, sender, [*client, *more], WORKLOAD, end_s=duration_s + _SPARE_S),
    ]


def round_trips(asker: str, answerer: str, duration_s: float, name: str = "echo") -> list[Program]:
    """Return server and client of sparse UDP datagrams, which measure round-trip times: see `parshall.lab.echo`.

    Parameters
    ----------
    asker, answerer : str
        The hosts.
    duration_s : float
        Seconds to ask, 50 times a second.
    name : str
        Name of the results; the server's has ``-server`` appended.
    """
    module = [sys.executable, "-P", "-m", "parshall.lab.echo", f"{{{answerer}.address}}"]
    return [
        Program(f"{name}-server", answerer, [*module, "--answer"], SERVER, ready=_ANSWERS, is_json=False),
        Program(name, asker, [*module, "-d", f"{duration_s:g}s"], WORKLOAD, end_s=duration_s + _SPARE_S),
    ]


def open_flows(
    asker: str,
    server: str,
    duration_s: float,
    load_bps: float,
    *arguments: object,
    congestion: str = "",
    name: str = "",
) -> list[Program]:
    """Return server and client of TCP flows that begin at random times, whatever became of others.

    Their completion times are results, see `parshall.lab.flows`.

    Parameters
    ----------
    asker, server : str
        The hosts; the payload goes from the server to the asker.
    duration_s : float
        Seconds in which flows begin.
    load_bps : float
        Payload of all flows in the mean, bit/s.
    *arguments
        Further arguments of the client, such as ``--most``: see ``python -m parshall.lab.flows --help``.
    congestion : str
        Congestion control of the server. Default: the host's.
    name : str
        Name of the client's results; the server's has ``-server`` appended. Default: ``flows``.
    """
    name = name or "flows"
    module = [sys.executable, "-P", "-m", "parshall.lab.flows", f"{{{server}.address}}"]
    words = ["-d", f"{duration_s:g}s", "--load", f"{load_bps:.0f}", *map(str, arguments)]
    serve = [*module, "--serve", "--congestion", congestion]
    return [
        Program(f"{name}-server", server, serve, SERVER, ready=_SERVES, is_json=False),
        Program(name, asker, [*module, *words], WORKLOAD, end_s=duration_s + _SPARE_S),
    ]


def generate(host: str, duration_s: float, *arguments: object, name: str = "gen", **options: Any) -> Program:
    """Return a generator of packets at the first interface of a host."""
    words = [*PARSHALL, "gen", "-i", f"{{{host}.interface}}", *map(str, arguments), "--json", "-q"]
    return Program(name, host, words, WORKLOAD, **{"end_s": duration_s + _SPARE_S, **options})


def pause(host: str, duration_s: float) -> Program:
    """Return a workload that does nothing for some seconds: for runs without traffic."""
    return Program("pause", host, ["sleep", f"{duration_s:g}"], WORKLOAD, is_json=False, end_s=duration_s + _SPARE_S)


def iperf3_bps(result: Any) -> float:
    """Return the payload that the receiver of iperf3 got, in bit/s, from the client's result."""
    return float(result["end"]["sum_received"]["bits_per_second"])


def names(of: Sequence[Program], role: str) -> list[str]:
    """Return the names of the programs of a role."""
    return [program.name for program in of if program.role == role]
