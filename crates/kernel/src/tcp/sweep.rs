//! Walks of the kernel over sockets, by programs that it runs for each.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;

use libbpf_sys as sys;

use crate::net::interface;
use crate::programs::calls;

/// A walk of the kernel over its sockets; what it finds comes through the flow ring, so it must be read meanwhile.
pub struct Sweep(File);

impl Sweep {
    /// One in the network namespace of the calling thread, where its kind has one.
    pub(super) fn new(link: BorrowedFd<'_>) -> io::Result<Self> {
        calls::create_iterator(link).map(|iterator| Self(iterator.into()))
    }

    /// Walks to the end.
    pub fn run(mut self) -> io::Result<()> {
        io::copy(&mut self.0, &mut io::sink()).map(drop)
    }
}

/// Walks that together come to all sockets.
pub struct Sweeps {
    /// They are run one after the other.
    pub walks: Vec<Sweep>,
    /// Whether no network namespace is left out.
    pub is_whole: bool,
}

/// Whether the kernel lets a program walk over the elements of a map; some hosts forbid it.
pub(super) fn walks_maps() -> bool {
    // SAFETY: the name is a string that ends with a zero byte.
    let id = unsafe {
        sys::libbpf_find_vmlinux_btf_id(c"bpf_sk_storage_map".as_ptr(), sys::BPF_TRACE_ITER)
    };
    let Ok(attach_btf_id) = u32::try_from(id) else {
        return false;
    };
    let options = sys::bpf_prog_load_opts {
        expected_attach_type: sys::BPF_TRACE_ITER,
        attach_btf_id,
        ..Default::default()
    };
    let nothing = calls::return_constant(0);
    calls::load_program(
        sys::BPF_PROG_TYPE_TRACING,
        c"parshall_probe",
        &nothing,
        options,
    )
    .is_ok()
}

/// A walk over the connections of each network namespace that a process or a mount shows.
pub(super) fn sweep_namespaces(link: BorrowedFd<'_>) -> io::Result<Sweeps> {
    // A thread that has entered another namespace ends there.
    thread::scope(|scope| {
        scope
            .spawn(|| {
                let mut sweeps = Sweeps {
                    walks: vec![Sweep::new(link)?],
                    is_whole: true,
                };
                for namespace in other_namespaces() {
                    match interface::enter_opened_namespace(namespace.as_fd()) {
                        Ok(()) => sweeps.walks.push(Sweep::new(link)?),
                        Err(_) => sweeps.is_whole = false,
                    }
                }
                Ok(sweeps)
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread of the walks failed")))
    })
}

/// Network namespaces beside the calling thread's, each once.
fn other_namespaces() -> Vec<File> {
    let mut known = HashSet::from([interface::namespace_number()]);
    namespaces_of_processes()
        .chain(mounted_namespaces())
        .filter_map(|path| File::open(path).ok())
        .filter(|file| file.metadata().is_ok_and(|one| known.insert(one.ino())))
        .collect()
}

fn namespaces_of_processes() -> impl Iterator<Item = PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path().join("ns/net"))
}

/// Those of `ip netns`, and their like.
fn mounted_namespaces() -> impl Iterator<Item = PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let paths: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(3);
            let is_network = fields.next()?.starts_with("net:[");
            fields.next().filter(|_| is_network).map(PathBuf::from)
        })
        .collect();
    paths.into_iter()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use parshall_core::abi::TCP_HOOK_COUNT;

    use super::*;
    use crate::tcp::hooks::TcpHooks;
    use crate::tcp::options::{Directions, TcpLogOptions};
    use crate::{cgroup, cpus};

    /// How many accounts all sweeps over the sockets bring, when the sockets are swept twice.
    fn accounts_of_two_sweeps(walks_maps: bool) -> [u64; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = TcpLogOptions {
            ports: vec![listener.local_addr().unwrap().port()],
            ..TcpLogOptions::default()
        };
        let host = cgroup::resolve(None).unwrap();
        let lanes = cpus::with_lanes().unwrap();
        let mut hooks = TcpHooks::load_for(&options, host.id, lanes, walks_maps).unwrap();
        hooks.attach(&host.path, Directions::Both).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _server = listener.accept().unwrap();
        hooks.detach_observers();
        [(); 2].map(|()| {
            let before = hooks.counters()[TCP_HOOK_COUNT - 1].seen;
            for walk in hooks.sum_up_flows().unwrap().walks {
                walk.run().unwrap();
            }
            hooks.counters()[TCP_HOOK_COUNT - 1].seen - before
        })
    }

    #[test]
    fn each_living_flow_is_summed_up_once() {
        if !rustix::process::geteuid().is_root() {
            assert!(
                std::env::var_os("CI").is_none(),
                "this test needs root, and under CI it must not be skipped"
            );
            eprintln!("skipped: this needs root");
            return;
        }
        assert_eq!(accounts_of_two_sweeps(false), [2, 0]);
        if walks_maps() {
            assert_eq!(accounts_of_two_sweeps(true), [2, 0]);
        }
    }
}
