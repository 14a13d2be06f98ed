//! Exports snapshots as an image.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use amalgam_engine::{Progress, SnapshotId, Store};
use serde_json::{Value, json};

use super::digest::{Digest, HashingStream, StreamDigest};
use super::import::architecture;
use super::keys::KEY_CONFIG;
use super::layer::write_layer;
use super::manifest::time_text;
use crate::compress::{Compression, Encoder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::report::Report;
use crate::tar::{write_end, write_member};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Options of an image export.
#[derive(Clone, Debug)]
pub struct OciExport {
    /// Compression of the layers.
    pub compression: Compression,
    /// The image's name and tag, `name:tag`.
    pub name: Option<String>,
}

impl Default for OciExport {
    fn default() -> Self {
        Self { compression: Compression::Gzip, name: None }
    }
}

/// Destination of an image.
pub enum OciTarget<'a> {
    /// A directory that is new or empty.
    Directory(&'a Path),
    /// A tar archive on a stream, which `docker load` reads.
    Archive(&'a mut dyn Write),
}

/// Result of an image export.
#[derive(Clone, Debug)]
pub struct OciExportReport {
    /// The digest of the manifest.
    pub digest: String,
    /// The digest of each layer.
    pub layers: Vec<String>,
    /// Counts, and notices about data that a layer cannot represent.
    pub report: Report,
}

/// Writes an image whose layers are these snapshots, the lowest first: the first in full, each other as the difference from the
/// one below it.
pub fn export_oci(
    store: &Store,
    layers: &[SnapshotId],
    target: OciTarget<'_>,
    options: &OciExport,
    progress: &Progress,
) -> Result<OciExportReport> {
    if layers.is_empty() {
        return Err(Error::Invalid { what: "image", why: "it has no layers; name at least one snapshot".to_owned() });
    }
    if options.compression == Compression::Xz {
        let why = "layers are not compressed by xz; choose gzip, zstd or none".to_owned();
        return Err(Error::Invalid { what: "compression", why });
    }
    let mut output = Output::open(target)?;
    let (mut report, mut descriptors, mut diff_ids, mut history) = (Report::default(), vec![], vec![], vec![]);
    let (mut base, mut config) = (None, None);
    for id in layers {
        let snapshot = store.snapshot(*id)?;
        let (descriptor, diff_id, of_layer) =
            output.layer(|file| layer(store, base, snapshot.root, file, options, progress))?;
        report.add(&of_layer);
        descriptors.push(descriptor);
        diff_ids.push(diff_id.to_string());
        let by = snapshot.message.lines().next().unwrap_or("").to_owned();
        history.push(json!({"created": time_text(snapshot.time), "created_by": by, "author": snapshot.author}));
        base = Some(snapshot.root);
        let said = snapshot.metadata.get(KEY_CONFIG).and_then(|text| serde_json::from_str::<Value>(text).ok());
        config = said.or(config);
    }
    report.snapshots = layers.len() as u64;
    let newest = store.snapshot(*layers.last().expect("there are some"))?;
    let config = image_config(config, &time_text(newest.time), &diff_ids, &history);
    let config = output.blob(CONFIG, config.to_string().as_bytes())?;
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors});
    let mut manifest = output.blob(MANIFEST, manifest.to_string().as_bytes())?;
    let digest = manifest["digest"].as_str().expect("a digest").to_owned();
    let file = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().and_then(Digest::parse).expect("a digest");
        digest.path()
    };
    if let Some(name) = &options.name {
        let tag = name.rsplit_once(':').map_or(name.as_str(), |(_, tag)| tag);
        manifest["annotations"] = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    }
    let tags: Vec<_> = options.name.iter().collect();
    let files: Vec<_> = descriptors.iter().map(file).collect();
    let docker = json!([{"Config": file(&config), "RepoTags": tags, "Layers": files}]);
    let index =
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]});
    output.file("manifest.json", docker.to_string().as_bytes())?;
    output.file("index.json", index.to_string().as_bytes())?;
    output.file("oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes())?;
    output.finish()?;
    let layers = descriptors.iter().filter_map(|it| it["digest"].as_str().map(str::to_owned)).collect();
    Ok(OciExportReport { digest, layers, report })
}

/// Builds the configuration of the image: that of an imported image below, or an empty one, with the layers of this image.
fn image_config(base: Option<Value>, created: &str, diff_ids: &[String], history: &[Value]) -> Value {
    let mut config = base.filter(Value::is_object).unwrap_or_else(|| json!({"config": {}}));
    for (key, value) in [("architecture", architecture()), ("os", "linux")] {
        if !config[key].is_string() {
            config[key] = json!(value);
        }
    }
    config["created"] = json!(created);
    config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
    config["history"] = json!(history);
    config
}

fn write_failed(source: io::Error) -> Error {
    Error::host("write the image", source)
}

/// Writes a layer to a file; returns its descriptor and the digest of the plain archive.
fn layer(
    store: &Store,
    base: Option<amalgam_engine::RootId>,
    root: amalgam_engine::RootId,
    file: &mut File,
    options: &OciExport,
    progress: &Progress,
) -> Result<(Value, Digest, Report)> {
    let (stored, plain) = (StreamDigest::default(), StreamDigest::default());
    let output = CountingStream { inner: BufWriter::with_capacity(1 << 20, file), progress };
    let output = HashingStream { inner: output, meter: stored.clone() };
    let output = Encoder::new(output, options.compression).map_err(write_failed)?;
    let output = HashingStream { inner: output, meter: plain.clone() };
    let (output, report) = write_layer(store, base, root, output, progress)?;
    output.inner.finish().and_then(|mut output| output.flush()).map_err(write_failed)?;
    let kind = match options.compression {
        Compression::Gzip => format!("{LAYER}+gzip"),
        Compression::Zstd => format!("{LAYER}+zstd"),
        Compression::None | Compression::Xz => LAYER.to_owned(),
    };
    let (digest, size) = stored.result();
    let descriptor = json!({"mediaType": kind, "digest": digest.to_string(), "size": size});
    Ok((descriptor, plain.result().0, report))
}

/// An image that is being written.
enum Output<'a> {
    Directory(PathBuf),
    Archive(&'a mut dyn Write),
}

impl<'a> Output<'a> {
    fn open(target: OciTarget<'a>) -> Result<Self> {
        let path = match target {
            OciTarget::Archive(output) => return Ok(Self::Archive(output)),
            OciTarget::Directory(path) => path,
        };
        let blobs = path.join("blobs/sha256");
        if path.exists() && fs::read_dir(path).map_err(write_failed)?.next().is_some() {
            let why = format!("{} is not empty; name a new directory", path.display());
            return Err(Error::Invalid { what: "image directory", why });
        }
        fs::create_dir_all(&blobs).map_err(write_failed)?;
        Ok(Self::Directory(path.to_owned()))
    }

    /// Adds a layer that is written to a temporary file first, because its digest is its name.
    fn layer(
        &mut self,
        write: impl FnOnce(&mut File) -> Result<(Value, Digest, Report)>,
    ) -> Result<(Value, Digest, Report)> {
        let digest_of = |value: &Value| value["digest"].as_str().and_then(Digest::parse).expect("a digest");
        match self {
            Self::Directory(path) => {
                let mut file = tempfile::NamedTempFile::new_in(path.join("blobs/sha256")).map_err(write_failed)?;
                let done = write(file.as_file_mut())?;
                let target = path.join(digest_of(&done.0).path());
                file.persist(&target).map_err(|error| write_failed(error.error))?;
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).map_err(write_failed)?;
                Ok(done)
            }
            Self::Archive(output) => {
                let mut file = tempfile::tempfile().map_err(write_failed)?;
                let done = write(&mut file)?;
                let size = file.stream_position().map_err(write_failed)?;
                file.rewind().map_err(write_failed)?;
                write_member(output, digest_of(&done.0).path().as_bytes(), size, &mut file).map_err(write_failed)?;
                Ok(done)
            }
        }
    }

    fn blob(&mut self, kind: &str, bytes: &[u8]) -> Result<Value> {
        let digest = Digest::of(bytes);
        self.file(&digest.path(), bytes)?;
        Ok(json!({"mediaType": kind, "digest": digest.to_string(), "size": bytes.len()}))
    }

    fn file(&mut self, name: &str, mut bytes: &[u8]) -> Result<()> {
        match self {
            Self::Directory(path) => fs::write(path.join(name), bytes).map_err(write_failed),
            Self::Archive(output) => {
                write_member(output, name.as_bytes(), bytes.len() as u64, &mut bytes as &mut dyn Read)
                    .map_err(write_failed)
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Archive(output) => write_end(output).and_then(|()| output.flush()).map_err(write_failed),
        }
    }
}
