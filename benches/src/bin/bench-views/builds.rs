//! Builds and installations on a mount, beside the disk's own file system.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};

use crate::serve::Serving;
use crate::sides::{run as do_run, seconds, shell};
use crate::trees::take_in;

pub const FIGURES: &[&str] = &[CARGO, MAKE, NPM];
const CARGO: &str = "cargo build / ext4";
const MAKE: &str = "make of a C project / ext4";
const NPM: &str = "npm install / ext4";

const SOURCES: u32 = 300;

pub fn run(bench: &mut Bench) -> Result<()> {
    let origin = bench.directory("builds");
    fs::create_dir_all(&origin)?;
    cargo_project(&origin.join("crate"))?;
    c_project(&origin.join("c"), bench.size(SOURCES, 10))?;
    let has_npm = npm_project(&origin.join("npm"));
    let home = bench.directory("builds-home");
    take_in(&home, "main", &origin)?;
    let mut serving = Serving::start(&home)?;
    let mount = bench.directory("builds-mount");
    serving.mount("main", &mount)?;
    let turns = bench.size(3, 1);
    let mut compare = |name: &str, bar: f64, line: &str, clear: &str, how: &str| -> Result<()> {
        if !bench.wants(name) {
            return Ok(());
        }
        let time = |directory: &Path| -> Result<f64> {
            let mut taken = Vec::new();
            for _ in 0..turns {
                do_run(&mut shell(directory, clear, false))?;
                taken.push(seconds(&mut shell(directory, line, false), &[0])?);
            }
            Ok(amalgam_benches::median(taken))
        };
        let (theirs, ours) = (time(&origin)?, time(&mount)?);
        let how = format!("{how}; ours {ours:.2} s, ext4 {theirs:.2} s, median of {turns}");
        bench.add(name, (ours / theirs, "x"), Bar::AtMost(bar), how);
        Ok(())
    };
    compare(
        CARGO,
        1.2,
        "cd crate && cargo build -q --offline",
        "rm -rf crate/target",
        "serde_json, tempfile, parking_lot, thiserror and what they need",
    )?;
    compare(
        MAKE,
        1.2,
        "make -s -C c -j2",
        "make -s -C c clean",
        "generated, a few hundred sources and as many headers",
    )?;
    if has_npm {
        let line = "cd npm && npm install --silent --no-audit --no-fund --prefer-offline";
        compare(
            NPM,
            1.5,
            line,
            "rm -rf npm/node_modules",
            "express, typescript, eslint and what they need, from npm's cache",
        )?;
    } else {
        eprintln!("  {NPM}: left out, npm cannot install here");
    }
    Ok(())
}

fn cargo_project(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory.join("src"))?;
    // The versions that this repository has locked are in cargo's cache.
    let lock = amalgam_benches::options::repository().join("Cargo.lock");
    fs::copy(lock, directory.join("Cargo.lock"))?;
    let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\nserde_json = \"1\"\n\
                    tempfile = \"3\"\nparking_lot = \"0.12\"\nthiserror = \"2\"\n\n[workspace]\n";
    fs::write(directory.join("Cargo.toml"), manifest)?;
    fs::write(directory.join("src/main.rs"), "fn main() { println!(\"{}\", serde_json::json!({\"a\": 1})); }\n")?;
    Ok(())
}

fn c_project(directory: &Path, sources: u32) -> Result<()> {
    fs::create_dir_all(directory)?;
    for number in 0..sources {
        let header: String = (0..40).map(|f| format!("int function_{number}_{f}(int);\n")).collect();
        fs::write(directory.join(format!("h{number}.h")), format!("#pragma once\n{header}"))?;
        let includes: String = (0..8).map(|k| format!("#include \"h{}.h\"\n", (number + k * 17) % sources)).collect();
        let body: String =
            (0..40).map(|f| format!("int function_{number}_{f}(int x) {{ return x * {f} + {number}; }}\n")).collect();
        fs::write(directory.join(format!("s{number}.c")), format!("#include <stdio.h>\n{includes}{body}"))?;
    }
    let makefile = "SOURCES := $(wildcard *.c)\nOBJECTS := $(SOURCES:.c=.o)\nlib.a: $(OBJECTS)\n\tar crs $@ $^\n\
                    %.o: %.c\n\t$(CC) -O1 -MMD -c $< -o $@\nclean:\n\trm -f *.o *.d lib.a\n-include *.d\n";
    fs::write(directory.join("Makefile"), makefile)?;
    Ok(())
}

/// Fills npm's cache by installing once; false when that does not work here.
fn npm_project(directory: &Path) -> bool {
    let made = fs::create_dir_all(directory).is_ok()
        && fs::write(
            directory.join("package.json"),
            r#"{"name":"x","version":"1.0.0","dependencies":{"express":"^4","typescript":"^5","eslint":"^8"}}"#,
        )
        .is_ok();
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund"]).current_dir(directory);
    npm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let installed = made && npm.status().is_ok_and(|status| status.success());
    fs::remove_dir_all(directory.join("node_modules")).ok();
    installed
}
