//! A receiver of webhooks on loopback: it answers as it is told, and keeps what it got.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// One request that came.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    pub fn header(&self, name: &str) -> String {
        self.headers[name].to_str().unwrap().to_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Default)]
struct State {
    received: Vec<Received>,
    /// The next answers; afterwards every request is taken. Nothing means that no answer is sent.
    answers: VecDeque<Option<u16>>,
}

/// The receiver. It ends when it is dropped.
pub struct Receiver {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _task: JoinSet<()>,
}

impl Receiver {
    pub async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let mut task = JoinSet::new();
        let shared = Arc::clone(&state);
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    let service = service_fn(|request| answer(Arc::clone(&shared), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address, state, _task: task }
    }

    /// Sets the next answers.
    pub fn answer(&self, answers: impl IntoIterator<Item = Option<u16>>) {
        self.state.lock().unwrap().answers.extend(answers);
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook?x=1", self.address)
    }

    /// Waits until so many requests came, and returns all.
    pub async fn wait_for(&self, count: usize) -> Vec<Received> {
        let waiting = async {
            loop {
                let received = self.received();
                if received.len() >= count {
                    return received;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .unwrap_or_else(|_| panic!("only {} requests of {count} came", self.received().len()))
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.lock().unwrap().received.clone()
    }
}

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let status = {
        let mut state = state.lock().unwrap();
        state.received.push(Received { path: head.uri.to_string(), headers: head.headers, body });
        state.answers.pop_front().unwrap_or(Some(204))
    };
    let Some(status) = status else { std::future::pending().await };
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    if (300..400).contains(&status) {
        response.headers_mut().insert("location", "http://127.0.0.1:1/elsewhere".parse().unwrap());
    }
    Ok(response)
}
