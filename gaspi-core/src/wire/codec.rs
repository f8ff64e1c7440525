//! The one reader and the one writer of bytes.
//!
//! Numbers are little-endian. Bytes, texts and lists have their length in front, whose width and
//! largest value a [`Limit`] names; a length beyond it is refused before anything is allocated.
//! Reading never panics: each method returns what it read or a [`DecodeError`].
//!
//! All methods are small and inlined. Over a [`Fixed`] buffer of constant size, a sequence of
//! writes becomes plain stores without allocation, and a sequence of reads from an array becomes
//! plain loads.

use std::fmt;

/// Why bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// They end before the field does.
    Truncated,
    /// They end before the text does whose length is in front.
    TruncatedText,
    /// A length is beyond its limit.
    OverLimit,
    /// A text is not UTF-8.
    NotUtf8,
    /// There are more bytes than fields.
    TrailingBytes,
    /// A field has a value that it cannot have.
    Invalid(&'static str),
    /// The other side speaks this version of the format.
    Version(u16),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DecodeError::Truncated => "short",
            DecodeError::TruncatedText => "short text",
            DecodeError::OverLimit => "count too large",
            DecodeError::NotUtf8 => "not UTF-8",
            DecodeError::TrailingBytes => "bytes left over",
            DecodeError::Invalid(what) => what,
            DecodeError::Version(_) => "another version",
        })
    }
}

impl std::error::Error for DecodeError {}

/// What comes of reading.
pub type Decoded<T> = Result<T, DecodeError>;

/// The largest length of a field, and the width of its length on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    max: usize,
    width: Width,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    One,
    Two,
    Four,
}

impl Limit {
    /// At most `max`, the length in one byte.
    pub const fn u8(max: u8) -> Limit {
        Limit { max: max as usize, width: Width::One }
    }

    /// At most `max`, the length in two bytes.
    pub const fn u16(max: u16) -> Limit {
        Limit { max: max as usize, width: Width::Two }
    }

    /// At most `max`, the length in four bytes.
    pub const fn u32(max: u32) -> Limit {
        Limit { max: max as usize, width: Width::Four }
    }

    /// The largest length.
    pub const fn max(self) -> usize {
        self.max
    }
}

/// Where a [`Writer`] puts its bytes.
pub trait Output {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
    /// How many bytes there are.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Replaces the four bytes at `at`, which have been written.
    fn replace(&mut self, at: usize, bytes: [u8; 4]);
}

impl Output for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    #[inline]
    fn len(&self) -> usize {
        Vec::len(self)
    }
    #[inline]
    fn replace(&mut self, at: usize, bytes: [u8; 4]) {
        if let Some(place) = self.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *place = bytes;
        }
    }
}

impl<T: Output + ?Sized> Output for &mut T {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        (**self).put(bytes);
    }
    #[inline]
    fn len(&self) -> usize {
        (**self).len()
    }
    #[inline]
    fn replace(&mut self, at: usize, bytes: [u8; 4]) {
        (**self).replace(at, bytes);
    }
}

/// A buffer of at most `N` bytes on the stack.
#[derive(Debug, Clone, Copy)]
pub struct Fixed<const N: usize> {
    bytes: [u8; N],
    /// Beyond `N` if something did not fit.
    len: usize,
}

impl<const N: usize> Fixed<N> {
    /// An empty buffer.
    #[inline]
    pub const fn new() -> Fixed<N> {
        Fixed { bytes: [0; N], len: 0 }
    }

    /// What was written; `None` if it did not fit.
    #[inline]
    pub fn written(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len)
    }

    /// All bytes; those that were not written are 0.
    #[inline]
    pub const fn bytes(&self) -> &[u8; N] {
        &self.bytes
    }

    /// The whole array; `None` unless it is exactly full.
    #[inline]
    pub fn full(self) -> Option<[u8; N]> {
        (self.len == N).then_some(self.bytes)
    }
}

impl<const N: usize> Default for Fixed<N> {
    fn default() -> Fixed<N> {
        Fixed::new()
    }
}

impl<const N: usize> Output for Fixed<N> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len.saturating_add(bytes.len());
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
        }
        self.len = end;
    }
    #[inline]
    fn len(&self) -> usize {
        self.len
    }
    #[inline]
    fn replace(&mut self, at: usize, bytes: [u8; 4]) {
        if let Some(place) = self.bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *place = bytes;
        }
    }
}

/// Writes fields one after the other.
#[derive(Debug)]
pub struct Writer<O>(O);

impl<O: Output> Writer<O> {
    /// Appends to `output`.
    #[inline]
    pub fn new(output: O) -> Writer<O> {
        Writer(output)
    }

    /// Gives the output back.
    #[inline]
    pub fn into_inner(self) -> O {
        self.0
    }

    /// A number of one byte.
    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.array(&[value])
    }
    /// A number of two bytes.
    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.array(&value.to_le_bytes())
    }
    /// A number of four bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.array(&value.to_le_bytes())
    }
    /// A signed number of four bytes.
    #[inline]
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.array(&value.to_le_bytes())
    }
    /// A number of eight bytes.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.array(&value.to_le_bytes())
    }
    /// One byte, 0 or 1.
    #[inline]
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }
    /// Bytes whose number both sides know.
    #[inline]
    pub fn array<const N: usize>(&mut self, bytes: &[u8; N]) -> &mut Self {
        self.0.put(bytes);
        self
    }
    /// Bytes without their length, as the last field or where another field tells the length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.put(bytes);
        self
    }
    #[inline]
    fn length(&mut self, len: usize, limit: Limit) -> &mut Self {
        // The callers cut at the limit, so that the length fits into its width.
        match limit.width {
            Width::One => self.u8(len as u8),
            Width::Two => self.u16(len as u16),
            Width::Four => self.u32(len as u32),
        }
    }
    /// Bytes behind their length, cut at the limit.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8], limit: Limit) -> &mut Self {
        let bytes = bytes.get(..limit.max).unwrap_or(bytes);
        self.length(bytes.len(), limit).raw(bytes)
    }
    /// A text behind its length, cut at the last character that ends within the limit.
    #[inline]
    pub fn text(&mut self, text: &str, limit: Limit) -> &mut Self {
        let end = text.floor_char_boundary(limit.max);
        self.bytes(text.as_bytes().get(..end).unwrap_or_default(), limit)
    }
    /// Elements behind their number, cut at the limit.
    #[inline]
    pub fn list<T>(
        &mut self,
        list: &[T],
        limit: Limit,
        mut write: impl FnMut(&mut Self, &T),
    ) -> &mut Self {
        let list = list.get(..limit.max).unwrap_or(list);
        self.length(list.len(), limit);
        for element in list {
            write(self, element);
        }
        self
    }
    /// One byte, and the value if there is one.
    #[inline]
    pub fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) -> &mut Self {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
        self
    }
    /// What `write` writes, behind its length in four bytes.
    #[inline]
    pub fn framed(&mut self, write: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.0.len();
        self.u32(0);
        write(self);
        let len = self.0.len().saturating_sub(start + 4);
        self.0.replace(start, (len as u32).to_le_bytes());
        self
    }
}

/// Reads fields one after the other.
#[derive(Debug, Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads from the first of `bytes` on.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// The bytes that have not been read yet.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// All bytes that have not been read yet, as the last field.
    #[inline]
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Ends reading.
    ///
    /// # Errors
    /// There are bytes that have not been read.
    #[inline]
    pub fn finish(self) -> Decoded<()> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::TrailingBytes) }
    }

    /// Bytes whose number both sides know.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }
    /// `len` bytes.
    #[inline]
    pub fn raw(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }
    /// A number of one byte.
    #[inline]
    pub fn u8(&mut self) -> Decoded<u8> {
        self.array().map(u8::from_le_bytes)
    }
    /// A number of two bytes.
    #[inline]
    pub fn u16(&mut self) -> Decoded<u16> {
        self.array().map(u16::from_le_bytes)
    }
    /// A number of four bytes.
    #[inline]
    pub fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }
    /// A signed number of four bytes.
    #[inline]
    pub fn i32(&mut self) -> Decoded<i32> {
        self.array().map(i32::from_le_bytes)
    }
    /// A number of eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// One byte that is 0 or 1.
    #[inline]
    pub fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("a truth value that is none")),
        }
    }
    #[inline]
    fn length(&mut self, limit: Limit) -> Decoded<usize> {
        let len = match limit.width {
            Width::One => usize::from(self.u8()?),
            Width::Two => usize::from(self.u16()?),
            Width::Four => self.u32()? as usize,
        };
        if len > limit.max { Err(DecodeError::OverLimit) } else { Ok(len) }
    }
    /// Bytes behind their length.
    #[inline]
    pub fn bytes(&mut self, limit: Limit) -> Decoded<&'a [u8]> {
        let len = self.length(limit)?;
        self.raw(len)
    }
    /// A text behind its length.
    #[inline]
    pub fn text(&mut self, limit: Limit) -> Decoded<&'a str> {
        let len = self.length(limit)?;
        let bytes = self.raw(len).map_err(|_| DecodeError::TruncatedText)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
    }
    /// Elements behind their number.
    #[inline]
    pub fn list<T, E: From<DecodeError>>(
        &mut self,
        limit: Limit,
        mut read: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let count = self.length(limit)?;
        // Grows with what is really there: the number alone allocates nothing.
        (0..count).map(|_| read(self)).collect()
    }
    /// One byte, and the value if there is one.
    #[inline]
    pub fn option<T, E: From<DecodeError>>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// The first frame of a stream: what is behind its length of four bytes. `None` if it has not come
/// whole yet.
///
/// # Errors
/// It is empty or longer than `max`.
#[inline]
pub fn first_frame(stream: &[u8], max: usize) -> Decoded<Option<&[u8]>> {
    let Some((len, rest)) = stream.split_first_chunk() else { return Ok(None) };
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 || len > max { Err(DecodeError::OverLimit) } else { Ok(rest.get(..len)) }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
