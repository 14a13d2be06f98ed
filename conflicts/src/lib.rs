//! Presentation of conflicts to users, and interpretation of their edits.
//!
//! A tree with conflicts has a *face*: the tree with each conflict replaced by an ordinary entry, either a text with markers or
//! one of the versions ([`Faced`]). Directories and mounts contain the face. Edits of the face are read back against it
//! ([`read_back`]): an unchanged conflict stays the same conflict, an edit without markers is its resolution, and an edit that
//! leaves markers becomes a *draft*, an additional version of the conflict. The caller supplies the workspace names on marker
//! lines and the structure of the file ([`Caption`]). No version is lost: a version is dropped only when a user replaces it with
//! contents without markers.
//!
//! All functions work on stored trees. Not in this crate: files of the host, workspaces, and the decision whether to remember a
//! resolution.

mod caption;
mod choice;
mod face;
mod parts;
mod read;
mod read_back;
mod stage;

pub use caption::{Caption, Captions};
pub use choice::{Choice, NotResolved, chosen, file_of};
pub use face::{Faced, Style, shown_as};
pub use parts::{Term, render, terms, without_draft, word};
pub use read::read_whole;
pub use read_back::{Known, Moved, ReadBack, Resolved, Still, read_back};
pub use stage::Stage;
