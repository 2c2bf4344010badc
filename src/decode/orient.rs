//! What the manifest does not say of how a picture is shown: whether it is mirrored.

use super::Input;
use crate::manifest::orientation::orientation;

/// Whether a picture is mirrored after its rotation, which the manifest has. Anything but a picture is not.
pub(super) fn is_mirrored(input: &Input) -> bool {
    let mut read = |at: u64, out: &mut [u8]| {
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let got = input.with_bytes(at.saturating_add(done as u64), rest.len(), |bytes| {
                rest[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            });
            match got {
                Ok(got) if got > 0 => done += got,
                // Bytes that cannot be read are the decoder's to complain of.
                _ => break,
            }
        }
        done
    };
    orientation(&mut read).mirrored
}
