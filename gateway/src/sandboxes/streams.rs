//! Streams the output of commands and terminals, from an offset on.

use std::sync::Arc;

use amalgam_engine::Time;
use amalgam_proto::v1;
use amalgam_sandbox::{Command, Stream, Terminal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::messages::Event;

/// Maximum number of messages that are queued for a slow client.
const QUEUE: usize = 8;
/// Maximum number of bytes of a UTF-8 character.
const CHARACTER_BYTES_MAX: usize = 4;

/// Streams the output of a command. The command waits for a slow client, and goes on if the client disconnects.
pub(super) fn command_stream<T: From<Event> + Send + 'static>(
    command: Arc<Command>,
    first: Option<Event>,
    offset: u64,
    is_binary: bool,
    now: fn() -> Time,
) -> ReceiverStream<Result<T, Status>> {
    let (send, receive) = mpsc::channel(QUEUE);
    let mut reader = command.reader(offset);
    tokio::spawn(async move {
        if let Some(first) = first
            && send.send(Ok(first.into())).await.is_err()
        {
            return;
        }
        let mut texts = [Text::default(), Text::default()];
        loop {
            let (part, end) = tokio::select! {
                found = reader.next() => found,
                () = send.closed() => return,
            };
            let mut is_truncated = part.skipped > 0;
            for chunk in part.chunks {
                let mut event = Event::of_stream(chunk.stream, &command.id, now());
                event.next_offset = chunk.offset + chunk.data.len() as u64;
                event.is_truncated = std::mem::take(&mut is_truncated);
                if is_binary {
                    event.output = chunk.data;
                } else {
                    event.data = texts[usize::from(chunk.stream == Stream::Stderr)].add(&chunk.data);
                    if event.data.is_empty() {
                        continue;
                    }
                }
                if send.send(Ok(event.into())).await.is_err() {
                    return;
                }
            }
            let offset = part.next;
            let Some(end) = end else { continue };
            for (stream, text) in [Stream::Stdout, Stream::Stderr].into_iter().zip(texts) {
                let mut event = Event::of_stream(stream, &command.id, now());
                (event.data, event.next_offset) = (text.rest(), offset);
                if !event.data.is_empty() && send.send(Ok(event.into())).await.is_err() {
                    return;
                }
            }
            let _ = send.send(Ok(Event::of_end(&command.id, end, offset, now()).into())).await;
            return;
        }
    });
    ReceiverStream::new(receive)
}

/// Streams the output of a terminal.
pub(super) fn terminal_stream(
    terminal: Arc<Terminal>,
    mut offset: u64,
) -> ReceiverStream<Result<v1::AttachTerminalResponse, Status>> {
    let (send, receive) = mpsc::channel(QUEUE);
    let number = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
    tokio::spawn(async move {
        loop {
            let (part, end) = tokio::select! {
                found = terminal.next(offset) => found,
                () = send.closed() => return,
            };
            for chunk in part.chunks {
                let message = v1::AttachTerminalResponse {
                    r#type: "output".to_owned(),
                    next_offset: number(chunk.offset + chunk.data.len() as u64),
                    data: chunk.data,
                    ..v1::AttachTerminalResponse::default()
                };
                if send.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            offset = part.next;
            let Some(end) = end else { continue };
            let mut message =
                v1::AttachTerminalResponse { next_offset: number(offset), ..v1::AttachTerminalResponse::default() };
            match end {
                Ok(code) => (message.r#type, message.exit_code) = ("exit".to_owned(), code),
                Err(why) => (message.r#type, message.message) = ("error".to_owned(), why),
            }
            let _ = send.send(Ok(message)).await;
            return;
        }
    });
    ReceiverStream::new(receive)
}

/// Decodes UTF-8 that arrives in parts. An incomplete character is kept until the rest arrives.
#[derive(Debug, Default)]
struct Text {
    cut: Vec<u8>,
}

impl Text {
    fn add(&mut self, data: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(data);
        if let Err(error) = std::str::from_utf8(&bytes) {
            // `error_len` is `None` when the input ended within a character.
            let last = bytes.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
            if (error.error_len().is_none() || last > 0)
                && last < CHARACTER_BYTES_MAX
                && is_cut(&bytes[bytes.len() - last..])
            {
                self.cut = bytes.split_off(bytes.len() - last);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn rest(self) -> String {
        String::from_utf8_lossy(&self.cut).into_owned()
    }
}

/// Returns whether bytes are the beginning of an incomplete UTF-8 character.
fn is_cut(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_cut_is_put_together_and_other_bytes_are_replaced() {
        let all = "a\u{e4}\u{20ac}\u{1f600}z".as_bytes();
        for size in 1..=all.len() {
            let mut text = Text::default();
            let mut whole: String = all.chunks(size).map(|part| text.add(part)).collect();
            whole += &text.rest();
            assert_eq!(whole.as_bytes(), all, "{size}");
        }
        let mut text = Text::default();
        assert_eq!(text.add(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(text.add(b"\xe2\x82"), "");
        assert_eq!(text.add(b"x"), "\u{fffd}x");
        assert_eq!(text.add(b"\xe2"), "");
        assert_eq!(text.rest(), "\u{fffd}");
    }
}
