//! Conflicts as people meet them.
//!
//! A tree with conflicts has a *face*: the same tree with something ordinary in the place of each conflict, a text with
//! markers or one of the versions ([`Faced`]). The face is what directories and mounts hold. What came of it there is read
//! back against it ([`read_back`]): a conflict that nobody touched is the same conflict again, an edit without markers is its
//! resolution, and an edit that leaves some stands beside the versions as a *draft*. Names of workspaces on marker lines, and the
//! structure by which a file is read, come from whoever asks ([`Caption`]). Nothing is lost on the way: a version goes
//! only when somebody puts something without markers in its place.
//!
//! Everything is a function of stored trees. What is absent: files of the host, workspaces, and any decision about when a
//! resolution is remembered.

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
