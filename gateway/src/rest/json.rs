//! JSON of messages: protobuf's own mapping, with two differences. 64-bit numbers are numbers, and bytes that are paths or text of files
//! are text.
//!
//! In such text a byte that is not UTF-8 is `\xHH`, and a backslash is `\\`.

use data_encoding::BASE64;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _, SerializeOptions};
use serde_json::{Map, Value};

/// Fields of type `bytes` with these names hold binary data, which is base64 in JSON. All others hold text or paths.
const BINARY: [&str; 6] = ["data", "content", "token", "have", "value", "digest"];

/// Returns whether a field of type `bytes` holds text.
pub(crate) fn is_text(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Bytes) && !BINARY.contains(&field.name())
}

/// Converts a message to JSON. Fields with default values are included.
pub(crate) fn to_json(message: &DynamicMessage) -> Result<Value, String> {
    let options = SerializeOptions::new().stringify_64_bit_integers(false).skip_default_fields(false);
    let mut value = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| format!("an answer has no JSON form: {error}"))?;
    convert(&message.descriptor(), &mut value, &|text| BASE64.decode(text.as_bytes()).map(|bytes| escape(&bytes)).ok());
    Ok(value)
}

/// Converts a JSON object to a message.
///
/// # Errors
/// Says which field is unknown or wrong.
pub(crate) fn from_json(descriptor: &MessageDescriptor, mut value: Value) -> Result<DynamicMessage, String> {
    if !value.is_object() {
        return Err("the body is not a JSON object".to_owned());
    }
    let wrong = std::cell::RefCell::new(None);
    convert(descriptor, &mut value, &|text| match unescape(text) {
        Some(bytes) => Some(BASE64.encode(&bytes)),
        None => {
            *wrong.borrow_mut() = Some(format!("`{}`: a backslash begins \\\\ or \\xHH", text.escape_debug()));
            None
        }
    });
    if let Some(wrong) = wrong.into_inner() {
        return Err(wrong);
    }
    DynamicMessage::deserialize(descriptor.clone(), value).map_err(|error| error.to_string())
}

/// Refuses values that protobuf's JSON mapping accepts but the OpenAPI document does not describe: numbers in quotes, numbers of
/// enum values, and nulls for anything but a message.
///
/// # Errors
/// Says which field is wrong.
pub(crate) fn check_types(descriptor: &MessageDescriptor, object: &Map<String, Value>) -> Result<(), String> {
    if descriptor.package_name() == "google.protobuf" {
        return Ok(());
    }
    for field in descriptor.fields() {
        let Some(found) = object.get(field.json_name()).or_else(|| object.get(field.name())) else { continue };
        match (field.kind(), found) {
            (Kind::Message(entry), Value::Object(entries)) if field.is_map() => {
                let Some(value) = entry.get_field_by_name("value") else { continue };
                entries.values().try_for_each(|one| check_value(&value, one))?;
            }
            (_, Value::Array(values)) if field.is_list() => {
                values.iter().try_for_each(|one| match one {
                    Value::Null => Err(format!("`{}`: a list has no null", field.json_name())),
                    one => check_value(&field, one),
                })?;
            }
            (_, found) if field.is_list() || field.is_map() => {
                return Err(format!("`{}`: {} is no list and no map", field.json_name(), word(found)));
            }
            (_, found) => check_value(&field, found)?,
        }
    }
    Ok(())
}

fn check_value(field: &FieldDescriptor, value: &Value) -> Result<(), String> {
    let is_right = match (field.kind(), value) {
        (Kind::Message(inner), Value::Object(object)) => return check_types(&inner, object),
        // Times and durations are strings.
        (Kind::Message(inner), Value::String(_)) => inner.package_name() == "google.protobuf",
        (Kind::Message(_), Value::Null) => true,
        (Kind::Bool, Value::Bool(_)) | (Kind::String | Kind::Bytes | Kind::Enum(_), Value::String(_)) => true,
        (Kind::Float | Kind::Double, Value::Number(_)) => true,
        (
            Kind::Message(_) | Kind::Bool | Kind::String | Kind::Bytes | Kind::Enum(_) | Kind::Float | Kind::Double,
            _,
        ) => false,
        (_, Value::Number(number)) => number.is_i64() || number.is_u64(),
        _ => false,
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("`{}`: {} is no value of this field", field.json_name(), word(value))),
    }
}

/// Returns the type of a JSON value in words, for error messages.
fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "this number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns the first field that an object has under both of its names, or `None` if there is none.
pub(crate) fn given_twice(descriptor: &MessageDescriptor, object: &Map<String, Value>) -> Option<String> {
    let is_twice = |field: &FieldDescriptor| {
        field.name() != field.json_name() && object.contains_key(field.name()) && object.contains_key(field.json_name())
    };
    descriptor.fields().find(is_twice).map(|field| field.json_name().to_owned())
}

/// Replaces the strings of all text fields of a message, at every depth. A string for which `replace` returns `None` stays.
fn convert(descriptor: &MessageDescriptor, value: &mut Value, replace: &dyn Fn(&str) -> Option<String>) {
    let Value::Object(object) = value else { return };
    // Messages with a JSON form of their own have no fields in it.
    if descriptor.package_name() == "google.protobuf" {
        return;
    }
    for field in descriptor.fields() {
        let Some(found) = field_value(object, &field) else { continue };
        match field.kind() {
            Kind::Bytes if is_text(&field) => each(found, &mut |one| {
                if let Value::String(text) = one
                    && let Some(new) = replace(text)
                {
                    *text = new;
                }
            }),
            Kind::Message(inner) if field.is_map() => {
                let Some(kind) = inner.get_field_by_name("value").map(|value| value.kind()) else { continue };
                if let (Some(inner), Value::Object(entries)) = (kind.as_message(), found) {
                    entries.values_mut().for_each(|one| convert(inner, one, replace));
                }
            }
            Kind::Message(inner) => each(found, &mut |one| convert(&inner, one, replace)),
            _ => {}
        }
    }
}

/// Returns the value of a field, under its JSON name or its protobuf name.
fn field_value<'a>(object: &'a mut Map<String, Value>, field: &FieldDescriptor) -> Option<&'a mut Value> {
    let name = if object.contains_key(field.json_name()) { field.json_name() } else { field.name() };
    object.get_mut(name)
}

fn each(value: &mut Value, change: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(change),
        one => change(one),
    }
}

/// Escapes bytes as text: bytes that are not UTF-8 become `\xHH`, and backslashes are doubled.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// Decodes text of [`escape`] to bytes. Returns `None` if a backslash begins no valid escape sequence.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest {
            [b'\\', more @ ..] => {
                bytes.push(b'\\');
                rest = more;
            }
            // The conversion would also accept a plus sign.
            [b'x', high, low, more @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                rest = more;
            }
            _ => return None,
        }
    }
    Some(bytes)
}

/// Builds the JSON object that the query of a URL describes, for example `a=1&a=2&b.c=x`.
///
/// # Errors
/// Says which field is unknown or wrong.
pub(crate) fn object_of_query(
    descriptor: &MessageDescriptor,
    pairs: impl IntoIterator<Item = (String, String)>,
) -> Result<Value, String> {
    let mut root = Value::Object(Map::new());
    for (name, value) in pairs {
        set(descriptor, &mut root, &name, &value)?;
    }
    Ok(root)
}

/// Sets a field of a JSON object, named by a path with dots, from text. A value for a list is appended.
///
/// # Errors
/// Says why the field cannot have that value.
pub(crate) fn set(descriptor: &MessageDescriptor, root: &mut Value, name: &str, text: &str) -> Result<(), String> {
    let unknown = || format!("there is no field `{}`", name.escape_debug());
    let (mut message, mut object) = (descriptor.clone(), root);
    let mut words = name.split('.').peekable();
    while let Some(word) = words.next() {
        let field = message
            .get_field_by_json_name(word)
            .or_else(|| message.get_field_by_name(word))
            .filter(|field| !field.is_map())
            .ok_or_else(unknown)?;
        let Value::Object(fields) = object else { return Err(unknown()) };
        let key = field.json_name().to_owned();
        if field.name() != key {
            // The same field under its other name would take precedence.
            fields.remove(field.name());
        }
        if words.peek().is_some() {
            message = field.kind().as_message().cloned().filter(|_| !field.is_list()).ok_or_else(unknown)?;
            object = fields.entry(key).or_insert_with(|| Value::Object(Map::new()));
            continue;
        }
        let value = scalar(&field, text)
            .ok_or_else(|| format!("`{}` is no value of the field `{word}`", text.escape_debug()))?;
        if !field.is_list() {
            fields.insert(key, value);
        } else if let Value::Array(values) = fields.entry(key).or_insert_with(|| Value::Array(Vec::new())) {
            values.push(value);
        }
        return Ok(());
    }
    Err(unknown())
}

fn scalar(field: &FieldDescriptor, text: &str) -> Option<Value> {
    match field.kind() {
        Kind::Bool => match text {
            "true" | "1" => Some(Value::Bool(true)),
            "false" | "0" => Some(Value::Bool(false)),
            _ => None,
        },
        Kind::Message(message) if message.package_name() != "google.protobuf" => None,
        // Protobuf's JSON mapping accepts numbers as strings.
        _ => Some(Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::schema;

    fn message(name: &str) -> MessageDescriptor {
        schema().get_message_by_name(&format!("amalgam.v1.{name}")).expect("a message")
    }

    #[test]
    fn any_bytes_survive_as_text() {
        for bytes in [&b"plain"[..], b"", b"a\\b", b"\xff\xfe", b"caf\xc3\xa9 \xe2\x82", b"\\x41"] {
            assert_eq!(unescape(&escape(bytes)).expect("its own text"), bytes, "{bytes:?}");
        }
        assert_eq!(escape(b"src/\xffmain.rs"), r"src/\xffmain.rs");
        for bad in ["\\", "\\q", "\\x", "\\x4", "\\xzz", "\\x+f", "\\x\u{e4}"] {
            assert!(unescape(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn paths_are_text_and_contents_are_base64() {
        let read =
            from_json(&message("ReadFileRequest"), serde_json::json!({"path": "a/\\xff", "offset": 7})).expect("read");
        let path = read.get_field_by_name("path").and_then(|value| value.as_bytes().cloned()).expect("a path");
        assert_eq!(&path[..], b"a/\xff");
        let json = to_json(&read).expect("written");
        assert_eq!((&json["path"], &json["offset"]), (&"a/\\xff".into(), &7.into()));
        let data = from_json(&message("ReadFileResponse"), serde_json::json!({"data": "AAE="})).expect("read");
        assert_eq!(
            data.get_field_by_name("data").and_then(|value| value.as_bytes().cloned()).as_deref(),
            Some(&[0, 1][..])
        );
    }

    #[test]
    fn a_query_sets_nested_and_repeated_fields() {
        let diff = message("DiffStatesRequest");
        let pairs = [("before.revision", "@~"), ("paths", "a"), ("paths", "b"), ("renames", "true")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let object = object_of_query(&diff, pairs).expect("an object");
        let expected = serde_json::json!({"before": {"revision": "@~"}, "paths": ["a", "b"], "renames": true});
        assert_eq!(object, expected);
        from_json(&diff, object).expect("a message");
        for bad in ["nothing", "before.nothing", "before", "paths.x", ""] {
            assert!(object_of_query(&diff, [(bad.to_owned(), "x".to_owned())]).is_err(), "{bad}");
        }
        for bad in ["", "x", "TRUE"] {
            assert!(object_of_query(&diff, [("renames".to_owned(), bad.to_owned())]).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_that_the_document_does_not_describe_are_refused() {
        let check = |name: &str, value: Value| check_types(&message(name), value.as_object().expect("an object"));
        for (name, good) in [
            ("ListFilesRequest", serde_json::json!({"pageSize": 5, "recursive": true, "path": "a"})),
            ("CommitEditsRequest", serde_json::json!({"edits": [{"write": {"path": "a", "text": "b", "mode": 420}}]})),
            (
                "CommitEditsRequest",
                serde_json::json!({"metadata": {"a": "b"}, "kind": "COMMIT_KIND_STEP", "reward": 1}),
            ),
            ("CreateKeyRequest", serde_json::json!({"expireTime": "2024-01-15T10:30:00Z", "agent": "a"})),
            ("CreateKeyRequest", serde_json::json!({"expireTime": null})),
        ] {
            assert_eq!(check(name, good.clone()), Ok(()), "{good}");
        }
        for (name, bad) in [
            ("ListFilesRequest", serde_json::json!({"pageSize": "5"})),
            ("ListFilesRequest", serde_json::json!({"page_size": 5.5})),
            ("ListFilesRequest", serde_json::json!({"recursive": "true"})),
            ("ListFilesRequest", serde_json::json!({"recursive": null})),
            ("ListFilesRequest", serde_json::json!({"path": 5})),
            ("CommitEditsRequest", serde_json::json!({"edits": {}})),
            ("CommitEditsRequest", serde_json::json!({"edits": [null]})),
            ("CommitEditsRequest", serde_json::json!({"edits": [{"write": {"path": null}}]})),
            ("CommitEditsRequest", serde_json::json!({"edits": [{"write": {"mode": null}}]})),
            ("CommitEditsRequest", serde_json::json!({"kind": 1})),
            ("CommitEditsRequest", serde_json::json!({"metadata": {"a": 1}})),
            ("CommitEditsRequest", serde_json::json!({"metadata": []})),
            ("CreateKeyRequest", serde_json::json!({"expireTime": 5})),
        ] {
            assert!(check(name, bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_fields_and_wrong_types_are_refused() {
        let create = message("CreateWorkspaceRequest");
        for bad in [
            serde_json::json!({"nothing": 1}),
            serde_json::json!({"workspaceId": 5}),
            serde_json::json!([1]),
            Value::Null,
        ] {
            assert!(from_json(&create, bad.clone()).is_err(), "{bad}");
        }
    }
}
