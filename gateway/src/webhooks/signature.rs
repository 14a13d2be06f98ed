//! The headers of a delivery: those of Standard Webhooks, and `X-Webhook-*` with a signature of the body alone.

use amalgam_engine::Time;
use data_encoding::{BASE64, HEXLOWER};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{CONTENT_TYPE, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use sha2::Sha256;

use crate::webhook::signing_key;

const AGENT: &str = concat!("amalgam/", env!("CARGO_PKG_VERSION"));

/// The parts of a delivery that its headers contain, and the secret that signs it.
pub(super) struct MessageHead<'a> {
    /// The id of the event. All attempts to deliver it have the same id.
    pub(super) id: &'a str,
    pub(super) kind: &'a str,
    /// The time of the attempt.
    pub(super) time: Time,
    pub(super) secret: &'a str,
}

/// Returns the headers of a delivery, with its signatures.
///
/// # Errors
/// The secret cannot be used.
pub(super) fn signed_headers(head: &MessageHead<'_>, body: &[u8]) -> Result<HeaderMap, String> {
    let seconds = head.time.0.div_euclid(1_000_000_000);
    let signed = [head.id.as_bytes(), b".", seconds.to_string().as_bytes(), b".", body].concat();
    let standard = format!("v1,{}", BASE64.encode(&mac(&signing_key(head.secret)?, &signed)));
    // A signature of the body alone, with the text of the secret as the key.
    let simple = format!("sha256={}", HEXLOWER.encode(&mac(head.secret.as_bytes(), body)));
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("webhook-id", head.id),
        ("webhook-timestamp", &seconds.to_string()),
        ("webhook-signature", &standard),
        ("x-webhook-event", head.kind),
        ("x-webhook-timestamp", &head.time.0.div_euclid(1_000_000).to_string()),
        ("x-webhook-signature", &simple),
    ] {
        let value = HeaderValue::from_str(value).map_err(|error| error.to_string())?;
        headers.insert(HeaderName::from_static(name), value);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Ok(headers)
}

fn mac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length fits");
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_published_examples() {
        // The example of the Standard Webhooks specification's libraries.
        let head = MessageHead {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
            kind: "workspace.committed",
            time: Time(1_614_265_330_000_000_000),
            secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        };
        let headers = signed_headers(&head, br#"{"test": 2432232314}"#).expect("headers");
        assert_eq!(headers["webhook-signature"], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        assert_eq!(headers["x-webhook-timestamp"], "1614265330000");
        // HMAC-SHA256 of RFC 4231, test case 2, has a key of four bytes; this one is its form for a longer text.
        let simple = headers["x-webhook-signature"].to_str().expect("text");
        assert_eq!(simple.len(), "sha256=".len() + 64);
    }

    #[test]
    fn the_digest_is_that_of_rfc_4231() {
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(HEXLOWER.encode(&mac(b"Jefe", b"what do ya want for nothing?")), expected);
    }
}
