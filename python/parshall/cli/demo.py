"""``parshall demo``: the tour: measure a testbed, print the ledgers, write a report."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

from parshall.cli import options
from parshall.cli.options import Accepted, time_option
from parshall.cli.report import TESTBED_FILE
from parshall.host.ledger_text import ledger_lines
from parshall.host.messages import say, show
from parshall.host.quantities import many
from parshall.host.stopping import Stopping, exiting_on_signals
from parshall.host.whole_file import write_whole

_DURATIONS = Accepted("at most 1h", lambda time_s: time_s <= 3600)


def command(
    output: options.OutputDirectory = Path("parshall-demo"),
    duration: Annotated[
        float, time_option("-d", "--duration", help="Time that the flows send: 90, 10m", accepted=_DURATIONS)
    ] = 10.0,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Let a CUBIC and a BBR flow compete on a testbed, log both ends, and write a report."""
    started_s = time.monotonic()

    def report_step(text: str) -> None:
        # With --json, standard output has only JSON, and standard error progress on a terminal only.
        if not quiet and (not as_json or sys.stderr.isatty()):
            stream = sys.stderr if as_json else sys.stdout
            show(f"{time.monotonic() - started_s:5.1f} s  {text}", file=stream)

    from parshall.lab.demo import measure

    with Stopping() as stopping:
        measurement = measure(output, duration, progress=report_step, stopping=stopping)
    # What repeats it is not a log's own command, which was run on the testbed.
    testbed = {**measurement.testbed, "command_line": sys.argv}
    write_whole(Path(TESTBED_FILE), json.dumps(testbed, indent=2), below=output)
    if not as_json and not quiet:
        for name, summary in measurement.logs.items():
            show("", f"{name}: {summary['log']}, {many(summary['flows'], 'flow')}")
            show(*ledger_lines(summary["ledger"]))
        show()

    report_step("Drawing the figures and writing the report")
    # Imported late: the drawing libraries must not load while the flows run.
    from parshall.instruments.tcp_log import read
    from parshall.report import write_report
    from parshall.report.links import links

    for link in links(measurement.testbed):
        for warning in link.warnings:
            say("demo", warning)

    controls = [str(flow["congestion_control"]).upper() for flow in measurement.flows]
    with exiting_on_signals():
        report = write_report(
            {name: read(summary["log"]) for name, summary in measurement.logs.items()},
            output,
            f"{' against '.join(controls)} through one bottleneck",
            testbed=testbed,
        )
    if as_json:
        show(
            json.dumps(
                {
                    "report": str(report),
                    "flows": measurement.flows,
                    "logs": measurement.logs,
                    "testbed": measurement.testbed,
                }
            )
        )
    else:
        report_step(f"The testbed is removed. Report: {report}")
    return 0
