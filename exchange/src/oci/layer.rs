//! Exports the difference between two trees as a layer.

use std::io::Write;

use amalgam_engine::object::Owner;
use amalgam_engine::{Progress, RootId, Store};

use crate::compress::{Compression, Encoder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::layer::write_changes;
use crate::report::Report;
use crate::tar::{NOTE_STATE, TarSink};

/// Writes a layer that makes one tree of another, or the whole tree when there is no other, as a tar archive.
pub fn export_layer(
    store: &Store,
    base: Option<RootId>,
    root: RootId,
    output: impl Write,
    compression: Compression,
    progress: &Progress,
) -> Result<Report> {
    let failed = |source| Error::host("write the layer", source);
    let output = Encoder::new(CountingStream { inner: output, progress }, compression).map_err(failed)?;
    let (output, report) = write_layer(store, base, root, output, progress)?;
    output.finish().and_then(|mut output| output.flush()).map_err(failed)?;
    Ok(report)
}

pub(super) fn write_layer<W: Write>(
    store: &Store,
    base: Option<RootId>,
    root: RootId,
    output: W,
    progress: &Progress,
) -> Result<(W, Report)> {
    let _kept = (base.map(|base| store.hold(base)).transpose()?, store.hold(root)?);
    let before = base.map(|base| store.root(base)).transpose()?;
    let after = store.root(root)?;
    let mut sink = TarSink::new(store, output, Owner { uid: 0, gid: 0 }, progress);
    if after.state.is_some() {
        sink.report.note(NOTE_STATE, b"");
    }
    write_changes(store, before.as_deref(), &after, &mut sink)?;
    sink.finish()
}
