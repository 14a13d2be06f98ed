//! Entries of directories, in the JSON output of the agent's program for files.

use bytes::Bytes;
use serde_json::Value;
use tonic::Code;

use crate::refusal::Refusal;
use crate::wire::filesystem as wire;

/// Reads the only entry of an output.
pub(crate) fn one_entry(output: &Bytes) -> Result<wire::EntryInfo, Refusal> {
    let value: Value = serde_json::from_slice(output).map_err(|error| malformed(&error))?;
    Ok(entry_of(&value))
}

fn malformed(error: &serde_json::Error) -> Refusal {
    Refusal::new(Code::Internal, format!("the sandbox answered with something else than an entry: {error}"))
}

/// Reads entries, one in each line.
pub(crate) fn entries(output: &Bytes) -> Result<Vec<wire::EntryInfo>, Refusal> {
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).map(|value| entry_of(&value)).map_err(|error| malformed(&error)))
        .collect()
}

/// Converts the JSON form of an entry, as the agent's program for files writes it. Missing fields become empty or 0.
pub(crate) fn entry_of(value: &Value) -> wire::EntryInfo {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let kind = match value["type"].as_str() {
        Some("file") => wire::FileType::File,
        Some("directory") => wire::FileType::Directory,
        Some("symlink") => wire::FileType::Symlink,
        _ => wire::FileType::Unspecified,
    };
    let modified_time = prost_types::Timestamp {
        seconds: value["seconds"].as_i64().unwrap_or(0),
        nanos: value["nanoseconds"].as_i64().and_then(|nanoseconds| i32::try_from(nanoseconds).ok()).unwrap_or(0),
    };
    let metadata = value["metadata"].as_object().into_iter().flatten();
    wire::EntryInfo {
        name: text("name"),
        r#type: kind.into(),
        path: text("path"),
        size: value["size"].as_i64().unwrap_or(0),
        mode: value["mode"].as_u64().and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0),
        permissions: text("permissions"),
        owner: text("owner"),
        group: text("group"),
        modified_time: Some(modified_time),
        symlink_target: value["target"].as_str().map(str::to_owned),
        metadata: metadata.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
        is_symlink: value["isSymlink"] == true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_what_is_missing_is_empty() {
        let listed = Bytes::from(
            "{\"name\":\"a\",\"type\":\"file\",\"size\":3,\"mode\":420,\"metadata\":{\"k\":\"v\"}}\n{\"type\":\"directory\"}\n",
        );
        let found = entries(&listed).expect("entries");
        assert_eq!((found[0].name.as_str(), found[0].size, found[0].mode), ("a", 3, 0o644));
        assert_eq!(found[0].metadata.get("k").map(String::as_str), Some("v"));
        assert_eq!(found[1].r#type(), wire::FileType::Directory);
        assert!(entries(&Bytes::from("nonsense\n")).is_err());
    }
}
