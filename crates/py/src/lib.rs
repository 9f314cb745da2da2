//! The Python module `parshall._native`: conversions between Python and the Rust crates, no logic.

#[cfg(feature = "kernel")]
mod capability;
#[cfg(feature = "kernel")]
mod capture;
mod convert;
mod errors;
mod log;
#[cfg(feature = "kernel")]
mod relay;
#[cfg(feature = "kernel")]
mod tcp;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<log::LogReader>()?;
    module.add_class::<log::ArrowStream>()?;
    module.add_function(wrap_pyfunction!(convert::convert_log, module)?)?;
    module.add_function(wrap_pyfunction!(convert::log_formats, module)?)?;
    #[cfg(feature = "kernel")]
    {
        module.add_class::<relay::Relay>()?;
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
