//! Tells the story of `sdks/scenario/scenario.yaml` in Rust, with the clients that are generated from the .proto files:
//! `scenario FILE WORKSPACE`. `AMALGAM_URL` and `AMALGAM_API_KEY` name the server and a key for it.

mod story;

use tonic::transport::Endpoint;

#[tokio::main]
async fn main() -> Result<(), String> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [file, workspace] = words.as_slice() else { return Err("usage: scenario FILE WORKSPACE".to_owned()) };
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let endpoint = Endpoint::from_shared(variable("AMALGAM_URL")?).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
    story::Teller::new(channel, &variable("AMALGAM_API_KEY")?)?.tell(&text, workspace, "rust").await
}
