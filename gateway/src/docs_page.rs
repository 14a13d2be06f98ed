//! The page that shows the OpenAPI document. It loads nothing from other servers.

use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body_util::Full;
use tonic::body::Body;

/// Content security policy of the page: it may load its own files and the OpenAPI document.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'none'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// Returns a file of the page, or `None` if the path names none.
pub(crate) fn file(path: &str) -> Option<Response<Body>> {
    let (media_type, text) = match path {
        "/docs" | "/docs/" => ("text/html; charset=utf-8", include_str!("docs_page/page.html")),
        "/docs/page.css" => ("text/css; charset=utf-8", include_str!("docs_page/page.css")),
        "/docs/page.js" => ("text/javascript; charset=utf-8", include_str!("docs_page/page.js")),
        _ => return None,
    };
    let mut response = Response::new(Body::new(Full::new(Bytes::from_static(text.as_bytes()))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    Some(response)
}
