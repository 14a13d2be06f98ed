//! What `amalgam doctor` reports.

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// Success.
    Fine,
    /// It is not there or not possible, and nothing else suffers from it.
    Note,
    /// It works, but could work better.
    Warning,
    /// It does not work.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject of the check: a stable word.
    pub subject: &'static str,
    /// How grave it is.
    pub grade: Grade,
    /// The result of the check.
    pub message: String,
    /// What to do.
    pub advice: Option<String>,
}

impl Finding {
    /// Success.
    pub fn fine(subject: &'static str, message: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Fine, message: message.into(), advice: None }
    }

    /// It is not there or not possible, and nothing else suffers from it.
    pub fn note(subject: &'static str, message: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Note, message: message.into(), advice: None }
    }

    /// It works, but could work better.
    pub fn warning(subject: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Warning, message: message.into(), advice: Some(advice.into()) }
    }

    /// It does not work.
    pub fn failure(subject: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Failure, message: message.into(), advice: Some(advice.into()) }
    }
}
