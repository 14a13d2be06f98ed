//! The Linux tree at one commit of a local repository, imported beside a shallow clone.

use std::time::Instant;

use amalgam_benches::Result;
use amalgam_benches::bench::Bench;
use amalgam_engine::Store;
use amalgam_exchange::{GitImport, Progress, import_git};

use crate::kit::{Beside, git, land, linux_tree, remove, repository_of, seconds};

const COMMIT: &str = "git import of the Linux tree at one commit";

pub(crate) const FIGURES: &[&str] = &[COMMIT];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("the Linux tree, from a git repository");
    let input = linux_tree(bench)?;
    let repository = bench.directory("linux.git");
    repository_of(&input.path, &repository)?;
    let url = format!("file://{}", repository.display());
    let (store_path, clone) = (bench.directory("linux-store"), bench.directory("linux-clone"));
    let mut beside = Beside::default();
    for _ in 0..bench.size(3, 1) {
        let store = Store::open(&store_path)?;
        let start = Instant::now();
        let imported = import_git(&store, &repository, &GitImport::default(), &Progress::default())?;
        land(&store, &imported)?;
        beside.ours.push(start.elapsed().as_secs_f64());
        drop((imported, store));
        remove(&store_path)?;
        beside.theirs.push(seconds(git(&["clone", "--quiet", "--depth=1", &url]).arg(&clone))?);
        remove(&clone)?;
    }
    beside.add(bench, COMMIT, 1.0, &input.words, "git clone --depth 1 with checkout");
    Ok(())
}
