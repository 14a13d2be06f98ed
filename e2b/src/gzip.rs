//! Compressed bodies and messages, decompressed within a limit.

use std::io::{Read as _, Write as _};

use bytes::Bytes;
use flate2::read::GzDecoder;

use crate::refusal::Refusal;

/// Number of compressed bytes that are decompressed at once: the result may be a thousand times as long.
pub(crate) const SLICE_BYTES: usize = 4 << 10;

/// Decompresses a whole message. Fails if the result is longer than the limit.
pub(crate) fn decompress(data: &[u8], bytes_max: usize) -> Result<Bytes, Refusal> {
    let mut plain = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    let read = GzDecoder::new(data).take(limit).read_to_end(&mut plain);
    read.map_err(|error| Refusal::invalid(format!("gzip: {error}")))?;
    match plain.len() > bytes_max {
        true => Err(too_long(bytes_max)),
        false => Ok(plain.into()),
    }
}

pub(crate) fn too_long(bytes_max: usize) -> Refusal {
    Refusal::new(tonic::Code::ResourceExhausted, format!("a message has at most {} MiB", bytes_max >> 20))
}

/// Decompresses a stream, part by part.
pub(crate) struct Inflater {
    decoder: flate2::write::GzDecoder<Vec<u8>>,
}

impl Inflater {
    pub(crate) fn new() -> Self {
        Self { decoder: flate2::write::GzDecoder::new(Vec::new()) }
    }

    /// Takes compressed bytes, [`SLICE_BYTES`] at most. Returns plain ones.
    pub(crate) fn push(&mut self, slice: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.decoder.write_all(slice).map_err(|error| Refusal::invalid(format!("gzip: {error}")))?;
        Ok(std::mem::take(self.decoder.get_mut()))
    }

    /// Returns the rest of the plain bytes. Fails if the stream was cut.
    pub(crate) fn finish(self) -> Result<Vec<u8>, Refusal> {
        self.decoder.finish().map_err(|error| Refusal::invalid(format!("gzip: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn compressed(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).expect("written");
        encoder.finish().expect("finished")
    }

    #[test]
    fn a_small_message_that_becomes_a_large_one_is_refused() {
        let bomb = compressed(&vec![0; 10 << 20]);
        assert!(bomb.len() < 64 << 10);
        assert_eq!(decompress(&bomb, 1 << 20).expect_err("too long").code, tonic::Code::ResourceExhausted);
        assert_eq!(decompress(&bomb, 10 << 20).expect("fits").len(), 10 << 20);
        assert_eq!(decompress(b"no gzip", 100).expect_err("no gzip").code, tonic::Code::InvalidArgument);
        assert!(decompress(&bomb[..bomb.len() / 2], 10 << 20).is_err());
    }

    #[test]
    fn a_stream_is_decompressed_in_parts_and_a_cut_one_is_refused() {
        let plain: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let packed = compressed(&plain);
        for cut in [packed.len(), packed.len() - 1] {
            let (mut inflater, mut out) = (Inflater::new(), Vec::new());
            for part in packed[..cut].chunks(SLICE_BYTES) {
                out.extend(inflater.push(part).expect("gzip"));
            }
            match inflater.finish() {
                Ok(rest) => {
                    out.extend(rest);
                    assert_eq!((out == plain, cut), (true, packed.len()));
                }
                Err(_) => assert_eq!(cut, packed.len() - 1),
            }
        }
    }
}
