//! Encryption of one direction. A datagram is the sequence number (8 bytes, network byte order), the ciphertext, and the
//! tag (16 bytes). The sequence number is authenticated, and with a salt it is the nonce, as in RFC 4106 and RFC 7634.

use ring::aead::{
    AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, MAX_TAG_LEN, Nonce, UnboundKey,
};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use serde::Deserialize;

use super::GatewayError;

/// Bytes of the sequence number in front of the ciphertext.
pub(super) const SEQUENCE_BYTES: usize = 8;
/// Bytes of the tag behind it.
pub(super) const TAG_BYTES: usize = MAX_TAG_LEN;
/// Bytes of a datagram beyond the packet inside.
pub const OVERHEAD_BYTES: usize = SEQUENCE_BYTES + TAG_BYTES;

const SALT_BYTES: usize = 4;
const KEY_BYTES_MAX: usize = 32;

/// A cipher with authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode.
    #[serde(rename = "aes-gcm")]
    AesGcm,
    /// ChaCha20 with Poly1305.
    #[serde(rename = "chacha20")]
    ChaCha20,
}

/// Bytes to derive.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// The key of one direction.
pub(super) struct DirectionKey {
    key: LessSafeKey,
    salt: [u8; SALT_BYTES],
}

impl DirectionKey {
    /// Derives the key of a direction (0: from the first gateway; 1: to it) from a secret by HKDF (RFC 5869).
    pub fn derive(cipher: Cipher, secret: &[u8], direction: u8) -> Result<Self, GatewayError> {
        let fail = |reason| GatewayError::Cipher { reason };
        let (algorithm, name) = match cipher {
            Cipher::AesGcm => (&AES_128_GCM, &b"aes-gcm"[..]),
            Cipher::ChaCha20 => (&CHACHA20_POLY1305, &b"chacha20"[..]),
        };
        let mut bytes = [0; KEY_BYTES_MAX + SALT_BYTES];
        let derived = &mut bytes[..algorithm.key_len() + SALT_BYTES];
        let pseudorandom = Salt::new(HKDF_SHA256, b"parshall gateway").extract(secret);
        pseudorandom
            .expand(&[name, &[direction]], Length(derived.len()))
            .and_then(|key_material| key_material.fill(derived))
            .map_err(|_| fail("the key cannot be derived"))?;
        let (key, salt) = derived.split_at(algorithm.key_len());
        let key =
            UnboundKey::new(algorithm, key).map_err(|_| fail("the key has a wrong length"))?;
        let mut own = [0; SALT_BYTES];
        own.copy_from_slice(salt);
        Ok(Self {
            key: LessSafeKey::new(key),
            salt: own,
        })
    }

    fn nonce(&self, sequence: u64) -> Nonce {
        let mut bytes = [0; 12];
        bytes[..SALT_BYTES].copy_from_slice(&self.salt);
        bytes[SALT_BYTES..].copy_from_slice(&sequence.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    }

    /// Makes a datagram of the packet of `packet_bytes` bytes that lies behind the place of the sequence number; returns
    /// its length. None when the cipher refuses, or the buffer is too short.
    pub fn seal(&self, sequence: u64, buffer: &mut [u8], packet_bytes: usize) -> Option<usize> {
        let (head, rest) = buffer.split_at_mut_checked(SEQUENCE_BYTES)?;
        let (packet, rest) = rest.split_at_mut_checked(packet_bytes)?;
        head.copy_from_slice(&sequence.to_be_bytes());
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(sequence), Aad::from(&*head), packet)
            .ok()?;
        rest.get_mut(..TAG_BYTES)?.copy_from_slice(tag.as_ref());
        Some(packet_bytes + OVERHEAD_BYTES)
    }

    /// The packet in a datagram; None unless it is authentic.
    pub fn open<'b>(&self, datagram: &'b mut [u8]) -> Option<(u64, &'b [u8])> {
        let (head, sealed) = datagram.split_at_mut_checked(SEQUENCE_BYTES)?;
        let sequence = u64::from_be_bytes((&*head).try_into().ok()?);
        let packet = self
            .key
            .open_in_place(self.nonce(sequence), Aad::from(&*head), sealed)
            .ok()?;
        Some((sequence, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"a secret of thirty-two bytes ...";

    fn sealed(cipher: Cipher, direction: u8, packet: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; packet.len() + OVERHEAD_BYTES];
        buffer[SEQUENCE_BYTES..SEQUENCE_BYTES + packet.len()].copy_from_slice(packet);
        let key = DirectionKey::derive(cipher, SECRET, direction).unwrap();
        let length = key.seal(7, &mut buffer, packet.len());
        assert_eq!(length, Some(buffer.len()));
        buffer
    }

    #[test]
    fn what_is_sealed_opens_to_the_same_bytes() {
        for cipher in [Cipher::AesGcm, Cipher::ChaCha20] {
            for length in [1, 20, 64, 1448] {
                let packet = vec![0x45; length];
                let mut datagram = sealed(cipher, 0, &packet);
                assert!(
                    !datagram
                        .windows(length.max(8))
                        .any(|window| window == packet)
                );
                let key = DirectionKey::derive(cipher, SECRET, 0).unwrap();
                assert_eq!(key.open(&mut datagram), Some((7, &packet[..])));
            }
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_refused() {
        for cipher in [Cipher::AesGcm, Cipher::ChaCha20] {
            let whole = sealed(cipher, 0, &[1; 40]);
            let key = DirectionKey::derive(cipher, SECRET, 0).unwrap();
            for place in 0..whole.len() {
                let mut changed = whole.clone();
                changed[place] ^= 1;
                assert_eq!(key.open(&mut changed), None, "byte {place}");
            }
            for length in 0..OVERHEAD_BYTES {
                assert_eq!(key.open(&mut whole[..length].to_vec()), None);
            }
        }
    }

    #[test]
    fn directions_and_secrets_have_keys_of_their_own() {
        let other = DirectionKey::derive(Cipher::AesGcm, SECRET, 1).unwrap();
        assert_eq!(other.open(&mut sealed(Cipher::AesGcm, 0, &[1; 40])), None);
        let other = DirectionKey::derive(Cipher::AesGcm, b"another", 0).unwrap();
        assert_eq!(other.open(&mut sealed(Cipher::AesGcm, 0, &[1; 40])), None);
    }
}
