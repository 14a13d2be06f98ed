//! Webhooks as values: the id, the URL, the secret, and the state of each delivery.

use std::fmt;
use std::str::FromStr;

use amalgam_engine::Time;
use amalgam_server::EventFilter;
use data_encoding::{BASE32_NOPAD, BASE64};
use http::Uri;

use crate::project::ProjectName;

const ID_BYTES: usize = 10;
/// Maximum length of a URL, in bytes.
const URL_BYTES_MAX: usize = 2_048;
/// Maximum number of kinds, and of workspaces, in the filter of one webhook.
const FILTERS_MAX: usize = 100;
/// Prefix of a secret in base64, as defined by Standard Webhooks.
const SECRET_PREFIX: &str = "whsec_";
const SECRET_BYTES: usize = 32;
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 16..=128;
/// The kind of a test event.
pub(crate) const TEST_KIND: &str = "webhook.test";
/// The kind of the event that reports that other events were trimmed before they could be sent.
pub(crate) const LOST_KIND: &str = "events.lost";

/// The name of a webhook: 16 characters of `a-z` and `2-7`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WebhookId(String);

impl WebhookId {
    /// Generates an id from the system's random source.
    pub(crate) fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; ID_BYTES];
        getrandom::fill(&mut random)?;
        Ok(Self(BASE32_NOPAD.encode(&random).to_ascii_lowercase()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WebhookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WebhookId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte);
        match text.len() == 16 && text.bytes().all(is_allowed) {
            true => Ok(Self(text.to_owned())),
            false => Err("a webhook id has 16 characters of a-z and 2-7".to_owned()),
        }
    }
}

/// The parameters of a new webhook.
#[derive(Clone, Debug)]
pub struct NewWebhook {
    /// The project whose events are sent.
    pub project: ProjectName,
    /// The address.
    pub url: String,
    /// Kinds of events; empty for all.
    pub kinds: Vec<String>,
    /// Workspaces, as `workspaces/{workspace}`; empty for all.
    pub workspaces: Vec<String>,
    /// The secret; `None` to generate one.
    pub secret: Option<String>,
}

impl NewWebhook {
    /// Checks the address, the filters and the secret.
    ///
    /// # Errors
    /// Says which field is wrong and why.
    pub fn check(&self) -> Result<(), String> {
        parse_url(&self.url).map_err(|why| format!("url: {why}"))?;
        if self.kinds.len() > FILTERS_MAX || self.workspaces.len() > FILTERS_MAX {
            return Err(format!("kinds, workspaces: at most {FILTERS_MAX} each"));
        }
        EventFilter::new(&self.workspaces, &self.kinds).map_err(|error| error.to_string())?;
        if self.workspaces.iter().any(|name| name.contains('\n')) {
            return Err("workspaces: a name has no line break".to_owned());
        }
        self.secret.as_deref().map_or(Ok(()), |secret| signing_key(secret).map(drop))
    }
}

/// A webhook in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// The project whose events are sent.
    pub project: ProjectName,
    /// The address.
    pub url: String,
    /// Kinds of events; empty for all.
    pub kinds: Vec<String>,
    /// Workspaces; empty for all.
    pub workspaces: Vec<String>,
    /// The secret that signs deliveries.
    pub(crate) secret: String,
    /// When it was made.
    pub created: Time,
    /// The position up to which deliveries were queued; `None` before the server has processed the webhook.
    pub position: Option<u64>,
}

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// It is queued.
    Pending,
    /// The receiver accepted it.
    Delivered,
    /// All attempts failed.
    Failed,
}

impl DeliveryState {
    /// Returns the word of the state in the catalog and in responses.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        [Self::Pending, Self::Delivered, Self::Failed].into_iter().find(|state| state.word() == word)
    }
}

/// One event for one webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its number among those of the webhook.
    pub number: i64,
    /// The position of the event; `None` for a test and for events of sandboxes.
    pub position: Option<u64>,
    /// The kind of the event.
    pub kind: String,
    /// Its state.
    pub state: DeliveryState,
    /// The number of attempts.
    pub attempts: u32,
    /// The HTTP status of the last answer; 0 without one.
    pub status: u16,
    /// Why the last attempt failed.
    pub error: String,
    /// When it was queued.
    pub created: Time,
    /// When it was last attempted.
    pub attempted: Option<Time>,
    /// When it is attempted next.
    pub next: Option<Time>,
    /// The event as JSON, if the log of the project does not have it.
    pub(crate) event: Option<String>,
}

/// Generates a secret from the system's random source.
pub(crate) fn new_secret() -> Result<String, getrandom::Error> {
    let mut random = [0; SECRET_BYTES];
    getrandom::fill(&mut random)?;
    Ok(format!("{SECRET_PREFIX}{}", BASE64.encode(&random)))
}

/// Returns the key with which Standard Webhooks signs: the decoded rest of `whsec_...`, or the text itself.
///
/// # Errors
/// The secret is too short, too long, or not base64 behind its prefix.
pub(crate) fn signing_key(secret: &str) -> Result<Vec<u8>, String> {
    if !SECRET_LENGTHS.contains(&secret.len()) || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("secret: 16 to 128 visible ASCII characters".to_owned());
    }
    match secret.strip_prefix(SECRET_PREFIX) {
        None => Ok(secret.as_bytes().to_vec()),
        Some(rest) => BASE64.decode(rest.as_bytes()).map_err(|_| format!("secret: no base64 behind {SECRET_PREFIX}")),
    }
}

/// Parses and checks the URL of a receiver.
///
/// # Errors
/// Says which rule the URL breaks.
pub(crate) fn parse_url(text: &str) -> Result<Uri, String> {
    if text.len() > URL_BYTES_MAX {
        return Err(format!("longer than {URL_BYTES_MAX} bytes"));
    }
    let url: Uri = text.parse().map_err(|error| format!("{error}"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err("begins with http:// or https://".to_owned());
    }
    match url.authority() {
        None => Err("has no host".to_owned()),
        Some(authority) if authority.as_str().contains('@') => Err("has no user and no password".to_owned()),
        Some(authority) if authority.host().is_empty() => Err("has no host".to_owned()),
        Some(_) => Ok(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_another_scheme_a_user_or_no_host_are_refused() {
        for good in ["http://a.example/x?y=1", "https://a.example", "http://[::1]:80/", "http://127.0.0.1:1/"] {
            assert!(parse_url(good).is_ok(), "{good}");
        }
        for bad in
            ["", "/x", "ftp://a.example", "file:///etc/passwd", "http://a:b@c.example/", "http:///x", "a.example"]
        {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
        assert!(parse_url(&format!("http://a.example/{}", "x".repeat(URL_BYTES_MAX))).is_err());
    }

    #[test]
    fn secrets_are_decoded_behind_their_prefix_only() {
        assert_eq!(signing_key(&new_secret().expect("random")).expect("a key").len(), SECRET_BYTES);
        assert_eq!(signing_key("0123456789abcdef"), Ok(b"0123456789abcdef".to_vec()));
        for bad in ["short", "whsec_!!!!!!!!!!!!", "0123456789 abcdef", &"x".repeat(129)] {
            assert!(signing_key(bad).is_err(), "{bad}");
        }
    }
}
