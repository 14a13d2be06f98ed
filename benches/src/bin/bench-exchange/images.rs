//! Container images: a large one of five layers in, a small difference out.

use std::fs::File;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::{Bar, Result, machine, median};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{SnapshotId, Store, WorkspaceName, Workspaces};
use amalgam_exchange::{Compression, OciExport, OciImport, OciTarget, Progress, export_layer, export_oci, import_oci};

use crate::kit::{MB, act, land, remove};

const IN: &str = "import of an image of five layers, as docker save writes it";
const IN_GZIP: &str = "import of an image of five layers, compressed by gzip";
const OUT: &str = "export of a difference of 10 MB as a layer";

pub(crate) const FIGURES: &[&str] = &[IN, IN_GZIP, OUT];

const LAYERS: u64 = 5;
const FILE_BYTES: usize = 100_000;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("an image of {LAYERS} layers");
    let layer_bytes = bench.size(200_000_000, 2_000_000);
    let made = Store::open(bench.directory("image-store"))?;
    let snapshots = made_layers(&made, layer_bytes)?;
    let total = (layer_bytes as u64 * LAYERS) as f64 / MB;
    for (name, compression, bar) in
        [(IN, Compression::None, Bar::AtLeast(200.0)), (IN_GZIP, Compression::Gzip, Bar::None)]
    {
        if bench.wants(name) {
            import(bench, (name, bar), &made, &snapshots, compression, total)?;
        }
    }
    if bench.wants(OUT) {
        difference(bench, &made)?;
    }
    Ok(())
}

/// Makes a workspace of as many snapshots as layers, each with so many bytes of new files.
fn made_layers(store: &Store, layer_bytes: usize) -> Result<Vec<SnapshotId>> {
    let (workspaces, name) = (Workspaces::of(store), WorkspaceName::new("image")?);
    workspaces.create(&name, &NewWorkspace::default(), &act())?;
    let (mut random, mut snapshots) = (Random::new(1), Vec::new());
    for layer in 0..LAYERS {
        let mut tree = workspaces.open(&name)?;
        tree.create_directory(&*format!("layer{layer}"), 0o755)?;
        for file in 0..layer_bytes / FILE_BYTES {
            // Half text, half bytes that do not compress, as programs and their data are.
            let bytes = match file % 2 {
                0 => random.text(FILE_BYTES),
                _ => random.bytes(FILE_BYTES),
            };
            tree.write(&*format!("layer{layer}/file{file}"), &bytes)?;
        }
        snapshots.push(workspaces.commit(&name, &mut tree, &Change::new("a layer"), &act())?.snapshot);
    }
    Ok(snapshots)
}

fn import(
    bench: &mut Bench,
    (name, bar): (&str, Bar),
    made: &Store,
    snapshots: &[SnapshotId],
    compression: Compression,
    total: f64,
) -> Result<()> {
    let archive = bench.directory("image.tar");
    let mut output = File::create(&archive)?;
    let options = OciExport { compression, name: Some("bench:1".to_owned()) };
    export_oci(made, snapshots, OciTarget::Archive(&mut output), &options, &Progress::default())?;
    let (mut rates, turns) = (Vec::new(), bench.size(3, 1));
    let path = bench.directory("image-import");
    for _ in 0..turns {
        let store = Store::open(&path)?;
        let start = Instant::now();
        let imported = import_oci(&store, &archive, &OciImport::default(), &Progress::default())?;
        land(&store, &imported)?;
        rates.push(total / start.elapsed().as_secs_f64());
        drop((imported, store));
        remove(&path)?;
    }
    std::fs::remove_file(&archive)?;
    let how = format!(
        "{total:.0} MB of files, half of them text, in the page cache, {} cores, digests compared, durable at the end; \
         median of {turns}: {rates:.0?}",
        machine::cores()
    );
    bench.add(name, (median(rates), "MB/s"), bar, how);
    Ok(())
}

fn difference(bench: &mut Bench, store: &Store) -> Result<()> {
    let (workspaces, name) = (Workspaces::of(store), WorkspaceName::new("image")?);
    let mut tree = workspaces.open(&name)?;
    let base = workspaces.find(&name)?.and_then(|found| found.head).ok_or("the workspace has a head")?;
    let mut random = Random::new(2);
    for file in 0..10_000_000 / FILE_BYTES {
        tree.write(&*format!("changed{file}"), &random.text(FILE_BYTES))?;
    }
    tree.remove("layer0/file0")?;
    let after = workspaces.commit(&name, &mut tree, &Change::new("a change"), &act())?.snapshot;
    let (base, after) = (store.snapshot(base)?.root, store.snapshot(after)?.root);
    let (mut times, turns) = (Vec::new(), bench.size(9, 1));
    for _ in 0..turns {
        let output = File::create(bench.directory("layer.tar.gz"))?;
        let start = Instant::now();
        export_layer(store, Some(base), after, output, Compression::Gzip, &Progress::default())?;
        times.push(start.elapsed().as_secs_f64());
    }
    let how =
        format!("100 new text files and a whiteout, compressed by gzip, to a file; median of {turns}: {times:.3?}");
    bench.add(OUT, (median(times), "s"), Bar::AtMost(0.3), how);
    Ok(())
}
