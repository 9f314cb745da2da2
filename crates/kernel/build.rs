//! Compiles the eBPF programs. They are embedded in the library, so nothing is looked up at run
//! time and the objects always belong to the code that reads their records.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Older compilers lack section names and builtins that the programs use.
const CLANG_MAJOR_MIN: u32 = 15;
const WITHOUT_KERNEL: &str = "Reading, converting and modelling need no clang: pip install . --config-settings=build-args=--no-default-features";

fn main() {
    let bpf = Path::new("../../bpf");
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-env-changed=CLANG");
    // libpcap compiles the expressions of filters; see src/filter/libpcap.rs. Wheels have a static one in them.
    println!("cargo:rerun-if-env-changed=PARSHALL_LIBPCAP_DIR");
    match env::var_os("PARSHALL_LIBPCAP_DIR") {
        Some(directory) => {
            println!("cargo:rustc-link-search=native={}", directory.display());
            println!("cargo:rustc-link-lib=static=pcap");
        }
        None => println!("cargo:rustc-link-lib=pcap"),
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let libbpf_headers =
        env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys reports where its headers are");
    let clang = find_clang();
    let flags =
        fs::read_to_string(bpf.join("compiler-flags")).expect("bpf/compiler-flags is there");
    let objects = objects_of(bpf);
    list(&objects, &out.join("objects.rs"));
    for object in objects {
        let mut command = Command::new(&clang);
        command
            .args(flags.split_whitespace())
            .arg(format!("-D__TARGET_ARCH_{}", kernel_architecture()))
            // Objects of equal sources are equal, wherever they were built.
            .arg("-fdebug-compilation-dir=/")
            .arg(format!(
                "-ffile-prefix-map={}=/libbpf",
                Path::new(&libbpf_headers).display()
            ))
            .arg("-I")
            .arg(&libbpf_headers);
        // <asm/types.h> lies in a directory that a BPF target does not search by itself.
        let multiarch = format!(
            "/usr/include/{}-linux-gnu",
            env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default()
        );
        if Path::new(&multiarch).is_dir() {
            command.arg("-I").arg(multiarch);
        }
        command
            .arg("-c")
            .arg(bpf.join(format!("{object}.bpf.c")))
            .arg("-o")
            .arg(out.join(format!("{object}.bpf.o")));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(_) => fail(&format!(
                "{clang} could not compile bpf/{object}.bpf.c: see above"
            )),
            Err(error) => fail(&format!(
                "{clang}: {error}; name another clang by CLANG=PATH"
            )),
        }
    }
}

/// Names of the sources, without `.bpf.c`.
fn objects_of(bpf: &Path) -> Vec<String> {
    let sources = fs::read_dir(bpf).expect("bpf/ can be read");
    let mut names: Vec<_> = sources
        .filter_map(|source| source.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".bpf.c").map(String::from))
        .collect();
    names.sort();
    names
}

/// Writes the array of all objects that `src/programs/compiled.rs` includes.
fn list(objects: &[String], path: &Path) {
    let rows: Vec<_> = objects
        .iter()
        .map(|name| format!("compiled_object!({name:?})"))
        .collect();
    fs::write(path, format!("&[{}]", rows.join(", "))).expect("cargo's OUT_DIR can be written");
}

/// Ends the build with one line, without a trace of this program.
fn fail(reason: &str) -> ! {
    println!("cargo::error={reason}. {WITHOUT_KERNEL}");
    std::process::exit(1);
}

fn kernel_architecture() -> &'static str {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        Ok("riscv64") => "riscv",
        Ok("s390x") => "s390",
        Ok("powerpc64") => "powerpc",
        other => panic!("no eBPF build for the architecture {other:?}"),
    }
}

/// `$CLANG`, or the newest `clang-N`, or `clang` if it is new enough.
fn find_clang() -> String {
    if let Ok(clang) = env::var("CLANG") {
        return clang;
    }
    let versioned = (CLANG_MAJOR_MIN..=30)
        .rev()
        .map(|major| format!("clang-{major}"));
    for candidate in versioned.chain(["clang".to_string()]) {
        let Ok(output) = Command::new(&candidate).arg("-dumpversion").output() else {
            continue;
        };
        let version = String::from_utf8_lossy(&output.stdout);
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.trim().parse::<u32>().ok());
        if major.is_some_and(|major| major >= CLANG_MAJOR_MIN) {
            return candidate;
        }
    }
    fail(&format!(
        "no clang of version {CLANG_MAJOR_MIN} or newer: install the newest clang-N that your release packages, or name one by CLANG=PATH"
    ))
}
