//! The two forms of a message: JSON and binary.

use std::sync::LazyLock;

use bytes::Bytes;
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::refusal::Refusal;
use crate::wire::DESCRIPTORS;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("the build wrote the descriptors"));

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    Binary,
}

impl Codec {
    /// Returns the codec of a content type without its prefix `application/` or `application/connect+`; `None` for an unknown one.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        match word {
            "json" => Some(Self::Json),
            "proto" => Some(Self::Binary),
            _ => None,
        }
    }

    pub(crate) fn unary_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Binary => "application/proto",
        }
    }

    /// Clients compare it byte by byte.
    pub(crate) fn stream_type(self) -> &'static str {
        match self {
            Self::Json => "application/connect+json",
            Self::Binary => "application/connect+proto",
        }
    }

    /// Reads a message. Fields that it does not know are left out.
    pub(crate) fn decode<T: Message + Name + Default>(self, bytes: &[u8]) -> Result<T, Refusal> {
        let wrong = |why: String| Refusal::invalid(format!("{}: {why}", T::NAME));
        match self {
            Self::Binary => T::decode(bytes).map_err(|error| wrong(error.to_string())),
            Self::Json if bytes.is_empty() => Ok(T::default()),
            Self::Json => {
                let mut text = serde_json::Deserializer::from_slice(bytes);
                let options = DeserializeOptions::new().deny_unknown_fields(false);
                let read = DynamicMessage::deserialize_with_options(descriptor::<T>(), &mut text, &options);
                let read = read.and_then(|read| text.end().map(|()| read));
                let read = read.map_err(|error| wrong(error.to_string()))?;
                read.transcode_to().map_err(|error| wrong(error.to_string()))
            }
        }
    }

    /// Writes a message.
    pub(crate) fn encode<T: Message + Name>(self, message: &T) -> Bytes {
        match self {
            Self::Binary => message.encode_to_vec().into(),
            Self::Json => {
                let mut dynamic = DynamicMessage::new(descriptor::<T>());
                let mut text = Vec::new();
                // A message of the same descriptor always fits, and a vector takes everything.
                let _ = dynamic.transcode_from(message);
                let mut writer = serde_json::Serializer::new(&mut text);
                let _ = dynamic.serialize_with_options(&mut writer, &SerializeOptions::new());
                text.into()
            }
        }
    }
}

fn descriptor<T: Name>() -> MessageDescriptor {
    POOL.get_message_by_name(&T::full_name()).expect("every message of the crate is in its descriptors")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::filesystem::{EntryInfo, FileType, StatResponse};
    use crate::wire::process::{ProcessEvent, SendSignalRequest, StartRequest, process_event};

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn both_forms_of_a_message_read_the_same() {
        let event = ProcessEvent {
            event: Some(process_event::Event::End(process_event::EndEvent {
                exit_code: -1,
                exited: false,
                status: "signal: killed".to_owned(),
                error: None,
            })),
        };
        for codec in [Codec::Json, Codec::Binary] {
            assert_eq!(codec.decode::<ProcessEvent>(&codec.encode(&event)).expect("read"), event);
        }
        assert_eq!(text(&Codec::Json.encode(&event)), r#"{"end":{"exitCode":-1,"status":"signal: killed"}}"#);
    }

    #[test]
    fn json_has_the_forms_that_clients_expect() {
        let entry = EntryInfo { size: 5, r#type: FileType::Directory.into(), ..EntryInfo::default() };
        let shown = Codec::Json.encode(&StatResponse { entry: Some(entry) });
        assert_eq!(text(&shown), r#"{"entry":{"type":"FILE_TYPE_DIRECTORY","size":"5"}}"#);
        let pretty =
            b"{\n  \"process\": {\"cmd\": \"/bin/bash\", \"args\": [\"-l\"], \"later\": [1]},\n  \"stdin\": false\n}";
        let request: StartRequest = Codec::Json.decode(pretty).expect("read");
        assert_eq!((request.process.expect("given").cmd.as_str(), request.stdin), ("/bin/bash", Some(false)));
        let signal: SendSignalRequest = Codec::Json.decode(br#"{"signal":"SIGNAL_SIGKILL"}"#).expect("read");
        assert_eq!(signal.signal, 9);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let deep = "[".repeat(100_000);
        for bad in ["x", "[]", "{\"process\": 1}", "{} {}", "\u{0}", &deep] {
            let refused = Codec::Json.decode::<StartRequest>(bad.as_bytes()).expect_err("malformed");
            assert_eq!(refused.code, tonic::Code::InvalidArgument, "{bad:.20}");
        }
        assert!(Codec::Binary.decode::<StartRequest>(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
