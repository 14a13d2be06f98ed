//! The arguments of a tool call, checked against the names that the tool has.

use serde_json::{Map, Value};

/// The arguments of a call.
pub struct Arguments<'a> {
    values: &'a Map<String, Value>,
}

impl<'a> Arguments<'a> {
    /// Checks the names of the arguments, and wraps them.
    ///
    /// # Errors
    /// Returns a message that names an unknown or a missing argument.
    pub fn new(values: &'a Map<String, Value>, known: &[&str], required: &[&str]) -> Result<Self, String> {
        if let Some(unknown) = values.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("there is no argument `{unknown}`; this tool takes: {}", known.join(", ")));
        }
        if let Some(missing) = required.iter().find(|name| values.get(**name).is_none_or(Value::is_null)) {
            return Err(format!("the argument `{missing}` is missing"));
        }
        Ok(Self { values })
    }

    /// Returns a text argument, or `None` if it is missing or empty.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(format!("the argument `{name}` must be a string")),
        }
    }

    /// Returns a text argument that may be empty, or `None` if it is missing.
    pub fn any_text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.values.get(name) {
            Some(Value::String(text)) => Ok(Some(text)),
            _ => self.text(name),
        }
    }

    /// Returns a list of texts; a single text is a list of one, and a missing argument an empty list.
    pub fn texts(&self, name: &str) -> Result<Vec<&'a str>, String> {
        let wrong = || format!("the argument `{name}` must be a list of strings");
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(values)) => values.iter().map(|one| one.as_str().ok_or_else(wrong)).collect(),
            Some(_) => Err(wrong()),
        }
    }

    /// Returns whether a boolean argument is set; a missing one is `false`.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(format!("the argument `{name}` must be true or false")),
        }
    }

    /// Returns a whole number, or `None` if the argument is missing.
    pub fn number(&self, name: &str) -> Result<Option<u64>, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(format!("the argument `{name}` must be a whole number from 0")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_arguments_are_named() {
        let values = json!({"a": "x", "n": 3, "list": ["y"], "flag": true});
        let values = values.as_object().expect("an object");
        let arguments = Arguments::new(values, &["a", "n", "list", "flag"], &["a"]).expect("arguments");
        assert_eq!(arguments.text("a"), Ok(Some("x")));
        assert_eq!(arguments.number("n"), Ok(Some(3)));
        assert_eq!(arguments.texts("list"), Ok(vec!["y"]));
        assert_eq!(arguments.texts("a"), Ok(vec!["x"]), "one text is a list");
        assert_eq!(arguments.flag("flag"), Ok(true));
        assert!(arguments.text("n").is_err_and(|message| message.contains("`n`")));
        assert!(Arguments::new(values, &["a"], &[]).is_err_and(|message| message.contains("takes: a")));
        assert!(
            Arguments::new(values, &["a", "n", "list", "flag", "b"], &["b"])
                .is_err_and(|message| message.contains("`b`"))
        );
    }
}
