//! The Python module `parshall._native`: conversions between Python and the Rust crates, no logic.

mod convert;
mod errors;
#[cfg(feature = "kernel")]
mod kernel;
mod log;
mod model;
mod output_file;
mod router;
mod signals;
mod sizes;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// The commit that was built, where the build knew it.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const commit: Option<&str> = option_env!("PARSHALL_COMMIT");

    #[pymodule_export]
    use crate::convert::{convert_log, log_formats};
    #[pymodule_export]
    use crate::log::{
        ArrowStream, LogFollower, LogReader, PathLogReader, log_files, stream_format,
    };
    #[pymodule_export]
    use crate::model::{Network, Simulation};
    #[pymodule_export]
    use crate::output_file::OutputFile;
    #[pymodule_export]
    use crate::router::router_passages;
    #[pymodule_export]
    use crate::sizes::{
        built_in_sizes, check_gaps, compare_sizes, count_trace_sizes, draw_sizes, read_size_counts,
        read_size_distribution, read_trace_gaps, represent_sizes, size_probabilities,
        write_size_counts, write_size_distribution,
    };

    #[cfg(feature = "kernel")]
    #[pymodule_export]
    use crate::kernel::{
        capability::{build_info, cgroup2_mount, confine, probe_capabilities},
        capture::{Capture, clean_capture_rings, keep_capture_ring, list_capture_rings},
        generate::{describe_workload, interface_takes_xdp_frames, planned_frames},
        hook_time::HookTimes,
        interface::{list_interfaces, list_qdiscs},
        session::Session,
        tcp::TcpLog,
    };
}
