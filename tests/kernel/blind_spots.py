"""Where this machine's kernel runs no tracing programs.

Some kernels hide the first process from everybody, root among them. One that was looked at runs no tracing programs, of
whomever, in a softirq that interrupts a thread of that process: ftrace sees these events, eBPF does not, and nothing
counts them. So packets and retransmissions that a timer or a deferred softirq sends at such a moment are unseen.
"""

from pathlib import Path


def hides_first_process() -> bool:
    """Whether root cannot see the first process's namespaces."""
    try:
        Path("/proc/1/ns/net").readlink()
    except PermissionError:
        return True
    return False


def unseen_max(events: int) -> int:
    """Return how many of so many events of softirqs may be unseen on this machine."""
    return 1 + events // 100 if hides_first_process() else 0
