//! The body of an answer that can be ended early: when the caller's key stops being valid, a deadline passes, or a project is closed.
//!
//! A body that its client does not read is not polled by the connection. So a task of its own ends long answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tonic::body::Body;
use tonic::{Code, Status};

/// Completes with the reason when a call must end early.
pub(crate) type Cut = Pin<Box<dyn Future<Output = Status> + Send>>;

/// Number of frames after which a response counts as long, and gets a task that can end it.
const LONG_AFTER_FRAMES: u32 = 3;

/// How a client learns that its response was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutForm {
    /// By trailers with a status.
    Trailers,
    /// By an error, which ends the connection: the client notices that bytes are missing.
    Error,
}

/// Receives the result of a call, and records it when it is dropped.
pub(crate) trait CallEnded: Send + Unpin + 'static {
    /// Sets the result code of the call.
    fn set_code(&mut self, code: Code);
    /// Sets the result code from headers or trailers, if they have one.
    fn read_code(&mut self, headers: &HeaderMap);
}

/// The body, and why it was cut.
struct Shared<E> {
    /// `None` after the body was cut.
    inner: Option<Body>,
    cut_by: Option<Status>,
    /// `None` after the call was cut. Then the call is recorded, even if its client never reads the rest.
    end: Option<E>,
    /// The reader of a body that is pending, which the task wakes when it cuts the body.
    reader: Option<Waker>,
}

impl<E: CallEnded> Shared<E> {
    /// Ends the call by a status. Dropping the body ends its work.
    fn end_by(&mut self, status: &Status) {
        self.inner = None;
        if let Some(mut end) = self.end.take() {
            end.set_code(status.code());
        }
    }
}

/// A body that can be cut.
pub(crate) struct GuardedBody<E: CallEnded> {
    shared: Arc<Mutex<Shared<E>>>,
    /// `None` once the task has it.
    cut: Option<Cut>,
    task: Option<AbortHandle>,
    frames: u32,
    form: CutForm,
}

impl<E: CallEnded> GuardedBody<E> {
    pub(crate) fn new(inner: Body, cut: Cut, form: CutForm, end: E) -> Self {
        let shared = Arc::new(Mutex::new(Shared { inner: Some(inner), cut_by: None, end: Some(end), reader: None }));
        Self { shared, cut: Some(cut), task: None, frames: 0, form }
    }

    /// Returns the last frame of a body that was cut: trailers with the status, or an error.
    fn last_frame(&self, status: Status) -> Option<Result<Frame<Bytes>, Status>> {
        match self.form {
            CutForm::Trailers => Some(Ok(Frame::trailers(status.into_http::<Body>().headers().clone()))),
            CutForm::Error => Some(Err(status)),
        }
    }

    fn start_task(&mut self) {
        let Some(cut) = self.cut.take() else { return };
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            let status = cut.await;
            let mut shared = shared.lock();
            shared.end_by(&status);
            shared.cut_by = Some(status);
            let reader = shared.reader.take();
            drop(shared);
            if let Some(reader) = reader {
                reader.wake();
            }
        });
        self.task = Some(task.abort_handle());
    }
}

impl<E: CallEnded> Drop for GuardedBody<E> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl<E: CallEnded> http_body::Body for GuardedBody<E> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let frame = {
            let mut shared = this.shared.lock();
            if let Some(status) = shared.cut_by.take() {
                return Poll::Ready(this.last_frame(status));
            }
            let Some(inner) = &mut shared.inner else { return Poll::Ready(None) };
            let frame = Pin::new(inner).poll_frame(cx);
            if let Some(end) = &mut shared.end {
                match &frame {
                    Poll::Ready(Some(Ok(frame))) => {
                        frame.trailers_ref().into_iter().for_each(|code| end.read_code(code))
                    }
                    Poll::Ready(Some(Err(status))) => end.set_code(status.code()),
                    Poll::Ready(None) | Poll::Pending => {}
                }
            }
            if frame.is_pending() && this.task.is_some() {
                shared.reader = Some(cx.waker().clone());
            }
            frame
        };
        // Most responses are complete at once; then the cut is not polled, and registers no timer.
        if frame.is_pending()
            && let Some(Poll::Ready(status)) = this.cut.as_mut().map(|cut| cut.as_mut().poll(cx))
        {
            this.cut = None;
            this.shared.lock().end_by(&status);
            return Poll::Ready(this.last_frame(status));
        }
        if matches!(frame, Poll::Ready(Some(Ok(_)))) {
            this.frames = this.frames.saturating_add(1);
            if this.frames == LONG_AFTER_FRAMES {
                this.start_task();
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let shared = self.shared.lock();
        shared.cut_by.is_none() && shared.inner.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.shared.lock().inner.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::sync::{mpsc, oneshot};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// A call whose result is not recorded.
    struct Unrecorded;

    impl CallEnded for Unrecorded {
        fn set_code(&mut self, _code: Code) {}
        fn read_code(&mut self, _headers: &HeaderMap) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_body_that_is_idle_ends_with_trailers_when_it_is_cut() {
        let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, Status>>(8);
        let (end, ended) = oneshot::channel::<()>();
        let cut: Cut = Box::pin(async move {
            let _ = ended.await;
            Status::unauthenticated("the key was revoked")
        });
        let inner = Body::new(StreamBody::new(ReceiverStream::new(receive)));
        let mut body = GuardedBody::new(inner, cut, CutForm::Trailers, Unrecorded);
        for _ in 0..=LONG_AFTER_FRAMES {
            send.send(Ok(Frame::data(Bytes::from_static(b"a")))).await.expect("the body receives");
            body.frame().await.expect("a frame").expect("data");
        }
        let reading = tokio::spawn(async move { (body.frame().await, body.frame().await) });
        // The reader waits before the call is cut.
        tokio::task::yield_now().await;
        end.send(()).expect("the task waits");
        let read = tokio::time::timeout(Duration::from_secs(60), reading).await;
        let (last, rest) = read.expect("the reader is woken").expect("the reader ends");
        let last = last.expect("a last frame").expect("trailers");
        let status = Status::from_header_map(last.trailers_ref().expect("trailers")).expect("a status");
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(rest.is_none(), "the trailers are the last frame");
        drop(send);
    }
}
