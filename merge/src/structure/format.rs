//! The interface of a structured format, and the errors of its parser.

use super::node::Document;

/// The interface of a format.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    pub(crate) parse: for<'a> fn(&'a str) -> Result<Document<'a>, ParseError>,
    /// Returns the comments of a text, for formats that have comments.
    pub(crate) comments: Option<for<'a> fn(&'a str) -> Vec<&'a str>>,
    /// Returns whether documents write the same item in the same way, for formats that have several ways.
    pub(crate) is_consistent: Option<fn(&[&Document<'_>]) -> bool>,
}

/// An error of a parser.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    pub(crate) at: usize,
    pub(crate) what: &'static str,
    /// Whether the format allows it and only the merge does not support it.
    pub(crate) is_unhandled: bool,
}

impl ParseError {
    pub(crate) fn malformed(at: usize, what: &'static str) -> Self {
        Self { at, what, is_unhandled: false }
    }

    pub(crate) fn unhandled(at: usize, what: &'static str) -> Self {
        Self { at, what, is_unhandled: true }
    }
}

/// Maximum nesting depth of a document.
pub(crate) const DEPTH_MAX: usize = 128;
