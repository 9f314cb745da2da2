//! Gives the library the name under which programs look for libpcap.

fn main() {
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    println!("cargo:rustc-env=MULTIARCH={architecture}-linux-gnu");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
