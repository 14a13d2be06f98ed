//! The entries and contents of a tree.

use amalgam_conflicts::{Style, render_entry};
use amalgam_engine::content::read_at;
use amalgam_engine::object::{Content, Node};
use amalgam_engine::{Entry, Error as EngineError, TreePath, entry_at, list_directory};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::super::Sender;
use super::paths::tree_path;
use crate::conflicts::CaptionSource;
use crate::context::HeldTree;
use crate::error::{Error, Result};
use crate::service::Service;

const ENTRIES_AT_ONCE: usize = 256;
const BLOCK_BYTES: u64 = 256 << 10;

fn at(service: &Service, state: Option<&v1::State>, workspace: &str, path: &TreePath) -> Result<(HeldTree, Entry)> {
    let here = service.context.here(workspace)?;
    let held = service.directories.hold_state(state, here.as_ref())?;
    let not_found = || held.not_found(path);
    let root = held.root.ok_or_else(not_found)?;
    let root = service.context.store.root(root)?;
    let entry = entry_at(&service.context.store, &root, path)?.ok_or_else(not_found)?;
    Ok((held, entry))
}

/// Sends the entries of a directory, or all entries below it, parents first.
pub(super) fn list(
    service: &Service,
    request: &v1::ListEntriesRequest,
    sender: &Sender<v1::ListEntriesResponse>,
) -> Result<()> {
    let path = tree_path(&request.path)?;
    let (_held, entry) = at(service, request.state.as_ref(), &request.workspace, &path)?;
    sender.caller.walking(|| send_entries(service, request.recursive, (path, entry), sender))
}

fn send_entries(
    service: &Service,
    is_recursive: bool,
    top: (TreePath, Entry),
    sender: &Sender<v1::ListEntriesResponse>,
) -> Result<()> {
    let mut entries = Vec::new();
    let mut open = vec![top];
    let mut count = service.context.store.path_count();
    while let Some((path, entry)) = open.pop() {
        let Node::Directory(contents) = entry.node else {
            entries.push(amalgam_proto::entry(&path, &entry));
            continue;
        };
        let mut below = Vec::new();
        for item in list_directory(&service.context.store, contents)? {
            let (name, entry) = item?;
            count.add(1)?;
            let path = path.join(&name);
            entries.push(amalgam_proto::entry(&path, &entry));
            if is_recursive && matches!(entry.node, Node::Directory(_)) {
                below.push((path, entry));
            }
            if entries.len() == ENTRIES_AT_ONCE {
                sender.send(v1::ListEntriesResponse { entries: std::mem::take(&mut entries) })?;
            }
        }
        open.extend(below.into_iter().rev());
    }
    sender.send(v1::ListEntriesResponse { entries })
}

/// Sends the bytes of a file, in blocks.
pub(super) fn read(
    service: &Service,
    request: &v1::ReadFileRequest,
    sender: &Sender<v1::ReadFileResponse>,
) -> Result<()> {
    let path = tree_path(&request.path)?;
    let (held, entry) = at(service, request.state.as_ref(), &request.workspace, &path)?;
    let message = amalgam_proto::entry(&path, &entry);
    // A conflict is read as it is rendered.
    let session = service.context.store.session();
    let entry = match &entry.node {
        Node::Conflict(conflict) => {
            let here = service.context.here(&request.workspace)?;
            let source = CaptionSource::of(held.snapshot, here.as_ref());
            let caption = service.conflicts.captioner(source).caption(&path, conflict);
            let shown = render_entry(&service.context.store, &session, conflict, Style::Markers, &caption)?;
            // If no directory shows the conflict, nothing has stored this text yet.
            session.write_all_ahead()?;
            shown.unwrap_or(entry)
        }
        _ => entry,
    };
    let (size, content) = match &entry.node {
        Node::File { size, content } => (*size, *content),
        Node::Symlink(target) => {
            return sender.send(v1::ReadFileResponse { entry: Some(message), data: target.clone() });
        }
        Node::Directory(_) => return Err(EngineError::IsADirectory { path }.into()),
        _ => {
            return Err(Error::new(
                Reason::Invalid,
                format!("{path} is {}, which has no contents", entry.kind().word()),
            ));
        }
    };
    let end = match request.length {
        0 => size,
        length => request.offset.saturating_add(length).min(size),
    };
    let mut offset = request.offset.min(size);
    let mut entry = Some(message);
    loop {
        let step = BLOCK_BYTES.min(end.saturating_sub(offset));
        let mut block = vec![0; step as usize];
        if content != Content::Empty {
            let read = read_at(&service.context.store, &content, size, offset, &mut block);
            read.map_err(|error| match error {
                EngineError::Purged { tombstone, .. } => {
                    Error::new(Reason::Purged, format!("{path} was purged {tombstone}"))
                }
                other => other.into(),
            })?;
        }
        sender.send(v1::ReadFileResponse { entry: entry.take(), data: Bytes::from(block) })?;
        offset += step;
        if offset >= end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use amalgam_engine::backend::Memory;
    use amalgam_engine::{Store, StoreOptions, Time, WorkingTree};
    use tokio_stream::StreamExt as _;

    use super::super::super::Api;
    use super::*;
    use crate::context::Clock;
    use crate::home::Home;
    use crate::serve::Calls;
    use crate::service::ServiceOptions;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_listing_of_all_below_ends_at_a_limit() {
        let around = tempfile::tempdir().expect("a directory");
        // A limit that a test reaches quickly.
        let store =
            |paths_max| Store::new(Arc::new(Memory::default()), &StoreOptions { paths_max, ..StoreOptions::default() });
        for (paths_max, is_refused) in [(300, false), (299, true)] {
            let store = store(paths_max);
            let home = Home::new(around.path().join(format!("home-{paths_max}")));
            let mut tree = WorkingTree::new(&store);
            for number in 0..290 {
                tree.create_directories(format!("{}", number % 10)).expect("made");
                tree.write(format!("{}/{number}", number % 10), b"x").expect("written");
            }
            let session = store.session();
            let root = tree.freeze().write(&session).expect("written");
            session.commit(root, amalgam_engine::RefMove::default()).expect("committed");
            let entry = store.root(root).expect("a root").directory.clone();
            drop(home.open().expect("a home"));
            let clock: Clock = || Time(5);
            let service = Service::compose(store, None, &home, ServiceOptions::new(clock.into())).expect("opened");
            let api = Api::new(service, Calls::new(), crate::api::Origin::Local);
            let list = move |service: &Service, sender: &Sender<v1::ListEntriesResponse>| {
                send_entries(service, true, (TreePath::root(), entry), sender)
            };
            let answers: Vec<_> = api.stream("ada", list).expect("begun").into_inner().collect().await;
            assert_eq!(answers.iter().any(Result::is_err), is_refused);
        }
    }
}
