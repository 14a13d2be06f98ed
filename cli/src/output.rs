//! The output of a command: lines for people or JSON lines for programs on standard output, remarks on standard error.
//!
//! A command passes both forms of a result and does not ask which one is printed. Nothing else in this program
//! writes to standard output, but for children that inherit it.

pub mod graph;
pub mod json;
mod pager;
pub mod progress;
pub mod style;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Write};

use anstream::ColorChoice;
use anstream::adapter::strip_str;
use serde_json::Value;

use crate::error::CliError;
use crate::text;
use pager::Pager;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Options of the output.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// Whether to print JSON lines.
    pub json: bool,
    /// Whether to print only results: no remarks, no progress, no confirmations.
    pub quiet: bool,
    /// The number of `-v` flags.
    pub verbose: u8,
    /// When to use colours.
    pub color: Color,
    /// The pager for long output; `None` for no pager.
    pub pager: Option<String>,
}

/// The output of a command.
pub struct Output {
    options: OutputOptions,
    styled: bool,
    styled_remarks: bool,
    /// Whether a terminal shows the output, by itself or in a pager.
    is_terminal: bool,
    sink: BufWriter<Box<dyn Write>>,
    pager: Option<Pager>,
}

/// Returns whether a command line asks for JSON, without parsing it.
pub fn wants_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

impl Output {
    /// Creates an output that writes to standard output.
    pub fn new(options: OutputOptions) -> Self {
        let styled = is_styled(options.color, anstream::AutoStream::choice(&io::stdout()));
        let styled_remarks = is_styled(options.color, anstream::AutoStream::choice(&io::stderr()));
        let sink = BufWriter::new(Box::new(io::stdout()) as Box<dyn Write>);
        Self { options, styled, styled_remarks, is_terminal: io::stdout().is_terminal(), sink, pager: None }
    }

    /// Returns whether JSON lines are printed.
    pub fn is_json(&self) -> bool {
        self.options.json
    }

    /// Returns whether only results are printed.
    pub fn is_quiet(&self) -> bool {
        self.options.quiet
    }

    /// Returns whether details are printed (`-v`).
    pub fn is_verbose(&self) -> bool {
        self.options.verbose > 0
    }

    /// Returns whether progress may be shown: standard error is a terminal, and neither JSON, `--quiet` nor a pager is active.
    pub fn shows_progress(&self) -> bool {
        !self.options.json && !self.options.quiet && self.pager.is_none() && io::stderr().is_terminal()
    }

    /// Shows the output from here on in a pager if standard output is a terminal.
    pub fn page(&mut self) {
        if self.options.json || self.pager.is_some() || !io::stdout().is_terminal() {
            return;
        }
        let Some(command) = &self.options.pager else { return };
        if let Some((pager, stdin)) = Pager::start(command) {
            self.sink = BufWriter::new(Box::new(stdin));
            self.pager = Some(pager);
        }
    }

    /// Prints a line for people.
    pub fn say(&mut self, line: impl Display) -> Result<(), CliError> {
        if self.options.json {
            return Ok(());
        }
        let line = line.to_string();
        let line = if self.is_terminal { text::line(&line) } else { line.into() };
        if self.styled {
            writeln!(self.sink, "{line}")?
        } else {
            writeln!(self.sink, "{}", strip_str(&line))?
        }
        Ok(())
    }

    /// Prints a confirmation for people, unless `--quiet` is given.
    pub fn done(&mut self, line: impl Display) -> Result<(), CliError> {
        if self.options.quiet { Ok(()) } else { self.say(line) }
    }

    /// Prints a line for programs. `value` is an object with a `type`.
    pub fn emit(&mut self, value: &Value) -> Result<(), CliError> {
        debug_assert!(value["type"].is_string(), "every line says what it is");
        if self.options.json {
            writeln!(self.sink, "{value}")?;
        }
        Ok(())
    }

    /// Prints bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.sink.write_all(bytes)?;
        Ok(())
    }

    /// Prints contents of files, in `style` if colours are enabled. On a terminal, control characters are escaped.
    pub fn raw_styled(&mut self, style: anstyle::Style, bytes: &[u8]) -> Result<(), CliError> {
        let shown = if self.is_terminal { text::contents(bytes) } else { bytes.into() };
        let bytes = &*shown;
        if !self.styled || bytes.is_empty() {
            return self.raw(bytes);
        }
        let (line, end) = match bytes.strip_suffix(b"\n") {
            Some(line) => (line, "\n"),
            None => (bytes, ""),
        };
        write!(self.sink, "{style}")?;
        self.sink.write_all(line)?;
        write!(self.sink, "{style:#}{end}")?;
        Ok(())
    }

    /// Prints a remark, for example a hint or an omission, on standard error. Standard output has results only.
    pub fn remark(&mut self, line: impl Display) -> Result<(), CliError> {
        if self.options.json || self.options.quiet {
            return Ok(());
        }
        self.flush()?;
        self.to_stderr(&line.to_string());
        Ok(())
    }

    /// Prints an error, as text or as JSON.
    pub fn failure(&mut self, error: &CliError) {
        // Buffered output comes first. If it cannot be written, the error is still printed.
        drop(self.flush());
        if self.options.json {
            let line = serde_json::json!({
                "type": "error", "reason": error.reason, "message": error.message, "hint": error.hint,
            });
            self.to_stderr(&line.to_string());
        } else if error.is_interrupt() {
            self.to_stderr(&error.to_string());
        } else {
            // The message can hold arguments and names from outside, so it is escaped.
            let (style, words) = (style::FAILURE, error.to_string());
            self.to_stderr(&format!("{style}error:{style:#} {}", text::printable(&words)));
        }
    }

    /// Prints the text of an error as it is.
    pub fn failure_text(&mut self, text: &str) {
        self.to_stderr(text);
    }

    fn to_stderr(&self, line: &str) {
        let line = if io::stderr().is_terminal() { text::line(line) } else { line.into() };
        let line = if self.styled_remarks { line.into_owned() } else { strip_str(&line).to_string() };
        // A closed standard error cannot be reported.
        drop(writeln!(io::stderr(), "{line}"));
    }

    /// Writes buffered output.
    pub fn flush(&mut self) -> Result<(), CliError> {
        self.sink.flush()?;
        Ok(())
    }

    /// Ends the output; waits until the user has closed the pager.
    pub fn finish(&mut self) -> Result<(), CliError> {
        let flushed = self.flush();
        if let Some(pager) = self.pager.take() {
            self.sink = BufWriter::new(Box::new(io::sink()));
            pager.wait();
        }
        flushed
    }
}

fn is_styled(color: Color, detected: ColorChoice) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => detected != ColorChoice::Never,
    }
}
