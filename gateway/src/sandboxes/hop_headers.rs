//! Hop-by-hop headers of HTTP, which a proxy does not forward.

use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};

/// Hop-by-hop headers, beside those that `Connection` names.
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

/// Returns the headers without hop-by-hop ones. `Content-Length` beside `Transfer-Encoding` is removed, too: the HTTP library sets
/// its own.
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
