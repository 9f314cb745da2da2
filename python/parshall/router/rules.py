"""Rules of a packet filter that each forwarded packet passes."""

import shutil

from parshall.errors import ParshallError
from parshall.testbed import Host

_TABLE = "parshall"


def add(router: Host, count: int) -> None:
    """Add nftables rules to a router's forwarding; none matches the test's packets.

    Raises
    ------
    ParshallError
        The program ``nft`` is missing, or the kernel has no nf_tables.
    """
    if count == 0:
        return
    if shutil.which("nft") is None:
        raise ParshallError(f"--rules {count}: the program nft is missing; install the package nftables")
    # Different addresses, so that nothing can merge them.
    rules = [f"    ip saddr 192.0.2.{number % 256} udp dport {1024 + number} drop" for number in range(count)]
    text = [f"table inet {_TABLE} {{", "  chain forward {", "    type filter hook forward priority 0; policy accept;"]
    router.run(["nft", "-f", "-"], input="\n".join([*text, *rules, "  }", "}"]) + "\n")
