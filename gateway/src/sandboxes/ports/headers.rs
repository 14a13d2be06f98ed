//! The headers of requests to programs in sandboxes, and of their answers.
//!
//! Hop-by-hop headers end here, in both directions, and so does every credential of the server. The HTTP library sets the length of
//! a body anew, so that the program and the server agree on where a request ends.

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, EXPECT, FORWARDED,
    HOST, HeaderName, LOCATION, REFERER, REFERRER_POLICY, SET_COOKIE, UPGRADE,
};
use http::{HeaderMap, HeaderValue};

use crate::sandboxes::hop_headers::without_hops;

/// Headers of a request that are meant for the server, or that only the server may set.
const FOR_SERVER: [HeaderName; 10] = [
    AUTHORIZATION,
    CONTENT_LENGTH,
    EXPECT,
    FORWARDED,
    HOST,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-access-token"),
    HeaderName::from_static("e2b-traffic-access-token"),
    HeaderName::from_static("e2b-sandbox-id"),
    HeaderName::from_static("e2b-sandbox-port"),
];
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// Content security policy that gives a page an origin of its own, because it shares the server's host with the API and with other
/// sandboxes.
const OPAQUE_ORIGIN: HeaderValue = HeaderValue::from_static(
    "sandbox allow-downloads allow-forms allow-modals allow-pointer-lock allow-popups allow-scripts",
);

/// The route to a program in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The part of URLs before the program's own path, without a final slash; empty if the program has a host name of its own.
    pub(super) prefix: String,
    /// Whether the URL contains a credential.
    pub(super) is_secret: bool,
    pub(super) port: u16,
    pub(super) is_tls: bool,
}

/// Returns the headers of a request for the program. `authorization` is the `Authorization` header that is meant for the program.
pub(super) fn for_program(headers: &HeaderMap, route: &Route, authorization: Option<HeaderValue>) -> HeaderMap {
    let mut kept = without_hops(headers);
    for name in FOR_SERVER {
        kept.remove(name);
    }
    let is_own = |name: &HeaderName| name.as_str().starts_with("amalgam-") || name.as_str().starts_with("x-forwarded-");
    let own: Vec<_> = kept.keys().filter(|name| is_own(name)).cloned().collect();
    for name in own {
        kept.remove(name);
    }
    if route.is_secret {
        // It contains the URL of the page, and so the token.
        kept.remove(REFERER);
    }
    // Development servers often accept this host name only.
    if let Ok(host) = HeaderValue::from_str(&format!("localhost:{}", route.port)) {
        kept.insert(HOST, host);
    }
    if let Some(host) = headers.get(HOST).filter(|_| !(route.is_secret && route.prefix.is_empty())) {
        kept.insert(FORWARDED_HOST, host.clone());
    }
    kept.insert(FORWARDED_PROTO, HeaderValue::from_static(if route.is_tls { "https" } else { "http" }));
    if !route.is_secret
        && !route.prefix.is_empty()
        && let Ok(prefix) = HeaderValue::from_str(&route.prefix)
    {
        kept.insert(FORWARDED_PREFIX, prefix);
    }
    if let Some(authorization) = authorization {
        kept.insert(AUTHORIZATION, authorization);
    }
    kept
}

/// Returns the headers of a response for the client.
pub(super) fn for_client(headers: &HeaderMap, route: &Route) -> HeaderMap {
    let mut kept = without_hops(headers);
    if route.is_secret {
        kept.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    }
    if route.prefix.is_empty() {
        return kept;
    }
    kept.append(CONTENT_SECURITY_POLICY, OPAQUE_ORIGIN);
    if route.is_secret {
        // The page has an opaque origin, so its own requests are cross-origin. They carry the token, and need nothing else.
        kept.entry(ACCESS_CONTROL_ALLOW_ORIGIN).or_insert(HeaderValue::from_static("*"));
    }
    if let Some(location) = kept.get(LOCATION).and_then(|value| moved(value, route)) {
        kept.insert(LOCATION, location);
    }
    let cookies: Vec<_> = kept.get_all(SET_COOKIE).iter().filter_map(|cookie| within(cookie, route)).collect();
    kept.remove(SET_COOKIE);
    for cookie in cookies {
        kept.append(SET_COOKIE, cookie);
    }
    kept
}

/// Returns the protocol that a request asks to upgrade to, for example `websocket`, or `None` if it asks for no upgrade.
pub(super) fn wanted_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let is_upgrade = named.any(|value| value.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")));
    headers.get(UPGRADE).filter(|_| is_upgrade).cloned()
}

/// Returns a redirect to a path of the program with the prefix of its URLs added, or `None` if it leads elsewhere or is relative.
fn moved(location: &HeaderValue, route: &Route) -> Option<HeaderValue> {
    let text = location.to_str().ok()?;
    let hosts = [format!("http://localhost:{}", route.port), format!("http://127.0.0.1:{}", route.port)];
    let path = hosts.iter().find_map(|host| text.strip_prefix(host.as_str())).unwrap_or(text);
    let is_absolute = path.starts_with('/') && !path.starts_with("//");
    (is_absolute || path.is_empty()).then(|| HeaderValue::from_str(&format!("{}{path}", route.prefix)).ok()).flatten()
}

/// Returns a cookie with its path limited to the program and without its domain. `None` if it is no valid text.
fn within(cookie: &HeaderValue, route: &Route) -> Option<HeaderValue> {
    let text = cookie.to_str().ok()?;
    let is_kept = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default().trim();
        !name.eq_ignore_ascii_case("path") && !name.eq_ignore_ascii_case("domain")
    };
    let mut parts: Vec<_> = text.split(';').take(1).collect();
    parts.extend(text.split(';').skip(1).filter(is_kept));
    HeaderValue::from_str(&format!("{}; Path={}/", parts.join(";"), route.prefix)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value"))).collect()
    }

    fn route(prefix: &str, is_secret: bool) -> Route {
        Route { prefix: prefix.to_owned(), is_secret, port: 8000, is_tls: false }
    }

    #[test]
    fn credentials_hops_and_forged_headers_do_not_reach_the_program() {
        let sent = headers(&[
            ("host", "amalgam.example:8080"),
            ("x-api-key", "am_secret"),
            ("x-access-token", "am_secret"),
            ("e2b-traffic-access-token", "am_secret"),
            ("authorization", "Bearer am_secret"),
            ("proxy-authorization", "Basic am_secret"),
            ("amalgam-project", "p"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "forged"),
            ("forwarded", "for=1.2.3.4"),
            ("connection", "close, X-Private, Host"),
            ("x-private", "1"),
            ("keep-alive", "300"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("accept", "text/html"),
            ("cookie", "a=b"),
            ("referer", "http://amalgam.example/x"),
        ]);
        let kept = for_program(&sent, &route("/api/v1/sandboxes/sbx-1/ports/8000", false), None);
        let expected = headers(&[
            ("host", "localhost:8000"),
            ("x-forwarded-host", "amalgam.example:8080"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-prefix", "/api/v1/sandboxes/sbx-1/ports/8000"),
            ("accept", "text/html"),
            ("cookie", "a=b"),
            ("referer", "http://amalgam.example/x"),
        ]);
        assert_eq!(kept, expected);
        let own = for_program(&sent, &route("/ports/token", true), Some("Basic own".parse().expect("a value")));
        assert!(own.values().all(|value| !value.to_str().is_ok_and(|text| text.contains("token"))), "{own:?}");
        assert_eq!(own.get(AUTHORIZATION).map(HeaderValue::as_bytes), Some(b"Basic own".as_slice()));
        assert!(!own.contains_key(REFERER));
    }

    #[test]
    fn redirections_and_cookies_stay_within_the_prefix() {
        let at = |location: &str| {
            let kept = for_client(&headers(&[("location", location)]), &route("/ports/t", true));
            kept.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        assert_eq!(at("/login?next=/a"), "/ports/t/login?next=/a");
        assert_eq!(at("http://localhost:8000/x"), "/ports/t/x");
        assert_eq!(at("http://127.0.0.1:8000"), "/ports/t");
        for elsewhere in ["https://example.org/", "//example.org/", "next", "http://localhost:80001/"] {
            assert_eq!(at(elsewhere), elsewhere);
        }
        let set = headers(&[("set-cookie", "id=7; path=/; HttpOnly; Domain=example.org; Max-Age=5")]);
        let kept = for_client(&set, &route("/ports/t", true));
        assert_eq!(
            kept.get(SET_COOKIE).map(HeaderValue::as_bytes),
            Some(&b"id=7; HttpOnly; Max-Age=5; Path=/ports/t/"[..])
        );
        assert!(kept.get(CONTENT_SECURITY_POLICY).is_some_and(|value| value.as_bytes().starts_with(b"sandbox ")));
        let own_host = for_client(&set, &route("", true));
        assert_eq!(own_host.get(SET_COOKIE), set.get(SET_COOKIE));
        assert!(!own_host.contains_key(CONTENT_SECURITY_POLICY));
    }

    #[test]
    fn an_answer_with_two_lengths_has_none() {
        let kept =
            for_client(&headers(&[("transfer-encoding", "chunked"), ("content-length", "3")]), &route("", false));
        assert!(kept.is_empty(), "{kept:?}");
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let wanted = |pairs: &[(&'static str, &str)]| wanted_protocol(&headers(pairs)).is_some();
        assert!(wanted(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]));
        assert!(!wanted(&[("connection", "keep-alive"), ("upgrade", "websocket")]));
        assert!(!wanted(&[("connection", "upgrade")]));
    }
}
