//! The programs of the path instrument pass the verifier of the running kernel. Needs root.

use parshall_kernel::path::hooks::try_programs;

#[test]
fn all_programs_of_the_path_load() {
    let unavailable = try_programs().unwrap();
    for one in &unavailable {
        println!("{}: {}", one.stage, one.reason);
    }
}
