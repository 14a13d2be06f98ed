//! Files by call: small ones in a live tree, and many bytes by gRPC and by REST.

use std::path::Path;
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Store};
use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use amalgam_view::{Caller, ROOT, View, ViewOptions};
use bytes::Bytes;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use amalgam_benches::served::{BoxedError, Served, WithKey, now, runtime};

pub const FIGURES: &[&str] = &[
    "read of 4 KiB, live tree, p50",
    "edit of 4 KiB, live tree, p50",
    "bytes written by gRPC",
    "bytes read by gRPC",
    "bytes written and read by REST / gRPC",
    "bytes written, committed and read by gRPC / in process",
];

const WORKSPACE: &str = "workspaces/main";
/// The size of one file of many.
const FILE_BYTES: usize = 16 << 20;
const PIECE_BYTES: usize = 1 << 20;

type Client = FileServiceClient<InterceptedService<Channel, WithKey>>;

pub fn run(bench: &mut Bench) -> Result<()> {
    let (directory, times, count) = (bench.directory("files"), bench.size(5_000, 300), bench.size(64, 4));
    let runtime = runtime()?;
    let served = runtime.block_on(Served::start(&directory))?;
    let figures = runtime.block_on(async {
        let (channel, key) = (served.connect().await?, served.with_key()?);
        let mut workspaces = WorkspaceServiceClient::with_interceptor(channel.clone(), key.clone());
        workspaces
            .create_workspace(v1::CreateWorkspaceRequest { workspace_id: "main".to_owned(), ..Default::default() })
            .await?;
        let mut client = FileServiceClient::with_interceptor(channel, key).max_decoding_message_size(64 << 20);
        let (reads, edits) = small(&mut client, times).await?;
        let data: Vec<Bytes> = (0..count).map(|seed| Random::new(seed as u64).text(FILE_BYTES).into()).collect();
        let written = write_all(&mut client, &data).await?;
        let committed = Instant::now();
        let commit = v1::CommitWorkspaceRequest { name: WORKSPACE.to_owned(), ..Default::default() };
        workspaces.commit_workspace(commit).await?;
        let committed = committed.elapsed().as_secs_f64();
        let grpc = (written, committed, read_all(&mut client, count).await?);
        let rest = rest(&served, &data).await?;
        Ok::<_, BoxedError>((reads, edits, grpc, rest, data))
    });
    runtime.block_on(served.stop())?;
    let (reads, edits, (written, committed, read), (put, got), data) = figures?;
    let [view_written, view_committed, view_read] = in_process(&bench.directory("files-view"), &data)?;
    #[allow(clippy::cast_precision_loss, reason = "sizes fit")]
    let megabytes = (count * FILE_BYTES) as f64 / 1e6;
    bench.add(FIGURES[0], (reads.p50(), "us"), Bar::AtMost(250.0), reads.describe("us"));
    bench.add(FIGURES[1], (edits.p50(), "us"), Bar::AtMost(400.0), edits.describe("us"));
    let size = format!("{megabytes:.0} MB of text in {count} files");
    bench.add(FIGURES[2], (megabytes / written, "MB/s"), Bar::None, size.clone());
    bench.add(FIGURES[3], (megabytes / read, "MB/s"), Bar::None, size);
    let how = format!("REST {:.0} MB/s in, {:.0} MB/s out", megabytes / put, megabytes / got);
    bench.add(FIGURES[4], ((written + read) / (put + got), "times"), Bar::AtLeast(0.7), how);
    let how = format!(
        "write, commit and read: {written:.1} + {committed:.1} + {read:.1} s; \
         by a view in process: {view_written:.1} + {view_committed:.1} + {view_read:.1} s"
    );
    let ratio = (view_written + view_committed + view_read) / (written + committed + read);
    bench.add(FIGURES[5], (ratio, "times"), Bar::AtLeast(0.5), how);
    Ok(())
}

/// The same bytes through a view in this process: the seconds of writing, committing and reading.
fn in_process(directory: &Path, data: &[Bytes]) -> Result<[f64; 3]> {
    let store = Store::open(directory.join("store"))?;
    let (workspaces, name) = (Workspaces::of(&store), WorkspaceName::new("main")?);
    let context = OperationContext::new("bench", now());
    workspaces.create(&name, &NewWorkspace::default(), &context)?;
    let options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
    let (view, _) = View::open(workspaces.open(&name)?, &directory.join("journal"), options)?;
    let (caller, mut files, mut count) = (Caller::owner(0, 0), Vec::new(), 0);
    let start = Instant::now();
    for (number, file) in data.iter().enumerate() {
        let ino = view.create(&caller, ROOT, number.to_string().as_bytes(), 0o644)?.ino;
        for (at, piece) in file.chunks(PIECE_BYTES).enumerate() {
            view.write(&caller, ino, (at * PIECE_BYTES) as u64, piece)?;
        }
        files.push(ino);
    }
    let written = start.elapsed().as_secs_f64();
    let start = Instant::now();
    view.commit(&workspaces, &name, &Change::new("all"), &context, "commit")?;
    let committed = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for ino in files {
        for at in 0..FILE_BYTES / PIECE_BYTES {
            count += view.read(ino, (at * PIECE_BYTES) as u64, PIECE_BYTES)?.len();
        }
    }
    let read = start.elapsed().as_secs_f64();
    if count != data.len() * FILE_BYTES {
        return Err(format!("{count} bytes were read").into());
    }
    view.close()?;
    Ok([written, committed, read])
}

async fn small(client: &mut Client, times: usize) -> Result<(Samples, Samples)> {
    let text = Random::new(7).text(4 << 10);
    write(client, "small.txt", &[Bytes::from([b"begin 0 end\n".as_slice(), &text].concat())]).await?;
    let (mut reads, mut edits) = (Vec::new(), Vec::new());
    for number in 0..times {
        let start = Instant::now();
        read(client, "small.txt").await?;
        reads.push(microseconds(start.elapsed()));
        let replace = v1::ReplaceEdit {
            path: "small.txt".to_owned(),
            old_text: format!("begin {number} end"),
            new_text: format!("begin {} end", number + 1),
            ..Default::default()
        };
        let request = v1::EditFileRequest {
            workspace: WORKSPACE.to_owned(),
            edit: Some(v1::edit_file_request::Edit::Replace(replace)),
            ..Default::default()
        };
        let start = Instant::now();
        client.edit_file(request).await?;
        edits.push(microseconds(start.elapsed()));
    }
    Ok((Samples::new(reads), Samples::new(edits)))
}

async fn write(client: &mut Client, path: &str, pieces: &[Bytes]) -> Result<()> {
    use v1::write_file_request::Part;
    let header = v1::WriteFileHeader {
        workspace: WORKSPACE.to_owned(),
        path: path.to_owned(),
        create_parents: true,
        ..Default::default()
    };
    let parts: Vec<_> = std::iter::once(Part::Header(header))
        .chain(pieces.iter().cloned().map(Part::Data))
        .chain([Part::End(v1::WriteFileEnd::default())])
        .map(|part| v1::WriteFileRequest { part: Some(part) })
        .collect();
    client.write_file(tokio_stream::iter(parts)).await?;
    Ok(())
}

async fn read(client: &mut Client, path: &str) -> Result<usize> {
    let request =
        v1::FileServiceReadFileRequest { workspace: WORKSPACE.to_owned(), path: path.to_owned(), ..Default::default() };
    let (mut stream, mut count) = (client.read_file(request).await?.into_inner(), 0);
    while let Some(message) = stream.message().await? {
        count += message.data.len();
    }
    Ok(count)
}

async fn write_all(client: &mut Client, data: &[Bytes]) -> Result<f64> {
    let start = Instant::now();
    for (number, file) in data.iter().enumerate() {
        let pieces: Vec<_> =
            (0..FILE_BYTES / PIECE_BYTES).map(|at| file.slice(at * PIECE_BYTES..(at + 1) * PIECE_BYTES)).collect();
        write(client, &format!("large/{number}"), &pieces).await?;
    }
    Ok(start.elapsed().as_secs_f64())
}

async fn read_all(client: &mut Client, count: usize) -> Result<f64> {
    let start = Instant::now();
    for number in 0..count {
        let found = read(client, &format!("large/{number}")).await?;
        if found != FILE_BYTES {
            return Err(format!("{found} bytes were read").into());
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// The same by REST, over one connection.
async fn rest(served: &Served, data: &[Bytes]) -> Result<(f64, f64)> {
    use http_body_util::{BodyExt as _, Full};
    let stream = tokio::net::TcpStream::connect(served.address).await?;
    let (mut send, connection) = hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut seconds = [0.0; 2];
    for (method, seconds) in [http::Method::PUT, http::Method::GET].into_iter().zip(&mut seconds) {
        let start = Instant::now();
        for (number, file) in data.iter().enumerate() {
            let body = if method == http::Method::PUT { file.clone() } else { Bytes::new() };
            let request = http::Request::builder()
                .method(method.clone())
                .uri(format!("/api/v1/workspaces/main/files/rest/{number}"))
                .header("host", "localhost")
                .header("x-api-key", &served.key)
                .body(Full::new(body))?;
            send.ready().await?;
            let response = send.send_request(request).await?;
            if !response.status().is_success() {
                return Err(format!("{method}: {}", response.status()).into());
            }
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                frame?;
            }
        }
        *seconds = start.elapsed().as_secs_f64();
    }
    connection.abort();
    Ok((seconds[0], seconds[1]))
}
