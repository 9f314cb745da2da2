"""What an honest reader loses at a million packets a second, beside a hostile member of its ring and without one.

Run as root: ``benches/run hostile_member`` or ``.venv/bin/python benches/hostile_member.py [--minutes 10] [--pps 1M]``.
Two hosts on one cable; ``parshall gen`` sends from one CPU, on which the ring's programs run, too; the reader
has the other CPU, and so has the member, which sends messages of the tests' protocol fuzzer
(``tests/kernel/hostile_member.py``). Minutes with it and minutes without take turns. Prints one JSON object with the
ledger's counts of each minute; fails when the share lost with the member is above that without by more than chance
explains (permutation test of the minutes' means, one-sided, 1 %), or a ledger does not balance.
"""

import grp
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from _record import finish, parser_for, version_of

from parshall.capture import rings
from parshall.testbed import Link, Testbed

PARSHALL = Path(sys.executable).with_name("parshall")
MEMBER = Path(__file__).resolve().parents[1] / "tests" / "kernel" / "hostile_member.py"
MEMBER_GROUP = grp.getgrgid(65534).gr_name
SLOT_S = 60


def p_value(attacked: list[float], alone: list[float]) -> float:
    """Return the p-value of a one-sided permutation test.

    It is the fraction of divisions of the minutes into two groups whose first group lost as much more.
    """
    every = attacked + alone
    heaps = itertools.combinations(every, len(attacked))
    observed, heap_sums = sum(attacked), [sum(heap) for heap in heaps]
    return sum(heap_sum >= observed * (1 - 1e-12) for heap_sum in heap_sums) / len(heap_sums)


def slot(link: Link, pps: str, seconds: float, *, is_attacked: bool) -> dict[str, Any]:
    """Capture what is sent for a while; return what became of it."""
    ring = f"bench-{os.getpid()}"
    sender, receiver = (end.host for end in link.ends)
    last = (os.cpu_count() or 1) - 1
    capture = receiver.popen(
        [
            PARSHALL, "capture", "-i", link.interface(receiver), "--direction", "in", "--name", ring, "-s", "96",
            "--group", MEMBER_GROUP, "-w", "/dev/null", "--json", "-q",
        ],
        cpu=last, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not any(one["name"] == ring and one["subscribers"] for one in rings()):
        os.sched_yield()
    member = None
    if is_attacked:
        member = subprocess.Popen(
            ["taskset", "-c", str(last), sys.executable, MEMBER, ring, str(seconds)], stdout=subprocess.PIPE, text=True
        )
    generate = [PARSHALL, "gen", "-i", link.interface(sender), "--pps", pps, "-d", str(seconds), "--json", "-q"]
    sent = json.loads(sender.run([str(word) for word in generate]).stdout)
    output, answered = map(int, member.communicate()[0].split()) if member else (0, 0)
    capture.send_signal(signal.SIGINT)
    ledger = json.loads(capture.communicate()[0])["ledger"]
    (account,) = ledger["subscribers"][0]["interfaces"]
    lost = sum(account["lost"].values())
    return {
        "is_attacked": is_attacked,
        "sent": sent["sent"],
        "seen": account["seen"],
        "lost": lost,
        "lost_share": lost / max(account["seen"], 1),
        "balances": account["seen"] == account["filtered"] + account["thinned"] + account["logged"] + lost,
        "messages": output,
        "answers": answered,
    }


def main() -> int:
    """Measure in turns; return 1 when the member made a difference."""
    parser = parser_for(__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="with the member, and as many without")
    parser.add_argument("--pps", default="1M")
    arguments = parser.parse_args()
    rounds = max(round(arguments.minutes), 1)
    seconds = arguments.minutes * SLOT_S / rounds
    slots = []
    with Testbed() as bed:
        sender, receiver = bed.host("sender", cpu=0), bed.host("receiver")
        link = bed.link(sender, receiver, backend="veth")
        # Redirected frames reach a veth only where its peer runs NAPI.
        receiver.run(["ethtool", "-K", link.interface(receiver), "gro", "on"])
        for number in range(rounds):
            # The order alternates.
            for is_attacked in (number % 2 == 0, number % 2 == 1):
                slots.append(slot(link, arguments.pps, seconds, is_attacked=is_attacked))
                print(slots[-1], file=sys.stderr, flush=True)
    attacked, alone = ([one["lost_share"] for one in slots if one["is_attacked"] is wanted] for wanted in (True, False))
    p = p_value(attacked, alone)
    results = {
        "minutes": arguments.minutes,
        "pps": arguments.pps,
        "lost_share_with": sum(attacked) / len(attacked),
        "lost_share_without": sum(alone) / len(alone),
        "p": p,
        "messages": sum(one["messages"] for one in slots),
        "slots": slots,
    }
    finish("hostile_member", results, {"taskset": version_of("taskset", "--version")}, arguments.archive)
    return 0 if p > 0.01 and all(one["balances"] for one in slots) else 1


if __name__ == "__main__":
    sys.exit(main())
