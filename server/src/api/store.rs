//! The gRPC methods of `StoreService`: the store and its process.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use amalgam_engine::verify::{Record, Repaired};
use amalgam_engine::{VerifyOptions, VerifyReport, repair, verify};
use amalgam_proto::v1::store_service_server::StoreService;
use amalgam_proto::v1::verify_store_response::Event;
use amalgam_proto::{API_VERSION, Reason, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::error::{Error, Result};
use crate::messages::Phase;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl StoreService for Api {
    type VerifyStoreStream = Answers<v1::VerifyStoreResponse>;

    async fn get_store(&self, _request: Request<v1::GetStoreRequest>) -> Answer<v1::GetStoreResponse> {
        let context = &self.service.context;
        if context.is_store_removed() {
            self.calls.report_removed_store();
            let message = "the directory of the store was removed or replaced; run the command again";
            return Err(Error::new(Reason::Busy, message).into_status());
        }
        Ok(Response::new(v1::GetStoreResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api_version: API_VERSION,
            path: crate::messages::path_bytes(context.home.path()),
            process_id: std::process::id(),
            start_time: Some(amalgam_proto::timestamp(context.started)),
            calls: self.calls.under_way(),
            problems: self.service.problems.to_vec(),
            watched: u32::try_from(self.service.directories.watched()).unwrap_or(u32::MAX),
            mounted: u32::try_from(self.service.views.mounted()).unwrap_or(u32::MAX),
        }))
    }

    async fn verify_store(&self, request: Request<v1::VerifyStoreRequest>) -> Answer<Self::VerifyStoreStream> {
        let (actor, request) = self.identified(request);
        let tell = |progress| v1::VerifyStoreResponse { event: Some(Event::Progress(progress)) };
        self.long(&actor.clone(), Phase::Verify, tell, move |service, progress, _| {
            let options = if request.read_data { VerifyOptions::reading_data() } else { VerifyOptions::default() };
            // An object that a collection deletes during the check would seem to be missing.
            let _held = service.collections.hold_collections(&|| progress.check().is_ok())?;
            let result = match request.repair {
                true => service.context.once(&actor, &request, || {
                    let done = repair(&service.context.store, &options)?;
                    let words = done.done.iter().map(repaired_words).collect();
                    Ok(v1::VerifyResult { repaired: words, ..report_message(&done.left) })
                })?,
                false => {
                    let watch = |now: &amalgam_engine::verify::VerifyProgress| {
                        progress.files.store(now.objects, Relaxed);
                        progress.files_total.store(now.objects_total, Relaxed);
                        progress.bytes.store(now.bytes, Relaxed);
                        progress.bytes_total.store(now.bytes_total, Relaxed);
                        if progress.check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    };
                    let report = verify(&service.context.store, &options, &watch)?;
                    report_message(&report)
                }
            };
            Ok(v1::VerifyStoreResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn measure_store(&self, request: Request<v1::MeasureStoreRequest>) -> Answer<v1::MeasureStoreResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            service.collections.measure_store(&request.page_token, page_size(request.page_size)?)
        })
        .await
    }

    async fn stop_server(&self, request: Request<v1::StopServerRequest>) -> Answer<v1::StopServerResponse> {
        self.local_only()?;
        let (watching, mounted, force) =
            (self.service.directories.watching_calls(), self.service.views.mounted(), request.into_inner().force);
        if mounted > 0 && !force {
            let what = if mounted == 1 { "1 file system is" } else { &format!("{mounted} file systems are") };
            let message = format!("{what} mounted; `amalgam umount --all` first, or `amalgam stop --force`");
            return Err(Error::new(Reason::Busy, message).into_status());
        }
        if watching > 0 && !force {
            let what = if watching == 1 { "1 `amalgam watch` is" } else { &format!("{watching} `amalgam watch` are") };
            let message = format!("{what} running; end it first, or `amalgam stop --force`");
            return Err(Error::new(Reason::Busy, message).into_status());
        }
        let clients = self.service.exports.statistics().map_or(0, |found| found.connections);
        if clients > 0 && !force {
            let what = if clients == 1 { "1 NFS client is" } else { &format!("{clients} NFS clients are") };
            let message = format!("{what} connected; `amalgam unexport` first, or `amalgam stop --force`");
            return Err(Error::new(Reason::Busy, message).into_status());
        }
        self.calls.stop(force);
        let watches = u32::try_from(self.service.directories.background_watches()).unwrap_or(u32::MAX);
        Ok(Response::new(v1::StopServerResponse { watches }))
    }
}

fn report_message(report: &VerifyReport) -> v1::VerifyResult {
    let objects = report.problems.iter().map(|problem| v1::VerifyProblem {
        subject: problem.id.to_string(),
        message: problem.damage.to_string(),
        places: problem
            .places
            .iter()
            .map(|place| {
                let refs = place.refs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                format!("{}: /{}", if refs.is_empty() { place.top.to_string() } else { refs }, place.path)
            })
            .collect(),
    });
    let records = report.records.iter().map(|problem| v1::VerifyProblem {
        subject: record_words(&problem.record),
        message: problem.why.clone(),
        places: Vec::new(),
    });
    v1::VerifyResult {
        clean: report.is_clean(),
        objects: report.objects,
        bytes: report.bytes,
        unreachable: report.unreachable,
        thinned: report.thinned,
        problems: objects.chain(records).collect(),
        repaired: Vec::new(),
        purged: report.purged,
    }
}

fn record_words(record: &Record) -> String {
    match record {
        Record::Index(key) => format!("index row {key:02x?}"),
        Record::Reference(name) => format!("reference {name}"),
        Record::Operation(number) => format!("operation {number}"),
        Record::Request(id) => format!("request {}", String::from_utf8_lossy(id)),
        Record::ChangedPaths(snapshot) => format!("marks of what snapshot {snapshot} changed"),
        Record::Rows(family) => format!("rows of {family:?}"),
    }
}

fn repaired_words(repaired: &Repaired) -> String {
    match repaired {
        Repaired::Quarantined { id, damage } => format!("{id} put into quarantine: {damage}"),
        Repaired::Restored { id } => format!("{id} stored again from the cache of this node"),
        Repaired::Found { id } => format!("{id} found again"),
        Repaired::Dropped { id } => format!("an unreferenced row of {id} removed"),
        Repaired::QuarantinedRow { family, number } => format!("row {number} of {family:?} put into quarantine"),
        Repaired::Record { record, remedy } => format!("{}: {remedy}", record_words(record)),
    }
}
