use parshall_core::abi::*;
use parshall_kernel::ring::reader::{Block, LaneReader};
use parshall_kernel::tcp::{hooks::TcpHooks, options::*};
fn main() {
    let options = TcpLogOptions::default();
    let mut hooks = TcpHooks::load(&options, 0).unwrap_or_else(|e| panic!("{e}"));
    hooks
        .attach(
            std::path::Path::new("/sys/fs/cgroup/unified"),
            Directions::Both,
        )
        .unwrap();
    hooks.find_flows().unwrap();
    let seconds: u64 = std::env::args().nth(1).map_or(3, |s| s.parse().unwrap());
    let mut readers: Vec<_> = hooks
        .packet_lanes
        .iter()
        .chain(&hooks.flow_lanes)
        .map(|l| LaneReader::from_start(l.clone()))
        .collect();
    let verbose = std::env::args().nth(2).is_some();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let mut block = Block::default();
    let mut stage = 0;
    loop {
        let mut any = false;
        for r in &mut readers {
            r.read_block(&mut block, 1 << 18);
            while let Some(rec) = block.peek() {
                any = true;
                if verbose {
                    let h = view_plain::<RecordHeader>(rec).unwrap();
                    match h.kind {
                        1 => println!("{:?}", view_plain::<TcpStateRecord>(rec)),
                        2 => println!("{:?}", view_plain::<TcpFlowRecord>(rec)),
                        3 => println!("{:?}", view_plain::<TcpFlowEndRecord>(rec)),
                        _ => {}
                    }
                }
                block.advance();
            }
        }
        if !any {
            if stage == 1 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            if std::time::Instant::now() > end {
                hooks.detach();
                hooks.sum_up_flows().unwrap();
                stage = 1;
            }
        }
    }
    for r in &mut readers {
        r.settle();
        println!("{:?}", r.counts());
    }
    for (i, c) in hooks.counters().iter().enumerate() {
        println!("{i} {c:?}");
    }
    for s in hooks.statistics() {
        println!("{s:?} {:.0} ns", s.run_ns as f64 / s.runs.max(1) as f64);
    }
    println!("{:?}", hooks.open_handshakes());
}
