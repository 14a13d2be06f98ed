//! Headers of HTTP that are about one connection, and end at a proxy.

use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};

/// Headers about one connection, beside those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers without those about one connection. Of two lengths of a body neither is kept: the library that sends it tells its own.
pub(super) fn without_hops(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for value in headers.get_all(CONNECTION) {
        for word in value.to_str().unwrap_or_default().split(',') {
            if let Ok(name) = word.trim().parse::<HeaderName>() {
                kept.remove(name);
            }
        }
    }
    for name in HOP_BY_HOP {
        kept.remove(name);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        kept.remove(CONTENT_LENGTH);
    }
    kept
}
