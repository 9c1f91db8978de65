//! What the two ends of a connection tell each other of their registered memory, before any of it
//! is written to: over another way, once each, as bytes that may be anything.

use crate::contract::Remote;
use crate::pages::PAGE_BYTES;
use crate::stream::Shape;

/// The longest name of an endpoint that is sent to a peer.
pub const MAX_NAME_BYTES: usize = 512;

/// The longest text that goes with an offer: a protocol, or why there is none.
const MAX_TEXT_BYTES: usize = 512;

/// Bytes of an encoded offer before the name.
const OFFER_HEAD: usize = 36;

/// Before what an end tells: its length.
const LENGTH_BYTES: usize = 4;

/// After that: whether there is an offer, and the length of the text.
const TEXT_HEAD: usize = 3;

/// The most bytes that an end tells, its length apart.
const MAX_TOLD_BYTES: usize = TEXT_HEAD + MAX_TEXT_BYTES + OFFER_HEAD + MAX_NAME_BYTES;

/// What an end tells its peer, so that this can write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How its endpoint is reached.
    pub name: Vec<u8>,
    /// Its ring, and the page behind it.
    pub ring: Remote,
    /// The rings of both ends.
    pub shape: Shape,
}

/// Why bytes are no offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what the peer tells of its registered memory makes no sense")]
pub struct OfferError;

impl Offer {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(OFFER_HEAD + self.name.len());
        out.extend_from_slice(&self.ring.address.to_le_bytes());
        out.extend_from_slice(&self.ring.key.to_le_bytes());
        out.extend_from_slice(&self.ring.bytes.to_le_bytes());
        out.extend_from_slice(&self.shape.slots.to_le_bytes());
        out.extend_from_slice(&self.shape.slot_bytes.to_le_bytes());
        out.extend_from_slice(&(self.name.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.name);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`OfferError`] if they are not those of an offer, its ring is not of its shape, or it goes
    /// past the end of all addresses.
    pub fn decode(bytes: &[u8]) -> Result<Offer, OfferError> {
        let (head, name) = bytes.split_at_checked(OFFER_HEAD).ok_or(OfferError)?;
        let long = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes);
        let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes);
        let fields = (|| -> Result<_, std::array::TryFromSliceError> {
            let ring = Remote { address: long(0)?, key: long(8)?, bytes: long(16)? };
            Ok((ring, Shape { slots: word(24)?, slot_bytes: word(28)? }, word(32)?))
        })();
        let (ring, shape, length) = fields.map_err(|_| OfferError)?;
        let fits = shape.is_possible()
            && ring.bytes == (shape.ring_bytes() + PAGE_BYTES) as u64
            && ring.address.checked_add(ring.bytes).is_some();
        if !fits || length as usize != name.len() || name.len() > MAX_NAME_BYTES {
            return Err(OfferError);
        }
        Ok(Offer { name: name.to_vec(), ring, shape })
    }
}

/// What an end tells: an offer, or that it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It has memory that may be written to.
    Offer {
        /// What both ends must have in common.
        protocol: String,
        /// Its memory.
        offer: Offer,
    },
    /// It has none, and why.
    Nothing(String),
}

impl Told {
    /// As bytes. A text that is too long is cut, and has spaces for what is not printed.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (text, offer) = match self {
            Told::Offer { protocol, offer } => (protocol, offer.encode()),
            Told::Nothing(reason) => (reason, Vec::new()),
        };
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        let text = text.replace(char::is_control, " ");
        let len = (TEXT_HEAD + text.len() + offer.len()) as u32;
        let mut out = Vec::with_capacity(LENGTH_BYTES + len as usize);
        out.extend_from_slice(&len.to_le_bytes());
        out.push(u8::from(matches!(self, Told::Offer { .. })));
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(&offer);
        out
    }

    /// How many bytes follow at least after these; `None` if they are all.
    ///
    /// # Errors
    /// [`OfferError`] if they are the beginning of nothing that an end may tell.
    pub fn missing(bytes: &[u8]) -> Result<Option<usize>, OfferError> {
        let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
            return Ok(Some(LENGTH_BYTES - bytes.len()));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let have = bytes.len() - LENGTH_BYTES;
        if !(TEXT_HEAD..=MAX_TOLD_BYTES).contains(&length) || have > length {
            return Err(OfferError);
        }
        Ok((have < length).then(|| length - have))
    }

    /// From all of the bytes.
    ///
    /// # Errors
    /// [`OfferError`] if no end may tell this.
    pub fn decode(bytes: &[u8]) -> Result<Told, OfferError> {
        if Told::missing(bytes)?.is_some() {
            return Err(OfferError);
        }
        let [kind, low, high, rest @ ..] = &bytes[LENGTH_BYTES..] else { return Err(OfferError) };
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (text, offer) = rest.split_at_checked(length).ok_or(OfferError)?;
        let text = str::from_utf8(text).map_err(|_| OfferError)?.to_owned();
        // It goes to the log, in one line of which the peer has written no other part.
        let is_line = text.len() <= MAX_TEXT_BYTES && !text.contains(char::is_control);
        match kind {
            _ if !is_line => Err(OfferError),
            0 if offer.is_empty() => Ok(Told::Nothing(text)),
            1 => Ok(Told::Offer { protocol: text, offer: Offer::decode(offer)? }),
            _ => Err(OfferError),
        }
    }
}
