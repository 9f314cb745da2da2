"""What a simulated customer costs: Parshall's models beside SimPy and Ciw, and the whole router.

Run: ``benches/run queueing`` or ``.venv/bin/python benches/queueing.py [--rounds 5] [--archive]``. Each round runs
every simulator once, in an order that rotates, each on one core; processor time is counted, over customers that are
served. Required: at least 40 times SimPy and 80 times Ciw, 2 million packets a second through ``bsd-router``, and
the same cost per event and the same memory for 10^5 packets and for 10^8, each length in a process of its own.
Prints a table and one JSON object. Takes some three minutes.

models
    m/m/1        load 0.8
    preemptive   two classes, load 0.4 each, preemptive resume, exponential services
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import ciw
import simpy
from _record import finish, parser_for

from parshall.model import Model, parameters, run

CUSTOMERS = {"parshall": 1_000_000, "simpy": 20_000, "ciw": 10_000}
REQUIRED = {"simpy": 40, "ciw": 80}
ROUTER_REQUIRED_PPS = 2e6
# Just below saturation: nothing is lost, everything is done for every packet.
ROUTER_MBPS = 220
# Packets of a run, and how often it is measured in a round; the longest once for all rounds. Runs of the same length
# differ by tens of percent on a machine that is shared, so only the median of many is meaningful.
LENGTHS = {100_000: 6, 1_000_000: 6, 10_000_000: 1}
LONGEST = 100_000_000
# The length by whose median the packets per second are judged: long enough that the start of a run does not count.
JUDGED = 1_000_000
# Limits of the longest run relative to the shortest: additional MiB, and ratio of the cost per event.
GROWTH_MAX_MIB = 16
COST_MAX = 1.15


def parshall_model(classes: int) -> Model:
    """Return the station with one or two classes; the unit of time is 1 us."""
    model = Model("bench").station("s", kind="preemptive-resume")
    for number in range(classes):
        model.source(f"c{number}", f"exponential:mean={1000 * classes / 0.8}", f"q{number}")
        model.queue(f"q{number}", "s", "exponential:mean=1000", "out", priority=number)
    return model


def with_parshall(classes: int, customers: int) -> int:
    """Simulate; return the customers served."""
    results = run(parshall_model(classes), duration_s=customers / 0.8 / 1e6, warm_up_s=0, replications=1, threads=1)
    return sum(sink["packets"] for sink in results.data["replications"][0]["sinks"])


def with_simpy(classes: int, customers: int) -> int:
    """Simulate; return the customers served."""
    environment = simpy.Environment()
    station = simpy.PreemptiveResource(environment) if classes > 1 else simpy.Resource(environment)
    draw = random.Random(1)
    served = 0

    def customer(priority: int) -> Iterator[Any]:
        nonlocal served
        left = draw.expovariate(1.0)
        while left > 0:
            with station.request(priority=priority) if classes > 1 else station.request() as request:
                yield request
                began = environment.now
                try:
                    yield environment.timeout(left)
                    left = 0
                except simpy.Interrupt:
                    left -= environment.now - began
        served += 1

    def source(priority: int) -> Iterator[Any]:
        while True:
            yield environment.timeout(draw.expovariate(0.8 / classes))
            environment.process(customer(priority))

    for priority in range(classes):
        environment.process(source(priority))
    environment.run(until=customers / 0.8)
    return served


def with_ciw(classes: int, customers: int) -> int:
    """Simulate; return the customers served."""
    rate = 0.8 / classes
    names = [f"c{number}" for number in range(classes)]
    arguments: dict[str, Any] = {
        "arrival_distributions": {name: [ciw.dists.Exponential(rate)] for name in names},
        "service_distributions": {name: [ciw.dists.Exponential(1.0)] for name in names},
        "number_of_servers": [1],
    }
    if classes > 1:
        arguments["priority_classes"] = ({name: number for number, name in enumerate(names)}, ["resume"])
    ciw.seed(1)
    simulation = ciw.Simulation(ciw.create_network(**arguments))
    simulation.simulate_until_max_time(customers / 0.8)
    return len(simulation.nodes[-1].all_individuals)


SIMULATORS: dict[str, Callable[[int, int], int]] = {"parshall": with_parshall, "simpy": with_simpy, "ciw": with_ciw}


def cost_ns(simulator: str, classes: int) -> float:
    """Return the processor time per customer."""
    begin = time.process_time()
    served = SIMULATORS[simulator](classes, CUSTOMERS[simulator])
    return (time.process_time() - begin) / served * 1e9


def router_run(packets: int) -> dict[str, float]:
    """Send so many packets through the whole router; return what it cost, and the memory of this process."""
    model = parameters("bsd-router", {"load_mbps": ROUTER_MBPS}).build()
    rate_pps = sum(1e9 / float(source["gap_ns"].split("=")[1][:-2]) for source in model.sources if source["size_bytes"])
    # The libraries load on the first call.
    run(model, duration_s=0.01, warm_up_s=0, replications=1, threads=1)
    begin = time.process_time()
    results = run(model, duration_s=packets / rate_pps, warm_up_s=0, replications=1, threads=1)
    spent_s = time.process_time() - begin
    replication = results.data["replications"][0]
    return {
        "packets": replication["balance"]["entered"],
        "pps": replication["balance"]["entered"] / spent_s,
        "event_ns": spent_s / replication["events"] * 1e9,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def router_apart(packets: int) -> dict[str, float]:
    """Do so in a process of its own, whose memory is that of this run."""
    command = [sys.executable, __file__, "--router", str(packets)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Run everything; return raw numbers."""
    raw: dict[str, dict[str, list[float]]] = {}
    router: dict[str, list[dict[str, float]]] = {}
    names = list(SIMULATORS)
    for number in range(rounds):
        for model, classes in (("m/m/1", 1), ("preemptive", 2)):
            for name in names[number % 3 :] + names[: number % 3]:
                raw.setdefault(model, {}).setdefault(name, []).append(cost_ns(name, classes))
        # In turn, so that slow changes of the machine affect all lengths alike.
        for turn in range(max(LENGTHS.values())):
            for packets in (packets for packets, times in LENGTHS.items() if turn < times):
                router.setdefault(str(packets), []).append(router_apart(packets))
        if number == rounds // 2:
            router[str(LONGEST)] = [router_apart(LONGEST)]
    return {"customer_ns": raw, "router": router}


def main() -> int:
    """Measure, print, judge."""
    parser = parser_for(__doc__, rounds=5)
    parser.add_argument("--router", type=int, metavar="PACKETS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.router:
        print(json.dumps(router_run(arguments.router)))
        return 0
    report = measure(arguments.rounds)
    failed = []
    for model, costs in report["customer_ns"].items():
        own = statistics.median(costs["parshall"])
        print(f"{model:12} parshall {own:9,.0f} ns a customer")
        for name, required in REQUIRED.items():
            # Each round's ratio: neighbours in time, so that slow changes of the machine cancel.
            ratios = [theirs / ours for theirs, ours in zip(costs[name], costs["parshall"], strict=True)]
            ratio = statistics.median(ratios)
            print(f"{'':12} {name:8} {statistics.median(costs[name]):9,.0f} ns, {ratio:.0f} times (need: {required})")
            if ratio < required:
                failed.append(f"{model}: {ratio:.0f} times {name}")
    runs = report["router"]
    medians = {
        packets: {key: statistics.median(one[key] for one in ones) for key in ("pps", "event_ns", "peak_mib")}
        for packets, ones in runs.items()
    }
    print(f"bsd-router (need: {ROUTER_REQUIRED_PPS / 1e6:g} million packets/s, by the median of {JUDGED:,} packets)")
    for packets, median in medians.items():
        rates = [one["pps"] / 1e6 for one in runs[packets]]
        spread = "one run"
        if len(rates) > 1:
            low, _, high = statistics.quantiles(rates, method="inclusive")
            spread = f"{len(rates)} runs {min(rates):.2f} to {max(rates):.2f}, half of them {low:.2f} to {high:.2f}"
        print(
            f"  {int(packets):11,} packets: {median['pps'] / 1e6:.2f} million packets/s ({spread}), "
            f"{median['event_ns']:.1f} ns an event, {median['peak_mib']:.1f} MiB at most"
        )
    pps = medians[str(JUDGED)]["pps"]
    if pps < ROUTER_REQUIRED_PPS:
        failed.append(f"bsd-router: {pps / 1e6:.2f} million packets/s")
    short, long = medians[str(min(LENGTHS))], medians[str(LONGEST)]
    if long["peak_mib"] - short["peak_mib"] > GROWTH_MAX_MIB:
        failed.append(f"memory grew by {long['peak_mib'] - short['peak_mib']:.0f} MiB")
    if long["event_ns"] > COST_MAX * short["event_ns"]:
        failed.append(f"an event of the longest run cost {long['event_ns'] / short['event_ns']:.2f} times as much")
    finish("queueing", report, {name: version(name) for name in ("parshall", "simpy", "ciw")}, arguments.archive)
    for failure in failed:
        print(f"not reached: {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
