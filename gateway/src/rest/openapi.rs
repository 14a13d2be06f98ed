//! The OpenAPI document, made of the descriptors of the API and of the table of methods.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use prost_reflect::{Cardinality, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::json::is_text;
use super::route::{Part, Route, routes};
use crate::error_code::ErrorCode;
use crate::key::Scope;
use crate::method::Access;

/// Maximum depth of nested fields that are described as query parameters.
const QUERY_DEPTH_MAX: usize = 2;

/// Returns the OpenAPI document, which is built on the first call.
pub(crate) fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(build)
}

fn build() -> Value {
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for route in routes() {
        let (place, operation) = (place(route), operation(route, &mut schemas));
        let entry = paths.entry(place).or_insert_with(|| json!({}));
        entry[route.verb.as_str().to_ascii_lowercase()] = operation;
    }
    schemas.insert("Error".to_owned(), error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Amalgam",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": super::ROOT}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key"},
            },
        },
    })
}

const DESCRIPTION: &str = "State of AI agents: workspaces, snapshots, files, merges. Each path is a call of the gRPC API with the same \
     fields. A path below `/projects/{project}` works in that project; without it the header `amalgam-project` names the project, else it is \
     the only project of the key, or `default`. A slash in a name is `%2F`. In paths of files and in text of files a byte that is not UTF-8 is \
     `\\xHH` and a backslash is `\\\\`. A call with many answers is a stream of JSON lines, or of server-sent events with `Accept: \
     text/event-stream`.";

fn place(route: &Route) -> String {
    let part = |part: &Part| match part {
        Part::Word(word) => format!("/{word}"),
        Part::Field { field, .. } => format!("/{{{}}}", parameter_name(field)),
    };
    route.parts.iter().map(part).collect()
}

/// Returns the name of a path parameter: the last part of a field's path, because path templates cannot have dots.
fn parameter_name(field: &str) -> &str {
    field.rsplit('.').next().unwrap_or(field)
}

fn operation(route: &Route, schemas: &mut Map<String, Value>) -> Value {
    let (input, mut output) = (route.descriptor.input(), route.descriptor.output());
    if route.is_bare() {
        let resource = output.fields().next().and_then(|field| field.kind().as_message().cloned());
        output = resource.unwrap_or(output);
    }
    add_schema(&output, schemas);
    let in_path: BTreeSet<&str> = route
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Field { field, .. } => Some(*field),
            Part::Word(_) => None,
        })
        .collect();
    let mut parameters: Vec<_> = in_path.iter().map(|field| path_parameter(&input, field)).collect();
    parameters.push(json!({
        "name": "amalgam-project", "in": "header", "required": false, "schema": {"type": "string"},
        "description": "The project of the call",
    }));
    let has_body = route.verb != http::Method::GET && route.verb != http::Method::DELETE;
    if !has_body {
        query_parameters(&input, "", &in_path, 0, &mut parameters);
    }
    let is_stream = route.descriptor.is_server_streaming();
    let content = json!({"schema": {"$ref": format!("#/components/schemas/{}", output.name())}});
    let contents = match is_stream {
        true => json!({"application/x-ndjson": content, "text/event-stream": content}),
        false => json!({"application/json": content}),
    };
    let mut operation = json!({
        "operationId": route.descriptor.name(),
        "tags": [route.descriptor.parent_service().name()],
        "summary": summary(&comment(route.descriptor.path(), &route.descriptor.parent_file())),
        "description": needs(route.method.access),
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done", "content": contents},
            "default": {
                "description": "Refused or failed",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    });
    if has_body {
        add_schema(&input, schemas);
        let schema = json!({"$ref": format!("#/components/schemas/{}", input.name())});
        operation["requestBody"] = json!({"required": false, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

fn needs(access: Access) -> String {
    match access {
        Access::Open | Access::LocalOnly => String::new(),
        Access::Project(scopes) | Access::InProject(scopes) | Access::Server(scopes) => {
            let words: Vec<_> = scopes.iter().copied().map(Scope::word).collect();
            format!("Needs the scope `{}`.", words.join("` and `"))
        }
    }
}

fn path_parameter(input: &MessageDescriptor, field: &str) -> Value {
    let mut message = Some(input.clone());
    let mut found = None;
    for word in field.split('.') {
        found = message.and_then(|message| message.get_field_by_name(word));
        message = found.as_ref().and_then(|found| found.kind().as_message().cloned());
    }
    let description = found.map(|found| comment(found.path(), &found.parent_file())).unwrap_or_default();
    let name = parameter_name(field);
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}, "description": description})
}

fn query_parameters(
    message: &MessageDescriptor,
    prefix: &str,
    in_path: &BTreeSet<&str>,
    depth: usize,
    to: &mut Vec<Value>,
) {
    for field in message.fields() {
        let own = format!("{prefix}{}", field.name());
        if in_path.contains(own.as_str()) || field.is_map() {
            continue;
        }
        let name = format!("{prefix}{}", field.json_name());
        if let Kind::Message(inner) = field.kind()
            && inner.package_name() != "google.protobuf"
        {
            if depth + 1 < QUERY_DEPTH_MAX && !field.is_list() {
                query_parameters(&inner, &format!("{name}."), in_path, depth + 1, to);
            }
            continue;
        }
        to.push(json!({
            "name": name, "in": "query", "required": false,
            "schema": field_schema(&field, &mut Map::new()),
            "description": comment(field.path(), &field.parent_file()),
        }));
    }
}

fn add_schema(message: &MessageDescriptor, schemas: &mut Map<String, Value>) {
    let name = message.name().to_owned();
    if schemas.contains_key(&name) {
        return;
    }
    // A placeholder first: messages can contain themselves.
    schemas.insert(name.clone(), Value::Null);
    let mut properties = Map::new();
    for field in message.fields() {
        let mut schema = field_schema(&field, schemas);
        let description = comment(field.path(), &field.parent_file());
        if !description.is_empty() {
            schema["description"] = description.into();
        }
        properties.insert(field.json_name().to_owned(), schema);
    }
    let description = comment(message.path(), &message.parent_file());
    let schema = json!({
        "type": "object", "description": description, "properties": properties, "additionalProperties": false,
    });
    schemas.insert(name, schema);
}

fn field_schema(field: &FieldDescriptor, schemas: &mut Map<String, Value>) -> Value {
    if field.is_map() {
        let values = field.kind().as_message().and_then(|entry| entry.get_field_by_name("value"));
        let values = values.map_or_else(|| json!({}), |value| kind_schema(&value, schemas));
        return json!({"type": "object", "additionalProperties": values});
    }
    let one = kind_schema(field, schemas);
    if field.cardinality() == Cardinality::Repeated { json!({"type": "array", "items": one}) } else { one }
}

fn kind_schema(field: &FieldDescriptor, schemas: &mut Map<String, Value>) -> Value {
    match field.kind() {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::String => json!({"type": "string"}),
        Kind::Bytes if is_text(field) => json!({"type": "string"}),
        Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
        Kind::Float | Kind::Double => json!({"type": "number"}),
        Kind::Int32 if field.name() == "page_size" => json!({"type": "integer", "format": "int32", "minimum": 0}),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({"type": "integer", "format": "int32"}),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({"type": "integer", "format": "int64"}),
        Kind::Uint32 | Kind::Fixed32 => {
            json!({"type": "integer", "format": "uint32", "minimum": 0, "maximum": u32::MAX})
        }
        Kind::Uint64 | Kind::Fixed64 => json!({"type": "integer", "format": "uint64", "minimum": 0}),
        Kind::Enum(values) => {
            let names: Vec<_> = values.values().map(|value| value.name().to_owned()).collect();
            json!({"type": "string", "enum": names})
        }
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => json!({"type": ["string", "null"], "format": "date-time"}),
            "google.protobuf.Duration" => json!({"type": ["string", "null"]}),
            _ => {
                add_schema(&message, schemas);
                let reference = json!({"$ref": format!("#/components/schemas/{}", message.name())});
                match field.is_list() {
                    true => reference,
                    false => json!({"anyOf": [reference, {"type": "null"}]}),
                }
            }
        },
    }
}

fn error_schema() -> Value {
    let numbers: Vec<_> = ErrorCode::ALL.iter().map(|code| code.number).collect();
    let names: Vec<_> = ErrorCode::ALL.iter().map(|code| code.name).collect();
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["code", "name", "message", "details", "requestId"],
            "properties": {
                "code": {"type": "integer", "enum": numbers},
                "name": {"type": "string", "enum": names},
                "message": {"type": "string", "description": "What happened, and what to do"},
                "details": {"type": "object", "additionalProperties": {"type": "string"}},
                "requestId": {"type": "string"},
            },
        }},
    })
}

/// Returns the comment before a definition in its `.proto` file, in one line; empty if there is none.
fn comment(path: &[i32], file: &prost_reflect::FileDescriptor) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let location = info.and_then(|info| info.location.iter().find(|location| location.path == path));
    let text = location.map(|location| location.leading_comments().trim()).unwrap_or_default();
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Returns the first sentence of a comment, without its full stop.
fn summary(comment: &str) -> &str {
    comment.split_once(". ").map_or(comment, |(first, _)| first).trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_leads_to_a_schema_and_operations_have_summaries() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let text = document.to_string();
        for found in text.split("\"#/components/schemas/").skip(1) {
            let name = found.split('"').next().unwrap_or_default();
            assert!(schemas.contains_key(name), "{name}");
        }
        assert!(schemas.values().all(|schema| !schema.is_null()));
        for (path, verbs) in document["paths"].as_object().expect("paths") {
            for (verb, operation) in verbs.as_object().expect("verbs") {
                assert_ne!(operation["summary"], "", "{verb} {path}");
            }
        }
    }
}
