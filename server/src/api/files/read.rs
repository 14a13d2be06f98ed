//! Reads of files and their metadata.

use amalgam_engine::{EntryKind, TreePath};
use amalgam_proto::{Failure, Reason, v1};
use bytes::Bytes;

use super::super::Sender;
use crate::error::{Error, Result};
use crate::files::{Detail, ReadTree, file_stat, parse_path};
use crate::service::Service;

/// The most paths in a batch.
const PATHS_MAX: usize = 1_000;
/// The most bytes of each file of a batch, unless the request sets a limit.
const BATCH_FILE_BYTES: u64 = 1 << 20;
/// The most bytes of all files of a batch together.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// The most bytes in one message.
const BLOCK_BYTES: u64 = 256 << 10;

/// Returns the metadata of a path.
pub(super) fn stat(service: &Service, tree: &ReadTree, path: &TreePath) -> Result<v1::FileStat> {
    let found = tree.stat(path)?.ok_or_else(|| tree.not_found(path))?;
    file_stat(&tree.tree, path, &found, service.files.owner(), Detail::Full)
}

/// Returns the metadata of many paths.
pub(super) fn stat_many(service: &Service, request: &v1::StatFilesRequest) -> Result<v1::StatFilesResponse> {
    use v1::stat_result::Result as Found;
    refuse_many(request.paths.len())?;
    let tree = service.files.read_tree(&request.workspace, &request.revision)?;
    let results = request.paths.iter().map(|path| {
        let found = parse_path(path).and_then(|parsed| stat(service, &tree, &parsed));
        let result = found.map_or_else(|error| Found::Failure(failure_message(error)), Found::File);
        v1::StatResult { path: path.clone(), result: Some(result) }
    });
    Ok(v1::StatFilesResponse { results: results.collect() })
}

/// Sends the bytes of a file.
pub(super) fn read(
    service: &Service,
    request: &v1::FileServiceReadFileRequest,
    sender: &Sender<v1::FileServiceReadFileResponse>,
) -> Result<()> {
    let path = parse_path(&request.path)?;
    let tree = service.files.read_tree(&request.workspace, &request.revision)?;
    let file = stat(service, &tree, &path)?;
    if !request.if_match.is_empty() && request.if_match != "*" && request.if_match != file.etag {
        let message = format!("{path} was changed since it was read; read it again, then decide");
        return Err(Error::new(Reason::StaleFile, message).with("etag", file.etag));
    }
    let readable = service.files.open_file(&tree, &path)?;
    let mut hasher = blake3::Hasher::new();
    let mut first = Some(file);
    if let Some(target) = readable.file.target() {
        hasher.update(&target);
        let (digest, sent_bytes) = (hasher.finalize().to_hex().to_string(), target.len() as u64);
        return sender.send(v1::FileServiceReadFileResponse { file: first, data: target, digest, sent_bytes });
    }
    let stat = readable.file.stat();
    if stat.kind != EntryKind::File {
        let message = format!("{path} is {}, which has no contents", stat.kind.word());
        return Err(Error::new(Reason::Invalid, message));
    }
    let end = match request.length {
        0 => stat.size,
        length => request.offset.saturating_add(length).min(stat.size),
    };
    let mut offset = request.offset.min(stat.size);
    let begin = offset;
    loop {
        let step = BLOCK_BYTES.min(end.saturating_sub(offset));
        let data = Bytes::from(readable.file.read_at(offset, step as usize)?);
        hasher.update(&data);
        offset += step;
        let mut answer = v1::FileServiceReadFileResponse { file: first.take(), data, ..Default::default() };
        let is_last = offset >= end;
        if is_last {
            answer.digest = hasher.finalize().to_hex().to_string();
            answer.sent_bytes = offset - begin;
        }
        sender.send(answer)?;
        if is_last {
            return Ok(());
        }
    }
}

/// Returns the bytes of many files.
pub(super) fn read_many(service: &Service, request: &v1::ReadFilesRequest) -> Result<v1::ReadFilesResponse> {
    use v1::read_result::Result as Found;
    refuse_many(request.paths.len())?;
    let tree = service.files.read_tree(&request.workspace, &request.revision)?;
    let most = if request.bytes_max == 0 { BATCH_FILE_BYTES } else { request.bytes_max };
    let mut left = BATCH_BYTES_MAX;
    let mut results = Vec::with_capacity(request.paths.len());
    for path in &request.paths {
        let read = parse_path(path).and_then(|parsed| {
            let file = stat(service, &tree, &parsed)?;
            let readable = service.files.open_file(&tree, &parsed)?;
            let size = readable.file.stat().size;
            let wanted = size.min(most).min(left);
            let data = match readable.file.target() {
                Some(target) => target,
                None => Bytes::from(readable.file.read_at(0, wanted as usize)?),
            };
            let truncated = (data.len() as u64) < size;
            Ok(v1::ReadContents { file: Some(file), data, truncated })
        });
        left -= read.as_ref().map_or(0, |read| (read.data.len() as u64).min(left));
        let result = read.map_or_else(|error| Found::Failure(failure_message(error)), Found::Contents);
        results.push(v1::ReadResult { path: path.clone(), result: Some(result) });
    }
    Ok(v1::ReadFilesResponse { results })
}

fn refuse_many(paths: usize) -> Result<()> {
    if paths <= PATHS_MAX {
        return Ok(());
    }
    let message = format!("{paths} paths; at most {PATHS_MAX} in one call");
    Err(Error::new(Reason::Invalid, message))
}

fn failure_message(error: Error) -> v1::FileFailure {
    let Failure { reason, message, .. } = error.into_failure();
    v1::FileFailure { reason: reason.word().to_owned(), message }
}
