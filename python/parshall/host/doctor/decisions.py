"""What the probes of a host mean for each command: pure functions, no kernel needed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class _Reason:
    """Why a command does not work in full: what is wrong with which probe, and of which command it is a need."""

    used: str
    probe: str
    detail: str
    remedy: str


@dataclass(frozen=True)
class _Finding:
    status: Status
    cause: Cause | None = None
    reasons: tuple[_Reason, ...] = ()


_WORKS = _Finding("works")
# The remedy of a probe for who is not root.
_OR_GRANT = "run as root, or grant"
_CAPABILITIES = re.compile(r"CAP_[A-Z_]+(?:, CAP_[A-Z_]+)*")


def decide(probes: Iterable[Probe], commands: Sequence[str]) -> list[Decision]:
    """Decide for each command whether it works on a host with these probes."""
    by_name = {probe.name: probe for probe in probes}
    return [_decision(command, _find(command, by_name)) for command in commands]


def _decision(command: str, finding: _Finding) -> Decision:
    why, remedies = [], _merged([reason.remedy for reason in finding.reasons])
    for used in dict.fromkeys(reason.used for reason in finding.reasons):
        of_used = [reason for reason in finding.reasons if reason.used == used]
        details = _merged([reason.detail for reason in of_used])
        for detail, template in details.items():
            names = dict.fromkeys(r.probe for r in of_used if r.probe and _template(r.detail) == template)
            why.append(": ".join(part for part in (used, ", ".join(names), detail) if part))
    remedy = "; ".join(filter(None, remedies))
    if RULES[command].is_for_root and remedy.startswith(_OR_GRANT):
        remedy = "run as root"
    return Decision(command, finding.status, finding.cause, "; ".join(why), remedy)


def _merged(texts: Iterable[str]) -> dict[str, str]:
    """Return distinct texts with their templates; of those that differ in capabilities only, one that has all."""
    capabilities: dict[str, dict[str, None]] = {}
    for text in texts:
        named = _CAPABILITIES.findall(text)
        capabilities.setdefault(_template(text), {}).update(dict.fromkeys(", ".join(named).split(", ")))
    return {template.replace("CAP", ", ".join(names)): template for template, names in capabilities.items()}


def _template(text: str) -> str:
    return _CAPABILITIES.sub("CAP", text)


def _find(command: str, probes: dict[str, Probe]) -> _Finding:
    rule = RULES[command]
    no_module = probes.get("installation.module")
    if no_module is not None and command != "doctor":
        return _of(no_module, "")
    analysis_only = probes.get("installation.kernel")
    needs_kernel = any(not name.startswith("installation.") for need in rule.needs for name in need.one_of)
    if analysis_only is not None and (needs_kernel or rule.uses):
        return _of(analysis_only, "")
    found = [*(_find_need(need, probes) for need in rule.needs)]
    found += [_find_optional(optional, probes) for optional in rule.optional]
    for used in rule.uses:
        other = _find(used, probes)
        found.append(replace(other, reasons=tuple(replace(each, used=used) for each in other.reasons)))
    return _worst(found)


def _of(probe: Probe, name: str, status: Status = "cannot") -> _Finding:
    return _Finding(status, probe.cause, (_Reason("", name, probe.detail, probe.remedy),))


def _worst(found: Sequence[_Finding]) -> _Finding:
    """Return the worst finding, with all reasons of its status."""
    statuses: tuple[Status, ...] = ("cannot", "degraded")
    for status in statuses:
        bad = [finding for finding in found if finding.status == status]
        if bad:
            # The most surprising cause comes first.
            causes = {finding.cause for finding in bad}
            order: tuple[Cause, ...] = ("broken", "forbidden", "unsupported", "not installed")
            cause = next(cause for cause in order if cause in causes)
            return _Finding(status, cause, tuple(reason for finding in bad for reason in finding.reasons))
    return _WORKS


def _find_need(need: Need, probes: dict[str, Probe]) -> _Finding:
    tried = [_probe(name, probes) for name in need.one_of]
    usable = next((probe for probe in tried if probe.status != "cannot"), None)
    first = tried[0]
    if usable is None:
        reasons = tuple(_Reason("", probe.name, probe.detail, first.remedy) for probe in tried)
        return _Finding("cannot", first.cause, reasons)
    if usable is not first and need.consequence:
        why = f"{first.name} cannot be used, so {need.consequence}"
        return _Finding("degraded", first.cause, (_Reason("", "", why, first.remedy),))
    return _of(usable, usable.name, "degraded") if usable.status == "degraded" else _WORKS


def _find_optional(optional: Need, probes: dict[str, Probe]) -> _Finding:
    probe = _probe(optional.one_of[0], probes)
    if probe.status == "works":
        return _WORKS
    why = f"{optional.consequence} ({probe.name})"
    return _Finding("degraded", probe.cause, (_Reason("", "", why, probe.remedy),))


def _probe(name: str, probes: dict[str, Probe]) -> Probe:
    """Return a probe; if the installation has no probes, the reason."""
    if name in probes:
        return probes[name]
    reason = probes.get("installation.module") or probes.get("installation.kernel")
    if reason is not None:
        return reason
    return Probe(name, "cannot", "broken", "was not probed", "report this as a bug")
