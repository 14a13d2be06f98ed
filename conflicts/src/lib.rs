//! Presentation of conflicts to users, and interpretation of their edits.
//!
//! A tree with conflicts is *rendered*: each conflict is replaced by an ordinary entry, either a text with markers or one of the
//! versions ([`RenderedTree`]). Directories and mounts contain the rendered tree. Edits of it are read back against it
//! ([`read_back`]): an unchanged conflict stays the same conflict, an edit without markers is its resolution, and an edit that
//! leaves markers becomes a *draft*, an additional version of the conflict. The caller supplies the workspace names on marker
//! lines and the structure of the file ([`Caption`]). No version is lost: a version is dropped only when a user replaces it with
//! contents without markers.
//!
//! All functions work on stored trees. Not in this crate: files of the host, workspaces, and the decision whether to remember a
//! resolution.

mod caption;
mod choice;
mod contents;
mod read_back;
mod render;
mod render_cache;
mod terms;

pub use caption::{Caption, Captions};
pub use choice::{Choice, NotResolved, resolution_file, resolution_of};
pub use contents::read_whole;
pub use read_back::{KnownRendering, MovedConflict, ReadBack, ResolvedConflict, StillConflicted, read_back};
pub use render::{RenderedTree, Style, render_entry};
pub use render_cache::RenderCache;
pub use terms::{Term, kind_word, render_text, terms, without_draft};
