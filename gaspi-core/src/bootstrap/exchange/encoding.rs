//! Messages as bytes: pure, versioned, every length bounded before use.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields; texts and lists
//! carry a 16-bit count. Nothing here knows sockets, so that all of it is property-tested, and a
//! frame that is not understood is an error in words, never a panic.

use super::message::{
    AGREED_MAX, CPU_WORDS_MAX, FRAME_MAX, Failure, Join, MISSING_MAX, Message, TEXT_MAX, VERSION,
};
use crate::bootstrap::Card;
use crate::bootstrap::card::{ENDPOINTS_MAX, NETWORKS_MAX};
use crate::wire::codec::{self, DecodeError, Decoded, Limit, Output, Reader, Writer};
use crate::wire::fields::{Field, Form, Kinds, read_field, structs, variants, whole, write_field};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

variants! { Message:
    1 => Join(join as Versioned),
    2 => Kill(rank),
    3 => Missing { count, first as List<MISSING_MAX>, words as Text },
    5 => Table { token, key },
    6 => Failed(failure),
    7 => Over,
    8 => Leave,
    9 => Died { rank, how as Text },
    10 => Unable { job as Text, rank, reason as Text },
}

variants! { Failure:
    0 => Mismatch {
        field as Text, left, left_value as Text, right, right_value as Text
    },
    1 => Environment(reason as Text),
    2 => Meeting(reason as Text),
    3 => Memory { needed, available, reason as Text },
    4 => System { call as Text, reason as Text },
}

structs! {
    Join { job as Text, size, agreed as List<AGREED_MAX>, card }
    Card {
        rank, pid, start_time, instance, node, machine, endpoints as List<ENDPOINTS_MAX>,
        host as Text, cpus as List<CPU_WORDS_MAX>, networks as List<NETWORKS_MAX>
    }
}

/// A text behind its length in two bytes.
pub(super) struct Text;

impl Form<String> for Text {
    fn write<O: Output>(value: &String, writer: &mut Writer<O>) {
        writer.text(value, Limit::u16(TEXT_MAX as u16));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<String> {
        Ok(reader.text(Limit::u16(TEXT_MAX as u16))?.to_owned())
    }
}

impl Form<Arc<str>> for Text {
    fn write<O: Output>(value: &Arc<str>, writer: &mut Writer<O>) {
        writer.text(value, Limit::u16(TEXT_MAX as u16));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Arc<str>> {
        Ok(reader.text(Limit::u16(TEXT_MAX as u16))?.into())
    }
}

/// At most `MAX` fields behind their number in two bytes.
pub(super) struct List<const MAX: usize>;

impl<const MAX: usize, T: Field> Form<Vec<T>> for List<MAX> {
    fn write<O: Output>(value: &Vec<T>, writer: &mut Writer<O>) {
        writer.list(value, Limit::u16(MAX as u16), |writer, field| field.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<T>> {
        reader.list(Limit::u16(MAX as u16), Field::read)
    }
}

impl<const MAX: usize, T: Field> Form<Arc<[T]>> for List<MAX> {
    fn write<O: Output>(value: &Arc<[T]>, writer: &mut Writer<O>) {
        writer.list(value, Limit::u16(MAX as u16), |writer, field| field.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Arc<[T]>> {
        Ok(reader.list(Limit::u16(MAX as u16), Field::read)?.into())
    }
}

/// Behind the version of the sender.
struct Versioned;

impl Form<Join> for Versioned {
    fn write<O: Output>(value: &Join, writer: &mut Writer<O>) {
        value.write(writer.u16(VERSION));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Join> {
        match reader.u16()? {
            VERSION => Field::read(reader),
            other => Err(DecodeError::Version(other)),
        }
    }
}

impl Field for IpAddr {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        match self {
            IpAddr::V4(address) => writer.u8(4).array(&address.octets()),
            IpAddr::V6(address) => writer.u8(6).array(&address.octets()),
        };
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<IpAddr> {
        match reader.u8()? {
            4 => Ok(reader.array::<4>()?.into()),
            6 => Ok(reader.array::<16>()?.into()),
            _ => Err(DecodeError::Invalid("unknown family of addresses")),
        }
    }
}

impl Field for SocketAddr {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        self.ip().write(writer);
        writer.u16(self.port());
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<SocketAddr> {
        Ok(SocketAddr::new(Field::read(reader)?, reader.u16()?))
    }
}

/// A network: an address in it, and its bits.
impl Field for (IpAddr, u8) {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        self.0.write(writer);
        writer.u8(self.1);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<(IpAddr, u8)> {
        Ok((Field::read(reader)?, reader.u8()?))
    }
}

/// A name and its value.
impl Field for (String, u64) {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        Text::write(&self.0, writer);
        self.1.write(writer);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<(String, u64)> {
        Ok((Text::read(reader)?, Field::read(reader)?))
    }
}

/// A field as a frame of its own.
pub(super) fn frame(field: &impl Field) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.framed(|writer| field.write(writer));
    writer.into_inner()
}

impl Message {
    /// The message as one frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(self)
    }

    /// The first frame of `bytes` and how many bytes it took, `None` if more bytes are needed.
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Option<(Message, usize)>> {
        let Ok(body) = codec::first_frame(bytes, FRAME_MAX - 4) else {
            return Err(DecodeError::Invalid("frame too long or empty"));
        };
        let Some(body) = body else { return Ok(None) };
        Ok(Some((whole(body)?, 4 + body.len())))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
pub(crate) mod tests;
