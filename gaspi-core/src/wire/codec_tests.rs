//! What is written is read again; nothing else does harm.

use super::*;
use proptest::prelude::*;

const TINY: Limit = Limit::u8(40);
const SMALL: Limit = Limit::u16(40);
const LARGE: Limit = Limit::u32(70);

#[derive(Debug, Clone, PartialEq)]
enum Field {
    U8(u8),
    U16(u16),
    U32(u32),
    I32(i32),
    U64(u64),
    Bool(bool),
    Array([u8; 5]),
    Bytes(Vec<u8>, Limit),
    Text(String, Limit),
    List(Vec<u32>, Limit),
    Option(Option<u64>),
}

fn field() -> impl Strategy<Value = Field> {
    let limit = || prop_oneof![Just(TINY), Just(SMALL), Just(LARGE)];
    prop_oneof![
        any::<u8>().prop_map(Field::U8),
        any::<u16>().prop_map(Field::U16),
        any::<u32>().prop_map(Field::U32),
        any::<i32>().prop_map(Field::I32),
        any::<u64>().prop_map(Field::U64),
        any::<bool>().prop_map(Field::Bool),
        any::<[u8; 5]>().prop_map(Field::Array),
        (prop::collection::vec(any::<u8>(), 0..40), limit()).prop_map(|(b, l)| Field::Bytes(b, l)),
        (".{0,10}", limit()).prop_map(|(text, limit)| Field::Text(text, limit)),
        (prop::collection::vec(any::<u32>(), 0..40), limit()).prop_map(|(b, l)| Field::List(b, l)),
        any::<Option<u64>>().prop_map(Field::Option),
    ]
}

fn write<O: Output>(writer: &mut Writer<O>, field: &Field) {
    match field {
        Field::U8(value) => writer.u8(*value),
        Field::U16(value) => writer.u16(*value),
        Field::U32(value) => writer.u32(*value),
        Field::I32(value) => writer.i32(*value),
        Field::U64(value) => writer.u64(*value),
        Field::Bool(value) => writer.bool(*value),
        Field::Array(value) => writer.array(value),
        Field::Bytes(value, limit) => writer.bytes(value, *limit),
        Field::Text(value, limit) => writer.text(value, *limit),
        Field::List(value, limit) => writer.list(value, *limit, |writer, value| {
            writer.u32(*value);
        }),
        Field::Option(value) => writer.option(value.as_ref(), |writer, value| {
            writer.u64(*value);
        }),
    };
}

/// Reads a field of the same kind as `like`.
fn read(reader: &mut Reader<'_>, like: &Field) -> Decoded<Field> {
    Ok(match like {
        Field::U8(_) => Field::U8(reader.u8()?),
        Field::U16(_) => Field::U16(reader.u16()?),
        Field::U32(_) => Field::U32(reader.u32()?),
        Field::I32(_) => Field::I32(reader.i32()?),
        Field::U64(_) => Field::U64(reader.u64()?),
        Field::Bool(_) => Field::Bool(reader.bool()?),
        Field::Array(_) => Field::Array(reader.array()?),
        Field::Bytes(_, limit) => Field::Bytes(reader.bytes(*limit)?.to_vec(), *limit),
        Field::Text(_, limit) => Field::Text(reader.text(*limit)?.to_owned(), *limit),
        Field::List(_, limit) => Field::List(reader.list(*limit, Reader::u32)?, *limit),
        Field::Option(_) => Field::Option(reader.option(Reader::u64)?),
    })
}

fn read_all(bytes: &[u8], like: &[Field]) -> Decoded<Vec<Field>> {
    let mut reader = Reader::new(bytes);
    let fields = like.iter().map(|field| read(&mut reader, field)).collect::<Decoded<_>>()?;
    reader.finish()?;
    Ok(fields)
}

proptest! {
    #[test]
    fn fields_survive_and_a_part_of_them_is_refused(
        fields in prop::collection::vec(field(), 0..12),
        tail in 1usize..4,
    ) {
        let mut writer = Writer::new(Vec::new());
        fields.iter().for_each(|field| write(&mut writer, field));
        let mut bytes = writer.into_inner();
        prop_assert_eq!(read_all(&bytes, &fields), Ok(fields.clone()));
        for cut in 0..bytes.len() {
            prop_assert!(read_all(&bytes[..cut], &fields).is_err());
        }
        let mut fixed = Fixed::<600>::new();
        let mut writer = Writer::new(&mut fixed);
        fields.iter().for_each(|field| write(&mut writer, field));
        let fits = (bytes.len() <= 600).then_some(&bytes[..]);
        prop_assert_eq!(fixed.written(), fits);
        bytes.resize(bytes.len() + tail, 0);
        prop_assert_eq!(read_all(&bytes, &fields), Err(DecodeError::TrailingBytes));
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        like in prop::collection::vec(field(), 0..12),
        max in 0usize..300,
    ) {
        let _ = read_all(&bytes, &like);
        let _ = first_frame(&bytes, max);
    }
}

#[test]
fn lengths_over_the_limit_are_refused_before_anything_is_allocated() {
    for (bytes, limit) in [(&[41][..], TINY), (&[41, 0][..], SMALL), (&[0xff; 4][..], LARGE)] {
        let refused = Some(DecodeError::OverLimit);
        assert_eq!(Reader::new(bytes).bytes(limit).err(), refused);
        assert_eq!(Reader::new(bytes).text(limit).err(), refused);
        let read = |_: &mut Reader<'_>| -> Decoded<u8> { panic!("an element was read") };
        assert_eq!(Reader::new(bytes).list(limit, read).err(), refused);
    }
    // Of a list within its limit that is not there, nothing is kept either.
    assert_eq!(Reader::new(&[40, 0]).list(SMALL, Reader::u64), Err(DecodeError::Truncated));
}

#[test]
fn a_writer_cuts_at_the_limit() {
    let mut writer = Writer::new(Vec::new());
    writer.text(&"ä".repeat(50), Limit::u16(5)).bytes(&[1; 9], Limit::u32(2));
    writer.list(&[7; 9], Limit::u16(1), |writer, value| {
        writer.u8(*value);
    });
    let bytes = writer.into_inner();
    assert_eq!(bytes, b"\x04\0\xc3\xa4\xc3\xa4\x02\0\0\0\x01\x01\x01\0\x07");
}

#[test]
fn frames_have_their_length_in_front() {
    let mut writer = Writer::new(vec![9]);
    writer.framed(|writer| {
        writer.u8(1).u16(2);
    });
    let bytes = writer.into_inner();
    assert_eq!(bytes, [9, 3, 0, 0, 0, 1, 2, 0]);
    assert_eq!(first_frame(&bytes[1..], 3), Ok(Some(&[1, 2, 0][..])));
    assert_eq!(first_frame(&bytes[1..], 2), Err(DecodeError::OverLimit));
    assert_eq!(first_frame(&[0; 4], 2), Err(DecodeError::OverLimit));
    for cut in 1..bytes.len() {
        assert_eq!(first_frame(&bytes[1..cut], 3), Ok(None));
    }
}

#[test]
fn a_fixed_buffer_tells_when_it_is_too_small() {
    let mut writer = Writer::new(Fixed::<4>::new());
    writer.u16(1).u16(2);
    assert_eq!(writer.into_inner().full(), Some([1, 0, 2, 0]));
    let mut writer = Writer::new(Fixed::<4>::new());
    writer.u16(1).u32(2);
    let fixed = writer.into_inner();
    assert_eq!((fixed.written(), fixed.full()), (None, None));
}
