//! Renders single conflicts with a cache, for views that request them repeatedly.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::{Assembly, Entry, Name, Result, Store, Time, TreePath, WorkingTree};

use crate::caption::Captions;
use crate::render::{Style, render_entry};

/// Maximum number of cached renderings.
const ENTRIES_MAX: usize = 256;

/// A cache of rendered files of conflicts. They stay in the store while this value exists.
#[derive(Default)]
pub struct RenderCache {
    shown: Mutex<Files>,
}

type Files = HashMap<(TreePath, Conflict), (Entry, WorkingTree)>;

impl RenderCache {
    /// Returns the file that represents the conflict at a path, or `None` if it is not represented by a file.
    pub fn render(
        &self,
        store: &Store,
        path: &TreePath,
        conflict: &Conflict,
        captions: Captions<'_>,
    ) -> Result<Option<Entry>> {
        let key = (path.clone(), conflict.clone());
        let known = |shown: &Files| shown.get(&key).map(|(entry, _)| entry.clone());
        if let Some(entry) = known(&self.shown.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Some(entry));
        }
        let assembly = Assembly::new(store, None)?;
        let entry = render_entry(store, assembly.session(), conflict, Style::Markers, &captions(path, conflict))?;
        let Some(entry) = entry.filter(|entry| matches!(entry.node, Node::File { .. })) else { return Ok(None) };
        // A tree of its own protects it from garbage collection.
        let name = Name::new(b"shown").expect("a name");
        let contents = assembly.directory(None, vec![(name, Some(entry.clone()))])?;
        let top = Entry::new(Node::Directory(contents), 0o755, Time::EPOCH);
        let tree = assembly.finish(top, &Default::default())?;
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.len() >= ENTRIES_MAX {
            shown.clear();
        }
        shown.insert(key, (entry.clone(), tree));
        Ok(Some(entry))
    }
}
