//! Figures, and the report that gathers them.

use std::fmt::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use crate::Result;

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// Nothing: it is there for comparison.
    None,
    /// The value must not be above this.
    AtMost(f64),
    /// The value must not be below this.
    AtLeast(f64),
}

/// Something measured.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// What came out.
    pub value: f64,
    /// In what.
    pub unit: &'static str,
    /// What it is held against.
    pub bar: Bar,
    /// How it was measured: peer, repetitions, sizes, spread.
    pub how: String,
}

/// The figures of one run.
pub struct Report {
    machine: String,
    quick: bool,
    figures: Vec<Figure>,
}

impl Bar {
    /// Whether a value meets it; nothing when there is no bar.
    pub fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtMost(bar) => Some(value <= bar),
            Self::AtLeast(bar) => Some(value >= bar),
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::AtMost(bar) => write!(f, "<= {}", number(*bar)),
            Self::AtLeast(bar) => write!(f, ">= {}", number(*bar)),
        }
    }
}

impl Report {
    /// An empty report of a run on this machine. A quick run claims nothing.
    pub fn new(machine: String, quick: bool) -> Self {
        Self { machine, quick, figures: Vec::new() }
    }

    /// Takes a figure in.
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// A table in Markdown.
    pub fn table(&self) -> String {
        let mut rows = vec![["figure", "value", "unit", "bar", "met"].map(str::to_owned)];
        for figure in &self.figures {
            rows.push([
                figure.name.clone(),
                number(figure.value),
                figure.unit.to_owned(),
                figure.bar.to_string(),
                self.met(figure).map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        let mut table = format!("{}\n", self.machine);
        if self.quick {
            table.push_str("A quick run over small sizes: no figure here says anything about its bar.\n");
        }
        table.push('\n');
        for (index, row) in rows.iter().enumerate() {
            let [name, value, unit, bar, met] = row;
            let [a, b, c, d, e] = widths;
            writeln!(table, "| {name:a$} | {value:>b$} | {unit:c$} | {bar:d$} | {met:e$} |").expect("a string");
            if index == 0 {
                let lines = widths.map(|width| "-".repeat(width + 2));
                writeln!(table, "|{}|", lines.join("|")).expect("a string");
            }
        }
        table
    }

    /// Writes the figures as a list of objects.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let figures: Vec<Value> = self.figures.iter().map(|figure| self.object(figure)).collect();
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")?;
        Ok(())
    }

    fn object(&self, figure: &Figure) -> Value {
        let bar = (figure.bar != Bar::None).then(|| figure.bar.to_string());
        let quick = if self.quick { "quick run, small sizes; " } else { "" };
        json!({
            "figure": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "bar": bar,
            "met": self.met(figure),
            "how": format!("{quick}{}; {}", figure.how, self.machine),
        })
    }

    fn met(&self, figure: &Figure) -> Option<bool> {
        figure.bar.is_met(figure.value).filter(|_| !self.quick)
    }
}

/// Three digits that count, without an exponent.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_met_from_their_side() {
        assert_eq!(Bar::AtMost(2.0).is_met(2.0), Some(true));
        assert_eq!(Bar::AtMost(2.0).is_met(2.1), Some(false));
        assert_eq!(Bar::AtLeast(2.0).is_met(1.9), Some(false));
        assert_eq!(Bar::None.is_met(1.0), None);
    }

    #[test]
    fn a_quick_run_claims_nothing() {
        let mut report = Report::new("a machine".to_owned(), true);
        let name = "commit".to_owned();
        report.add(Figure { name, value: 12.34, unit: "us", bar: Bar::AtMost(100.0), how: "once".to_owned() });
        assert!(report.table().contains("| commit |  12.3 | us   | <= 100 |     |"), "{}", report.table());
        assert_eq!(report.object(&report.figures[0])["met"], Value::Null);
    }
}
