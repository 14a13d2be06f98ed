//! Many projects: memory of fifty, and the time to open one more.

use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_gateway::ProjectName;

use amalgam_benches::served::{BoxedError, Served, now, resident_bytes, runtime};

pub const FIGURES: &[&str] = &["50 open projects, memory", "one more project opened"];

const PROJECTS: usize = 50;

pub fn run(bench: &mut Bench) -> Result<()> {
    let directory = bench.directory("projects");
    let runtime = runtime()?;
    let served = runtime.block_on(Served::start(&directory))?;
    let created = runtime.block_on(async {
        for number in 0..=PROJECTS {
            served.projects.create(&name(number)?, now()).await?;
        }
        Ok::<_, BoxedError>(())
    });
    runtime.block_on(served.stop())?;
    created?;
    let served = runtime.block_on(Served::start(&directory))?;
    let figures = runtime.block_on(async {
        for number in 0..PROJECTS {
            served.projects.open(&name(number)?).await?;
        }
        let bytes = resident_bytes()?;
        let start = Instant::now();
        served.projects.open(&name(PROJECTS)?).await?;
        Ok::<_, BoxedError>((bytes, start.elapsed()))
    });
    runtime.block_on(served.stop())?;
    let (bytes, opened) = figures?;
    #[allow(clippy::cast_precision_loss, reason = "memory in bytes fits")]
    bench.add(
        FIGURES[0],
        (bytes as f64 / 1e6, "MB"),
        Bar::AtMost(1_000.0),
        "resident memory of the process".to_owned(),
    );
    bench.add(FIGURES[1], (opened.as_secs_f64() * 1e3, "ms"), Bar::AtMost(100.0), "a small store".to_owned());
    Ok(())
}

fn name(number: usize) -> Result<ProjectName> {
    Ok(ProjectName::new(format!("p{number}"))?)
}
