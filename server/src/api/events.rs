//! The gRPC methods of `EventService`: subscriptions to events.

use amalgam_engine::SnapshotId;
use amalgam_proto::v1::event_service_server::EventService;
use amalgam_proto::{Reason, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor};
use crate::error::Error;
use crate::events::{EventFilter, EventStream};

#[tonic::async_trait]
impl EventService for Api {
    type SubscribeStream = Answers<v1::SubscribeResponse>;

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (caller, request) = (actor(&request), request.into_inner());
        let opened = EventFilter::new(&request.workspaces, &request.kinds).and_then(|filter| {
            EventStream::open(&self.service.context, &request.after, filter, request.with_operation)
        });
        let mut events = opened.map_err(Error::into_status)?;
        let is_compact = request.compact;
        Api::subscribe(self, &caller, move |_, subscriber| async move {
            loop {
                let next = tokio::select! {
                    next = events.next() => next?,
                    why = subscriber.ended() => return Err(resumable(why, events.position())),
                };
                let position = events.position();
                let next = if is_compact { compact(next) } else { next };
                subscriber.send(next).await.map_err(|why| resumable(why, position))?;
            }
        })
    }
}

/// Leaves out the position of an event, which its message has, and gives the id of the snapshot as bytes.
fn compact(mut message: v1::SubscribeResponse) -> v1::SubscribeResponse {
    if let Some(event) = &mut message.event {
        event.position.clear();
        let id = event.snapshot.strip_prefix("snapshots/").and_then(SnapshotId::from_hex);
        if let Some(id) = id {
            event.snapshot.clear();
            event.snapshot_id = id.as_bytes().to_vec().into();
        }
    }
    message
}

/// Adds the position after which a subscriber continues to the error that ends its stream.
fn resumable(why: Error, position: u64) -> Error {
    match why.reason() {
        Reason::Busy => {
            let message = format!("the server ends this stream; subscribe again after position {position}");
            Error::new(Reason::Busy, message).with("position", position.to_string())
        }
        _ => why,
    }
}
