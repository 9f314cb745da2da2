"""Commands that print JSON, one or more for each output: where they run, and their words.

`{tmp}` is a directory, `{log}` a TCP log, `{calibration}` a calibration, `{study}` a study that ran; `{left}` and
`{right}` are the ends of a link, in `{sender}` and `{receiver}`.
"""

ANYWHERE = {
    "version": ("--version", []),
    "convert": ("convert", ["{log}", "--to", "siftr-1.3", "-o", "{tmp}/x.txt"]),
    "models": ("model list", []),
    "parameters": ("model list", ["linux-napi"]),
    "run": ("model run", ["single-queue", "-d", "20ms", "--warm-up", "5ms"]),
    "batches": ("model run", ["bsd-router", "-d", "20ms", "--batches", "4"]),
    "sweep": ("model sweep", ["single-queue", "--over", "load_mbps=50,100", "-d", "10ms"]),
    "compare": ("model compare", ["{tmp}/trace.csv", "single-queue"]),
    "load": ("model plan", ["single-queue", "-d", "50ms"]),
    "least": ("model plan", ["single-queue", "--find", "cpu_mhz", "--load", "50mbps", "-d", "50ms"]),
    "named sizes": ("sizes", ["imix", "-o", "/dev/null"]),
    "counted sizes": ("sizes", ["{tmp}/sizes", "--from", "sizes", "--verify", "-o", "/dev/null"]),
    "cpu": ("cpu", ["-d", "100ms", "--interval", "20ms", "-a", "--per-cpu"]),
    "trim": ("cpu", ["trim", "{tmp}/profile"]),
    "show": ("show", ["{log}"]),
    "report": ("report", ["{log}", "-o", "{tmp}/report"]),
    "studies": ("lab list", []),
}
AS_ROOT = {
    "doctor": ("doctor", []),
    "tcp": ("tcp", ["-d", "200ms", "-o", "{tmp}/x.arrow"]),
    "capture": ("capture", ["-i", "{right}", "--netns", "{receiver}", "-d", "200ms", "-w", "{tmp}/x.pcapng"]),
    "sockets": (
        "capture",
        ["-i", "{right}", "--netns", "{receiver}", "-d", "200ms", "-w", "{tmp}/x.pcap", "--backend", "af-packet"],
    ),
    "rings": ("capture", ["--list"]),
    "gen": ("gen", ["-i", "{left}", "--netns", "{sender}", "-c", "200", "--pps", "10k"]),
    "burst": ("gen", ["-i", "{left}", "--netns", "{sender}", "-c", "200", "--backend", "af-packet"]),
    "receive": ("gen", ["-i", "{right}", "--netns", "{receiver}", "--receive", "-d", "200ms"]),
    "hooks": ("cpu", ["--hooks", "-d", "100ms", "--interval", "20ms"]),
    "path": ("path", ["-d", "1s", "--netns", "{sender}", "--noise", "--reads", "--by", "connection"]),
    "router": ("router measure", ["--pps", "5k", "-c", "1000"]),
    "capacity": ("router capacity", ["-d", "50ms", "--trials", "3", "--repeats", "1"]),
    "validation": (
        "model validate",
        ["{calibration}", "--traffic", "constant", "--loads", "0.3", "-c", "2000", "--repeats", "1"],
    ),
    "study": ("lab run", ["{tmp}/study.py", "-o", "{tmp}/out"]),
    "resumed": ("lab resume", ["{study}"]),
    "statements": ("lab published", ["{study}"]),
    "equal levels": ("lab check", ["{tmp}/study.py", "--copies", "2", "--repeats", "3", "-o", "{tmp}/check"]),
}
# Tests of their own.
BY_ITSELF = {"demo", "live", "model published", "model calibrate"}


def json_words(command: str) -> list[str]:
    """The words of a command that prints JSON; what follows may be the words of another program."""
    return [*command.split(), "--json"]
