//! What is said of interfaces and queue disciplines, beside what ip and tc print of them.

use std::collections::BTreeSet;
use std::process::Command;

use parshall_kernel::net::interface::{LinkSummary, links, qdiscs};

fn output(line: &str) -> Vec<u8> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().expect("a program"))
        .args(words)
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    output.stdout
}

fn printed(line: &str) -> Vec<serde_json::Value> {
    serde_json::from_slice(&output(line)).expect("a list in JSON")
}

#[test]
fn they_are_what_ip_and_tc_print() {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("CI").is_none(),
            "root is required under CI"
        );
        eprintln!("skipped: needs root");
        return;
    }
    // SAFETY: a plain system call without pointers; it concerns this thread and its children only.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "root may");
    for line in [
        "ip link set lo up",
        "ip link add near mtu 1400 type veth peer name far",
        "ip link set near up",
        "ip link add left type veth peer name right",
        "ip link set left up",
        "ip link set right up",
        "ip tuntap add a.long-name_15 mode tun",
        "tc qdisc add dev near root handle 5: tbf rate 1mbit burst 10k latency 50ms",
        "tc qdisc add dev near parent 5:1 pfifo limit 9",
    ] {
        output(line);
    }
    // More than one datagram of answers.
    for number in 0..30 {
        output(&format!(
            "ip link add many{number} type veth peer name more{number}"
        ));
    }

    let expected: Vec<_> = printed("ip -j -d link")
        .iter()
        .map(|link| LinkSummary {
            name: link["ifname"].as_str().unwrap().into(),
            mtu_bytes: Some(link["mtu"].as_u64().unwrap() as u32),
            kind: link["linkinfo"]["info_kind"].as_str().map(Into::into),
            state: link["operstate"].as_str().unwrap().to_lowercase(),
        })
        .collect();
    assert!(expected.len() >= 65, "{}", expected.len());
    let states: BTreeSet<_> = expected.iter().map(|link| link.state.as_str()).collect();
    assert!(
        states.is_superset(&["down", "unknown", "up"].into()),
        "{states:?}"
    );
    assert_eq!(links().unwrap(), expected);

    let found: Vec<_> = qdiscs()
        .unwrap()
        .into_iter()
        .map(|qdisc| (qdisc.kind, qdisc.parent))
        .collect();
    let expected: Vec<_> = printed("tc -j qdisc show")
        .iter()
        .map(|qdisc| {
            let parent = qdisc["parent"].as_str().map_or(u32::MAX, |parent| {
                let (major, minor) = parent.split_once(':').unwrap();
                let number = |text| u32::from_str_radix(text, 16).unwrap();
                number(major) << 16 | number(minor)
            });
            (qdisc["kind"].as_str().unwrap().to_owned(), parent)
        })
        .collect();
    assert!(expected.iter().any(|(kind, _)| kind == "pfifo"));
    assert_eq!(found, expected);
}
