//! The Linux tree as a tar archive, in and out, beside GNU tar.

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use amalgam_benches::Result;
use amalgam_benches::bench::Bench;
use amalgam_engine::Store;
use amalgam_exchange::{Progress, TarExport, TarImport, export_tar, import_tar};

use crate::kit::{Beside, land, linux_tree, remove, seconds};

const IN: &str = "tar import of the Linux tree";
const OUT: &str = "tar export of the Linux tree";

pub(crate) const FIGURES: &[&str] = &[IN, OUT];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("the Linux tree, as a tar archive");
    let input = linux_tree(bench)?;
    let (archive, store_path) = (bench.directory("linux.tar"), bench.directory("tar-store"));
    let (extracted, written) = (bench.directory("extracted"), bench.directory("written.tar"));
    seconds(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&input.path).arg("."))?;
    let (mut into, mut out) = (Beside::default(), Beside::default());
    for _ in 0..bench.size(3, 1) {
        let store = Store::open(&store_path)?;
        let start = Instant::now();
        let imported = import_tar(&store, File::open(&archive)?, TarImport::default(), &Progress::default())?;
        land(&store, &imported)?;
        into.ours.push(start.elapsed().as_secs_f64());
        std::fs::create_dir(&extracted)?;
        rustix::fs::sync();
        into.theirs.push(seconds(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&extracted))?);
        // Each side begins without pages that the other left to be written.
        rustix::fs::sync();
        let start = Instant::now();
        let output = File::create(&written)?;
        export_tar(&store, imported.root, output, &TarExport::default(), &Progress::default())?;
        out.ours.push(start.elapsed().as_secs_f64());
        std::fs::remove_file(&written)?;
        rustix::fs::sync();
        out.theirs.push(seconds(Command::new("tar").arg("-cf").arg(&written).arg("-C").arg(&extracted).arg("."))?);
        std::fs::remove_file(&written)?;
        drop((imported, store));
        remove(&store_path)?;
        remove(&extracted)?;
    }
    into.add(bench, IN, 1.5, &input.words, "tar -x");
    out.add(bench, OUT, 1.2, &input.words, "tar -c to a file");
    Ok(())
}
