//! Files as PyTorch writes them (`tests/torch/make.py`), and what nobody should have to believe.

use std::path::{Path, PathBuf};

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    let dir: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch");
    std::fs::read(dir.join(name)).unwrap()
}

/// The pickle of a fixture, and all that may be beside it.
fn pickle_of(name: &str) -> Vec<u8> {
    let bytes = fixture(name);
    Archive::open(&bytes).unwrap().pickle(&bytes).unwrap().to_vec()
}

/// What is said of a file must be so: no tensor may lie outside it.
fn check(bytes: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let tensors = entries(bytes)?;
    for (name, entry) in &tensors {
        let data = bytes.get(entry.offset..entry.offset + entry.bytes);
        let values: usize = entry.shape.iter().product();
        let data = data.unwrap_or_else(|| panic!("{name} lies outside the file"));
        if let Ok(format) = entry.format {
            format.decode(data, &mut vec![0.0; values]).unwrap();
        }
    }
    Ok(tensors)
}

#[test]
fn tensors_lie_where_the_pickle_says() {
    let bytes = fixture("state.bin");
    let tensors = check(&bytes).unwrap();
    assert_eq!(tensors.len(), 11);
    let find = |name: &str| &tensors.iter().find(|(other, _)| other == name).unwrap().1;
    for (name, shape, values) in [
        ("a.weight", vec![2, 3], vec![1.0, -2.0, 3.0, 4.5, 5.0, -6.0]),
        ("half", vec![2], vec![1.0, -2.0]),
        ("bf16", vec![2, 1], vec![1.0, -2.0]),
        ("first", vec![2, 2], vec![0.5, -1.0, 2.0, 3.5]),
        ("rest", vec![1, 2], vec![-4.0, 6.25]),
        ("scalar", vec![], vec![3.5]),
        ("nothing", vec![0, 4], vec![]),
    ] {
        let entry = find(name);
        assert_eq!(entry.shape, shape, "{name}");
        let mut out = vec![0.0; values.len()];
        let data = &bytes[entry.offset..entry.offset + entry.bytes];
        entry.format.as_ref().unwrap().decode(data, &mut out).unwrap();
        assert_eq!(out, values, "{name}");
    }
    for (name, kind, len) in [("d2t", "I64", 24), ("small", "I32", 8), ("t2d", "BOOL", 4), ("double", "F64", 8)] {
        assert_eq!((&find(name).format, find(name).bytes), (&Err(kind.to_owned()), len), "{name}");
    }
    let [(name, entry)] = &check(&fixture("protocol4.bin")).unwrap()[..] else { panic!("one tensor") };
    assert_eq!((name.as_str(), &entry.shape), ("a", &vec![2]));
}

#[test]
fn what_is_no_plain_state_dict_is_refused_by_name() {
    for (name, wanted) in [
        ("transposed.bin", "tensor a has rows that do not follow each other (shape [3, 2], strides [1, 3])"),
        ("beyond.bin", "tensor a of shape [2, 2] from number 3 on ends beyond data/0"),
        ("packed.bin", "its entry archive/data.pkl is packed"),
        ("big.bin", "not in little-endian order"),
        ("nested.bin", "is no tensor: save the state dict of the model alone"),
        ("list.bin", "holds no state dict"),
        ("call.bin", "asks for posix.system, which is refused"),
        ("legacy.bin", "before version 1.6"),
    ] {
        let message = entries(&fixture(name)).unwrap_err();
        assert!(message.contains(wanted), "{name}: {message}");
    }
    assert!(entries(b"").unwrap_err().contains("not a sound zip archive"));
}

#[test]
fn a_pickle_says_only_what_a_state_dict_needs() {
    let refused = |bytes: &[u8], wanted: &str| {
        let message = pickle::state_dict(bytes).unwrap_err();
        assert!(message.contains(wanted), "{bytes:?}: {message}");
    };
    for (bytes, wanted) in [
        (&b""[..], "ends too early"),
        (b".", "byte 0: takes what is not there"),
        (b"(.", "takes what is not there"),
        (b"N(.", "takes what is not there"),
        (b"K\x01.", "holds no state dict"),
        (b"X\xff\xff\xff\xffa", "ends too early"),
        (b"X\x01\x00\x00\x00\xff.", "no UTF-8"),
        (b"cbuiltins\neval\n.", "builtins.eval, which is refused"),
        (b"ctorch\nload\n.", "torch.load, which is refused"),
        (b"\x8c\x02os\x8c\x06system\x93.", "os.system, which is refused"),
        (b"cos", "ends within a name"),
        (b"i", "the word 0x69 has no place"),
        (b"h\x05.", "recalls 5"),
        (b"q\x00", "remembers what is not there"),
        (b"K\x01)R.", "calls what is no function"),
        (b"ccollections\nOrderedDict\nK\x01R.", "without a list"),
        (b"ccollections\nOrderedDict\nN\x85R.", "with 1 arguments"),
        (b"N)a.", "adds to what is no list"),
        (b"}(Nu.", "a key without a value"),
        (b"Nb", "attributes to what is no dict"),
        (b"NNb.", "attributes to what is no dict"),
        (b"}NNs.", "a tensor has no name"),
        (b"(Q", "takes what is not there"),
        (b")Q", "names no storage"),
        (b"\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01.", "more than 64 bits"),
        (b"t", "ends a list that was not begun"),
    ] {
        refused(bytes, wanted);
    }
    refused(&[b'('; 100], "more than 64 lists within each other");
    refused(&vec![b'N'; (1 << 21) + 1], "more than 2097152 objects");
    refused(&[&b"Nq\x00"[..], &b"h\x00".repeat(1 << 21)].concat(), "objects at once");
    refused(&vec![b'N'; (32 << 20) + 1], "may have 33554432");
    // A dict that is in itself is as good as any other.
    refused(b"}q\x00X\x01\x00\x00\x00ah\x00s.", "\"a\" is no tensor");
    assert!(pickle::state_dict(b"\x80\x02}.").unwrap().is_empty());
}

#[test]
fn whatever_is_cut_off_is_missed() {
    for name in ["state.bin", "protocol4.bin"] {
        let bytes = fixture(name);
        for len in 0..bytes.len() {
            assert!(entries(&bytes[..len]).is_err(), "{name}, {len} bytes");
        }
        let pickle = pickle_of(name);
        for len in 0..pickle.len() {
            assert!(pickle::state_dict(&pickle[..len]).is_err(), "{name}, {len} bytes of its pickle");
        }
    }
}

#[test]
fn no_wrong_byte_leads_out_of_the_file() {
    let bytes = fixture("state.bin");
    for at in 0..bytes.len() {
        for wrong in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bytes = bytes.clone();
            bytes[at] ^= wrong;
            // It may still be a file, of other tensors.
            let _ = check(&bytes);
        }
    }
}

#[test]
fn no_program_of_random_words_breaks_the_machine() {
    let words: Vec<&[u8]> = vec![
        b"N",
        b"(",
        b")",
        b"]",
        b"}",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"a",
        b"e",
        b"s",
        b"u",
        b"Q",
        b"R",
        b"b",
        b"\x94",
        b"\x93",
        b"q\x00",
        b"h\x00",
        b"q\x01",
        b"h\x01",
        b"K\x02",
        b"J\xff\xff\xff\xff",
        b"\x8c\x01a",
        b"\x8c\x07storage",
        b"ctorch\nFloatStorage\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ctorch._utils\n_rebuild_parameter\n",
        b"ccollections\nOrderedDict\n",
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    ];
    let mut state = 1u64;
    for _ in 0..20_000 {
        let mut program = Vec::new();
        for _ in 0..24 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            program.extend_from_slice(words[(state >> 33) as usize % words.len()]);
        }
        program.push(b'.');
        let _ = pickle::state_dict(&program);
    }
}
