//! Tables of formats: the fields of structs and the kinds of enums, in the order of the wire.
//!
//! A table makes both directions, so that a field is named once. A field has the form of its type
//! ([`Field`]) or the one behind its `as` ([`Form`]).

use super::codec::{Decoded, Output, Reader, Writer};
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};

/// Something that frames are made of.
pub(crate) trait Field: Sized {
    fn write<O: Output>(&self, writer: &mut Writer<O>);
    fn read(reader: &mut Reader<'_>) -> Decoded<Self>;
}

/// A form of `T` for some fields of that type.
pub(crate) trait Form<T> {
    fn write<O: Output>(value: &T, writer: &mut Writer<O>);
    fn read(reader: &mut Reader<'_>) -> Decoded<T>;
}

macro_rules! write_field {
    ($writer:ident, $field:ident) => {
        Field::write($field, $writer)
    };
    ($writer:ident, $field:ident, $form:ty) => {
        <$form as Form<_>>::write($field, $writer)
    };
}

macro_rules! read_field {
    ($reader:ident) => {
        Field::read($reader)?
    };
    ($reader:ident, $form:ty) => {
        <$form as Form<_>>::read($reader)?
    };
}

/// Structs with their fields.
macro_rules! structs {
    ($($name:ident { $($field:ident $(as $form:ty)?),* })*) => {$(
        impl Field for $name {
            #[inline]
            fn write<O: Output>(&self, writer: &mut Writer<O>) {
                let $name { $($field),* } = self;
                $(write_field!(writer, $field $(, $form)?);)*
            }
            #[inline]
            fn read(reader: &mut Reader<'_>) -> Decoded<$name> {
                $(let $field = read_field!(reader $(, $form)?);)*
                Ok($name { $($field),* })
            }
        }
    )*};
}

/// An enum of which a field says what it is, by its kind.
pub(crate) trait Kinds: Sized {
    fn read_as(kind: u8, reader: &mut Reader<'_>) -> Decoded<Self>;
}

/// Variants with their kinds and fields. `field: Variant` stands for the value that this variant of
/// an enum has as the field. Other kinds are those of the enum behind `else`.
macro_rules! variants {
    ($name:ident $(, else $other:ident($rest:ident))?: $(
        $kind:tt => $variant:ident
        $({ $($field:ident $(: $inner:ident)? $(as $form:ty)?),* })?
        $(($value:ident $(as $value_form:ty)?))?
    ),* $(,)?) => {
        impl Field for $name {
            #[inline]
            fn write<O: Output>(&self, writer: &mut Writer<O>) {
                match self {$(
                    $name::$variant $({ $($field $(: $inner($field))?),* })? $(($value))? => {
                        writer.u8($kind);
                        $($(write_field!(writer, $field $(, $form)?);)*)?
                        $(write_field!(writer, $value $(, $value_form)?);)?
                    }
                )* $($name::$other($rest) => Field::write($rest, writer),)?}
            }
            #[inline]
            fn read(reader: &mut Reader<'_>) -> Decoded<$name> {
                let kind = reader.u8()?;
                $name::read_as(kind, reader)
            }
        }

        impl Kinds for $name {
            #[inline]
            #[allow(unreachable_patterns, unreachable_code, reason = "behind an `else`")]
            fn read_as(kind: u8, reader: &mut Reader<'_>) -> Decoded<$name> {
                Ok(match kind {
                    $($kind => {
                        $($(let $field = read_field!(reader $(, $form)?);)*)?
                        $(let $value = read_field!(reader $(, $value_form)?);)?
                        $name::$variant $({ $($field $(: $inner($field))?),* })? $(($value))?
                    })*
                    $(_ => {
                        let $rest = Kinds::read_as(kind, reader)?;
                        $name::$other($rest)
                    })?
                    _ => return Err(DecodeError::Invalid("unknown kind")),
                })
            }
        }
    };
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Field for $number {
            #[inline]
            fn write<O: Output>(&self, writer: &mut Writer<O>) {
                writer.$number(*self);
            }
            #[inline]
            fn read(reader: &mut Reader<'_>) -> Decoded<$number> {
                reader.$number()
            }
        }
    )*};
}

numbers! { u8 u16 u32 i32 u64 bool }

macro_rules! ids {
    ($($id:ident)*) => {$(
        impl Field for $id {
            #[inline]
            fn write<O: Output>(&self, writer: &mut Writer<O>) {
                self.0.write(writer);
            }
            #[inline]
            fn read(reader: &mut Reader<'_>) -> Decoded<$id> {
                Field::read(reader).map($id)
            }
        }
    )*};
}

ids! { Rank SegmentId GroupId QueueId NotificationId }

impl<const N: usize> Field for [u8; N] {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.array(self);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<[u8; N]> {
        reader.array()
    }
}

/// The value that these bytes are, all of them.
#[inline]
pub(crate) fn whole<T: Field>(bytes: &[u8]) -> Decoded<T> {
    let mut reader = Reader::new(bytes);
    let value = T::read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

pub(crate) use {read_field, structs, variants, write_field};
