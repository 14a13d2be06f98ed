//! The colours, by meaning.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};

/// The id of a snapshot.
pub const ID: Style = AnsiColor::Yellow.on_default();
/// The name of a workspace.
pub const WORKSPACE: Style = AnsiColor::Cyan.on_default().bold();
/// A label.
pub const LABEL: Style = AnsiColor::Magenta.on_default();
/// Added paths and lines.
pub const ADDED: Style = AnsiColor::Green.on_default();
/// Removed paths and lines.
pub const REMOVED: Style = AnsiColor::Red.on_default();
/// Modified paths.
pub const MODIFIED: Style = AnsiColor::Yellow.on_default();
/// The header of a hunk.
pub const HUNK: Style = AnsiColor::Cyan.on_default();
/// A title.
pub const TITLE: Style = Style::new().bold();
/// Less important text.
pub const FAINT: Style = Style::new().dimmed();
/// Success.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// A warning.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Failure.
pub const FAILURE: Style = AnsiColor::Red.on_default().bold();
/// No colour at all.
pub const PLAIN: Style = Style::new();

/// Wraps a text in the escape sequences of a style.
pub fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}
