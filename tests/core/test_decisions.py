"""What probes mean for commands: decided without a kernel."""

from dataclasses import replace

import pytest

from parshall.host.doctor import probes
from parshall.host.doctor.decisions import RULES, decide
from parshall.host.doctor.probes import Probe, probe_host


def host(**changes: str) -> list[Probe]:
    """Return a host where everything works, but for what is named: ``xdp__native="unsupported"``."""
    names = {name for rule in RULES.values() for need in (*rule.needs, *rule.optional) for name in need.one_of}
    found = {name: Probe(name, "works", None, "it works", "") for name in names}
    for key, cause in changes.items():
        name = key.replace("__", ".")
        assert name in found, f"no rule asks for {name}"
        found[name] = Probe(name, "cannot", cause, f"seen: {cause}", f"mend {name}")
    return list(found.values())


def decided(command: str, probes: list[Probe]):
    """Decide for one command."""
    [decision] = decide(probes, [command])
    return decision


@pytest.mark.parametrize("command", RULES)
def test_all_commands_work_if_all_probes_do(command):
    assert decided(command, host()).status == "works"


@pytest.mark.parametrize("command", ["convert", "model", "report", "doctor"])
def test_analysis_works_without_any_probe(command):
    nothing = [replace(probe, status="cannot", cause="unsupported") for probe in host()]
    assert decided(command, nothing).status == "works"


def test_a_missing_need_stops_a_command_and_names_the_remedy():
    decision = decided("tcp", host(map__sk_storage="unsupported"))
    assert (decision.status, decision.cause) == ("cannot", "unsupported")
    assert decision.why == "map.sk_storage: seen: unsupported"
    assert decision.remedy == "mend map.sk_storage"


def test_a_missing_optional_need_degrades_with_its_consequence():
    decision = decided("cpu", host(host__btf="unsupported"))
    assert decision.status == "degraded"
    assert decision.why.startswith("--hooks cannot be used")


def test_a_second_choice_degrades_and_no_choice_stops():
    assert decided("capture", host(attach__xdp_native="unsupported")).status == "degraded"
    nothing = host(attach__xdp_native="unsupported", attach__tcx="unsupported", attach__xdp_generic="unsupported")
    assert decided("capture", nothing).status == "cannot"


def test_an_equal_second_choice_is_no_loss():
    assert decided("testbed", host(qdisc__tbf="unsupported")).status == "works"
    assert decided("testbed", host(qdisc__tbf="unsupported", qdisc__htb="unsupported")).status == "cannot"


def test_a_command_inherits_from_what_it_uses():
    decision = decided("demo", host(network__namespace="forbidden"))
    assert (decision.status, decision.cause) == ("cannot", "forbidden")
    assert decision.why.startswith("testbed: network.namespace")


def test_each_missing_capability_and_each_remedy_is_named_once():
    def lacking(probe: Probe) -> Probe:
        missing = "CAP_BPF" if probe.name.startswith("map") else "CAP_BPF, CAP_NET_ADMIN"
        detail, remedy = (
            f"not tried: this process lacks {missing}",
            f"root lacks {missing} here; add it to the container",
        )
        return replace(probe, status="cannot", cause="forbidden", detail=detail, remedy=remedy)

    decision = decided("tcp", [lacking(probe) for probe in host()])
    assert decision.remedy == "root lacks CAP_BPF, CAP_NET_ADMIN here; add it to the container"
    assert decision.why.count("this process lacks CAP_BPF, CAP_NET_ADMIN") == 1
    assert "map.array_mmapable, map.sk_storage, program.cgroup_skb_ingress" in decision.why
    decision = decided("lab", [lacking(probe) for probe in host()])
    assert decision.remedy == "root lacks CAP_BPF, CAP_NET_ADMIN here; add it to the container"
    assert [part.partition(":")[0] for part in decision.why.split("; ")] == ["testbed", "tcp", "capture", "gen"]


def test_what_makes_namespaces_is_for_root_and_not_for_capabilities():
    def lacking(probe: Probe) -> Probe:
        remedy = "run as root, or grant the process CAP_BPF"
        return replace(probe, status="cannot", cause="forbidden", detail="this process lacks CAP_BPF", remedy=remedy)

    probes = [lacking(probe) for probe in host()]
    for command in ("lab", "demo", "router", "testbed"):
        assert decided(command, probes).remedy == "run as root"
    assert decided("tcp", probes).remedy == "run as root, or grant the process CAP_BPF"


def test_a_router_needs_no_discipline():
    probes = [replace(each, status="cannot", cause="unsupported") if "qdisc" in each.name else each for each in host()]
    assert decided("router", probes).status == "works"
    assert decided("lab", probes).status != "works"


def test_broken_is_reported_before_forbidden():
    decision = decided("tcp", host(map__sk_storage="forbidden", cgroup__v2="broken"))
    assert decision.cause == "broken"


def test_an_installation_for_analysis_says_so():
    analysis = [Probe("installation.kernel", "cannot", "unsupported", "for analysis only", "install anew")]
    assert decided("convert", analysis).status == "works"
    decision = decided("tcp", analysis)
    assert (decision.status, decision.cause, decision.remedy) == ("cannot", "unsupported", "install anew")
    assert "for analysis only" in decision.why


def test_a_command_without_its_package_says_how_to_install_it():
    decision = decided("mcp", host(installation__mcp="not installed"))
    assert (decision.status, decision.remedy) == ("cannot", "mend installation.mcp")
    analysis = Probe("installation.kernel", "cannot", "unsupported", "for analysis only", "install anew")
    assert decided("mcp", [analysis, Probe("installation.mcp", "works", None, "it is there", "")]).status == "works"


def test_a_package_is_found_or_not(monkeypatch):
    assert {probe.name: probe.status for probe in probe_host()}["installation.mcp"] == "works"
    monkeypatch.setattr(probes, "find_spec", lambda _: None)
    (probe,) = (probe for probe in probe_host() if probe.name == "installation.mcp")
    assert probe.status == "cannot" and probe.remedy == "install it: pip install 'mcp<3'"


def test_a_degraded_need_degrades():
    degraded = [
        replace(probe, status="degraded", cause="unsupported", detail="5 of 12", remedy="newer")
        if probe.name == "map.sk_storage"
        else probe
        for probe in host()
    ]
    assert decided("tcp", degraded).status == "degraded"
