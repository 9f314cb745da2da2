"""The peak of a command's resident memory, measured by a small process: a child begins with its parent's."""

import json
import subprocess
import sys

MEASURE = """
import json, os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
said = child.stdout.read()
_, status, usage = os.wait4(child.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), said, usage.ru_maxrss]))
"""


def peak_memory(*command) -> tuple[int, str, float]:
    """Exit status, what was said, and the peak of the resident memory in MiB."""
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, command)], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    status, said, peak_kib = json.loads(measured.stdout)
    return status, said, peak_kib / 1024
