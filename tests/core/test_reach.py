"""Which interfaces the generator asks for before it floods them."""

import ipaddress
import re

import pytest

from parshall.instruments.generate.reach import UNKNOWN_NAMESPACE, Link, Namespace, reasons_to_confirm, routes_default

HOST, HERE, THERE, FARTHER = 1, 10, 20, 30
LO = Link("lo", None, is_loopback=True)


def veth(other=2, other_namespace=None, **more):
    return Link("v0", "veth", other=other, other_namespace=other_namespace, **more)


def reasons(start, *others, beyond=None, farther=(), routes=(), home=HERE):
    """Of interface 2 (`start`), with `others` from index 3 on, and those of the namespaces that it may lead to."""
    here = dict(enumerate((LO, start, *others), 1))
    spaces = {
        home: Namespace(home, "here", home == HOST, here),
        THERE: Namespace(THERE, "there", False, dict(enumerate((LO, *(beyond or ())), 1))),
        FARTHER: Namespace(FARTHER, "farther", False, dict(enumerate((LO, *farther), 1))),
    }
    spaces.setdefault(HOST, Namespace(HOST, "host", True, {1: LO}))
    return reasons_to_confirm(spaces[home], 2, spaces.get, routes)


BACK = veth(2, HERE)
ETH0 = Link("eth0", None)


@pytest.mark.parametrize(
    "situation",
    [
        reasons(veth(2, THERE), beyond=[BACK]),
        # The host may send to a test namespace.
        reasons(veth(2, THERE), ETH0, home=HOST, beyond=[veth(2, HOST)]),
        # A router, and what is behind it, with the tunnels that every namespace has.
        reasons(
            veth(2, THERE),
            beyond=[BACK, veth(2, FARTHER), Link("br0", "bridge", has_addresses=True), Link("sit0", "sit")],
            farther=[veth(3, THERE)],
        ),
        reasons(Link("v0.5", "vlan", other=3), veth(2, THERE), beyond=[BACK]),
        reasons(Link("m0", "macvlan", other=3), Link("d0", "dummy")),
        reasons(Link("vx0", "vxlan", other=3), veth(2, THERE), beyond=[BACK]),
        reasons(veth(2, THERE, master=3), Link("br0", "bridge"), beyond=[BACK]),
        reasons(Link("d0", "dummy"), home=HOST),
        # A pair in a namespace without a way out.
        reasons(veth(3), Link("v1", "veth", other=2)),
        # What others in the namespace have is not theirs.
        reasons(veth(2, THERE), ETH0, routes={3}, home=HOST),
    ],
)
def test_packets_within_test_namespaces_need_no_confirmation(situation):
    assert situation == []


@pytest.mark.parametrize(
    ("found", "pattern"),
    [
        (reasons(Link("lo", None, is_loopback=True)), "it is the loopback"),
        (reasons(ETH0), "it is not a test interface"),
        (reasons(Link("br0", "bridge")), "it is not a test interface"),
        (reasons(Link("tap0", "tun")), "it is not a test interface"),
        (reasons(veth(2, THERE), routes={2}), "a default route uses it"),
        # Above, below and beside it.
        (reasons(Link("m0", "macvlan", other=3), ETH0), "packets may leave the host through eth0"),
        (reasons(Link("v0.5", "vlan", other=3), veth(2, THERE), routes={3}), "a default route uses v0"),
        (reasons(veth(2, THERE), Link("v0.5", "vlan", other=2), routes={3}), "a default route uses v0.5"),
        (reasons(Link("m0", "macvlan", other=3), Link("v0.5", "vlan", other=4), ETH0), "leave the host through eth0"),
        (reasons(veth(2, THERE, master=3), Link("br0", "bridge"), routes={3}), "a default route uses br0"),
        (reasons(veth(2, THERE, master=3), Link("br0", "bridge", has_addresses=True)), "br0, .* has addresses"),
        (
            reasons(veth(2, THERE, master=3), Link("br0", "bridge"), Link("e1", None, master=3)),
            "leave the host through e1",
        ),
        (
            reasons(veth(2, THERE, master=3), Link("br0", "bridge"), Link("br0.7", "vlan", other=3), routes={4}),
            "a default route uses br0.7",
        ),
        (reasons(veth(2, THERE, master=3), Link("ovs", "openvswitch")), "may leave the host through ovs"),
        (reasons(veth(2, THERE, master=3), Link("bond0", "bond")), "it is a member of bond0"),
        (reasons(veth(2, THERE, master=3), Link("team0", "team")), "it is a member of team0"),
        # Behind its peer, its device or its tunnel.
        (reasons(veth(2, HOST)), "reach the network namespace of this host"),
        (reasons(veth(3), Link("v1", "veth", other=2), home=HOST), "reach the network namespace of this host"),
        (reasons(Link("m0", "macvlan", other=9, other_namespace=HOST)), "reach the network namespace of this host"),
        (reasons(Link("vx0", "vxlan"), home=HOST), "reach the network namespace of this host"),
        (reasons(Link("vx0", "vxlan", other=0, other_namespace=HOST)), "reach the network namespace of this host"),
        (reasons(Link("vx0", "vxlan"), veth(2, HOST)), "reach the network namespace of this host"),
        (reasons(Link("nk0", "netkit", other=2, other_namespace=HOST)), "reach the network namespace of this host"),
        (reasons(veth(2, UNKNOWN_NAMESPACE)), "reach a network namespace that cannot be found"),
        (reasons(veth(2, THERE), beyond=[BACK, ETH0]), "leave through eth0 of namespace there"),
        (reasons(veth(2, THERE), beyond=[BACK, Link("tap0", "tun")]), "leave through tap0 of namespace there"),
        (reasons(veth(2, THERE), beyond=[BACK, veth(2, FARTHER)], farther=[ETH0]), "through eth0 of namespace farther"),
        (reasons(veth(2, THERE), home=HOST, beyond=[veth(2, HOST), veth(3, HOST)]), "reach the network namespace"),
        (reasons(veth(2, THERE), beyond=[BACK, veth(9, HOST)]), "reach the network namespace of this host"),
        (reasons(veth(2, THERE), beyond=[BACK, Link("m", "macvlan", None, None, None, 9, HOST)]), "of this host"),
    ],
)
def test_harmful_interfaces_need_confirmation(found, pattern):
    assert any(re.search(pattern, reason) for reason in found), found


@pytest.mark.parametrize(
    ("networks", "is_default"),
    [
        ("0.0.0.0/0", True),
        ("::/0", True),
        ("0.0.0.0/1 128.0.0.0/1", True),
        # The other half may leave by another interface.
        ("128.0.0.0/1", True),
        ("2000::/3", True),
        ("::/1", True),
        # As VPNs leave out their server, or the private networks.
        ("0.0.0.0/2 64.0.0.0/3 96.0.0.0/4 112.0.0.0/5 120.0.0.0/6", True),
        (" ".join(f"{number}.0.0.0/8" for number in range(1, 9)), True),
        ("", False),
        ("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15 127.0.0.0/8", False),
        ("224.0.0.0/4 ff00::/8 fe80::/64 fd00::/8", False),
        ("1.0.0.0/8 2a00::/12", False),
    ],
)
def test_a_default_route_is_known_in_parts(networks, is_default):
    assert routes_default([ipaddress.ip_network(text) for text in networks.split()]) is is_default
