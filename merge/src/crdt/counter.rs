//! Counters: adds the increments of both sides.

use super::value::{Value, entries};
use crate::structure::{Kind, Node};

const COUNTER: &str = "$counter";

/// Returns the sum, or `None` if a side is not a counter of whole numbers. A missing counter in the base starts at 0.
pub(super) fn add<'a>(base: Option<&Node<'_>>, one: &Node<'_>, other: &Node<'_>) -> Option<Value<'a>> {
    let start = base.and_then(count).unwrap_or(0);
    let sum = count(one)?.checked_add(count(other)?)?.checked_sub(start)?;
    Some(Value::Map(vec![("\"$counter\"", Value::Made(sum.to_string()))]))
}

fn count(node: &Node<'_>) -> Option<i128> {
    match matches!(node.kind, Kind::Map(_)) && entries(node).len() == 1 {
        true => node.field(COUNTER)?.parse().ok(),
        false => None,
    }
}
