//! The Python module `parshall._native`: conversions between Python and the Rust crates, no logic.

#[cfg(feature = "kernel")]
mod capability;
#[cfg(feature = "kernel")]
mod capture;
mod convert;
mod errors;
#[cfg(feature = "kernel")]
mod generate;
#[cfg(feature = "kernel")]
mod hook_time;
mod log;
mod model;
mod output_file;
#[cfg(feature = "kernel")]
mod session;
mod signals;
mod sizes;
#[cfg(feature = "kernel")]
mod tcp;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<log::LogReader>()?;
    module.add_class::<log::ArrowStream>()?;
    module.add_class::<output_file::OutputFile>()?;
    module.add_class::<model::Simulation>()?;
    module.add_class::<model::Network>()?;
    module.add_function(wrap_pyfunction!(convert::convert_log, module)?)?;
    module.add_function(wrap_pyfunction!(convert::log_formats, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::read_size_counts, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::count_trace_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::read_trace_gaps, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::built_in_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::represent_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::read_size_distribution, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::write_size_distribution, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::write_size_counts, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::size_probabilities, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::draw_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(sizes::compare_sizes, module)?)?;
    #[cfg(feature = "kernel")]
    {
        module.add_class::<session::Session>()?;
        module.add_function(wrap_pyfunction!(generate::describe_workload, module)?)?;
        module.add_function(wrap_pyfunction!(generate::planned_frames, module)?)?;
        module.add_function(wrap_pyfunction!(
            generate::interface_takes_xdp_frames,
            module
        )?)?;
        module.add_class::<hook_time::HookTimes>()?;
        module.add_class::<tcp::TcpLog>()?;
        module.add_class::<capture::Capture>()?;
        module.add_function(wrap_pyfunction!(capture::keep_capture_ring, module)?)?;
        module.add_function(wrap_pyfunction!(capture::list_capture_rings, module)?)?;
        module.add_function(wrap_pyfunction!(capture::clean_capture_rings, module)?)?;
        module.add_function(wrap_pyfunction!(capability::probe_capabilities, module)?)?;
        module.add_function(wrap_pyfunction!(capability::cgroup2_mount, module)?)?;
    }
    Ok(())
}
