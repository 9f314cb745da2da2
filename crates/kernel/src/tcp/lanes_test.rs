//! A packet on a CPU without a lane is dropped and counted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use parshall_core::abi::TCP_HOOK_COUNT;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::hooks::TcpHooks;
use super::options::{Directions, TcpLogOptions};
use crate::cgroup;

/// Of `enum tcp_hook`.
const INGRESS: usize = 0;
const EGRESS: usize = 1;
const FLOW: usize = TCP_HOOK_COUNT - 1;

/// A CPU beyond the first that this thread may use.
fn another_cpu() -> Option<usize> {
    let allowed = sched_getaffinity(None).unwrap();
    (1..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu))
}

#[test]
fn a_cpu_that_came_later_drops_and_counts() {
    let cpu = another_cpu();
    if !rustix::process::geteuid().is_root() || cpu.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "this test needs root and two CPUs, and under CI it must not be skipped"
        );
        eprintln!("skipped: this needs root and two CPUs");
        return;
    }
    let mut only = CpuSet::new();
    only.set(cpu.unwrap());
    sched_setaffinity(None, &only).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TcpLogOptions {
        ports: vec![listener.local_addr().unwrap().port()],
        ..TcpLogOptions::default()
    };
    let host = cgroup::resolve(None).unwrap();
    let mut hooks = TcpHooks::load_for(&options, host.id, 1, false).unwrap();
    hooks.attach(&host.path, Directions::Both).unwrap();
    // Loopback receives a packet on the CPU that sent it.
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for _ in 0..10 {
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
    }
    hooks.detach();

    let counters = hooks.counters();
    for hook in [INGRESS, EGRESS] {
        let seen = counters[hook].seen - counters[hook].filtered;
        assert!(seen >= 10, "{seen} packets at hook {hook}");
        assert_eq!(counters[hook].dropped, seen, "hook {hook}");
    }
    assert!(counters[FLOW].seen > 0);
    assert_eq!(counters[FLOW].dropped, counters[FLOW].seen);
}
