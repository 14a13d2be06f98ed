//! Imports an image as a sequence of snapshots, one for each layer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::Ordering;

use amalgam_engine::object::Owner;
use amalgam_engine::{Progress, SnapshotId, Store, WorkingTree};

use super::archive::{ImageFiles, damaged};
use super::digest::{HashingStream, StreamDigest};
use super::keys::{KEY_CONFIG, KEY_DIFF_ID};
use super::manifest::{Layer, image};
use crate::build::{BuildOptions, Owners, TreeBuilder};
use crate::compress::{Compression, decoder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::imported::{ImportPins, Imported, SnapshotInfo, put_snapshot};
use crate::read_ahead::read_ahead;
use crate::report::Report;
use crate::tar::{Limits, MemberOptions, TarReader, add_members};

/// A configuration of this size is kept with the snapshot.
const CONFIG_BYTES_MAX: usize = 256 << 10;
const NOTE_CONFIG: &str = "the configuration of the image is too large to be kept";

/// Options of an image import.
#[derive(Clone, Debug, Default)]
pub struct OciImport {
    /// The tag or name of the image, where the archive has several.
    pub tag: Option<String>,
    /// Operating system and architecture, `linux/amd64` for example; that of this machine when nothing is said.
    pub platform: Option<String>,
    /// Reads and checks everything, and stores no file.
    pub dry_run: bool,
    /// Resource limits for each layer.
    pub limits: Limits,
    /// The author of snapshots of an image without one.
    pub author: String,
}

/// Returns the architecture of this machine by the names of images, for example `amd64`.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// Imports an image from a directory or an archive.
pub fn import_oci(store: &Store, path: &Path, options: &OciImport, progress: &Progress) -> Result<Imported> {
    let files = ImageFiles::open(path)?;
    let platform = options.platform.clone().unwrap_or_else(|| format!("linux/{}", architecture()));
    let image = image(&files, options.tag.as_deref(), &platform)?;
    progress.snapshots_total.store(image.layers.len() as u64, Ordering::Relaxed);
    let (mut report, mut snapshots, mut kept) = (Report::default(), Vec::new(), ImportPins::default());
    let session = store.session();
    let author = if image.author.is_empty() { options.author.clone() } else { image.author.clone() };
    let mut parent: Option<SnapshotId> = None;
    let last = image.layers.len().saturating_sub(1);
    for (at, layer) in image.layers.iter().enumerate() {
        let (tree, of_layer) = import_layer(store, &files, layer, parent, options, progress)?;
        report.add(&of_layer);
        let mut metadata = BTreeMap::from([(KEY_DIFF_ID.to_owned(), layer.diff_id.to_string())]);
        if at == last && image.config_text.len() <= CONFIG_BYTES_MAX {
            metadata.insert(KEY_CONFIG.to_owned(), image.config_text.clone());
        } else if at == last {
            report.note(NOTE_CONFIG, image.name.as_deref().unwrap_or("").as_bytes());
        }
        let words = SnapshotInfo { author: author.clone(), time: layer.time, message: layer.message.clone(), metadata };
        let snapshot = put_snapshot(&session, &tree, parent, words)?;
        kept.trees.push(tree);
        snapshots.push(snapshot);
        parent = Some(snapshot);
        progress.snapshots.fetch_add(1, Ordering::Relaxed);
    }
    let Some(head) = parent else { return Err(damaged("the image", "it has no layers")) };
    report.snapshots = snapshots.len() as u64;
    kept.session = Some(session);
    Imported::new(store, snapshots, head, report, kept)
}

fn import_layer(
    store: &Store,
    files: &ImageFiles,
    layer: &Layer,
    parent: Option<SnapshotId>,
    options: &OciImport,
    progress: &Progress,
) -> Result<(WorkingTree, Report)> {
    let base = parent.map(|parent| store.snapshot(parent)).transpose()?.map(|snapshot| snapshot.root);
    let mut builder = TreeBuilder::new(store, base, BuildOptions { layer: true, dry_run: options.dry_run })?;
    let plain = StreamDigest::default();
    let read_before = progress.bytes.load(Ordering::Relaxed);
    let mut input = BufReader::new(CountingStream { inner: files.read(&layer.file)?, progress });
    let compression = Compression::of_magic(input.fill_buf().map_err(Error::reading)?);
    // A layer that is not compressed has one digest.
    let stored = if compression == Compression::None { plain.clone() } else { StreamDigest::default() };
    let input: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(input),
        _ => Box::new(HashingStream { inner: input, meter: stored.clone() }),
    };
    let input = HashingStream { inner: decoder(input, Some(compression))?, meter: plain.clone() };
    // The files of root are the workspace's own.
    let owners = Owners::Except(Owner { uid: 0, gid: 0 });
    let members = MemberOptions { owners, is_layer: true, limits: options.limits, read_before };
    read_ahead(input, |input| {
        let mut reader = TarReader::new(input);
        // The digest shows whether a layer is whole.
        reader.is_end_optional = true;
        add_members(&mut builder, &mut reader, members, progress)
    })?;
    if layer.blob.is_some_and(|said| said != stored.result()) {
        return Err(damaged(&layer.file, "the layer does not have the digest and size that the manifest says"));
    }
    if plain.result().0 != layer.diff_id {
        return Err(damaged(&layer.file, "the layer does not have the digest that the configuration says"));
    }
    builder.finish()
}
