"""What the probes of a host mean for each command: pure functions, no kernel needed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parshall.host.commands import COMMANDS, FEATURES, Need
from parshall.host.doctor.probes import Cause, Probe, Status


@dataclass(frozen=True)
class Decision:
    """Whether a command works on this host, the reason if not in full, and the remedy."""

    command: str
    status: Status
    cause: Cause | None
    why: str
    remedy: str


# What each command and feature needs.
RULES = {name: command.rule for name, command in COMMANDS.items()} | FEATURES


def decide(probes: Iterable[Probe], commands: Sequence[str]) -> list[Decision]:
    """Decide for each command whether it works on a host with these probes."""
    by_name = {probe.name: probe for probe in probes}
    return [_decide_one(command, by_name) for command in commands]


def _decide_one(command: str, probes: dict[str, Probe]) -> Decision:
    rule = RULES[command]
    no_module = probes.get("installation.module")
    if no_module is not None and command != "doctor":
        return Decision(command, "cannot", no_module.cause, no_module.detail, no_module.remedy)
    analysis_only = probes.get("installation.kernel")
    if analysis_only is not None and (rule.needs or rule.uses):
        return Decision(command, "cannot", analysis_only.cause, analysis_only.detail, analysis_only.remedy)
    found = [*(_decide_need(command, need, probes) for need in rule.needs)]
    found += [_decide_optional(command, optional, probes) for optional in rule.optional]
    for used in rule.uses:
        other = _decide_one(used, probes)
        found.append(Decision(command, other.status, other.cause, f"{used}: {other.why}", other.remedy))
    return _worst(command, found)


def _worst(command: str, found: Iterable[Decision]) -> Decision:
    """Return the worst decision, with all distinct reasons and remedies of its status."""
    found = list(found)
    for status in ("cannot", "degraded"):
        bad = [decision for decision in found if decision.status == status]
        if not bad:
            continue
        # The most surprising cause comes first.
        causes = {decision.cause for decision in bad}
        cause = next(cause for cause in ("broken", "forbidden", "unsupported") if cause in causes)
        return Decision(
            command,
            bad[0].status,
            cause,
            "; ".join(dict.fromkeys(decision.why for decision in bad)),
            "; ".join(dict.fromkeys(decision.remedy for decision in bad)),
        )
    return Decision(command, "works", None, "", "")


def _decide_need(command: str, need: Need, probes: dict[str, Probe]) -> Decision:
    tried = [_probe(name, probes) for name in need.one_of]
    usable = next((probe for probe in tried if probe.status != "cannot"), None)
    first = tried[0]
    if usable is None:
        why = ", ".join(f"{probe.name}: {probe.detail}" for probe in tried)
        return Decision(command, "cannot", first.cause, why, first.remedy)
    if usable is not first:
        why = f"{first.name} cannot be used, so {need.consequence}" if need.consequence else ""
        if why:
            return Decision(command, "degraded", first.cause, why, first.remedy)
    if usable.status == "degraded":
        return Decision(command, "degraded", usable.cause, f"{usable.name}: {usable.detail}", usable.remedy)
    return Decision(command, "works", None, "", "")


def _decide_optional(command: str, optional: Need, probes: dict[str, Probe]) -> Decision:
    probe = _probe(optional.one_of[0], probes)
    if probe.status == "works":
        return Decision(command, "works", None, "", "")
    return Decision(command, "degraded", probe.cause, f"{optional.consequence} ({probe.name})", probe.remedy)


def _probe(name: str, probes: dict[str, Probe]) -> Probe:
    """Return a probe; if the installation has no probes, the reason."""
    if name in probes:
        return probes[name]
    reason = probes.get("installation.module") or probes.get("installation.kernel")
    if reason is not None:
        return reason
    return Probe(name, "cannot", "broken", "was not probed", "report this as a bug")
