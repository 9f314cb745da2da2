//! The Python module `parshall._native`: conversions between Python and the Rust crates, no logic.

mod errors;
#[cfg(feature = "kernel")]
mod relay;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    #[cfg(feature = "kernel")]
    module.add_class::<relay::Relay>()?;
    Ok(())
}
