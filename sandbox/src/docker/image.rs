//! Names of images, and images that are pulled.

use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ImageConfig;
use bollard::query_parameters::CreateImageOptionsBuilder;
use tokio_stream::StreamExt as _;

use crate::error::{Result, SandboxError};
use crate::runtime::Progress;

/// The longest name of an image.
const NAME_BYTES_MAX: usize = 255;
/// Minimum interval between progress reports of a pull.
const TELL_INTERVAL: Duration = Duration::from_secs(2);
const NOT_FOUND: u16 = 404;

/// Returns whether a text can be the name of an image. Names become parts of paths in calls to the engine.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let is_part = |part: &str| part.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) && !name.contains("..") && name.split('/').all(is_part)
}

/// Returns whether an error of the engine is "not found".
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: NOT_FOUND, .. })
}

/// Returns the configuration of an image; `None` if the engine does not have the image.
pub(super) async fn find(docker: &Docker, name: &str) -> Result<Option<ImageConfig>, Error> {
    match docker.inspect_image(name).await {
        Ok(image) => Ok(Some(image.config.unwrap_or_default())),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Pulls an image, and reports the progress.
pub(super) async fn pull(docker: &Docker, name: &str, progress: &Progress) -> Result<()> {
    progress.tell(&format!("the image {name} is pulled"));
    // Without a tag the engine would pull all of them.
    let is_tagged = name.rsplit('/').next().is_some_and(|last| last.contains([':', '@']));
    let whole = if is_tagged { name.to_owned() } else { format!("{name}:latest") };
    let options = CreateImageOptionsBuilder::new().from_image(&whole).build();
    let mut steps = std::pin::pin!(docker.create_image(Some(options), None, None));
    let mut told = Instant::now();
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| SandboxError::NoImage { image: name.to_owned(), why: reason(&error) })?;
        if told.elapsed() < TELL_INTERVAL {
            continue;
        }
        told = Instant::now();
        let detail = step.progress_detail.unwrap_or_default();
        let layer = step.id.unwrap_or_default();
        if let (Some(status), Some(done), Some(all)) = (step.status, detail.current, detail.total) {
            progress.tell(&format!("{status} {layer}: {done} of {all} bytes"));
        }
    }
    progress.tell(&format!("the image {name} is there"));
    Ok(())
}

/// Returns the message of an error of the engine.
fn reason(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_cannot_lead_a_call_elsewhere() {
        for good in ["base", "python:3.12", "ghcr.io/a/b:1.0", "localhost:5000/x", "a@sha256:0f", "sha256:0f"] {
            assert!(is_name(good), "{good}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in
            ["", "/x", "x/", "x//y", "../x", "a/../b", "a..b", "x?y=1", "x#y", "a b", "x%2fy", "\u{e4}", "-x", &long]
        {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
