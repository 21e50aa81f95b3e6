//! The GGUF reader: what it reads, and what it refuses, by name of file, field and offset.

mod files_support;

use files_support::{Writer, model, says, string};
use kernels::Format;
use model::gguf::{Gguf, GgufError, Metadata, TensorInfo, Value};

fn parse(w: &Writer) -> Result<(Metadata, Vec<TensorInfo>), GgufError> {
    Gguf::parse(&w.bytes(), "x.gguf")
}

/// One entry of every type, and two tensors.
fn everything() -> Writer {
    let nested = [&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &7u32.to_le_bytes()].concat();
    Writer::new()
        .raw("u8", 0, vec![200])
        .raw("i8", 1, vec![0xff])
        .raw("u16", 2, 60_000u16.to_le_bytes().to_vec())
        .raw("i16", 3, (-3i16).to_le_bytes().to_vec())
        .u32("u32", 4_000_000_000)
        .raw("i32", 5, (-5i32).to_le_bytes().to_vec())
        .f32("f32", 1.5)
        .raw("bool", 7, vec![1])
        .str("str", "grüße")
        .raw("u64", 10, 12u64.to_le_bytes().to_vec())
        .raw("i64", 11, (-12i64).to_le_bytes().to_vec())
        .raw("f64", 12, 2.5f64.to_le_bytes().to_vec())
        .strings("strings", &["a", "", "ü"])
        .array("i16s", 3, 2, &[-1i16, 5].map(i16::to_le_bytes).concat())
        .array("f32s", 6, 2, &[1f32, -2.0].map(f32::to_le_bytes).concat())
        .array("nested", 9, 1, &nested)
        .f32_tensor("matrix", &[2, 3])
        .tensor("blocks", &[2, 64], 2, vec![7; 72])
}

#[test]
fn every_type_is_read() {
    for version in [2, 3] {
        let (m, tensors) = parse(&Writer { version, ..everything() }).unwrap();
        assert_eq!((m.u32("u8").unwrap(), m.u32("u16").unwrap()), (200, 60_000));
        assert_eq!((m.u32("u32").unwrap(), m.u32("u64").unwrap()), (4_000_000_000, 12));
        assert_eq!((m.get("i8"), m.get("i16")), (Some(&Value::I8(-1)), Some(&Value::I16(-3))));
        assert_eq!((m.get("i32"), m.get("i64")), (Some(&Value::I32(-5)), Some(&Value::I64(-12))));
        assert_eq!((m.f32("f32").unwrap(), m.f32("f64").unwrap(), m.bool("bool").unwrap()), (1.5, 2.5, true));
        assert_eq!((m.str("str").unwrap(), m.opt_str("none").unwrap()), ("grüße", None));
        assert_eq!(m.strings("strings").unwrap(), ["a", "", "ü"]);
        assert_eq!((m.i32s("i16s").unwrap(), m.f32s("f32s").unwrap()), (vec![-1, 5], vec![1.0, -2.0]));
        assert_eq!(m.iter().count(), 16);
        // Shapes come slowest dimension first.
        assert_eq!((tensors[0].shape.as_slice(), tensors[0].format), ([2usize, 3].as_slice(), Format::F32));
        assert_eq!((tensors[1].shape.as_slice(), tensors[1].format), ([2usize, 64].as_slice(), Format::Q4_0));
        assert_eq!((tensors[0].bytes, tensors[1].bytes), (24, 72));
    }
}

#[test]
fn wrong_types_name_the_key() {
    let (m, _) = parse(&everything()).unwrap();
    says(m.u32("i32"), &["x.gguf", "key i32", "integer -5", "unsigned 32-bit"]);
    says(m.opt_u32("str"), &["x.gguf", "key str", "a string"]);
    says(m.str("u32"), &["key u32", "4000000000", "a string is needed"]);
    says(m.f32("u8"), &["key u8", "floating point"]);
    says(m.bool("u8"), &["key u8", "a boolean"]);
    says(m.strings("i16s"), &["key i16s", "an array of 2 integers", "array of strings"]);
    says(m.i32s("strings"), &["key strings", "an array of 3 strings"]);
    says(m.f32s("i16s"), &["key i16s"]);
    says(m.str("nothing"), &["x.gguf", "nothing", "missing"]);
}

#[test]
fn data_of_a_mapped_file() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = Gguf::open(&everything().write(dir.path(), "m.gguf")).unwrap();
    let matrix = gguf.tensor("matrix").unwrap();
    let values: Vec<f32> = gguf.data(matrix).chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(values, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
    assert_eq!(gguf.data(gguf.tensor("blocks").unwrap()), [7; 72]);
    assert!(gguf.tensor("other").is_none());
    says(Gguf::open(&dir.path().join("none.gguf")), &["none.gguf", "cannot read"]);
    says(Gguf::open(dir.path()), &["cannot read"]);
}

/// A file that ends early is refused wherever it ends, with the field that is cut.
#[test]
fn truncated_at_every_byte() {
    let bytes = everything().bytes();
    for cut in 0..bytes.len() {
        let error = Gguf::parse(&bytes[..cut], "x.gguf").expect_err("the file is cut");
        assert!(matches!(error, GgufError::Truncated { .. }), "cut at {cut}: {error}");
        says(Err::<(), _>(error), &["x.gguf", "truncated", "at byte"]);
    }
    let header = everything().header().len();
    says(Gguf::parse(&bytes[..10], "x"), &["tensor count at byte 8"]);
    says(Gguf::parse(&bytes[..header - 1], "x"), &["tensor blocks at byte"]);
    says(Gguf::parse(&bytes[..bytes.len() - 1], "x"), &["tensor blocks", "72 bytes", "71 left"]);
}

#[test]
fn not_gguf() {
    says(Gguf::parse(b"", "x"), &["x", "magic", "truncated"]);
    says(Gguf::parse(b"PK\x03\x04abcdefgh", "x"), &["magic", "not a GGUF file"]);
    says(Gguf::parse(b"version https://git-lfs.github.com/spec/v1\n", "x"), &["Git LFS pointer"]);
    says(parse(&Writer { version: 1, ..everything() }), &["version 1", "not supported"]);
    says(parse(&Writer { version: 4, ..everything() }), &["version 4"]);
    says(parse(&Writer { version: 3u32.swap_bytes(), ..everything() }), &["version at byte 4", "big-endian"]);
}

#[test]
fn lying_counts_are_not_allocated_for() {
    let sound = everything().bytes();
    for (at, field) in [(8, "tensor count"), (16, "metadata count")] {
        for lie in [u64::MAX, 1 << 62, 1 << 40, 1 << 20] {
            let mut bytes = sound.clone();
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(lie));
            says(Gguf::parse(&bytes, "x.gguf"), &["x.gguf", field, "truncated"]);
        }
    }
    for lie in [u64::MAX, 1 << 62, 1 << 40] {
        says(parse(&Writer::new().array("k", 8, lie, &[])), &["metadata key k", "truncated"]);
        says(parse(&Writer::new().array("k", 12, lie, &[])), &["metadata key k", "truncated"]);
        says(parse(&Writer::new().array("k", 9, lie, &[])), &["metadata key k", "truncated"]);
        says(parse(&Writer::new().raw("k", 8, lie.to_le_bytes().to_vec())), &["metadata key k", "truncated"]);
    }
}

#[test]
fn senseless_metadata() {
    let mut twice = Writer::new().u32("k", 1);
    twice.entries.push(twice.entries[0].clone());
    says(parse(&twice), &["metadata key k", "twice"]);
    says(parse(&Writer::new().raw("k", 13, vec![0; 8])), &["metadata key k", "unknown value type 13"]);
    says(parse(&Writer::new().array("k", 99, 1, &[0; 8])), &["metadata key k", "unknown element type 99"]);
    says(parse(&Writer::new().raw("k", 7, vec![2])), &["metadata key k", "no boolean"]);
    let bad = [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat();
    says(parse(&Writer::new().array("k", 8, 1, &bad)), &["metadata key k", "utf-8"]);
    // Descriptions may be in any encoding.
    let (m, _) = parse(&Writer::new().raw("k", 8, bad)).unwrap();
    assert_eq!(m.str("k").unwrap(), "\u{fffd}\u{fffd}");
    let mut deep = vec![];
    for _ in 0..1000 {
        deep.extend([&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat());
    }
    says(parse(&Writer::new().raw("k", 9, deep)), &["metadata key k", "nested"]);
}

#[test]
fn alignment_is_checked() {
    for alignment in [0, 1, 3, 4, 24, 1 << 21, u32::MAX] {
        says(parse(&everything().u32("general.alignment", alignment)), &["general.alignment", "power of two"]);
    }
    says(parse(&everything().str("general.alignment", "32")), &["general.alignment", "a string"]);
    let mut wide = Writer { alignment: 128, ..Writer::new() }.u32("general.alignment", 128);
    wide = wide.f32_tensor("a", &[3]).f32_tensor("b", &[3]);
    let (_, tensors) = parse(&wide).unwrap();
    assert!(tensors.iter().all(|t| t.offset % 128 == 0));
}

#[test]
fn senseless_tensors() {
    let change = |f: &dyn Fn(&mut Writer)| {
        let mut w = everything();
        f(&mut w);
        parse(&w)
    };
    says(change(&|w| w.tensors[1].3 += 4), &["x.gguf", "tensor blocks", "not a multiple of 32"]);
    says(change(&|w| w.tensors[1].3 = 0), &["tensor", "overlaps", "matrix"]);
    says(change(&|w| w.tensors[1].0 = "matrix".into()), &["tensor matrix", "twice"]);
    says(change(&|w| w.tensors[1].1 = vec![]), &["tensor blocks", "0 dimensions"]);
    says(change(&|w| w.tensors[1].1 = vec![32, 1, 1, 1, 1]), &["tensor blocks", "5 dimensions"]);
    says(change(&|w| w.tensors[1].1 = vec![0, 64]), &["tensor blocks", "zero"]);
    says(change(&|w| w.tensors[1].1 = vec![48, 3]), &["tensor blocks", "[3, 48]", "Q4_0"]);
    says(change(&|w| w.tensors[1].1 = vec![1 << 40, 1 << 40]), &["tensor blocks"]);
    says(change(&|w| w.tensors[1].1 = vec![32, 1 << 40, 1 << 40]), &["tensor blocks", "overflows"]);
    says(change(&|w| w.tensors[1].1 = vec![64, 1 << 20]), &["tensor blocks", "truncated"]);
    says(change(&|w| w.tensors[1].2 = 10), &["x.gguf", "tensor blocks", "Q2_K", "supported", "Q4_K"]);
    says(change(&|w| w.tensors[1].2 = 23), &["tensor blocks", "IQ4_XS"]);
    says(change(&|w| w.tensors[1].2 = 4_000), &["tensor blocks", "number 4000"]);
    // An offset beyond the file is a lie of the header: the writer must not follow it.
    let mut far = everything().bytes();
    let at = everything().header().len() - 8;
    for lie in [u64::MAX - 31, 1 << 62, 1 << 30] {
        far[at..at + 8].copy_from_slice(&u64::to_le_bytes(lie));
        says(Gguf::parse(&far, "x.gguf"), &["x.gguf", "tensor blocks"]);
    }
    let mut name = everything();
    name.tensors.clear();
    let header = [name.header(), string("t")].concat();
    let mut bytes = header.clone();
    bytes[8] = 1;
    bytes.extend(1u32.to_le_bytes());
    says(Gguf::parse(&bytes, "x"), &["truncated"]);
}

/// Every single flipped bit of a header gives an answer: an error, or a file that is still sound. No panic, and no
/// allocation by a count that the file cannot hold.
#[test]
fn every_flipped_bit_of_a_header() {
    let dir = tempfile::tempdir().unwrap();
    let w = model("llama");
    let sound = w.bytes();
    let before = virtual_peak();
    let mut accepted = 0;
    for bit in 0..w.header().len() * 8 {
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok((_, tensors)) = Gguf::parse(&bytes, "x.gguf") {
            accepted += 1;
            assert!(tensors.iter().all(|t| t.offset + t.bytes <= bytes.len()));
            // Writing files takes most of the time: every seventh must do, which hits every bit of a byte.
            if bit % 7 != 0 {
                continue;
            }
            let path = dir.path().join("flipped.gguf");
            std::fs::write(&path, &bytes).unwrap();
            // The config may refuse, but must not panic or allocate by the numbers it reads.
            drop(model::config::Config::from_gguf(&Gguf::open(&path).unwrap()));
        }
    }
    assert!(accepted > 0, "letters of names can be flipped without harm");
    let grown = virtual_peak().saturating_sub(before);
    assert!(grown < 512 << 20, "a flipped bit made the reader allocate {grown} bytes");
}

/// Most address space that the process ever had, in bytes; 0 where the system does not tell.
fn virtual_peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) * 1024
}
