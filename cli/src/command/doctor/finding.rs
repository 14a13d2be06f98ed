//! The findings of `amalgam doctor`.

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// The check passed.
    Fine,
    /// Not available, without consequences for anything else.
    Note,
    /// It works, but not well.
    Warning,
    /// It does not work.
    Failure,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject of the check: a stable word.
    pub subject: &'static str,
    /// The severity.
    pub grade: Grade,
    /// The result of the check.
    pub message: String,
    /// The advice, if there is any.
    pub advice: Option<String>,
}

impl Finding {
    /// Returns the finding of a check that passed.
    pub fn fine(subject: &'static str, message: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Fine, message: message.into(), advice: None }
    }

    /// Returns a finding about a part that is not available, without consequences for anything else.
    pub fn note(subject: &'static str, message: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Note, message: message.into(), advice: None }
    }

    /// Returns a finding about a part that works, but not well.
    pub fn warning(subject: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Warning, message: message.into(), advice: Some(advice.into()) }
    }

    /// Returns a finding about a part that does not work.
    pub fn failure(subject: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Failure, message: message.into(), advice: Some(advice.into()) }
    }
}
