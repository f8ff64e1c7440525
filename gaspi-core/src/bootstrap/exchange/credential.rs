//! What goes before a handshake whose key munge hands over: `GMUN`, a length `u16`, and a
//! credential of at most 4096 bytes. Pure bytes.

/// What begins so is a credential; a hello begins otherwise.
const MAGIC: [u8; 4] = *b"GMUN";
/// Magic and length.
const HEAD: usize = 6;
/// Bytes of the longest credential.
const BYTES_MAX: usize = 4096;

/// The bytes for a credential.
///
/// # Errors
/// It is too long.
pub(super) fn encode(credential: &[u8]) -> Result<Vec<u8>, String> {
    match u16::try_from(credential.len()) {
        Ok(length) if credential.len() <= BYTES_MAX => {
            Ok([&MAGIC[..], &length.to_le_bytes(), credential].concat())
        }
        _ => Err(format!("munge: a credential of {} bytes is too long", credential.len())),
    }
}

/// How many bytes are to be read next behind those that have come; 0 if all are there.
///
/// # Errors
/// It is no credential.
pub(super) fn wants(came: &[u8]) -> Result<usize, String> {
    let known = came.len().min(MAGIC.len());
    if came[..known] != MAGIC[..known] {
        return Err("it sent no munge credential, as a host with a key file does".to_owned());
    }
    let Some(length) = came.get(MAGIC.len()..HEAD) else { return Ok(HEAD - came.len()) };
    let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
    if length == 0 || length > BYTES_MAX {
        return Err(format!("it sent a munge credential of {length} bytes"));
    }
    Ok((HEAD + length).saturating_sub(came.len()))
}

/// The credential in the bytes of which nothing is missing.
pub(super) fn credential(came: &[u8]) -> &[u8] {
    came.get(HEAD..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_read_as_far_as_it_goes() {
        let bytes = encode(b"MUNGE:x:").expect("short");
        let mut came = Vec::new();
        while let Ok(wanted @ 1..) = wants(&came) {
            // Never more than there is: what follows belongs to the handshake.
            came.extend_from_slice(&bytes[came.len()..came.len() + wanted.min(3)]);
        }
        assert_eq!(credential(&came), b"MUNGE:x:");
        assert!(encode(&[0; 5000]).is_err());
        for (wrong, why) in [
            (&b"GASP\x06\x00"[..], "key file"),
            (b"X", "key file"),
            (b"GMUN\x00\x00", "of 0 bytes"),
            (b"GMUN\xff\xff", "of 65535 bytes"),
        ] {
            assert!(wants(wrong).expect_err("taken").contains(why));
        }
    }

    #[test]
    fn mutated_credentials_are_bounded() {
        let sample = encode(&[b'x'; 100]).expect("short");
        crate::fuzzed::run("credential", 64 << 10, |seed| {
            let mut bytes = sample.clone();
            seed.mutate(&mut bytes);
            if let Ok(wanted) = wants(&bytes) {
                assert!(wanted <= HEAD + BYTES_MAX);
            }
        });
    }
}
