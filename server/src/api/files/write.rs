//! Writes of files from a stream. No thread waits for the client: data that arrived goes to the journal in large pieces.

use std::sync::Arc;
use std::time::Duration;

use amalgam_proto::{Identified as _, Reason, v1};
use amalgam_view::Upload;
use bytes::{Bytes, BytesMut};
use tonic::{Response, Status, Streaming};

use super::super::Api;
use crate::error::{Error, Result};
use crate::files::{WriteTarget, parse_path};
use crate::service::Service;
use crate::views::ViewUse;

/// Data up to this size is journaled with the edit itself.
const PIECE_BYTES: usize = 1 << 20;
/// The most bytes that one call may write.
const WRITE_BYTES_MAX: u64 = 64 << 30;
/// How long a client may send nothing before its write is refused.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A write whose data is still arriving.
struct Arriving {
    header: v1::WriteFileHeader,
    used: Arc<ViewUse>,
    upload: Upload,
    piece: BytesMut,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Api {
    /// Writes a file from a stream.
    pub(super) async fn write_stream(
        &self,
        caller: &str,
        mut stream: Streaming<v1::WriteFileRequest>,
    ) -> Result<Response<v1::WriteFileResponse>, Status> {
        use v1::write_file_request::Part;
        let _stream = self.calls.open_stream(caller).map_err(Error::into_status)?;
        let header = match next(&mut stream).await? {
            Some(Part::Header(header)) => header,
            _ => return Err(Error::new(Reason::Invalid, "a write begins with its header").into_status()),
        };
        self.keep_identified(caller, &header);
        let mut arriving = self.short(move |service| begin(service, header)).await?.into_inner();
        let digest = loop {
            match next(&mut stream).await? {
                // A client that disconnects ends the stream, too.
                None => {
                    let message = "the stream ended without its end part; nothing was changed";
                    return Err(Error::new(Reason::DamagedStream, message).into_status());
                }
                Some(Part::Header(_)) => {
                    return Err(Error::new(Reason::Invalid, "a write has one header, at its beginning").into_status());
                }
                Some(Part::End(end)) => break end.digest,
                Some(Part::Data(data)) => arriving = self.take(arriving, data).await?,
            }
        };
        let arrived = arriving.hasher.finalize();
        if !digest.is_empty() && !digest.eq_ignore_ascii_case(&arrived.to_hex()) {
            let message =
                format!("the digest is {digest}, and that of the data is {}; nothing was changed", arrived.to_hex());
            return Err(Error::new(Reason::DamagedStream, message).into_status());
        }
        let actor = caller.to_owned();
        self.short(move |service| {
            let (header, digest) = (arriving.header.clone(), arrived.to_hex().to_string());
            let arguments = || [&header.arguments()[..], arrived.as_bytes()].concat();
            let method = v1::WriteFileHeader::METHOD;
            let finish = || finish(service, arriving, digest);
            service.context.results.once(&actor, method, &header.request_id, arguments, finish)
        })
        .await
    }

    /// Adds data that arrived. Writes it to the journal once a piece is full.
    async fn take(&self, mut arriving: Arriving, data: Bytes) -> Result<Arriving, Status> {
        arriving.bytes += data.len() as u64;
        if arriving.bytes > WRITE_BYTES_MAX {
            let message = format!("a call writes at most {WRITE_BYTES_MAX} bytes; nothing was changed");
            return Err(Error::new(Reason::Invalid, message).into_status());
        }
        arriving.hasher.update(&data);
        arriving.piece.extend_from_slice(&data);
        if arriving.piece.len() <= PIECE_BYTES {
            return Ok(arriving);
        }
        let flush = move |_: &Service| {
            let piece = std::mem::take(&mut arriving.piece);
            let Arriving { used, upload, .. } = &mut arriving;
            piece.chunks(PIECE_BYTES).try_for_each(|piece| used.view().upload(upload, piece))?;
            Ok(arriving)
        };
        Ok(self.short(flush).await?.into_inner())
    }
}

/// Returns the next part of a stream; `None` at its end.
async fn next(stream: &mut Streaming<v1::WriteFileRequest>) -> Result<Option<v1::write_file_request::Part>, Status> {
    let silent = |_| {
        let message = format!("no data for {} seconds; nothing was changed", SILENCE_MAX.as_secs());
        Error::new(Reason::Cancelled, message).into_status()
    };
    match tokio::time::timeout(SILENCE_MAX, stream.message()).await.map_err(silent)?? {
        Some(v1::WriteFileRequest { part: Some(part) }) => Ok(Some(part)),
        Some(_) => Err(Error::new(Reason::Invalid, "a part of a write that says nothing").into_status()),
        None => Ok(None),
    }
}

fn begin(service: &Service, header: v1::WriteFileHeader) -> Result<Arriving> {
    // Refused before any data is sent.
    parse_path(&header.path)?;
    let used = Arc::new(service.files.open_live(&header.workspace)?);
    let (upload, piece, hasher) = (Upload::default(), BytesMut::new(), blake3::Hasher::new());
    Ok(Arriving { header, used, upload, piece, hasher, bytes: 0 })
}

fn finish(service: &Service, arriving: Arriving, digest: String) -> Result<v1::WriteFileResponse> {
    let Arriving { header, used, mut upload, piece, bytes, .. } = arriving;
    let target = WriteTarget {
        path: &header.path,
        mode: header.mode,
        create_parents: header.create_parents,
        if_match: &header.if_match,
        if_absent: header.if_absent,
        offset: header.offset,
        modify_time: header.modify_time.as_ref().map(amalgam_proto::instant),
    };
    let file = if upload.bytes() == 0 {
        used.edit(&mut [], |tree, _| {
            let mut plan = service.files.plan(tree, &header.workspace)?;
            plan.write_bytes(&target, piece.freeze())?;
            let (edits, mut files) = plan.finish()?;
            Ok((edits, files.pop().unwrap_or_default()))
        })?
    } else {
        piece.chunks(PIECE_BYTES).try_for_each(|piece| used.view().upload(&mut upload, piece))?;
        service.files.write_upload(&used, &header.workspace, &target, &mut upload)?
    };
    Ok(v1::WriteFileResponse { file: Some(file), digest, received_bytes: bytes })
}
