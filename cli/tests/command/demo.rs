//! The story that the README begins with can be told to its end.

use std::path::Path;
use std::process::Command;

#[test]
fn the_demo_comes_to_its_end() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/demo");
    let told = Command::new(script).arg(env!("CARGO_BIN_EXE_amalgam")).output().expect("the script starts");
    let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{said}");
}
